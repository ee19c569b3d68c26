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

use std::time::{Duration, Instant};

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

/// Data in a lock's key that is not a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotALock {
    OtherType,
    /// The key never ends.
    NoTtl,
}

/// The report of a node that denied the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockInfo {
    /// How long the key still lives, or how long it is reserved for another waiter. Unknown if that may not be asked,
    /// or if it has no end.
    pub(crate) left: Option<Duration>,
    /// A part of the token's hash. Unknown if that may not be asked, or if the lock has no holder.
    pub(crate) holder: Option<u32>,
    /// The label of the holder.
    pub(crate) label: Option<Label>,
    /// Whether this process is in the queue there.
    pub(crate) queued: bool,
    /// Whether the key holds data of another type.
    pub(crate) other_type: bool,
    /// The name that is in the way, for a lock on several names.
    pub(crate) name: Option<usize>,
}

/// The holder of a lock, by the reports of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownHolder {
    pub(crate) label: Option<Label>,
    /// When the holder's time is over on a majority.
    pub(crate) until: Option<Instant>,
}

impl LockInfo {
    /// Whether the lock has no holder, but is reserved for another waiter.
    pub(crate) fn is_reserved(&self) -> bool {
        self.holder.is_none() && self.left.is_some()
    }

    /// The data in the key, if it is not a lock. (The report on a lock lacks the time only if it lacks everything
    /// else.)
    pub(crate) fn foreign(&self) -> Option<NotALock> {
        match (self.other_type, self.left, self.holder) {
            (true, ..) => Some(NotALock::OtherType),
            (_, None, Some(_)) => Some(NotALock::NoTtl),
            _ => None,
        }
    }

    /// `None`: the reply is of another kind.
    pub(crate) fn parse(reply: &Reply) -> Option<LockInfo> {
        let Reply::Bulk(bulk) = reply else {
            return None;
        };
        // The label comes last, and may have spaces.
        let mut parts = bulk.splitn(4, |byte| *byte == b' ');
        let mut word = || str::from_utf8(parts.next()?).ok();
        // Lua writes thousands of years as "2e+15".
        let left: f64 = word()?.parse().ok()?;
        let (holder, place) = (word()?, word()?);
        Some(LockInfo {
            queued: place.starts_with('w'),
            name: place.get(1..).and_then(|name| name.parse().ok()),
            left: Duration::try_from_secs_f64(left / 1000.0).ok(),
            holder: u32::from_str_radix(holder, 16).ok(),
            label: parts.next().and_then(Label::before_fields).flatten(),
            other_type: left == -2.0 && holder == "-",
        })
    }
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
    fn a_denial_reports_the_holder_and_the_time_left() {
        let seen = |text: &str| LockInfo::parse(&Reply::Bulk(text.into()));
        let known = |left, holder, queued| {
            Some(LockInfo {
                left,
                holder,
                queued,
                ..LockInfo::default()
            })
        };
        let ms = Duration::from_millis;
        let holder = Some(0x0000_a1ff);
        assert_eq!(seen("1500 00a1ff w"), known(Some(ms(1500)), holder, true));
        assert_eq!(
            seen("86399999 00a1ff w"),
            known(Some(ms(86_399_999)), holder, true)
        );
        assert_eq!(
            seen("2e+15 00a1ff w"),
            known(Some(ms(2_000_000_000_000_000)), holder, true)
        );
        assert_eq!(seen("0 000000 -"), known(Some(ms(0)), Some(0), false));
        assert_eq!(seen("-1 00a1ff w"), known(None, holder, true));
        assert_eq!(seen("-1 - -"), known(None, None, false));
        assert_eq!(seen("250 - w"), known(Some(ms(250)), None, true));
        let labelled = LockInfo::parse(&Reply::Bulk("1500 00a1ff w web-2: a".into())).unwrap();
        assert_eq!(labelled.label, Label::new("web-2: a"));
        for bad in [
            &b"1500 00a1ff w \xff"[..],
            b"1500 00a1ff w a\nb",
            b"1500 00a1ff w ",
        ] {
            let info = LockInfo::parse(&Reply::Bulk(bad.into())).unwrap();
            assert_eq!((info.label, info.holder), (None, holder));
        }
        let at = |text| seen(text).map(|info| (info.queued, info.name));
        assert_eq!(at("1500 00a1ff w17"), Some((true, Some(17))));
        assert_eq!(at("1500 00a1ff -0"), Some((false, Some(0))));
        assert_eq!(at("1500 00a1ff w"), Some((true, None)));
        let foreign = |text| seen(text).unwrap().foreign();
        assert_eq!(foreign("-1 00a1ff w"), Some(NotALock::NoTtl));
        assert_eq!(foreign("-2 - -"), Some(NotALock::OtherType));
        for lock in ["1500 00a1ff w", "0 000000 -", "250 - w", "-1 - -"] {
            assert_eq!(foreign(lock), None, "{lock}");
        }
        let reserved = |text| seen(text).unwrap().is_reserved();
        assert!(reserved("250 - w") && !reserved("-1 - -") && !reserved("250 00a1ff w"));
        for bad in ["", "1500", "x 00a1ff w", "1500 00a1ff", "  "] {
            assert_eq!(seen(bad), None, "{bad}");
        }
        assert_eq!(LockInfo::parse(&Reply::Int(1)), None);
    }

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
