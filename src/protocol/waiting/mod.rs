//! Threads and processes that wait for a lock.
//!
//! In reading order:
//!
//! - `held_here`: the locks that this process seems to hold
//! - `subscriptions`: the connections over which nodes notify this process
//! - `poller`: the one thread of a process that asks for a lock
//! - `waiter`: a thread that waits
//! - `wait_queue`: the threads of a process that wait, and which of them is next (`wait_queue/leaving`: those that leave;
//!   `wait_queue/hand_offs`: releases in this process; `wait_queue/subscriber_events`: messages of the nodes)

pub(crate) mod held_here;
pub(crate) mod poller;
pub(crate) mod subscriptions;
pub(crate) mod wait_queue;
pub(crate) mod waiter;
