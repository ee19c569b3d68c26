//! The processes that wait for a lock, by the queue beside it on a node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::node_queue;
use crate::protocol::commands::resp::Reply;
use crate::values::clock;
use crate::values::label::Label;

/// The queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiters {
    count: usize,
    /// Those of them that have one, in the order of the queue.
    labels: Arc<[Label]>,
    /// When the first of them arrived.
    since: Option<SystemTime>,
}

impl Waiters {
    /// The key of the queue.
    pub(crate) fn key(lock: &[u8]) -> Vec<u8> {
        Companion::Queue.key(lock).concat()
    }

    /// The answer of the script `WAITERS`. `None`: the queue cannot be read, or is something else.
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
        let members = items.iter().step_by(2);
        // A process may wait with several labels.
        let processes = members
            .clone()
            .map(|member| node_queue::member_parts(member).0);
        let labels = members.filter_map(|member| node_queue::label_of(member));
        Waiters {
            count: processes.collect::<BTreeSet<_>>().len(),
            labels: labels.collect(),
            since: arrived.and_then(|arrived| UNIX_EPOCH.checked_add(arrived)),
        }
    }

    /// The queues of two nodes, taken together: a process may be in one of them only.
    pub(crate) fn and(self, other: Waiters) -> Waiters {
        let since = self.since.into_iter().chain(other.since).min();
        let longer = if other.count > self.count {
            other
        } else {
            self
        };
        Waiters { since, ..longer }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().map(Label::as_str)
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
    use crate::protocol::commands::node_queue::Channel;
    use crate::protocol::commands::resp::{self, ReplyReader};
    use crate::values::prefix::Prefix;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_longest_queue_counts_and_the_first_arrival() {
        let queue = |scores: &[&str]| {
            let pair = |(at, score): (usize, &&str)| {
                let member = format!("redlock:{at:x}");
                [&*member, score].map(|text| Reply::Bulk(text.into()))
            };
            let pairs = scores.iter().enumerate().flat_map(pair);
            Waiters::of_reply(&Reply::Array(pairs.collect()))
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
                labels: Arc::default(),
                since: None
            })
        );
        // A process that waits with two labels is one.
        let members = ["redlock:3f a", "1", "redlock:3f b", "2", "redlock:4f", "3"];
        let waiting = Waiters::of_members(&members.map(|text| text.as_bytes().to_vec()));
        assert_eq!((waiting.count(), waiting.labels().count()), (2, 2));
        for odd in ["", "-1", "nan", "inf", "1e300"] {
            assert_eq!(queue(&[odd]).unwrap().since, None, "{odd}");
        }
        assert_eq!(Waiters::of_reply(&Reply::Error("NOPERM no".into())), None);
        assert_eq!(Waiters::of_reply(&Reply::Array(vec![Reply::Int(1)])), None);
    }

    /// Labels of two nodes are not mixed: there are no more than processes.
    #[test]
    fn the_labels_are_those_of_the_longest_queue() {
        let queue = |members: &[&[u8]]| {
            let pair = |member: &&[u8]| [member.to_vec(), b"5000".to_vec()];
            Waiters::of_members(&members.iter().flat_map(pair).collect::<Vec<_>>())
        };
        let one = queue(&[b"redlock:3f web-2:4711"]);
        let three = queue(&[b"redlock:3a", b"p:redlock:3b a b", b"redlock:3f a\x1b[2J"]);
        let labels = |queue: &Waiters| queue.labels().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(labels(&one), ["web-2:4711"]);
        for both in [one.clone().and(three.clone()), three.and(one.clone())] {
            assert_eq!((both.count(), labels(&both)), (3, vec!["a b".to_owned()]));
        }
    }

    /// The largest reply to the question is read.
    #[test]
    fn a_long_queue_with_long_labels_is_read() {
        let label = Label::parse(&[b'x'; Label::MAX]).unwrap();
        let prefix = Prefix::new(&"p".repeat(Prefix::MAX));
        let member = |number: u128| {
            node_queue::member(Channel::new(number.to_be_bytes()), &prefix, Some(&label))
        };
        let members: Vec<Vec<u8>> = (0..300).map(member).collect();
        // The script has these numbers.
        assert_eq!(members[0].len() + 1, 170);
        let pair = |member| [member, &b"1.7976931348623157e+308"[..]];
        let items: Vec<&[u8]> = members.iter().flat_map(|member| pair(&**member)).collect();
        let mut reply = Vec::new();
        resp::pack(&mut reply, &[&items], None);
        let mut reader = ReplyReader::default();
        reader.push(&reply);
        let queue = Waiters::of_reply(&reader.next().unwrap().unwrap()).unwrap();
        assert_eq!((queue.count(), queue.labels().count()), (300, 300));
    }
}
