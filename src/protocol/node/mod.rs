//! One node: its connection, its standing with the restart guard, and what it is owed.

pub(crate) mod address;
pub(crate) mod answers;
pub(crate) mod debt;
pub(crate) mod event;
pub(crate) mod guard;
pub(crate) mod node;
pub(crate) mod notice;
pub(crate) mod order;
pub(crate) mod outbox;
pub(crate) mod proof;
pub(crate) mod wire;
pub(crate) mod witness;
