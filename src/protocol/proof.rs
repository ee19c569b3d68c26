//! Answers that count only if the server that gave them has lost nothing (rules R41, R42).
//!
//! Behind the last acquire of a write goes a GET of the [witness](crate::protocol::witness): a server that has lost it may
//! have lost locks, too. A *look*, INFO replication, shows that the server was not promoted since it was connected. It is
//! sent behind the commands, too, and need not be sent with each: an answer also counts that is received soon after a look
//! was sent, sooner than a master can become a replica and a master again. A far node's answers come later than that, so a
//! look goes with each of its writes: one that is sent when the answer has come costs another round trip.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::error::Cause;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::resp::Reply;
use crate::protocol::witness::{self, Evidence, Witness, changed};

/// No server becomes a replica, takes over another one's data and becomes a master again in this time.
const FRESH: Duration = Duration::from_millis(10);
/// A look goes with what is written when the last one is older.
const RENEWED: Duration = Duration::from_millis(5);

/// What must be shown before an answer counts; and what a reply shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proof {
    #[default]
    None,
    /// That the server is the same.
    Look,
    /// And that it has the witness.
    Witness,
}

/// A reply with what it answers, and when that was sent.
pub(crate) type Answered<P> = (Reply, P, Instant);

/// What a connection has shown of its server. `P`: what a reply answers.
pub(crate) struct Proofs<P> {
    /// `None`: nothing needs to be shown.
    witness: Option<Witness>,
    /// When the last look was sent.
    sent: Option<Instant>,
    /// When the last one was sent that has shown the same server.
    looked: Option<Instant>,
    /// Answers have waited for too long.
    overdue: bool,
    /// The last answer took too long for the looks that are sent now and then. Nothing is known of the first one.
    far: bool,
    /// The looks that are to be answered.
    looks: usize,
    /// What is being written needs.
    needed: Proof,
    /// In the order in which they came; what is still to be shown for each.
    held: VecDeque<(Answered<P>, [bool; 2])>,
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
            sent: None,
            looked: None,
            overdue: false,
            far: true,
            looks: 0,
            needed: Proof::None,
            held: VecDeque::new(),
        }
    }

    /// Whether the server has no place for a witness.
    pub(crate) fn lack_witness(&self) -> bool {
        let witness = self.witness.as_ref();
        witness.is_some_and(|witness| witness.evidence == Evidence::NoLosses)
    }

    // ---- sending

    /// A command is written whose answer needs this.
    pub(crate) fn needs(&mut self, proof: Proof) {
        if self.witness.is_some() {
            self.needed = self.needed.max(proof);
        }
    }

    /// Whether a look is to be sent without anything else.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue
    }

    /// What is to be asked for behind the commands.
    pub(crate) fn behind(&mut self, now: Instant) -> [Option<Proof>; 2] {
        let needed = std::mem::take(&mut self.needed);
        let get = needed == Proof::Witness && !mutant(Mutant::NoWitness);
        let old = self.far || self.sent.is_none_or(|sent| now > sent + RENEWED);
        let due = needed != Proof::None && old && !mutant(Mutant::NoLooks);
        let look = std::mem::take(&mut self.overdue) || due;
        if look {
            (self.sent, self.looks) = (Some(now), self.looks + 1);
        }
        [get.then_some(Proof::Witness), look.then_some(Proof::Look)]
    }

    // ---- receiving

    /// Whether a reply that needs this may have to wait.
    pub(crate) fn concern(&self, needs: Proof) -> bool {
        self.witness.is_some() && needs != Proof::None
    }

    /// A reply has come that needs this. It is given back if it counts as it is.
    pub(crate) fn received(
        &mut self,
        answered: Answered<P>,
        needs: Proof,
        now: Instant,
    ) -> Option<Answered<P>> {
        let (reply, _, sent) = &answered;
        if self.witness.is_none() || needs == Proof::None || matches!(reply, Reply::Error(_)) {
            return Some(answered);
        }
        self.far = now > *sent + (FRESH - RENEWED);
        let since = match mutant(Mutant::LooksCountWhenSent) {
            true => *sent,
            false => now,
        };
        let fresh = self.looked.is_some_and(|looked| since <= looked + FRESH);
        let look = !fresh && !mutant(Mutant::NoLooks);
        let witness = needs == Proof::Witness && !mutant(Mutant::NoWitness);
        // A look whose answer is to come is behind it.
        self.overdue |= look && self.looks == 0;
        if !look && !witness {
            return Some(answered);
        }
        self.held.push_back((answered, [look, witness]));
        None
    }

    /// A reply shows something, or the connection is finished.
    pub(crate) fn shown(&mut self, proof: Proof, value: &[u8], sent: Instant) -> Result<(), Cause> {
        let Some(witness) = &self.witness else {
            return Ok(());
        };
        let same = match proof {
            Proof::None => true,
            Proof::Look => witness.identity.is_still(value),
            Proof::Witness => witness.evidence.is_shown_by(value),
        };
        if !same {
            return Err(changed());
        }
        if proof == Proof::Look {
            (self.looked, self.looks) = (Some(sent), self.looks.saturating_sub(1));
        }
        for (_, lacks) in &mut self.held {
            match proof {
                Proof::Look => lacks[0] = false,
                Proof::Witness => lacks[1] = false,
                Proof::None => {}
            }
        }
        Ok(())
    }

    /// An answer for which all is shown.
    pub(crate) fn next(&mut self) -> Option<Answered<P>> {
        let (_, lacks) = self.held.front()?;
        let lacks = lacks.contains(&true);
        let next = (!lacks).then(|| self.held.pop_front());
        next.flatten().map(|(answered, _)| answered)
    }

    /// What was answered, and does not count any more.
    pub(crate) fn into_held(self) -> impl Iterator<Item = P> {
        self.held.into_iter().map(|((_, pending, _), _)| pending)
    }
}

/// The server refuses what was to show this, or cannot show it now.
pub(crate) fn refused(text: &str, proof: Proof) -> Cause {
    match witness::refused(text) {
        Cause::NoWitness(_) if proof == Proof::Look => Cause::NoInfo,
        cause => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::witness::Identity;

    const MS: Duration = Duration::from_millis(1);

    /// Of a node that is near.
    fn proofs() -> Proofs<u8> {
        let mut proofs = Proofs::new(Some(Witness {
            evidence: Evidence::Value(b"r h 1".to_vec()),
            identity: Identity::new(Some("r"), Some("h")).unwrap(),
            age: MS,
            calm: true,
            lossless: true,
        }));
        proofs.far = false;
        proofs
    }

    /// Writes what needs this, and returns what goes behind it.
    fn written(proofs: &mut Proofs<u8>, proof: Proof, at: Instant) -> Vec<Proof> {
        proofs.needs(proof);
        proofs.behind(at).into_iter().flatten().collect()
    }

    fn show(proofs: &mut Proofs<u8>, proof: Proof, text: &str, at: Instant) -> bool {
        proofs.shown(proof, text.as_bytes(), at).is_ok()
    }

    const SAME: &str = "role:master\r\nmaster_replid:h\r\n";

    #[test]
    fn a_grant_counts_when_the_witness_and_the_same_server_are_shown_behind_it() {
        let (mut proofs, now) = (proofs(), crate::clock::instant());
        let behind = written(&mut proofs, Proof::Witness, now);
        assert_eq!(behind, [Proof::Witness, Proof::Look]);
        let granted = (Reply::Okay, 1, now);
        assert!(proofs.received(granted, Proof::Witness, now).is_none());
        assert!(show(&mut proofs, Proof::Witness, "r h 1", now) && proofs.next().is_none());
        assert!(show(&mut proofs, Proof::Look, SAME, now));
        assert_eq!(proofs.next(), Some((Reply::Okay, 1, now)));
        // Soon after it no other look is needed, but the witness.
        assert_eq!(written(&mut proofs, Proof::Look, now + 5 * MS), []);
        let extended = (Reply::Int(1), 2, now + 5 * MS);
        assert!(
            proofs
                .received(extended, Proof::Look, now + 10 * MS)
                .is_some()
        );
        assert_eq!(
            written(&mut proofs, Proof::Witness, now + 5 * MS),
            [Proof::Witness]
        );
        let granted = (Reply::Okay, 3, now + 5 * MS);
        assert!(
            proofs
                .received(granted, Proof::Witness, now + 6 * MS)
                .is_none()
        );
        assert!(!show(&mut proofs, Proof::Witness, "r h 2", now));
        assert_eq!(proofs.into_held().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn what_is_answered_late_waits_for_a_look_of_its_own() {
        let (mut proofs, now) = (proofs(), crate::clock::instant());
        written(&mut proofs, Proof::Look, now);
        assert!(show(&mut proofs, Proof::Look, SAME, now));
        assert_eq!(written(&mut proofs, Proof::Look, now + 5 * MS), []);
        let late = (Reply::Int(1), 1, now + 5 * MS);
        assert!(proofs.received(late, Proof::Look, now + 11 * MS).is_none());
        assert!(proofs.is_overdue());
        assert_eq!(
            written(&mut proofs, Proof::None, now + 11 * MS),
            [Proof::Look]
        );
        assert!(!proofs.is_overdue());
        for other in [
            "role:master\r\nmaster_replid:g\r\n",
            "role:slave\r\nmaster_replid:h\r\n",
        ] {
            assert!(!show(&mut proofs, Proof::Look, other, now + 11 * MS));
        }
        assert!(proofs.next().is_none());
        assert!(show(&mut proofs, Proof::Look, SAME, now + 11 * MS) && proofs.next().is_some());
    }

    /// Or answers would cost a second round trip.
    #[test]
    fn a_look_goes_with_each_write_to_a_far_node() {
        let (mut proofs, now) = (proofs(), crate::clock::instant());
        let written = |proofs: &mut Proofs<u8>, at| written(proofs, Proof::Look, now + at * MS);
        let answered = |proofs: &mut Proofs<u8>, sent, at| {
            let (sent, at) = (now + sent * MS, now + at * MS);
            proofs.received((Reply::Int(1), 1, sent), Proof::Look, at);
            assert!(!proofs.is_overdue());
        };
        let show = |proofs: &mut Proofs<u8>, sent| show(proofs, Proof::Look, SAME, now + sent * MS);
        // How far it is is not known yet.
        proofs.far = true;
        assert_eq!(written(&mut proofs, 0), [Proof::Look]);
        assert_eq!(written(&mut proofs, 2), [Proof::Look]);
        for sent in [0, 2] {
            answered(&mut proofs, sent, sent + 30);
            assert!(show(&mut proofs, sent) && proofs.next().is_some());
        }
        assert_eq!(written(&mut proofs, 33), [Proof::Look]);
        answered(&mut proofs, 33, 36);
        assert!(show(&mut proofs, 33));
        // It is near.
        assert_eq!(written(&mut proofs, 37), []);
        answered(&mut proofs, 37, 43);
        assert_eq!(written(&mut proofs, 44), [Proof::Look]);
    }

    #[test]
    fn errors_and_what_needs_nothing_count_as_they_are() {
        let (mut proofs, now) = (proofs(), crate::clock::instant());
        let refused = (Reply::Error("OOM".into()), 1, now);
        assert!(proofs.received(refused, Proof::Witness, now).is_some());
        assert!(
            proofs
                .received((Reply::Int(1), 2, now), Proof::None, now)
                .is_some()
        );
        let mut unguarded = Proofs::new(None);
        assert_eq!(written(&mut unguarded, Proof::Witness, now), []);
        assert!(
            unguarded
                .received((Reply::Okay, 3, now), Proof::Witness, now)
                .is_some()
        );
    }
}
