//! The lanes of a process, each of which is connected to the masters of one shard of each Redis Cluster, and which of them
//! an operation takes (rule R45).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::redirection::Hint;
use crate::protocol::cluster::redirect::{NextHop, Redirect};
use crate::protocol::cluster::redirected_releases::RedirectedRelease;
use crate::protocol::commands::slots::SlotMap;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::endpoint::Endpoint;

/// A lane that an operation might take.
pub(crate) trait CandidateLane {
    /// Whether it is connected to the masters of a slot.
    fn leads_to(&self, slot: u16) -> bool;

    /// Whether it is, or will be once it is connected anew.
    fn has(&self, slot: u16) -> bool;
}

/// The lane to the masters of a slot: one that is connected to them, or else one that will be.
pub(crate) fn best<L: CandidateLane>(
    mut lanes: impl Iterator<Item = L> + Clone,
    slot: u16,
) -> Option<L> {
    let connected = lanes.clone().find(|lane| lane.leads_to(slot));
    connected.or_else(|| lanes.find(|lane| lane.has(slot)))
}

/// The lanes that are needed for none of these slots: they have none of them, or lead where other lanes do.
pub(crate) fn unused<L: CandidateLane + PartialEq>(
    lanes: impl Iterator<Item = L> + Clone,
    slots: &[u16],
) -> Vec<L> {
    let best = slots.iter().filter_map(|slot| best(lanes.clone(), *slot));
    let best: Vec<L> = best.collect();
    lanes.filter(|lane| !best.contains(lane)).collect()
}

/// The lanes over which the end of a lock is written once more (rule R65). `acquired`: those over which the lock was
/// acquired, or set again (rule R11b), if these are not the one that its call began with: what was sent there is undone behind
/// it (rule R7). `now`: the one to the servers that have its slot. `was_sent`: whether the end was sent over a lane already.
pub(crate) fn behind<L: PartialEq>(
    acquired: impl IntoIterator<Item = L>,
    now: Option<L>,
    was_sent: impl Fn(&L) -> bool,
) -> Vec<L> {
    let acquired = acquired.into_iter();
    let acquired = acquired.filter(|_| !mutant(Mutant::ReleaseBesideAcquire));
    let mut lanes = Vec::new();
    for lane in acquired.chain(now) {
        if !was_sent(&lane) && !lanes.contains(&lane) {
            lanes.push(lane);
        }
    }
    lanes
}

/// The lanes of a process, for the operations that follow their keys.
pub(crate) trait LaneSource {
    type Lane;

    /// The [best] lane to the masters of a slot, which is added if there is none.
    fn lane(&mut self, slot: u16) -> Self::Lane;

    /// The lane to a server of a node that owns no slot, but to which this one is migrating. `None`: there cannot be one.
    fn target(&mut self, to: (usize, &Endpoint), slot: u16) -> Option<Self::Lane>;

    /// The map of a node's Cluster.
    fn map(&self, node: usize) -> Option<Arc<SlotMap>>;

    /// The known name of a server of this node that a redirect names like this.
    fn name(&self, node: usize, server: &Endpoint) -> Endpoint;

    /// Whether a lane is connected to another server of this node.
    fn leads_elsewhere(&self, lane: &Self::Lane, node: usize, server: &Endpoint) -> bool;

    /// Has a lane lead to the owner of this slot once a node is connected anew.
    fn lead(&mut self, lane: &Self::Lane, node: usize, slot: u16);

    /// Keeps a lane only for what uses it already.
    fn retire(&mut self, lane: &Self::Lane);

    /// Has the end of a lock sent on without a caller.
    fn queue_debts(&mut self, debts: Vec<(usize, Debt)>);

    /// Has a lane lead to this server of a node, which owns the slot. (The slot that led it may have moved elsewhere.) If it is
    /// connected to another server, it is left to the operations that wait for replies there. Returns whether it is.
    fn leave(&mut self, lane: &Self::Lane, node: usize, slot: u16, server: &Endpoint) -> bool {
        let leaves = self.leads_elsewhere(lane, node, server) && !mutant(Mutant::MovedLaneIsKept);
        match leaves {
            true => self.retire(lane),
            false if mutant(Mutant::LedBySlotBefore) => {}
            false => self.lead(lane, node, slot),
        }
        leaves
    }

    /// The lane to this server of a node, which owns the slot.
    fn led(&mut self, node: usize, slot: u16, server: &Endpoint) -> Self::Lane {
        let mut lane = self.lane(slot);
        while self.leave(&lane, node, slot, server) {
            lane = self.lane(slot);
        }
        lane
    }

    /// The lane to this server of the node, to which this slot is migrating.
    fn lane_to(&mut self, (node, server): (usize, &Endpoint), slot: u16) -> Option<Self::Lane> {
        let map = self.map(node)?;
        let mut shards = map.shards();
        let Some(own) = shards.find(|own| map.master(*own) == Some(server)) else {
            return self.target((node, server), slot);
        };
        Some(self.led(node, own, server))
    }

    /// The lane that an operation takes next, and after which pause. `None`: the answer counts. `is_from`: whether it
    /// came over this lane.
    fn step(
        &mut self,
        redirect: &mut Redirect,
        answer: &Answer,
        is_from: impl Fn(&Self::Lane) -> bool,
        now: Instant,
    ) -> Option<(Self::Lane, Op, Duration)> {
        let slot = redirect.slot();
        // Also if the answer counts: the next try of the call takes the slot's lane again.
        self.leave_others(slot, answer, is_from);
        let next = match redirect.next(answer, now) {
            NextHop::Owner { op, pause } => Some((self.lane(slot), op, pause)),
            NextHop::Importer {
                op,
                pause,
                node,
                to,
            } => {
                let to = self.name(node, &to);
                let lane = self.lane_to((node, &to), slot);
                lane.map(|lane| (lane, op.at(&to), pause))
            }
            NextHop::Nowhere => None,
        };
        let debts = match next {
            Some(_) => Vec::new(),
            None => redirect.debts(answer),
        };
        if !debts.is_empty() {
            self.queue_debts(debts);
        }
        next
    }

    /// A release that no call waits for, and its lane.
    fn lane_of_release(&mut self, release: &RedirectedRelease) -> (Self::Lane, Op) {
        let (node, slot) = (release.node, release.slot());
        let [to, moved] =
            [&release.to, &release.new_owner].map(|to| Some(self.name(node, to.as_ref()?)));
        let op = release.op.clone();
        let importer = to.and_then(|to| Some((self.lane_to((node, &to), slot)?, to)));
        let owner = self.map(node).and_then(|map| map.master(slot).cloned());
        let moved = moved.filter(|moved| owner.as_ref() == Some(moved));
        match (importer, moved) {
            (Some((lane, to)), _) => (lane, op.at(&to)),
            // If no operation may be sent to the server that has redirected the release, no answer retires its lane.
            (None, Some(owner)) => (self.led(node, slot, &owner), op),
            (None, None) => (self.lane(slot), op),
        }
    }

    /// Retires the slot's lane if a server that it is connected to named another one as the slot's owner in an answer:
    /// another slot may have led the lane there, and have moved since then, and no call need use it meanwhile.
    fn leave_others(&mut self, slot: u16, answer: &Answer, is_from: impl Fn(&Self::Lane) -> bool) {
        for (node, redirection) in Redirect::redirections_in(answer, slot) {
            if let Hint::Moved(_, to) = &redirection.hint {
                let lane = self.lane(slot);
                if is_from(&lane) {
                    let to = self.name(node, to);
                    self.leave(&lane, node, slot, &to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::cause::Cause;
    use crate::errors::redirection::Redirection;
    use crate::proof::fixtures::key;
    use crate::protocol::cluster::redirected_releases::{OwedTask, RedirectedReleases};
    use crate::protocol::mutants::set_mutant;
    use crate::values::clock;

    /// Lanes by the servers that they lead to, for maps in which no server has a slot. Redirects name `known` otherwise.
    #[derive(Default)]
    struct NamedLanes {
        /// Whether the owner's lane is connected to another server.
        leads_elsewhere: bool,
        retired: Vec<String>,
        /// The slots that lead lanes from now on.
        led_by: Vec<u16>,
    }

    impl LaneSource for NamedLanes {
        type Lane = String;

        fn lane(&mut self, _: u16) -> String {
            let next = ["", "next "][usize::from(!self.retired.is_empty())];
            format!("{next}owner")
        }

        fn target(&mut self, (_, server): (usize, &Endpoint), _: u16) -> Option<String> {
            Some(server.0.clone())
        }

        fn map(&self, _: usize) -> Option<Arc<SlotMap>> {
            Some(Arc::default())
        }

        fn name(&self, _: usize, server: &Endpoint) -> Endpoint {
            ("known".into(), server.1)
        }

        fn leads_elsewhere(&self, lane: &String, _: usize, _: &Endpoint) -> bool {
            self.leads_elsewhere && lane == "owner"
        }

        fn lead(&mut self, _: &String, _: usize, slot: u16) {
            self.led_by.push(slot);
        }

        fn retire(&mut self, lane: &String) {
            self.retired.push(lane.clone());
        }

        fn queue_debts(&mut self, _: Vec<(usize, Debt)>) {}
    }

    /// Other operations wait for replies on its connections. The slot that had led it may be at another server by now.
    #[test]
    fn a_lane_that_is_connected_to_another_server_is_retired_and_any_other_is_led_by_this_slot() {
        let server = ("h".to_owned(), 1);
        for (leads_elsewhere, mutant, expected, led_by) in [
            (false, None, "owner", &[17][..]),
            (false, Some(Mutant::LedBySlotBefore), "owner", &[]),
            (true, None, "next owner", &[17]),
            (true, Some(Mutant::MovedLaneIsKept), "owner", &[17]),
        ] {
            let mut lanes = NamedLanes {
                leads_elsewhere,
                ..NamedLanes::default()
            };
            set_mutant(mutant);
            let lane = lanes.led(0, 17, &server);
            set_mutant(None);
            assert_eq!(lane, expected, "{leads_elsewhere}, {mutant:?}");
            assert_eq!(lanes.retired.is_empty(), expected == "owner");
            assert_eq!(lanes.led_by, led_by, "{leads_elsewhere}, {mutant:?}");
        }
    }

    /// The lane leads to the server under its known name, and a server under another one would not be taken for it.
    #[test]
    fn a_release_that_no_call_waits_for_names_its_server_as_the_lane_does() {
        let (mut owed, now) = (RedirectedReleases::default(), clock::instant());
        owed.add((0, Debt::release(key(b"a"))), 17, None, now);
        let OwedTask::Send(release) = owed.next(now) else {
            panic!("it is due");
        };
        assert_eq!(NamedLanes::default().lane_of_release(&release).0, "owner");
        let asked = Redirection::of("ASK 17 other:1", &"h:1".into()).unwrap();
        let mut answer = Answer::none(now);
        answer.tally.fail(0);
        let cause = Arc::new(Cause::Redirected(asked.into()));
        answer.remarks.make().causes.push((0, cause));
        owed.answered(release, &answer, |_| false, now);
        let release = match owed.next(now) {
            OwedTask::Wait(due) => owed.next(due),
            task => task,
        };
        let OwedTask::Send(release) = release else {
            panic!("it is sent on");
        };
        let (lane, op) = NamedLanes::default().lane_of_release(&release);
        let named = op.named.map(|named| named.server.clone());
        assert_eq!((&*lane, named), ("known", Some(("known".into(), 1))));
    }

    #[test]
    fn the_end_of_a_lock_is_written_over_each_lane_that_may_have_its_acquire() {
        let behind = |acquired: &[u8], now, sent: &[u8]| {
            let acquired = acquired.iter().copied();
            behind(acquired, now, |lane| sent.contains(lane))
        };
        for (acquired, now, sent, expected) in [
            (&[][..], Some(1), &[1][..], &[][..]),
            (&[], Some(2), &[1], &[2]),
            (&[2], Some(1), &[1], &[2]),
            (&[2], Some(2), &[1], &[2]),
            (&[2], Some(3), &[1], &[2, 3]),
            (&[2], Some(3), &[1, 3], &[2]),
            (&[2], None, &[1], &[2]),
            (&[2], Some(2), &[1, 2], &[]),
            (&[2, 3, 2], Some(3), &[1], &[2, 3]),
            (&[1, 4], Some(3), &[1], &[4, 3]),
        ] {
            assert_eq!(
                behind(acquired, now, sent),
                expected,
                "{acquired:?}, {now:?}, {sent:?}"
            );
        }
        set_mutant(Some(Mutant::ReleaseBesideAcquire));
        let broken = behind(&[2], Some(1), &[1]);
        set_mutant(None);
        assert_eq!(broken, []);
    }
}
