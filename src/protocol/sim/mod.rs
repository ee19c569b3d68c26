//! The protocol among virtual servers, connections and clocks.
//!
//! One schedule is everything that happens in a world which is made from one seed: servers with clocks
//! of their own, connections that delay, split, hold and are cut, clients that freeze and are suspended,
//! and their threads, which acquire, extend, release and drop. The protocol is the real one, from bytes to
//! deadlines; the driver, with its sockets, threads and clocks, is imitated. The properties are checked as
//! things happen; a seed that fails can be replayed with a trace.
//!
//! ```text
//! cargo test --release --lib simulation                                   a short run, and the mutants
//! SIM_COUNT=10000000 cargo test --release --lib simulation -- --nocapture on all cores: half an hour on two
//! SIM_SEED=17 cargo test --release --lib replay -- --ignored --nocapture  one seed, with a trace
//! ```
//!
//! A server is a model of a real one (`testing::store`), with which the differential test in `net` compares it.
//!
//! *Mutants* (`mutants`) show that the properties can fail: each breaks one rule, and must be found.
//!
//! In some worlds threads *wait*: in the queues of their processes, and in those on the nodes, with
//! subscriptions that open late and are cut. There, no lock is free for long while a thread waits for it. Where
//! nothing else goes wrong, that is a few milliseconds; the polls are much longer.

mod client;
mod clocks;
mod failover;
mod instance;
mod kept;
mod leave;
mod network;
mod server;
mod subscription;
mod tests;
mod trouble;
mod waiting;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, LooksAgain, RESOURCES};
use network::Connection;
use server::Server;
use subscription::{Subscription, SubscriptionEvent};
use trouble::Trouble;

use crate::protocol::kind::{Kind, Mark};
use crate::protocol::quorum::{NodeSet, majority};

/// Times are in microseconds of a clock that no part of the world can read.
const MS: u64 = 1000;
const NODE_TIMEOUT: u64 = 50 * MS;
const CONNECT_TIMEOUT: u64 = 500 * MS;
/// With the restart guard: the longest ttl, and the resolution in which servers report how long they have been up. Both
/// are shorter than in this world, so that restarts fit in.
const LONGEST: u64 = 100 * MS;
const RESOLUTION: u64 = 10 * MS;
/// For this long a master goes on whose place another one has taken; here it is shorter by a fifth, for the clocks.
const MARGIN: u64 = 30 * MS;
/// What wall clocks and the servers' clocks show when the world begins: not about nothing.
const TODAY: u64 = 100_000 * MS;
/// For writes that take their time, and whatever a virtual clock's rate and rounding add.
const SLACK: u64 = 20 * MS;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap()
    }

    fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let part = u32::try_from(self.below(1025)).unwrap();
        min + (max - min) / 1024 * part
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Bytes for the server.
    Arrive(usize),
    /// Bytes for the client.
    Deliver(usize),
    /// The server reads what a dead connection left.
    Leftover(usize),
    Connected {
        client: usize,
        node: usize,
        well: bool,
    },
    Wake(usize),
    /// On a subscription.
    Subscription(usize, SubscriptionEvent),
    /// A process enters the queue after its denial.
    Late(usize),
    Fault,
    /// Servers close a client's connections, and forget the scripts.
    Forsake(usize),
    /// The second look over a new connection.
    LookAgain(usize),
    /// One of the servers behind a node's name becomes a replica.
    Demoted(usize, usize),
    /// The one before has followed, and takes its place again.
    Back(usize, usize),
    /// Something happens to the servers behind a name.
    Change(usize),
    /// This long after its release a token must be gone.
    Gone(usize),
}

/// What became of a token.
#[derive(Default)]
struct TokenHistory {
    client: usize,
    resource: u8,
    kind: Kind,
    /// Over which connection its acquire and its release were sent to each node.
    set_sent: [Option<usize>; 5],
    rel_sent: [Option<usize>; 5],
    on: OnNodes,
    belief: Option<Belief>,
    /// When it was drawn, and when it was given up, in the order of events.
    drawn: u64,
    freed: Option<u64>,
    /// No thread of its process waited for the lock then, nor has since.
    alone: bool,
    /// Left to its ttl.
    leaked: bool,
    /// A quorum has shortened it.
    shortened: bool,
}

/// On which nodes something has happened to a token.
#[derive(Default)]
struct OnNodes {
    /// The server carried its acquire out, and its release.
    set: NodeSet,
    rel: NodeSet,
    /// What the server has answered.
    granted: NodeSet,
    denied: NodeSet,
    /// The server does not permit it.
    forbidden: NodeSet,
    extended: NodeSet,
    /// It may have been set once more.
    refilled: NodeSet,
    not_held: NodeSet,
}

/// That a client believes to hold the lock.
struct Belief {
    deadline: crate::protocol::quorum::Deadline,
    /// A permit's.
    slot: Option<u16>,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What is counted, to see that it happens.
        #[derive(Clone, Copy, Debug)]
        enum Count {
            $($(#[$doc])* $name,)+
        }

        /// In the order of `Count`.
        const COUNTS: &[Count] = &[$(Count::$name,)+];
    };
}

counts! {
    Events,
    Granted,
    Denied,
    Unavailable,
    Split,
    Second,
    TooSlow,
    Extended,
    Lost,
    Renewed,
    Shortened,
    HeldTooLong,
    Reconnected,
    Unresponsive,
    Replaced,
    Pings,
    Refused,
    Repairs,
    Quarantined,
    Fenced,
    Enqueued,
    Reserved,
    InOrder,
    Notified,
    Forwards,
    HandedOff,
    Waited,
    GaveUp,
    Permanent,
    Killed,
    ConfirmProbes,
    Permits,
    Strays,
    Reads,
    Writes,
    Several,
    Claims,
    Failovers,
    Flushes,
    SecondLooks,
    /// The longest time for which a lock was free, and a thread waited for it, where all is prompt.
    Slept,
}

#[derive(Clone, Copy)]
pub(super) struct Counts([u64; COUNTS.len()]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([0; COUNTS.len()])
    }
}

impl Index<Count> for Counts {
    type Output = u64;

    fn index(&self, count: Count) -> &u64 {
        &self.0[count as usize]
    }
}

impl IndexMut<Count> for Counts {
    fn index_mut(&mut self, count: Count) -> &mut u64 {
        &mut self.0[count as usize]
    }
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(COUNTS.iter().zip(self.0)).finish()
    }
}

impl TokenHistory {
    /// It is on this name, perhaps among others.
    fn covers(&self, name: u8) -> bool {
        let names = self.kind.names().unwrap_or_default();
        self.resource == name || names.iter().any(|own| **own == [name])
    }
}

/// What may happen in a world.
#[allow(clippy::struct_excessive_bools)]
#[derive(Default)]
struct Conditions {
    /// Threads wait for locks.
    waits: bool,
    /// Polls are so rare that a waiter which is woken only by its poll is noticed. Nothing goes wrong but that waiters
    /// are killed, and that subscriptions are cut.
    prompt: bool,
    /// Waiters are fair.
    fair: bool,
    /// No process is killed, and no subscription cut.
    orderly: bool,
    /// Everything takes its time there, so that contenders give up before one of them has the lock.
    sluggish: bool,
    /// Threads pause for longer than subscriptions are kept.
    lazy: bool,
    /// Nothing ever goes wrong here.
    faultless: bool,
    /// All clients have the restart guard.
    guarded: bool,
    /// And there are two or three servers behind each name.
    fails_over: bool,
    /// All connections are over TLS: a server reads one write of each in a turn.
    by_record: bool,
    locks: Locks,
    course: Course,
}

/// Which locks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Locks {
    #[default]
    Plain,
    /// All are semaphores with this number of permits.
    Permits(u16),
    /// They are read and write locks, and plain ones.
    ReadWrite,
    /// They are on one or two names.
    Several,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Course {
    #[default]
    Usual,
    /// Little else goes wrong, and locks are held to their ends.
    Fragile,
    /// A client takes and drops one lock, about when servers close its connections. Then nothing follows.
    Forsaken,
}

/// Whether a resource is free, and a thread waits for it.
#[derive(Clone, Copy, Default)]
struct Idle {
    since: Option<u64>,
    /// The process that was notified may be dead.
    excused: bool,
}

/// What is known of the locks, and what is wrong with them.
#[derive(Default)]
struct Checks {
    tokens: Vec<TokenHistory>,
    /// The fencing tokens that were given out: resource, token, number, and when.
    fences: Vec<(u8, usize, u64, u64)>,
    /// Of each resource.
    idle: [Idle; RESOURCES as usize],
    /// A server has forgotten keys.
    lossy: bool,
    /// A server has forgotten counters.
    uncounted: bool,
    /// Locks without contention, and how many of them could not be acquired.
    probes: u32,
    probes_failed: u32,
    wrong: Option<String>,
}

/// What is between the clients and the servers.
#[derive(Default)]
struct Net {
    connections: Vec<Connection>,
    subscriptions: Vec<Subscription>,
    /// New connections that are looked at once more.
    looks: Vec<LooksAgain>,
    /// Commands whose processes enter the queue after their denials, and their nodes.
    late: Vec<(usize, Vec<u8>)>,
}

pub(super) struct World {
    t: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    random: Random,
    servers: Vec<Server>,
    clients: Vec<Client>,
    net: Net,
    checks: Checks,
    conditions: Conditions,
    /// All is well from now on.
    quiet: bool,
    counts: Counts,
    traced: bool,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        for count in COUNTS.iter().copied() {
            self[count] = match count {
                Count::Slept => self[count].max(other[count]),
                _ => self[count] + other[count],
            };
        }
    }
}

macro_rules! trace {
    ($world:expr, $($what:tt)+) => {
        if $world.traced {
            println!("{:>9} {}", $world.t, format!($($what)+));
        }
    };
}
use trace;

impl Conditions {
    fn draw(random: &mut Random) -> Conditions {
        let waits = random.chance(35);
        let prompt = waits && random.chance(45);
        let sluggish = prompt && random.chance(12);
        let lazy = waits && random.chance(4);
        let fair = waits && random.chance(35);
        let orderly = random.chance(70);
        let faultless = prompt || random.chance(5);
        let guarded = random.chance(30) && !prompt;
        let forsaken = !waits && random.chance(15);
        let fails_over = guarded && !forsaken && random.chance(70);
        Conditions {
            waits,
            prompt,
            fair,
            orderly,
            sluggish,
            lazy,
            faultless: faultless && !forsaken,
            guarded,
            fails_over,
            by_record: random.chance(30),
            locks: Locks::Plain,
            course: match forsaken {
                true => Course::Forsaken,
                false => Course::Usual,
            },
        }
    }

    fn is_fragile(&self) -> bool {
        self.course == Course::Fragile
    }

    fn is_forsaken(&self) -> bool {
        self.course == Course::Forsaken
    }

    /// How many may hold a lock.
    fn permits(&self) -> Option<u16> {
        match self.locks {
            Locks::Permits(permits) => Some(permits),
            _ => None,
        }
    }

    fn servers(&self, nodes: usize, random: &mut Random) -> Vec<Server> {
        let new = |_| {
            let instances = match self.fails_over {
                true => 2 + random.pick(2),
                false => 1,
            };
            Server::new(self.guarded, instances, random)
        };
        (0..nodes).map(new).collect()
    }

    fn fragile(self) -> Conditions {
        Conditions {
            orderly: self.orderly,
            by_record: self.by_record,
            guarded: true,
            fails_over: true,
            course: Course::Fragile,
            ..Conditions::default()
        }
    }
}

impl World {
    fn new(seed: u64, traced: bool) -> World {
        let mut random = Random(seed);
        let nodes = [1, 2, 3, 3, 4, 5][random.pick(6)];
        let clients = 2 + random.pick(2);
        let mut conditions = Conditions::draw(&mut random);
        let fragile = seed % 8 == 4;
        if fragile {
            conditions = Conditions::fragile(conditions);
        }
        let nodes = if fragile && random.chance(85) {
            1
        } else {
            nodes
        };
        match seed % 8 {
            _ if conditions.fair => {}
            0 | 1 => conditions.locks = Locks::Permits([1, 2, 2, 3][random.pick(4)]),
            2 => conditions.locks = Locks::ReadWrite,
            3 => conditions.locks = Locks::Several,
            _ => {}
        }
        let clients = match conditions.fair && conditions.prompt {
            _ if conditions.is_forsaken() => 1,
            // One may hang, and the order of the others counts.
            true => 3,
            false => clients,
        };
        // Locks on other resources make one seem held that is not.
        let collides = conditions.waits && !conditions.prompt && random.chance(30);
        let counters = if collides { 1 } else { 1024 };
        let mut world = World {
            t: 0,
            order: 0,
            events: BinaryHeap::new(),
            servers: conditions.servers(nodes, &mut random),
            clients: (0..clients)
                .map(|number| Client::new(number, nodes, &conditions, counters, &mut random))
                .collect(),
            random,
            net: Net::default(),
            checks: Checks::default(),
            conditions,
            quiet: false,
            counts: Counts::default(),
            traced,
        };
        world.start();
        world
    }

    fn start(&mut self) {
        if self.conditions.sluggish {
            // They meet on the nodes.
            let threads = self.clients.iter_mut().map(|client| &mut client.threads);
            threads.for_each(|threads| threads.truncate(1));
        }
        for client in 0..self.clients.len() {
            let at = self.random.below(10 * MS);
            self.at(at, Event::Wake(client));
        }
        let faults = !self.conditions.faultless || self.conditions.prompt;
        if faults && !self.conditions.is_forsaken() {
            let at = self.random.below(20 * MS);
            self.at(at, Event::Fault);
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    /// As what a name is locked, this time.
    fn kind(&mut self, resource: u8) -> Kind {
        let locks = self.conditions.locks;
        if let Locks::Permits(permits) = locks {
            let slot = None;
            return Kind::Permit { permits, slot };
        }
        let writes = Kind::Write(Mark {
            writer: self.order,
            life: if self.conditions.prompt { 2000 } else { 30 },
            waited: 0,
        });
        match self.random.below(10) {
            0..5 if locks == Locks::ReadWrite => Kind::Read { waited: 0 },
            0..7 if locks == Locks::Several && resource == 0 => {
                Kind::several([0, 1].map(|name| Arc::from(&[name][..])).into())
            }
            0..9 if locks != Locks::Plain => writes,
            _ => Kind::Plain,
        }
    }

    /// Whether two locks exclude each other.
    fn conflict(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.checks.tokens[a], &self.checks.tokens[b]);
        let shared = (0..=u8::MAX).any(|name| a.covers(name) && b.covers(name));
        let read = |one: &TokenHistory| matches!(one.kind, Kind::Read { .. });
        shared && !(read(a) && read(b))
    }

    fn quorum(&self) -> usize {
        majority(self.servers.len())
    }

    fn violated(&mut self, what: String) {
        self.checks.wrong.get_or_insert(what);
    }

    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(what());
        }
    }

    /// A schedule: a time of faults, then quiet, then nothing may be left.
    fn run(&mut self) -> Result<(), String> {
        if self.conditions.is_forsaken() {
            return self.run_forsaken();
        }
        let long = match self.conditions.guarded {
            true if self.conditions.is_fragile() => 2000,
            true if self.conditions.fails_over => 1000,
            true => 500,
            false => 200,
        };
        let long = match (self.conditions.lazy, self.conditions.sluggish) {
            (true, _) => 4000,
            (_, true) => 2000,
            _ => long,
        };
        let busy = 60 * MS + self.random.below(long * MS);
        self.until(busy);
        self.quiet = true;
        for client in 0..self.clients.len() {
            self.calm(client);
        }
        for server in &mut self.servers {
            server.calm();
            server.settle();
        }
        // Workers pause for up to 0.7 s; what was deferred is tried again with later operations.
        let mut left = None;
        // Waiters may poll; subscriptions end a time after the last need.
        let (rounds, long) = if self.conditions.waits {
            (14, 3000)
        } else {
            (8, 1000)
        };
        for _ in 0..rounds {
            (self.checks.probes, self.checks.probes_failed) = (0, 0);
            for client in 0..self.clients.len() {
                self.probe(client);
            }
            self.until(self.t + long * MS);
            left = self.left();
            if left.is_none() || self.checks.wrong.is_some() {
                break;
            }
        }
        if left.is_none() {
            self.close();
        }
        match self.checks.wrong.take().or(left) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// A schedule after which nothing follows: nothing may be left all the same, and no thread.
    fn run_forsaken(&mut self) -> Result<(), String> {
        self.quiet = true;
        self.probe(0);
        // Long after the thread has ended that confirms the release: another one confirms the next.
        self.until(6000 * MS);
        self.probe(0);
        self.until(self.t + 9000 * MS);
        match self.checks.wrong.take().or(self.left()) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// All clients are closed.
    fn close(&mut self) {
        for client in 0..self.clients.len() {
            self.close_client(client);
        }
        self.until(self.t + NODE_TIMEOUT);
        let running = |client: &Client| client.running();
        let left = self.clients.iter().find_map(running);
        left.into_iter().for_each(|left| self.violated(left));
    }

    /// What is not as it is when all is quiet.
    fn left(&self) -> Option<String> {
        for (node, server) in self.servers.iter().enumerate() {
            for (resource, token) in server.locks(self.t) {
                let history = &self.checks.tokens[token];
                if history.belief.is_none() && !history.leaked {
                    return Some(format!("node {node}: {resource} is left behind by {token}"));
                }
            }
        }
        if let Some(token) = self.not_shortened() {
            return Some(format!("{token} was shortened, and a quorum has it still"));
        }
        if self.checks.probes_failed > 0 || self.checks.probes == 0 {
            let (failed, all) = (self.checks.probes_failed, self.checks.probes);
            return Some(format!("{failed} of {all} locks cannot be acquired"));
        }
        let not_quiescent = |(at, client): (usize, &Client)| {
            Some(format!("client {at}: {}", client.not_quiescent()?))
        };
        let not_quiescent = self.clients.iter().enumerate().find_map(not_quiescent);
        not_quiescent.or_else(|| self.still_waits())
    }

    fn until(&mut self, end: u64) {
        while let Some(Reverse((at, order, event))) = self.events.pop() {
            if at > end {
                self.events.push(Reverse((at, order, event)));
                break;
            }
            self.t = at;
            self.counts[Count::Events] += 1;
            match event {
                Event::Arrive(connection) => self.arrive(connection),
                Event::Deliver(connection) => self.deliver(connection),
                Event::Leftover(connection) => self.leftover(connection),
                Event::Connected { client, node, well } => self.connected(client, node, well),
                Event::Wake(client) => self.pump(client),
                Event::Subscription(subscription, sound) => self.sound(subscription, sound),
                Event::Late(at) => self.join_late(at),
                Event::Fault => self.fault(),
                Event::Forsake(client) => self.forsake(client),
                Event::LookAgain(at) => self.look_again(at),
                Event::Demoted(node, instance) => self.demoted(node, instance),
                Event::Back(node, instance) => self.back(node, instance),
                Event::Change(node) => self.change_servers(node),
                Event::Gone(token) => self.is_gone(token),
            }
            self.watch();
            if self.checks.wrong.is_some() {
                return;
            }
        }
        self.t = end;
    }

    fn fault_where_all_is_prompt(&mut self, client: usize) {
        match self.random.below(6) {
            // Among fair ones the order counts, but for those that hang.
            _ if self.conditions.fair && self.conditions.orderly => {
                let hangs = self.random.chance(30);
                let until = self.t + 1500 * MS;
                if hangs {
                    trace!(self, "client {client} hangs");
                    self.clients[client].clocks.freeze(until);
                }
            }
            0 if !self.conditions.sluggish => self.kill(client),
            1..3 => self.cut_some_subscription(),
            _ => {}
        }
        let next = self.t + self.random.below(120 * MS);
        self.at(next, Event::Fault);
    }

    fn fault_where_all_is_fragile(&mut self, node: usize, client: usize) {
        let until = self.t + self.random.below(40 * MS);
        match self.random.below(8) {
            0 => self.hold_some(until, node, Some(client)),
            1 => self.cut_all(|connection| connection.client == client),
            2 if self.random.chance(20) => self.restart_server(node, self.t),
            _ => {}
        }
        self.change_servers(node);
        let next = self.t + self.random.below(150 * MS);
        self.at(next, Event::Fault);
    }

    /// With its data, or without.
    fn restart_server(&mut self, node: usize, until: u64) {
        // Nothing is promoted and restarted at once.
        if self.servers[node].here().was_promoted_lately(self.t) {
            return;
        }
        let loses = self.random.chance(30);
        if loses {
            let (keys, counters) = self.servers[node].forget(self.t);
            self.checks.lossy |= keys && !self.conditions.guarded;
            self.checks.uncounted |= counters && !self.conditions.guarded;
        }
        self.servers[node].begin(Trouble::RefusesConnections, until);
        self.restart(node);
        self.cut_subscriptions(true, |_, of| of == node);
        let (history, own_data) = (self.history(), !loses && self.random.chance(50));
        let here = self.servers[node].here_mut();
        here.start(self.t, history, own_data);
    }

    /// Bytes between a node and all clients, or one, are held up: both ways, or one of them.
    fn hold_some(&mut self, until: u64, node: usize, client: Option<usize>) {
        let ways = self.random.below(3);
        for connection in &mut self.net.connections {
            if connection.node == node && client.is_none_or(|client| connection.client == client) {
                connection.hold(until, ways != 1, ways != 2);
            }
        }
        if ways != 1 {
            self.hold_subscriptions(until, |of, at| {
                at == node && client.is_none_or(|client| of == client)
            });
        }
    }

    fn fault(&mut self) {
        if self.quiet {
            return;
        }
        let node = self.random.pick(self.servers.len());
        let client = self.random.pick(self.clients.len());
        if self.conditions.is_fragile() {
            return self.fault_where_all_is_fragile(node, client);
        }
        if self.conditions.prompt {
            return self.fault_where_all_is_prompt(client);
        }
        if self.conditions.fails_over && self.random.chance(50) {
            self.change_servers(node);
        }
        let longest = if self.random.chance(20) { 300 } else { 80 };
        let long = self.random.below(longest) * MS;
        let kinds = if self.conditions.waits { 16 } else { 13 };
        let what = self.random.below(kinds);
        trace!(
            self,
            "fault {what}: node {node}, client {client}, {long} us"
        );
        let until = self.t + long;
        match what {
            0 | 1 => {
                let open = |at: &usize| self.net.connections[*at].is_open();
                let open: Vec<usize> = (0..self.net.connections.len()).filter(open).collect();
                if !open.is_empty() {
                    let connection = open[self.random.pick(open.len())];
                    self.cut(connection);
                }
            }
            2 => self.servers[node].begin(Trouble::Paused, until),
            3 => self.restart_server(node, until),
            4 | 5 => self.hold_some(until, node, (what == 5).then_some(client)),
            6 => self.servers[node].begin(Trouble::OutOfMemory, until),
            7 if until.is_multiple_of(2) => self.servers[node].begin(Trouble::LacksReplicas, until),
            7 => self.demote(node, until),
            8 => self.clients[client].clocks.freeze(until),
            9 => self.clients[client].clocks.suspend(self.t, until),
            11 if until.is_multiple_of(2) => self.servers[node].flush_scripts(),
            11 => self.servers[node].begin(Trouble::ForbidsQueues, until),
            10 => {
                self.cut_all(|connection| connection.client == client);
                self.cut_subscriptions(false, |of, _| of == client);
            }
            13 | 14 => self.cut_some_subscription(),
            15 if self.random.chance(30) => self.kill(client),
            _ => self.servers[node].begin(Trouble::Slow, until),
        }
        let next = self.t + self.random.below(60 * MS);
        self.at(next, Event::Fault);
    }
}
