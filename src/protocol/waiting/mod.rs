//! Threads and processes that wait for a lock.

pub(crate) mod held_here;
pub(crate) mod poller;
pub(crate) mod subscriptions;
pub(crate) mod wait_queue;
pub(crate) mod waiter;
