//! The arithmetic of the protocol: quorum, validity, votes and verdicts.
//!
//! The rules that comments elsewhere cite by number. N nodes, a quorum of q = N/2 + 1; REL is the
//! release, compare-and-delete. Quorum and drift are those of the Redlock specification
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//!
//! - R1  The quorum is that of the configured nodes. Two addresses of one server are refused.
//! - R2  Every try to acquire has a token of its own.
//! - R3  deadline = t0 + ttl − (1 % of the ttl + 2 ms); t0 is read before anything is sent. Time spent
//!   suspended counts.
//! - R4  The last step of an acquire or extension is "now < deadline".
//! - R5  No acquire and no extension is sent twice to a node on the same or another connection, except
//!   that an extension may be sent once more where the connection closed before it was answered.
//! - R6  A try that failed, and every release, sends REL to each node that the acquire was sent to and that
//!   did not answer "denied", also to those that did not answer at all.
//! - R6a One node timeout after a REL was written that no operation waits for, its reply has been read, if by no
//!   operation then by a thread; a REL that was not carried out is sent again.
//! - R6b A REL that a node refuses for now is sent again with the next operation there, and without one after pauses, until it
//!   is carried out, or the longest ttl that was asked for is over since the refusal: by then the node had read all that
//!   could prolong the key.
//! - R7  REL goes behind the SET that it undoes, on the same connection. A timeout alone closes none.
//! - R8  If that connection died: pings over the new one, one at a time, until the server must have read
//!   what the dead one left, 8 KiB a ping; then REL. (Over TLS it is one write a ping, and each ping is a
//!   record of its own.) A dead connection is reset, not closed: what the kernel still holds must not be
//!   delivered later.
//! - R9  Yes at the q-th vote; unavailable when more than N − q nodes failed; no when a quorum of votes
//!   is impossible and q nodes have answered.
//! - R10 An extension counts if q nodes answer "held" before the old deadline.
//! - R11 A node where the key is gone gives no vote, and an extension creates no key.
//! - R11b Refill: once an extension has its quorum, and before the release begins, the acquire's SET may
//!   follow it to nodes that answered "not held". Its reply is no vote, and REL goes there, too.
//! - R12 An extension never shortens.
//! - R13 A failed extension leaves the old deadline in force, unless more than N − q nodes answer "not
//!   held": then the lock is lost at once.
//! - R14 With a restart guard no ttl is larger than its `max_ttl`, on any client.
//! - R15 A server votes from receipt of its INFO + (max(max_ttl, 1 s) + 1 s − `uptime_in_seconds`) on. An uptime that is
//!   negative, or no number, is zero.
//! - R16 Until then it gives no vote of any kind; it is sent REL.
//! - R17 Another server at an address votes no earlier than max_ttl after the last reply of the one before; if it may have been
//!   up already then, as one whose uptime is zero may, after its own first reply.
//! - R18 Where too few nodes may vote, the error shows for how long.
//! - R20 A node counts only while it holds the lock: max(its counter + 1, what is asked for, the time of day).
//! - R21 A fencing token is the number that a quorum gave alike; otherwise 1 + the largest is asked for.
//! - R22 The first and the last step of asking for one is "now < deadline".
//! - R28 A lost counter goes on above all that was given out: its node votes later than 0.1 s, the lead that
//!   was asked for, and what clocks differ by.
//! - R30 Before the try after which a process sleeps, it is subscribed to N − q + 1 nodes, or has tried to; when
//!   another subscription is confirmed it tries again.
//! - R31 A notification during a try causes another try.
//! - R32 A try that was granted any vote but no quorum has met other contenders, not a holder: undone, and tried
//!   again with a new token after a random pause of a few round trips that grows.
//! - R33 Each sleep ends when the waiter's time is over, when q nodes are free by their ttls, or with the poll.
//! - R34 A release notifies one waiter by name, and passes over dead ones; an undo notifies none. A process that is
//!   denied enters the queue in the same script; one that gives up, or is notified and does not wait, passes that on.
//! - R35 One thread of a process asks for a lock. The queue decides no grant.
//! - R38 A reply READONLY or MASTERDOWN ends the connection. Nothing was carried out: an acquire and an extension fail on
//!   that node, and a release is due there.
//! - R39 A node is a server that does not say in HELLO that it is a replica or a sentinel. A replica is away: it is
//!   asked for nothing, and the node's name is resolved again with each try to connect, after the usual pauses, however
//!   many operations want the node. Each try goes on from address to address of the name until one leads to a master.
//!   Without a restart guard, a server that becomes a replica and takes writes all the same counts as a master until its
//!   connection ends.
//! - R40 With a restart guard, a new connection looks at its server: at its identity (`run_id`, `master_replid`, and how many
//!   keys it has evicted, `evicted_keys`), and at the witness, a key that names one. A witness that names this identity, and is older than max(max_ttl, 1 s) + 5 s, gives it
//!   its votes. Otherwise the witness is set where it is missing or names another identity; then all is looked at once more,
//!   which must be the same. The server votes when the witness is as old as that; or by R15, if it was never promoted nor
//!   flushed, and has evicted nothing, as read when the witness was there.
//! - R41 A vote on an acquire counts when the witness, read behind it on the same connection, is as it was, whole.
//! - R42 A vote on an acquire, an extension or a fencing token counts when a look (INFO replication, INFO stats) shows the same
//!   identity and a master, behind it on the same connection.
//! - R43 Where sentinels, or the other servers of a Redis Cluster, name the master, an acquire, an extension and a fencing token
//!   are sent only within 2 s of a question that confirmed the connection's address. Only the master is connected to, and
//!   confirmed, that more than half name of those servers that name one, or might: one that was not asked, has not answered yet,
//!   or refuses to. One that was asked and could not be reached does not count, nor one that knows no such master. Where each was
//!   asked and none could be reached, that confirms: for another master a majority of them is needed. An answer is as old as
//!   its question, whichever thread has asked it. A master of a Redis Cluster that names another one (MOVED, ASK) is believed
//!   for 1 s.
//! - R44 The only node votes on extensions and fencing tokens from 5 s on after the witness was set (by R15: from 1 s of
//!   uptime on), and until R40 gives it all its votes an acquire fails there unasked.
//! - R45 In a Redis Cluster an operation follows its key: what a server answers MOVED or ASK to was not carried out, and is sent
//!   to the server that it names, at most five times in two node timeouts. A release goes on until one has carried it out, ten
//!   seconds at most; so does one that is still owed to a server which has lost the slot.
//! - R46 A script names all keys that it uses. A server that refuses how a command is sent (by a hash, with keys beside the
//!   lock), and not what it does, has done nothing: it is sent again in another way, and so is all that follows on that
//!   connection; but keys may be refused for one name, and not for others. Only where no scripts run does another command compare and
//!   delete, the whole value then. A server on which nothing does is away: a lock could be taken there, and not released.
//! - R47 A permit is q grants of one slot. Other grants count as refusals, and are released behind the verdict.
//! - R48 So is an extension of a permit: a node that has it in another slot does not hold it. A refill puts it right.
//! - R49 A permit or a reader ends by its own time and the node's clock. What has ended is removed before anything is
//!   decided, and the key lives as long as the last of them. A key has one type, so no node has a reader and a writer.
//! - R50 The mark of a writer that waits keeps out readers which have waited for a shorter time. It ends by itself. No grant
//!   removes it, which may be undone: the writer's release does, and its giving up.
//! - R51 A reader that is granted notifies the next waiter, which may be one, too. A reader that a mark keeps out of a free lock
//!   notifies the mark's writer, and deletes the mark of one that does not listen.
//! - R52 Of several names a node locks all or none. While a caller waits for them it holds none; after a turn it claims those
//!   that are in its way, and holds names only that come before the one that it waits for. The lock takes its claims over, and
//!   they are released wherever it has not.
//! - R53 One name is one kind of lock. A majority of another kind is an error of the caller's, never a grant.
//! - R54 What tells one holder from the next differs where the holders differ, readers, too.
//! - R55 A holder that gives its lock up, and leaves it for a time, shortens it to that: it sends that once no thread relies on
//!   the lock. Shortening compares the token, and never prolongs; what of its extensions is not written yet never is. A node
//!   that is away, or refuses it for now, is owed it as it would be owed REL (R6a, R6b, R7, R8): sent late, it leaves the rest
//!   of the time, and is REL once that is over.

use std::time::Duration;

use crate::clock::Point;
use crate::config_error::ConfigError;

/// More nodes than any deployment has; votes are kept in the bits of a `u64`.
pub(crate) const MAX_NODES: usize = 64;

/// Redis adds the ttl to the time of day in 64 bits of milliseconds. 100 years is far from that
/// edge and beyond any use.
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How many of `nodes` *configured* nodes decide (rule R1).
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// How many of them may fail.
pub(crate) fn spare(nodes: usize) -> usize {
    nodes - majority(nodes)
}

/// A lifetime that Redis can carry out: whole milliseconds, at most 100 years, and long enough
/// that a validity is left once drift is taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ttl(Duration);

impl Ttl {
    /// What is left of it once drift is taken off is more than nothing.
    pub(crate) const SHORTEST: Duration = Duration::from_millis(3);
    pub(crate) const MIN: Ttl = Ttl(Ttl::SHORTEST);

    /// Truncates to whole milliseconds first: PX and the validity use that same value.
    pub(crate) fn new(asked: Duration) -> Result<Ttl, ConfigError> {
        if asked > MAX_TTL {
            return Err(ConfigError::new(format!(
                "the ttl is {asked:?}, the limit is 100 years"
            )));
        }
        let whole = asked - Duration::from_nanos(u64::from(asked.subsec_nanos() % 1_000_000));
        let ttl = Ttl(whole);
        if ttl.validity().is_zero() {
            return Err(ConfigError::new(format!(
                "the ttl is {asked:?}, which leaves no validity: at least 3 ms are needed, \
                 seconds are usual"
            )));
        }
        Ok(ttl)
    }

    /// The shortest that is no shorter than this. `None`: above the limit.
    pub(crate) fn no_less_than(time: Duration) -> Option<Ttl> {
        let up = time.checked_add(Duration::from_nanos(999_999))?;
        Ttl::new(up.max(Ttl::SHORTEST)).ok()
    }

    /// The same, where a restart guard sets a limit (rule R14).
    pub(crate) fn within(asked: Duration, limit: Option<Duration>) -> Result<Ttl, ConfigError> {
        let ttl = Ttl::new(asked)?;
        match limit.filter(|limit| ttl.0 > *limit) {
            None => Ok(ttl),
            Some(limit) => Err(ConfigError::new(format!(
                "the ttl is {:?}, the restart guard is for {limit:?} at most",
                ttl.0
            ))),
        }
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    pub(crate) fn millis(self) -> u64 {
        self.0.as_secs() * 1000 + u64::from(self.0.subsec_millis())
    }

    /// What the holder may believe in at the moment of sending: the ttl less drift, which is
    /// 1 % of the ttl (clocks that run at different rates) and 2 ms (the precision of expiry).
    pub(crate) fn validity(self) -> Duration {
        let drift = self.0 / 100 + Duration::from_millis(2);
        self.0.saturating_sub(drift)
    }
}

/// When a validity ends. It starts before the first byte is sent (rule R3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) from: Point,
    pub(crate) validity: Duration,
}

impl Deadline {
    pub(crate) fn new(from: Point, validity: Duration) -> Deadline {
        Deadline { from, validity }
    }

    /// Zero at the deadline and for ever after (rule R4).
    pub(crate) fn remaining(self, now: Point) -> Duration {
        self.validity.saturating_sub(self.from.elapsed_at(now))
    }

    /// Whether it is later than another (rule R12: an extension never shortens).
    pub(crate) fn is_later(self, other: Deadline, now: Point) -> bool {
        self.remaining(now) > other.remaining(now)
    }
}

/// What is asked of the nodes decides how their votes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// May I have it? A refusal is an answer.
    Acquire,
    /// Do I still have it (extend, release)? A refusal means "not held here".
    Held,
    /// Are you there? No node refuses, and every answer is of interest.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A quorum granted, extended or deleted it.
    Yes,
    /// Acquire: denied. Held: too many nodes no longer hold it for a quorum.
    No,
    /// Too few answers for a verdict.
    Unavailable,
}

/// A set of nodes, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u64);

impl NodeSet {
    pub(crate) const EMPTY: NodeSet = NodeSet(0);
    pub(crate) const ALL: NodeSet = NodeSet(u64::MAX);

    /// Those with the first `count` indices.
    pub(crate) fn first(count: usize) -> NodeSet {
        match count {
            0..MAX_NODES => NodeSet(bit(count) - 1),
            _ => NodeSet::ALL,
        }
    }

    pub(crate) fn has(self, node: usize) -> bool {
        self.0 & bit(node) != 0
    }

    pub(crate) fn add(&mut self, node: usize) {
        self.0 |= bit(node);
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !bit(node);
    }

    pub(crate) fn and(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }

    pub(crate) fn or(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    pub(crate) fn without(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            next
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        nodes.into_iter().for_each(|node| set.add(node));
        set
    }
}

fn bit(node: usize) -> u64 {
    1 << (node % MAX_NODES)
}

/// The votes on one operation. A node's first vote counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) granted: NodeSet,
    pub(crate) refused: NodeSet,
    pub(crate) failed: NodeSet,
}

impl Tally {
    pub(crate) fn voted(self) -> NodeSet {
        self.granted.or(self.refused).or(self.failed)
    }

    pub(crate) fn grant(&mut self, node: usize) {
        if !self.voted().has(node) {
            self.granted.add(node);
        }
    }

    pub(crate) fn refuse(&mut self, node: usize) {
        if !self.voted().has(node) {
            self.refused.add(node);
        }
    }

    pub(crate) fn fail(&mut self, node: usize) {
        if !self.voted().has(node) {
            self.failed.add(node);
        }
    }

    /// The verdict of `nodes` configured nodes as soon as it is certain (rules R9, R13). With
    /// every vote in, it is certain.
    pub(crate) fn verdict(self, question: Question, nodes: usize) -> Option<Verdict> {
        let quorum = majority(nodes);
        let spare = spare(nodes);
        let (granted, refused) = (self.granted.len(), self.refused.len());
        let pending = nodes.saturating_sub(self.voted().len());
        if question == Question::Answer && pending > 0 {
            None
        } else if granted >= quorum {
            Some(Verdict::Yes)
        } else if question == Question::Held && refused > spare {
            Some(Verdict::No)
        } else if self.failed.len() > spare {
            Some(Verdict::Unavailable)
        } else if granted + pending >= quorum {
            None
        } else {
            match question {
                Question::Acquire if granted + refused >= quorum => Some(Verdict::No),
                Question::Held if refused + pending <= spare => Some(Verdict::Unavailable),
                Question::Answer => Some(Verdict::Unavailable),
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fixtures::{MS, later};

    #[test]
    fn quorum_is_a_strict_majority_of_the_configured_nodes() {
        for nodes in 1..=MAX_NODES {
            let quorum = majority(nodes);
            assert!(2 * quorum > nodes && 2 * (quorum - 1) <= nodes, "{nodes}");
        }
    }

    #[test]
    fn ttl_is_truncated_to_whole_milliseconds_before_anything_is_computed_from_it() {
        let ttl = Ttl::new(Duration::from_nanos(10_999_999)).unwrap();
        assert_eq!((ttl.millis(), ttl.duration()), (10, 10 * MS));
        assert_eq!(ttl.validity(), 10 * MS - 2 * MS - 10 * MS / 100);
    }

    #[test]
    fn ttl_out_of_range_is_refused_with_value_and_limit() {
        for short in [Duration::ZERO, Duration::from_nanos(999_999), MS, 2 * MS] {
            let text = Ttl::new(short).unwrap_err().to_string();
            assert!(
                text.contains(&format!("{short:?}")) && text.contains("3 ms"),
                "{text}"
            );
        }
        assert!(Ttl::new(Ttl::SHORTEST).is_ok() && Ttl::SHORTEST == 3 * MS);
        assert!(Ttl::new(MAX_TTL).is_ok());
        for long in [MAX_TTL + MS, Duration::MAX] {
            let text = Ttl::new(long).unwrap_err().to_string();
            assert!(text.contains("100 years"), "{text}");
        }
    }

    /// "No `Ok` past the deadline", every small case: what is left is positive exactly while the
    /// key on the slowest-expiring terms (ttl less drift, counted from before sending) still lives.
    #[test]
    fn nothing_remains_at_or_past_the_deadline_exhaustively() {
        let start = Point::now();
        for ttl_ms in 3..250_u32 {
            let ttl = Ttl::new(ttl_ms * MS).unwrap();
            let deadline = Deadline::new(start, ttl.validity());
            for elapsed_us in (0..260_000_u64).step_by(250) {
                let elapsed = Duration::from_micros(elapsed_us);
                let remaining = deadline.remaining(later(start, elapsed));
                // In whole microseconds, by other arithmetic than the code's.
                let end_us = i64::from(ttl_ms) * 1000 - i64::from(ttl_ms) * 10 - 2000;
                let expected = (end_us - i64::try_from(elapsed_us).unwrap()).max(0);
                assert_eq!(i64::try_from(remaining.as_micros()).unwrap(), expected);
                assert_eq!(remaining.is_zero(), expected == 0);
            }
        }
    }

    /// The same with random ttls up to the limit, clocks that disagree, and extensions.
    #[test]
    fn nothing_remains_at_or_past_the_deadline_randomised() {
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let start = Point::now();
        for _ in 0..200_000 {
            let scale = 1 << random(40);
            let ttl = Ttl::new(Duration::from_millis(3 + random(scale))).unwrap();
            let mono = Duration::from_micros(random(2000 * ttl.millis()));
            let wall = Duration::from_micros(random(2000 * ttl.millis()));
            let now = Point {
                mono: start.mono + mono,
                wall: start.wall + wall,
            };
            let deadline = Deadline::new(start, ttl.validity());
            let elapsed = mono.max(wall);
            let drift = ttl.duration() / 100 + 2 * MS;
            assert_eq!(
                deadline.remaining(now) > Duration::ZERO,
                elapsed + drift < ttl.duration()
            );

            let extension = Ttl::new(Duration::from_millis(3 + random(scale))).unwrap();
            let extended = Deadline::new(now, extension.validity());
            let longer = extension.validity() > deadline.remaining(now);
            assert_eq!(extended.is_later(deadline, now), longer);
            assert!(!deadline.is_later(deadline, now));
        }
    }

    /// Every tally of up to 7 nodes against the rules in words.
    #[test]
    fn verdicts_follow_the_rules_for_every_tally() {
        for nodes in 1..=7 {
            let quorum = majority(nodes);
            for granted in 0..=nodes {
                for refused in 0..=nodes - granted {
                    for failed in 0..=nodes - granted - refused {
                        let mut tally = Tally::default();
                        (0..granted).for_each(|node| tally.grant(node));
                        (granted..granted + refused).for_each(|node| tally.refuse(node));
                        let answered = granted + refused;
                        (answered..answered + failed).for_each(|node| tally.fail(node));
                        let pending = nodes - answered - failed;
                        let case = format!("{granted}+ {refused}- {failed}! of {nodes}");

                        let acquire = tally.verdict(Question::Acquire, nodes);
                        let is = |found: Option<Verdict>, verdict| found == Some(verdict);
                        assert_eq!(is(acquire, Verdict::Yes), granted >= quorum, "{case}");
                        let too_few = failed > nodes - quorum;
                        assert_eq!(is(acquire, Verdict::Unavailable), too_few, "{case}");
                        let no = granted + pending < quorum && answered >= quorum;
                        assert_eq!(is(acquire, Verdict::No), no, "{case}");

                        let held = tally.verdict(Question::Held, nodes);
                        assert_eq!(is(held, Verdict::Yes), granted >= quorum, "{case}");
                        let lost = refused > nodes - quorum;
                        assert_eq!(is(held, Verdict::No), lost, "{case}");
                        if pending == 0 {
                            assert!(acquire.is_some() && held.is_some(), "{case}");
                        }
                        // All are waited for.
                        let answer = tally.verdict(Question::Answer, nodes);
                        let all = match granted >= quorum {
                            true => Verdict::Yes,
                            false => Verdict::Unavailable,
                        };
                        assert_eq!(answer, (pending == 0).then_some(all), "{case}");
                        // Certain means certain: no vote that may still come changes it.
                        for question in [Question::Acquire, Question::Held] {
                            let now = tally.verdict(question, nodes);
                            if now.is_none() || pending == 0 {
                                continue;
                            }
                            for ending in 0..3_usize.pow(u32::try_from(pending).unwrap()) {
                                let mut end = tally;
                                let mut rest = ending;
                                for node in answered + failed..nodes {
                                    match rest % 3 {
                                        0 => end.grant(node),
                                        1 => end.refuse(node),
                                        _ => end.fail(node),
                                    }
                                    rest /= 3;
                                }
                                let late = end.verdict(question, nodes);
                                // Too few answers stays an honest "I do not know", even where a
                                // later answer would have shown.
                                let unknown = Some(Verdict::Unavailable);
                                if now != unknown && late != unknown {
                                    assert_eq!(late, now, "{case}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_node_votes_once() {
        let mut tally = Tally::default();
        tally.fail(0);
        tally.grant(0);
        tally.refuse(0);
        let (none, first) = (NodeSet::EMPTY, NodeSet::first(1));
        assert_eq!(
            (tally.granted, tally.refused, tally.failed),
            (none, none, first)
        );
    }

    #[test]
    fn sets_hold_what_was_added_and_nothing_else() {
        for count in 0..=MAX_NODES {
            let set = NodeSet::first(count);
            assert_eq!(set.len(), count);
            assert_eq!(
                set.iter().collect::<Vec<_>>(),
                (0..count).collect::<Vec<_>>()
            );
            assert_eq!(set.without(set), NodeSet::EMPTY);
        }
        let mut set: NodeSet = [0, 7, 63].into_iter().collect();
        set.remove(7);
        assert!(set.has(0) && !set.has(7) && set.has(63));
        assert_eq!(set.and(NodeSet::first(9)).or(NodeSet::EMPTY).len(), 1);
    }
}
