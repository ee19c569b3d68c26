//! Answers that count only if the server that gave them has lost nothing (rules R41, R42).
//!
//! Behind the last acquire of a write goes a GET of the [witness](crate::protocol::witness): a server that has lost it may
//! have lost locks, too. And behind the last command whose answer counts goes a *look*, INFO replication: it shows that the
//! server was not promoted since it was connected. A small data set is synchronized in two milliseconds, so a look that was
//! sent before shows nothing, however recent it is. One costs the server about a microsecond, and a write needs only one.

use std::collections::VecDeque;
use std::time::Instant;

use crate::error::Cause;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::resp::Reply;
use crate::protocol::witness::{self, Evidence, Witness, changed};

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

    /// What is to be asked for behind the commands.
    pub(crate) fn behind(&mut self) -> [Option<Proof>; 2] {
        let needed = std::mem::take(&mut self.needed);
        let get = needed == Proof::Witness && !mutant(Mutant::NoWitness);
        let look = needed != Proof::None && !mutant(Mutant::NoLooks);
        [get.then_some(Proof::Witness), look.then_some(Proof::Look)]
    }

    // ---- receiving

    /// A reply has come that needs this. It is given back if it counts as it is.
    pub(crate) fn received(&mut self, answered: Answered<P>, needs: Proof) -> Option<Answered<P>> {
        let counts = self.witness.is_none() || needs == Proof::None;
        if counts || matches!(answered.0, Reply::Error(_)) {
            return Some(answered);
        }
        let lacks = [
            !mutant(Mutant::NoLooks),
            needs == Proof::Witness && !mutant(Mutant::NoWitness),
        ];
        if !lacks.contains(&true) {
            return Some(answered);
        }
        self.held.push_back((answered, lacks));
        None
    }

    /// A reply shows something, or the connection is finished.
    pub(crate) fn shown(&mut self, proof: Proof, value: &[u8]) -> Result<(), Cause> {
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

    fn proofs() -> Proofs<u8> {
        Proofs::new(Some(Witness {
            evidence: Evidence::Value(b"r h 1".to_vec()),
            identity: Identity::new(Some("r"), Some("h")).unwrap(),
            age: std::time::Duration::ZERO,
            calm: true,
            lossless: true,
        }))
    }

    /// Writes what needs this, and returns what goes behind it.
    fn written(proofs: &mut Proofs<u8>, proof: Proof) -> Vec<Proof> {
        proofs.needs(proof);
        proofs.behind().into_iter().flatten().collect()
    }

    fn show(proofs: &mut Proofs<u8>, proof: Proof, text: &str) -> bool {
        proofs.shown(proof, text.as_bytes()).is_ok()
    }

    const SAME: &str = "role:master\r\nmaster_replid:h\r\n";

    #[test]
    fn a_grant_counts_when_the_witness_and_the_same_server_are_shown_behind_it() {
        let (mut proofs, now) = (proofs(), crate::clock::instant());
        assert_eq!(
            written(&mut proofs, Proof::Witness),
            [Proof::Witness, Proof::Look]
        );
        let granted = |one| (Reply::Okay, one, now);
        assert!(proofs.received(granted(1), Proof::Witness).is_none());
        assert!(show(&mut proofs, Proof::Witness, "r h 1") && proofs.next().is_none());
        assert!(show(&mut proofs, Proof::Look, SAME));
        assert_eq!(proofs.next(), Some(granted(1)));
        // However soon the next one follows.
        assert_eq!(
            written(&mut proofs, Proof::Witness),
            [Proof::Witness, Proof::Look]
        );
        assert!(proofs.received(granted(2), Proof::Witness).is_none());
        assert!(!show(&mut proofs, Proof::Witness, "r h 2"));
        assert_eq!(proofs.into_held().collect::<Vec<_>>(), [2]);
    }

    /// It may have become a replica and a master again since the last one.
    #[test]
    fn an_extension_counts_when_a_look_behind_it_shows_the_same_master() {
        let now = crate::clock::instant();
        for other in [
            "role:master\r\nmaster_replid:g\r\n",
            "role:slave\r\nmaster_replid:h\r\n",
        ] {
            let mut proofs = proofs();
            assert_eq!(written(&mut proofs, Proof::Look), [Proof::Look]);
            let extended = || (Reply::Int(1), 1, now);
            assert!(proofs.received(extended(), Proof::Look).is_none());
            assert!(show(&mut proofs, Proof::Look, SAME));
            assert_eq!(proofs.next(), Some(extended()));
            assert!(proofs.received(extended(), Proof::Look).is_none());
            assert!(!show(&mut proofs, Proof::Look, other) && proofs.next().is_none());
        }
    }

    #[test]
    fn errors_and_what_needs_nothing_count_as_they_are() {
        let (mut proofs, now) = (proofs(), crate::clock::instant());
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
