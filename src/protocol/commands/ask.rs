//! The requests to a node for a lock that is not plain, as calls of scripts.

use std::borrow::Cow;

use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::queue::{Channel, QueueEntry};
use crate::protocol::commands::resp;
use crate::protocol::commands::scripts::{
    ACQUIRE_NAMES, ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, EXTEND_MEMBER, EXTEND_NAMES,
    FENCE_MEMBER, FENCE_NAMES, LEAVE, REFILL_MEMBER, REFILL_NAMES, RELEASE_MEMBER, RELEASE_NAMES,
    Script,
};
use crate::values::prefix::Prefix;
use crate::values::quorum::Ttl;
use crate::values::token::Token;

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Includes the entry of a waiter that enters the queue.
    Acquire(Ttl, Option<QueueEntry>),
    Refill(Ttl),
    Extend(Ttl),
    Shorten(Ttl),
    /// An undo notifies no waiter, and leaves a mark as it is. The channel `but` is not notified either.
    Release {
        undo: bool,
        but: Option<Channel>,
    },
    Fence(u64),
    /// Takes this waiter out of the queues.
    Leave(Channel),
}

/// A lock in the form in which its commands name it.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) resource: &'a [u8],
    pub(crate) prefix: &'a Prefix,
    pub(crate) token: &'a Token,
    /// The token, and what is behind it.
    pub(crate) value: &'a [u8],
    /// Whether keys beside the lock may be named.
    pub(crate) companions: bool,
}

impl<'a> Named<'a> {
    fn key(self) -> Cow<'a, [u8]> {
        self.prefix.key(self.resource)
    }

    /// The name of a channel, in the form that all clients with this prefix use.
    fn channel(self, channel: Channel) -> Vec<u8> {
        self.prefix.key(&channel.bytes()).into_owned()
    }
}

impl Kind {
    /// The script to call.
    pub(crate) fn script(&self, ask: Ask) -> Script {
        let is_set = matches!(
            self,
            Kind::Permit { .. } | Kind::Read { .. } | Kind::Stray(_)
        );
        match (ask, self) {
            (Ask::Acquire(..), Kind::Permit { .. }) => ACQUIRE_PERMIT,
            (Ask::Acquire(..), Kind::Read { .. }) => ACQUIRE_READ,
            (Ask::Acquire(..), Kind::Write(_)) => ACQUIRE_WRITE,
            (Ask::Acquire(..), _) => ACQUIRE_NAMES,
            (Ask::Leave(_), _) => LEAVE,
            (Ask::Refill(_), _) if is_set => REFILL_MEMBER,
            (Ask::Refill(_), _) => REFILL_NAMES,
            (Ask::Extend(_) | Ask::Shorten(_), _) if is_set => EXTEND_MEMBER,
            (Ask::Extend(_) | Ask::Shorten(_), _) => EXTEND_NAMES,
            (Ask::Release { .. }, _) if is_set => RELEASE_MEMBER,
            (Ask::Release { .. }, _) => RELEASE_NAMES,
            (Ask::Fence(_), _) if is_set => FENCE_MEMBER,
            (Ask::Fence(_), _) => FENCE_NAMES,
        }
    }

    /// Appends the call of a script.
    pub(crate) fn pack(&self, ask: Ask, lock: Named<'_>, by_hash: bool, out: &mut Vec<u8>) {
        let mut call = KindCall::new(self.script(ask), by_hash);
        match self {
            _ if matches!(ask, Ask::Leave(_)) => self.pack_names(ask, lock, &mut call),
            Kind::Permit { slot, .. } => {
                let head = slot.map(|slot| format!("redlock:s{slot:03}"));
                self.pack_member(ask, lock, &head.unwrap_or_default(), &mut call);
            }
            Kind::Stray(slot) => {
                self.pack_member(ask, lock, &format!("redlock:s{slot:03}"), &mut call);
                call.number(1);
            }
            Kind::Read { .. } => self.pack_member(ask, lock, "redlock:r000", &mut call),
            _ => self.pack_names(ask, lock, &mut call),
        }
        if matches!(ask, Ask::Shorten(_)) {
            call.number(1);
        }
        call.pack(out);
    }

    /// How many milliseconds the caller has waited.
    fn waited(&self, entry: Option<QueueEntry>) -> u64 {
        match self {
            Kind::Read { waited } => *waited,
            Kind::Write(mark) => mark.waited,
            _ => entry.map_or(0, |entry| entry.waited),
        }
    }

    /// Appends the arguments that all acquiring scripts take.
    fn pack_acquire(
        &self,
        ttl: Ttl,
        entry: Option<QueueEntry>,
        lock: Named<'_>,
        call: &mut KindCall,
    ) {
        call.arg(lock.value).number(ttl.millis());
        match entry {
            None => call.arg(b"").number(0),
            Some(entry) => call.arg(&lock.channel(entry.channel)).number(entry.arrived),
        };
        call.number(self.waited(entry))
            .number(entry.map_or(0, |entry| entry.lease));
        match self {
            Kind::Permit { permits, .. } => {
                call.number(u64::from(*permits));
            }
            Kind::Write(mark) => {
                call.arg(mark.name().as_bytes()).number(mark.life);
            }
            Kind::Several {
                claims: Some(claims),
                ..
            } => {
                for token in claims.iter() {
                    call.arg(token.as_ref().map_or(b"", |token| &token.as_bytes()[..]));
                }
            }
            _ => {}
        }
    }

    /// Appends the keys and arguments for a member of a set. `head`: the beginning of the member, as far as it is
    /// determined.
    fn pack_member(&self, ask: Ask, lock: Named<'_>, head: &str, call: &mut KindCall) {
        let member = [head.as_bytes(), lock.value].concat();
        let id = lock.token.as_bytes();
        let key = lock.key();
        call.key(&key);
        match ask {
            Ask::Acquire(ttl, entry) => {
                let with_mark = matches!(self, Kind::Read { .. });
                if lock.companions && (entry.is_some() || with_mark) {
                    call.companions(Companion::Queue, &[&key]);
                }
                if lock.companions && with_mark {
                    call.companions(Companion::Mark, &[&key]);
                }
                self.pack_acquire(ttl, entry, lock, call);
                if let Kind::Permit { permits, .. } = self {
                    call.number(u64::from(preferred(lock.token, *permits)));
                }
            }
            Ask::Extend(ttl) | Ask::Shorten(ttl) | Ask::Refill(ttl) => {
                call.arg(id).arg(&member).number(ttl.millis());
            }
            Ask::Release { undo, but } => {
                let notifies = !undo && lock.companions;
                if notifies {
                    call.companions(Companion::Queue, &[&key]);
                }
                call.arg(id).arg(&member);
                if let Some(channel) = but.filter(|_| notifies) {
                    call.arg(&lock.channel(channel));
                }
            }
            Ask::Fence(at_least) => {
                call.companions(Companion::Counter, &[&key]);
                call.arg(id).number(at_least).arg(&member);
            }
            Ask::Leave(_) => {}
        }
    }

    fn pack_names(&self, ask: Ask, lock: Named<'_>, call: &mut KindCall) {
        let keys: Vec<_> = match self {
            Kind::Several { names, .. } => names.iter().map(|name| lock.prefix.key(name)).collect(),
            _ => vec![lock.key()],
        };
        let id = lock.token.as_bytes();
        let writer = match self {
            Kind::Write(mark) => mark.name(),
            _ => String::new(),
        };
        keys.iter().for_each(|key| call.key(key));
        let beside = match ask {
            Ask::Acquire(_, entry) => match self {
                Kind::Write(_) => &[Companion::Queue, Companion::Mark][..],
                _ if entry.is_some() => &[Companion::Queue],
                _ => &[],
            },
            Ask::Leave(_) | Ask::Release { undo: false, .. } => {
                &[Companion::Queue, Companion::Mark]
            }
            _ => &[],
        };
        for companion in beside.iter().filter(|_| lock.companions) {
            call.companions(*companion, &keys);
        }
        match ask {
            Ask::Acquire(ttl, entry) => {
                let entry = entry.filter(|_| lock.companions);
                self.pack_acquire(ttl, entry, lock, call);
            }
            Ask::Refill(ttl) => {
                call.arg(id).arg(lock.value).number(ttl.millis());
            }
            Ask::Extend(ttl) | Ask::Shorten(ttl) => {
                call.arg(id).number(ttl.millis());
            }
            Ask::Release { undo, but } => {
                let but = but.filter(|_| !undo && lock.companions);
                call.arg(id).number(keys.len() as u64);
                match but {
                    Some(channel) => call.arg(&lock.channel(channel)),
                    None => call.arg(b""),
                };
                call.arg(writer.as_bytes());
            }
            Ask::Fence(at_least) => {
                call.companions(Companion::Counter, &keys);
                call.arg(id).number(at_least);
            }
            Ask::Leave(channel) => {
                call.number(keys.len() as u64).arg(writer.as_bytes());
                call.arg(&lock.channel(channel));
            }
        }
    }
}

/// The call of a script: its keys, and then its arguments.
struct KindCall {
    script: [&'static [u8]; 2],
    keys: u64,
    count: usize,
    /// The keys and the arguments, packed.
    packed: Vec<u8>,
}

impl KindCall {
    fn new(script: Script, by_hash: bool) -> KindCall {
        KindCall {
            script: match by_hash {
                true => [b"EVALSHA", script.hash],
                false => [b"EVAL", script.text],
            },
            keys: 0,
            count: 0,
            packed: Vec::with_capacity(256),
        }
    }

    fn key(&mut self, key: &[u8]) {
        self.keys += 1;
        self.arg(key);
    }

    fn companions(&mut self, companion: Companion, keys: &[impl AsRef<[u8]>]) {
        for key in keys {
            self.keys += 1;
            self.count += 1;
            resp::joined_argument(&mut self.packed, &companion.key(key.as_ref()));
        }
    }

    fn arg(&mut self, arg: &[u8]) -> &mut KindCall {
        self.count += 1;
        resp::argument(&mut self.packed, arg);
        self
    }

    fn number(&mut self, number: u64) -> &mut KindCall {
        self.count += 1;
        resp::number(&mut self.packed, number);
        self
    }

    fn pack(&self, out: &mut Vec<u8>) {
        resp::command(out, 3 + self.count);
        for word in self.script {
            resp::argument(out, word);
        }
        resp::number(out, self.keys);
        out.extend_from_slice(&self.packed);
    }
}

/// Where a node begins to look for a free slot: alike on all nodes, and different with each try, so that contenders
/// that have split the votes no longer meet. At random, also after a split: to prefer a slot that is free on most
/// nodes, each grant would have to report which slots are free on its node, a byte for each permit.
fn preferred(token: &Token, permits: u16) -> u16 {
    let [a, b, ..] = *token.as_bytes();
    u16::from_le_bytes([a, b]) % permits.max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::proof::fixtures::{MS, ttl};
    use crate::protocol::commands::kind::Mark;

    const UNDO: Ask = Ask::Release {
        undo: true,
        but: None,
    };

    fn permit(permits: u16, slot: Option<u16>) -> Kind {
        Kind::Permit { permits, slot }
    }

    #[test]
    fn commands_have_all_keys_and_as_much_of_the_member_as_is_known() {
        let token = Token::from_bytes([7; 20]);
        let (id, value) = (&[7_u8; 20][..], [&[7; 20][..], b"\0redlock:web"].concat());
        let lock = Named {
            resource: b"a",
            prefix: &Prefix::default(),
            token: &token,
            value: &value,
            companions: true,
        };
        let call = |script: Script, keys: &[&str]| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(script.hash).arg(keys.len()).arg(keys);
            call
        };
        let (new, held) = (permit(3, None), permit(3, Some(17)));
        let [slot, reader] =
            [&b"redlock:s017"[..], b"redlock:r000"].map(|head| [head, &value].concat());
        let (writer, life) = (0x1234, 600);
        let waited = 40;
        let write = Kind::Write(Mark {
            writer,
            life,
            waited,
        });
        let read = Kind::Read { waited };
        let both = Kind::several([b"a", b"b"].map(|name| Arc::from(&name[..])).into());
        let second = ttl(1000 * MS);
        let acquire = Ask::Acquire(second, None);
        let final_release = Ask::Release {
            undo: false,
            but: None,
        };
        let mut expected = Vec::new();
        let mut expects = |kind: &Kind, ask, call: &mut redis::Cmd| {
            expected.push((kind.clone(), ask, call.get_packed_command()));
        };
        let c = &call;
        expects(
            &new,
            acquire,
            c(ACQUIRE_PERMIT, &["a"])
                .arg(&value)
                .arg(1000)
                .arg("")
                .arg(&[0, 0, 0, 3, 0x0707 % 3]),
        );
        expects(
            &held,
            Ask::Extend(second),
            c(EXTEND_MEMBER, &["a"]).arg(id).arg(&slot).arg(1000),
        );
        expects(
            &new,
            Ask::Extend(second),
            c(EXTEND_MEMBER, &["a"]).arg(id).arg(&value).arg(1000),
        );
        let ask = &mut c(EXTEND_MEMBER, &["a"]);
        let shorten = Ask::Shorten(second);
        expects(&held, shorten, ask.arg(id).arg(&slot).arg(1000).arg(1));
        let ask = &mut c(EXTEND_NAMES, &["a", "b"]);
        expects(&both, shorten, ask.arg(id).arg(1000).arg(1));
        expects(
            &held,
            Ask::Refill(second),
            c(REFILL_MEMBER, &["a"]).arg(id).arg(&slot).arg(1000),
        );
        let ask = &mut c(RELEASE_MEMBER, &["a", "{a}:w"]);
        expects(&held, final_release, ask.arg(id).arg(&slot));
        expects(
            &Kind::Stray(17),
            UNDO,
            c(RELEASE_MEMBER, &["a"]).arg(id).arg(&slot).arg(1),
        );
        // A waiter.
        let channel = Channel::new([0x5A; 16]);
        let entry = QueueEntry {
            channel,
            arrived: 1_700_000_000_123,
            waited: 17,
            lease: 8000,
            turn: None,
        };
        let (name, arrived) = (channel.bytes(), entry.arrived);
        let waits = Ask::Acquire(second, Some(entry));
        let ask = &mut c(ACQUIRE_PERMIT, &["a", "{a}:w"]);
        ask.arg(&value).arg(1000).arg(&name).arg(arrived);
        expects(&new, waits, ask.arg(&[17, 8000, 3, 0x0707 % 3]));
        let ask = &mut c(ACQUIRE_NAMES, &["a", "b", "{a}:w", "{b}:w"]);
        ask.arg(&value).arg(1000).arg(&name).arg(arrived);
        expects(&both, waits, ask.arg(&[17, 8000]));
        let ask = &mut c(LEAVE, &["a", "{a}:w", "{a}:ww"]);
        let leave = Ask::Leave(channel);
        expects(&write, leave, ask.arg(1).arg("0000000000001234").arg(&name));
        let release = Ask::Release {
            undo: false,
            but: Some(channel),
        };
        let ask = &mut c(RELEASE_MEMBER, &["a", "{a}:w"]);
        expects(&read, release, ask.arg(id).arg(&reader).arg(&name));
        expects(
            &held,
            Ask::Fence(17),
            c(FENCE_MEMBER, &["a", "{a}:fence"])
                .arg(id)
                .arg(17)
                .arg(&slot),
        );
        expects(
            &read,
            acquire,
            c(ACQUIRE_READ, &["a", "{a}:w", "{a}:ww"])
                .arg(&value)
                .arg(1000)
                .arg("")
                .arg(&[0, 40, 0]),
        );
        expects(&read, UNDO, c(RELEASE_MEMBER, &["a"]).arg(id).arg(&reader));
        let mark = "0000000000001234";
        let ask = &mut c(ACQUIRE_WRITE, &["a", "{a}:w", "{a}:ww"]);
        ask.arg(&value).arg(1000).arg("").arg(&[0, 40, 0]);
        expects(&write, acquire, ask.arg(mark).arg(600));
        let ask = &mut c(RELEASE_NAMES, &["a"]);
        expects(&write, UNDO, ask.arg(id).arg(1).arg("").arg(mark));
        let ask = &mut c(RELEASE_NAMES, &["a", "{a}:w", "{a}:ww"]);
        expects(&write, final_release, ask.arg(id).arg(1).arg("").arg(mark));
        expects(
            &both,
            acquire,
            c(ACQUIRE_NAMES, &["a", "b"])
                .arg(&value)
                .arg(1000)
                .arg("")
                .arg(&[0, 0, 0]),
        );
        let Kind::Several { names, .. } = both.clone() else {
            panic!("it is on several names");
        };
        let claims = Some(Arc::new(vec![None, Some(token)]));
        let ask = &mut c(ACQUIRE_NAMES, &["a", "b"]);
        let ask = ask.arg(&value).arg(1000).arg("").arg(&[0, 0, 0]);
        expects(
            &Kind::Several { names, claims },
            acquire,
            ask.arg("").arg(id),
        );
        expects(
            &both,
            Ask::Extend(second),
            c(EXTEND_NAMES, &["a", "b"]).arg(id).arg(1000),
        );
        let ask = &mut c(REFILL_NAMES, &["a", "b"]);
        expects(
            &both,
            Ask::Refill(second),
            ask.arg(id).arg(&value).arg(1000),
        );
        let ask = &mut c(
            RELEASE_NAMES,
            &["a", "b", "{a}:w", "{b}:w", "{a}:ww", "{b}:ww"],
        );
        expects(&both, final_release, ask.arg(id).arg(2).arg("").arg(""));
        let ask = &mut c(FENCE_NAMES, &["a", "b", "{a}:fence", "{b}:fence"]);
        expects(&both, Ask::Fence(17), ask.arg(id).arg(17));
        for (kind, ask, expected) in expected {
            let mut packed = Vec::new();
            kind.pack(ask, lock, true, &mut packed);
            assert_eq!(packed, expected, "{kind:?} {ask:?}");
        }
    }
}
