//! Targets: what servers answer.

use std::sync::Arc;

use super::{PASSWORD, hides, planted};
use crate::errors::cause::Cause;
use crate::errors::redirection::Redirection;
use crate::errors::secret::Secret;
use crate::errors::text;
use crate::net::discovery::{given_node, sentinels};
use crate::ops::holder::Holder;
use crate::ops::inspect_reply;
use crate::ops::waiters::Waiters;
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::commands::node_queue;
use crate::protocol::commands::resp::{Reply, ReplyReader};
use crate::protocol::commands::server_info::{Role, ServerInfo};
use crate::protocol::commands::slots::{SLOTS, SlotRanges, combinations};
use crate::protocol::node::witness_look::WitnessLook;
use crate::values::label::Label;
use crate::values::last_run::LastRun;
use crate::values::lock_value::{self, Since, pack};
use redis::ConnectionAddr;

fn secret() -> Secret {
    Secret::of(Some(PASSWORD))
}

/// The replies in these bytes, received in pieces of this length; and whether the bytes end in something else.
fn read(bytes: &[u8], piece: usize) -> (Vec<Reply>, bool) {
    let mut reader = ReplyReader::new(secret());
    let mut replies = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        reader.push(piece);
        loop {
            match reader.next() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(cause) => {
                    hides(cause);
                    return (replies, true);
                }
            }
        }
    }
    (replies, false)
}

/// The replies in these bytes, all received at once.
fn replies(bytes: &[u8]) -> Vec<Reply> {
    read(bytes, usize::MAX).0
}

/// RESP: what is read does not depend on the pieces in which it arrives, nor on whether elements are handed on one by one.
pub(super) fn resp(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else {
        return;
    };
    let bytes = planted(bytes, PASSWORD.as_bytes());
    let (whole, failed) = read(&bytes, usize::MAX);
    let (pieces, failed_in_pieces) = read(&bytes, usize::from(*piece));
    let both = whole.len().min(pieces.len());
    assert_eq!(whole.get(..both), pieces.get(..both));
    assert!(failed || failed_in_pieces || whole.len() == pieces.len());
    whole.iter().for_each(|reply| hides(reply.error()));
    let mut reader = ReplyReader::new(secret());
    reader.push(&bytes);
    let first = whole.first();
    if let Some((bulk, length)) = reader.bulk() {
        assert_eq!(first, Some(&Reply::Bulk(bulk.to_vec())));
        reader.skip(length);
        assert_eq!(reader.rest().len(), bytes.len() - length);
        return;
    }
    let mut elements = Vec::new();
    let found = reader.next_by_element(&mut |element| {
        elements.push(format!("{element:?}"));
        true
    });
    match (found, first) {
        (Ok(Some(Reply::Array(left))), Some(Reply::Array(all))) => {
            let all: Vec<String> = all.iter().map(|element| format!("{element:?}")).collect();
            assert_eq!((left.len(), &elements), (0, &all));
        }
        // A long array is kept as a whole by one of them only.
        (Ok(found), first) => assert!(first.is_none() || found.as_ref() == first),
        (Err(cause), _) => hides(cause),
    }
}

/// INFO, HELLO, and the first look of the restart guard.
pub(super) fn info(data: &[u8]) {
    let bytes = planted(data, PASSWORD.as_bytes());
    let parts: Vec<&[u8]> = bytes.split(|byte| *byte == 2).collect();
    let info = ServerInfo::new(parts.first().unwrap_or(&&b""[..]), &secret());
    for field in ["redis_version", "valkey_version", "maxmemory_policy"] {
        hides(info.get(field).unwrap_or_default());
    }
    hides(info.version().unwrap_or_default());
    let _ = (info.run_id(), info.uptime(), info.role(), info.is_too_old());
    assert!(
        info.number("evicted_keys")
            .is_none_or(|_| info.get("evicted_keys").is_some())
    );
    let bulk = |part: &&[u8]| Reply::Bulk(part.to_vec());
    let _ = Role::of_hello(&parts.iter().map(bulk).collect::<Vec<_>>());
    let reply = |(at, part): (usize, &&[u8])| match str::from_utf8(part).map(str::parse) {
        Ok(Ok(number)) if at == 4 => Reply::Int(number),
        _ => bulk(part),
    };
    match WitnessLook::of(parts.iter().enumerate().map(reply).collect(), &secret()) {
        Ok(look) => {
            let _ = look.set_witness(b"redlock:witness", 7);
            let _ = look.judge(std::time::Duration::from_secs(10));
        }
        Err(cause) => hides(cause),
    }
}

/// CLUSTER SLOTS, and the redirects that change a map.
pub(super) fn slots(data: &[u8]) {
    let mut reader = ReplyReader::new(secret());
    reader.push(data);
    let mut ranges = SlotRanges::new("10.0.0.1");
    if let Err(cause) = reader.next_by_element(&mut |range| ranges.add(range)) {
        hides(cause);
    }
    let mut map = ranges.map();
    assert!(map.missing() <= usize::from(SLOTS));
    let shards: Vec<u16> = map.shards().collect();
    assert!(shards.len() <= map.servers().count() && shards.iter().all(|slot| *slot < SLOTS));
    let to = ("10.0.0.2".to_owned(), 6379);
    for slot in shards.into_iter().chain([0, SLOTS - 1]).take(8) {
        map.set_owner(slot, to.clone());
        assert_eq!(map.master(slot), Some(&to));
    }
    let map = Arc::new(map);
    let slots = combinations(&[map.clone(), map]);
    assert!(!slots.is_empty() && slots.iter().all(|slot| *slot < SLOTS));
}

/// Answers of sentinels: to where a master is, and to what it is.
pub(super) fn sentinels(data: &[u8]) {
    for reply in replies(&planted(data, PASSWORD.as_bytes())) {
        match sentinels::words(reply) {
            Ok(Some(words)) => {
                let known = sentinels::endpoint(&words);
                let shown = known.filter(|(host, _)| !secret().is_in_host(host));
                if let Some((host, port)) = shown {
                    let like = ConnectionAddr::Tcp("10.0.0.1".into(), 6379);
                    hides(text::address(&given_node::like(&like, host.into(), port)));
                }
            }
            Ok(None) => {}
            Err(cause) => hides(cause),
        }
    }
}

/// Messages of subscriptions, and what a node that denies a lock reports.
pub(super) fn messages(data: &[u8]) {
    for reply in replies(&planted(data, PASSWORD.as_bytes())) {
        if let Some(info) = LockInfo::parse(&reply) {
            let label = info.label.as_ref().map_or("", Label::as_str);
            assert!(label.len() <= Label::MAX && !label.contains(char::is_control));
            let _ = (info.foreign(), info.is_reserved());
        }
        if let Some(waiters) = Waiters::of_reply(&reply) {
            let _ = waiters.longest();
            assert!(waiters.labels().count() <= waiters.count());
            for label in waiters.labels() {
                assert!(label.len() <= Label::MAX && !label.contains(char::is_control));
            }
        }
        if let Some(key) = node_queue::message(reply) {
            let _ = node_queue::is_channel(&key);
        }
    }
}

/// Values of locks and of what is beside them: what is read as one is written alike, and shown as text.
pub(super) fn values(data: &[u8]) {
    if let Some(parts) = lock_value::parse(data, data.len()) {
        let again = pack(&parts.token, parts.since, parts.label.as_ref());
        // This crate writes no time of zeros.
        let has_more = parts.since != Since::UNKNOWN || parts.label.is_some();
        let fields = data.strip_prefix(&again[..]);
        assert!(
            !has_more || fields.is_some_and(|fields| [None, Some(&0)].contains(&fields.first())),
            "it is written as another value"
        );
        let _ = parts.since.time();
        assert_eq!(format!("{:?}", parts.token), "Token(..)");
    }
    let holders = [
        Holder::parse(data, data.len()),
        Holder::of_member(data),
        inspect_reply::member(data).and_then(|(holder, _)| holder),
    ];
    for holder in holders.into_iter().flatten() {
        let text = holder.to_string();
        assert!(text.len() <= 3 * Label::MAX && !text.contains(char::is_control));
    }
    if let Some(run) = LastRun::parse(data) {
        assert_eq!(LastRun::parse(&run.pack()), Some(run));
    }
}

/// Errors of servers, which may repeat what they were sent in several forms.
pub(super) fn errors(data: &[u8]) {
    let percent: String = PASSWORD
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect();
    let escaped: String = PASSWORD
        .bytes()
        .map(|byte| format!("\\x{byte:02x}"))
        .collect();
    let text = String::from_utf8_lossy(data).into_owned();
    let text = text.replace('\u{1}', PASSWORD);
    let text = text.replace('\u{2}', &percent).replace('\u{3}', &escaped);
    let shown = secret().cut(&text);
    let is_shown = |shown: &str| {
        [PASSWORD, &percent, &escaped]
            .iter()
            .any(|form| shown.contains(form))
    };
    assert!(!is_shown(&shown), "{text:?} is shown as {shown:?}");
    assert!(!is_shown(&secret().cut_value(&text)));
    let from: Arc<str> = "10.0.0.1:6379".into();
    let elsewhere = Redirection::of(&shown, &from);
    let elsewhere = elsewhere.map(|answer| Cause::Redirected(answer.into()));
    let causes = [
        Cause::refused(&shown),
        Cause::logged_out(&shown),
        Cause::demoted(&shown),
    ];
    for cause in causes.into_iter().chain(elsewhere) {
        let _ = (cause.is_final(), cause.is_silence(), cause.concerns_name());
        let texts = [cause.to_string(), cause.without_advice()];
        assert!(texts.iter().all(|text| !is_shown(text)));
    }
}
