//! The kinds of lock, and how their commands and votes differ from a plain lock's.
//!
//! A *permit* is one of k slots of a semaphore, and each slot is a separate lock, acquired by a quorum of grants of
//! that slot (rule R47). A quorum of grants of any slots would let in more than k: with three nodes and two permits,
//! three holders have two nodes each.
//!
//! A *write lock* is a plain lock, a string; *readers* are the members of a sorted set under the same name. A node
//! never has both, and two majorities share a node (rule R49). Locks on *several* names are plain locks on all of them,
//! taken in one step (rule R52).
//!
//! A name has one kind at a time (rule R53): a node that finds another one there refuses, and reports which it is.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::queue::{Channel, LockInfo, QueueEntry, millis};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{
    ACQUIRE_NAMES, ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, EXTEND_MEMBER, EXTEND_NAMES,
    FENCE_MEMBER, FENCE_NAMES, LEAVE, REFILL_MEMBER, REFILL_NAMES, RELEASE_MEMBER, RELEASE_NAMES,
    Script,
};
use crate::protocol::commands::vote::{NOTIFIED, OtherUse, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::prefix::Prefix;
use crate::values::quorum::{NodeSet, Tally, Ttl};
use crate::values::token::Token;

/// The maximum number of permits: a node goes through all of them for each that it grants.
pub(crate) const MAX_PERMITS: u16 = 1000;

/// The kind of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Plain,
    Permit {
        /// The number of permits.
        permits: u16,
        /// The slot of this permit, once it is determined.
        slot: Option<u16>,
    },
    /// A grant that is only to be released: of this slot, which is not the one that was acquired.
    Stray(u16),
    Read {
        /// How many milliseconds the caller has waited.
        waited: u64,
    },
    Write(Mark),
    Several {
        /// Sorted by their bytes.
        names: Arc<[Arc<[u8]>]>,
        /// The tokens of the caller's own locks on some of them, which an acquire takes over.
        claims: Option<Arc<Vec<Option<Token>>>>,
    },
}

/// The mark that a waiting writer leaves at a node, so that later readers are kept out (rule R50).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Distinguishes the writer from others.
    pub(crate) writer: u64,
    /// How long the mark stays, in milliseconds. Zero: the writer does not wait.
    pub(crate) life: u64,
    /// How many milliseconds the writer has waited.
    pub(crate) waited: u64,
}

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
    /// The token, and perhaps a label.
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
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Kind::Plain)
    }

    pub(crate) fn several(names: Arc<[Arc<[u8]>]>) -> Kind {
        let claims = None;
        Kind::Several { names, claims }
    }

    /// The slot of a permit, once it is determined.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            Kind::Permit { slot, .. } => *slot,
            _ => None,
        }
    }

    /// All names, if there are several.
    pub(crate) fn names(&self) -> Option<&[Arc<[u8]>]> {
        match self {
            Kind::Several { names, .. } => Some(names),
            _ => None,
        }
    }

    /// The queue of its process in which a thread waits. A thread that waits for several names does not hold up those
    /// that wait for one of them.
    pub(crate) fn line(&self, resource: &Arc<[u8]>) -> Arc<[u8]> {
        let Kind::Several { names, .. } = self else {
            return resource.clone();
        };
        let mut line = b"\0redlock:several".to_vec();
        for name in names.iter() {
            line.extend_from_slice(&name.len().to_be_bytes());
            line.extend_from_slice(name);
        }
        line.into()
    }

    /// The kind with the slot that a quorum has granted: the number is 1 + the slot.
    pub(crate) fn granted(&self, numbers: Option<(u64, u64)>) -> Kind {
        match (self, numbers) {
            (Kind::Permit { permits, .. }, Some((number, _))) => {
                let slot = number.checked_sub(1);
                let slot = slot.and_then(|slot| u16::try_from(slot).ok());
                let permits = *permits;
                Kind::Permit { permits, slot }
            }
            (kind, _) => kind.clone(),
        }
    }

    /// Whether votes count only together with those for the same number.
    pub(crate) fn counts_apart(&self) -> bool {
        matches!(self, Kind::Permit { .. })
    }

    /// The number whose votes count, by the grants of the nodes (rules R47, R48). `None`: all votes count.
    fn counted(&self, granted: &[(usize, u64)]) -> Option<u64> {
        let Kind::Permit { slot, .. } = self else {
            return None;
        };
        let times = |number: u64| granted.iter().filter(|one| one.1 == number).count();
        let commonest = granted
            .iter()
            .map(|one| one.1)
            .max_by_key(|one| times(*one));
        slot.map(|slot| u64::from(slot) + 1).or(commonest)
    }

    /// Notes how long the caller has waited.
    pub(crate) fn set_waited(&mut self, wait: impl FnOnce() -> Duration) {
        if let Kind::Read { waited } | Kind::Write(Mark { waited, .. }) = self {
            *waited = u64::try_from(wait().as_millis()).unwrap_or(u64::MAX >> 12);
        }
    }

    /// Whether a try that does not wait uses keys beside the lock, which it can do without.
    pub(crate) fn tries_with_companions(&self) -> bool {
        matches!(self, Kind::Read { .. } | Kind::Write(_))
    }

    /// Whether a waiter leaves something on the nodes besides its place in the queue.
    pub(crate) fn leaves_a_mark(&self) -> bool {
        matches!(self, Kind::Write(mark) if mark.life > 0)
    }

    /// How long a waiter may sleep: its mark lives for longer.
    pub(crate) fn longest_sleep(&self) -> Option<Duration> {
        match self {
            Kind::Write(mark) if mark.life > 0 => Some(Duration::from_millis(mark.life / 2)),
            _ => None,
        }
    }

    /// The vote in a node's reply to a script of a lock that is not plain. `None`: the reply is no such answer.
    pub(crate) fn vote(&self, ask: Ask, reply: &Reply) -> Option<Vote> {
        let most = match (ask, self) {
            // The extended permit may be one of more permits than this process would take.
            (Ask::Extend(_) | Ask::Shorten(_), Kind::Permit { .. }) => MAX_PERMITS.into(),
            (Ask::Acquire(..), Kind::Permit { permits, .. }) => (*permits).into(),
            (Ask::Fence(_), _) => u64::MAX,
            (Ask::Release { .. } | Ask::Leave(_), _) => NOTIFIED,
            _ => 1,
        };
        let acquires = matches!(ask, Ask::Acquire(..));
        match reply {
            Reply::Bulk(_) if acquires => {
                LockInfo::parse(reply).map(|info| Vote::Refused(Some(info)))
            }
            Reply::Int(0) if !acquires => Some(Vote::Refused(None)),
            Reply::Int(number) => match u64::try_from(*number) {
                Ok(granted) if (1..=most).contains(&granted) => Some(Vote::Granted(granted)),
                Err(_) if acquires => OtherUse::of(*number).map(Vote::OtherUse),
                _ => None,
            },
            _ => None,
        }
    }

    // ---- commands

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

/// A writer's mark lasts for twice the longest pause between two tries, within these bounds.
const MARK_LIFE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

impl Mark {
    /// The mark of a writer that waits. `longest`: the longest pause between two tries.
    pub(crate) fn new(writer: u64, longest: Duration, node_timeout: Duration) -> Mark {
        let life = 2 * longest.min(MARK_LIFE.1 / 2) + node_timeout;
        Mark {
            writer,
            life: millis(life.clamp(MARK_LIFE.0, MARK_LIFE.1)),
            waited: 0,
        }
    }

    /// The name of the writer in the mark.
    fn name(self) -> String {
        format!("{:016x}", self.writer)
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

/// The numbers that nodes have granted.
#[derive(Default)]
pub(crate) struct Numbers(Vec<(usize, u64)>);

impl Numbers {
    pub(crate) fn add(&mut self, node: usize, number: u64) {
        self.0.push((node, number));
    }

    /// The number that counts.
    pub(crate) fn counted(&self, kind: &Kind) -> Option<u64> {
        kind.counted(&self.0).filter(|_| !self.0.is_empty())
    }

    /// The nodes whose grants of an acquire do not count, each with the slot that it granted.
    pub(crate) fn stray_slots(&self, kind: &Kind) -> impl Iterator<Item = (usize, u16)> {
        let strays = self.strays(kind, false);
        let slot = |one: &(usize, u64)| Some((one.0, u16::try_from(one.1.checked_sub(1)?).ok()?));
        let granted = self.0.iter().filter_map(slot);
        granted.filter(move |one| strays.has(one.0))
    }

    /// The nodes whose grants do not count.
    pub(crate) fn strays(&self, kind: &Kind, extension: bool) -> NodeSet {
        let ignored = match extension {
            true => mutant(Mutant::ExtensionCountsAnySlot),
            false => mutant(Mutant::AnySlotCounts),
        };
        let counted = self.counted(kind).filter(|_| !ignored);
        let stray = |one: &&(usize, u64)| counted.is_some_and(|counted| one.1 != counted);
        self.0.iter().filter(stray).map(|one| one.0).collect()
    }
}

/// The tally with the nodes of `strays` as refusals: their grants do not count.
pub(crate) fn without_strays(tally: Tally, strays: NodeSet) -> Tally {
    Tally {
        granted: tally.granted.without(strays),
        refused: tally.refused.or(strays),
        failed: tally.failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, ttl};
    use crate::values::quorum::{Question, Verdict};

    const UNDO: Ask = Ask::Release {
        undo: true,
        but: None,
    };

    fn permit(permits: u16, slot: Option<u16>) -> Kind {
        Kind::Permit { permits, slot }
    }

    fn numbers(granted: &[(usize, u64)]) -> Numbers {
        Numbers(granted.to_vec())
    }

    /// With two permits and three nodes, three holders may have two nodes each.
    #[test]
    fn a_quorum_of_grants_of_any_slots_is_no_permit() {
        let kind = permit(2, None);
        let verdict = |granted: &[(usize, u64)]| {
            let tally = Tally {
                granted: granted.iter().map(|one| one.0).collect(),
                ..Tally::default()
            };
            let strays = numbers(granted).strays(&kind, false);
            without_strays(tally, strays).verdict(Question::Acquire, 3)
        };
        assert_eq!(verdict(&[(0, 1), (1, 2)]), None);
        assert_eq!(verdict(&[(0, 1), (1, 2), (2, 3)]), Some(Verdict::No));
        assert_eq!(verdict(&[(0, 1), (2, 1)]), Some(Verdict::Yes));
        assert_eq!(verdict(&[(0, 2), (1, 1), (2, 1)]), Some(Verdict::Yes));
    }

    #[test]
    fn an_extension_counts_the_slot_that_was_acquired() {
        let granted = numbers(&[(0, 2), (1, 2), (2, 1)]);
        let strays = |slot| {
            let strays = granted.strays(&permit(3, slot), true);
            strays.iter().collect::<Vec<_>>()
        };
        assert_eq!(strays(Some(1)), [2]);
        assert_eq!(strays(Some(0)), [0, 1]);
        // The permit was resumed.
        assert_eq!(strays(None), [2]);
        assert_eq!(granted.counted(&permit(3, None)), Some(2));
        assert_eq!(numbers(&[]).counted(&permit(3, Some(1))), None);
    }

    #[test]
    fn what_no_script_answers_is_no_vote() {
        let second = ttl(1000 * MS);
        let (acquire, release) = (Ask::Acquire(second, None), UNDO);
        let read = Kind::Read { waited: 0 };
        let both = Kind::several([b"a", b"b"].map(|name| Arc::from(&name[..])).into());
        let two = permit(2, None);
        let vote = |kind: &Kind, ask, reply| match kind.vote(ask, &reply) {
            Some(Vote::Granted(number)) => format!("+{number}"),
            Some(Vote::Refused(_)) => "no".into(),
            Some(Vote::OtherUse(other)) => format!("{other:?}"),
            Some(_) => "another".into(),
            None => "garbage".into(),
        };
        let int = Reply::Int;
        for (kind, ask, reply, expected) in [
            (&two, acquire, int(2), "+2"),
            (&two, acquire, int(3), "garbage"),
            (&two, acquire, int(0), "garbage"),
            (&two, acquire, int(-1), "Lock"),
            (&two, acquire, int(-5), "garbage"),
            (&two, acquire, int(i64::MIN), "garbage"),
            (&two, acquire, Reply::Okay, "garbage"),
            (&two, acquire, Reply::Nil, "garbage"),
            (&two, acquire, Reply::Bulk("1500 00a1ff -".into()), "no"),
            (&two, acquire, Reply::Bulk("x".into()), "garbage"),
            // The permit was resumed by a process that names another number.
            (&two, Ask::Extend(second), int(1000), "+1000"),
            (&two, Ask::Extend(second), int(1001), "garbage"),
            (&two, Ask::Extend(second), int(-2), "garbage"),
            (&two, Ask::Shorten(second), int(3), "+3"),
            (&two, Ask::Shorten(second), int(0), "no"),
            (&two, release, int(1), "+1"),
            (&two, release, int(3), "garbage"),
            (
                &two,
                release,
                Reply::Bulk("1500 00a1ff -".into()),
                "garbage",
            ),
            (&two, Ask::Fence(0), int(1 << 40), "+1099511627776"),
            (&read, acquire, int(1), "+1"),
            (&read, acquire, int(2), "garbage"),
            (&read, acquire, int(-3), "Permits"),
            (&both, Ask::Extend(second), int(2), "garbage"),
            (&both, Ask::Refill(second), int(0), "no"),
            (&both, acquire, Reply::Okay, "garbage"),
        ] {
            let text = format!("{kind:?} {ask:?} {reply:?}");
            assert_eq!(vote(kind, ask, reply), expected, "{text}");
        }
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
        let undo = UNDO;
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
        expects(&read, undo, c(RELEASE_MEMBER, &["a"]).arg(id).arg(&reader));
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
