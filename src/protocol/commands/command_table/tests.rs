//! Commands as bytes, and the meaning of replies.

mod kinds;
mod packed;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::protocol::commands::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_OR_ENQUEUE, DEQUEUE, EXTEND, FENCE, RELEASE, RELEASE_AND_NOTIFY,
};
use crate::protocol::commands::vote::Proof;
use crate::values::label::Label;

#[test]
fn a_node_answers_a_ping_also_where_that_is_not_permitted() {
    let answers = |bytes: &[u8]| {
        let (reply, _) = resp::parse(bytes, &Secret::default()).unwrap().unwrap();
        match Action::Ping.vote(&crate::proof::fixtures::key(b"a"), reply) {
            Vote::Granted(_) => "yes",
            Vote::Failed { later, .. } if later => "not now",
            Vote::Failed { .. } | Vote::Denied(_) | Vote::OtherUse(_) => "no",
            Vote::Sever(_) => "of no use",
        }
    };
    for (bytes, expected) in [
        (&b"+PONG\r\n"[..], "yes"),
        (b"-NOPERM this user may not\r\n", "yes"),
        (b"-LOADING Redis is loading\r\n", "not now"),
        (b"-ERR unknown command 'PING'\r\n", "no"),
        (b"-NOAUTH Authentication required.\r\n", "of no use"),
        (b"-MASTERDOWN Link with MASTER is down\r\n", "of no use"),
        (b":1\r\n", "of no use"),
    ] {
        assert_eq!(answers(bytes), expected, "{}", bytes.escape_ascii());
    }
}

fn entry() -> Arc<QueueEntry> {
    Arc::new(QueueEntry {
        channel: Channel::new([0x5A; 16]),
        arrived: 1_700_000_000_123,
        waited: 17,
        lease: 8000,
        turn: None,
    })
}

#[test]
fn commands_are_packed_as_the_redis_crate_packs_them() {
    let resource = Arc::from(&b"a {b}\r\n\0\xff"[..]);
    let key = Key::new(resource, Token::from_bytes([7; 20]), None);
    let ttl = Ttl::new(Duration::from_millis(30_000)).unwrap();
    let (resource, token) = (&*key.resource, &key.token.as_bytes()[..]);
    let entry = entry();
    let turn = QueueTurn::new(Duration::from_millis(100));
    let in_turn = Arc::new(QueueEntry {
        turn: Some(turn),
        ..*entry
    });
    let mut set = redis::cmd("SET");
    set.arg(resource).arg(token).arg("NX").arg("PX").arg(30_000);
    let beside = |what: &str| [resource, b"::redlock:", what.as_bytes()].concat();
    let script = |script: Script, beside_it: &[&str], by_hash| {
        let mut call = redis::cmd(if by_hash { "EVALSHA" } else { "EVAL" });
        call.arg(if by_hash { script.hash } else { script.text });
        call.arg(1 + beside_it.len()).arg(resource);
        for what in beside_it {
            call.arg(beside(what));
        }
        call
    };
    let held =
        |of: Script, beside_it: &[&str], by_hash| script(of, beside_it, by_hash).arg(token).clone();
    let dequeue = |by_hash| {
        let mut call = script(DEQUEUE, &["w", "wt"], by_hash);
        call.arg(&entry.channel.bytes()).arg(1).arg(400);
        call
    };
    let enqueue = |by_script, by_hash| {
        let mut call = held(by_script, &["w", "wt"], by_hash);
        call.arg(30_000).arg(&entry.channel.bytes());
        call.arg(1_700_000_000_123_u64).arg(17).arg(8000);
        call
    };
    for by_hash in [false, true] {
        for (action, expected) in [
            (Action::Acquire(ttl), set.clone()),
            (Action::Release(Notify::None), held(RELEASE, &[], by_hash)),
            (
                Action::Release(Notify::First),
                held(RELEASE_AND_NOTIFY, &["w"], by_hash),
            ),
            (
                Action::Release(Notify::FirstBut(entry.channel)),
                held(RELEASE_AND_NOTIFY, &["w"], by_hash)
                    .arg(&entry.channel.bytes())
                    .clone(),
            ),
            (
                Action::Release(Notify::FirstAndReserve(turn)),
                held(RELEASE_AND_NOTIFY, &["w", "wt"], by_hash)
                    .arg(400)
                    .clone(),
            ),
            (
                Action::AcquireOrEnqueue(ttl, entry.clone()),
                enqueue(ACQUIRE_OR_ENQUEUE, by_hash),
            ),
            (
                Action::AcquireOrEnqueue(ttl, in_turn.clone()),
                enqueue(ACQUIRE_IN_ORDER, by_hash).arg(400).clone(),
            ),
            (
                Action::Dequeue(Arc::new(entry.channel), turn, true),
                dequeue(by_hash),
            ),
            (
                Action::Extend(ttl, ttl),
                held(EXTEND, &[], by_hash).arg(30_000).clone(),
            ),
            (
                Action::Shorten(ttl),
                held(EXTEND, &[], by_hash).arg(30_000).arg(1).clone(),
            ),
            (
                Action::Fence(17),
                held(FENCE, &["fence"], by_hash).arg(17).clone(),
            ),
            (
                Action::Done(17, b"redlock:done 1 2 a".as_slice().into()),
                held(DONE, &["done"], false)
                    .arg("redlock:done 1 2 a")
                    .arg(17)
                    .clone(),
            ),
            (Action::Ping, redis::cmd("PING")),
        ] {
            let mut packed = Vec::new();
            let means = Dialect {
                scripts: Scripts::by_hash_if(by_hash),
                ..Dialect::ALL
            };
            action.pack(&key, &Prefix::default(), means, &mut packed);
            assert_eq!(packed, expected.get_packed_command());
        }
    }
    // Only the value that a node stores has the time and the label.
    let label = Label::parse(b"web-3:4711");
    let acquired = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let labelled = Key::new(key.resource.clone(), key.token, label).since(acquired);
    let packed = |action: &Action, key: &Key| {
        let mut packed = Vec::new();
        action.pack(key, &Prefix::default(), Dialect::ALL, &mut packed);
        packed
    };
    for action in [
        Action::Acquire(ttl),
        Action::Repair(ttl),
        Action::AcquireOrEnqueue(ttl, entry),
        Action::AcquireOrEnqueue(ttl, in_turn),
    ] {
        let bytes = packed(&action, &labelled);
        let value = [&[7; 20][..], b"\0redlock:\0\x6b\x49\xd2\0web-3:4711"].concat();
        assert!(bytes.windows(value.len()).any(|part| part == value));
    }
    for action in [
        Action::Release(Notify::First),
        Action::Extend(ttl, ttl),
        Action::Shorten(ttl),
        Action::Fence(1),
    ] {
        assert_eq!(packed(&action, &labelled), packed(&action, &key));
    }
}

/// The whole value is compared there, and a process that resumes the lock does not know when it was acquired.
#[test]
fn without_scripts_a_value_has_no_time() {
    let ttl = Ttl::new(Duration::from_millis(30_000)).unwrap();
    let entry = entry();
    for (label, expected) in [
        (None, vec![7; 20]),
        (
            Label::parse(b"web-3"),
            [&[7; 20][..], b"\0redlock:\0\0\0\0\0web-3"].concat(),
        ),
    ] {
        let token = Token::from_bytes([7; 20]);
        let resumed = Key::new(Arc::from(&b"a"[..]), token, label);
        let today = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let acquired = resumed.clone().since(today);
        for delete in [Delete::IfEq, Delete::Ex] {
            for action in [
                Action::Acquire(ttl),
                Action::AcquireOrEnqueue(ttl, entry.clone()),
                Action::Repair(ttl),
                Action::Extend(ttl, ttl),
                Action::Shorten(ttl),
                Action::Release(Notify::First),
            ] {
                let packed = [&resumed, &acquired].map(|key| {
                    let means = Dialect {
                        scripts: Scripts::None(delete),
                        ..Dialect::ALL
                    };
                    let mut packed = Vec::new();
                    action.pack(key, &Prefix::default(), means, &mut packed);
                    packed
                });
                assert_eq!(packed[0], packed[1], "{action:?}");
                let value = [format!("${}\r\n", expected.len()).as_bytes(), &expected].concat();
                assert!(packed[0].windows(value.len()).any(|part| part == value));
            }
        }
    }
}

/// A server may have been demoted unseen, or may have lost the key.
#[test]
fn an_answer_that_gives_a_vote_counts_with_a_proof_and_no_other_waits_for_one() {
    let ttl = crate::proof::fixtures::ttl(Duration::from_secs(30));
    let (entry, turn) = (entry(), QueueTurn::new(Duration::from_millis(100)));
    let channel = Arc::new(entry.channel);
    for (action, needed) in [
        (Action::Acquire(ttl), Proof::Witness),
        (Action::AcquireOrEnqueue(ttl, entry), Proof::Witness),
        (Action::Extend(ttl, ttl), Proof::Look),
        (Action::Fence(7), Proof::Look),
        (Action::Done(7, Arc::from(&b"x"[..])), Proof::Look),
        (Action::Shorten(ttl), Proof::None),
        (Action::Leak(ttl), Proof::None),
        (Action::Release(Notify::First), Proof::None),
        (Action::Repair(ttl), Proof::None),
        (Action::Dequeue(channel, turn, true), Proof::None),
        (Action::Ping, Proof::None),
    ] {
        assert!(action.needs() == needed, "{action:?}");
    }
}
