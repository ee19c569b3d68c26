//! The meaning of a command to a server: which token it sets, extends or releases.

use crate::protocol::commands::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_NAMES, ACQUIRE_OR_ENQUEUE, ACQUIRE_PERMIT, ACQUIRE_READ,
    ACQUIRE_WRITE, DEQUEUE, EXTEND, EXTEND_MEMBER, EXTEND_NAMES, FENCE, FENCE_MEMBER, FENCE_NAMES,
    LEAVE, REFILL_MEMBER, REFILL_NAMES, RELEASE, RELEASE_AND_NOTIFY, RELEASE_MEMBER, RELEASE_NAMES,
    Script,
};
use crate::testing::store::request::parse;

/// The scripts that acquire locks that are not plain.
const ACQUIRE: [Script; 4] = [ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, ACQUIRE_NAMES];
const REFILL: [Script; 2] = [REFILL_MEMBER, REFILL_NAMES];

/// The meaning of a command, and its token.
pub(super) enum Command {
    /// Whether the command enters the queue.
    Set(usize, bool),
    Extend(usize),
    /// Whether the command notifies.
    Release(usize, bool),
    Fence(usize),
    Leave,
    Ping,
    /// A look for the restart guard.
    Look,
}

impl Command {
    pub(super) fn of(args: &[&[u8]]) -> Command {
        let is = |script: Script| {
            let by_hash = args[0] == b"EVALSHA";
            args[1] == if by_hash { script.hash } else { script.text }
        };
        let arg = |number: usize| args[2 + keys(args) + number];
        // The first argument behind the keys.
        let first = || token(arg(1));
        match args[0] {
            b"PING" => Command::Ping,
            b"INFO" | b"GET" | b"TIME" => Command::Look,
            b"SET" if args[3] == b"IFEQ" => Command::Extend(token(args[2])),
            b"SET" => Command::Set(token(args[2]), false),
            b"DELIFEQ" | b"DELEX" => Command::Release(token(args[args.len() - 1]), false),
            _ if is(ACQUIRE_OR_ENQUEUE) || is(ACQUIRE_IN_ORDER) => {
                Command::Set(token(arg(1)), true)
            }
            _ if ACQUIRE.into_iter().chain(REFILL).any(is) => Command::Set(first(), false),
            _ if is(RELEASE_MEMBER) => Command::Release(first(), keys(args) > 1),
            _ if is(RELEASE_NAMES) => {
                let count: usize = str::from_utf8(arg(2)).unwrap().parse().unwrap();
                Command::Release(first(), keys(args) > count)
            }
            _ if is(LEAVE) => Command::Leave,
            _ if is(EXTEND_MEMBER) || is(EXTEND_NAMES) => Command::Extend(first()),
            _ if is(FENCE_MEMBER) || is(FENCE_NAMES) => Command::Fence(first()),
            _ if is(RELEASE_AND_NOTIFY) || is(RELEASE) => {
                Command::Release(token(arg(1)), is(RELEASE_AND_NOTIFY))
            }
            _ if is(EXTEND) => Command::Extend(token(arg(1))),
            _ if is(FENCE) => Command::Fence(token(arg(1))),
            _ if is(DEQUEUE) => Command::Leave,
            _ => panic!("an unknown script"),
        }
    }
}

/// The token in a value, or an argument.
pub(super) fn token(arg: &[u8]) -> usize {
    let id = u64::from_le_bytes(arg[..8].try_into().unwrap());
    usize::try_from(id).unwrap()
}

/// The process in a channel's name: "redlock:", and the same two digits sixteen times.
pub(super) fn channel(name: &[u8]) -> usize {
    let digits = str::from_utf8(&name[8..10]).unwrap();
    usize::from_str_radix(digits, 16).unwrap()
}

/// How many keys a script is called with.
pub(super) fn keys(args: &[&[u8]]) -> usize {
    str::from_utf8(args[2]).unwrap().parse().unwrap()
}

/// The commands in `bytes`, which are whole: whether each sets or releases which token.
pub(super) fn commands(mut bytes: &[u8], mut each: impl FnMut(bool, usize)) {
    while let Some((args, length)) = parse(bytes) {
        bytes = &bytes[length..];
        match Command::of(&args) {
            Command::Set(token, _) => each(true, token),
            Command::Release(token, _) => each(false, token),
            _ => {}
        }
    }
}
