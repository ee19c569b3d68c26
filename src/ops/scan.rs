//! Reads the keys of a node.

use std::time::Duration;

use redis::{ConnectionLike, Parser, RedisError, RedisResult, Value};

use crate::errors::cause::Cause;
use crate::errors::server_error::{Meaning, without_arguments};
use crate::net::discovery::ask_each::SendPart;
use crate::ops::holder::Holder;
use crate::ops::inspect_reply::member;
use crate::ops::query::Query;
use crate::ops::waiters::Waiters;
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::node_queue;
use crate::protocol::commands::scripts::{INSPECT, Script, WAITERS};
use crate::protocol::commands::witness_keys;
use crate::values::prefix::Prefix;
use crate::values::{last_run, lock_value};

/// How many keys are asked for at a time.
const PAGE: usize = 1000;
/// How much is read of a value: one byte more than a lock can have.
const VALUE: usize = lock_value::MOST + 1;

/// A key on one node. Permits and readers have one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScannedKey {
    pub(crate) name: Vec<u8>,
    /// The first bytes of a string. `None`: another type.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) holder: Option<Holder>,
    /// How long it is kept; [`Duration::MAX`]: it has no end.
    pub(crate) left: Duration,
    /// The processes that wait for the lock, if it is one.
    pub(crate) waiters: Option<Waiters>,
}

impl ScannedKey {
    pub(crate) fn new(name: Vec<u8>, value: Option<Vec<u8>>, left: Duration) -> ScannedKey {
        let parse = |value: &Vec<u8>| Holder::parse(value, value.len());
        ScannedKey {
            name,
            holder: value.as_ref().and_then(parse),
            value,
            left,
            waiters: None,
        }
    }

    /// The part that is equal on all nodes: the holder's token, or how other data begins.
    pub(crate) fn start(&self) -> Option<&[u8]> {
        let token = self
            .holder
            .as_ref()
            .map(|holder| &holder.token().as_bytes()[..]);
        let value = || {
            Some(
                self.value
                    .as_deref()?
                    .split_at_checked(lock_value::TOKEN)?
                    .0,
            )
        };
        token.or_else(value).or(self.value.as_deref())
    }

    /// Whether this crate keeps the key beside locks: the queue, the reservation, the fencing counter, the mark of a
    /// writer, the mark of work that is done; the witness.
    pub(crate) fn is_beside_a_lock(&self) -> bool {
        let is = |companion: Companion| companion.is_key(&self.name);
        match self.value.as_deref() {
            None => is(Companion::Queue),
            Some(_) if witness_keys::is_witness(&self.name) => true,
            Some(value) => {
                let is_number = value.iter().all(u8::is_ascii_digit);
                let is_turn = node_queue::is_channel(value);
                let is_mark = value.first().is_some_and(u8::is_ascii_digit);
                let is_done = value.starts_with(last_run::HEAD);
                is(Companion::Turn) && is_turn
                    || is(Companion::Done) && is_done
                    || is(Companion::Counter) && is_number
                    || is(Companion::Mark) && is_mark
            }
        }
    }
}

/// The keys that are asked for.
pub(crate) enum What {
    /// The keys that a glob matches; with `only_locks` only those that look like locks.
    Pattern {
        glob: Option<Vec<u8>>,
        only_locks: bool,
    },
    Names(Vec<Vec<u8>>),
}

impl What {
    /// The keys that a glob matches behind the prefix; without one, those that look like locks.
    pub(crate) fn keys(prefix: &Prefix, pattern: Option<&[u8]>) -> What {
        let all = (!prefix.as_str().is_empty()).then_some(&b"*"[..]);
        What::Pattern {
            glob: pattern.or(all).map(|names| prefix.glob(names)),
            only_locks: pattern.is_none(),
        }
    }
}

/// The number of keys looked at, and those that count. Keys that the user may not read are in neither.
pub(crate) type Page = (usize, Vec<ScannedKey>);

/// Reads a node's keys, page by page, for as long as they are wanted.
pub(crate) fn scan(query: &mut Query, what: &What, send: SendPart<'_, Page>) -> Result<(), Cause> {
    let mut connection = ScanQuestions {
        query,
        parser: Parser::new(),
    };
    match what {
        What::Names(names) => {
            for names in names.chunks(PAGE) {
                connection.query.renew();
                let (_, page) = keys(&mut connection, names)?;
                if !send((0, page)) {
                    break;
                }
            }
            Ok(())
        }
        What::Pattern { glob, only_locks } => {
            scan_all(&mut connection, glob.as_deref(), *only_locks, send)
        }
    }
}

fn scan_all(
    connection: &mut ScanQuestions<'_>,
    glob: Option<&[u8]>,
    only_locks: bool,
    send: SendPart<'_, Page>,
) -> Result<(), Cause> {
    let mut cursor = b"0".to_vec();
    let (mut pages, mut seen, mut size) = (0, 0, None);
    loop {
        connection.query.renew();
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor);
        if let Some(glob) = glob {
            scan.arg("MATCH").arg(glob);
        }
        scan.arg("COUNT").arg(PAGE);
        let names: Vec<Vec<u8>>;
        (cursor, names) = connection.ask(&scan)?;
        let (read, mut page) = keys(connection, &names)?;
        page.retain(|key| !key.is_beside_a_lock() && (!only_locks || key.holder.is_some()));
        (pages, seen) = (pages + 1, seen + names.len());
        if !send((read, page)) || cursor == b"0" {
            return Ok(());
        }
        if size.is_none_or(|size| is_endless(pages, seen, size)) {
            // The number may have grown.
            let now = connection.ask(&redis::cmd("DBSIZE"))?;
            if is_endless(pages, seen, now) {
                return Err(Cause::Endless(format!(
                    "its SCAN does not end: {seen} keys in {pages} pages, and DBSIZE is {now}"
                )));
            }
            size = Some(now);
        }
    }
}

/// The keys of these names, except those that are gone or not for this user: SCAN shows all names to all users.
fn keys(connection: &mut ScanQuestions<'_>, names: &[Vec<u8>]) -> Result<Page, Cause> {
    let (mut read, mut keys, elsewhere) = look_at(connection, names, false)?;
    // A server that does not own a slot yet may have some of its keys. Those that it does not have are another
    // server's.
    let (asked, more, not_here) = look_at(connection, &elsewhere, true)?;
    read -= elsewhere.len();
    read += asked - not_here.len();
    keys.extend(more);
    let mut keys = with_members(connection, keys)?;
    add_waiters(connection, &mut keys)?;
    Ok((read, keys))
}

/// Adds to each lock how many processes wait for it. The queue of one may not be for this user.
fn add_waiters(connection: &mut ScanQuestions<'_>, keys: &mut [ScannedKey]) -> Result<(), Cause> {
    let is_lock = |key: &ScannedKey| key.holder.is_some();
    let locks = keys.iter().filter(|key| is_lock(key));
    let queues: Vec<Vec<u8>> = locks.map(|key| Waiters::key(&key.name)).collect();
    let replies = connection.ask_scripts(&WAITERS, queues.iter().map(Vec::as_slice))?;
    for (key, reply) in keys.iter_mut().filter(|key| is_lock(key)).zip(replies) {
        let members: Option<Vec<Vec<u8>>> = reply
            .ok()
            .and_then(|reply| redis::from_redis_value(reply).ok());
        key.waiters = members.map(|members| Waiters::of_members(&members));
    }
    Ok(())
}

/// The number of keys looked at, the keys, and the names of those that the server does not have.
type Looked = (usize, Vec<ScannedKey>, Vec<Vec<u8>>);

/// Looks at the keys of these names.
fn look_at(
    connection: &mut ScanQuestions<'_>,
    names: &[Vec<u8>],
    asking: bool,
) -> Result<Looked, Cause> {
    let mut pipe = redis::pipe();
    for name in names {
        if asking {
            pipe.cmd("ASKING");
        }
        pipe.cmd("GETRANGE").arg(name).arg(0).arg(VALUE - 1);
        if asking {
            pipe.cmd("ASKING");
        }
        pipe.cmd("PTTL").arg(name);
    }
    let mut replies = connection.ask_all(&mut pipe)?.into_iter();
    let (mut read, mut keys, mut elsewhere) = (0, Vec::new(), Vec::new());
    let skipped = usize::from(asking);
    for name in names {
        let (Some(value), Some(left)) = (replies.nth(skipped), replies.nth(skipped)) else {
            break;
        };
        read += 1;
        let value = match value {
            Err(error) if meaning(&error) == Meaning::WrongType => None,
            Err(error) if meaning(&error).is_redirection() => {
                elsewhere.push(name.clone());
                continue;
            }
            value => match connection.read(value) {
                Err(cause) if cause.concerns_name() => {
                    read -= 1;
                    continue;
                }
                value => Some(value?),
            },
        };
        let left = match connection.read::<i64>(left)? {
            -1 => Duration::MAX,
            left => match u64::try_from(left) {
                Ok(left) => Duration::from_millis(left),
                Err(_) => continue,
            },
        };
        keys.push(ScannedKey::new(name.clone(), value, left));
    }
    Ok((read.min(names.len()), keys, elsewhere))
}

/// Replaces each key of permits or readers by a key for each of these.
fn with_members(
    connection: &mut ScanQuestions<'_>,
    keys: Vec<ScannedKey>,
) -> Result<Vec<ScannedKey>, Cause> {
    let (others, mut keys): (Vec<ScannedKey>, Vec<ScannedKey>) =
        keys.into_iter().partition(|key| key.value.is_none());
    // Most keys are of other programs, of which as little as possible is read.
    let mut firsts = redis::pipe();
    for key in &others {
        firsts.cmd("ZRANGE").arg(&key.name).arg(0).arg(0);
    }
    let firsts = connection.ask_all(&mut firsts)?;
    let is_first_ours = |first: RedisResult<Value>| {
        let first: Vec<Vec<u8>> = first
            .ok()
            .and_then(|first| redis::from_redis_value(first).ok())?;
        Holder::of_member(first.first()?)
    };
    let mut sets = Vec::new();
    for (key, first) in others.into_iter().zip(firsts) {
        match is_first_ours(first) {
            Some(_) => sets.push(key),
            None => keys.push(key),
        }
    }
    let looks = connection.ask_scripts(&INSPECT, sets.iter().map(|set| &set.name[..]))?;
    for (set, members) in sets.into_iter().zip(looks) {
        // The set may be gone by now.
        let members: Option<Vec<Vec<u8>>> = connection.read(members)?;
        for (holder, left) in members.iter().flatten().filter_map(|bulk| member(bulk)) {
            // Members that were added by hand are left out.
            let Some(holder) = holder else {
                continue;
            };
            keys.push(ScannedKey {
                holder: Some(holder),
                left: if set.left == Duration::MAX {
                    set.left
                } else {
                    left
                },
                ..set.clone()
            });
        }
    }
    Ok(keys)
}

fn meaning(error: &RedisError) -> Meaning {
    error.code().map_or(Meaning::Other, Meaning::of)
}

/// Whether a SCAN has returned more than a server with `size` keys can. Pages may be empty if the server once had many
/// more keys, and keys may be returned twice.
fn is_endless(pages: usize, seen: usize, size: usize) -> bool {
    let most = size.saturating_mul(4).saturating_add(10 * PAGE);
    seen > most || pages > most / PAGE + 30_000
}

/// A query for the redis crate's commands, whose replies are larger than those of locks.
struct ScanQuestions<'a> {
    query: &'a mut Query,
    parser: Parser,
}

impl ScanQuestions<'_> {
    fn ask<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, Cause> {
        let answer = command.query(self);
        answer.map_err(|error| self.cause(&error))
    }

    /// An answer to each command, which may be an error.
    fn ask_all(
        &mut self,
        commands: &mut redis::Pipeline,
    ) -> Result<Vec<RedisResult<Value>>, Cause> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let answers = commands.ignore_errors().query(self);
        answers.map_err(|error| self.cause(&error))
    }

    /// Calls a script for each of these keys.
    fn ask_scripts<'k>(
        &mut self,
        script: &Script,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> Result<Vec<RedisResult<Value>>, Cause> {
        loop {
            let [call, which] = self.query.call(script);
            let mut pipe = redis::pipe();
            for key in keys.clone() {
                pipe.add_command(
                    redis::Cmd::new()
                        .arg(call)
                        .arg(which)
                        .arg(1)
                        .arg(key)
                        .clone(),
                );
            }
            let replies = self.ask_all(&mut pipe)?;
            let refused = replies.first().and_then(|reply| reply.as_ref().err());
            match refused.map(|error| self.cause(error)) {
                Some(Cause::Refused(text)) if self.query.calls_otherwise(&text)? => {}
                _ => return Ok(replies),
            }
        }
    }

    fn read<T: redis::FromRedisValue>(&mut self, value: RedisResult<Value>) -> Result<T, Cause> {
        let read = value.and_then(|value| Ok(redis::from_redis_value(value)?));
        read.map_err(|error| self.cause(&error))
    }

    fn cause(&mut self, error: &RedisError) -> Cause {
        if let Some(cause) = self.query.failure() {
            return cause;
        }
        let hidden = |text: &str| self.query.secret().cut(without_arguments(text));
        match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => Cause::Refused(hidden(&format!("{code} {detail}"))),
            _ => Cause::Garbage(hidden(&error.to_string())),
        }
    }
}

impl ConnectionLike for ScanQuestions<'_> {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.query.send(command)?;
        self.parser.parse_value(&mut *self.query)
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.query.send(commands)?;
        let mut replies = Vec::new();
        for number in 0..offset.saturating_add(count) {
            let reply = self.parser.parse_value(&mut *self.query)?;
            if number >= offset {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_ends_where_that_of_a_server_of_its_size_would() {
        for (pages, seen, size, endless) in [
            (1, 1000, 0, false),
            (12, 11_000, 0, true),
            (1200, 1_200_000, 1_000_000, false),
            (4011, 4_010_001, 1_000_000, true),
            // A server that had 2^28 keys and has none.
            (26_844, 10, 10, false),
            (40_000, 10, 10, true),
            (usize::MAX, usize::MAX, usize::MAX, true),
        ] {
            assert_eq!(
                is_endless(pages, seen, size),
                endless,
                "{pages} {seen} {size}"
            );
        }
    }
}
