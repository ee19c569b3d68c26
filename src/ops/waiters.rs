//! The processes that wait for a lock, by the queue beside it on a node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::resp::Reply;
use crate::values::clock;

/// The last that is read of a queue. So a reply is no longer than 64 KiB.
const LAST: &[u8] = b"399";

/// The queue of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiters {
    count: usize,
    /// When the first of them arrived.
    since: Option<SystemTime>,
}

impl Waiters {
    /// The key of the queue.
    pub(crate) fn key(lock: &[u8]) -> Vec<u8> {
        Companion::Queue.key(lock).concat()
    }

    /// The question to a node, about this queue.
    pub(crate) fn question(queue: &[u8]) -> [&[u8]; 5] {
        [b"ZRANGE", queue, b"0", LAST, b"WITHSCORES"]
    }

    /// The answer to that. `None`: the queue cannot be read, or is something else.
    pub(crate) fn of_reply(reply: &Reply) -> Option<Waiters> {
        let Reply::Array(items) = reply else {
            return None;
        };
        let text = |item: &Reply| match item {
            Reply::Bulk(text) => Some(text.clone()),
            _ => None,
        };
        let items: Option<Vec<Vec<u8>>> = items.iter().map(text).collect();
        Some(Waiters::of_members(&items?))
    }

    /// The queue with these members, each of them before its score.
    pub(crate) fn of_members(items: &[Vec<u8>]) -> Waiters {
        let score = items.get(1).and_then(|score| str::from_utf8(score).ok());
        let score: Option<f64> = score.and_then(|score| score.parse().ok());
        let arrived = score.and_then(|score| Duration::try_from_secs_f64(score / 1000.0).ok());
        Waiters {
            count: items.len() / 2,
            since: arrived.and_then(|arrived| UNIX_EPOCH.checked_add(arrived)),
        }
    }

    /// The queues of two nodes, taken together: a process may be in one of them only.
    pub(crate) fn and(self, other: Waiters) -> Waiters {
        Waiters {
            count: self.count.max(other.count),
            since: self.since.into_iter().chain(other.since).min(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How long the first of them has waited.
    pub(crate) fn longest(&self) -> Option<Duration> {
        let now = clock::wall();
        self.since
            .map(|since| now.duration_since(since).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_longest_queue_counts_and_the_first_arrival() {
        let queue = |scores: &[&str]| {
            let pair = |score: &&str| {
                [&b"redlock:3f"[..], score.as_bytes()].map(|text| Reply::Bulk(text.to_vec()))
            };
            Waiters::of_reply(&Reply::Array(scores.iter().flat_map(pair).collect()))
        };
        let (one, two) = (
            queue(&["5000"]).unwrap(),
            queue(&["7000", "8000.5"]).unwrap(),
        );
        let both = one.and(two);
        assert_eq!((both.count(), both.since), (2, Some(UNIX_EPOCH + 5 * S)));
        assert!(both.longest() > Some(S));
        assert_eq!(
            queue(&[]),
            Some(Waiters {
                count: 0,
                since: None
            })
        );
        for odd in ["", "-1", "nan", "inf", "1e300"] {
            assert_eq!(queue(&[odd]).unwrap().since, None, "{odd}");
        }
        assert_eq!(Waiters::of_reply(&Reply::Error("NOPERM no".into())), None);
        assert_eq!(Waiters::of_reply(&Reply::Array(vec![Reply::Int(1)])), None);
    }
}
