//! The queue of the processes that wait for a lock, which each node keeps beside the lock.
//!
//! A process that was denied *acquires or enqueues*: one script takes the lock, or puts the name of the process's
//! channel into the queue and returns the node's report on the lock and its holder. A release takes the first name out
//! of the queue and publishes the resource on that channel; if the channel has no subscriber, it goes on with the next
//! name. Behind the name is the label of the waiter, for people: a process has one channel, and perhaps several labels.
//!
//! Notifications may be lost. They grant no lock, the scripts go on if a command on the queue fails, and waiters also
//! try again by themselves.
//!
//! *Fair* waiters leave a free lock to the one that has waited longest. A release reserves the lock for the waiter that
//! it has notified, for one [turn](QueueTurn). Turns end by themselves, so that a waiter that has ended or hangs, or
//! two nodes on which different waiters are first, do not keep the lock from all others.

use std::time::Duration;

use crate::protocol::commands::resp::Reply;
use crate::values::clock;
use crate::values::label::Label;
use crate::values::prefix::Prefix;

/// The channel on which a process is notified, one for all its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel([u8; 16]);

impl Channel {
    pub(crate) fn new(random: [u8; 16]) -> Channel {
        Channel(random)
    }

    /// The name of the channel, which the client's prefix precedes.
    pub(crate) fn bytes(self) -> [u8; 40] {
        let mut name = *b"redlock:00000000000000000000000000000000";
        let hex = |half: u8| half + if half < 10 { b'0' } else { b'a' - 10 };
        let digits = self.0.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        for (digit, half) in name.iter_mut().skip(8).zip(digits) {
            *digit = hex(half);
        }
        name
    }
}

/// Whether these bytes may be a channel's name, with a prefix or without. A lock's value is not: a zero precedes its
/// label.
pub(crate) fn is_channel(bytes: &[u8]) -> bool {
    let is_hex = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_hexdigit);
    let mark = b"redlock:";
    let at = bytes.windows(mark.len()).rposition(|part| part == mark);
    at.is_some_and(|at| {
        let (prefix, name) = bytes.split_at(at);
        !prefix.contains(&0) && name.get(mark.len()..).is_some_and(is_hex)
    })
}

/// The member of the queue for a waiter: its process's channel, and behind a space its label. A channel has no space, and no
/// prefix has one.
pub(crate) fn member(channel: Channel, prefix: &Prefix, label: Option<&Label>) -> Vec<u8> {
    let mut member = prefix.key(&channel.bytes()).into_owned();
    if let Some(label) = label {
        member.push(b' ');
        member.extend_from_slice(label.as_str().as_bytes());
    }
    member
}

/// The channel in a member of the queue, which may be any bytes, and what is behind it.
pub(crate) fn member_parts(member: &[u8]) -> (&[u8], Option<&[u8]>) {
    let space = member.iter().position(|byte| *byte == b' ');
    let (channel, rest) = member.split_at(space.unwrap_or(member.len()));
    (channel, rest.get(1..))
}

/// The label in a member of the queue. `None`: the waiter has none, or the member is not of this crate.
pub(crate) fn label_of(member: &[u8]) -> Option<Label> {
    let (channel, label) = member_parts(member);
    Label::before_fields(label?)?.filter(|_| is_channel(channel))
}

/// How long a node reserves a free lock for the waiter that it has notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueTurn(Duration);

impl QueueTurn {
    /// A turn that is long enough to wake up, and to send an acquire to all nodes.
    pub(crate) fn new(node_timeout: Duration) -> QueueTurn {
        let (shortest, longest) = (Duration::from_millis(250), Duration::from_secs(1));
        QueueTurn(node_timeout.saturating_mul(4).clamp(shortest, longest))
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    /// The time after which a waiter ignores reservations: the nodes may never agree on the waiter that is next.
    pub(crate) fn ignored_after(self) -> Duration {
        self.0 * 4
    }

    pub(crate) fn millis(self) -> u64 {
        millis(self.0)
    }
}

/// The data that a waiter sends to a node when it enqueues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) channel: Channel,
    /// By the waiter's wall clock, in milliseconds since 1970.
    pub(crate) arrived: u64,
    /// In milliseconds.
    pub(crate) waited: u64,
    /// How long the queue is kept after a waiter last enqueued, in milliseconds.
    pub(crate) lease: u64,
    /// Set if the waiter takes the lock only in the order of arrival: how long the node reserves it for another waiter.
    pub(crate) turn: Option<QueueTurn>,
}

/// Whole milliseconds, with a maximum that a server can add to its time of day.
pub(crate) fn millis(time: Duration) -> u64 {
    clock::millis(time).min(u64::MAX >> 12)
}

/// The lock's key in a message on the channel.
pub(crate) fn message(reply: Reply) -> Option<Vec<u8>> {
    let Reply::Array(items) = reply else {
        return None;
    };
    match <[Reply; 3]>::try_from(items) {
        Ok([Reply::Bulk(kind), _, Reply::Bulk(resource)]) if kind == b"message" => Some(resource),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::secret::Secret;
    use crate::protocol::commands::resp;

    #[test]
    fn messages_are_distinguished_from_all_other_replies() {
        let of = |bytes: &[u8]| message(resp::parse(bytes, &Secret::default()).unwrap().unwrap().0);
        let notification = b"*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$3\r\na\r\n\r\n";
        assert_eq!(of(notification), Some(b"a\r\n".to_vec()));
        assert_eq!(of(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"), None);
        assert_eq!(of(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"), None);
    }

    #[test]
    fn a_turn_is_four_node_timeouts_and_neither_very_short_nor_very_long() {
        let ms = Duration::from_millis;
        let turn = |timeout| QueueTurn::new(timeout).millis();
        assert_eq!(
            [1, 100, 250, 9000].map(|t| turn(ms(t))),
            [250, 400, 1000, 1000]
        );
        assert_eq!(turn(Duration::MAX), 1000);
        assert_eq!(QueueTurn::new(ms(50)).ignored_after(), ms(1000));
    }

    #[test]
    fn a_member_is_a_channel_and_behind_a_space_the_label() {
        let (channel, name) = (Channel::new([0xA9; 16]), "a9".repeat(16));
        let label = |text: &str| Label::parse(text.as_bytes());
        for (prefix, shown) in [
            ("", None),
            ("team:", None),
            ("", Some("web-2:4711")),
            ("{a}:", Some(" a redlock:3f  b ")),
        ] {
            let label = shown.and_then(label);
            let member = member(channel, &Prefix::new(prefix), label.as_ref());
            let expected = format!("{prefix}redlock:{name}");
            assert_eq!(
                member_parts(&member),
                (expected.as_bytes(), shown.map(str::as_bytes))
            );
            assert_eq!(label_of(&member), label);
            let more = [&member[..], b"\0x=1"].concat();
            assert!(label.is_none() || label_of(&more) == label);
        }
        // Those of other programs, and what nobody should print.
        for other in [
            &b""[..],
            b" ",
            b"a",
            b"a web-2",
            b"redlock: web-2",
            b"redlock:3f",
            b"redlock:3f ",
            b"redlock:3f\0web-2",
            b"redlock:3f a\x1b[2Jb",
            b"redlock:3f a\nb",
            b"redlock:3f \xff",
            "redlock:3f a\u{202e}b".as_bytes(),
            &[&b"redlock:3f "[..], &[b'x'; 65]].concat(),
        ] {
            assert_eq!(label_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_channel_has_a_name_of_forty_characters() {
        let name = Channel::new([0xA9; 16]).bytes();
        assert_eq!(name[..], *format!("redlock:{}", "a9".repeat(16)).as_bytes());
    }
}
