//! The server behind a node's address, which outlives connections: when it votes.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::clock_watch::{ClockReading, ClockWatch};
use crate::protocol::node::restart_guard::{PreviousServer, RestartGuard, ServerStart, VotesFrom};
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::standing::{SitsOut, Standing, Why};
use crate::protocol::node::witness::Identity;

/// The age that a reading of a clock may have before other lanes are asked for a later one (rule R66). In that time a bound
/// rises by 2 ms more than the clock.
const IDLE: Duration = Duration::from_secs(1);

/// The most servers of a node of which lanes that have ended leave a record: as many as a large Cluster has.
const MOST_ENDED: usize = 1000;

/// The server behind a node's address, which outlives connections.
#[derive(Clone, Default)]
pub(crate) struct KnownServer {
    /// How long the server gives no votes after its start.
    guard: Option<RestartGuard>,
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
    pub(crate) fn by(properties: &'a ServerProperties) -> Connected<'a> {
        match properties.routed {
            false => Connected::AtAddress,
            true => Connected::Server(properties.run_id.as_deref()),
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
    pub(super) fn new(guard: Option<RestartGuard>) -> KnownServer {
        KnownServer {
            guard,
            ..KnownServer::default()
        }
    }

    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// When it last answered. `None`: it is not known yet.
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

    /// Whether both records are of one server.
    pub(super) fn is_same(&self, other: &KnownServer) -> bool {
        let both = self.previous.as_ref().zip(other.previous.as_ref());
        both.is_some_and(|(own, theirs)| !own.is_other(theirs.run_id.as_deref()))
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
    pub(super) fn connected(&mut self, properties: &ServerProperties) {
        let run_id = properties.run_id.as_deref();
        let other = self.previous.as_ref();
        let other = other.is_some_and(|previous| previous.is_other(run_id));
        if mutant(Mutant::StepForgotten) {
            self.clock = ClockWatch::default();
        } else if other && !mutant(Mutant::BoundAcrossServers) {
            // A clock is its server's, also where slots have moved to that (rule R58). The step counts on: a slot may come
            // back to the server that it has left.
            self.clock.forget_readings();
        }
        if let Some(reading) = properties.witness.as_ref().and_then(|one| one.clock) {
            self.read_clock(reading);
        }
        // If slots move to another server, their keys go along. (That server may have been promoted, which its witness
        // shows.)
        let previous = self.previous.as_ref().filter(|_| !properties.routed);
        let other = other && !properties.routed;
        self.replaced |= other;
        self.quarantine_reported &= !other;
        if let Some((uptime, at)) = properties.uptime {
            let witness = properties.witness.as_ref();
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
                self.known(properties)
                    .map_or(votes, |known| votes.sooner(known))
            });
            self.previous = Some(PreviousServer {
                run_id: properties.run_id.clone(),
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
    fn known(&self, properties: &ServerProperties) -> Option<&VotesFrom> {
        let witness = properties.witness.as_ref().filter(|_| properties.routed)?;
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
mod tests;
