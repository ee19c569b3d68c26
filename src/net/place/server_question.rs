//! One question to one server of a directory, and what the answers of all mean together.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::{Cause, Limit};
use crate::errors::text;
use crate::net::socket::connection::Connection;
use crate::net::socket::conversation::Conversation;
use crate::net::socket::open::Begins;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::protocol::node::directory_questions::Heard;
use crate::protocol::node::handshake::Handshake;
use crate::protocol::node::master_answers::{Belief, MasterAnswer, MasterAnswers};
use crate::settings::credentials::Credentials;
use crate::values::clock;

/// The longest reply: for a Cluster whose 16384 slots are scattered over its servers one by one, each with three
/// servers of long names.
const MAX_REPLY: usize = 16 << 20;
/// The time in which a caller hears that its question has ended.
const HEARD: Duration = Duration::from_millis(150);

/// The master's address, as one server names it.
pub(crate) type NamedAddress = Result<ConnectionAddr, Unknown>;

/// Why a server names no master.
#[derive(Clone)]
pub(crate) enum Unknown {
    /// The server has no master for that name or slot.
    Name,
    /// Another one of the servers, under another name.
    Again,
    Failed(Cause),
}

/// The master that is believed.
pub(crate) struct NamedMaster {
    pub(crate) addr: ConnectionAddr,
    /// When the servers that name it were asked.
    pub(crate) at: Instant,
    /// More than half of all servers name it, and not only of those that answered.
    pub(crate) by_most: bool,
    /// The first server that names it: its number and its address.
    pub(crate) server: usize,
    pub(crate) by: String,
}

/// How much of a caller's time a question has: it ends before the caller's time does.
pub(crate) fn share(time: Duration) -> Duration {
    time - (time / 4).min(HEARD)
}

/// The answers of the servers, taken together.
#[derive(Clone)]
pub(crate) struct Opinions {
    servers: Vec<String>,
    /// How long the answers were waited for.
    time: Duration,
    answers: MasterAnswers<ConnectionAddr>,
    /// Why servers name none.
    unknown: Vec<(usize, Unknown)>,
    /// The servers whose answer is that of few: of the addresses of a name, not more than half name that master.
    few: Vec<usize>,
}

impl Opinions {
    /// The opinions of these servers, of which the last ones are spare. `read`: the master's address in an answer.
    pub(crate) fn of<T>(
        (servers, spare): (&[Peer], usize),
        (now, time): (Instant, Duration),
        heard: &[Heard<'_, Result<T, Cause>>],
        read: impl Fn(&T, Instant) -> NamedAddress,
    ) -> Opinions {
        let mut opinions = Opinions {
            servers: servers
                .iter()
                .map(|one| text::address(one.addr()))
                .collect(),
            time,
            answers: MasterAnswers::of(servers.len(), spare, now),
            unknown: Vec::new(),
            few: Vec::new(),
        };
        for (server, heard) in heard.iter().enumerate() {
            let (answer, asked) = match heard {
                Heard::Answer(Ok(told), asked) => (read(told, *asked), *asked),
                Heard::Answer(Err(cause), asked) => (Err(Unknown::Failed(cause.clone())), *asked),
                Heard::Silence(asked) => {
                    let silent = Cause::NotConnected(time, time);
                    (Err(Unknown::Failed(silent)), *asked)
                }
                Heard::NotAsked => (Err(Unknown::Failed(Cause::NotAsked)), now),
                Heard::Pending => continue,
            };
            opinions.add(server, answer, asked);
        }
        opinions
    }

    fn add(&mut self, server: usize, answer: NamedAddress, asked: Instant) {
        let word = match answer {
            Ok(addr) => MasterAnswer::Names(addr),
            Err(why) => {
                let word = match &why {
                    Unknown::Name | Unknown::Again => MasterAnswer::NamesNone,
                    Unknown::Failed(cause) if cause.is_silence() => MasterAnswer::Silent,
                    Unknown::Failed(_) => MasterAnswer::Unknown,
                };
                self.unknown.push((server, why));
                word
            }
        };
        self.answers.hear(server, word, asked);
    }

    /// These opinions, with other answers of some servers.
    pub(crate) fn with(
        &self,
        answers: impl Iterator<Item = (usize, NamedAddress, Instant)>,
    ) -> Opinions {
        let mut opinions = self.clone();
        for (server, answer, asked) in answers {
            opinions.unknown.retain(|(of, _)| *of != server);
            opinions.add(server, answer, asked);
        }
        opinions
    }

    /// These opinions, where the answers of those servers are of few.
    pub(crate) fn with_few(self, few: impl Iterator<Item = usize>) -> Opinions {
        let few = few.collect();
        Opinions { few, ..self }
    }

    /// Whether no answer is outstanding, or none can change the result.
    pub(crate) fn is_certain(&self) -> bool {
        self.has_all() || self.belief() != Belief::Unknown
    }

    /// Whether no answer is outstanding.
    pub(crate) fn has_all(&self) -> bool {
        self.answers.named().count() + self.unknown.len() == self.servers()
    }

    /// The number of servers that were asked.
    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    /// The servers that name the master at this address: the number and the address of each.
    pub(crate) fn namers(&self, address: &str) -> impl Iterator<Item = (usize, &str)> {
        let named = self.answers.named();
        let by = named.filter(move |(_, master)| text::address(master) == address);
        by.filter_map(|(server, _)| Some((server, &**self.servers.get(server)?)))
    }

    pub(crate) fn belief(&self) -> Belief<'_, ConnectionAddr> {
        self.answers.verdict()
    }

    /// The master that is believed, if one is.
    pub(crate) fn believed(&self) -> Option<NamedMaster> {
        let Belief::Named {
            master,
            at,
            by_most,
        } = self.belief()
        else {
            return None;
        };
        let named = self.answers.named();
        let by = named.filter_map(|(server, addr)| (addr == master).then_some(server));
        let by: Vec<usize> = by.collect();
        let is_of_few = by.iter().any(|server| self.few.contains(server));
        let server = *by.first()?;
        Some(NamedMaster {
            addr: master.clone(),
            at,
            by_most: by_most && !is_of_few,
            server,
            by: self.servers.get(server)?.clone(),
        })
    }

    pub(crate) fn is_silence(&self) -> bool {
        matches!(self.belief(), Belief::Silence { .. })
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

/// The time for a question to one server: when it ends, and how long it lasts.
pub(crate) struct Turn<'a> {
    pub(crate) until: Instant,
    pub(crate) timeout: Duration,
    /// Called when only the server is left to wait for: its name is resolved, and the credentials are there. A thread
    /// for which that comes too late does not wait long enough to call the server silent.
    pub(crate) begins: &'a Begins<'a>,
}

/// Takes a reply out of the reader, once it is complete. The flag: whether nothing of the reply was read before.
type Read<'a> = &'a mut dyn FnMut(&mut ReplyReader, bool) -> Result<Option<Reply>, Cause>;

/// The replies to these commands, over a separate connection to the server at this address of the name, with these credentials,
/// by that time. Without a first reply there is none; a server that does not answer the second command may end the connection.
pub(crate) fn ask_address(
    peer: &Peer,
    at: (Option<&SocketAddr>, Option<&Credentials>),
    commands: [&[&[u8]]; 2],
    time: (Instant, Duration),
) -> Result<(Reply, Option<Reply>), Cause> {
    let opened = Connection::open_address(peer, at, time)?;
    let mut conversation = send(opened, &commands, time)?;
    let first = reply(&mut conversation, &mut |reader, _| reader.next())?;
    let second = reply(&mut conversation, &mut |reader, _| reader.next());
    Ok((first, second.ok()))
}

/// The reply to one command, over a separate connection.
pub(crate) fn ask(peer: &Peer, command: &[&[u8]], turn: &Turn<'_>) -> Result<Reply, Cause> {
    ask_and_read(peer, command, turn, &mut |reader, _| reader.next())
}

/// Asks like [`ask`], with `read` for the reply. If the server has several addresses, and one refuses to answer, the
/// next one is asked.
pub(crate) fn ask_and_read(
    peer: &Peer,
    command: &[&[u8]],
    turn: &Turn<'_>,
    read: Read<'_>,
) -> Result<Reply, Cause> {
    let mut refused = None;
    let left = turn.until.saturating_duration_since(clock::instant());
    let time = turn.timeout;
    let mut then = |opened, until| match reply(&mut send(opened, &[command], (until, time))?, read)?
    {
        Reply::Error(text) => {
            let cause = Cause::refused(&text);
            refused.get_or_insert(Reply::Error(text));
            Err(cause)
        }
        reply => Ok(reply),
    };
    let answered = Connection::open_and(peer, left, Purpose::Questions, (turn.begins, &mut then));
    answered.or_else(|cause| refused.ok_or(cause))
}

/// Sends commands.
fn send(
    (connection, handshake): (Connection, Handshake),
    commands: &[&[&[u8]]],
    (until, timeout): (Instant, Duration),
) -> Result<Conversation, Cause> {
    let mut bytes = Vec::new();
    for command in commands {
        resp::pack(&mut bytes, &[command], None);
    }
    // A server that answers nothing has answered before, so it is there.
    let late = Cause::NoAnswer(timeout, Limit::Own);
    let mut conversation = Conversation::new((connection, handshake.secret), until, late);
    conversation.send(&bytes)?;
    Ok(conversation)
}

/// The next reply, which has a bound.
fn reply(conversation: &mut Conversation, read: Read<'_>) -> Result<Reply, Cause> {
    conversation.reply_by(|reader, received| {
        if received > MAX_REPLY {
            let most = MAX_REPLY >> 20;
            let text = format!("its answer is longer than {most} MiB");
            return Err(Cause::Endless(text));
        }
        read(reader, received == 0)
    })
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::net::socket::trust::Trust;
    use crate::settings::tls::Tls;

    const TIME: Duration = Duration::from_millis(700);

    fn answer(word: &str) -> Result<&str, Cause> {
        match word {
            "-" => Err(Cause::NotConnected(TIME, TIME)),
            "x" => Err(Cause::Connect("refused".into())),
            "m" => Err(Cause::Mute(TIME)),
            "f" => Err(Cause::NoSocket("open files".into())),
            "r" => Err(Cause::NoResolver("try again".into())),
            "t" => Err(Cause::NoThread("again".into())),
            "n" => Err(Cause::NoAnswer(TIME, Limit::Own)),
            "!" => Err(Cause::Refused("NOAUTH".into())),
            host => Ok(host),
        }
    }

    fn peers() -> [Peer; 3] {
        [1, 2, 3].map(|port| {
            let info = ("127.0.0.1", port).into_connection_info().unwrap();
            let trust = Trust::new(&Tls::default(), [&info]);
            Peer::new(info, &trust, None)
        })
    }

    #[test]
    fn only_a_server_that_was_asked_and_cannot_be_reached_is_silent() {
        let now = crate::values::clock::instant();
        let peers = peers();
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
            // The resolver failed: the server may name another master.
            (&["a", "r", "r"], true, None, false),
            (&["r", "r", "r"], true, None, false),
            (&["-", "-", "r"], true, None, false),
        ] {
            let answers: Vec<_> = words.iter().map(|word| answer(word)).collect();
            let heard: Vec<_> = answers.iter().map(|one| Heard::Answer(one, now)).collect();
            let read = |host: &&str, _| match *host {
                "?" => Err(Unknown::Name),
                host => Ok(ConnectionAddr::Tcp(host.into(), 1)),
            };
            let said = Opinions::of((&peers, 0), (now, TIME), &heard, read);
            let host = |named: NamedMaster| text::address(&named.addr).replace(":1", "");
            assert_eq!(said.is_certain(), certain, "{words:?}");
            assert_eq!(said.believed().map(host).as_deref(), believed, "{words:?}");
            assert_eq!(said.is_silence(), silence, "{words:?}");
        }
    }

    #[test]
    fn a_server_that_is_asked_too_late_is_not_asked() {
        // No server listens there.
        let [peer, ..] = peers();
        let ask = |begins: &Begins<'_>| {
            let turn = Turn {
                until: crate::values::clock::instant() + TIME,
                timeout: TIME,
                begins,
            };
            ask(&peer, &[b"PING"], &turn)
        };
        assert!(matches!(
            ask(&|| Err(Cause::NotAsked)),
            Err(Cause::NotAsked)
        ));
        assert!(ask(&|| Ok(())).is_err_and(|cause| cause.is_silence()));
    }

    #[test]
    fn a_question_is_over_before_its_caller() {
        for (time, expected) in [(850, 700), (5000, 4850), (400, 300), (0, 0)] {
            let [time, expected] = [time, expected].map(Duration::from_millis);
            assert_eq!(share(time), expected);
        }
    }
}
