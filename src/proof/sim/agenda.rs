//! The next events of a world, in their order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(super) struct Agenda<E> {
    /// Counts what happens, so that events of the same time keep their order.
    pub(super) order: u64,
    events: BinaryHeap<Reverse<(u64, u64, E)>>,
}

impl<E: Ord> Agenda<E> {
    pub(super) fn new() -> Agenda<E> {
        Agenda {
            order: 0,
            events: BinaryHeap::new(),
        }
    }

    pub(super) fn at(&mut self, at: u64, event: E) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    /// The next event, and its time, if that is not behind the end.
    pub(super) fn next(&mut self, end: u64) -> Option<(u64, E)> {
        let Reverse((at, ..)) = self.events.peek()?;
        if *at > end {
            return None;
        }
        self.events.pop().map(|Reverse((at, _, event))| (at, event))
    }

    /// Has something wake up at this time: behind `t`, and unless it wakes up before.
    pub(super) fn wake(&mut self, (wake_at, t): (&mut u64, u64), at: u64, event: E) {
        let at = at.max(t + 1);
        if at < *wake_at {
            *wake_at = at;
            self.at(at, event);
        }
    }
}
