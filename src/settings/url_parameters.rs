//! The parameters behind the `?` of a URL, also in the forms of other clients. A parameter that cannot be obeyed is
//! refused: a lock whose database was silently left out would lie in another one. No text here, nor in `url`, repeats a
//! value.

/// Where a URL has the things that other clients write as parameters.
pub(crate) struct Right {
    pub(crate) database: String,
    pub(crate) login: String,
    /// The parameters that are allowed.
    pub(crate) others: String,
}

/// The parameters of a query, each with its value.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Why a query is refused: another parameter than these, or one of them twice. `before`: the URL before the query.
pub(crate) fn refused(query: &str, known: &[&str], before: &str, right: &Right) -> Option<String> {
    let mut found = Vec::new();
    for (key, _) in pairs(query) {
        if !known.contains(&key) {
            return Some(unknown(key, (before, query), right));
        }
        if found.contains(&key) {
            return Some(twice(key));
        }
        found.push(key);
    }
    None
}

/// Why a known parameter is refused.
pub(crate) fn twice(key: &str) -> String {
    format!("it has the parameter {key} twice: give it once")
}

/// Why this parameter is refused, and what to write.
pub(crate) fn unknown(key: &str, around: (&str, &str), right: &Right) -> String {
    let named = match is_shown(key, around) {
        true => format!("its parameter {key} is not known"),
        false => "it has a parameter that is not known".into(),
    };
    format!("{named}: {}", advice(key, right))
}

/// Why this text behind the `#` is refused, if other clients write it as a parameter.
pub(crate) fn in_fragment(fragment: &str, right: &Right) -> Option<String> {
    let (key, _) = fragment.split_once('=')?;
    let named = match Topic::of(key) {
        Some(_) => format!("the {key} behind its # is not known"),
        None => "what stands behind its # is not known".into(),
    };
    Some(format!("{named}: {}", advice(key, right)))
}

fn advice(key: &str, right: &Right) -> String {
    match Topic::of(key) {
        Some(Topic::Database) => format!("write {}", right.database),
        Some(Topic::Login) => format!("write {}", right.login),
        Some(Topic::Time) => {
            "time limits are options (node_timeout, connect_timeout) and no part of a URL".into()
        }
        Some(Topic::Tls) => {
            "for TLS the scheme is rediss, and #insecure at the end of the URL accepts every certificate"
                .into()
        }
        None => right.others.clone(),
    }
}

/// The subject of another client's parameter.
#[derive(Clone, Copy)]
enum Topic {
    Database,
    Login,
    Time,
    Tls,
}

/// The names of each topic, without `_` and `-`.
const TOPICS: [(Topic, &str); 4] = [
    (
        Topic::Database,
        "db database dbnum dbindex dbid defaultdatabase index select",
    ),
    (
        Topic::Login,
        "user username pass password passwd auth token",
    ),
    (
        Topic::Time,
        "timeout sockettimeout socketconnecttimeout connecttimeout connectiontimeout conntimeout dialtimeout readtimeout \
         writetimeout commandtimeout synctimeout asynctimeout pooltimeout",
    ),
    (
        Topic::Tls,
        "ssl tls insecure verify verifymode verifypeer skipverify tlsverify tlsinsecure sslverify sslcertreqs \
         sslcheckhostname sslcacerts sslcafile sslcapath sslcertfile sslkeyfile rejectunauthorized",
    ),
];

impl Topic {
    fn of(key: &str) -> Option<Topic> {
        let key = key.replace(['_', '-'], "").to_ascii_lowercase();
        let mut all = TOPICS.iter();
        let found = all.find(|(_, names)| names.split(' ').any(|name| name == key));
        found.map(|(topic, _)| *topic)
    }
}

/// Whether a parameter's name may be shown: a password that is not encoded may have a `?` and an `&` in it.
fn is_shown(key: &str, (before, query): (&str, &str)) -> bool {
    if Topic::of(key).is_some() {
        return true;
    }
    let is_word = |c: char| c.is_ascii_alphabetic() || "_-".contains(c);
    let is_name = (2..=32).contains(&key.len()) && key.chars().all(is_word);
    let is_first = query.starts_with(&format!("{key}="));
    let at = query.find(&format!("&{key}="));
    let earlier = at.and_then(|at| query.get(..at)).unwrap_or_default();
    let is_behind = at.is_some() && !earlier.contains("pass") && !earlier.contains(key);
    let secret = ["@", "＠", "%40"].iter().any(|at| query.contains(at)) || before.contains(key);
    is_name && (is_first || is_behind) && !secret
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> Right {
        Right {
            database: "DATABASE".into(),
            login: "LOGIN".into(),
            others: "OTHERS".into(),
        }
    }

    #[test]
    fn what_other_clients_write_leads_to_what_is_written_here() {
        let known = ["db", "pass"];
        for (query, expected) in [
            ("", None),
            ("&", None),
            ("db=1&pass=x", None),
            ("db=1&db=1", Some("parameter db twice")),
            (
                "database=3",
                Some("its parameter database is not known: write DATABASE"),
            ),
            (
                "dbIndex=3",
                Some("parameter dbIndex is not known: write DATABASE"),
            ),
            ("password=x", Some("password is not known: write LOGIN")),
            (
                "socket_timeout=x",
                Some("socket_timeout is not known: time limits are options (node_timeout"),
            ),
            (
                "ssl_cert_reqs=none",
                Some("ssl_cert_reqs is not known: for TLS the scheme is rediss, and #insecure"),
            ),
            (
                "role=master",
                Some("its parameter role is not known: OTHERS"),
            ),
            (
                "db=1&role=master",
                Some("its parameter role is not known: OTHERS"),
            ),
            ("role", Some("it has a parameter that is not known: OTHERS")),
            ("=3", Some("it has a parameter that is not known: OTHERS")),
            (
                "DB=3",
                Some("its parameter DB is not known: write DATABASE"),
            ),
            ("%64b=3", Some("a parameter that is not known")),
        ] {
            let text = refused(query, &known, "u:hunter@host", &right());
            match expected {
                Some(expected) => {
                    let text = text.unwrap();
                    assert!(text.contains(expected), "{query}: {text}");
                }
                None => assert_eq!(text, None, "{query}"),
            }
        }
        for (fragment, expected) in [
            (
                "db=3",
                Some("the db behind its # is not known: write DATABASE"),
            ),
            (
                "hun=ter",
                Some("what stands behind its # is not known: OTHERS"),
            ),
            ("hunter", None),
        ] {
            let text = in_fragment(fragment, &right());
            assert_eq!(text.as_deref(), expected, "{fragment}");
        }
    }

    #[test]
    fn what_may_be_a_part_of_a_password_is_not_named() {
        for (query, before) in [
            ("hunter=2", "u:hunter=2@host"),
            ("hunter=2%40host", "u:12"),
            ("hunter=2@host", "u:12"),
            ("hunter2=x", "host"),
            ("pass=x&hunter=2", "host"),
            ("hunter", "host"),
        ] {
            let text = refused(query, &["pass"], before, &right()).unwrap();
            assert!(!text.contains("hunter"), "{query}: {text}");
        }
    }
}
