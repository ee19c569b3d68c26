//! A node's answer about a lock, read.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::ops::holder::Holder;
use crate::ops::state::NodeState;
use crate::protocol::commands::resp::Reply;
use crate::values::lock_value;

const _: () = assert!(
    lock_value::MOST == 256 && lock_value::MOST_OF_MEMBER == 268,
    "INSPECT asks for these"
);

/// The permits or readers that the script shows at most, and about how many bytes of them.
const MOST_SHOWN: usize = 1000;
const MOST_BYTES: usize = 60_000;

/// Whether the script's reply is as long as it can be, so that there may be more permits or readers.
pub(super) fn is_cut(reply: &Reply) -> bool {
    let Reply::Array(items) = reply else {
        return false;
    };
    let size = |item: &Reply| match item {
        Reply::Bulk(bulk) => 8 + bulk.len(),
        _ => 0,
    };
    items.len() >= MOST_SHOWN || items.iter().map(size).sum::<usize>() >= MOST_BYTES
}

/// The state of a lock, by the beginning of its key's value and the ttl.
pub(super) fn seen_natively([value, left]: [Reply; 2]) -> Result<NodeState, Cause> {
    let left = match left {
        Reply::Int(-2) => return Ok(NodeState::Free),
        Reply::Int(left) => left,
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    let value = match value {
        Reply::Bulk(value) => value,
        Reply::Nil => return Ok(NodeState::Free),
        // The value is no lock's, and must not be shown.
        Reply::Error(text) if Meaning::of(&text) == Meaning::WrongType => Vec::new(),
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    Ok(held(left, Some(value.len()), &value))
}

/// The state of a lock whose key has this ttl, and a value of this length that begins so.
fn held(left: i64, length: Option<usize>, value: &[u8]) -> NodeState {
    let remaining = u64::try_from(left).ok().map(Duration::from_millis);
    match length.and_then(|length| Holder::parse(value, length)) {
        Some(holder) => NodeState::Held { holder, remaining },
        None => NodeState::Foreign { remaining },
    }
}

/// The state of a lock, by the script's reply.
pub(super) fn seen(reply: Reply) -> Result<NodeState, Cause> {
    let bulk = match reply {
        Reply::Nil => return Ok(NodeState::Free),
        Reply::Bulk(bulk) => bulk,
        Reply::Array(items) => return seen_members(&items),
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    let mut parts = bulk.splitn(3, |byte| *byte == b' ');
    let mut number = || str::from_utf8(parts.next()?).ok()?.parse::<i64>().ok();
    let (Some(left), Some(length), Some(value)) = (number(), number(), parts.next()) else {
        return Err(Cause::Garbage(
            "unexpected reply: a lock's ttl, length and value were expected".into(),
        ));
    };
    Ok(held(left, usize::try_from(length).ok(), value))
}

/// The state of permits or readers, by the script's reply.
fn seen_members(items: &[Reply]) -> Result<NodeState, Cause> {
    let garbage =
        || Cause::Garbage("unexpected reply: holders, each with its ttl, were expected".into());
    let mut last = Duration::ZERO;
    let mut holders = Vec::new();
    for item in items {
        let Reply::Bulk(bulk) = item else {
            return Err(garbage());
        };
        let (holder, left) = member(bulk).ok_or_else(garbage)?;
        last = last.max(left);
        // Members that were added by hand are left out.
        holders.extend(holder.map(|holder| (holder, left)));
    }
    let readers = holders.iter().any(|(holder, _)| holder.is_reader());
    holders.retain(|(holder, _)| holder.is_reader() == readers);
    holders.sort_by_key(|(holder, _)| holder.slot());
    Ok(match (holders.is_empty(), readers) {
        (true, _) => NodeState::Foreign {
            remaining: Some(last),
        },
        (false, true) => NodeState::Readers { holders },
        (false, false) => NodeState::Permits { holders },
    })
}

/// The holder, if the member is one, and how long the member is kept, by one string of [`INSPECT`].
pub(crate) fn member(bulk: &[u8]) -> Option<(Option<Holder>, Duration)> {
    let at = bulk.iter().position(|byte| *byte == b' ')?;
    let (left, member) = (bulk.get(..at)?, bulk.get(at + 1..)?);
    let left = str::from_utf8(left).ok()?.parse().ok()?;
    Some((Holder::of_member(member), Duration::from_millis(left)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::commands::scripts::INSPECT;
    use crate::values::lock_value::TOKEN;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn replies_are_understood_and_none_makes_it_panic() {
        let bulk = |text: &[u8]| seen(Reply::Bulk(text.to_vec()));
        let value = [b"5000 20 ".as_slice(), &[7; TOKEN]].concat();
        let Ok(NodeState::Held { holder, remaining }) = bulk(&value) else {
            panic!("not held");
        };
        assert_eq!((holder.label(), remaining), (None, Some(5000 * MS)));
        assert_eq!(holder.to_string(), "07070707");
        let named = [
            b"-1 47 ".as_slice(),
            &[7; TOKEN],
            b"\0redlock:12345web-3:4711 \xC3\xA9",
        ]
        .concat();
        let Ok(NodeState::Held { holder, remaining }) = bulk(&named) else {
            panic!("not held");
        };
        assert_eq!((holder.label(), remaining), (Some("web-3:4711 é"), None));
        assert_eq!(format!("{holder:?}"), "Holder(07070707 (web-3:4711 é))");
        // Longer than the part that is read, or no label.
        for (length, rest) in [
            ("257", &b"\0redlock:12345abc"[..]),
            ("36", b"\0redlock:12345a\n"),
            ("35", b"\0redlock:12345\xFF"),
            ("23", b"abc"),
            ("x", b""),
        ] {
            let start = format!("1 {length} ");
            let found = bulk(&[start.as_bytes(), &[7; TOKEN], rest].concat());
            match found {
                Ok(NodeState::Foreign { .. }) => {}
                Err(Cause::Garbage(_)) => assert_eq!(length, "x"),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(bulk(b"7 -1 "), Ok(NodeState::Foreign { .. })));
        assert!(matches!(bulk(b"7 2 ab"), Ok(NodeState::Foreign { .. })));
        for garbage in [
            &b""[..],
            b" ",
            b"1",
            b"1 2",
            b"1  ",
            b"\xFF 1 a",
            b"1 99999999999999999999 a",
        ] {
            assert!(
                matches!(bulk(garbage), Err(Cause::Garbage(_))),
                "{garbage:?}"
            );
        }
        assert!(matches!(seen(Reply::Nil), Ok(NodeState::Free)));
        assert!(matches!(seen(Reply::Int(1)), Err(Cause::Garbage(_))));
        assert!(matches!(
            seen(Reply::Array(vec![Reply::Int(1)])),
            Err(Cause::Garbage(_))
        ));
        assert!(matches!(
            seen(Reply::Array(vec![Reply::Bulk(b"1x".to_vec())])),
            Err(Cause::Garbage(_))
        ));
        let refused = seen(Reply::Error("NOPERM no".into()));
        assert!(matches!(refused, Err(Cause::Refused(_))));
    }

    #[test]
    fn a_reply_that_is_as_long_as_it_can_be_may_lack_holders() {
        let item = |len| Reply::Bulk(vec![b'1'; len]);
        let items = |count, len| Reply::Array((0..count).map(|_| item(len)).collect());
        for (count, len, cut) in [
            (0, 0, false),
            (999, 40, false),
            (1000, 40, true),
            (599, 92, false),
            (600, 92, true),
        ] {
            assert_eq!(is_cut(&items(count, len)), cut, "{count} of {len} bytes");
        }
        assert!(!is_cut(&Reply::Nil) && !is_cut(&Reply::Array(vec![Reply::Nil])));
        for bound in [
            format!("-{MOST_SHOWN}, -1,"),
            format!("size < {MOST_BYTES} "),
        ] {
            assert!(
                String::from_utf8_lossy(INSPECT.text).contains(&bound),
                "{bound}"
            );
        }
    }

    #[test]
    fn a_value_and_a_ttl_lead_to_the_same_state_as_the_script() {
        let seen = |value: Reply, left: i64| seen_natively([value, Reply::Int(left)]);
        let value = |rest: &[u8]| Reply::Bulk([&[7; TOKEN], rest].concat());
        let Ok(NodeState::Held { holder, remaining }) = seen(value(b"\0redlock:12345web-3"), 5000)
        else {
            panic!("not held");
        };
        assert_eq!(
            (holder.label(), remaining),
            (Some("web-3"), Some(5000 * MS))
        );
        let endless = seen(value(b""), -1);
        assert!(matches!(
            endless,
            Ok(NodeState::Held {
                remaining: None,
                ..
            })
        ));
        let wrong_type = || Reply::Error("WRONGTYPE Operation against a key".into());
        // Longer than any lock's value.
        let long = value(&[&b"\0redlock:12345"[..], &[b'a'; 65]].concat());
        for foreign in [Reply::Bulk(b"text".to_vec()), long, wrong_type()] {
            let found = seen(foreign, 7);
            assert!(
                matches!(found, Ok(NodeState::Foreign { remaining }) if remaining == Some(7 * MS))
            );
        }
        for (value, left) in [
            (Reply::Bulk(Vec::new()), -2),
            (Reply::Nil, -2),
            (Reply::Nil, 5),
        ] {
            assert!(matches!(seen(value, left), Ok(NodeState::Free)));
        }
        let refused = || Reply::Error("NOPERM no".into());
        for replies in [[refused(), Reply::Int(5)], [value(b""), refused()]] {
            assert!(matches!(seen_natively(replies), Err(Cause::Refused(_))));
        }
        for replies in [[Reply::Int(5), Reply::Int(5)], [value(b""), Reply::Nil]] {
            assert!(matches!(seen_natively(replies), Err(Cause::Garbage(_))));
        }
    }

    #[test]
    fn permits_and_readers_are_listed_and_what_was_added_by_hand_is_not() {
        let one = |left: &str, head: &str, token: u8| {
            let member = [head.as_bytes(), &[token; TOKEN]].concat();
            Reply::Bulk([left.as_bytes(), b" ", &member].concat())
        };
        let shown = |items: Vec<Reply>| match seen(Reply::Array(items)).unwrap() {
            NodeState::Permits { holders } => ("permits", texts(&holders)),
            NodeState::Readers { holders } => ("readers", texts(&holders)),
            NodeState::Foreign { remaining } => ("foreign", vec![format!("{remaining:?}")]),
            other => panic!("{other:?}"),
        };
        fn texts(holders: &[(Holder, Duration)]) -> Vec<String> {
            let text = |(holder, left): &(Holder, Duration)| format!("{holder}, {left:?}");
            holders.iter().map(text).collect()
        }
        let damaged = || Reply::Bulk(b"9 by hand".to_vec());
        let permits = vec![
            one("7", "redlock:s002", 1),
            damaged(),
            one("5", "redlock:s000", 2),
        ];
        let expected = ["02020202 in slot 0, 5ms", "01010101 in slot 2, 7ms"];
        assert_eq!(
            shown(permits),
            ("permits", expected.map(str::to_owned).to_vec())
        );
        let readers = vec![one("7", "redlock:r000", 1), one("5", "redlock:r000", 2)];
        let expected = ["01010101 reading, 7ms", "02020202 reading, 5ms"];
        assert_eq!(
            shown(readers),
            ("readers", expected.map(str::to_owned).to_vec())
        );
        assert_eq!(
            shown(vec![damaged()]),
            ("foreign", vec!["Some(9ms)".to_owned()])
        );
    }
}
