//! A server's answer that another one has a command's key (rule R45).

use std::fmt;
use std::sync::Arc;

use crate::errors::server_error::{Meaning, code};
use crate::values::endpoint::Endpoint;

/// The answer of a server that has not carried out a command, because it does not have the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    /// The address of the server that answered.
    pub(crate) from: Arc<str>,
    pub(crate) hint: Hint,
    text: String,
}

/// Where a command's key is, by the server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Another server owns this slot.
    Moved(u16, Endpoint),
    /// Another server owns this slot, and has no host name where host names are announced: the map has its IP address.
    Nameless(u16),
    /// This slot is being moved, and the other server has the key.
    Asks(u16, Endpoint),
    /// The slot is being moved, and each of the two has some of the command's keys; or the other one has no host name where
    /// host names are announced, and no map has servers that own no part of it.
    Torn,
    /// The connection leads to another server than the one that had been named, and nothing was sent.
    Unnamed,
    /// The answer names no server.
    Unreadable,
}

impl Redirection {
    /// Reads the error of the server at this address. `None`: the error means something else.
    pub(crate) fn of(error: &str, from: &Arc<str>) -> Option<Redirection> {
        // Most replies are not errors.
        let is_it = !error.is_empty() && Meaning::of(error).is_redirection();
        is_it.then(|| Redirection {
            from: from.clone(),
            hint: Hint::of(error, from).unwrap_or(Hint::Unreadable),
            text: error.to_owned(),
        })
    }

    /// The connection leads to this server, where an earlier answer named another one.
    pub(crate) fn unnamed(server: &Arc<str>) -> Redirection {
        Redirection {
            from: server.clone(),
            hint: Hint::Unnamed,
            text: String::new(),
        }
    }

    /// Whether the answer is about a key in this slot.
    pub(crate) fn concerns(&self, slot: u16) -> bool {
        match self.hint {
            Hint::Moved(named, _) | Hint::Asks(named, _) | Hint::Nameless(named) => named == slot,
            Hint::Torn | Hint::Unnamed => true,
            Hint::Unreadable => false,
        }
    }
}

impl Hint {
    fn of(error: &str, from: &str) -> Option<Hint> {
        let endpoint = || {
            let mut words = error.split(' ').skip(1);
            let slot = words.next()?.parse().ok()?;
            let (host, port) = words.next()?.rsplit_once(':')?;
            let host = match host {
                "" => host_of(from),
                host => host,
            };
            Some((slot, (host.to_owned(), port.parse().ok()?)))
        };
        let is_nameless = |(_, (host, _)): &(u16, Endpoint)| host == "?";
        match code(error) {
            "MOVED" => endpoint().map(|it| match is_nameless(&it) {
                true => Hint::Nameless(it.0),
                false => Hint::Moved(it.0, it.1),
            }),
            "ASK" => endpoint().map(|it| match is_nameless(&it) {
                true => Hint::Torn,
                false => Hint::Asks(it.0, it.1),
            }),
            "TRYAGAIN" => Some(Hint::Torn),
            _ => None,
        }
    }
}

/// The host in an address as texts show it.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    host.trim_matches(['[', ']'])
}

impl fmt::Display for Redirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hint {
            Hint::Unnamed => write!(
                f,
                "the slot's server named another one than {}, which the connection leads to",
                self.from
            ),
            _ => write!(f, "the server answered: {}", self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_server_that_has_the_key() {
        let at = |host: &str, port| (host.to_owned(), port);
        let from: Arc<str> = "[::2]:6379".into();
        for (error, expected) in [
            (
                "MOVED 17 10.0.0.1:6379",
                Some(Hint::Moved(17, at("10.0.0.1", 6379))),
            ),
            ("MOVED 17 ::1:6379", Some(Hint::Moved(17, at("::1", 6379)))),
            ("MOVED 17 :6379", Some(Hint::Moved(17, at("::2", 6379)))),
            ("ASK 17 :1", Some(Hint::Asks(17, at("::2", 1)))),
            ("MOVED 17 ?:6379", Some(Hint::Nameless(17))),
            ("ASK 17 ?:1", Some(Hint::Torn)),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Some(Hint::Torn),
            ),
            ("MOVED 17", Some(Hint::Unreadable)),
            ("MOVED h:1", Some(Hint::Unreadable)),
            ("MOVED 17 h:x", Some(Hint::Unreadable)),
            ("ERR MOVED 17 h:1", None),
            ("CLUSTERDOWN The cluster is down", None),
            ("", None),
        ] {
            let found = Redirection::of(error, &from);
            assert_eq!(found.as_ref().map(|found| &found.hint), expected.as_ref());
            if let Some(found) = found {
                assert_eq!(
                    (found.to_string().as_str(), found.from),
                    (&*format!("the server answered: {error}"), from.clone())
                );
            }
        }
    }

    #[test]
    fn an_answer_about_another_slot_means_nothing() {
        let from = "h:1".into();
        let concerns = |error| Redirection::of(error, &from).unwrap().concerns(17);
        assert!(concerns("MOVED 17 h:2") && concerns("ASK 17 h:2") && concerns("TRYAGAIN x"));
        assert!(concerns("MOVED 17 ?:2") && !concerns("MOVED 18 ?:2"));
        assert!(!concerns("MOVED 18 h:2") && !concerns("ASK 18 h:2") && !concerns("MOVED"));
    }
}
