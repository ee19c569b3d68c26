//! What is wrong with the URL of a node, for the C interface and the command, which have it as a string.
//!
//! `Redlock::new` takes anything that the redis crate makes a node of, and has the
//! crate's error only.

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::text::{SEVERAL, is_name, odd};

/// So much of a URL is shown.
const SHOWN: usize = 64;
const HIDDEN: &str = "***";
const SCHEMES: [&str; 7] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
];
/// What else is no part of a password.
const OTHERS: [&str; 5] = ["http", "https", "tcp", "tls", "ssl"];

/// The node that a URL names.
///
/// # Errors
///
/// The URL without its password, and what it should be.
pub(crate) fn parse(url: &str) -> Result<ConnectionInfo, String> {
    let wrong = |form: &str| {
        Err(format!(
            "(\"{}\") cannot be a node's URL: {form}",
            shown(url)
        ))
    };
    match url.into_connection_info() {
        Err(error) => wrong(&form(url, &error.to_string())),
        Ok(info) => match odd(info.addr()) {
            Some(reason) => wrong(reason),
            None => Ok(info),
        },
    }
}

/// What may be shown of what was to be a URL: no password, nor what may be one, no control characters, and not too
/// much of it.
pub(crate) fn shown(url: &str) -> String {
    let mut text = String::new();
    for c in masked(url).chars() {
        let escaped: String = match c {
            '"' | '\'' | '\\' => c.into(),
            _ => c.escape_debug().collect(),
        };
        if text.chars().count() + escaped.chars().count() > SHOWN {
            return text + "…";
        }
        text.push_str(&escaped);
    }
    text
}

// ---- passwords

/// The URL with `***` in place of what is a password, or may be one: only hosts, ports, paths and numbers of databases
/// are left.
fn masked(url: &str) -> String {
    let (place, more) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let scheme = scheme(place).filter(is_known);
    let user = scheme.map_or(String::new(), |scheme| format!("{scheme}://")) + HIDDEN;
    let (_, rest) = url.rsplit_once('@').unwrap_or(("", url));
    if more.contains('@') || rest.contains("%40") || rest.contains('＠') {
        // A password may have '?' or '#' in it, or who encoded it has encoded too much.
        return user;
    }
    let more = match more {
        "" | "?" | "#insecure" => more,
        _ if is_harmless(more) => more,
        _ => "?***",
    };
    // A password may have '@' in it, too: all up to the last one is user and password. Where that is no URL of a host,
    // all may be the password.
    let is_url = scheme.is_some() && !is_path(place);
    let shown = match place.rsplit_once('@') {
        Some((before, _)) if !is_url || before.trim().contains(is_separator) => user,
        Some((_, hosts)) => user + "@" + &masked_hosts(hosts),
        None => masked_hosts(place),
    };
    shown + more
}

/// Parameters that are no secret.
fn is_harmless(more: &str) -> bool {
    let mut pairs = more.trim_start_matches('?').split('&');
    pairs.all(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or_default();
        matches!(name, "db" | "protocol") && value.len() <= 5
    })
}

/// Hosts with their ports, and paths. Behind the first, only what has a scheme: the rest may be parameters.
fn masked_hosts(hosts: &str) -> String {
    let mut is_first = true;
    let one = |piece: &str| {
        let text = piece.trim_end_matches(is_separator);
        let (_, separator) = piece.split_at(text.len());
        let is_shown = scheme(text).as_ref().map_or(is_first, is_known);
        is_first &= text.is_empty();
        match is_shown || text.is_empty() {
            true => masked_host(text) + separator,
            false => HIDDEN.to_owned() + separator,
        }
    };
    hosts.split_inclusive(is_separator).map(one).collect()
}

/// What is no port, nor the number of a database, may be a password: the '@' behind it was forgotten.
fn masked_host(text: &str) -> String {
    let (scheme, rest) = split_scheme(text);
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_file = authority.is_empty() && (scheme.is_empty() || is_path(scheme));
    let is_number = path.chars().all(|c| c == '/' || c.is_ascii_digit());
    let path = match is_number || is_file && path.split('/').skip(1).all(is_name) {
        true => path,
        false => "/***",
    };
    let (name, port) = match authority.split_once(':') {
        _ if is_ipv6(authority) || authority.is_empty() || is_name(authority) => (authority, ""),
        Some((name, port)) if is_name(name) && is_port(port) => (authority, ""),
        Some((name, _)) if name.is_empty() || is_name(name) => (name, ":***"),
        _ => (HIDDEN, ""),
    };
    format!("{scheme}{name}{port}{path}")
}

// ---- the right form

/// What it should be.
fn form(url: &str, error: &str) -> String {
    let place = url.trim();
    let place = place.split(['?', '#']).next().unwrap_or_default();
    let hosts = place.rsplit('@').next().unwrap_or_default();
    let (_, authority) = split_scheme(hosts);
    let authority = authority.split('/').next().unwrap_or_default();
    if place.is_empty() {
        return "it is empty: write redis://host:port".into();
    }
    if place.matches("://").count() > 1 || hosts.contains(is_separator) {
        return SEVERAL.into();
    }
    let Some(scheme) = scheme(place) else {
        return without_scheme(url, place, authority);
    };
    if !SCHEMES.contains(&scheme) {
        let right = match scheme {
            "https" | "tls" | "ssl" => "rediss",
            _ => "redis",
        };
        return format!(
            "the scheme must be redis, rediss (TLS) or unix: write {right}://host:port"
        );
    }
    let tls = matches!(scheme, "rediss" | "valkeys");
    if tls && !cfg!(feature = "tls-rustls") {
        return crate::text::NO_TLS.into();
    }
    if is_path(url) {
        return format!("{}: write unix:///path/to/socket", reason(error));
    }
    let (_, port) = authority.rsplit_once(':').unwrap_or_default();
    if is_ipv6(authority) {
        return format!(
            "an IPv6 address has brackets: write {}",
            bracketed(scheme, authority)
        );
    }
    if authority.is_empty() || authority.starts_with(':') {
        return format!("it has no host: write {scheme}://host:port");
    }
    if !port.is_empty() && !authority.ends_with(']') && port.parse::<u16>().is_err() {
        return "its port is not a number up to 65535; in a password, write %40 for @, %3A for :, %2F for /, \
                %3F for ? and %23 for #"
            .into();
    }
    format!("{}: write {scheme}://host:port/database", reason(error))
}

fn without_scheme(url: &str, place: &str, authority: &str) -> String {
    let hidden = masked(url) != url;
    match place.split_once(':') {
        _ if !hidden && place.starts_with('/') => {
            format!("it has no scheme: write unix://{}", shown(place))
        }
        Some(("unix" | "redis+unix" | "valkey+unix", _)) => {
            "its path has no // before it: write unix:///path/to/socket".into()
        }
        Some((scheme, _)) if SCHEMES.contains(&scheme) => {
            format!("its host has no // before it: write {scheme}://host:port")
        }
        _ if hidden => "it has no scheme: write redis://user:password@host:port".into(),
        _ if is_ipv6(authority) => {
            let right = bracketed("redis", authority);
            format!("it has no scheme, and an IPv6 address has brackets: write {right}")
        }
        _ => format!("it has no scheme: write redis://{}", shown(place)),
    }
}

/// The redis crate's text without the name of its class, and without the value.
fn reason(error: &str) -> &str {
    error.split(" - ").next().unwrap_or(error)
}

// ---- parts

fn is_known(scheme: &&str) -> bool {
    SCHEMES.contains(scheme) || OTHERS.contains(scheme)
}

fn is_separator(c: char) -> bool {
    c == ',' || c == ';' || c.is_whitespace()
}

/// Before `://`.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.trim_start().split_once("://")?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (!scheme.is_empty() && scheme.len() <= 16 && scheme.chars().all(is_part)).then_some(scheme)
}

/// The scheme with its `://`, and what follows.
fn split_scheme(url: &str) -> (&str, &str) {
    match (scheme(url), url.find("://")) {
        (Some(_), Some(at)) => url.split_at(at + 3),
        _ => ("", url),
    }
}

fn is_path(url: &str) -> bool {
    scheme(url).is_some_and(|scheme| scheme.ends_with("unix")) || url.trim().starts_with("unix:")
}

fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// With or without brackets, with or without a port.
fn is_ipv6(authority: &str) -> bool {
    let parses = |text: &str| text.parse::<std::net::Ipv6Addr>().is_ok();
    match authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((address, rest)) => parses(address) && rest.strip_prefix(':').is_none_or(is_port),
        None => parses(authority) || with_port(authority).is_some(),
    }
}

/// An IPv6 address without brackets and the port behind it, where that can be told.
fn with_port(authority: &str) -> Option<(&str, &str)> {
    let (address, port) = authority.rsplit_once(':')?;
    let long = port.len() >= 4 && is_port(port) && port != "0000";
    let parses = address.parse::<std::net::Ipv6Addr>().is_ok();
    let only = authority.parse::<std::net::Ipv6Addr>().is_err();
    (parses && (long || only && is_port(port) && !port.is_empty())).then_some((address, port))
}

fn bracketed(scheme: &str, authority: &str) -> String {
    match with_port(authority) {
        _ if authority.starts_with('[') => format!("{scheme}://{authority}"),
        Some((address, port)) => format!("{scheme}://[{address}]:{port}"),
        None => format!("{scheme}://[{authority}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(url: &str) -> String {
        parse(url).unwrap_err()
    }

    #[test]
    fn each_wrong_form_is_named_with_the_right_one() {
        let several = "give each node as an item of its own";
        for (url, expected) in [
            ("", "it is empty: write redis://host:port"),
            ("127.0.0.1:6379", "no scheme: write redis://127.0.0.1:6379"),
            ("localhost:6379", "no scheme: write redis://localhost:6379"),
            ("nonsense", "no scheme: write redis://nonsense"),
            ("[::1]:6379", "brackets: write redis://[::1]:6379"),
            ("::1", "brackets: write redis://[::1]"),
            ("/run/redis.sock", "no scheme: write unix:///run/redis.sock"),
            ("redis:host", "write redis://host:port"),
            ("unix:", "write unix:///path/to/socket"),
            ("unix://relative", "write unix:///path/to/socket"),
            (
                "http://host:6379",
                "the scheme must be redis, rediss (TLS) or unix: write redis://",
            ),
            ("https://host:6379", "write rediss://"),
            ("redis://a,redis://b", several),
            ("redis://a, redis://b", several),
            ("redis://a redis://b", several),
            ("redis://a;redis://b", several),
            ("redis://a,b:6379", several),
            ("redis://a,b", several),
            ("redis-cli -h a", several),
            ("a:1,password=x", "redis://user:password@host:port"),
            (
                "redis://user%3Ax%40host",
                "no host's name has: write redis://user:password@host:port",
            ),
            ("redis://bücher.example", "as punycode (xn--…)"),
            ("unix:///s,password=x", "write unix:///path?user=…&pass=…"),
            ("a:1,b:2", several),
            ("a:1 b:2", several),
            (
                "redis://::1:6379",
                "an IPv6 address has brackets: write redis://[::1]:6379",
            ),
            (
                "redis://fe80::1",
                "an IPv6 address has brackets: write redis://[fe80::1]",
            ),
            (
                "redis://2001:db8::2:7000/1",
                "write redis://[2001:db8::2]:7000",
            ),
            (
                "redis://1:2:3:4:5:6:7:8:9",
                "write redis://[1:2:3:4:5:6:7:8]:9",
            ),
            ("redis://", "it has no host: write redis://host:port"),
            ("redis://:6379", "it has no host"),
            ("redis://host:99999", "its port is not a number up to 65535"),
            ("redis://host:port", "its port is not a number up to 65535"),
            (
                "redis://host/x",
                "Invalid database number: write redis://host:port/database",
            ),
            ("redis://host?protocol=9", "Invalid protocol version"),
            ("redis://0.0.0.0", "wildcard address"),
        ] {
            let text = text(url);
            assert!(text.contains(expected), "{url}: {text}");
            let start = format!("(\"{}\") cannot be a node's URL: ", shown(url));
            assert!(text.starts_with(&start), "{text}");
        }
        for url in [
            "redis://a",
            "redis://[::1]:1",
            "redis://xn--bcher-kva.example",
            "redis://a_b.c-d.:1",
            "unix:///a,b",
            " redis://a:1/2 ",
        ] {
            parse(url).unwrap();
        }
    }

    #[cfg(not(feature = "tls-rustls"))]
    #[test]
    fn tls_without_its_feature_names_the_feature() {
        for url in ["rediss://host", "valkeys://:hunter2@host:1"] {
            let text = text(url);
            assert!(text.contains("features = [\"tls\"]"), "{text}");
        }
    }

    #[test]
    fn what_is_not_secret_is_shown() {
        for url in [
            "127.0.0.1:6379",
            "http://host:80/",
            "host:6379/0",
            "redis://a:1, rediss://b_c.d-e/7",
            "redis://::1:6379",
            "redis://host:99999/1?db=7&protocol=resp3",
            "redis://[::1]:1/7",
            "unix:///run/a.sock?db=x",
            "rediss://host/#insecure",
        ] {
            assert_eq!(shown(url), url);
        }
        assert_eq!(shown("redis://u:p@host:1/x"), "redis://***@host:1/***");
        assert_eq!(shown("u:p@host:1"), "***");
        assert_eq!(
            shown("redis://u:p@a:1, redis://b"),
            "redis://***@a:1, redis://b"
        );
        assert_eq!(shown("redis://a:1,b:2"), "redis://a:1,***");
    }

    /// Also the address that is shown of what is taken. (What is behind an '@' there, or
    /// before a '?' or '#', is the host.)
    fn seen(url: &str) -> String {
        let text = match parse(url) {
            Ok(_) if url.contains(['@', '?', '#']) => String::new(),
            Ok(info) => crate::text::address(info.addr()),
            Err(text) => text,
        };
        shown(url) + &text
    }

    /// Wherever it stands, and whatever is in it.
    #[test]
    fn no_password_is_shown_wherever_it_stands() {
        let passwords = [
            "hunter2", "hun@ter2", "hun/ter2", "hun:ter2", "hun?ter2", "hun#ter2",
        ];
        let more = [
            "hun,ter2",
            "hun ter2",
            "hun;ter2",
            "hun=ter2",
            "hun&ter2",
            "hun\nter2",
        ];
        let odd = [
            "hun%ter2",
            "hun\"ter2",
            "hun\\ter2",
            "[hunter2]",
            "hun://ter2",
            "hünter2",
            "@hunter2@",
        ];
        let places = [
            "redis://:{}@host:6379",
            "redis://user:{}@host:99999",
            "redis://{}@host:99999",
            "redis://user:{}@",
            "redis://user:{}@host/x",
            "http://user:{}@host:6379",
            "user:{}@host:6379",
            ":{}@host",
            "{}@host",
            "redis:user:{}@host",
            "redis:/user:{}@host",
            "redis:://user:{}@host",
            "redis//user:{}@host",
            "redis://host,redis://user:{}@host",
            "redis://user:{}@host,redis://host",
            "redis://user:{}@a redis://user:{}@b",
            "redis://user:{}@::1:6379",
            "unix:///s?pass={}",
            "unix:///s?user=a&pass={}&db=x",
            "unix://s?db={}",
            "redis://host:99999?password={}",
            "redis://host:99999/0?db=1&token={}#x",
            "redis://host:99999#{}",
            // Key and value, or the arguments of a program.
            "name.redis.cache.windows.net:6380,password={}=,ssl=True",
            "host:6379;password={}",
            "host:6379 {}",
            "host:6379, {}",
            "password={}",
            "redis-cli -h host -a {}",
            "-a{}",
            "redis://name,password={}",
            "redis://host:6379 {}",
            "redis://host password={} ssl",
            "unix:///run/x,password={}",
            "unix:///run/x password={}",
            "unix:///run/x%3Fpass={}",
            "/run/x password={}",
            "/run/x:{}",
        ];
        let all = passwords.iter().chain(&more).chain(&odd);
        for password in all {
            for url in places.map(|place| place.replace("{}", password)) {
                // Percent-encoded by who meant the password, and full width.
                let encoded = url.replace(':', "%3A").replace('@', "%40");
                for url in [
                    encoded.replace('/', "%2F").replace('?', "%3F"),
                    encoded.to_lowercase().replacen("%3a//", "://", 1),
                    url.replace('@', "%40"),
                    url.replace(':', "：").replace('@', "＠"),
                    url.replacen(':', "：", 2).replacen("：", ":", 1),
                    url,
                ] {
                    let seen = seen(&url);
                    for part in ["hun", "ter2", "hün"] {
                        assert!(!seen.contains(part), "{url}: {seen}");
                    }
                }
            }
        }
        // The '@' was forgotten.
        for url in [
            "redis://:hunter2",
            "redis://user:hunter2",
            "redis://user:hunter2/0",
            "redis://user:123/hunter2",
            "redis://user:hunter2host:6379",
            "redis://:123456",
            "redis://:12345",
            "redis://user:123456",
            "user:hunter2",
            "redis://a:1,user:hunter2",
            "redis://user:12?hunter2%40host",
        ] {
            let seen = seen(url);
            assert!(
                !seen.contains("hunter2") && !seen.contains("12345"),
                "{seen}"
            );
        }
    }

    #[test]
    fn what_is_shown_is_short_and_has_no_control_characters() {
        assert_eq!(shown("redis://h\u{1b}[2J\n\0"), "redis://***\\n***");
        assert_eq!(shown("http://\u{202e}x"), "http://***");
        assert_eq!(shown("\u{2028}unix:///ü"), "\\u{2028}unix:///***");
        let long = shown(&"x".repeat(1000));
        assert_eq!(long, "x".repeat(64) + "…");
        let long = shown(&"\u{2028}".repeat(1000));
        assert!(long.chars().count() <= 65 && long.ends_with("}…"), "{long}");
        assert!(text(&"x".repeat(10_000)).len() < 300);
    }
}
