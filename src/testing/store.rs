//! A model of a Redis server: keys that expire, the commands of this crate, and its scripts written out by hand.
//!
//! The simulation's servers and [`Node`](super::Node) are built on it. `proof/differential.rs` compares it with real
//! servers: replies, messages and keys must be the same, byte for byte.

mod glob;
mod keys;
pub(crate) mod members;
mod names;
mod permits;
pub(crate) mod request;
mod scripts;
mod waiters;

use self::request::number;
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::scripts::{INSPECT, LATER, SCRIPTS, Script, TRIAL, WAITERS};
use crate::protocol::mutants::{Mutant, mutant};

/// Publishes a message on a channel, and returns how many connections receive it.
pub(crate) type Publish<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> i64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue {
    Text(Vec<u8>),
    /// A sorted set: scores and members, in order.
    Queue(Vec<(i64, Vec<u8>)>),
    #[cfg(test)]
    Hash,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    value: StoredValue,
    /// The last millisecond in which the key exists.
    last: Option<u64>,
}

const ALL: usize = SCRIPTS.len() + LATER.len();

/// All scripts of locks.
fn scripts() -> impl Iterator<Item = &'static Script> {
    SCRIPTS.iter().chain(&LATER)
}

/// The reasons for which a server refuses commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mood {
    pub(crate) read_only: bool,
    /// The server lacks replicas.
    pub(crate) too_few_replicas: bool,
    pub(crate) out_of_memory: bool,
    /// The user may not run SET.
    pub(crate) no_set: bool,
    /// The user may not use the keys of queues.
    pub(crate) no_queue: bool,
}

impl Mood {
    /// Whether the server refuses this call of a script for its keys.
    pub(crate) fn refuses_keys(&self, args: &[&[u8]]) -> bool {
        let is_queue = |key: &&[u8]| Companion::Queue.is_key(key);
        let count = args.get(2).and_then(|count| number(count));
        let mut keys = args.iter().skip(3).take(count.unwrap_or(0));
        self.no_queue && keys.any(is_queue)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    entries: Vec<Entry>,
    /// Which of [`SCRIPTS`] and [`LATER`] can be called by their hashes.
    known: [bool; ALL],
    pub(crate) mood: Mood,
    /// Fencing tokens see the time of day in steps of this length, in microseconds.
    step: u64,
    /// The time, in microseconds since 1970.
    time: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum StoreReply {
    Okay,
    Pong,
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<StoreReply>),
}

/// An error of the server; without the script's name and line, which a real one appends.
#[derive(Debug, PartialEq, Eq)]
struct Refused(&'static str);

const WRONG_TYPE: Refused =
    Refused("WRONGTYPE Operation against a key holding the wrong kind of value");
const NO_STRING: Refused = Refused("ERR Key should be of string type if conditions are specified");
const READ_ONLY: Refused = Refused("READONLY You can't write against a read only replica.");
const TOO_FEW_REPLICAS: Refused = Refused("NOREPLICAS Not enough good replicas to write.");
const OUT_OF_MEMORY: Refused = Refused("OOM command not allowed when used memory > 'maxmemory'.");
/// The text differs between versions.
const NOT_PERMITTED: Refused = Refused("NOPERM");
const NO_KEY: Refused = Refused("NOPERM No permissions to access a key");
const NOT_KNOWN: Refused = Refused("NOSCRIPT No matching script. Please use EVAL.");
const NO_NUMBER: Refused = Refused("ERR value is not an integer or out of range");
const NO_TTL: Refused = Refused("ERR invalid expire time in 'set' command");
/// The reply to commands for which the model does not cover a real server.
const NOT_OURS: Refused = Refused(
    "ERR unknown command: this is a testing::Node, which understands what redlock-sync sends, and nothing else",
);

/// This crate never sends other arguments, so the reply of a real server does not matter.
/// The answers about a lock that its token does not hold: another holder has it, or the key is gone.
const ANOTHER: i64 = -1;
const GONE: i64 = -2;
const NOT_ITS_ARGUMENTS: Refused = Refused("ERR these are not the script's arguments");

type Result<T> = std::result::Result<T, Refused>;

fn needed<T: std::str::FromStr>(arg: &[u8]) -> Result<T> {
    number(arg).ok_or(NOT_ITS_ARGUMENTS)
}

/// The keys and arguments of a script. Without keys beside the lock there is no queue.
#[derive(Clone, Copy)]
struct ScriptArgs<'a> {
    keys: &'a [&'a [u8]],
    args: &'a [&'a [u8]],
}

impl<'a> ScriptArgs<'a> {
    /// Parses the part of a command that follows the script.
    fn parse(count: &[u8], rest: &'a [&'a [u8]]) -> Result<ScriptArgs<'a>> {
        let (keys, args) = rest
            .split_at_checked(needed(count)?)
            .ok_or(NOT_ITS_ARGUMENTS)?;
        Ok(ScriptArgs { keys, args })
    }

    fn lock(self) -> Result<&'a [u8]> {
        self.keys.first().copied().ok_or(NOT_ITS_ARGUMENTS)
    }

    fn queue(self) -> Option<&'a [u8]> {
        self.keys.get(1).copied()
    }

    fn turn(self) -> Option<&'a [u8]> {
        self.keys.get(2).copied()
    }
}

impl StoreReply {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            StoreReply::Okay => out.extend_from_slice(b"+OK\r\n"),
            StoreReply::Pong => out.extend_from_slice(b"+PONG\r\n"),
            StoreReply::Nil => out.extend_from_slice(b"$-1\r\n"),
            StoreReply::Int(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            StoreReply::Bulk(bulk) => {
                out.extend_from_slice(format!("${}\r\n", bulk.len()).as_bytes());
                out.extend_from_slice(bulk);
                out.extend_from_slice(b"\r\n");
            }
            StoreReply::Array(items) => {
                out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}

impl Store {
    pub(crate) fn new(step: u64) -> Store {
        Store {
            entries: Vec::new(),
            known: [false; ALL],
            mood: Mood::default(),
            step,
            time: 0,
        }
    }

    /// Executes one command at that time, in microseconds since 1970.
    pub(crate) fn execute(&mut self, time: u64, args: &[&[u8]], publish: Publish<'_>) -> Vec<u8> {
        self.set_time(time);
        let mut run = CommandRun {
            store: self,
            publish,
            in_script: false,
            wrote: false,
        };
        let mut reply = Vec::new();
        match run.command(args) {
            Ok(answer) => answer.write(&mut reply),
            Err(Refused(text)) => reply.extend_from_slice(format!("-{text}\r\n").as_bytes()),
        }
        reply
    }

    fn set_time(&mut self, time: u64) {
        self.time = time;
        let now = time / 1000;
        self.entries.retain(|entry| {
            let endless = mutant(Mutant::EndlessReservation) && entry.name.ends_with(b":wt");
            endless || entry.last.is_none_or(|last| now <= last)
        });
    }

    /// The place of the script that is called, among all scripts.
    fn script(args: &[&[u8]]) -> Option<usize> {
        let [command, name, ..] = args else {
            return None;
        };
        let by_hash = *command == b"EVALSHA";
        let is = |script: &Script| *name == if by_hash { script.hash } else { script.text };
        scripts().position(is)
    }

    fn is_known(&self, script: usize) -> bool {
        self.known.get(script).copied().unwrap_or(false)
    }

    fn load(&mut self, script: usize) {
        if let Some(known) = self.known.get_mut(script) {
            *known = true;
        }
    }

    pub(crate) fn flush_scripts(&mut self) {
        self.known = [false; ALL];
    }

    /// The keys that exist at that time, and for how many milliseconds.
    pub(crate) fn keys(
        &self,
        time: u64,
    ) -> impl Iterator<Item = (&[u8], &StoredValue, Option<u64>)> {
        let now = time / 1000;
        self.entries.iter().filter_map(move |entry| {
            let left = match entry.last {
                Some(last) => Some(last.checked_sub(now)?),
                None => None,
            };
            Some((&*entry.name, &entry.value, left))
        })
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn insert(&mut self, name: &[u8], value: StoredValue, last: Option<u64>) {
        self.entries.push(Entry {
            name: name.to_vec(),
            value,
            last,
        });
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.entries.retain(|entry| entry.name != name);
    }
}

/// Functions for the simulation.
#[cfg(test)]
impl Store {
    /// Whether the server has the script that is called, if one is called by its hash.
    pub(crate) fn knows(&self, args: &[&[u8]]) -> bool {
        args[0] != b"EVALSHA" || Store::script(args).is_some_and(|script| self.is_known(script))
    }

    /// Takes over another server's keys.
    pub(crate) fn take_data_of(&mut self, other: Store) {
        self.entries = other.entries;
    }

    pub(crate) fn load_scripts(&mut self) {
        for script in 0..SCRIPTS.len() {
            self.load(script);
        }
    }

    /// Puts a knock into the queue after its denial (a mutant).
    pub(crate) fn join_late(&mut self, time: u64, args: &[&[u8]]) {
        self.set_time(time);
        let mut run = CommandRun {
            store: self,
            publish: &mut |_, _| 0,
            in_script: true,
            wrote: false,
        };
        let _ =
            ScriptArgs::parse(args[2], &args[3..]).and_then(|script_args| run.join(script_args));
    }
}

/// A command under way.
struct CommandRun<'a> {
    store: &'a mut Store,
    publish: Publish<'a>,
    in_script: bool,
    /// Whether a script has tried to write: then it may go on when memory is used up.
    wrote: bool,
}

/// The commands.
impl CommandRun<'_> {
    fn command(&mut self, args: &[&[u8]]) -> Result<StoreReply> {
        match args {
            [b"PING"] => Ok(StoreReply::Pong),
            [b"TIME"] => {
                let (seconds, micros) = (self.store.time / 1_000_000, self.store.time % 1_000_000);
                let number = |number: u64| StoreReply::Bulk(number.to_string().into_bytes());
                Ok(StoreReply::Array(vec![number(seconds), number(micros)]))
            }
            [b"EVAL" | b"EVALSHA", ..] => self.script(args),
            [b"SCRIPT", b"LOAD", text] => self.load(text),
            [b"SCRIPT", b"FLUSH"] => {
                self.store.flush_scripts();
                Ok(StoreReply::Okay)
            }
            [b"SET", name, value, b"NX", b"PX", ttl] => {
                let ttl = number(ttl).ok_or(NO_NUMBER)?;
                let set = self.set(name, value, Some(ttl), true)?;
                Ok(if set {
                    StoreReply::Okay
                } else {
                    StoreReply::Nil
                })
            }
            // The witness of the restart guard, and whether this user may set it.
            [b"SET", _, _, b"NX", b"XX"] => Err(Refused("ERR syntax error")),
            [b"SET", name, value, b"PX", ttl] => {
                let ttl = number(ttl).ok_or(NO_NUMBER)?;
                self.set(name, value, Some(ttl), false)?;
                Ok(StoreReply::Okay)
            }
            [b"GET", name] => Ok(self.get(name)?.map_or(StoreReply::Nil, StoreReply::Bulk)),
            [b"DELIFEQ", name, value] => self.delete_if_equal(name, value, WRONG_TYPE),
            [b"DELEX", name, b"IFEQ", value] => self.delete_if_equal(name, value, NO_STRING),
            [b"SET", name, value, b"IFEQ", old, b"PX", ttl] => {
                self.set_if_equal(name, (value, old), ttl)
            }
            [b"PUBLISH", channel, message] => Ok(StoreReply::Int(self.publish(channel, message))),
            [b"PTTL", name] => Ok(StoreReply::Int(self.pttl(name))),
            [b"GETRANGE", name, b"0", last] => {
                let length = number::<usize>(last).ok_or(NO_NUMBER)?.saturating_add(1);
                let mut value = self.get(name)?.unwrap_or_default();
                value.truncate(length);
                Ok(StoreReply::Bulk(value))
            }
            [b"ZRANGE", name, b"0", b"0"] => {
                let first = self.zset(name, |members| members.first().cloned())?;
                let first = first.map(|(_, member)| StoreReply::Bulk(member));
                Ok(StoreReply::Array(first.into_iter().collect()))
            }
            [b"DBSIZE"] => {
                let count = self.store.entries.len();
                Ok(StoreReply::Int(i64::try_from(count).unwrap_or(i64::MAX)))
            }
            [b"SCAN", _, options @ ..] => Ok(self.scan(options)),
            #[cfg(test)]
            _ => self.command_of_others(args),
            #[cfg(not(test))]
            _ => Err(NOT_OURS),
        }
    }

    fn load(&mut self, text: &[u8]) -> Result<StoreReply> {
        let mut scripts = scripts().enumerate();
        let script = scripts.find(|(_, script)| script.text == text);
        let (place, script) = script.ok_or(NOT_OURS)?;
        self.store.load(place);
        Ok(StoreReply::Bulk(script.hash.to_vec()))
    }

    /// All keys at once, in one page.
    fn scan(&self, options: &[&[u8]]) -> StoreReply {
        let pattern = options.chunks(2).find_map(|option| match option {
            [b"MATCH", pattern] => Some(*pattern),
            _ => None,
        });
        let names = self.store.entries.iter().map(|entry| &*entry.name);
        let names = names.filter(|name| pattern.is_none_or(|glob| glob::matches(glob, name)));
        let names = names.map(|name| StoreReply::Bulk(name.to_vec())).collect();
        StoreReply::Array(vec![
            StoreReply::Bulk(b"0".to_vec()),
            StoreReply::Array(names),
        ])
    }

    fn script(&mut self, args: &[&[u8]]) -> Result<StoreReply> {
        let [command, text, keys, rest @ ..] = args else {
            return Err(NOT_OURS);
        };
        let script_args = ScriptArgs::parse(keys, rest)?;
        if self.store.mood.refuses_keys(args) {
            return Err(NO_KEY);
        }
        if *text == INSPECT.text
            && let [lock] = script_args.keys
        {
            return self.look(lock);
        }
        if *text == WAITERS.text
            && let [queue] = script_args.keys
        {
            return self.waiters(queue);
        }
        if *text == TRIAL.text {
            return Ok(StoreReply::Int(1));
        }
        let by_hash = *command == b"EVALSHA";
        let script = match Store::script(args) {
            Some(script) if !by_hash || self.store.is_known(script) => script,
            _ if by_hash => return Err(NOT_KNOWN),
            _ => return Err(NOT_OURS),
        };
        self.store.load(script);
        self.in_script = true;
        let hash = scripts().nth(script).map_or(&b""[..], |script| script.hash);
        self.run(hash, script_args)
    }

    /// Commands that the crate never sends: tests make foreign data with them.
    #[cfg(test)]
    fn command_of_others(&mut self, args: &[&[u8]]) -> Result<StoreReply> {
        match args {
            [b"SET", name, value] => {
                self.set(name, value, None, false)?;
                Ok(StoreReply::Okay)
            }
            [b"HSET", name, _, _] => {
                self.may_write(true)?;
                let added = match self.stored_value(name) {
                    None => {
                        self.store.insert(name, StoredValue::Hash, None);
                        1
                    }
                    Some(StoredValue::Hash) => 0,
                    Some(_) => return Err(WRONG_TYPE),
                };
                Ok(StoreReply::Int(added))
            }
            [b"ZADD", name, score, member] => {
                let added = self.zadd(name, number(score).unwrap(), member)?;
                Ok(StoreReply::Int(added))
            }
            [b"DEL", name] => self.del(name).map(StoreReply::Int),
            [b"PEXPIRE", name, ttl] => self
                .pexpire(name, number(ttl).unwrap())
                .map(StoreReply::Int),
            [b"PERSIST", name] => {
                self.may_write(false)?;
                let entry = self.entry(name);
                let had = entry.and_then(|entry| entry.last.take()).is_some();
                Ok(StoreReply::Int(i64::from(had)))
            }
            _ => Err(NOT_OURS),
        }
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let heard = (self.publish)(channel, message);
        if mutant(Mutant::NotifyTheDead) {
            heard.max(1)
        } else {
            heard
        }
    }
}
