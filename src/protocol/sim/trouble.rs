//! What a server suffers from for a while.

#[derive(Clone, Copy)]
pub(super) enum Trouble {
    Paused,
    Slow,
    RefusesConnections,
    /// Or it does not permit what takes memory.
    OutOfMemory,
    ForbidsQueues,
    LacksReplicas,
    /// What its name leads to is a replica.
    Replica,
}

impl Trouble {
    pub(super) const ALL: usize = Trouble::Replica as usize + 1;
}
