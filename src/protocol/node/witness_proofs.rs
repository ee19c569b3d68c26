//! Answers that count only if the server that gave them has lost nothing (rules R41, R42).
//!
//! The last acquire of a write is followed by a GET of the [witness]: a server that has
//! lost it may have lost locks, too. The last command whose answer counts is followed by a *look*: INFO replication
//! shows that the server was not promoted since it was connected, and INFO stats that it has evicted nothing. A small
//! data set is synchronized in two milliseconds, and a policy may be set at any time, so a look that was sent earlier
//! shows nothing, however recent. One look is enough for a write. Behind all that the server's clock is read: it may have
//! been set forward (rule R56).

use std::collections::VecDeque;
use std::time::Instant;

use crate::errors::cause::Cause;
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::vote::Proof;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::witness::{self, Evidence, Witness, changed, has_evicted};
use crate::protocol::node::witness_look;

/// The fact that one reply shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The witness is there.
    Witness,
    /// The server is still a master, with the same history.
    Master,
    /// The server has evicted nothing since it was connected.
    Evictions,
    /// The server's clock was read.
    Clock,
}

/// The facts to ask for, in this order.
type Parts = [Option<Part>; 4];

/// A reply, the command that it answers, and when that was sent.
pub(crate) type Answered<P> = (Reply, P, Instant);

/// The proofs that a connection has received from its server. `P`: the command that a reply answers.
pub(crate) struct Proofs<P> {
    /// `None`: no proof is needed.
    witness: Option<Witness>,
    /// The proof that the current write needs.
    needed: Proof,
    /// The replies held back, in order of arrival, each with the facts that are still to be shown.
    held: VecDeque<(Answered<P>, Parts)>,
}

impl<P> Default for Proofs<P> {
    fn default() -> Proofs<P> {
        Proofs::new(None)
    }
}

impl<P> Proofs<P> {
    pub(crate) fn new(witness: Option<Witness>) -> Proofs<P> {
        Proofs {
            witness,
            needed: Proof::None,
            held: VecDeque::new(),
        }
    }

    /// Whether some answers count only with proofs.
    #[inline]
    pub(crate) fn are_asked_for(&self) -> bool {
        self.witness.is_some()
    }

    /// Whether the server has no place for a witness.
    pub(crate) fn lack_witness(&self) -> bool {
        let witness = self.witness.as_ref();
        witness.is_some_and(|witness| witness.evidence == Evidence::NoLosses)
    }

    /// The lack of a clock that may be read.
    pub(crate) fn lack(&self) -> Option<Lack> {
        let witness = self.witness.as_ref();
        let lacks = witness.is_some_and(|witness| witness.clock.is_none());
        lacks.then_some(Lack::Clock)
    }

    fn parts(&self, proof: Proof) -> Parts {
        let get = proof == Proof::Witness && !mutant(Mutant::NoWitness);
        let look = proof != Proof::None && !mutant(Mutant::NoLooks);
        let evictions = proof != Proof::None && !mutant(Mutant::EvictionsAtConnection);
        let clock = proof != Proof::None
            && self.witness.as_ref().is_some_and(|one| one.clock.is_some())
            && !mutant(Mutant::LookBeforeAcquire);
        [
            get.then_some(Part::Witness),
            look.then_some(Part::Master),
            evictions.then_some(Part::Evictions),
            clock.then_some(Part::Clock),
        ]
    }

    // ---- sending

    /// Notes that the write contains a command whose answer needs this proof.
    pub(crate) fn needs(&mut self, proof: Proof) {
        if self.witness.is_some() {
            self.needed = self.needed.max(proof);
        }
    }

    /// Whether facts must be asked for behind the commands.
    #[inline]
    pub(crate) fn are_needed(&self) -> bool {
        self.needed != Proof::None
    }

    /// Takes the facts to ask for behind the commands.
    pub(crate) fn behind(&mut self) -> Parts {
        let needed = std::mem::take(&mut self.needed);
        self.parts(needed)
    }

    // ---- receiving

    /// Receives a reply that needs this proof. Returns it if it already counts.
    pub(crate) fn received(&mut self, answered: Answered<P>, needs: Proof) -> Option<Answered<P>> {
        let lacks = self.parts(needs);
        let counts = self.witness.is_none() || lacks == [None; 4];
        if counts || matches!(answered.0, Reply::Error(_)) {
            return Some(answered);
        }
        self.held.push_back((answered, lacks));
        None
    }

    /// Notes the fact that a reply shows. An error means that the connection is finished.
    pub(crate) fn shown(&mut self, part: Part, value: &[u8]) -> Result<(), Cause> {
        let Some(witness) = &self.witness else {
            return Ok(());
        };
        match part {
            Part::Witness if !witness.evidence.is_shown_by(value) => return Err(changed()),
            Part::Master if !witness.identity.is_still(value) => return Err(changed()),
            Part::Evictions if !witness.identity.keeps_keys(value) => return Err(has_evicted()),
            _ => {}
        }
        let lacking = self.held.iter_mut().flat_map(|(_, lacks)| lacks);
        for one in lacking.filter(|one| **one == Some(part)) {
            *one = None;
        }
        Ok(())
    }

    /// The next answer for which everything is shown.
    pub(crate) fn next(&mut self) -> Option<Answered<P>> {
        let (_, lacks) = self.held.front()?;
        let shown = *lacks == [None; 4];
        let next = shown.then(|| self.held.pop_front());
        next.flatten().map(|(answered, _)| answered)
    }

    /// Whether the reply to a command that `is_it` accepts is held back.
    pub(crate) fn hold(&self, is_it: impl Fn(&P) -> bool) -> bool {
        self.held.iter().any(|((_, command, _), _)| is_it(command))
    }

    /// The commands whose answers no longer count.
    pub(crate) fn into_held(self) -> impl Iterator<Item = P> {
        self.held.into_iter().map(|((_, pending, _), _)| pending)
    }
}

/// The cause if the server refuses the command for `part`, or cannot show it now.
pub(crate) fn refused(text: &str, part: Part) -> Cause {
    match (witness::refused(text), part) {
        (Cause::NoWitness(_), Part::Master) => Cause::NoInfo(witness_look::REPLICATION),
        (Cause::NoWitness(_), Part::Evictions) => Cause::NoInfo(witness_look::STATS),
        // The next connection does without.
        (Cause::NoWitness(text), Part::Clock) => Cause::Closed(text),
        (cause, _) => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::mutants::set_mutant;
    use crate::protocol::node::clock_watch::ClockReading;
    use crate::protocol::node::witness::Identity;

    fn proofs() -> Proofs<u8> {
        reading_clock(None)
    }

    fn reading_clock(clock: Option<ClockReading>) -> Proofs<u8> {
        Proofs::new(Some(Witness {
            evidence: Evidence::Value(b"r h 7 1".to_vec()),
            identity: Identity::new(Some("r"), Some("h"), 7, 0).unwrap(),
            age: std::time::Duration::ZERO,
            calm: true,
            lossless: true,
            clock,
        }))
    }

    /// Writes a command that needs this proof, and returns the facts to ask for behind it.
    fn written(proofs: &mut Proofs<u8>, proof: Proof) -> Vec<Part> {
        proofs.needs(proof);
        proofs.behind().into_iter().flatten().collect()
    }

    fn show(proofs: &mut Proofs<u8>, part: Part, text: &str) -> bool {
        proofs.shown(part, text.as_bytes()).is_ok()
    }

    const SAME: &str = "role:master\r\nmaster_replid:h\r\n";
    const NO_MORE: &str = "evicted_keys:7\r\nevicted_clients:8\r\n";

    #[test]
    fn a_grant_counts_when_the_witness_and_the_same_server_are_shown_behind_it() {
        let (mut proofs, now) = (proofs(), crate::values::clock::instant());
        let all = [Part::Witness, Part::Master, Part::Evictions];
        assert_eq!(written(&mut proofs, Proof::Witness), all);
        let granted = |one| (Reply::Okay, one, now);
        assert!(proofs.received(granted(1), Proof::Witness).is_none());
        assert!(show(&mut proofs, Part::Witness, "r h 7 1") && proofs.next().is_none());
        assert!(show(&mut proofs, Part::Master, SAME) && proofs.next().is_none());
        assert!(show(&mut proofs, Part::Evictions, NO_MORE));
        assert_eq!(proofs.next(), Some(granted(1)));
        // Also if the next command follows at once.
        assert_eq!(written(&mut proofs, Proof::Witness), all);
        assert!(proofs.received(granted(2), Proof::Witness).is_none());
        assert!(!show(&mut proofs, Part::Witness, "r h 7 2"));
        assert_eq!(proofs.into_held().collect::<Vec<_>>(), [2]);
    }

    /// Since the last look the server may have become a replica and a master again, or have evicted keys.
    #[test]
    fn an_extension_counts_when_a_look_behind_it_shows_the_same_master() {
        let now = crate::values::clock::instant();
        for (part, other) in [
            (Part::Master, "role:master\r\nmaster_replid:g\r\n"),
            (Part::Master, "role:slave\r\nmaster_replid:h\r\n"),
            (Part::Evictions, "evicted_keys:8\r\n"),
            (Part::Evictions, "evicted_keys:0\r\n"),
            (Part::Evictions, "evicted_clients:7\r\n"),
        ] {
            let mut proofs = proofs();
            let looks = [Part::Master, Part::Evictions];
            assert_eq!(written(&mut proofs, Proof::Look), looks);
            let extended = || (Reply::Int(1), 1, now);
            assert!(proofs.received(extended(), Proof::Look).is_none());
            assert!(show(&mut proofs, Part::Master, SAME));
            assert!(show(&mut proofs, Part::Evictions, NO_MORE));
            assert_eq!(proofs.next(), Some(extended()));
            assert!(proofs.received(extended(), Proof::Look).is_none());
            assert!(!show(&mut proofs, part, other) && proofs.next().is_none());
        }
    }

    /// A clock that was set forward between the look and the acquire would not be noticed.
    #[test]
    fn a_clock_that_may_be_read_is_read_last_and_before_anything_counts() {
        let now = crate::values::clock::instant();
        let asked = |proof| {
            let mut proofs = reading_clock(Some(ClockReading {
                time_of_day: std::time::Duration::ZERO,
                sent: now,
                received: now,
            }));
            let asked = written(&mut proofs, proof);
            let held = proofs.received((Reply::Okay, 1, now), proof).is_none();
            for part in asked.iter().filter(|part| **part != Part::Clock) {
                let shown = match part {
                    Part::Witness => "r h 7 1",
                    Part::Master => SAME,
                    _ => NO_MORE,
                };
                assert!(show(&mut proofs, *part, shown));
            }
            let lacks_clock = held && proofs.next().is_none();
            let counts = show(&mut proofs, Part::Clock, "") && proofs.next().is_some();
            assert!(!lacks_clock || counts);
            (asked.last() == Some(&Part::Clock), lacks_clock)
        };
        assert_eq!(asked(Proof::Witness), (true, true));
        assert_eq!(asked(Proof::Look), (true, true));
        set_mutant(Some(Mutant::LookBeforeAcquire));
        assert_eq!(asked(Proof::Witness), (false, false));
        set_mutant(None);
        assert_eq!(proofs().lack(), Some(Lack::Clock));
        assert_eq!(Proofs::<u8>::new(None).lack(), None);
    }

    #[test]
    fn errors_and_what_needs_nothing_count_as_they_are() {
        let (mut proofs, now) = (proofs(), crate::values::clock::instant());
        let counts = |proofs: &mut Proofs<u8>, reply, needs| {
            let answered = (reply, 1, now);
            proofs.received(answered, needs).is_some()
        };
        let refused = Reply::Error("OOM".into());
        assert!(counts(&mut proofs, refused, Proof::Witness));
        assert!(counts(&mut proofs, Reply::Int(1), Proof::None));
        let mut unguarded = Proofs::new(None);
        assert_eq!(written(&mut unguarded, Proof::Witness), []);
        assert!(counts(&mut unguarded, Reply::Okay, Proof::Witness));
    }
}
