//! One connection: what is sent, what is received before a point in time, which replies are owed.
//!
//! The redis crate's blocking connection cannot bound time: its timeouts are per read (a reply that
//! trickles in outlasts any of them), a signal loses the reply for good, and connecting gives each
//! reply of the set-up a fresh timeout. So plain connections are sockets of our own. The crate does
//! what is not about time: addresses, set-up commands, and TLS.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ConnectionInfo};

use crate::clock;
use crate::error::Cause;
use crate::plain::{Plain, SHORTEST};
use crate::script::{Action, Key, Reply, is_not_now};
use crate::tls::Tls;

/// A node's unread replies are read past when so many have come in since the last time. They cost the
/// node's memory, not ours, and looking for them costs system calls.
const MAX_OWED: usize = 256;

/// A release that a server could not carry out (it is loading, read-only, …) is said again after this
/// time at the earliest, with the next step.
const SAY_AGAIN: Duration = Duration::from_millis(100);
/// What a node may be owed at most; beyond, the oldest is forgotten, and its key ends with its ttl.
pub(crate) const MAX_DEBTS: usize = 4096;
const MAX_DEBT_BYTES: usize = 1 << 20;

/// A release that a node has not carried out yet, for all that is known: if the connection dies it is
/// said again over a new one (rule R8), unless the key has ended by itself.
#[derive(Clone)]
pub(crate) struct Debt {
    pub(crate) key: Key,
    pub(crate) forget_at: Instant,
}

/// So many as there is room for, the oldest first.
#[derive(Default)]
pub(crate) struct Debts {
    debts: VecDeque<Debt>,
    /// Of their names.
    bytes: usize,
}

impl Debts {
    pub(crate) fn push(&mut self, debt: Debt) {
        self.bytes += debt.key.resource.len();
        self.debts.push_back(debt);
        while self.debts.len() > MAX_DEBTS || self.bytes > MAX_DEBT_BYTES {
            self.pop();
        }
    }

    fn is_half_full(&self) -> bool {
        self.debts.len() >= MAX_DEBTS / 2 || self.bytes >= MAX_DEBT_BYTES / 2
    }

    fn pop(&mut self) -> Option<Debt> {
        let debt = self.debts.pop_front()?;
        self.bytes -= debt.key.resource.len();
        Some(debt)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.debts.is_empty()
    }

    /// The oldest, at most so many; those whose keys have ended by themselves `now` are forgotten.
    pub(crate) fn take(&mut self, count: usize, now: Option<Instant>) -> Vec<Debt> {
        std::iter::from_fn(|| self.pop())
            .filter(|debt| now.is_none_or(|now| debt.forget_at > now))
            .take(count)
            .collect()
    }
}

/// A reply to come.
struct Owed {
    asked: Instant,
    /// How many bytes had been sent before it was asked.
    from: usize,
    /// What it says is deleted, if it answers a release.
    release: Option<Debt>,
    /// That release is said again because the server could not carry it out.
    again: bool,
}

pub(crate) struct Wire {
    stream: Stream,
    /// The replies still to come, in order.
    owed: VecDeque<Owed>,
    /// Bytes sent so far.
    sent: usize,
    /// With more owed than this it is time to look for them.
    may_owe: usize,
    /// Releases that the server could not carry out. When they are due again, and how many at once:
    /// first one, and as long as they are taken twice as many each time, up to [`MAX_OWED`].
    refused: Debts,
    say_again: usize,
    say_again_at: Instant,
    /// When the node last completed an answer.
    heard: Instant,
    /// How long readers have waited for it in this step.
    waited: Duration,
    /// Which server this is (rule R1); unknown where INFO is forbidden.
    run_id: Option<String>,
}

enum Stream {
    Plain(Plain),
    Tls(Tls),
}

impl Wire {
    /// Connects and sets up: AUTH, SELECT, the client's name (best effort), INFO. Address after
    /// address, step after step, all within `timeout`; only name resolution, the full queue of a Unix
    /// socket, and parts of a TLS handshake cannot be bounded.
    pub(crate) fn connect(info: &ConnectionInfo, timeout: Duration) -> Result<Wire, Cause> {
        let now = clock::instant();
        let until = now + timeout;
        let mut wire = Wire {
            stream: match info.addr() {
                ConnectionAddr::TcpTls { .. } => Stream::Tls(Tls::connect(info, timeout)?),
                _ => Stream::Plain(Plain::connect(info, until)?),
            },
            owed: VecDeque::new(),
            sent: 0,
            may_owe: MAX_OWED,
            refused: Debts::default(),
            say_again: 1,
            say_again_at: now,
            heard: now,
            waited: Duration::ZERO,
            run_id: None,
        };
        wire.set_up(info, until, timeout)?;
        Ok(wire)
    }

    fn set_up(
        &mut self,
        info: &ConnectionInfo,
        until: Instant,
        timeout: Duration,
    ) -> Result<(), Cause> {
        let settings = info.redis_settings();
        let mut commands = Vec::new();
        // A refusal of these is the end; the rest is best effort.
        let mut needed = 0;
        if let Stream::Plain(_) = self.stream {
            if let Some(password) = settings.password() {
                let mut auth = redis::cmd("AUTH");
                if let Some(username) = settings.username() {
                    auth.arg(username);
                }
                auth.arg(password);
                commands.push(auth);
            }
            if settings.db() != 0 {
                let mut select = redis::cmd("SELECT");
                select.arg(settings.db());
                commands.push(select);
            }
            needed = commands.len();
            if !settings.skip_set_lib_name() {
                let name = settings.lib_name().unwrap_or(env!("CARGO_PKG_NAME"));
                let version = settings.lib_ver().unwrap_or(env!("CARGO_PKG_VERSION"));
                for (what, value) in [("LIB-NAME", name), ("LIB-VER", version)] {
                    let mut set_info = redis::cmd("CLIENT");
                    set_info.arg("SETINFO").arg(what).arg(value);
                    commands.push(set_info);
                }
            }
        }
        let mut info_server = redis::cmd("INFO");
        info_server.arg("server");
        commands.push(info_server);

        let mut bytes = Vec::new();
        for command in &commands {
            command.write_packed_command(&mut bytes);
            self.owe(None, clock::instant());
        }
        self.send(&bytes, until)?;
        // A server that is full, or that demands what we do not have, says so and hangs up.
        let mut said: Option<Cause> = None;
        for i in 0..commands.len() {
            match self.recv(until) {
                Ok(Some(Reply::Error(text))) => {
                    let cause = Cause::refused(&text);
                    // Where INFO is merely not answered now, the run id can be had later.
                    if i < needed || is_not_now(&text) || text.starts_with("NOAUTH") {
                        return Err(cause);
                    }
                    said.get_or_insert(cause);
                }
                Ok(Some(Reply::Bulk(server))) => self.run_id = run_id(&server),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Cause::NotConnected(timeout)),
                Err(Cause::Closed(text)) => return Err(said.unwrap_or(Cause::Closed(text))),
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    pub(crate) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// How many replies are still to come.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// The releases that the replies still to come answer, in order; `None` for other commands.
    pub(crate) fn owed_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Option<Debt>> {
        self.owed.iter_mut().map(|owed| &mut owed.release)
    }

    /// Replies have piled up, and enough have been asked for since the last look. (A far node owes
    /// many at any time.)
    pub(crate) fn is_behind(&self) -> bool {
        self.owed.len() > self.may_owe
    }

    /// A reply more will come.
    pub(crate) fn owe(&mut self, release: Option<Debt>, asked: Instant) {
        self.owed.push_back(Owed {
            asked,
            from: self.sent,
            release,
            again: false,
        });
    }

    /// The releases that were not carried out, for all that is known.
    pub(crate) fn into_debts(self) -> impl Iterator<Item = Debt> {
        let unanswered = self.owed.into_iter().filter_map(|owed| owed.release);
        self.refused.debts.into_iter().chain(unanswered)
    }

    /// How many bytes the node may not have read yet.
    pub(crate) fn unread(&self) -> usize {
        self.owed
            .front()
            .map_or(0, |owed| self.sent.wrapping_sub(owed.from))
    }

    /// How long the oldest reply that is owed has been.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        self.owed.front().map_or(Duration::ZERO, |owed| {
            now.saturating_duration_since(owed.asked)
        })
    }

    /// When the node was last heard, and how long readers waited for it in this step.
    pub(crate) fn last_heard(&self) -> (Instant, Duration) {
        (self.heard, self.waited)
    }

    /// Writes all of `bytes`. After an error the wire is finished: a command may be torn.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant) -> Result<(), Cause> {
        let now = clock::instant();
        let rest = until.saturating_duration_since(now).max(SHORTEST);
        self.sent = self.sent.wrapping_add(bytes.len());
        match &mut self.stream {
            Stream::Plain(plain) => plain.send(bytes, until, rest)?,
            Stream::Tls(tls) => tls.send(bytes, rest)?,
        }
        Ok(())
    }

    /// From here on the reader's waiting is counted anew.
    pub(crate) fn begin(&mut self) {
        self.waited = Duration::ZERO;
    }

    /// The next reply, or `None` if it is not here in time. At or past `until` it takes what is
    /// here and does not wait. After an error the wire is finished.
    pub(crate) fn recv(&mut self, until: Instant) -> Result<Option<Reply>, Cause> {
        let reply = match &mut self.stream {
            Stream::Plain(plain) => plain.recv(until, &mut self.heard, &mut self.waited)?,
            Stream::Tls(tls) => {
                let now = clock::instant();
                let rest = until.saturating_duration_since(now).max(SHORTEST);
                let reply = tls.recv(rest)?;
                self.heard = clock::instant();
                self.waited += self.heard.saturating_duration_since(now);
                Some(reply)
            }
        };
        if let Some(reply) = &reply
            && let Some(owed) = self.owed.pop_front()
            && let (Reply::Error(text), Some(debt)) = (reply, owed.release)
            && is_not_now(text)
        {
            self.refuse(debt, owed.again);
        }
        // Or the next reply would be taken for another's.
        if self.owed.is_empty() && self.has_unread() {
            return Err(Cause::Garbage("more than was asked for".into()));
        }
        Ok(reply)
    }

    /// Whether the next reply can be had without a system call.
    pub(crate) fn has_reply(&self) -> bool {
        match &self.stream {
            Stream::Plain(plain) => plain.has_reply(),
            Stream::Tls(_) => false,
        }
    }

    fn has_unread(&self) -> bool {
        match &self.stream {
            Stream::Plain(plain) => !plain.unread().is_empty(),
            Stream::Tls(_) => false,
        }
    }

    /// Reads past the replies that are here, without waiting. (TLS cannot look without waiting: it
    /// reads past those that are `overdue`, until `until`.)
    pub(crate) fn catch_up(
        &mut self,
        now: Instant,
        overdue: Duration,
        until: Instant,
    ) -> Result<(), Cause> {
        match self.stream {
            Stream::Plain(_) => {
                self.settle(now)?;
            }
            Stream::Tls(_) => {
                while self.silent_for(now) > overdue {
                    self.recv(until)?;
                }
            }
        }
        self.may_owe = self.owed.len() + MAX_OWED;
        Ok(())
    }

    /// Whether it can be waited on for a shorter time and then again.
    pub(crate) fn survives_waiting(&self) -> bool {
        matches!(self.stream, Stream::Plain(_))
    }

    /// Finds out without waiting whether the connection was closed, as far as that can be had. Reads
    /// past the replies that are here.
    pub(crate) fn look(&mut self, now: Instant) -> Result<(), Cause> {
        if matches!(self.stream, Stream::Tls(_)) || !self.settle(now)? {
            return Ok(());
        }
        match &mut self.stream {
            Stream::Plain(plain) => plain.look(),
            Stream::Tls(_) => Ok(()),
        }
    }

    /// Reads past all replies that are owed; false if some are not here in time.
    pub(crate) fn settle(&mut self, until: Instant) -> Result<bool, Cause> {
        while !self.owed.is_empty() {
            if self.recv(until)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks for nothing and waits for the answer.
    pub(crate) fn ping(&mut self, until: Instant) -> Result<bool, Cause> {
        self.owe(None, clock::instant());
        self.send(b"*1\r\n$4\r\nPING\r\n", until)?;
        self.settle(until)
    }

    /// Notes a release that the server could not carry out, once or `again`.
    fn refuse(&mut self, debt: Debt, again: bool) {
        let first = self.refused.debts.is_empty();
        if first || again {
            self.say_again = 1;
        }
        // Others that are refused meanwhile must not put it off for ever.
        if first {
            self.say_again_at = self.heard + SAY_AGAIN;
        }
        // The first are locks from before; what came later it has hardly granted. Half of the room is
        // for those that are being said again.
        if again || !self.refused.is_half_full() {
            self.refused.push(debt);
        }
    }

    /// Says releases again that the server could not carry out, if it is time.
    pub(crate) fn say_again(&mut self, now: Instant, until: Instant) -> Result<(), Cause> {
        if self.refused.debts.is_empty() || now < self.say_again_at {
            return Ok(());
        }
        let due = self.refused.take(self.say_again, Some(now));
        let said = due.len();
        self.say_again_at = now + SAY_AGAIN;
        // Unless one of them is refused.
        self.say_again = (2 * self.say_again).min(MAX_OWED);
        self.pay(due, until)?;
        self.owed
            .iter_mut()
            .rev()
            .take(said)
            .for_each(|owed| owed.again = true);
        Ok(())
    }

    /// Writes releases that are due and notes their replies as owed. On an error they are among
    /// [`into_debts`](Wire::into_debts) too.
    pub(crate) fn pay(&mut self, debts: Vec<Debt>, until: Instant) -> Result<(), Cause> {
        // The redis crate refuses to write nothing.
        if debts.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let now = clock::instant();
        for debt in debts {
            Action::Release.pack(&debt.key, &mut bytes);
            self.owe(Some(debt), now);
        }
        self.send(&bytes, until)
    }
}

fn run_id(info: &[u8]) -> Option<String> {
    let text = str::from_utf8(info).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    fn debt(resource: Vec<u8>, forget_at: Instant) -> Debt {
        let key = Key {
            resource: resource.into(),
            token: Token::from_bytes([7; 20]),
            asked: 1,
        };
        Debt { key, forget_at }
    }

    fn names(debts: Vec<Debt>) -> Vec<Vec<u8>> {
        let names = debts.iter().map(|debt| debt.key.resource.to_vec());
        names.collect()
    }

    #[test]
    fn what_is_owed_has_a_bound_and_the_oldest_is_forgotten() {
        let now = clock::instant();
        let name = |i: usize| i.to_string().into_bytes();
        let mut debts = Debts::default();
        (0..MAX_DEBTS + 3).for_each(|i| debts.push(debt(name(i), now)));
        let left = names(debts.take(usize::MAX, None));
        assert_eq!(left, (3..MAX_DEBTS + 3).map(name).collect::<Vec<_>>());

        let long = |i: u8| vec![i; MAX_DEBT_BYTES / 2];
        (0..3).for_each(|i| debts.push(debt(long(i), now)));
        assert_eq!(names(debts.take(usize::MAX, None)), [long(1), long(2)]);
        assert!(debts.is_empty() && debts.bytes == 0);
    }

    #[test]
    fn what_is_owed_is_forgotten_with_its_ttl() {
        let now = clock::instant();
        let (past, later) = (now, now + Duration::from_secs(1));
        let mut debts = Debts::default();
        for (name, forget_at) in [("a", past), ("b", later), ("c", past), ("d", later)] {
            debts.push(debt(name.into(), forget_at));
        }
        // Where the acquire may be unread, nothing is.
        assert_eq!(names(debts.take(1, None)), [b"a"]);
        assert_eq!(names(debts.take(1, Some(now))), [b"b"]);
        assert_eq!(names(debts.take(9, Some(now))), [b"d"]);
    }

    #[test]
    fn the_run_id_is_found_in_info() {
        let info = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc123\r\ntcp_port:1\r\n";
        assert_eq!(run_id(info).as_deref(), Some("abc123"));
        assert_eq!(run_id(b"# Server\r\n"), None);
    }
}
