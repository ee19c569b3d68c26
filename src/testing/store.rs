//! A model of a Redis server: keys that expire, the commands of this crate, and its scripts written out by hand.
//!
//! The simulation's servers are made of it. `net/differential.rs` compares it with real servers: replies, messages and
//! keys must be the same, byte for byte.

mod scripts;

use scripts::script;

use crate::protocol::mutant;
use crate::protocol::scripts::SCRIPTS;

/// Publishes a message on a channel, and returns how many connections receive it.
pub(crate) type Publish<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> i64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    /// A sorted set: scores and members, in order.
    Queue(Vec<(i64, Vec<u8>)>),
    Hash,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    value: Value,
    /// The last millisecond in which it exists.
    last: Option<u64>,
}

/// What a server refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mood {
    pub(crate) read_only: bool,
    pub(crate) out_of_memory: bool,
    /// The user may not run SET.
    pub(crate) no_set: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    entries: Vec<Entry>,
    /// Which of [`SCRIPTS`] can be called by their hashes.
    known: [bool; SCRIPTS.len()],
    pub(crate) mood: Mood,
    /// Fencing tokens see the time of day in steps of so many microseconds.
    step: u64,
    /// In microseconds.
    time: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Okay,
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
}

/// An error of the server; without the script's name and line, which a real one appends.
#[derive(Debug, PartialEq, Eq)]
struct Refused(&'static str);

const WRONG_TYPE: Refused =
    Refused("WRONGTYPE Operation against a key holding the wrong kind of value");
const READ_ONLY: Refused = Refused("READONLY You can't write against a read only replica.");
const OUT_OF_MEMORY: Refused = Refused("OOM command not allowed when used memory > 'maxmemory'.");
/// The text differs between versions.
const NOT_PERMITTED: Refused = Refused("NOPERM");
const NOT_KNOWN: Refused = Refused("NOSCRIPT No matching script. Please use EVAL.");

type Result<T> = std::result::Result<T, Refused>;

/// The first command in `bytes` and its length, once it is complete.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let line = |at: usize| {
        let length = bytes.get(at..)?.iter().position(|byte| *byte == b'\r')?;
        let digits = bytes.get(at + 1..at + length)?;
        let number = str::from_utf8(digits).ok()?.parse::<usize>().ok()?;
        (bytes.len() >= at + length + 2).then_some((number, at + length + 2))
    };
    let (count, mut at) = line(0)?;
    let mut args = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, start) = line(at)?;
        at = start + length + 2;
        args.push(bytes.get(start..at)?.get(..length)?);
    }
    Some((args, at))
}

fn number<T: std::str::FromStr>(arg: &[u8]) -> Option<T> {
    str::from_utf8(arg).ok()?.parse().ok()
}

impl Store {
    pub(crate) fn new(step: u64) -> Store {
        Store {
            entries: Vec::new(),
            known: [false; SCRIPTS.len()],
            mood: Mood::default(),
            step,
            time: 0,
        }
    }

    /// Executes one command at that time, in microseconds since 1970.
    pub(crate) fn execute(&mut self, time: u64, args: &[&[u8]], publish: Publish<'_>) -> Vec<u8> {
        self.set_time(time);
        let mut run = Run {
            store: self,
            publish,
            in_script: false,
            wrote: false,
        };
        match run.command(args) {
            Ok(Answer::Okay) => b"+OK\r\n".to_vec(),
            Ok(Answer::Nil) => b"$-1\r\n".to_vec(),
            Ok(Answer::Int(number)) => format!(":{number}\r\n").into_bytes(),
            Ok(Answer::Bulk(bulk)) => {
                let head = format!("${}\r\n", bulk.len());
                [head.as_bytes(), &bulk, b"\r\n"].concat()
            }
            Err(Refused("PONG")) => b"+PONG\r\n".to_vec(),
            Err(Refused(text)) => format!("-{text}\r\n").into_bytes(),
        }
    }

    fn set_time(&mut self, time: u64) {
        self.time = time;
        let now = time / 1000;
        self.entries.retain(|entry| {
            let endless = mutant(39) && entry.name.ends_with(b":wt");
            endless || entry.last.is_none_or(|last| now <= last)
        });
    }

    /// Whether it knows the script that is called, if one is called by its hash.
    pub(crate) fn knows(&self, args: &[&[u8]]) -> bool {
        args[0] != b"EVALSHA" || script(args).is_some_and(|script| self.known[script])
    }

    pub(crate) fn load_scripts(&mut self) {
        self.known = [true; SCRIPTS.len()];
    }

    pub(crate) fn flush_scripts(&mut self) {
        self.known = [false; SCRIPTS.len()];
    }

    /// The keys that exist at that time, and for how many milliseconds.
    pub(crate) fn keys(&self, time: u64) -> impl Iterator<Item = (&[u8], &Value, Option<u64>)> {
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

    pub(crate) fn insert(&mut self, name: &[u8], value: Value, last: Option<u64>) {
        self.entries.push(Entry {
            name: name.to_vec(),
            value,
            last,
        });
    }

    /// A knock comes into the queue after its denial (mutant 32).
    pub(crate) fn join_late(&mut self, time: u64, args: &[&[u8]]) {
        self.set_time(time);
        let mut run = Run {
            store: self,
            publish: &mut |_, _| 0,
            in_script: true,
            wrote: false,
        };
        run.join(&args[3..]);
    }
}

/// A command under way.
struct Run<'a> {
    store: &'a mut Store,
    publish: Publish<'a>,
    in_script: bool,
    /// A script that has tried to write may go on when memory is used up.
    wrote: bool,
}

/// The commands, and what scripts call.
impl Run<'_> {
    fn command(&mut self, args: &[&[u8]]) -> Result<Answer> {
        match args {
            [b"PING"] => Err(Refused("PONG")),
            [b"EVAL" | b"EVALSHA", ..] => self.script(args),
            [b"SET", name, value, b"NX", b"PX", ttl] => {
                let set = self.set(name, value, number(ttl), true)?;
                Ok(if set { Answer::Okay } else { Answer::Nil })
            }
            _ => self.command_of_others(args),
        }
    }

    /// What the crate never sends: the test makes foreign data with it.
    fn command_of_others(&mut self, args: &[&[u8]]) -> Result<Answer> {
        match args {
            [b"SET", name, value] => {
                self.set(name, value, None, false)?;
                Ok(Answer::Okay)
            }
            [b"SET", name, value, b"PX", ttl] => {
                self.set(name, value, number(ttl), false)?;
                Ok(Answer::Okay)
            }
            [b"HSET", name, _, _] => {
                self.may_write(true)?;
                let added = match self.value(name) {
                    None => {
                        self.store.insert(name, Value::Hash, None);
                        1
                    }
                    Some(Value::Hash) => 0,
                    Some(_) => return Err(WRONG_TYPE),
                };
                Ok(Answer::Int(added))
            }
            [b"ZADD", name, score, member] => {
                let added = self.zadd(name, number(score).unwrap(), member)?;
                Ok(Answer::Int(added))
            }
            [b"DEL", name] => self.del(name).map(Answer::Int),
            [b"PEXPIRE", name, ttl] => self.pexpire(name, number(ttl).unwrap()).map(Answer::Int),
            [b"PERSIST", name] => {
                self.may_write(false)?;
                let entry = self.entry(name);
                let had = entry.and_then(|entry| entry.last.take()).is_some();
                Ok(Answer::Int(i64::from(had)))
            }
            _ => panic!("an unknown command"),
        }
    }

    fn may_write(&mut self, grows: bool) -> Result<()> {
        let Mood {
            read_only,
            out_of_memory,
            ..
        } = self.store.mood;
        if read_only {
            return Err(READ_ONLY);
        }
        if out_of_memory && grows && !self.wrote {
            return Err(OUT_OF_MEMORY);
        }
        self.wrote |= self.in_script;
        Ok(())
    }

    fn value(&self, name: &[u8]) -> Option<&Value> {
        let entry = self.store.entries.iter().find(|entry| entry.name == name);
        entry.map(|entry| &entry.value)
    }

    fn entry(&mut self, name: &[u8]) -> Option<&mut Entry> {
        let mut entries = self.store.entries.iter_mut();
        entries.find(|entry| entry.name == name)
    }

    fn get(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    /// `if_none`: whether it was set.
    fn set(&mut self, name: &[u8], text: &[u8], ttl: Option<i64>, if_none: bool) -> Result<bool> {
        if self.store.mood.no_set {
            return Err(NOT_PERMITTED);
        }
        self.may_write(true)?;
        if if_none && self.value(name).is_some() {
            return Ok(false);
        }
        self.store.entries.retain(|entry| entry.name != name);
        let last = ttl.map(|ttl| self.store.time / 1000 + u64::try_from(ttl).unwrap());
        self.store.insert(name, Value::Text(text.to_vec()), last);
        Ok(true)
    }

    fn del(&mut self, name: &[u8]) -> Result<i64> {
        self.may_write(false)?;
        let there = self.value(name).is_some();
        self.store.entries.retain(|entry| entry.name != name);
        Ok(i64::from(there))
    }

    fn pttl(&mut self, name: &[u8]) -> i64 {
        let now = self.store.time / 1000;
        match self.entry(name).map(|entry| entry.last) {
            None => -2,
            Some(None) => -1,
            Some(Some(last)) => i64::try_from(last.saturating_sub(now)).unwrap(),
        }
    }

    fn pexpire(&mut self, name: &[u8], ttl: i64) -> Result<i64> {
        self.may_write(false)?;
        if ttl <= 0 {
            return self.del(name);
        }
        let last = self.store.time / 1000 + u64::try_from(ttl).unwrap();
        let entry = self.entry(name);
        Ok(i64::from(
            entry.map(|entry| entry.last = Some(last)).is_some(),
        ))
    }

    /// The members, and what to do with them. An empty queue is no key.
    fn zset<T>(
        &mut self,
        name: &[u8],
        act: impl FnOnce(&mut Vec<(i64, Vec<u8>)>) -> T,
    ) -> Result<T> {
        let mut none = Vec::new();
        let members = match self.entry(name).map(|entry| &mut entry.value) {
            None => &mut none,
            Some(Value::Queue(members)) => members,
            Some(_) => return Err(WRONG_TYPE),
        };
        let done = act(members);
        let is_empty = members.is_empty();
        if is_empty {
            self.store.entries.retain(|entry| entry.name != name);
        } else if !none.is_empty() {
            self.store.insert(name, Value::Queue(none), None);
        }
        Ok(done)
    }

    fn zadd(&mut self, name: &[u8], score: i64, member: &[u8]) -> Result<i64> {
        self.may_write(true)?;
        self.zset(name, |members| {
            let before = members.len();
            members.retain(|one| one.1 != member);
            let added = members.len() == before;
            members.push((score, member.to_vec()));
            members.sort_unstable();
            i64::from(added)
        })
    }

    fn zrem(&mut self, name: &[u8], member: &[u8]) -> Result<()> {
        self.may_write(false)?;
        self.zset(name, |members| members.retain(|one| one.1 != member))
    }

    /// The first, if there is one and that is permitted.
    fn zpopmin(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        self.may_write(false).ok()?;
        let first = self.zset(name, |members| {
            (!members.is_empty()).then(|| members.remove(0).1)
        });
        first.ok()?
    }

    fn first(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        match self.value(name) {
            Some(Value::Queue(members)) => members.first().map(|first| first.1.clone()),
            _ => None,
        }
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let heard = (self.publish)(channel, message);
        if mutant(34) { heard.max(1) } else { heard }
    }
}
