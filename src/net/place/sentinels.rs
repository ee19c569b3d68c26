//! The sentinels of a set, and what they report of its master.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::text;
use crate::net::place::question::{self, Answer, Heard, Unknown};
use crate::net::socket::peer::Peer;
use crate::protocol::commands::resp::Reply;
use crate::protocol::node::answers::{LASTS, NextQuestion, Questions};
use crate::settings::url;
use crate::values::clock;
use crate::values::sync::{lock, wait_until};

/// The sentinels of a set, and the questions to them.
pub(crate) struct Sentinels {
    pub(crate) name: String,
    all: Vec<Peer>,
    /// The address of the first one: the set's servers are reached in the same way.
    like: ConnectionAddr,
    /// The passwords of servers and sentinels: no server is looked for at a host that repeats one.
    secrets: Vec<Secret>,
    /// The questions to each sentinel that are under way. Their answers are for all threads that can wait for them.
    questions: Mutex<Vec<Questions<Slot>>>,
    /// Notified when a question has been answered.
    news: Condvar,
}

/// A question to a sentinel: when a thread began to ask it, and the answer.
#[derive(Default)]
struct SentinelQuestion {
    begun: OnceLock<Instant>,
    answer: OnceLock<Answer>,
}

type Slot = Arc<SentinelQuestion>;

impl SentinelQuestion {
    /// Whether the sentinel has not answered for this long.
    fn has_waited(&self, time: Duration) -> bool {
        let begun = self.begun.get();
        begun.is_some_and(|begun| clock::instant() >= *begun + time)
    }
}

/// A sentinel that is being asked. If its thread ends without an answer, it counts as not asked.
struct Asked {
    sentinels: Arc<Sentinels>,
    at: usize,
    slot: Slot,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut questions = lock(&self.sentinels.questions);
        let not_asked = || Err(Unknown::Failed(Cause::NotAsked));
        let answer = self.slot.answer.get_or_init(not_asked);
        let silent = matches!(answer, Err(Unknown::Failed(cause)) if cause.is_silence());
        if let Some(questions) = questions.get_mut(self.at) {
            let is_it = |slot: &Slot| Arc::ptr_eq(slot, &self.slot);
            questions.end(is_it, !silent, clock::instant());
        }
        self.sentinels.news.notify_all();
    }
}

impl Sentinels {
    /// `password`: the password of the servers.
    pub(crate) fn new(
        name: String,
        all: Vec<Peer>,
        like: ConnectionAddr,
        password: Option<&str>,
    ) -> Sentinels {
        let passwords = all.iter().map(|peer| peer.redis_settings().password());
        Sentinels {
            secrets: passwords.chain([password]).map(Secret::of).collect(),
            questions: Mutex::new(all.iter().map(|_| Questions::default()).collect()),
            news: Condvar::new(),
            name,
            all,
            like,
        }
    }

    /// Asks all sentinels at once, or waits for the answers to questions under way, until it is certain which master is
    /// believed, at most for `time`. A thread that resolves a name may take longer.
    pub(crate) fn ask_all(self: &Arc<Self>, time: Duration) -> Heard {
        let now = clock::instant();
        let until = now + time;
        let asked: Vec<_> = (0..self.all.len()).map(|at| self.begin(at, now)).collect();
        let mut questions = lock(&self.questions);
        loop {
            let is_over = clock::instant() >= until;
            let said = self.said(&asked, &questions, (now, time), is_over);
            if is_over || said.is_certain() {
                return said;
            }
            questions = wait_until(&self.news, questions, until);
        }
    }

    /// Begins a question, or joins one under way. Returns when it began and where its answer will be, or why none is
    /// asked.
    fn begin(self: &Arc<Self>, at: usize, now: Instant) -> Result<(Instant, Slot), Cause> {
        let mut questions = lock(&self.questions);
        let questions_to_it = questions.get_mut(at).ok_or(Cause::NotAsked)?;
        let slot = match questions_to_it.ask(now, Slot::default) {
            NextQuestion::Wait(asked, slot) => return Ok((asked, slot)),
            NextQuestion::Full => return Err(Cause::NotAsked),
            NextQuestion::Begin(slot) => slot,
        };
        drop(questions);
        let asked = Asked {
            sentinels: self.clone(),
            at,
            slot: slot.clone(),
        };
        let ask = move || {
            let _ = asked.slot.begun.set(clock::instant());
            let answer = asked.sentinels.ask(asked.at, (now + LASTS, LASTS));
            let _ = asked.slot.answer.set(answer);
        };
        let thread = std::thread::Builder::new().name("redlock-find".into());
        match thread.spawn(ask) {
            Ok(_) => Ok((now, slot)),
            Err(error) => Err(Cause::NoThread(error.to_string())),
        }
    }

    /// The answers so far of the sentinels that were asked.
    fn said(
        &self,
        asked: &[Result<(Instant, Slot), Cause>],
        questions: &[Questions<Slot>],
        (begun, time): (Instant, Duration),
        is_over: bool,
    ) -> Heard {
        let mut said = Heard::of(self.all.iter().map(|peer| peer.addr()), (begun, time));
        for (at, (asked, questions)) in asked.iter().zip(questions).enumerate() {
            let hangs = || questions.hang(clock::instant());
            let silent = || Err(Unknown::Failed(Cause::NotConnected(time, time)));
            match asked {
                Ok((since, slot)) => match (slot.answer.get(), questions.lately(begun)) {
                    (Some(answer), _) => said.add(at, answer.clone(), *since),
                    (None, _) if !is_over => {}
                    // The sentinel is slow: a recent answer counts.
                    (None, Some((since, slot))) => {
                        let answer = slot.answer.get().cloned();
                        answer
                            .into_iter()
                            .for_each(|answer| said.add(at, answer, since));
                    }
                    // The thread may have begun just now.
                    (None, None)
                        if (questions.is_silent() || hangs()) && slot.has_waited(time / 2) =>
                    {
                        said.add(at, silent(), *since);
                    }
                    (None, None) => {}
                },
                Err(_) if hangs() => said.add(at, silent(), begun),
                Err(cause) => said.add(at, Err(Unknown::Failed(cause.clone())), begun),
            }
        }
        said
    }

    /// The master's address, as one of the sentinels reports it.
    fn ask(&self, at: usize, time: (Instant, Duration)) -> Answer {
        let Some(sentinel) = self.all.get(at) else {
            return Err(Unknown::Name);
        };
        let asked = self.named(sentinel, time);
        let Some((host, port)) = asked.map_err(Unknown::Failed)? else {
            return Err(Unknown::Name);
        };
        Ok((like(&self.like, host, port), None))
    }

    /// The master's host and port. `None` if the sentinel has no master of that name.
    fn named(
        &self,
        sentinel: &Peer,
        time: (Instant, Duration),
    ) -> Result<Option<(String, u16)>, Cause> {
        let question = b"GET-MASTER-ADDR-BY-NAME";
        let Some(words) = tell(sentinel, question, &self.name, time)? else {
            return Ok(None);
        };
        match &words[..] {
            [host, port] if url::is_host(host) && !self.is_secret(host) => {
                let port = port.parse().map_err(|_| no_address())?;
                Ok(Some((host.clone(), port)))
            }
            _ => Err(no_address()),
        }
    }

    fn is_secret(&self, host: &str) -> bool {
        self.secrets.iter().any(|secret| secret.is_in_host(host))
    }

    /// Each sentinel's description of the master, all within `timeout` except for names that are not resolved in time.
    pub(crate) fn describe(&self, timeout: Duration) -> Vec<(String, Result<Description, Cause>)> {
        let (until, (sender, said)) = (clock::instant() + timeout, channel());
        let mut answers: Vec<Result<Description, Cause>> = Vec::new();
        for (at, sentinel) in self.all.iter().cloned().enumerate() {
            let (sender, name) = (sender.clone(), self.name.clone());
            let ask = move || {
                let words = tell(&sentinel, b"MASTER", &name, (until, timeout));
                let pairs = words.map(|words| words.unwrap_or_default());
                let _ = sender.send((at, pairs.map(described)));
            };
            let thread = std::thread::Builder::new().name(format!("redlock-find-{at}"));
            answers.push(Err(match thread.spawn(ask) {
                Ok(_) => Cause::NotConnected(timeout, timeout),
                Err(error) => Cause::NoThread(error.to_string()),
            }));
        }
        drop(sender);
        let left = || until.saturating_duration_since(clock::instant());
        while let Ok((at, answer)) = said.recv_timeout(left()) {
            if let Some(place) = answers.get_mut(at) {
                *place = answer.map(|description| self.shown(description));
            }
        }
        let names = self.all.iter().map(|peer| text::address(peer.addr()));
        names.zip(answers).collect()
    }

    /// The description without hosts that repeat a password.
    fn shown(&self, mut description: Description) -> Description {
        let hosts = description.values_mut();
        let hidden = hosts.filter(|value| self.is_secret(value));
        hidden.for_each(|value| *value = "***".into());
        description
    }

    /// Why no master is believed.
    pub(crate) fn no_master(&self, said: &Heard) -> Cause {
        let name = &self.name;
        let each = said.each();
        let mut words = each.iter().map(|(_, word)| word);
        if words.all(|word| matches!(word, Err(Unknown::Name))) {
            return Cause::NoMaster(format!("no sentinel knows a master {name:?}"), true);
        }
        let mut is_final = !said.names_any();
        let why = each.iter().map(|(sentinel, word)| match word {
            Ok(master) => format!("{sentinel} names {master}"),
            Err(Unknown::Name) => format!("{sentinel} does not know it"),
            Err(Unknown::Failed(cause)) => {
                is_final &= cause.is_final();
                format!("{sentinel}: {}", refusal(cause))
            }
        });
        let why = why.collect::<Vec<_>>().join("; ");
        let few = match said.names_any() {
            true => "no majority of the sentinels names the master",
            false => "no sentinel names the master",
        };
        Cause::NoMaster(format!("{few} {name:?}: {why}"), is_final)
    }
}

/// The address of this host and port, reached like the other one.
pub(crate) fn like(other: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match other {
        ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: None,
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}

/// A sentinel's refusal, with what to do.
fn refusal(cause: &Cause) -> String {
    let text = cause.without_advice();
    match cause {
        Cause::NotConnected(time, _) => format!("no answer within {}", text::human(*time)),
        Cause::Refused(_) if cause.meaning().concerns_login() => {
            format!("{text} (for sentinels: ?sentinel_username=…&sentinel_password=…)")
        }
        Cause::Refused(_) => format!("{text} (that is no sentinel)"),
        _ => text,
    }
}

/// A sentinel's description of a master: names and values.
pub(crate) type Description = BTreeMap<String, String>;

fn described(words: Vec<String>) -> Description {
    let mut words = words.into_iter();
    let mut description = Description::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        description.insert(name, value);
    }
    description
}

/// The words of a sentinel's answer about the master of this name. `None` if it has no such master.
fn tell(
    sentinel: &Peer,
    question: &[u8],
    name: &str,
    time: (Instant, Duration),
) -> Result<Option<Vec<String>>, Cause> {
    let word = |item: Reply| match item {
        Reply::Bulk(bytes) => String::from_utf8(bytes).map_err(|_| no_address()),
        other => Err(Cause::Garbage(other.kind().into())),
    };
    match question::ask(sentinel, &[b"SENTINEL", question, name.as_bytes()], time)? {
        Reply::Nil => Ok(None),
        Reply::Error(text) if text.starts_with("ERR No such master") => Ok(None),
        Reply::Error(text) => Err(Cause::refused(&text)),
        Reply::Array(items) => items
            .into_iter()
            .map(word)
            .collect::<Result<_, _>>()
            .map(Some),
        other => Err(Cause::Garbage(other.kind().into())),
    }
}

fn no_address() -> Cause {
    Cause::Garbage("not the address of a master".into())
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::net::socket::trust::Trust;
    use crate::settings::tls::Tls;

    /// Three sentinels, at ports without servers.
    fn sentinels() -> Arc<Sentinels> {
        let infos = [1, 2, 3].map(|port| ("127.0.0.1", port).into_connection_info().unwrap());
        let trust = Trust::new(&Tls::default(), infos.iter());
        let peers = infos
            .iter()
            .map(|info| Peer::new(info.clone(), &trust, None));
        let like = infos[0].addr().clone();
        Arc::new(Sentinels::new("m".into(), peers.collect(), like, None))
    }

    #[test]
    fn sentinels_that_cannot_be_reached_are_silent_and_can_be_asked_again() {
        let set = sentinels();
        for _ in 0..3 {
            let begun = clock::instant();
            let said = set.ask_all(Duration::from_secs(7));
            assert!(said.silence().is_some_and(|at| at >= begun));
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "none is waited for"
            );
        }
        let now = clock::instant();
        let mut questions = lock(&set.questions);
        for questions in &mut *questions {
            let ask = questions.ask(now, Slot::default);
            assert!(matches!(ask, NextQuestion::Begin(_)), "none is left");
        }
    }

    /// The thread that asks it may be at any point.
    #[test]
    fn a_sentinel_that_has_not_answered_yet_is_not_silent() {
        let set = sentinels();
        let begun = clock::instant();
        let slots = [(); 3].map(|()| Slot::default());
        let ask = |asked: Instant| {
            for (questions, slot) in lock(&set.questions).iter_mut().zip(&slots) {
                questions.end(|_| true, false, begun);
                questions.ask(asked, || slot.clone());
            }
        };
        // No thread has begun to ask.
        ask(begun);
        let said = set.ask_all(Duration::from_millis(600));
        assert!(said.silence().is_none() && said.believed().is_none());
        // All that arrive meanwhile get its answer, which is as old as the question.
        let asked = begun + Duration::from_secs(60);
        ask(asked);
        std::thread::scope(|scope| {
            let wait = || set.ask_all(Duration::from_secs(65)).believed();
            let said = [0, 1].map(|_| scope.spawn(wait));
            for slot in &slots {
                let address = ConnectionAddr::Tcp("h".into(), 1);
                assert!(slot.answer.set(Ok((address, None))).is_ok());
            }
            drop(lock(&set.questions));
            set.news.notify_all();
            for said in said {
                let at = said.join().unwrap().map(|named| named.at);
                assert_eq!(at, Some(asked));
            }
        });
    }

    #[test]
    fn no_host_that_repeats_a_password_is_shown() {
        let like = ConnectionAddr::Tcp("h".into(), 1);
        let set = Sentinels::new("m".into(), Vec::new(), like, Some("hunter2"));
        let words = ["ip", "hunter2", "port", "6379", "flags", "master"];
        let shown = set.shown(described(words.map(str::to_owned).to_vec()));
        let shown: Vec<&str> = shown.values().map(|value| &**value).collect();
        assert_eq!(shown, ["master", "***", "6379"]);
    }
}
