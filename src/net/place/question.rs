//! Questions to a directory: many servers at once, one question each, and what their answers mean together.

use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::{Cause, Limit};
use crate::errors::text;
use crate::net::socket::connection::Connection;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::protocol::commands::slots::Map;
use crate::protocol::node::answers::{Answers, Belief, Word};
use crate::protocol::node::handshake::Handshake;
use crate::values::clock;

/// The longest reply: for a Cluster whose 16384 slots are scattered over its servers one by one, each with three
/// servers of long names.
const MAX_REPLY: usize = 16 << 20;
/// The time in which a caller hears that its question has ended.
const HEARD: Duration = Duration::from_millis(150);

/// The master's address, and the map if the server returned one.
pub(crate) type Answer = Result<(ConnectionAddr, Option<Map>), Unknown>;

/// Why a server names no master.
#[derive(Clone)]
pub(crate) enum Unknown {
    /// The server has no master for that name or slot.
    Name,
    Failed(Cause),
}

/// The master that is believed.
pub(crate) struct NamedMaster {
    pub(crate) addr: ConnectionAddr,
    /// When the servers that name it were asked.
    pub(crate) at: Instant,
    /// More than half of all servers name it, and not only of those that answered.
    pub(crate) by_most: bool,
    /// The first server that names it, and its map.
    pub(crate) by: String,
    pub(crate) map: Option<Map>,
}

/// How much of a caller's time a question has: its end is heard before the caller's.
pub(crate) fn share(time: Duration) -> Duration {
    time - (time / 4).min(HEARD)
}

/// The answers of the servers, taken together.
pub(crate) struct Heard {
    servers: Vec<String>,
    /// How long the answers were waited for.
    time: Duration,
    answers: Answers<ConnectionAddr>,
    maps: Vec<(usize, Map)>,
    /// Why other servers name none.
    unknown: Vec<(usize, Unknown)>,
}

impl Heard {
    /// Starts without answers of these servers.
    pub(crate) fn of<'a>(
        servers: impl Iterator<Item = &'a ConnectionAddr>,
        (now, time): (Instant, Duration),
    ) -> Heard {
        let servers: Vec<String> = servers.map(text::address).collect();
        Heard {
            answers: Answers::of(servers.len(), now),
            servers,
            time,
            maps: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Adds a server's answer. `asked`: when it was asked.
    pub(crate) fn add(&mut self, server: usize, said: Answer, asked: Instant) {
        let word = match said {
            Ok((addr, map)) => {
                self.maps.extend(map.map(|map| (server, map)));
                Word::Names(addr)
            }
            Err(why) => {
                let word = match &why {
                    Unknown::Name => Word::NamesNone,
                    Unknown::Failed(cause) if cause.is_silence() => Word::Silent,
                    Unknown::Failed(_) => Word::Unknown,
                };
                self.unknown.push((server, why));
                word
            }
        };
        self.answers.hear(server, word, asked);
    }

    /// Whether no answer is outstanding, or none can change the result.
    pub(crate) fn is_certain(&self) -> bool {
        let heard = self.answers.named().count() + self.unknown.len();
        heard == self.servers.len() || self.answers.verdict() != Belief::Unknown
    }

    /// The master that is believed, if one is.
    pub(crate) fn believed(&self) -> Option<NamedMaster> {
        let Belief::Named { master, at } = self.answers.verdict() else {
            return None;
        };
        let named = || self.answers.named().filter(|(_, addr)| *addr == master);
        let (server, addr) = named().next()?;
        Some(NamedMaster {
            addr: addr.clone(),
            at,
            by_most: 2 * named().count() > self.servers.len(),
            by: self.servers.get(server)?.clone(),
            map: self.map_of(server),
        })
    }

    /// The first map that a server returned.
    pub(crate) fn first_map(&self) -> Option<Map> {
        self.maps.first().map(|(_, map)| map.clone())
    }

    fn map_of(&self, server: usize) -> Option<Map> {
        let mut maps = self.maps.iter();
        let map = maps.find(|(of, _)| *of == server);
        map.map(|(_, map)| map.clone())
    }

    /// When the servers were asked, if each was, and none could be reached.
    pub(crate) fn silence(&self) -> Option<Instant> {
        match self.answers.verdict() {
            Belief::Silence { at } => Some(at),
            _ => None,
        }
    }

    pub(crate) fn names_any(&self) -> bool {
        self.answers.named().next().is_some()
    }

    /// The master that each server names, or why it names none.
    pub(crate) fn each(&self) -> Vec<(&str, Result<String, Unknown>)> {
        let words = self.servers.iter().enumerate().map(|(at, server)| {
            let named = self.answers.named().find(|(of, _)| *of == at);
            let unknown = self.unknown.iter().find(|(of, _)| *of == at);
            let word = match (named, unknown) {
                (Some((_, addr)), _) => Ok(text::address(addr)),
                (None, Some((_, why))) => Err(why.clone()),
                (None, None) => Err(Unknown::Failed(Cause::NotConnected(self.time, self.time))),
            };
            (&**server, word)
        });
        words.collect()
    }
}

/// Takes a reply out of the reader, once it is complete. The flag: whether nothing of the reply was read before.
type Read<'a> = &'a mut dyn FnMut(&mut ReplyReader, bool) -> Result<Option<Reply>, Cause>;

/// The reply to one command, over a separate connection.
pub(crate) fn ask(
    peer: &Peer,
    command: &[&[u8]],
    time: (Instant, Duration),
) -> Result<Reply, Cause> {
    ask_and_read(peer, command, time, &mut |reader, _| reader.next())
}

/// Asks like [`ask`], with `read` for the reply. If the server has several addresses, and one refuses to answer, the
/// next one is asked.
pub(crate) fn ask_and_read(
    peer: &Peer,
    command: &[&[u8]],
    (until, timeout): (Instant, Duration),
    read: Read<'_>,
) -> Result<Reply, Cause> {
    // A thread that begins late does not wait long enough to call the server silent.
    if until.saturating_duration_since(clock::instant()) < timeout / 2 {
        return Err(Cause::NotAsked);
    }
    let mut refused = None;
    let left = until.saturating_duration_since(clock::instant());
    let answered =
        Connection::open_and(
            peer,
            left,
            Purpose::Questions,
            &mut |opened, until| match answer(opened, command, (until, timeout), read)? {
                Reply::Error(text) => {
                    let cause = Cause::refused(&text);
                    refused.get_or_insert(Reply::Error(text));
                    Err(cause)
                }
                reply => Ok(reply),
            },
        );
    answered.or_else(|cause| refused.ok_or(cause))
}

fn answer(
    (mut connection, handshake): (Connection, Handshake),
    command: &[&[u8]],
    (until, timeout): (Instant, Duration),
    read: Read<'_>,
) -> Result<Reply, Cause> {
    let (mut bytes, mut buffer) = (Vec::new(), Vec::new());
    resp::pack(&mut bytes, &[command], None);
    connection.send(&bytes, until, clock::instant())?;
    let (mut reader, mut received) = (ReplyReader::new(handshake.secret), 0);
    loop {
        let bytes = connection.recv(&mut buffer, until, clock::instant())?;
        if bytes.is_empty() {
            // The server has answered before, so it is there.
            return Err(Cause::NoAnswer(timeout, Limit::Own));
        }
        let begins = received == 0;
        received += bytes.len();
        if received > MAX_REPLY {
            let most = MAX_REPLY >> 20;
            let text = format!("its answer is longer than {most} MiB");
            return Err(Cause::Endless(text));
        }
        reader.push(bytes);
        if let Some(reply) = read(&mut reader, begins)? {
            return Ok(reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::net::socket::trust::Trust;
    use crate::settings::tls::Tls;

    const TIME: Duration = Duration::from_millis(700);

    fn answer(word: &str) -> Answer {
        match word {
            "-" => Err(Unknown::Failed(Cause::NotConnected(TIME, TIME))),
            "x" => Err(Unknown::Failed(Cause::Connect("refused".into()))),
            "m" => Err(Unknown::Failed(Cause::Mute(TIME))),
            "f" => Err(Unknown::Failed(Cause::NoSocket("open files".into()))),
            "t" => Err(Unknown::Failed(Cause::NoThread("again".into()))),
            "n" => Err(Unknown::Failed(Cause::NoAnswer(TIME, Limit::Own))),
            "?" => Err(Unknown::Name),
            "!" => Err(Unknown::Failed(Cause::Refused("NOAUTH".into()))),
            host => Ok((ConnectionAddr::Tcp(host.into(), 1), None)),
        }
    }

    #[test]
    fn only_a_server_that_was_asked_and_cannot_be_reached_is_silent() {
        let now = crate::values::clock::instant();
        for (words, certain, believed, silence) in [
            (&["a", "a", "b"][..], true, Some("a"), false),
            (&["a", "a"], true, Some("a"), false),
            (&["a"], false, None, false),
            (&["a", "-", "x"], true, Some("a"), false),
            (&["a", "!", "?"], true, None, false),
            (&["a", "b", "-"], true, None, false),
            (&["-", "x", "m"], true, None, true),
            (&["-", "x"], false, None, false),
            (&["-", "x", "n"], true, None, false),
            (&["-", "x", "f"], true, None, false),
            (&["-", "x", "t"], true, None, false),
            (&["-", "x", "!"], true, None, false),
            (&["?", "?", "?"], true, None, false),
        ] {
            let servers = [1, 2, 3].map(|port| ConnectionAddr::Tcp("s".into(), port));
            let mut said = Heard::of(servers.iter(), (now, TIME));
            for (at, word) in words.iter().enumerate() {
                said.add(at, answer(word), now);
            }
            let host = |named: NamedMaster| text::address(&named.addr).replace(":1", "");
            assert_eq!(said.is_certain(), certain, "{words:?}");
            assert_eq!(said.believed().map(host).as_deref(), believed, "{words:?}");
            assert_eq!(said.silence().is_some(), silence, "{words:?}");
        }
    }

    #[test]
    fn a_server_that_is_asked_too_late_is_not_asked() {
        // No server listens there.
        let info = ("127.0.0.1", 1).into_connection_info().unwrap();
        let trust = Trust::new(&Tls::default(), [&info]);
        let peer = Peer::new(info, &trust, None);
        let ask = |left| {
            ask(
                &peer,
                &[b"PING"],
                (crate::values::clock::instant() + left, TIME),
            )
        };
        assert!(matches!(ask(TIME / 3), Err(Cause::NotAsked)));
        assert!(ask(TIME).is_err_and(|cause| cause.is_silence()));
    }

    #[test]
    fn a_question_is_over_before_its_caller() {
        for (time, expected) in [(850, 700), (5000, 4850), (400, 300), (0, 0)] {
            let [time, expected] = [time, expected].map(Duration::from_millis);
            assert_eq!(share(time), expected);
        }
    }
}
