//! The commands, packed once for all nodes, and what their replies mean.
//!
//! Release and extend are one script each, so that comparing and acting is one step on the server.
//! They go as EVAL: no hashes to load and no NOSCRIPT to handle, for 0.28 µs of server time.

use std::sync::Arc;

use crate::error::Cause;
use crate::quorum::{Question, Ttl};
use crate::token::Token;

/// Compare-and-delete (REL).
const RELEASE: &[u8] =
    b"if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";

/// Compare-and-pexpire-if-longer: never creates a key (rule R11), never shortens one (rule R12).
const EXTEND: &[u8] = b"if redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end \
    if redis.call('PTTL',KEYS[1])<tonumber(ARGV[2]) then redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 1";

/// What is done to a lock on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire(Ttl),
    Extend(Ttl),
    Release,
}

/// A lock as the nodes know it.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) token: Token,
    /// The nodes that were asked for it, a bit for each: no other owes its release.
    pub(crate) asked: u64,
}

impl Action {
    pub(crate) fn question(self) -> Question {
        match self {
            Action::Acquire(_) => Question::Acquire,
            Action::Extend(_) | Action::Release => Question::Held,
        }
    }

    /// Appends the command to `out`.
    pub(crate) fn pack(self, key: &Key, out: &mut Vec<u8>) {
        let (resource, token): (&[u8], &[u8]) = (&key.resource, key.token.as_bytes());
        match self {
            Action::Acquire(ttl) => {
                let ttl = Decimal::new(ttl.millis());
                pack(
                    out,
                    &[b"SET", resource, token, b"NX", b"PX", ttl.as_bytes()],
                );
            }
            Action::Extend(ttl) => {
                let ttl = Decimal::new(ttl.millis());
                pack(
                    out,
                    &[b"EVAL", EXTEND, b"1", resource, token, ttl.as_bytes()],
                );
            }
            Action::Release => pack(out, &[b"EVAL", RELEASE, b"1", resource, token]),
        }
    }

    /// What a node's reply to this action says.
    pub(crate) fn vote(self, reply: Reply) -> Vote {
        match (self, reply) {
            (Action::Acquire(_), Reply::Okay) => Vote::Granted,
            (Action::Acquire(_), Reply::Nil) => Vote::Refused,
            (Action::Extend(_) | Action::Release, Reply::Int(1)) => Vote::Granted,
            (Action::Extend(_) | Action::Release, Reply::Int(0)) => Vote::Refused,
            // A new connection logs in again.
            (_, Reply::Error(text)) if text.starts_with("NOAUTH") => {
                Vote::Sever(Cause::refused(&text))
            }
            (_, Reply::Error(text)) => Vote::Failed(Cause::refused(&text)),
            (_, other) => Vote::Sever(Cause::Garbage(format!("{other:?}"))),
        }
    }
}

pub(crate) enum Vote {
    Granted,
    Refused,
    /// The server answered with an error.
    Failed(Cause),
    /// This connection is of no use any more.
    Sever(Cause),
}

/// A reply, as far as this crate's commands have any.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Okay,
    Nil,
    Int(i64),
    Error(String),
    Bulk(Vec<u8>),
    Other,
}

/// Errors of a server that can do nothing for anybody at the moment.
const NOT_NOW: [&str; 7] = [
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
];

/// Whether with this error the server refused what it may well do later.
pub(crate) fn is_not_now(error: &str) -> bool {
    // The code comes first; Redis before 7 put words of its own before that of an error in a script:
    // "ERR Error running script …: -READONLY …".
    let mut words = error.split_whitespace();
    let in_script = |word: &str| {
        word.strip_prefix('-')
            .is_some_and(|code| NOT_NOW.contains(&code))
    };
    words.next().is_some_and(|code| NOT_NOW.contains(&code)) || words.any(in_script)
}

/// One RESP command, without the two allocations that `redis::Cmd` makes for each.
fn pack(out: &mut Vec<u8>, args: &[&[u8]]) {
    let header = |out: &mut Vec<u8>, mark: u8, number: usize| {
        out.push(mark);
        out.extend_from_slice(Decimal::new(number as u64).as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    header(out, b'*', args.len());
    for arg in args {
        header(out, b'$', arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// A number in decimal digits, on the stack.
struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    fn new(mut number: u64) -> Decimal {
        let mut decimal = Decimal {
            digits: [b'0'; 20],
            start: 20,
        };
        for (i, digit) in decimal.digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (number % 10).to_le_bytes()[0];
            decimal.start = i;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        decimal
    }

    fn as_bytes(&self) -> &[u8] {
        self.digits.get(self.start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        for number in [0, 1, 9, 10, 99, 12_345_678_900, u64::MAX] {
            assert_eq!(
                Decimal::new(number).as_bytes(),
                number.to_string().as_bytes()
            );
        }
    }

    #[test]
    fn what_a_server_cannot_do_now_is_told_from_what_it_never_will() {
        for text in [
            "READONLY You can't write against a read only replica. script: 0f, on @user_script:1.",
            "ERR Error running script (call to f_0f): @user_script: 1: -READONLY You can't write",
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN Hash slot not served",
            "BUSY Redis is busy running a script.",
        ] {
            assert!(is_not_now(text), "{text}");
        }
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOPERM this user has no permissions to run the 'eval' command",
            "MOVED 3999 127.0.0.1:6381",
            "ERR unknown command 'EVAL', with args beginning with: 'if' '1' 'a BUSY name'",
        ] {
            assert!(!is_not_now(text), "{text}");
        }
    }

    #[test]
    fn commands_are_packed_as_the_redis_crate_packs_them() {
        let key = Key {
            resource: Arc::from(&b"a {b}\r\n\0\xff"[..]),
            token: Token::from_bytes([7; 20]),
            asked: 0,
        };
        let ttl = Ttl::new(Duration::from_millis(30_000)).unwrap();
        let (resource, token) = (&*key.resource, &key.token.as_bytes()[..]);
        let mut set = redis::cmd("SET");
        set.arg(resource).arg(token).arg("NX").arg("PX").arg(30_000);
        let mut release = redis::cmd("EVAL");
        release.arg(RELEASE).arg(1).arg(resource).arg(token);
        let mut extend = redis::cmd("EVAL");
        extend
            .arg(EXTEND)
            .arg(1)
            .arg(resource)
            .arg(token)
            .arg(30_000);
        for (action, expected) in [
            (Action::Acquire(ttl), set),
            (Action::Release, release),
            (Action::Extend(ttl), extend),
        ] {
            let mut packed = Vec::new();
            action.pack(&key, &mut packed);
            assert_eq!(packed, expected.get_packed_command());
        }
    }
}
