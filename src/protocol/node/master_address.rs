//! Whether a connection still leads to the node's master (rule R43).
//!
//! If a directory names the master, another server may have become the master long before the previous one learns of it
//! and stops granting locks. So acquires, extensions and questions for fencing tokens are sent only while the directory has
//! confirmed the address lately. (Answers that come later count.)

use std::sync::Arc;
use std::time::Instant;

use crate::errors::cause::Cause;
use crate::protocol::discovery::found_master::{FoundMaster, MasterConfirmation};

/// The state of a connection's address.
#[derive(Debug, Default)]
pub(crate) struct MasterAddress {
    /// `None`: no directory has named the address, and none confirms it.
    found: Option<FoundMaster>,
    /// When the directory was last asked, and whether its answer is pending.
    asked: Option<Instant>,
    asking: bool,
    /// Set if the node has another master.
    replaced: Option<Cause>,
    /// Why the directory's last answers do not decide whether the master is there.
    doubt: Option<Arc<Cause>>,
}

impl MasterAddress {
    pub(crate) fn new(found: Option<FoundMaster>) -> MasterAddress {
        MasterAddress {
            found,
            ..MasterAddress::default()
        }
    }

    #[inline]
    pub(crate) fn is_from_directory(&self) -> bool {
        self.found.is_some()
    }

    /// Whether the node has another master, as far as its directory has answered.
    #[inline]
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.is_some()
    }

    /// Whether the last answer is too old.
    pub(crate) fn is_unconfirmed(&self, now: Instant) -> bool {
        self.found.as_ref().is_some_and(|found| !found.counts(now))
    }

    /// Why the address is not confirmed any longer, if the directory's last answers do not decide it.
    pub(crate) fn doubt(&self, now: Instant) -> Option<&Arc<Cause>> {
        self.doubt.as_ref().filter(|_| self.is_unconfirmed(now))
    }

    /// Whether to ask the directory, if the node is in use.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let Some(found) = &self.found else {
            return false;
        };
        let times = found.times;
        let paused = self.asked.is_none_or(|asked| now >= asked + times.pause);
        let is_old = !found.is_confirmed || now >= found.at + times.ask;
        is_old && paused && !self.asking && self.replaced.is_none()
    }

    /// Notes that the directory is asked now. Returns the address to ask about, which counts as confirmed if it was a
    /// short time before.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<FoundMaster> {
        (self.asked, self.asking) = (Some(now), true);
        self.found.clone().map(|found| found.being_asked(now))
    }

    /// Notes the directory's answer to the question of that time. An answer older than the last one means nothing: it
    /// may belong to another thread's question.
    pub(crate) fn answered(&mut self, asked: Instant, answer: MasterConfirmation) {
        // The question may have been about the previous connection.
        if self.asked != Some(asked) {
            return;
        }
        self.asking = false;
        let (answer, doubt) = match answer {
            Ok(answer) => (Some(answer), None),
            Err(doubt) => (None, doubt.map(Arc::new)),
        };
        self.doubt = doubt;
        let (Some(answer), Some(found)) = (answer, &mut self.found) else {
            return;
        };
        let is_newest = !found.is_confirmed || answer.at >= found.at;
        match answer.result {
            Ok(()) if is_newest => (found.at, found.is_confirmed) = (answer.at, true),
            Err(cause) if is_newest => self.replaced = Some(cause),
            Ok(()) | Err(_) => {}
        }
    }

    /// Takes the reason to end the connection, if there is one.
    pub(crate) fn take_replaced(&mut self) -> Option<Cause> {
        self.replaced.take()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::discovery::found_master::{DirectoryAnswer, DirectoryTimes};

    const HOLDS: Duration = DirectoryTimes::REAL.holds;
    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn address(at: Instant) -> MasterAddress {
        let found = FoundMaster::new("m at h:1".into(), at, true, DirectoryTimes::REAL);
        MasterAddress::new(Some(found))
    }

    fn yes(at: Instant) -> MasterConfirmation {
        Ok(DirectoryAnswer { result: Ok(()), at })
    }

    fn moved(at: Instant) -> MasterConfirmation {
        let answer = Err(Cause::Closed("moved".into()));
        Ok(DirectoryAnswer { result: answer, at })
    }

    #[test]
    fn the_directory_is_asked_after_one_second_and_believed_for_two() {
        let zero = crate::values::clock::instant();
        let mut address = address(zero);
        assert!(!address.is_due(zero + 999 * MS) && address.is_due(zero + S));
        let found = address.ask(zero + S).unwrap();
        assert_eq!((&*found.address, found.at), ("m at h:1", zero + S));
        assert!(!address.is_due(zero + 2 * S), "it is being asked");
        assert!(!address.is_unconfirmed(zero + 2 * S));
        assert!(address.is_unconfirmed(zero + 2 * S + MS));
        // The answer is as old as the question.
        address.answered(zero + S, yes(zero + S));
        assert!(!address.is_unconfirmed(zero + 3 * S));
        assert!(address.is_unconfirmed(zero + 3 * S + MS));
        assert!(address.is_due(zero + 3 * S));
    }

    #[test]
    fn a_question_that_could_not_be_asked_is_asked_again_after_a_pause() {
        let zero = crate::values::clock::instant();
        let mut address = address(zero);
        address.ask(zero + S);
        address.answered(zero + S, Err(None));
        assert!(!address.is_due(zero + S + 99 * MS));
        assert!(address.is_due(zero + S + 100 * MS));
        assert!(address.is_unconfirmed(zero + 3 * S));
    }

    #[test]
    fn an_address_that_nothing_confirms_shows_why_until_it_is_confirmed() {
        let zero = crate::values::clock::instant();
        let mut address = address(zero);
        address.ask(zero + S);
        let doubt = Cause::NoMaster("they disagree".into(), false);
        address.answered(zero + S, Err(Some(doubt)));
        assert!(!address.is_replaced());
        assert!(address.doubt(zero + HOLDS).is_none(), "it still counts");
        let doubt = address.doubt(zero + HOLDS + MS).unwrap().to_string();
        assert!(doubt.contains("they disagree"), "{doubt}");
        address.ask(zero + 3 * S);
        address.answered(zero + 3 * S, yes(zero + 3 * S));
        assert!(address.doubt(zero + 9 * S).is_none());
    }

    /// However early the machine was started: no time is computed that the clock cannot have.
    #[test]
    fn a_master_that_few_name_counts_from_the_first_confirmation_on() {
        let zero = crate::values::clock::instant();
        let few = FoundMaster::new("m at h:1".into(), zero, false, DirectoryTimes::REAL);
        let mut address = MasterAddress::new(Some(few));
        assert!(address.is_unconfirmed(zero) && address.is_due(zero));
        assert!(!address.ask(zero).unwrap().is_confirmed);
        address.answered(zero, Err(None));
        assert!(address.is_unconfirmed(zero) && address.is_due(zero + 100 * MS));
        address.ask(zero + S);
        // Another thread had asked before the master was named.
        address.answered(zero + S, yes(zero));
        assert!(!address.is_unconfirmed(zero + HOLDS));
        assert!(address.is_unconfirmed(zero + HOLDS + MS));
    }

    /// Another thread may have asked.
    #[test]
    fn an_answer_is_no_newer_than_its_question() {
        let zero = crate::values::clock::instant();
        let mut address = address(zero + S);
        for (asked, answer, newest) in [
            (2 * S, yes(zero + 1500 * MS), 1500 * MS),
            (3 * S, yes(zero), 1500 * MS),
            (4 * S, moved(zero + 1499 * MS), 1500 * MS),
            (5 * S, yes(zero + 5 * S), 5 * S),
        ] {
            address.ask(zero + asked);
            address.answered(zero + asked, answer);
            assert!(!address.is_unconfirmed(zero + newest + HOLDS));
            assert!(address.is_unconfirmed(zero + newest + HOLDS + MS));
            assert!(address.take_replaced().is_none());
        }
    }

    #[test]
    fn another_address_ends_the_connection_and_no_other_one() {
        let zero = crate::values::clock::instant();
        let mut old = address(zero);
        old.ask(zero + S);
        old.answered(zero + S, moved(zero + S));
        assert!(!old.is_due(zero + 9 * S));
        assert!(old.take_replaced().is_some() && old.take_replaced().is_none());
        let mut new = address(zero + S);
        new.answered(zero + S, moved(zero + S));
        assert!(new.take_replaced().is_none());
    }

    #[test]
    fn without_a_directory_nothing_is_asked_and_all_is_believed() {
        let zero = crate::values::clock::instant();
        let mut address = MasterAddress::new(None);
        let later = zero + 3600 * S;
        assert!(!address.is_due(later) && !address.is_unconfirmed(later));
        assert!(address.ask(later).is_none());
    }
}
