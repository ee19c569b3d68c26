//! The report of a node that denied a lock: its holder, the time that is left, or data that is not a lock.

use std::time::{Duration, Instant};

use crate::protocol::commands::resp::Reply;
use crate::values::label::Label;

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
        let (holder, position) = (word()?, word()?);
        Some(LockInfo {
            queued: position.starts_with('w'),
            name: position.get(1..).and_then(|name| name.parse().ok()),
            left: Duration::try_from_secs_f64(left / 1000.0).ok(),
            holder: u32::from_str_radix(holder, 16).ok(),
            label: parts.next().and_then(Label::before_fields).flatten(),
            other_type: left == -2.0 && holder == "-",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
