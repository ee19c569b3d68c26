//! The answers of the servers of a directory, taken together: which master they name, and why those that name none do not.

use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::text::ShownAddress;
use crate::protocol::discovery::directory_questions::ReceivedAnswer;
use crate::protocol::discovery::master_answers::{Belief, MasterAnswer, MasterAnswers};

/// The master's address, as one server names it.
pub(crate) type NamedAddress<A> = Result<A, Unknown>;

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
pub(crate) struct NamedMaster<A> {
    pub(crate) addr: A,
    /// When the servers that name it were asked.
    pub(crate) at: Instant,
    /// More than half of all servers name it, and not only of those that answered.
    pub(crate) by_most: bool,
    /// The first server that names it: its number and its address.
    pub(crate) server: usize,
    pub(crate) by: String,
}

/// The answers of the servers, taken together.
#[derive(Clone)]
pub(crate) struct Opinions<A> {
    servers: Vec<String>,
    /// How long the answers were waited for.
    time: Duration,
    answers: MasterAnswers<A>,
    /// Why servers name none.
    unknown: Vec<(usize, Unknown)>,
    /// The servers whose answer is that of few: of the addresses of a name, not more than half name that master.
    few: Vec<usize>,
}

impl<A: Clone + PartialEq + ShownAddress> Opinions<A> {
    /// The opinions of these servers, of which the last ones are spare. `read`: the master's address in an answer.
    pub(crate) fn of<T>(
        (servers, spare): (Vec<String>, usize),
        (now, time): (Instant, Duration),
        heard: &[ReceivedAnswer<'_, Result<T, Cause>>],
        read: impl Fn(&T, Instant) -> NamedAddress<A>,
    ) -> Opinions<A> {
        let mut opinions = Opinions {
            answers: MasterAnswers::of(servers.len(), spare, now),
            servers,
            time,
            unknown: Vec::new(),
            few: Vec::new(),
        };
        for (server, heard) in heard.iter().enumerate() {
            let (answer, asked) = match heard {
                ReceivedAnswer::Answer(Ok(told), asked) => (read(told, *asked), *asked),
                ReceivedAnswer::Answer(Err(cause), asked) => {
                    (Err(Unknown::Failed(cause.clone())), *asked)
                }
                ReceivedAnswer::Silence(asked) => {
                    let silent = Cause::NotConnected(time, time);
                    (Err(Unknown::Failed(silent)), *asked)
                }
                ReceivedAnswer::NotAsked => (Err(Unknown::Failed(Cause::NotAsked)), now),
                ReceivedAnswer::Pending => continue,
            };
            opinions.add(server, answer, asked);
        }
        opinions
    }

    fn add(&mut self, server: usize, answer: NamedAddress<A>, asked: Instant) {
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
        answers: impl Iterator<Item = (usize, NamedAddress<A>, Instant)>,
    ) -> Opinions<A> {
        let mut opinions = self.clone();
        for (server, answer, asked) in answers {
            opinions.unknown.retain(|(of, _)| *of != server);
            opinions.add(server, answer, asked);
        }
        opinions
    }

    /// These opinions, where the answers of those servers are of few.
    pub(crate) fn with_few(self, few: impl Iterator<Item = usize>) -> Opinions<A> {
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

    /// The address of the server of this number.
    pub(crate) fn server(&self, number: usize) -> Option<&str> {
        self.servers.get(number).map(|server| &**server)
    }

    /// The servers that name the master at this address: the number and the address of each.
    pub(crate) fn namers(&self, address: &str) -> impl Iterator<Item = (usize, &str)> {
        let named = self.answers.named();
        let by = named.filter(move |(_, master)| master.shown() == address);
        by.filter_map(|(server, _)| Some((server, &**self.servers.get(server)?)))
    }

    pub(crate) fn belief(&self) -> Belief<'_, A> {
        self.answers.verdict()
    }

    /// The master that is believed, if one is.
    pub(crate) fn believed(&self) -> Option<NamedMaster<A>> {
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
                (Some((_, addr)), _) => Ok(addr.shown()),
                (None, Some((_, why))) => Err(why.clone()),
                (None, None) => Err(Unknown::Failed(Cause::NotConnected(self.time, self.time))),
            };
            (&**server, word)
        });
        words.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::cause::Limit;
    use crate::values::clock;
    use crate::values::endpoint::Endpoint;

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

    #[test]
    fn only_a_server_that_was_asked_and_cannot_be_reached_is_silent() {
        let now = clock::instant();
        let servers = || [1, 2, 3].map(|server| format!("s:{server}")).to_vec();
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
            let heard: Vec<_> = answers
                .iter()
                .map(|one| ReceivedAnswer::Answer(one, now))
                .collect();
            let read = |host: &&str, _| match *host {
                "?" => Err(Unknown::Name),
                host => Ok((host.to_owned(), 1)),
            };
            let said = Opinions::of((servers(), 0), (now, TIME), &heard, read);
            let host = |named: NamedMaster<Endpoint>| named.addr.0;
            assert_eq!(said.is_certain(), certain, "{words:?}");
            assert_eq!(said.believed().map(host).as_deref(), believed, "{words:?}");
            assert_eq!(said.is_silence(), silence, "{words:?}");
        }
    }
}
