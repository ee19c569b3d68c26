//! Operations that follow their keys from server to server of a Redis Cluster, as [`Redirect`] and
//! [`RedirectedReleases`](crate::protocol::cluster::redirected_releases::RedirectedReleases) decide.

use std::sync::Arc;

use crate::errors::redirection::{Hint, Redirection};
use crate::net::cluster::lanes::{Lane, Lanes, LockLanes, at_once};
use crate::net::discovery::place::Place;
use crate::net::driver::driver::Driver;
use crate::net::driver::leadership::Caller;
use crate::net::driver::renewal_threads::{Round, StillKept, run_kept};
use crate::net::driver::timetable::DueRenewals;
use crate::protocol::cluster::lane_choice;
use crate::protocol::cluster::redirect::Redirect;
use crate::protocol::cluster::redirected_releases::{OwedTask, RedirectedRelease};
use crate::protocol::commands::action::Action;
use crate::protocol::node::debt::{Debt, Redirected};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::arithmetic::drift;
use crate::values::clock;
use crate::values::sync::{Mutex, PoisonError, guarded, lock, start_thread, thread, wait_until};

impl Lanes {
    /// Carries out an operation of a call or a lock, and right behind the end of a lock, in the same write, `next`, which
    /// another thread waits for.
    pub(crate) fn run(
        &self,
        of_lock: &LockLanes,
        op: Op,
        next: Option<Box<(Op, Arc<Caller>)>>,
    ) -> Answer {
        if !op.action.ends() {
            return self.send(op).0;
        }
        let answer = of_lock.began.driver.run_before(op.clone(), next);
        self.end_lock(of_lock, &op, answer)
    }

    /// Carries out an operation that ends no lock. Returns the lane, too, that it was sent over at first. If an acquire is sent
    /// on, another lane has acquired the lock. The end of the lock need not go behind it there (rule R7): only the acquire on one
    /// node is sent on, and once that has granted it, nothing of it is on its way.
    pub(crate) fn send(&self, op: Op) -> (Answer, Option<Arc<Lane>>) {
        let lane = self.lane_of_resource(&op.key.resource);
        self.refills(&op, &lane);
        let answer = lane.driver.run(op.clone());
        let (answer, _) = self.follow_redirects(&lane.driver, op, answer);
        (answer, Some(lane))
    }

    /// Renews locks that were acquired over `own`. The renewals and repairs of each go to the servers that have its slot
    /// now: those that had it before may answer nothing, and where the other nodes are enough, no redirect is followed.
    pub(super) fn renew(&self, own: &Driver, round: Round) -> DueRenewals {
        let rounds = round.by(|resource| {
            let (slot, places) = (self.slot(resource), own.executor().places());
            let is_there = places.iter().all(|place| place.leads_to(slot));
            (!is_there).then(|| self.lane(slot))
        });
        let next = Mutex::new(DueRenewals::new());
        at_once("redlock-renewal", rounds, |(lane, round)| {
            let driver = lane.as_ref().map_or(own, |lane| &*lane.driver);
            let run_all = |ops, kept: &StillKept<'_>| self.run_all(driver, ops, kept);
            let refills = |op: &Op| lane.iter().for_each(|lane| self.refills(op, lane));
            let again = round.renew(driver, run_all, refills);
            lock(&next).extend(again);
            true
        });
        next.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out many renewals, which begin on `lane`.
    fn run_all(&self, lane: &Driver, ops: Vec<Op>, kept: &StillKept<'_>) -> Vec<Answer> {
        let answers = run_kept(lane, ops.iter().cloned(), kept);
        self.follow_all(lane, ops, answers, kept)
    }

    /// The answer to an operation once it was sent on to its key's servers, and the lane of the last ones, if it was.
    /// `from`: the lane over which `answer` came.
    fn follow_redirects(
        &self,
        from: &Driver,
        op: Op,
        answer: Answer,
    ) -> (Answer, Option<Arc<Lane>>) {
        if !self.is_redirected(&op, &answer) {
            return (answer, None);
        }
        let redirect = self.redirect(from, op, &answer);
        self.go_on(from, redirect, answer, |lane, op| Some(lane.run(op)))
    }

    /// Notes the lane of an operation that sets a lock again.
    fn refills(&self, op: &Op, lane: &Arc<Lane>) {
        if let Action::Repair(ttl) = op.action {
            let until = clock::instant() + ttl.duration() + drift(ttl.duration());
            lock(&self.refilled).add(op.key.token, lane.clone(), until);
        }
    }

    /// Sends the end of a lock on, and writes it over all lanes that may have its acquire: it must not overtake that there
    /// (rule R7). `answer`: of the servers of the lane with which the call began.
    fn end_lock(&self, of_lock: &LockLanes, op: &Op, answer: Answer) -> Answer {
        let LockLanes { began, acquired } = of_lock;
        let refilled = lock(&self.refilled).take(&op.key.token);
        let (answer, last) = self.follow_redirects(&began.driver, op.clone(), answer);
        // Once the program has ended, its connections are not made anew for that.
        let is_closed = lock(&self.leftovers).releases.is_closed();
        let now = (!is_closed).then(|| self.lane_of_resource(&op.key.resource));
        let was_sent = |lane: &Arc<Lane>| lane == began || last.as_ref() == Some(lane);
        let acquired = std::iter::once(acquired.clone()).chain(refilled);
        for lane in lane_choice::behind(acquired, now, was_sent) {
            if let Some(op) = Redirect::behind(op) {
                lane.driver.run(op);
            }
        }
        answer
    }

    /// The answers to many renewals, as [`follow_redirects`](Lanes::follow_redirects) returns them. None is sent on once its
    /// lock's holder has ended it: it would come behind what ends the lock, which goes another way.
    fn follow_all(
        &self,
        from: &Driver,
        ops: Vec<Op>,
        mut answers: Vec<Answer>,
        kept: &StillKept<'_>,
    ) -> Vec<Answer> {
        let submit = |at: usize, lane: &Driver, op: Op| {
            let _lease = kept(at)?;
            lane.submit([op]).pop()
        };
        let mut steps = Vec::new();
        // All redirects are recorded before anything is sent on.
        let all = ops.into_iter().zip(&answers).enumerate();
        let redirects: Vec<(usize, Redirect)> = all
            .filter(|(_, (op, answer))| self.is_redirected(op, answer))
            .map(|(at, (op, answer))| {
                let redirect = self.redirect(from, op, answer);
                self.learn_of(from, &redirect, answer);
                (at, redirect)
            })
            .collect();
        for (at, mut redirect) in redirects {
            let answer = answers.get(at);
            let step = answer.and_then(|answer| self.step(from, &mut redirect, answer));
            steps.extend(step.map(|(lane, op)| (at, redirect, lane, op)));
        }
        while let Some((.., lane, _)) = steps.first() {
            let lane = lane.clone();
            let is_there = |(.., other, _): &(_, _, Arc<Lane>, _)| Arc::ptr_eq(other, &lane);
            let (together, rest): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_there);
            steps = rest;
            let again = |(at, redirect, _, op)| {
                let caller = submit(at, &lane.driver, op)?;
                Some(((at, redirect), caller))
            };
            let (sent, callers): (Vec<_>, Vec<_>) = together.into_iter().filter_map(again).unzip();
            let answered = lane.driver.collect(&callers);
            for ((at, redirect), answer) in sent.into_iter().zip(answered) {
                let again = |lane: &Driver, op| {
                    let caller = submit(at, lane, op)?;
                    lane.collect(&[caller]).pop()
                };
                if let Some(old) = answers.get_mut(at) {
                    *old = self.go_on(&lane.driver, redirect, answer, again).0;
                }
            }
        }
        answers
    }

    /// Sends on debts that no operation waits for, and that servers at these places have redirected.
    pub(super) fn send_on(&self, from: &[Place], redirected: Vec<Redirected>) {
        for one in &redirected {
            let slot = self.slot(&one.debt.key.resource);
            let redirections = std::iter::once((one.node, &*one.answer));
            self.learn(
                from,
                slot,
                redirections.filter(|(_, answer)| answer.concerns(slot)),
            );
        }
        let all = redirected.into_iter();
        self.queue_releases(all.map(|one| ((one.node, one.debt), Some(one.answer))));
    }

    /// Sends on the debts of locks that were given up, each with its node, in another thread.
    pub(super) fn send_debts(&self, releases: Vec<(usize, Debt)>) {
        self.queue_releases(releases.into_iter().map(|release| (release, None)));
    }

    /// `releases`: each with its node, and with the answer of the server that has redirected it, if one has.
    fn queue_releases(
        &self,
        releases: impl Iterator<Item = ((usize, Debt), Option<Box<Redirection>>)>,
    ) {
        let owed = &mut lock(&self.leftovers).releases;
        for (release, answer) in releases {
            let slot = self.slot(&release.1.key.resource);
            owed.add(release, slot, answer.as_deref(), clock::instant());
        }
        self.leftovers_changed.notify_all();
        let Some(lanes) = self.this().filter(|_| owed.starts()) else {
            return;
        };
        if start_thread("redlock-moved", move || lanes.send_releases()).is_err() {
            // The next release starts one.
            owed.deserted();
        }
    }

    /// Whether a server reported that another one has the operation's key.
    fn is_redirected(&self, op: &Op, answer: &Answer) -> bool {
        !answer.remarks.causes.is_empty()
            && Redirect::redirections_in(answer, self.slot(&op.key.resource))
                .next()
                .is_some()
    }

    /// An operation that servers of this lane have redirected.
    fn redirect(&self, from: &Driver, op: Op, answer: &Answer) -> Redirect {
        let slot = self.slot(&op.key.resource);
        let nodes = from.executor().places().len();
        let until = clock::instant() + 2 * self.node_timeout();
        let time = (answer.begun, until);
        Redirect::waited(op, slot, nodes, time)
    }

    /// Sends an operation on until the answer counts. Returns the lane, too, that it was sent over last. `run`: carries it
    /// out, unless it is not wanted any longer.
    fn go_on(
        &self,
        from: &Driver,
        mut redirect: Redirect,
        mut answer: Answer,
        run: impl Fn(&Driver, Op) -> Option<Answer>,
    ) -> (Answer, Option<Arc<Lane>>) {
        // The lane to the servers that answered. `None`: `from`.
        let mut lane: Option<Arc<Lane>> = None;
        loop {
            let driver = lane.as_ref().map_or(from, |lane| &*lane.driver);
            self.learn_of(driver, &redirect, &answer);
            let Some((to, op)) = self.step(driver, &mut redirect, &answer) else {
                break;
            };
            let Some(next) = run(&to.driver, op) else {
                break;
            };
            answer = next;
            lane = Some(to);
        }
        redirect.complete(&mut answer);
        (answer, lane)
    }

    /// Records where servers of this lane reported an operation's slot to be.
    fn learn_of(&self, from: &Driver, redirect: &Redirect, answer: &Answer) {
        let slot = redirect.slot();
        self.learn(
            from.executor().places(),
            slot,
            Redirect::redirections_in(answer, slot),
        );
    }

    /// Records where servers reported the slot to be. The maps are asked for if that is not in them.
    fn learn<'a>(
        &self,
        places: &[Place],
        slot: u16,
        redirections: impl Iterator<Item = (usize, &'a Redirection)>,
    ) {
        let (mut has_moved, mut is_redirected) = (false, false);
        for (node, redirection) in redirections {
            if let (Hint::Moved(_, to), Some(place)) = (&redirection.hint, places.get(node)) {
                has_moved |= place.slot_moved(slot, &redirection.from, to);
                is_redirected = true;
            }
            // The map has the owner's address.
            has_moved |= matches!(redirection.hint, Hint::Nameless(_));
        }
        if has_moved || is_redirected && self.has_question_left() {
            self.slot_moved(slot);
        }
    }

    /// The lane that an operation goes to next, after a pause. `None`: the answer counts.
    fn step(
        &self,
        from: &Driver,
        redirect: &mut Redirect,
        answer: &Answer,
    ) -> Option<(Arc<Lane>, Op)> {
        let is_from = |lane: &Arc<Lane>| std::ptr::eq(&*lane.driver, from);
        let (lane, op, pause) = lane_choice::LaneSource::step(
            &mut { self },
            redirect,
            answer,
            is_from,
            clock::instant(),
        )?;
        thread::sleep(pause);
        Some((lane, op))
    }

    /// Sends releases on until none is left.
    fn send_releases(&self) {
        let mut leftovers = lock(&self.leftovers);
        loop {
            leftovers = match leftovers.releases.next(clock::instant()) {
                OwedTask::Send(release) => {
                    drop(leftovers);
                    // A panic leaves this release to the ttl of its key, and no other.
                    guarded(|| self.send_release(release));
                    lock(&self.leftovers)
                }
                OwedTask::Wait(until) => wait_until(&self.leftovers_changed, leftovers, until),
                OwedTask::End => return self.leftovers_changed.notify_all(),
            };
        }
    }

    /// Sends a release to the server that has the key.
    pub(super) fn send_release(&self, release: RedirectedRelease) {
        let slot = release.slot();
        let (lane, op) = lane_choice::LaneSource::lane_of_release(&mut { self }, &release);
        let answer = lane.driver.run(op);
        let places = lane.places();
        self.learn(places, slot, Redirect::redirections_in(&answer, slot));
        lane_choice::LaneSource::leave_others(&mut { self }, slot, &answer, |other| *other == lane);
        let place = places.get(release.node);
        let is_there =
            |other: &RedirectedRelease| place.is_some_and(|place| place.has(other.slot()));
        let now = clock::instant();
        let mut leftovers = lock(&self.leftovers);
        leftovers.releases.answered(release, &answer, is_there, now);
    }
}
