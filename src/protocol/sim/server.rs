//! A virtual server: keys that expire by its own clock, queues beside them, some commands, and moods.

use std::borrow::Cow;

use super::{Event, MS, RESOLUTION, Random, TODAY, World, mutant, trace};
use crate::protocol::queue::{KNOCK, LEAVE, TELL, WAIT_IN_TURN};
use crate::protocol::script::{EXTEND, FENCE, RELEASE, Script};

/// The time of day when the world begins, how far clocks differ, and the steps in which fencing tokens see it:
/// as much smaller as everything here.
const DAY: u64 = 1_000_000;
const SKEW: u64 = 20 * MS;
const STEP: u64 = 10 * MS;

pub(super) struct Server {
    /// Resource, token, and when it expires.
    keys: Vec<(u8, usize, u64)>,
    /// Of fencing tokens, by resource.
    counters: Vec<(u8, u64)>,
    queues: Vec<Queue>,
    /// For whom a resource is kept, and until when.
    turns: Vec<(u8, usize, u64)>,
    /// Its time of day is so much ahead of the slowest server's.
    ahead: u64,
    /// Its clock gains so many parts in ten thousand.
    rate: u64,
    paused_until: u64,
    refuses_connections_until: u64,
    /// Or does not permit it, so long.
    out_of_memory_until: u64,
    forbids: bool,
    refuses_writes_until: u64,
    slow_until: u64,
    /// It knows the scripts.
    loaded: bool,
    /// When it was started, and how often.
    started: u64,
    run: u64,
}

/// Who waits for a resource: channels, in the order of a number.
struct Queue {
    resource: u8,
    waiters: Vec<(u64, usize)>,
    expires: u64,
}

/// What a knock asks, but for the lock.
pub(super) struct Knock {
    channel: usize,
    /// In milliseconds.
    arrived: u64,
    waited: u64,
    lease: u64,
    /// It takes the lock only in turn.
    turn: Option<u64>,
}

/// What a command asks.
enum Command {
    Ping,
    /// A script by its hash, whichever it is; if that is a knock, with its token.
    Unknown(Option<usize>),
    Set {
        resource: u8,
        token: usize,
        px: u64,
        knock: Option<Knock>,
    },
    Extend {
        resource: u8,
        token: usize,
        px: u64,
    },
    Release {
        resource: u8,
        token: usize,
        tells: bool,
        turn: Option<u64>,
        but: Option<usize>,
    },
    Leave {
        resource: u8,
        channel: usize,
        fair: bool,
        turn: u64,
    },
    Fence {
        resource: u8,
        token: usize,
        at_least: u64,
    },
}

impl Server {
    pub(super) fn new(guarded: bool, random: &mut Random) -> Server {
        // With the restart guard clocks may differ by less than half of the longest ttl (rule R28).
        let skew = if guarded { SKEW } else { 10 * SKEW };
        Server {
            keys: Vec::new(),
            counters: Vec::new(),
            queues: Vec::new(),
            turns: Vec::new(),
            ahead: random.below(skew),
            rate: 9_950 + random.below(101),
            paused_until: 0,
            refuses_connections_until: 0,
            out_of_memory_until: 0,
            forbids: false,
            refuses_writes_until: 0,
            slow_until: 0,
            loaded: false,
            started: 0,
            run: 0,
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = (u8, usize, u64)> {
        self.keys.iter().copied()
    }

    /// When a key that is set now expires.
    fn expires(&self, t: u64, px: u64) -> u64 {
        t + px * MS * 10_000 / self.rate
    }

    pub(super) fn pause(&mut self, until: u64) {
        self.paused_until = until;
    }

    pub(super) fn is_paused(&self, t: u64) -> Option<u64> {
        (self.paused_until > t).then_some(self.paused_until)
    }

    pub(super) fn refuse_connections(&mut self, until: u64) {
        self.refuses_connections_until = until;
    }

    pub(super) fn refuses_connections(&self, t: u64) -> bool {
        self.refuses_connections_until > t
    }

    pub(super) fn run_out_of_memory(&mut self, until: u64) {
        self.out_of_memory_until = until;
        self.forbids = until.is_multiple_of(2);
    }

    pub(super) fn refuse_writes(&mut self, until: u64) {
        self.refuses_writes_until = until;
    }

    pub(super) fn slow_down(&mut self, until: u64) {
        self.slow_until = until;
    }

    pub(super) fn is_slow(&self, t: u64) -> bool {
        self.slow_until > t
    }

    /// It was restarted.
    pub(super) fn start(&mut self, t: u64) {
        self.started = t;
        self.run += 1;
        self.loaded = false;
    }

    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// How long it says that it has been up: the first ones for long; too long by less than the resolution.
    pub(super) fn uptime(&self, t: u64, random: &mut Random) -> u64 {
        let age = if self.run == 0 { 1000 * MS } else { 0 };
        let up = age + (t - self.started) * self.rate / 10_000;
        up / RESOLUTION * RESOLUTION + RESOLUTION * random.below(2)
    }

    pub(super) fn load(&mut self) {
        self.loaded = true;
    }

    pub(super) fn flush_scripts(&mut self) {
        self.loaded = false;
    }

    /// It loses its keys, counters and queues; whether there were any of the first two.
    pub(super) fn forget(&mut self, t: u64) -> (bool, bool) {
        let any = self.keys.iter().any(|key| key.2 > t);
        self.keys.clear();
        self.queues.clear();
        self.turns.clear();
        (any, !std::mem::take(&mut self.counters).is_empty())
    }

    /// Into the queue; it is kept for so many milliseconds.
    fn enqueue(&mut self, t: u64, resource: u8, knock: &Knock) {
        let time = (TODAY + self.ahead + t * self.rate / 10_000) / MS;
        let by_own = time.saturating_sub(knock.waited);
        let score = match by_own.abs_diff(knock.arrived) {
            0..=500 => knock.arrived,
            _ => by_own,
        };
        let expires = self.expires(t, knock.lease);
        let is = |queue: &Queue| queue.resource == resource;
        let at = self.queues.iter().position(is);
        let at = at.unwrap_or_else(|| {
            self.queues.push(Queue {
                resource,
                waiters: Vec::new(),
                expires,
            });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        if queue.expires <= t {
            queue.waiters.clear();
        }
        queue.expires = expires;
        queue.waiters.retain(|waiter| waiter.1 != knock.channel);
        queue.waiters.push((score, knock.channel));
        queue.waiters.sort_unstable();
    }

    fn dequeue(&mut self, resource: u8, channel: usize) {
        let queue = self.queues.iter_mut().find(|one| one.resource == resource);
        if let Some(queue) = queue {
            queue.waiters.retain(|waiter| waiter.1 != channel);
        }
    }

    /// Takes the first out of the queue.
    fn pop(&mut self, t: u64, resource: u8) -> Option<usize> {
        let is = |queue: &&mut Queue| queue.resource == resource && queue.expires > t;
        let queue = self.queues.iter_mut().find(is)?;
        (!queue.waiters.is_empty()).then(|| queue.waiters.remove(0).1)
    }

    fn first(&self, t: u64, resource: u8) -> Option<usize> {
        let is = |queue: &&Queue| queue.resource == resource && queue.expires > t;
        let queue = self.queues.iter().find(is)?;
        queue.waiters.first().map(|waiter| waiter.1)
    }

    /// For whom a resource is kept, and until when.
    fn turn(&self, t: u64, resource: u8) -> Option<(usize, u64)> {
        let is = |turn: &&(u8, usize, u64)| turn.0 == resource && (turn.2 > t || mutant(39));
        self.turns.iter().find(is).map(|turn| (turn.1, turn.2))
    }

    /// It is kept, if for nobody else, for so many milliseconds.
    fn keep(&mut self, t: u64, resource: u8, channel: usize, turn: u64) {
        if self.turn(t, resource).is_none() {
            self.turns.retain(|turn| turn.0 != resource);
            let expires = self.expires(t, turn);
            self.turns.push((resource, channel, expires));
        }
    }

    /// A turn is used, or given up.
    fn end_turn(&mut self, resource: u8, channel: usize) {
        self.turns
            .retain(|turn| (turn.0, turn.1) != (resource, channel));
    }

    /// Whether a resource is locked, by whoever it is.
    pub(super) fn has_key(&self, t: u64, resource: u8) -> bool {
        let is = |key: &(u8, usize, u64)| key.0 == resource && key.2 > t;
        self.keys.iter().any(is)
    }

    /// Well again, from now on.
    pub(super) fn calm(&mut self) {
        self.paused_until = 0;
        self.refuses_connections_until = 0;
        self.out_of_memory_until = 0;
        self.refuses_writes_until = 0;
        self.slow_until = 0;
    }
}

/// The first command in `bytes` and its length, once it is complete.
fn parse(bytes: &[u8], loaded: bool) -> Option<(Command, usize)> {
    let line = |at: usize| {
        let length = bytes.get(at..)?.iter().position(|byte| *byte == b'\r')?;
        let digits = bytes.get(at + 1..at + length)?;
        let number = str::from_utf8(digits).ok()?.parse::<usize>().ok()?;
        (bytes.len() >= at + length + 2).then_some((number, at + length + 2))
    };
    let (count, mut at) = line(0)?;
    let mut args: [&[u8]; 11] = [&[]; 11];
    for arg in args.iter_mut().take(count) {
        let (length, start) = line(at)?;
        *arg = bytes.get(start..start + length)?;
        at = start + length + 2;
    }
    if at > bytes.len() {
        return None;
    }
    let token = |arg: &[u8]| {
        let id = u64::from_le_bytes(arg[..8].try_into().unwrap());
        usize::try_from(id).unwrap()
    };
    let number = |arg: &[u8]| str::from_utf8(arg).unwrap().parse().unwrap();
    // "redlock:", and the same two digits sixteen times.
    let channel = |arg: &[u8]| {
        let digits = str::from_utf8(&arg[8..10]).unwrap();
        usize::from_str_radix(digits, 16).unwrap()
    };
    let is = |script: Script| {
        let by_hash = args[0] == b"EVALSHA";
        args[1] == if by_hash { script.hash } else { script.text }
    };
    let command = match args[0] {
        b"PING" => Command::Ping,
        b"SET" => Command::Set {
            resource: args[1][0],
            token: token(args[2]),
            px: number(args[5]),
            knock: None,
        },
        b"EVALSHA" if !loaded => {
            let knocks = is(KNOCK) || is(WAIT_IN_TURN);
            Command::Unknown(knocks.then(|| token(args[4])))
        }
        _ if is(TELL) || is(RELEASE) => Command::Release {
            resource: args[3][0],
            token: token(args[4]),
            tells: is(TELL),
            turn: Some(5)
                .filter(|_| count == 6 && args[5].len() < 40)
                .map(|at| number(args[at])),
            but: Some(5)
                .filter(|_| count == 6 && args[5].len() == 40)
                .map(|at| channel(args[at])),
        },
        _ if is(KNOCK) || is(WAIT_IN_TURN) => Command::Set {
            resource: args[3][0],
            token: token(args[4]),
            px: number(args[5]),
            knock: Some(Knock {
                channel: channel(args[6]),
                arrived: number(args[7]),
                waited: number(args[8]),
                lease: number(args[9]),
                turn: is(WAIT_IN_TURN).then(|| number(args[10])),
            }),
        },
        _ if is(LEAVE) => Command::Leave {
            resource: args[3][0],
            channel: channel(args[4]),
            fair: args[5] == b"1",
            turn: number(args[6]),
        },
        _ if is(EXTEND) => Command::Extend {
            resource: args[3][0],
            token: token(args[4]),
            px: number(args[5]),
        },
        _ if is(FENCE) => Command::Fence {
            resource: args[3][0],
            token: token(args[5]),
            at_least: number(args[6]),
        },
        _ => panic!("an unknown script"),
    };
    Some((command, at))
}

/// The commands in `bytes`, which are whole: what of which token is said.
pub(super) fn commands(mut bytes: &[u8], mut each: impl FnMut(bool, usize)) {
    while let Some((command, length)) = parse(bytes, true) {
        bytes = &bytes[length..];
        match command {
            Command::Set { token, .. } => each(true, token),
            Command::Release { token, .. } => each(false, token),
            Command::Ping
            | Command::Unknown(_)
            | Command::Leave { .. }
            | Command::Extend { .. }
            | Command::Fence { .. } => {}
        }
    }
}

impl World {
    /// The server reads bytes from a connection.
    pub(super) fn execute(&mut self, connection: usize, bytes: &[u8]) {
        let node = self.connections[connection].node;
        let mut read = std::mem::take(&mut self.connections[connection].read);
        read.extend_from_slice(bytes);
        let mut at = 0;
        let mut replies = Vec::new();
        let mut pinged = false;
        let loaded = self.servers[node].loaded;
        while let Some((command, length)) = parse(&read[at..], loaded) {
            at += length;
            pinged |= matches!(command, Command::Ping);
            let reply = self.command(node, connection, command);
            replies.extend_from_slice(&reply);
        }
        if pinged && self.by_record {
            // However many pings are in one record.
            self.read_leftovers(node, self.connections[connection].client);
        }
        read.drain(..at);
        self.connections[connection].read = read;
        self.answer(connection, &replies);
    }

    fn command(&mut self, node: usize, connection: usize, command: Command) -> Cow<'static, [u8]> {
        let t = self.t;
        self.servers[node].keys.retain(|key| key.2 > t);
        match command {
            Command::Fence {
                resource,
                token,
                at_least,
            } => {
                let reply = self.count(node, resource, token, at_least);
                reply.into_bytes().into()
            }
            Command::Set {
                resource,
                token,
                px,
                knock,
            } => self.set(node, resource, token, px, knock),
            command => self.plain_command(node, connection, command).into(),
        }
    }

    /// What the script for fencing tokens does.
    fn count(&mut self, node: usize, resource: u8, token: usize, at_least: u64) -> String {
        let t = self.t;
        let server = &mut self.servers[node];
        let held = |key: &(u8, usize, u64)| key.0 == resource && key.1 == token;
        if !server.keys.iter().any(held) {
            self.trails[token].not_held.add(node);
            return ":0\r\n".into();
        }
        if server.refuses_writes_until > t {
            return "-READONLY You can't write\r\n".into();
        }
        let time = DAY + server.ahead + t * server.rate / 10_000;
        let known = server.counters.iter().position(|one| one.0 == resource);
        let counter = known.map_or(0, |at| server.counters[at].1);
        let number = (counter + 1).max(at_least).max(time - time % STEP);
        match known {
            Some(at) => server.counters[at].1 = number,
            None => server.counters.push((resource, number)),
        }
        format!(":{number}\r\n")
    }

    fn plain_command(&mut self, node: usize, connection: usize, command: Command) -> &'static [u8] {
        let t = self.t;
        let server = &mut self.servers[node];
        let refuses = server.refuses_writes_until > t;
        match command {
            // Above.
            Command::Fence { .. } | Command::Set { .. } => b"",
            Command::Unknown(knock) => {
                self.counts.refused += 1;
                if let Some(token) = knock {
                    // There is nothing to undo.
                    self.trails[token].set_sent[node] = None;
                }
                b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
            }
            Command::Ping => {
                self.counts.pings += 1;
                // A turn of the event loop: what is in the sockets of dead connections is read, too.
                if !self.by_record {
                    self.read_leftovers(node, self.connections[connection].client);
                }
                b"+PONG\r\n"
            }
            Command::Extend {
                resource,
                token,
                px,
            } => {
                let expires = server.expires(t, px);
                let held = |key: &&mut (u8, usize, u64)| key.0 == resource && key.1 == token;
                match server.keys.iter_mut().find(held) {
                    Some(_) if refuses => b"-READONLY You can't write\r\n",
                    Some(key) => {
                        key.2 = key.2.max(expires);
                        self.trails[token].extended.add(node);
                        b":1\r\n"
                    }
                    None => {
                        self.trails[token].not_held.add(node);
                        b":0\r\n"
                    }
                }
            }
            Command::Leave {
                resource,
                channel,
                fair,
                turn,
            } => {
                trace!(self, "    node {node}: {channel} leaves {resource}");
                if refuses {
                    // What it does to the queue fails, and nothing else.
                    return b":0\r\n";
                }
                let server = &mut self.servers[node];
                server.dequeue(resource, channel);
                let kept = server.turn(t, resource).map(|turn| turn.0);
                server.end_turn(resource, channel);
                let other = kept.is_some_and(|kept| kept != channel);
                if other || self.servers[node].has_key(t, resource) {
                    return b":0\r\n";
                }
                let keeps = fair || kept.is_some();
                match self.tell(node, resource, keeps.then_some(turn), None, None) {
                    true => b":2\r\n",
                    false => b":1\r\n",
                }
            }
            Command::Release {
                resource,
                token,
                tells,
                turn,
                but,
            } => {
                let held = |key: &(u8, usize, u64)| key.0 == resource && key.1 == token;
                let found = server.keys.iter().position(held);
                trace!(
                    self,
                    "    node {node}: release {token}, {}",
                    found.is_some()
                );
                let server = &mut self.servers[node];
                match found {
                    Some(_) if refuses => {
                        self.counts.refused += 1;
                        b"-READONLY You can't write\r\n"
                    }
                    Some(at) => {
                        server.keys.swap_remove(at);
                        self.trails[token].rel.add(node);
                        // What a killed process has undone may be free later than others ask.
                        let late = !tells && self.clients[self.trails[token].client].dead;
                        if let Some(excused) = self.excused.get_mut(usize::from(resource)) {
                            *excused |= late;
                        }
                        let alone = self.trails[token].alone;
                        let own = alone.then_some(self.trails[token].client);
                        if tells && self.tell(node, resource, turn, but, own) {
                            return b":2\r\n";
                        }
                        b":1\r\n"
                    }
                    None => {
                        self.trails[token].rel.add(node);
                        self.trails[token].not_held.add(node);
                        b":0\r\n"
                    }
                }
            }
        }
    }

    pub(super) fn enqueue_late(&mut self, at: usize) {
        let (node, resource, knock) = &self.late[at];
        self.servers[*node].enqueue(self.t, *resource, knock);
    }

    /// The first who waits and hears it is told that a lock is free; whether there is one.
    /// `own`: the process that asks for it, if nobody waits there.
    fn tell(
        &mut self,
        node: usize,
        resource: u8,
        turn: Option<u64>,
        but: Option<usize>,
        own: Option<usize>,
    ) -> bool {
        while let Some(channel) = self.servers[node].pop(self.t, resource) {
            if but == Some(channel) {
                continue;
            }
            if self.publish(node, channel, resource) || mutant(34) {
                self.check(own != Some(channel), || {
                    format!("client {channel} tells itself that {resource} is free, and nobody waits there")
                });
                if let Some(turn) = turn.filter(|_| !mutant(42)) {
                    self.servers[node].turns.retain(|turn| turn.0 != resource);
                    self.servers[node].keep(self.t, resource, channel, turn);
                }
                return true;
            }
        }
        false
    }

    fn set(
        &mut self,
        node: usize,
        resource: u8,
        token: usize,
        px: u64,
        knock: Option<Knock>,
    ) -> Cow<'static, [u8]> {
        let (t, server) = (self.t, &mut self.servers[node]);
        let holder = server.keys.iter().find(|key| key.0 == resource);
        let holder = holder.map(|key| key.1);
        trace!(
            self,
            "    node {node}: set {resource} {token}, held by {holder:?}"
        );
        let trail = &self.trails[token];
        let again = trail.set.has(node) && !trail.refilled.has(node);
        let late = self.trails[token].rel.has(node);
        self.trails[token].set.add(node);
        self.check(!again, || format!("{token} is set twice on node {node}"));
        self.check(!late, || {
            format!("{token} is set after its release on node {node}")
        });
        let server = &mut self.servers[node];
        if server.out_of_memory_until > t && server.forbids {
            self.trails[token].forbidden.add(node);
            return b"-NOPERM this user has no permissions to run the 'set' command\r\n".into();
        }
        if server.out_of_memory_until > t {
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n".into();
        }
        if server.refuses_writes_until > t {
            return b"-READONLY You can't write against a read only replica.\r\n".into();
        }
        let Some(holder) = holder else {
            if let Some(knock) = &knock
                && let Some(kept) = self.is_kept(node, resource, knock)
            {
                self.counts.kept += 1;
                self.trails[token].denied.add(node);
                return format!("${}\r\n{kept} - w\r\n", kept.to_string().len() + 4)
                    .into_bytes()
                    .into();
            }
            let server = &mut self.servers[node];
            let expires = server.expires(t, px);
            server.keys.push((resource, token, expires));
            if let Some(knock) = knock {
                server.dequeue(resource, knock.channel);
                server.end_turn(resource, knock.channel);
            }
            self.trails[token].granted.add(node);
            return b"+OK\r\n".into();
        };
        self.trails[token].denied.add(node);
        let (mine, other) = (&self.trails[token], &self.trails[holder]);
        let freed = mine.client == other.client && other.freed.is_some_and(|at| at < mine.drawn);
        // What it could not carry out waits.
        let refused = self.counts.refused > 0;
        self.check(!freed || refused, || {
            format!("node {node} denies {token} for {holder}, which the same client had released")
        });
        let Some(knock) = knock else {
            return b"$-1\r\n".into();
        };
        self.counts.knocks += 1;
        let server = &mut self.servers[node];
        if mutant(32) {
            let later = t + self.delay(node) + self.delay(node);
            self.late.push((node, resource, knock));
            self.at(later, Event::Late(self.late.len() - 1));
        } else {
            server.enqueue(t, resource, &knock);
        }
        let server = &self.servers[node];
        let expires = server.keys.iter().find(|key| key.1 == holder);
        let left = expires.map_or(0, |key| key.2.saturating_sub(t));
        let left = left * server.rate / 10_000 / MS;
        let seen = format!("{left} {:06x} w", holder & 0xFF_FFFF);
        format!("${}\r\n{seen}\r\n", seen.len()).into_bytes().into()
    }

    /// For how many milliseconds a free lock is kept for another. Who asks has its place in the queue.
    fn is_kept(&mut self, node: usize, resource: u8, knock: &Knock) -> Option<u64> {
        let (t, turn) = (self.t, knock.turn?);
        self.servers[node].enqueue(t, resource, knock);
        while self.servers[node].turn(t, resource).is_none() {
            let first = self.servers[node].first(t, resource);
            let Some(first) = first.filter(|first| *first != knock.channel && !mutant(41)) else {
                break;
            };
            self.servers[node].dequeue(resource, first);
            if self.publish(node, first, resource) {
                self.servers[node].keep(t, resource, first, turn);
            }
        }
        let server = &mut self.servers[node];
        let other = server
            .turn(t, resource)
            .filter(|turn| turn.0 != knock.channel);
        if other.is_none() {
            server.end_turn(resource, knock.channel);
        }
        other.map(|other| other.1.saturating_sub(t) * server.rate / 10_000 / MS)
    }

    pub(super) fn leftover(&mut self, connection: usize) {
        let node = self.connections[connection].node;
        if let Some(later) = self.servers[node].is_paused(self.t) {
            return self.at(later, Event::Leftover(connection));
        }
        while let Some(bytes) = self.connections[connection].next_up() {
            self.execute(connection, &bytes);
        }
    }

    fn read_leftovers(&mut self, node: usize, client: usize) {
        for other in 0..self.connections.len() {
            let dead = &self.connections[other];
            if dead.is_dead() && dead.node == node && dead.client == client {
                while let Some(bytes) = self.connections[other].next_up() {
                    self.execute(other, &bytes);
                    if self.by_record {
                        break;
                    }
                }
            }
        }
    }
}
