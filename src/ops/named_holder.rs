//! The holder whom a text names among those of a lock.

use crate::ops::holder::{Holder, HolderText};
use crate::ops::inspect::Inspection;
use crate::ops::state::{LockState, NodeState};

/// Whom a text names among the holders of a lock.
pub(crate) enum NamedHolder {
    Holder(Holder),
    /// The text has this holder's fingerprint, and is not that of its line.
    ByPart(Holder),
    /// No holder, for certain.
    Nobody,
    /// Too few nodes answered.
    Unknown,
    /// Not all holders are shown.
    NotShown,
}

impl Inspection {
    /// The holder on any of the nodes that a text names.
    pub(crate) fn named(&self, text: &HolderText<'_>) -> NamedHolder {
        let states = self.nodes().map(|(_, _, state)| state);
        let holders = states.flat_map(NodeState::holders);
        let mut same = None;
        for (holder, _) in holders.filter(|(holder, _)| holder.has_fingerprint_of(text)) {
            if holder.is_named(text) {
                return NamedHolder::Holder(holder.clone());
            }
            same.get_or_insert(holder);
        }
        match same {
            Some(holder) => NamedHolder::ByPart(holder.clone()),
            None if self.state() == LockState::Unknown => NamedHolder::Unknown,
            None if self.is_cut() => NamedHolder::NotShown,
            None => NamedHolder::Nobody,
        }
    }
}
