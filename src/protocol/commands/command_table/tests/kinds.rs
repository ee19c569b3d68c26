//! Commands of locks that are not plain, and the meaning of replies to them.

use std::sync::Arc;

use super::*;
use crate::proof::fixtures::{MS, ttl};
use crate::protocol::commands::kind::Mark;
use crate::protocol::commands::scripts::{
    ACQUIRE_NAMES, ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, EXTEND_MEMBER, EXTEND_NAMES,
    FENCE_MEMBER, FENCE_NAMES, LEAVE, REFILL_MEMBER, REFILL_NAMES, RELEASE_MEMBER, RELEASE_NAMES,
};
use crate::values::label::Label;

const UNDO: Action = Action::Release(Notify::None);
const RELEASE: Action = Action::Release(Notify::First);

fn permit(permits: u16, slot: Option<u16>) -> Kind {
    Kind::Permit { permits, slot }
}

fn both() -> Kind {
    Kind::several([b"a", b"b"].map(|name| Arc::from(&name[..])).into())
}

/// The call of a script with these keys.
fn call(script: Script, keys: &[&str]) -> redis::Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(script.hash).arg(keys.len()).arg(keys);
    call
}

fn key(kind: &Kind) -> Key {
    let label = Label::parse(b"web");
    let key = Key::new(Arc::from(&b"a"[..]), Token::from_bytes([7; 20]), label);
    key.of_kind(kind.clone())
}

fn assert_packed(rows: &[(&Kind, &Action, &redis::Cmd)]) {
    for (kind, action, expected) in rows {
        let mut packed = Vec::new();
        action.pack(&key(kind), &Prefix::default(), Dialect::ALL, &mut packed);
        assert_eq!(packed, expected.get_packed_command(), "{kind:?} {action:?}");
    }
}

const ID: &[u8] = &[7; 20];
const VALUE: &[u8] = b"\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\0redlock:\0\0\0\0\0web";

#[test]
fn commands_of_members_have_all_keys_and_as_much_of_the_member_as_is_known() {
    let (new, held) = (permit(3, None), permit(3, Some(17)));
    let [slot, reader] = [&b"redlock:s017"[..], b"redlock:r000"].map(|head| [head, VALUE].concat());
    let read = Kind::Read { waited: 40 };
    let second = ttl(1000 * MS);
    let (acquire, extend) = (Action::Acquire(second), Action::Extend(second, second));
    let channel = Channel::new([0x5A; 16]);
    let entry = entry(channel);
    let (name, arrived) = (channel.bytes(), entry.arrived);
    let waiter = [&name[..], b" web"].concat();
    let waits = Action::AcquireOrEnqueue(second, Arc::new(entry));
    let but = Action::Release(Notify::FirstBut(channel));
    let preferred = 0x0707 % 3;
    assert_packed(&[
        (
            &new,
            &acquire,
            call(ACQUIRE_PERMIT, &["a"])
                .arg(VALUE)
                .arg(1000)
                .arg("")
                .arg(&[0, 0, 0, 3, preferred]),
        ),
        (
            &held,
            &extend,
            call(EXTEND_MEMBER, &["a"]).arg(ID).arg(&slot).arg(1000),
        ),
        (
            &new,
            &extend,
            call(EXTEND_MEMBER, &["a"]).arg(ID).arg(VALUE).arg(1000),
        ),
        (
            &held,
            &Action::Shorten(second),
            call(EXTEND_MEMBER, &["a"])
                .arg(ID)
                .arg(&slot)
                .arg(1000)
                .arg(1),
        ),
        (
            &held,
            &Action::Repair(second),
            call(REFILL_MEMBER, &["a"]).arg(ID).arg(&slot).arg(1000),
        ),
        (
            &held,
            &RELEASE,
            call(RELEASE_MEMBER, &["a", "{a}:redlock:w"])
                .arg(ID)
                .arg(&slot),
        ),
        (
            &Kind::Stray(17),
            &UNDO,
            call(RELEASE_MEMBER, &["a"]).arg(ID).arg(&slot).arg(1),
        ),
        (
            &new,
            &waits,
            call(ACQUIRE_PERMIT, &["a", "{a}:redlock:w"])
                .arg(VALUE)
                .arg(1000)
                .arg(&waiter)
                .arg(arrived)
                .arg(&[17, 8000, 3, preferred]),
        ),
        (
            &read,
            &but,
            call(RELEASE_MEMBER, &["a", "{a}:redlock:w"])
                .arg(ID)
                .arg(&reader)
                .arg(&name),
        ),
        (
            &held,
            &Action::Fence(17),
            call(FENCE_MEMBER, &["a", "{a}:redlock:fence"])
                .arg(ID)
                .arg(17)
                .arg(&slot),
        ),
        (
            &read,
            &acquire,
            call(ACQUIRE_READ, &["a", "{a}:redlock:w", "{a}:redlock:ww"])
                .arg(VALUE)
                .arg(1000)
                .arg("")
                .arg(&[0, 40, 0]),
        ),
        (
            &read,
            &UNDO,
            call(RELEASE_MEMBER, &["a"]).arg(ID).arg(&reader),
        ),
    ]);
}

fn entry(channel: Channel) -> QueueEntry {
    QueueEntry {
        channel,
        arrived: 1_700_000_000_123,
        waited: 17,
        lease: 8000,
        turn: None,
    }
}

#[test]
fn commands_of_writers_and_several_names_have_all_keys_and_claims() {
    let (both, second) = (both(), ttl(1000 * MS));
    let write = Kind::Write(Mark {
        writer: 0x1234,
        life: 600,
        waited: 40,
    });
    let mark = "0000000000001234";
    let (acquire, extend) = (Action::Acquire(second), Action::Extend(second, second));
    let channel = Channel::new([0x5A; 16]);
    let entry = entry(channel);
    let (name, arrived) = (channel.bytes(), entry.arrived);
    let waiter = [&name[..], b" web"].concat();
    let waits = Action::AcquireOrEnqueue(second, Arc::new(entry));
    let turn = QueueTurn::new(100 * MS);
    let leave = Action::Dequeue(Arc::new(channel), turn, false);
    let Kind::Several { names, .. } = both.clone() else {
        panic!("it is on several names");
    };
    let claims = Some(Arc::new(vec![None, Some(Token::from_bytes([7; 20]))]));
    let claiming = Kind::Several { names, claims };
    assert_packed(&[
        (
            &write,
            &leave,
            call(LEAVE, &["a", "{a}:redlock:w", "{a}:redlock:ww"])
                .arg(1)
                .arg(mark)
                .arg(&waiter),
        ),
        (
            &write,
            &acquire,
            call(ACQUIRE_WRITE, &["a", "{a}:redlock:w", "{a}:redlock:ww"])
                .arg(VALUE)
                .arg(1000)
                .arg("")
                .arg(&[0, 40, 0])
                .arg(mark)
                .arg(600),
        ),
        (
            &write,
            &UNDO,
            call(RELEASE_NAMES, &["a"]).arg(ID).arg(1).arg("").arg(mark),
        ),
        (
            &write,
            &RELEASE,
            call(RELEASE_NAMES, &["a", "{a}:redlock:w", "{a}:redlock:ww"])
                .arg(ID)
                .arg(1)
                .arg("")
                .arg(mark),
        ),
        (
            &both,
            &acquire,
            call(ACQUIRE_NAMES, &["a", "b"])
                .arg(VALUE)
                .arg(1000)
                .arg("")
                .arg(&[0, 0, 0]),
        ),
        (
            &both,
            &waits,
            call(ACQUIRE_NAMES, &["a", "b", "{a}:redlock:w", "{b}:redlock:w"])
                .arg(VALUE)
                .arg(1000)
                .arg(&waiter)
                .arg(arrived)
                .arg(&[17, 8000]),
        ),
        (
            &claiming,
            &acquire,
            call(ACQUIRE_NAMES, &["a", "b"])
                .arg(VALUE)
                .arg(1000)
                .arg("")
                .arg(&[0, 0, 0])
                .arg("")
                .arg(ID),
        ),
        (
            &both,
            &extend,
            call(EXTEND_NAMES, &["a", "b"]).arg(ID).arg(1000),
        ),
        (
            &both,
            &Action::Shorten(second),
            call(EXTEND_NAMES, &["a", "b"]).arg(ID).arg(1000).arg(1),
        ),
        (
            &both,
            &Action::Repair(second),
            call(REFILL_NAMES, &["a", "b"]).arg(ID).arg(VALUE).arg(1000),
        ),
        (
            &both,
            &RELEASE,
            call(
                RELEASE_NAMES,
                &[
                    "a",
                    "b",
                    "{a}:redlock:w",
                    "{b}:redlock:w",
                    "{a}:redlock:ww",
                    "{b}:redlock:ww",
                ],
            )
            .arg(ID)
            .arg(2)
            .arg("")
            .arg(""),
        ),
        (
            &both,
            &Action::Fence(17),
            call(
                FENCE_NAMES,
                &["a", "b", "{a}:redlock:fence", "{b}:redlock:fence"],
            )
            .arg(ID)
            .arg(17),
        ),
    ]);
}

#[test]
fn what_no_script_answers_is_no_vote() {
    let second = ttl(1000 * MS);
    let acquire = &Action::Acquire(second);
    let extend = &Action::Extend(second, second);
    let (shorten, repair) = (&Action::Shorten(second), &Action::Repair(second));
    let turn = QueueTurn::new(100 * MS);
    let leave = &Action::Dequeue(Arc::new(Channel::new([7; 16])), turn, false);
    let (read, both, two) = (&Kind::Read { waited: 0 }, &both(), &permit(2, None));
    let vote = |kind: &Kind, action: &Action, reply| match action.vote(&key(kind), reply) {
        Vote::Granted(number) => format!("+{number}"),
        Vote::Denied(Denial::Instead(instead)) => format!("{instead:?}"),
        Vote::Denied(_) => "no".into(),
        Vote::OtherUse(other) => format!("{other:?}"),
        Vote::Sever(Cause::Garbage(_)) => "garbage".into(),
        Vote::Failed { .. } | Vote::Sever(_) => "another".into(),
    };
    let int = Reply::Int;
    for (kind, action, reply, expected) in [
        (two, acquire, int(2), "+2"),
        (two, acquire, int(3), "garbage"),
        (two, acquire, int(0), "garbage"),
        (two, acquire, int(-1), "Lock"),
        (two, acquire, int(-5), "garbage"),
        (two, acquire, int(i64::MIN), "garbage"),
        (two, acquire, Reply::Okay, "garbage"),
        (two, acquire, Reply::Nil, "garbage"),
        (two, acquire, Reply::Bulk("1500 00a1ff -".into()), "no"),
        (two, acquire, Reply::Bulk("x".into()), "garbage"),
        // The permit was resumed by a process that names another number.
        (two, extend, int(1000), "+1000"),
        (two, extend, int(1001), "garbage"),
        (two, extend, int(-2), "Nothing"),
        (two, extend, int(-3), "garbage"),
        (two, leave, int(-1), "garbage"),
        (two, shorten, int(3), "+3"),
        (two, shorten, int(0), "no"),
        (two, &UNDO, int(1), "+1"),
        (two, &UNDO, int(3), "garbage"),
        (two, &UNDO, int(-1), "Another"),
        (two, &UNDO, Reply::Bulk("1500 00a1ff -".into()), "garbage"),
        (two, &Action::Fence(0), int(1 << 40), "+1099511627776"),
        (read, &Action::Fence(0), int(-2), "Nothing"),
        (read, acquire, int(1), "+1"),
        (read, acquire, int(2), "garbage"),
        (read, acquire, int(-3), "Permits"),
        (both, extend, int(2), "garbage"),
        (both, repair, int(0), "no"),
        (both, repair, int(-1), "garbage"),
        (both, acquire, Reply::Okay, "garbage"),
    ] {
        let text = format!("{kind:?} {action:?} {reply:?}");
        assert_eq!(vote(kind, action, reply), expected, "{text}");
    }
}
