//! Scripts with faults, each in one place. A difference must be found for each of them, or the search would find none
//! in the model either.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Pair, packed, text};
use crate::protocol::commands::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_NAMES, ACQUIRE_OR_ENQUEUE, ACQUIRE_PERMIT, ACQUIRE_READ,
    ACQUIRE_WRITE, DEQUEUE, EXTEND, EXTEND_MEMBER, EXTEND_NAMES, FENCE, FENCE_MEMBER, FENCE_NAMES,
    INSPECT, LEAVE, REFILL_MEMBER, REFILL_NAMES, RELEASE, RELEASE_AND_NOTIFY, RELEASE_MEMBER,
    RELEASE_NAMES, Script,
};
use crate::protocol::commands::sha1::sha1;
use crate::values::clock;

/// A script, a text in it, and the text that replaces it.
type Change = (Script, &'static str, &'static str);

const CHANGES: &[Change] = &[
    (RELEASE, "== ARGV[1]", "~= ''"),
    (EXTEND, "~= ARGV[1]", "== ''"),
    (EXTEND, "left < ttl", "left > ttl"),
    (EXTEND, "left > ttl", "left < ttl"),
    (EXTEND, "left < 0", "false"),
    (EXTEND, "go_on(KEYS[1], value, left)", ""),
    (FENCE, "or 0) + 1", "or 0)"),
    (RELEASE_AND_NOTIFY, "try('DEL', turn)", ""),
    (DEQUEUE, "try('ZREM', queue, me)", ""),
    (ACQUIRE_OR_ENQUEUE, "try('PEXPIRE', queue, ARGV[6])", ""),
    (ACQUIRE_IN_ORDER, "'NX', 'PX', ARGV[7]", "'PX', ARGV[7]"),
    (ACQUIRE_PERMIT, "'-inf', '('", "'-inf', ''"),
    (ACQUIRE_PERMIT, "if not taken[slot] then", "if true then"),
    (EXTEND_MEMBER, "all[i + 1] + ahead", "all[i + 1]"),
    (ACQUIRE_PERMIT, "math.abs(ahead) > 1", "false"),
    (EXTEND_MEMBER, "math.max(last, new)", "last"),
    (EXTEND_MEMBER, "math.min(last, new)", "new"),
    (EXTEND_MEMBER, "and 128 or 0", "and 128 or 128"),
    (
        EXTEND_MEMBER,
        "sub(member, 10, 12) + 1",
        "sub(member, 10, 12) + 0",
    ),
    (RELEASE_MEMBER, "set_end()\nreturn frees", "return frees"),
    (
        REFILL_MEMBER,
        "found == 's' and head(other) == wanted",
        "found == 's' and head(other) == ''",
    ),
    (RELEASE, "value and -1 or -2", "-2"),
    (EXTEND_MEMBER, "head(other) == wanted", "head(other) == ''"),
    (RELEASE_NAMES, "lost or -2", "-2"),
    (
        REFILL_MEMBER,
        "head(member) ~= wanted",
        "head(member) == ''",
    ),
    (FENCE_MEMBER, "if not find(ARGV[1], ARGV[3])", "if not name"),
    (
        ACQUIRE_READ,
        "since + 0 < now - ARGV[5]",
        "since + 0 > now - ARGV[5]",
    ),
    (ACQUIRE_READ, "found == 's' and -3 or -4", "-4"),
    (
        ACQUIRE_READ,
        "tell(queue, name)\nend\nreturn",
        "end\nreturn",
    ),
    (ACQUIRE_READ, "try('DEL', KEYS[3])", ""),
    (ACQUIRE_WRITE, "older + 0 > since", "older + 0 < since"),
    (ACQUIRE_WRITE, "local sum = #readers", "local sum = 0"),
    (
        ACQUIRE_NAMES,
        "elseif kind ~= 'none'",
        "elseif kind == 'hash'",
    ),
    (
        ACQUIRE_NAMES,
        "return denied(at, digits(",
        "return denied(at, ('000000' or ",
    ),
    (ACQUIRE_NAMES, "~= ARGV[6 + at]", "~= ARGV[7]"),
    (ACQUIRE_NAMES, "token == '' or ", ""),
    (EXTEND_NAMES, "if not values[i]", "if false"),
    (EXTEND_NAMES, "left > ttl", "true"),
    (ACQUIRE_NAMES, "try('EXISTS'", "1 + try('EXISTS'"),
    (RELEASE_NAMES, "== ARGV[4] then", "== 1 then"),
    (RELEASE_NAMES, "heard ~= 0", "heard ~= 1"),
    (LEAVE, "try('ZREM', KEYS[count + i], me)", ""),
    (LEAVE, "~= 'string'", "== 'string'"),
    (REFILL_NAMES, "and not holds(name)", "and holds(name)"),
    (FENCE_NAMES, "or 0) + 1", "or 0)"),
    (INSPECT, "if left == -2 then", "if left == -1 then"),
    (INSPECT, "- now >= 0", "- now > 0"),
    // How much is shown of a value or member, which may have fields of later versions.
    (INSPECT, "KEYS[1], 0, 255)", "KEYS[1], 0, 254)"),
    (INSPECT, "1, 269)", "1, 268)"),
    // Labels of waiters.
    (
        RELEASE_AND_NOTIFY,
        "waiter = string.match(waiter, '^[^ ]*')\n",
        "",
    ),
    (DEQUEUE, "waiter = string.match(waiter, '^[^ ]*')\n", ""),
    (DEQUEUE, "string.match(me, '^[^ ]*')", "me"),
    (ACQUIRE_IN_ORDER, "string.match(first, '^[^ ]*')", "first"),
    (
        RELEASE_MEMBER,
        "waiter = string.match(waiter, '^[^ ]*')\n",
        "",
    ),
    (
        ACQUIRE_WRITE,
        "ARGV[7], string.match(me, '^[^ ]*'))",
        "ARGV[7], me)",
    ),
];

/// A script with a fault.
pub(super) struct Fault {
    of: Script,
    text: Vec<u8>,
    hash: Vec<u8>,
    /// The commands that are sent often call its script.
    pub(super) is_aimed_at: bool,
}

impl Fault {
    fn new((of, from, to): Change, is_aimed_at: bool) -> Fault {
        let text = text(of.text);
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
        let text = text.replace(from, to).into_bytes();
        let hash = sha1(&text).to_vec();
        Fault {
            of,
            text,
            hash,
            is_aimed_at,
        }
    }

    /// Replaces the script in these arguments by the one with the fault.
    pub(super) fn put_into<'a>(&'a self, args: &mut [&'a [u8]]) {
        for arg in args {
            if *arg == self.of.text {
                *arg = &self.text;
            } else if *arg == self.of.hash {
                *arg = &self.hash;
            }
        }
    }

    pub(super) fn sent(&self, args: &[&[u8]]) -> Vec<u8> {
        let mut args = args.to_vec();
        self.put_into(&mut args);
        packed(&args)
    }

    /// Whether these arguments call its script.
    pub(super) fn is_called(&self, args: &[&[u8]]) -> bool {
        args.contains(&self.of.text) || args.contains(&self.of.hash)
    }

    /// The kinds that its script is for, of a hundred locks that are not plain.
    pub(super) fn kinds(&self) -> Option<Range<u64>> {
        let is_one_of = |scripts: &[Script]| scripts.iter().any(|one| one.hash == self.of.hash);
        match () {
            () if is_one_of(&[ACQUIRE_PERMIT]) => Some(0..45),
            () if is_one_of(&[EXTEND_MEMBER, RELEASE_MEMBER, REFILL_MEMBER]) => Some(0..65),
            () if is_one_of(&[FENCE_MEMBER, INSPECT]) => Some(0..65),
            // A name that is in other use is denied.
            () if is_one_of(&[ACQUIRE_READ]) => Some(35..85),
            () if is_one_of(&[ACQUIRE_WRITE]) => Some(45..85),
            () if is_one_of(&[ACQUIRE_NAMES, EXTEND_NAMES, RELEASE_NAMES]) => Some(85..100),
            () if is_one_of(&[REFILL_NAMES, FENCE_NAMES, LEAVE]) => Some(85..100),
            () => None,
        }
    }
}

/// Looks for the difference that the next change makes, until none is left. Returns the changes that make none.
fn search(next: &AtomicUsize, aims: bool) -> Vec<&'static str> {
    let (mut pair, mut missed) = (Pair::new(), Vec::new());
    while let Some(change) = CHANGES.get(next.fetch_add(1, Ordering::Relaxed)) {
        let (_, from, to) = *change;
        let (started, before) = (clock::instant(), pair.counts.judged);
        pair.fault = Some(Fault::new(*change, aims));
        let found = pair.search(Duration::from_secs(120));
        let (took, judged) = (started.elapsed(), pair.counts.judged - before);
        println!("{from:?} as {to:?}: {judged} commands, {took:.1?}");
        if found.is_none() {
            missed.push(from);
        }
    }
    missed
}

/// The changes for which no difference is found.
fn missed(aims: bool) -> Vec<&'static str> {
    let next = AtomicUsize::new(0);
    // While a server works, its search waits.
    let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| search(&next, aims));
        let threads: Vec<_> = (0..threads).map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect()
    })
}

#[test]
fn differential_finds_mutated_scripts() {
    assert_eq!(missed(true), [""; 0]);
}

/// Searches in the same way as for differences in the model.
#[test]
#[ignore = "it takes a minute"]
fn differential_finds_mutated_scripts_without_aiming_at_them() {
    assert_eq!(missed(false), [""; 0]);
}
