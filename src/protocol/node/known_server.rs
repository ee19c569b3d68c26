//! The server behind a node's address, which outlives connections: when it votes.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::clock_watch::{ClockReading, ClockWatch};
use crate::protocol::node::guard::{Guard, PreviousServer, ServerStart, VotesFrom};
use crate::protocol::node::handshake::Handshake;
use crate::protocol::node::standing::{SitsOut, Standing, Why};
use crate::protocol::node::witness::Identity;

/// For so long after a reading of a clock other lanes are not asked for a later one (rule R66): a bound rises by 2 ms more
/// than the clock in that time.
const IDLE: Duration = Duration::from_secs(1);

/// The most servers of a node of which lanes that have ended leave a record: as many as a large Cluster has.
const MOST_ENDED: usize = 1000;

/// The server behind a node's address, which outlives connections.
#[derive(Clone, Default)]
pub(crate) struct KnownServer {
    /// How long the server gives no votes after its start.
    guard: Option<Guard>,
    /// The last record of this server, or of its predecessor.
    previous: Option<PreviousServer>,
    /// The identity at that time, with the restart guard.
    identity: Option<Identity>,
    pub(super) clock: ClockWatch,
    /// The last step of its clock, if it has not been reported.
    pub(super) new_step: Option<SitsOut>,
    /// Whether the server was replaced since the node was last connected.
    pub(super) replaced: bool,
    /// Whether the quarantine has been reported.
    pub(super) quarantine_reported: bool,
}

/// The server that a connection leads to.
#[derive(Clone, Copy)]
pub(crate) enum Connected<'a> {
    /// The one at the node's address, whichever that is.
    AtAddress,
    /// The one with this `run_id`, of a Redis Cluster.
    Server(Option<&'a str>),
}

impl<'a> Connected<'a> {
    pub(crate) fn by(handshake: &'a Handshake) -> Connected<'a> {
        match handshake.routed {
            false => Connected::AtAddress,
            true => Connected::Server(handshake.run_id.as_deref()),
        }
    }

    /// Whether this record is of another server.
    fn is_other(self, own: &PreviousServer) -> bool {
        match self {
            Connected::AtAddress => false,
            Connected::Server(run_id) => own.is_other(run_id),
        }
    }
}

impl KnownServer {
    pub(super) fn new(guard: Option<Guard>) -> KnownServer {
        KnownServer {
            guard,
            ..KnownServer::default()
        }
    }

    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// When it was last heard. `None`: it is not known yet.
    pub(crate) fn heard_at(&self) -> Option<Instant> {
        self.previous.as_ref().map(|previous| previous.heard)
    }

    /// The `run_id` of the server if its clock was read, and not lately.
    pub(crate) fn idle(&self, now: Instant) -> Option<String> {
        let read = self.clock.read?;
        let is_idle = now.saturating_duration_since(read) > IDLE;
        let previous = self.previous.as_ref().filter(|_| is_idle);
        previous.and_then(|one| one.run_id.clone())
    }

    /// Whether this is about a connected server, or about one that had the same address: in a Redis Cluster the keys go to
    /// another server while both go on.
    pub(crate) fn precedes(&self, server: Connected<'_>) -> bool {
        let previous = self.previous.as_ref();
        previous.is_some_and(|one| match server {
            Connected::AtAddress => true,
            Connected::Server(run_id) => run_id.is_some() && one.run_id.as_deref() == run_id,
        })
    }

    /// Takes over what another connection of this program has learnt of the server, or of the one before (rule R66).
    /// `connected`: the server that the connection leads to now.
    pub(super) fn learn(&mut self, other: &KnownServer, connected: Connected<'_>) {
        let Some(theirs) = other.previous.as_ref() else {
            return;
        };
        if mutant(Mutant::LaneKnowsNoServer) {
            return;
        }
        match &mut self.previous {
            Some(own) if !own.is_other(theirs.run_id.as_deref()) => {
                own.heard = own.heard.max(theirs.heard);
                if !mutant(Mutant::LaneReadsAlone) {
                    self.clock.learn(&other.clock);
                }
            }
            // At one address, the other one may have been connected to a server before this one was, or to the next one
            // since.
            own if own
                .as_ref()
                .is_none_or(|own| connected.is_other(own) || own.heard < theirs.heard) =>
            {
                *self = KnownServer {
                    guard: self.guard,
                    clock: self.clock.replaced_by(&other.clock),
                    new_step: None,
                    replaced: self.replaced || own.is_some(),
                    quarantine_reported: self.quarantine_reported,
                    ..other.clone()
                };
            }
            _ => {}
        }
    }

    /// The latest of these records, with the latest reading of the clock.
    pub(crate) fn latest(all: &[KnownServer]) -> Option<KnownServer> {
        let mut latest = all.iter().max_by_key(|one| one.heard_at())?.clone();
        let at = Connected::AtAddress;
        all.iter().for_each(|one| latest.learn(one, at));
        Some(latest)
    }

    /// Adds the record of a lane that ends to those of others. One is kept of each server.
    pub(crate) fn outlive_lane(self, others: &mut Vec<KnownServer>) {
        let Some(own) = self
            .previous
            .as_ref()
            .filter(|_| !mutant(Mutant::RecordEndsWithLane))
        else {
            return;
        };
        let of_same = |one: &&mut KnownServer| {
            let previous = one.previous.as_ref();
            previous.is_some_and(|one| one.run_id == own.run_id)
        };
        match others.iter_mut().find(of_same) {
            Some(other) => other.learn(&self, Connected::AtAddress),
            None => others.push(self),
        }
        others.sort_by_key(|one| Reverse(one.heard_at()));
        others.truncate(MOST_ENDED);
    }

    /// Notes that a new connection leads to the server.
    pub(super) fn connected(&mut self, handshake: &Handshake) {
        let run_id = handshake.run_id.as_deref();
        let other = self.previous.as_ref();
        let other = other.is_some_and(|previous| previous.is_other(run_id));
        if mutant(Mutant::StepForgotten) {
            self.clock = ClockWatch::default();
        } else if other && !mutant(Mutant::BoundAcrossServers) {
            // A clock is its server's, also where slots have moved to that (rule R58). The step counts on: a slot may come
            // back to the server that it has left.
            self.clock.forget_readings();
        }
        if let Some(reading) = handshake.witness.as_ref().and_then(|one| one.clock) {
            self.read_clock(reading);
        }
        // If slots move to another server, their keys go along. (That server may have been promoted, which its witness
        // shows.)
        let previous = self.previous.as_ref().filter(|_| !handshake.routed);
        let other = other && !handshake.routed;
        self.replaced |= other;
        self.quarantine_reported &= !other;
        if let Some((uptime, at)) = handshake.uptime {
            let witness = handshake.witness.as_ref();
            let start = ServerStart {
                run_id,
                uptime,
                at,
                witness: witness
                    .filter(|witness| !witness.calm)
                    .map(|witness| witness.age),
            };
            let guard = self.guard.filter(|_| !mutant(Mutant::VoteAfterRestart));
            let votes = guard.map(|guard| guard.votes(previous, &start));
            let votes = votes.map(|votes| {
                self.known(handshake)
                    .map_or(votes, |known| votes.sooner(known))
            });
            self.previous = Some(PreviousServer {
                run_id: handshake.run_id.clone(),
                heard: at,
                votes: votes.unwrap_or(VotesFrom { held: at, all: at }),
            });
            self.identity = witness.map(|witness| witness.identity.clone());
        }
    }

    /// The voting times from before the witness's slot moved to another server, so that this server has a younger
    /// witness.
    ///
    /// They still hold: the server has the identity that it had then, so it was neither restarted nor promoted since;
    /// and when the new witness existed, the server had not been flushed and had evicted nothing since its start. So it
    /// has all locks that it granted since its identity began, and those that it may have forgotten before are over by
    /// those times.
    fn known(&self, handshake: &Handshake) -> Option<&VotesFrom> {
        let witness = handshake.witness.as_ref().filter(|_| handshake.routed)?;
        let same = self.identity.as_ref() == Some(&witness.identity) && witness.lossless;
        self.previous
            .as_ref()
            .filter(|_| same)
            .map(|one| &one.votes)
    }

    /// Notes a reading of the server's clock (rules R57–R59).
    pub(super) fn read_clock(&mut self, reading: ClockReading) {
        if let Some(guard) = self.guard {
            self.new_step = self.clock.saw(reading, guard.longest()).or(self.new_step);
        }
    }

    #[inline]
    pub(super) fn heard(&mut self, now: Instant) {
        if let Some(previous) = &mut self.previous {
            previous.heard = now;
        }
    }

    /// Which of the server's answers count now.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        match self.guard {
            None => Standing::Votes,
            Some(_) => Standing::of(self.forgets().into_iter().chain(self.clock.step(now)), now),
        }
    }

    /// The time in which the server may have forgotten locks.
    fn forgets(&self) -> Option<SitsOut> {
        let votes = self.previous.as_ref()?.votes;
        let evicts = self.identity.as_ref().is_some_and(Identity::has_evicted);
        let why = if evicts { Why::Evicts } else { Why::Forgets };
        Some(SitsOut { votes, why })
    }
}

/// A clock, as a program has seen it.
#[cfg(test)]
pub(crate) struct Watched {
    pub(crate) run_id: String,
    /// The most that the clock shows now.
    pub(crate) latest: Duration,
    /// When it was last asked for.
    pub(crate) read: Instant,
}

#[cfg(test)]
impl KnownServer {
    pub(super) fn watched(&self, now: Instant) -> Option<Watched> {
        let (latest, read) = self.clock.watched(now)?;
        Some(Watched {
            run_id: self.previous.as_ref()?.run_id.clone()?,
            latest,
            read,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::node::witness::{Evidence, Witness};
    use crate::values::clock;

    /// Connections do not matter to a clock. Another server has another clock.
    #[test]
    fn a_clock_that_is_set_between_two_connections_is_noticed_unless_it_is_another_server_s() {
        let now = clock::instant();
        for (run_id, routed, ahead, expected) in [
            (Some("r"), false, 12, Some(12)),
            (Some("r"), true, 12, Some(12)),
            (None, false, 12, Some(12)),
            (Some("s"), false, 12, None),
            (Some("s"), true, 12, None),
            (Some("r"), false, 0, None),
        ] {
            let connected = |run_id: Option<&str>, seconds| Handshake {
                run_id: run_id.map(Into::into),
                uptime: Some((Duration::from_secs(1000), now)),
                witness: Some(Witness {
                    evidence: Evidence::Value(Vec::new()),
                    identity: Identity::new(Some("r"), Some("h"), 0).unwrap(),
                    age: Duration::from_secs(1000),
                    calm: false,
                    lossless: true,
                    clock: Some(ClockReading {
                        time_of_day: Duration::from_secs(seconds),
                        sent: now,
                        received: now,
                    }),
                }),
                routed,
                ..Handshake::default()
            };
            let mut server = KnownServer::new(Some(Guard::new(Duration::from_secs(30), 1)));
            server.connected(&connected(Some("r"), 100));
            server.connected(&connected(run_id, 100 + ahead));
            let found = |server: &KnownServer| server.clock.step(now).map(|step| step.why);
            let expected = expected.map(|by| Why::ClockSet(Duration::from_secs(by)));
            assert_eq!(found(&server), expected, "{run_id:?}, {routed}, {ahead}");
            // A slot that leaves, and comes back.
            for run_id in ["other", "r"] {
                server.connected(&connected(Some(run_id), 100 + ahead));
            }
            assert_eq!(found(&server), expected, "{run_id:?}, {routed}, {ahead}");
        }
    }

    /// In a Redis Cluster a witness moves with its slot.
    #[test]
    fn a_promoted_server_that_has_lost_nothing_votes_on_when_its_witness_has_moved() {
        let now = clock::instant();
        let connected = |history: &str, age: u64, lossless: bool, routed: bool| Handshake {
            uptime: Some((Duration::from_secs(1000), now)),
            witness: Some(Witness {
                evidence: Evidence::Value(Vec::new()),
                identity: Identity::new(Some("r"), Some(history), 0).unwrap(),
                age: Duration::from_secs(age),
                calm: false,
                lossless,
                clock: None,
            }),
            routed,
            ..Handshake::default()
        };
        for (history, lossless, routed, expected) in [
            ("h", true, true, [0, 15]),
            ("h", false, true, [5, 35]),
            ("g", true, true, [5, 35]),
            ("h", true, false, [5, 35]),
        ] {
            let guard = Some(Guard::new(Duration::from_secs(30), 1));
            let mut server = KnownServer::new(guard);
            // The server may have forgotten locks until 15 seconds from now.
            server.connected(&connected("h", 20, false, routed));
            server.connected(&connected(history, 0, lossless, routed));
            let votes = server.forgets().unwrap().votes;
            let left = [votes.held, votes.all].map(|at| (at - now).as_secs());
            assert_eq!(left, expected, "{history}, {lossless}, {routed}");
        }
    }

    /// Bob's first lane has used a server. Its clock is set, or another server takes its place, before his second lane is
    /// connected there.
    #[test]
    fn another_lane_s_record_of_a_server_counts() {
        let start = clock::instant();
        let at = |seconds| start + Duration::from_secs(seconds);
        let connected = |run_id: &str, seconds: u64, ahead: u64, routed| Handshake {
            run_id: Some(run_id.into()),
            uptime: Some((Duration::from_secs(1000), at(seconds))),
            witness: Some(Witness {
                evidence: Evidence::Value(Vec::new()),
                identity: Identity::new(Some(run_id), Some("h"), 0).unwrap(),
                age: Duration::from_secs(1000),
                calm: true,
                lossless: true,
                clock: Some(ClockReading {
                    time_of_day: Duration::from_secs(seconds + ahead),
                    sent: at(seconds),
                    received: at(seconds),
                }),
            }),
            routed,
            ..Handshake::default()
        };
        let new = || KnownServer::new(Some(Guard::new(Duration::from_secs(30), 3)));
        let votes = |server: &KnownServer, seconds| server.standing(at(seconds)) == Standing::Votes;
        // The first lane notices the change before the second lane is connected, or does not; the second one is new, or
        // has been idle.
        for (run_id, ahead, routed, expected) in [
            ("r", 0, false, true),
            ("r", 12, false, false),
            ("r", 12, true, false),
            ("s", 0, false, false),
            // Its keys have moved to another server, of which nothing is known.
            ("s", 12, true, true),
        ] {
            for (notices, idle, mutated) in [
                (false, false, None),
                (true, false, None),
                (false, true, None),
                (true, true, None),
                (false, false, Some(Mutant::LaneKnowsNoServer)),
            ] {
                let (mut first, mut second) = (new(), new());
                if idle {
                    second.connected(&connected("r", 0, 0, routed));
                }
                first.connected(&connected("r", 1, 0, routed));
                if notices {
                    first.connected(&connected(run_id, 2, ahead, routed));
                }
                let handshake = connected(run_id, 3, ahead, routed);
                let case = format!("{run_id} {ahead} {routed} {notices} {idle} {mutated:?}");
                crate::protocol::mutants::set_mutant(mutated);
                let leads_to = Connected::by(&handshake);
                if first.precedes(leads_to) {
                    second.learn(&first, leads_to);
                }
                second.connected(&handshake);
                crate::protocol::mutants::set_mutant(None);
                assert_eq!(votes(&second, 4), expected || mutated.is_some(), "{case}");
                assert!(votes(&second, 40), "{case}");
            }
        }
        // The first lane has last heard "s" before the second one last heard "r", from which the slot moves to "s". Whichever
        // lane has noticed a step, it counts.
        for (ahead_r, ahead_s) in [(0, 12), (12, 0)] {
            let (mut first, mut second) = (new(), new());
            first.connected(&connected("s", 1, 0, true));
            first.connected(&connected("s", 2, ahead_s, true));
            second.connected(&connected("r", 3, 0, true));
            second.connected(&connected("r", 4, ahead_r, true));
            let handshake = connected("s", 5, ahead_s, true);
            let leads_to = Connected::by(&handshake);
            assert!(first.precedes(leads_to) && !second.precedes(leads_to));
            second.learn(&first, leads_to);
            second.connected(&handshake);
            assert!(!votes(&second, 6) && votes(&second, 40), "{ahead_r}");
        }
    }

    /// Bob's second lane is idle, or has ended, while his first one goes on; then the clock is set forward by a second.
    #[test]
    fn a_clock_is_measured_from_the_latest_reading_of_any_lane() {
        let start = clock::instant();
        let at = |seconds| start + Duration::from_secs(seconds);
        let reading = |seconds: u64, ahead: u64| ClockReading {
            time_of_day: Duration::from_secs(seconds + ahead),
            sent: at(seconds),
            received: at(seconds),
        };
        let lane = |seconds, ahead| {
            let mut server = KnownServer::new(Some(Guard::new(Duration::from_secs(30), 3)));
            server.previous = Some(PreviousServer {
                run_id: Some("r".into()),
                heard: at(seconds),
                votes: VotesFrom {
                    held: start,
                    all: start,
                },
            });
            server.read_clock(reading(0, 0));
            server.read_clock(reading(seconds, ahead));
            server
        };
        // By the idle lane's last reading, an hour ago, a clock may have gained 7 s by its rate.
        let hour = 3600;
        let set = crate::protocol::mutants::set_mutant;
        for (mutated, expected) in [(None, true), (Some(Mutant::LaneReadsAlone), false)] {
            let (first, mut second) = (lane(hour, 0), lane(0, 0));
            set(mutated);
            let asks = second.idle(at(hour)).unwrap();
            let leads_to = Connected::Server(Some(&asks));
            assert!(second.idle(at(1)).is_none() && first.precedes(leads_to));
            second.learn(&first, leads_to);
            second.read_clock(reading(hour + 1, 1));
            assert_eq!(second.clock.step(at(hour + 1)).is_some(), expected);
            set(None);
        }
        // A step that the first one has noticed is not forgotten, whichever of them was used last.
        let (mut first, mut second) = (lane(10, 0), lane(10, 0));
        first.read_clock(reading(20, 1));
        second.clock.read = Some(at(21));
        second.learn(&first, Connected::Server(Some("r")));
        assert!(second.clock.step(at(21)).is_some());
        assert!(second.new_step.is_none(), "it is reported once");
        // The records of lanes that have ended: one of each server, and the later reading.
        for (mutated, expected) in [(None, true), (Some(Mutant::RecordEndsWithLane), false)] {
            let mut ended = Vec::new();
            set(mutated);
            lane(hour, 0).outlive_lane(&mut ended);
            lane(0, 0).outlive_lane(&mut ended);
            set(None);
            assert_eq!(ended.len(), usize::from(expected));
            ended.push(lane(1, 0));
            let mut third = KnownServer::latest(&ended).unwrap();
            third.read_clock(reading(hour + 1, 1));
            assert_eq!(third.clock.step(at(hour + 1)).is_some(), expected);
        }
    }

    /// Locks that a server granted until another took its place end after the last reply that any lane had.
    #[test]
    fn the_last_reply_to_any_lane_counts() {
        let now = clock::instant();
        let guard = Some(Guard::new(Duration::from_secs(30), 3));
        let server = |heard: Instant| KnownServer {
            previous: Some(PreviousServer {
                run_id: Some("r".into()),
                heard,
                votes: VotesFrom {
                    held: now,
                    all: now,
                },
            }),
            ..KnownServer::new(guard)
        };
        let later = now + Duration::from_secs(9);
        for (own, theirs) in [(now, later), (later, now)] {
            let mut own = server(own);
            own.learn(&server(theirs), Connected::AtAddress);
            assert_eq!(own.heard_at(), Some(later));
        }
    }
}
