//! The services of a process to its calls. The driver has them behind mutexes; the simulation has them at hand.

use std::sync::Arc;
use std::time::Duration;

use crate::errors::error::Error;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::values::token::Token;

pub(crate) trait ProcessServices {
    /// A thread that waits.
    type Thread: Clone;

    /// The thread of the call, to be woken or handed a lock.
    fn thread(&mut self, resource: &Arc<[u8]>) -> Self::Thread;

    /// A fresh token.
    fn token(&mut self, resource: &[u8]) -> Result<Token, Error>;

    /// A random time from `min` to `max`, to desynchronise contenders.
    fn jitter(&mut self, min: Duration, max: Duration) -> Duration;

    /// Whether no lock has a queue, so that neither an acquire nor a release need use the queues.
    fn none_waits(&mut self) -> bool;

    /// Uses the queues, and wakes the threads that should then look again.
    fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<Self::Thread>) -> T) -> T;

    fn held_here(&self) -> &HeldHere;
}

#[cfg(test)]
pub(crate) mod one_thread {
    use super::*;
    use crate::proof::fixtures::NODE_TIMEOUT;

    /// A process with one thread.
    pub(crate) struct OneThread {
        pub(crate) queues: WaitQueues<u32>,
        pub(crate) held_here: HeldHere,
        pub(crate) none_waits: bool,
        tokens: u8,
    }

    impl OneThread {
        pub(crate) fn new() -> OneThread {
            OneThread {
                queues: WaitQueues::new(3, None, NODE_TIMEOUT, 7),
                held_here: HeldHere::new(1),
                none_waits: false,
                tokens: 0,
            }
        }
    }

    impl ProcessServices for OneThread {
        type Thread = u32;

        fn thread(&mut self, _: &Arc<[u8]>) -> u32 {
            1
        }

        fn token(&mut self, _: &[u8]) -> Result<Token, Error> {
            self.tokens += 1;
            Ok(Token::from_bytes([self.tokens; 20]))
        }

        fn jitter(&mut self, _: Duration, max: Duration) -> Duration {
            max
        }

        fn none_waits(&mut self) -> bool {
            self.none_waits
        }

        fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<u32>) -> T) -> T {
            work(&mut self.queues)
        }

        fn held_here(&self) -> &HeldHere {
            &self.held_here
        }
    }
}
