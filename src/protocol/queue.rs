//! Who waits for a lock that another process holds: a queue beside the lock, on each node.
//!
//! A process that was denied *knocks*: one script takes the lock, or puts the name of the process's channel
//! into the queue and tells who has the lock and for how long. A release takes the first name out of the queue
//! and publishes the resource on that channel; where nobody listens, the next name's turn has come.
//!
//! The queue is a hint. It gives nobody a lock; all that concerns it is called so that its failure does no
//! harm, and who waits tries again by itself in any case.
//!
//! *Fair* waiters leave a free lock to whoever has waited longest. A release keeps it for the one that it told:
//! that one's [turn](Turn). Turns end by themselves, so that no one who has gone or hangs, and no two nodes that
//! see different waiters first, keep a lock from all others.

use std::time::Duration;

use crate::protocol::resp::Reply;

/// On which a process is told. One for all its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel([u8; 16]);

impl Channel {
    /// Of random bytes.
    pub(crate) fn new(random: [u8; 16]) -> Channel {
        Channel(random)
    }

    pub(crate) fn name(self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Of the name.
    pub(crate) fn bytes(self) -> [u8; 40] {
        let mut name = *b"redlock:00000000000000000000000000000000";
        let digit = |half: u8| half + if half < 10 { b'0' } else { b'a' - 10 };
        let digits = self.0.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        for (place, half) in name.iter_mut().skip(8).zip(digits) {
            *place = digit(half);
        }
        name
    }
}

/// How long a node keeps a free lock for the one that it has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(Duration);

impl Turn {
    /// Long enough to be woken, and to knock on all nodes.
    pub(crate) fn new(node_timeout: Duration) -> Turn {
        let (shortest, longest) = (Duration::from_millis(250), Duration::from_secs(1));
        Turn(node_timeout.saturating_mul(4).clamp(shortest, longest))
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    /// Who has found the lock free for so long, and always kept for others, takes it out of turn: nodes may
    /// never agree whose turn it is.
    pub(crate) fn ignored_after(self) -> Duration {
        self.0 * 4
    }

    pub(crate) fn millis(self) -> u64 {
        millis(self.0)
    }
}

/// What a knock says of who knocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) channel: Channel,
    /// By its wall clock, in milliseconds since 1970.
    pub(crate) arrived: u64,
    /// In milliseconds.
    pub(crate) waited: u64,
    /// In milliseconds: how long the queue is kept after the last knock of anybody.
    pub(crate) lease: u64,
    /// It takes the lock only in turn; the one whose turn it is instead has so long.
    pub(crate) turn: Option<Turn>,
}

/// Whole milliseconds; at most so many that a server can add them to its time of day.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .min(u64::MAX >> 12)
}

impl QueueEntry {
    /// What follows resource, token and ttl.
    pub(crate) fn arguments(&self) -> [String; 4] {
        [
            self.channel.name(),
            self.arrived.to_string(),
            self.waited.to_string(),
            self.lease.to_string(),
        ]
    }
}

/// What is in the place of a lock and is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotALock {
    OtherType,
    /// It never ends.
    NoTtl,
}

/// What a node that denied a knock says of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockInfo {
    /// How long its key still lives, or how long it is kept for another. Unknown where that may not be asked, or
    /// it has no end.
    pub(crate) left: Option<Duration>,
    /// A part of the token's hash. Unknown where that may not be asked, or nobody has the lock.
    pub(crate) holder: Option<u32>,
    /// This process is in the queue there.
    pub(crate) queued: bool,
    /// The key holds data of another type.
    pub(crate) other_type: bool,
}

impl LockInfo {
    /// Nobody has the lock: it is kept for another who waits.
    pub(crate) fn is_reserved(&self) -> bool {
        self.holder.is_none() && self.left.is_some()
    }

    /// The key is no lock. (The time of one is unknown only if nothing else is known.)
    pub(crate) fn foreign(&self) -> Option<NotALock> {
        match (self.other_type, self.left, self.holder) {
            (true, ..) => Some(NotALock::OtherType),
            (_, None, Some(_)) => Some(NotALock::NoTtl),
            _ => None,
        }
    }

    /// `None`: that is no answer to a knock.
    pub(crate) fn parse(reply: &Reply) -> Option<LockInfo> {
        let Reply::Bulk(bulk) = reply else {
            return None;
        };
        let mut words = str::from_utf8(bulk).ok()?.split(' ');
        // Lua writes thousands of years as "2e+15".
        let left: f64 = words.next()?.parse().ok()?;
        let (holder, queued) = (words.next()?, words.next()? == "w");
        Some(LockInfo {
            queued,
            left: Duration::try_from_secs_f64(left / 1000.0).ok(),
            holder: u32::from_str_radix(holder, 16).ok(),
            other_type: left == -2.0 && holder == "-",
        })
    }
}

/// The resource of a message on the channel.
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
    use crate::protocol::resp;
    use crate::secret::Secret;

    #[test]
    fn what_a_denied_knock_says() {
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
        let foreign = |text| seen(text).unwrap().foreign();
        assert_eq!(foreign("-1 00a1ff w"), Some(NotALock::NoTtl));
        assert_eq!(foreign("-2 - -"), Some(NotALock::OtherType));
        for lock in ["1500 00a1ff w", "0 000000 -", "250 - w", "-1 - -"] {
            assert_eq!(foreign(lock), None, "{lock}");
        }
        let kept = |text| seen(text).unwrap().is_reserved();
        assert!(kept("250 - w") && !kept("-1 - -") && !kept("250 00a1ff w"));
        for bad in ["", "1500", "x 00a1ff w", "1500 00a1ff", "  "] {
            assert_eq!(seen(bad), None, "{bad}");
        }
        assert_eq!(LockInfo::parse(&Reply::Int(1)), None);
    }

    #[test]
    fn messages_are_told_from_all_else() {
        let of = |bytes: &[u8]| message(resp::parse(bytes, &Secret::default()).unwrap().unwrap().0);
        let told = b"*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$3\r\na\r\n\r\n";
        assert_eq!(of(told), Some(b"a\r\n".to_vec()));
        assert_eq!(of(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"), None);
        assert_eq!(of(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"), None);
    }

    #[test]
    fn a_turn_is_four_node_timeouts_and_neither_very_short_nor_very_long() {
        let ms = Duration::from_millis;
        let turn = |timeout| Turn::new(timeout).millis();
        assert_eq!(
            [1, 100, 250, 9000].map(|t| turn(ms(t))),
            [250, 400, 1000, 1000]
        );
        assert_eq!(turn(Duration::MAX), 1000);
        assert_eq!(Turn::new(ms(50)).ignored_after(), ms(1000));
    }

    #[test]
    fn a_channel_has_a_name_of_forty_characters() {
        let name = Channel::new([0xA9; 16]).name();
        assert_eq!(name, format!("redlock:{}", "a9".repeat(16)));
    }
}
