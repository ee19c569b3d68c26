//! A server with connections, pure: bytes and times come in, bytes go out.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::store::request::Begun;
use super::store::{Store, StoredValue};
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::commands::resp;
use crate::protocol::commands::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_NAMES, ACQUIRE_OR_ENQUEUE, ACQUIRE_PERMIT, ACQUIRE_READ,
    ACQUIRE_WRITE, EXTEND, EXTEND_MEMBER, EXTEND_NAMES, FENCE, FENCE_MEMBER, FENCE_NAMES, RELEASE,
    RELEASE_AND_NOTIFY, RELEASE_MEMBER, RELEASE_NAMES, Script,
};
use crate::protocol::commands::sha1::sha1;
use crate::values::label::Label;
use crate::values::lock_value::{self, Since, ValueParts};
use crate::values::token::Token;

/// No command of this crate is longer: a lock on several names has 1 MiB of them, and for each name two keys beside it.
const LONGEST_COMMAND: usize = 4 << 20;
/// Fencing tokens see the time of day in steps of this length, in microseconds.
pub(crate) const STEP: u64 = 100_000;
/// The uptime that the server reports when it is started, in microseconds: 100 days. Otherwise the restart guard would
/// keep it from voting.
const UP: u64 = 100 * 86_400 * 1_000_000;
/// The ttl of the locks that [`Server::hold_all`] makes, in milliseconds.
const HELD: u64 = 86_400_000;

/// The holder of a lock, as [`Node::holder`](crate::testing::Node::holder) finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The holder's token, to be compared with [`Lock::token`](crate::Lock::token).
    pub token: Token,
    /// The label that the holder gave the lock with [`Options::label`](crate::Options::label).
    pub label: Option<String>,
    /// How long the node keeps the lock, by the node's clock.
    pub remaining: Duration,
}

/// How many commands a [`Node`](crate::testing::Node) has received. Those that the library sends by itself count as
/// well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// Requests for a lock, granted or not.
    pub acquire: u64,
    /// Requests to extend a lock.
    pub extend: u64,
    /// Requests to release a lock, and to undo an attempt.
    pub release: u64,
    /// Requests for a fencing token.
    pub fence: u64,
    /// All other requests.
    pub other: u64,
    /// Connections that were made.
    pub connections: u64,
}

/// Times are in microseconds since 1970.
pub(crate) struct Server {
    pub(crate) store: Store,
    connections: BTreeMap<u64, ServerConnection>,
    /// The server's number. Servers with the same number would be taken for one.
    number: u64,
    restarts: u64,
    started: u64,
    /// The error in reply to all that concerns locks.
    refuses: Option<String>,
    /// The token of another process that has all locks that are asked for.
    holder_of_all: Option<Token>,
    pub(crate) requests: Requests,
}

#[derive(Default)]
struct ServerConnection {
    inbox: Vec<u8>,
    /// The command at the beginning of `inbox`.
    begun: Begun,
    channels: Vec<Vec<u8>>,
}

/// Bytes for connections, in this order.
pub(crate) type Replies = Vec<(u64, Vec<u8>)>;

/// The purpose of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commander {
    Acquire,
    Extend,
    Release,
    Fence,
    OtherScript,
    Other,
}

impl Commander {
    fn of(args: &[&[u8]]) -> Commander {
        let (command, name) = match args {
            [b"SET", name, ..] if name.ends_with(WITNESS) => return Commander::Other,
            [b"SET", ..] => return Commander::Acquire,
            [command @ (b"EVAL" | b"EVALSHA"), name, ..] => (*command, *name),
            _ => return Commander::Other,
        };
        let by_hash = command == b"EVALSHA";
        let is = |script: Script| name == if by_hash { script.hash } else { script.text };
        match () {
            () if is(ACQUIRE_OR_ENQUEUE) || is(ACQUIRE_IN_ORDER) => Commander::Acquire,
            () if is(ACQUIRE_PERMIT) || is(ACQUIRE_READ) => Commander::Acquire,
            () if is(ACQUIRE_WRITE) || is(ACQUIRE_NAMES) => Commander::Acquire,
            () if is(RELEASE) || is(RELEASE_AND_NOTIFY) => Commander::Release,
            () if is(RELEASE_MEMBER) || is(RELEASE_NAMES) => Commander::Release,
            () if is(EXTEND) || is(EXTEND_MEMBER) || is(EXTEND_NAMES) => Commander::Extend,
            () if is(FENCE) || is(FENCE_MEMBER) || is(FENCE_NAMES) => Commander::Fence,
            () => Commander::OtherScript,
        }
    }
}

impl Server {
    pub(crate) fn new(number: u64, time: u64) -> Server {
        Server {
            store: Store::new(STEP),
            connections: BTreeMap::new(),
            number,
            restarts: 0,
            started: time.saturating_sub(UP),
            refuses: None,
            holder_of_all: None,
            requests: Requests::default(),
        }
    }

    pub(crate) fn connect(&mut self, connection: u64) {
        self.requests.connections += 1;
        self.connections
            .insert(connection, ServerConnection::default());
    }

    pub(crate) fn disconnect(&mut self, connection: u64) {
        self.connections.remove(&connection);
    }

    /// Carries out the commands that arrived over a connection. False: it must be closed, since the bytes are no
    /// command.
    pub(crate) fn receive(
        &mut self,
        connection: u64,
        bytes: &[u8],
        time: u64,
        replies: &mut Replies,
    ) -> bool {
        let Some(open) = self.connections.get_mut(&connection) else {
            return false;
        };
        let mut inbox = std::mem::take(&mut open.inbox);
        let mut begun = std::mem::take(&mut open.begun);
        inbox.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let rest = inbox.get(at..).unwrap_or_default();
            match begun.go_on(rest, LONGEST_COMMAND) {
                None => return false,
                Some(false) => break,
                Some(true) => {}
            }
            let reply = self.command(connection, &begun.args(rest), time, replies);
            replies.push((connection, reply));
            at += std::mem::take(&mut begun).at;
        }
        inbox.drain(..at);
        if let Some(open) = self.connections.get_mut(&connection) {
            (open.inbox, open.begun) = (inbox, begun);
        }
        true
    }

    fn command(
        &mut self,
        connection: u64,
        args: &[&[u8]],
        time: u64,
        replies: &mut Replies,
    ) -> Vec<u8> {
        let kind = Commander::of(args);
        self.requests.count(kind);
        let words = |words: &[&[u8]]| {
            let mut array = Vec::new();
            resp::pack(&mut array, &[words], None);
            array
        };
        let bulk =
            |text: &[u8]| [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat();
        let open = self.connections.get_mut(&connection);
        let is_subscribed = open.as_ref().is_some_and(|open| !open.channels.is_empty());
        match (args, open) {
            // Any password will do.
            ([b"AUTH", ..] | [b"SELECT", b"0"], _) => b"+OK\r\n".to_vec(),
            ([b"SELECT", ..], _) => b"-ERR DB index is out of range\r\n".to_vec(),
            ([b"INFO", ..], _) => bulk(self.info(time).as_bytes()),
            ([b"CONFIG", b"GET", b"appendfsync"], _) => words(&[b"appendfsync", b"always"]),
            ([b"PING"], _) if is_subscribed => words(&[b"pong", b""]),
            ([b"PING", text], _) if is_subscribed => words(&[b"pong", text]),
            ([b"PING", text], _) => bulk(text),
            ([b"SUBSCRIBE", channel], Some(open)) => {
                open.channels.retain(|own| own != channel);
                open.channels.push(channel.to_vec());
                subscribed(b"subscribe", channel, open.channels.len())
            }
            ([b"UNSUBSCRIBE", channel], Some(open)) => {
                open.channels.retain(|own| own != channel);
                subscribed(b"unsubscribe", channel, open.channels.len())
            }
            _ if self.refuses.is_some() && (kind != Commander::Other || reads_a_lock(args)) => {
                let text = self.refuses.as_deref().unwrap_or_default();
                format!("-{text}\r\n").into_bytes()
            }
            _ => {
                if kind == Commander::Acquire {
                    self.hold_for_all(args, time);
                }
                self.execute(args, time, replies)
            }
        }
    }

    fn execute(&mut self, args: &[&[u8]], time: u64, replies: &mut Replies) -> Vec<u8> {
        let connections = &self.connections;
        self.store.execute(time, args, &mut |channel, message| {
            let mut heard = 0;
            for (number, connection) in connections {
                if connection.channels.iter().any(|own| own == channel) {
                    let mut bytes = Vec::new();
                    resp::pack(&mut bytes, &[&[b"message", channel, message]], None);
                    replies.push((*number, bytes));
                    heard += 1;
                }
            }
            heard
        })
    }

    fn info(&self, time: u64) -> String {
        let uptime = time.saturating_sub(self.started) / 1_000_000;
        let id = [self.number.to_be_bytes(), self.restarts.to_be_bytes()].concat();
        let run_id = sha1(&id);
        let run_id = String::from_utf8_lossy(&run_id);
        let clients = self.connections.len();
        format!(
            "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nrun_id:{run_id}\r\n\
             uptime_in_seconds:{uptime}\r\n# Clients\r\nconnected_clients:{clients}\r\nmaxclients:10000\r\n\
             # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n\
             aof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\n# Stats\r\nevicted_keys:0\r\n\
             rejected_connections:0\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
             master_replid:{run_id}\r\n# Commandstats\r\ncmdstat_info:calls=1\r\n"
        )
    }
}

/// The changes that a test makes to a server.
impl Server {
    /// Answers all that concerns locks with this error. `None`: no longer does so.
    pub(crate) fn refuse(&mut self, error: Option<&str>) {
        // A reply is one line.
        let line = |text: &str| {
            let text = text.trim_start_matches('-').replace(['\r', '\n'], " ");
            text.chars().take(200).collect()
        };
        self.refuses = error.map(line);
    }

    /// A restart without data. All connections are gone.
    pub(crate) fn restart(&mut self, time: u64) {
        self.store.clear();
        self.store.flush_scripts();
        self.connections.clear();
        self.restarts += 1;
        self.started = time;
    }

    /// Makes another process hold the lock from now on, even if it was not free.
    pub(crate) fn hold(
        &mut self,
        name: &[u8],
        (token, label): (&Token, Option<&Label>),
        ttl: u64,
        time: u64,
    ) {
        let since = SystemTime::UNIX_EPOCH + Duration::from_micros(time);
        let value = lock_value::pack(token, Since::of(since), label).to_vec();
        self.store.remove(name);
        let last = (time / 1000).saturating_add(ttl);
        self.store
            .insert(name, StoredValue::Text(value), Some(last));
    }

    /// Releases the lock for its holders, if there are any and the key is a lock.
    pub(crate) fn release(&mut self, name: &[u8], time: u64, replies: &mut Replies) -> bool {
        let mut keys = self.store.keys(time);
        let Some((_, value, left)) = keys.find(|key| key.0 == name) else {
            return false;
        };
        let is_set = matches!(value, StoredValue::Queue(_));
        let holders = held(value, left, time);
        drop(keys);
        let queue = Companion::Queue.key(name).concat();
        for held in &holders {
            let token = held.token.as_bytes();
            let release: &[&[u8]] = match is_set {
                true => &[b"EVAL", RELEASE_MEMBER.text, b"2", name, &queue, token, b""],
                false => &[b"EVAL", RELEASE_AND_NOTIFY.text, b"1", name, token],
            };
            self.execute(release, time, replies);
        }
        !holders.is_empty()
    }

    /// Makes another process, with this token, hold each lock from now on that is free when it is asked for.
    pub(crate) fn hold_all(&mut self, token: Token) {
        self.holder_of_all = Some(token);
    }

    fn hold_for_all(&mut self, args: &[&[u8]], time: u64) {
        // Another process may have another permit.
        let is_permit =
            |script: &[u8]| [ACQUIRE_PERMIT.hash, ACQUIRE_PERMIT.text].contains(&script);
        let name = match args {
            [b"SET", name, ..] => *name,
            [_, script, _, name, ..] if !is_permit(script) => *name,
            _ => return,
        };
        let Some(token) = self.holder_of_all else {
            return;
        };
        if !self.store.keys(time).any(|key| key.0 == name) {
            self.hold(name, (&token, None), HELD, time);
        }
    }

    /// Ends `hold_all`: that process releases all that it holds.
    pub(crate) fn release_all(&mut self, time: u64, replies: &mut Replies) {
        let Some(token) = self.holder_of_all.take() else {
            return;
        };
        for (name, held) in self.locks(time) {
            if held.token == token {
                self.release(&name, time, replies);
            }
        }
    }

    pub(crate) fn holder(&self, name: &[u8], time: u64) -> Option<Held> {
        let mut keys = self.store.keys(time);
        let (_, value, left) = keys.find(|key| key.0 == name)?;
        lasting(held(value, left, time))
    }

    /// All locks, in the order of their names.
    pub(crate) fn locks(&self, time: u64) -> Vec<(Vec<u8>, Held)> {
        let keys = self.store.keys(time);
        let locks = keys.filter_map(|(name, value, left)| {
            Some((name.to_vec(), lasting(held(value, left, time))?))
        });
        let mut locks: Vec<(Vec<u8>, Held)> = locks.collect();
        locks.sort_by(|one, other| one.0.cmp(&other.0));
        locks
    }

    /// How many processes are in the queue for a lock.
    pub(crate) fn waiting(&self, name: &[u8], time: u64) -> usize {
        let queue = Companion::Queue.key(name).concat();
        let mut keys = self.store.keys(time);
        match keys.find(|key| key.0 == queue) {
            Some((_, StoredValue::Queue(members), _)) => members.len(),
            _ => 0,
        }
    }
}

/// Whether the command reads what locks and marks are, or which there are.
fn reads_a_lock(args: &[&[u8]]) -> bool {
    match args {
        [b"GET" | b"PTTL" | b"GETRANGE", name, ..] => !name.ends_with(WITNESS),
        [b"SCAN" | b"ZRANGE", ..] => true,
        _ => false,
    }
}

fn subscribed(kind: &[u8], channel: &[u8], count: usize) -> Vec<u8> {
    let mut reply = b"*3\r\n".to_vec();
    for word in [kind, channel] {
        reply.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        reply.extend_from_slice(word);
        reply.extend_from_slice(b"\r\n");
    }
    reply.extend_from_slice(format!(":{count}\r\n").as_bytes());
    reply
}

/// The holders that a value stores: none if the value is no lock.
fn held(value: &StoredValue, left: Option<u64>, time: u64) -> Vec<Held> {
    let one = |parts: ValueParts, left: u64| Held {
        token: parts.token,
        label: parts.label.map(|label| label.as_str().to_owned()),
        remaining: Duration::from_millis(left),
    };
    match value {
        StoredValue::Text(text) => {
            let parts = lock_value::parse(text, text.len());
            let held = parts.and_then(|parts| Some(one(parts, left?)));
            held.into_iter().collect()
        }
        StoredValue::Queue(members) => {
            let member = |(last, member): &(i64, Vec<u8>)| {
                let (_, parts) = lock_value::parse_member(member)?;
                let left = u64::try_from(*last).ok()?.checked_sub(time / 1000)?;
                Some(one(parts, left))
            };
            members.iter().filter_map(member).collect()
        }
        #[cfg(test)]
        _ => Vec::new(),
    }
}

/// The holder that has the lock longest.
fn lasting(holders: Vec<Held>) -> Option<Held> {
    holders.into_iter().max_by_key(|held| held.remaining)
}

impl Requests {
    fn count(&mut self, kind: Commander) {
        let counter = match kind {
            Commander::Acquire => &mut self.acquire,
            Commander::Extend => &mut self.extend,
            Commander::Release => &mut self.release,
            Commander::Fence => &mut self.fence,
            Commander::OtherScript | Commander::Other => &mut self.other,
        };
        *counter += 1;
    }
}
