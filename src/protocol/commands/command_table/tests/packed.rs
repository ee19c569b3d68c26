//! All commands as bytes, and the votes in all replies, compared with those in `packed.txt`. Behind a change that is
//! meant to change them, `ACCEPT=1 cargo test --lib packed` writes the file anew.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::proof::fixtures::{MS, token, ttl};
use crate::protocol::commands::dialect::Beside;
use crate::protocol::commands::kind::Mark;
use crate::protocol::commands::sha1::sha1;
use crate::values::label::Label;

/// A row for each kind and action, with hashes of two lists, each in the order of the loops here: the commands for all
/// means, labels and prefixes, and the votes.
#[test]
fn all_packed_commands_and_votes_are_those_of_the_list() {
    let mut rows = String::new();
    for (kind_name, kind) in kinds() {
        for (action_name, action) in actions() {
            // The rest of a permit is only released, and work is done under plain locks.
            let occurs = match (&kind, &action) {
                (Kind::Stray(_), action) => *action == Action::Release(Notify::None),
                (kind, Action::Done(..)) => kind.is_plain(),
                _ => true,
            };
            if !occurs {
                continue;
            }
            let packed = digest(&commands(&action, &kind));
            let votes = digest(votes(&action, &kind).as_bytes());
            writeln!(rows, "{kind_name}, {action_name}: {packed} {votes}").unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol/commands/packed.txt");
    if std::env::var_os("ACCEPT").is_some() {
        std::fs::write(path, rows).unwrap();
        return;
    }
    let listed = std::fs::read_to_string(path).unwrap();
    let changed = rows
        .lines()
        .filter(|row| !listed.lines().any(|one| one == *row));
    let changed: Vec<_> = changed.collect();
    assert_eq!(changed, [""; 0], "these rows are not in packed.txt");
    assert_eq!(rows.lines().count(), listed.lines().count());
}

fn digest(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&sha1(bytes)[..12]).into_owned()
}

fn kinds() -> Vec<(&'static str, Kind)> {
    let permits = 3;
    let names = |count: usize| {
        let all = [&b"a"[..], b"b}", b"c"].into_iter().take(count);
        all.map(Arc::from).collect::<Arc<[Arc<[u8]>]>>()
    };
    let mark = |life| Mark {
        writer: 0x1234,
        life,
        waited: 40,
    };
    let claims = Some(Arc::new(vec![None, Some(Token::from_bytes([9; 20]))]));
    vec![
        ("plain", Kind::Plain),
        (
            "new permit",
            Kind::Permit {
                permits,
                slot: None,
            },
        ),
        (
            "permit",
            Kind::Permit {
                permits,
                slot: Some(17),
            },
        ),
        ("stray", Kind::Stray(17)),
        ("read", Kind::Read { waited: 0 }),
        ("read that waited", Kind::Read { waited: 40 }),
        ("write", Kind::Write(mark(0))),
        ("write with a mark", Kind::Write(mark(600))),
        ("one of several", Kind::several(names(1))),
        ("two", Kind::several(names(2))),
        ("three", Kind::several(names(3))),
        (
            "two with claims",
            Kind::Several {
                names: names(2),
                claims,
            },
        ),
    ]
}

fn actions() -> Vec<(&'static str, Action)> {
    let (second, minute) = (ttl(1000 * MS), ttl(60_000 * MS));
    let turn = QueueTurn::new(100 * MS);
    let entry = QueueEntry {
        channel: Channel::new([0x5A; 16]),
        arrived: 1_700_000_000_123,
        waited: 17,
        lease: 8000,
        turn: None,
    };
    let in_turn = QueueEntry {
        turn: Some(turn),
        ..entry
    };
    let (channel, done) = (Arc::new(entry.channel), b"redlock:done 1 2 a".as_slice());
    vec![
        ("acquire", Action::Acquire(second)),
        ("enqueue", Action::AcquireOrEnqueue(second, Arc::new(entry))),
        (
            "in turn",
            Action::AcquireOrEnqueue(second, Arc::new(in_turn)),
        ),
        ("extend", Action::Extend(second, minute)),
        ("shorten", Action::Shorten(second)),
        ("leak", Action::Leak(second)),
        ("release, none", Action::Release(Notify::None)),
        ("release", Action::Release(Notify::First)),
        (
            "release, but",
            Action::Release(Notify::FirstBut(entry.channel)),
        ),
        (
            "release, reserve",
            Action::Release(Notify::FirstAndReserve(turn)),
        ),
        ("repair", Action::Repair(second)),
        ("fence", Action::Fence(17)),
        ("done", Action::Done(17, done.into())),
        ("dequeue", Action::Dequeue(channel.clone(), turn, false)),
        ("dequeue, fair", Action::Dequeue(channel, turn, true)),
        ("ping", Action::Ping),
    ]
}

/// The commands in all forms, one behind the other, and what is asked about them.
fn commands(action: &Action, kind: &Kind) -> Vec<u8> {
    let mut out = Vec::new();
    let delete = [Delete::IfEq, Delete::Ex].map(Scripts::None);
    for label in [None, Label::parse(b"web-3:4711")] {
        for resource in [&b"a"[..], b"b}"] {
            let key = Key::new(Arc::from(resource), token(), label.clone()).of_kind(kind.clone());
            for prefix in ["", "team:"].map(Prefix::new) {
                for scripts in [Scripts::ByHash, Scripts::ByText].into_iter().chain(delete) {
                    for beside in [Beside::All, Beside::InSlot, Beside::None] {
                        let means = Dialect { scripts, beside };
                        let named = means.names_companions(action, &key, &prefix);
                        let native = means.is_native(action);
                        let usual = means.is_usual(action);
                        out.extend([named, native, usual].map(u8::from));
                        action.pack(&key, &prefix, means, &mut out);
                    }
                }
            }
            let loaded = action.loads(&key).map(|script| format!("{script}"));
            out.extend_from_slice(loaded.unwrap_or_default().as_bytes());
        }
    }
    out
}

fn votes(action: &Action, kind: &Kind) -> String {
    let key = Key::new(Arc::from(&b"a"[..]), token(), None).of_kind(kind.clone());
    let ints = (-6..6).chain([1000, 1001, 1 << 40, i64::MIN, i64::MAX]);
    let texts = ["1500 00a1ff w1 web", "-2 - -", "x", ""];
    let errors = [
        "ERR no",
        "NOPERM no",
        "NOAUTH no",
        "LOADING no",
        "READONLY no",
        "CROSSSLOT no",
        "OOM no",
    ];
    let replies = ints.map(Reply::Int);
    let replies = replies.chain([Reply::Okay, Reply::Nil, Reply::Other]);
    let replies = replies.chain(texts.map(|text| Reply::Bulk(text.into())));
    let replies = replies.chain(errors.map(|text| Reply::Error(text.into())));
    let mut all = String::new();
    for reply in replies {
        match action.vote(&key, reply) {
            Vote::Granted(number) => writeln!(all, "granted {number}"),
            Vote::Denied(Denial::Unknown) => writeln!(all, "refused"),
            Vote::Denied(Denial::Held(info)) => writeln!(all, "held {info:?}"),
            Vote::Denied(Denial::Instead(instead)) => writeln!(all, "{instead:?}"),
            Vote::OtherUse(other) => writeln!(all, "{other:?}"),
            Vote::Failed { cause, later } => writeln!(all, "failed {cause} {later}"),
            Vote::Sever(cause) => writeln!(all, "sever {cause}"),
        }
        .unwrap();
    }
    all
}
