//! Several URLs in one text, as variables, files and secrets have them.

use crate::settings::node_address::NodeAddress;
use crate::values::config_error::ConfigError;

/// The text without what editors, documents and secret stores put around it: white space, a byte order mark.
pub(crate) fn bare(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || "\u{feff}\u{200b}".contains(c))
}

/// The URLs in a text. A comma separates two URLs only before a scheme: the hosts of one have commas between them. So
/// has a password, perhaps.
pub(crate) fn items(urls: &str) -> Vec<&str> {
    let mut items = Vec::new();
    for word in urls.split_whitespace() {
        let mut rest = bare(word);
        while let Some((at, _)) = rest
            .match_indices(',')
            .find(|(at, _)| begins_url(rest, at + 1))
        {
            items.push(rest.get(..at).unwrap_or_default());
            rest = rest.get(at + 1..).unwrap_or_default();
        }
        items.push(rest.trim_end_matches(','));
    }
    items.retain(|url| !url.is_empty());
    items
}

fn begins_url(text: &str, at: usize) -> bool {
    let text = text.get(at..).unwrap_or_default();
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_part)
}

/// The URLs in a text that names more than one node. (The path of a Unix socket may have a space in it.)
pub(crate) fn several(text: &str) -> Option<Vec<&str>> {
    let urls = items(text);
    let begun = urls.iter().filter(|url| begins_url(url, 0));
    (begun.count() > 1).then_some(urls)
}

/// The nodes of URLs that were found in one text. `source`: where each of them, counted from 0, was given. `of_url`: the
/// node of one URL.
///
/// # Errors
///
/// The first mistake, behind its source.
pub(crate) fn nodes(
    urls: &[&str],
    source: impl Fn(usize) -> String,
    of_url: fn(&str) -> Result<NodeAddress, ConfigError>,
) -> Result<Vec<NodeAddress>, ConfigError> {
    // A comma in a password has made two of one, or there are parameters behind it: they are not shown.
    let has_none = |url: &str| !url.contains("://");
    let torn = |at: usize| {
        ConfigError::new(format!(
            "{}: it has no scheme (redis://); if there is a comma in a password, write %2C, and put the password before \
             an @ (redis://user:password@host:port)",
            source(at)
        ))
    };
    let in_password = |url: &&str| url.contains('@') && has_none(url);
    if let Some(at) = urls.iter().position(in_password) {
        return Err(torn(at));
    }
    let one = |(at, url): (usize, &&str)| match at > 0 && has_none(url) {
        true => Err(torn(at)),
        false => of_url(url).map_err(|error| ConfigError::new(format!("{}: {error}", source(at)))),
    };
    urls.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::into_node;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        let nodes = nodes(&items(text), |at| format!("URL {at}"), into_node::of_url);
        let nodes = nodes.map_err(|error| error.to_string())?;
        Ok(nodes.iter().map(NodeAddress::to_string).collect())
    }

    #[test]
    fn the_commas_of_a_url_with_several_hosts_are_no_ends_of_it() {
        for (text, expected) in [
            ("redis+cluster://a,b", &["cluster of a:6379,b:6379"][..]),
            (
                "redis://c,redis+cluster://u:p@a,b:1,c/0,valkey-cluster://d,e,",
                &[
                    "c:6379",
                    "cluster of a:6379,b:1,c:6379",
                    "cluster of d:6379,e:6379",
                ],
            ),
            (
                "redis-cluster://a?node=b:1,redis+sentinel://a,b/m redis+cluster://c,d",
                &[
                    "cluster of a:6379,b:1",
                    "m of a:26379,b:26379",
                    "cluster of c:6379,d:6379",
                ],
            ),
            ("redis://a\r\nredis://b,\n\n", &["a:6379", "b:6379"]),
        ] {
            assert_eq!(shown(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_password_with_a_comma_is_no_url_of_its_own_and_is_not_shown() {
        for (text, url) in [
            ("redis://a,redis://:hunter2 x@b", 2),
            ("redis://a redis://b c", 2),
            ("redis://:hunter2, redis://x@b hunter3@c", 2),
        ] {
            let error = shown(text).unwrap_err();
            assert!(
                error.starts_with(&format!("URL {url}: it has no scheme")),
                "{error}"
            );
            assert!(!error.contains("hunter"), "{error}");
        }
    }

    #[test]
    fn one_url_is_no_list() {
        for text in [
            "redis://a",
            "redis+sentinel://a,b/m",
            "unix:///run/my redis.sock",
            "redis://:a,b@c",
            "a,b",
            "",
        ] {
            assert_eq!(several(text), None, "{text}");
        }
        assert_eq!(
            several("redis://a,redis://b"),
            Some(vec!["redis://a", "redis://b"])
        );
    }
}
