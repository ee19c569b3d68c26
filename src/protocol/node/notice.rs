//! Notices that are logged once: servers that refuse releases, and keys that exist but do not hold a lock.
//!
//! Nothing else would show either: a dropped lock waits for no answer, and a denied caller learns only that the lock is
//! held.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::errors::cause::Cause;
use crate::errors::server_error::{Meaning, code};
use crate::protocol::commands::action::{Action, Key};
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::lock_info::NotALock;
use crate::protocol::commands::vote::{Denial, Vote};

/// The maximum number of notices of each kind: enough to read, and all are remembered.
const MAX_NOTICES: usize = 100;

/// A notice to log.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// A release was refused: the key ends with its ttl.
    NotReleased(Cause),
    NoLock(NotALock),
}

/// The notices that were logged.
#[derive(Default)]
pub(crate) struct Notices {
    /// By node and error code: the rest of the text may differ from lock to lock.
    refused: Vec<(usize, String)>,
    /// By node and a hash of the resource.
    foreign: Vec<(usize, u64)>,
    lacking: Vec<(usize, Lack)>,
}

impl Notices {
    /// The notice to log for a node's answer, if it was not logged before.
    pub(crate) fn on(
        &mut self,
        node: usize,
        key: &Key,
        action: &Action,
        vote: &Vote,
    ) -> Option<Notice> {
        let resource = &key.resource;
        let (cause, later) = match vote {
            Vote::Denied(Denial::Held(seen)) => {
                return self.foreign(node, resource, seen.foreign()?);
            }
            Vote::Failed { cause, later } => (cause, *later),
            _ => return None,
        };
        let Cause::Refused(text) = cause else {
            return None;
        };
        // An error that is not known, or a right that is missing, may come for as long as the lock lasts.
        if later && !matches!(Meaning::of(text), Meaning::Other | Meaning::NotPermitted) {
            return None;
        }
        let compares =
            action.is_release() || matches!(action, Action::Extend(..) | Action::Shorten(_));
        if compares && Meaning::of(text) == Meaning::WrongType {
            return self.foreign(node, resource, NotALock::OtherType);
        }
        // A node that cannot have the lock has nothing left of it.
        let stays = action.is_release() && key.sent_to.has(node);
        let new = stays && is_new(&mut self.refused, (node, code(text).to_owned()));
        new.then(|| Notice::NotReleased(cause.clone()))
    }

    /// Whether this lack was not logged before.
    pub(crate) fn is_lacking(&mut self, node: usize, lack: Lack) -> bool {
        is_new(&mut self.lacking, (node, lack))
    }

    fn foreign(&mut self, node: usize, resource: &[u8], what: NotALock) -> Option<Notice> {
        let mut hasher = DefaultHasher::new();
        resource.hash(&mut hasher);
        let new = is_new(&mut self.foreign, (node, hasher.finish()));
        new.then_some(Notice::NoLock(what))
    }
}

fn is_new<T: PartialEq>(known: &mut Vec<T>, one: T) -> bool {
    let new = known.len() < MAX_NOTICES && !known.contains(&one);
    if new {
        known.push(one);
    }
    new
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proof::fixtures;
    use crate::protocol::commands::action::Notify;
    use crate::protocol::commands::lock_info::LockInfo;
    use crate::values::arithmetic::Ttl;
    use crate::values::node_set::NodeSet;

    const RELEASE: Action = Action::Release(Notify::First);

    fn failed(text: &str) -> Vote {
        Vote::of_error(text.into(), false)
    }

    fn key(name: &str, sent_to: NodeSet) -> Key {
        fixtures::key(name.as_bytes()).sent_to(sent_to)
    }

    fn on(notices: &mut Notices, node: usize, name: &str, action: &Action, vote: &Vote) -> String {
        let notice = notices.on(node, &key(name, NodeSet::ALL), action, vote);
        notice.map_or_else(String::new, |notice| format!("{notice:?}"))
    }

    #[test]
    fn a_refused_release_is_logged_once_for_each_node_and_code() {
        let mut notices = Notices::default();
        let noperm = failed("NOPERM no 'eval'");
        let refused = "NotReleased(Refused(\"NOPERM no 'eval'\"))";
        assert_eq!(on(&mut notices, 0, "a", &RELEASE, &noperm), refused);
        assert_eq!(on(&mut notices, 0, "b", &RELEASE, &noperm), "");
        assert_eq!(on(&mut notices, 1, "b", &RELEASE, &noperm), refused);
        assert_ne!(on(&mut notices, 0, "a", &RELEASE, &failed("ERR x")), "");
        let others = failed("NOPERM no access to the key 'c'");
        assert_eq!(on(&mut notices, 0, "c", &RELEASE, &others), "");
        for (slot, said) in [(3999, true), (17, false)] {
            let moved = failed(&format!("MOVED {slot} 127.0.0.1:6381"));
            assert_ne!(on(&mut notices, 0, "a", &RELEASE, &moved).is_empty(), said);
        }
        // The release is sent again, or its caller gets the error.
        assert_eq!(on(&mut notices, 2, "a", &RELEASE, &failed("BUSY")), "");
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let extend = Action::Extend(ttl, ttl);
        assert_eq!(on(&mut notices, 2, "a", &extend, &noperm), "");
        assert_eq!(on(&mut notices, 2, "a", &RELEASE, &Vote::Granted(1)), "");
    }

    /// A skipped notice keeps nothing else from being logged.
    #[test]
    fn nothing_is_logged_of_a_release_where_the_lock_cannot_be() {
        let mut notices = Notices::default();
        let noperm = failed("NOPERM no 'eval'");
        let undo = key("a", [1, 2].into_iter().collect());
        assert!(notices.on(0, &undo, &RELEASE, &noperm).is_none());
        assert_ne!(on(&mut notices, 0, "a", &RELEASE, &noperm), "");
        assert!(notices.on(1, &undo, &RELEASE, &noperm).is_some());
    }

    #[test]
    fn what_is_no_lock_is_logged_once_for_each_node_and_resource() {
        let mut notices = Notices::default();
        let list = failed("WRONGTYPE Operation against a key");
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let extend = Action::Extend(ttl, ttl);
        let seen = |other_type, left, holder| {
            Vote::Denied(Denial::Held(LockInfo {
                label: None,
                other_type,
                left,
                holder,
                queued: true,
                name: None,
            }))
        };
        let endless = seen(false, None, Some(7));
        assert_eq!(
            on(&mut notices, 0, "a", &RELEASE, &list),
            "NoLock(OtherType)"
        );
        assert_eq!(on(&mut notices, 0, "a", &extend, &list), "");
        assert_eq!(
            on(&mut notices, 0, "b", &extend, &list),
            "NoLock(OtherType)"
        );
        assert_eq!(
            on(&mut notices, 0, "c", &RELEASE, &endless),
            "NoLock(NoTtl)"
        );
        assert_eq!(on(&mut notices, 0, "c", &RELEASE, &endless), "");
        assert_eq!(
            on(&mut notices, 1, "c", &RELEASE, &endless),
            "NoLock(NoTtl)"
        );
        // A lock; a reserved lock; one that may not be read.
        let time = Some(Duration::ZERO);
        for vote in [
            seen(false, time, Some(7)),
            seen(false, time, None),
            seen(false, None, None),
            Vote::Denied(Denial::Unknown),
        ] {
            assert_eq!(on(&mut notices, 2, "d", &RELEASE, &vote), "");
        }
        let list = seen(true, None, None);
        assert_eq!(
            on(&mut notices, 2, "d", &RELEASE, &list),
            "NoLock(OtherType)"
        );
    }

    #[test]
    fn what_is_logged_and_remembered_has_a_bound() {
        let mut notices = Notices::default();
        let said = |notices: &mut Notices, i: usize| {
            let text = format!("E{i} x");
            let refused = on(notices, 0, "a", &RELEASE, &failed(&text));
            let list = failed("WRONGTYPE");
            let foreign = on(notices, 0, &text, &RELEASE, &list);
            (!refused.is_empty(), !foreign.is_empty())
        };
        for i in 0..10 * MAX_NOTICES {
            assert_eq!(
                said(&mut notices, i),
                (i < MAX_NOTICES, i < MAX_NOTICES),
                "{i}"
            );
        }
        assert_eq!(
            (notices.refused.len(), notices.foreign.len()),
            (MAX_NOTICES, MAX_NOTICES)
        );
    }
}
