//! The failover guard (rules R38–R46): one node, behind which several servers stand, with asynchronous
//! replication. What promotes a replica, or says which server is the master, is a *directory*: Sentinel, Cluster, DNS.
//!
//! A server has a process (its run_id), a history (master_replid), a count of the keys that it has evicted (evicted_keys), a mark
//! of its promotion (master_replid2) and of a flush (commandstats), one lock, and a *witness*: a key that a client has written there, with the identity of the server of that time
//! and a nonce. Its age is how long the server has been the same without losing anything. Replication copies a master to a
//! replica at any moment, or never, so a promoted replica has any earlier state, the empty one included.
//!
//! Clients connect (a first look), write the witness, look once more, SET, GET the witness behind it, extend, look behind a grant
//! and an extension, release, lose the connection, or end and come back fresh: each is a step of its own, in any order, with any
//! pause between. Servers crash, restart, are promoted, made a replica, flushed, evict the lock or the witness, or begin another
//! history without a loss; all of that may happen within a tick. No two clients may hold the lock.
//!
//! In a Redis Cluster the witness's slot may move to another server, and the witness with it: then clients carry over what
//! they knew.
//!
//! Not here: more nodes (one in quarantine is one that is away: D2 in `lease`), clocks that differ, late requests of a
//! connection that was given up (R7, R8: D1 in `lease`).

use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, HoldsSoFar, Row, row};

const SERVERS: usize = 3;
const CLIENTS: usize = 3;
const NOBODY: u8 = 0xff;
/// In place of whose replica it is.
const MASTER: u8 = 0xff;

/// When a client may extend that is in quarantine (rule R44).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extend {
    Never,
    AfterMargin,
    AtOnce,
}

/// Where the count of evicted keys is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Nowhere,
    AtConnection,
    /// And behind each acquire.
    BehindAcquires,
    /// And behind each extension, as the code does.
    Behind,
}

/// When a client carries over what it knew of a server whose witness is gone: in a Redis Cluster its slot may have moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carry {
    Never,
    /// If the server has the identity that it had, and was not flushed since it was started.
    SameUnflushed,
    Same,
    Unflushed,
}

/// Which answers of the directory's servers count (rule R43).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Believes {
    Majority,
    /// And that of a few, where what most of them name cannot be reached.
    Few,
    /// Where they were not asked, that confirms: as if none of them could be reached.
    Unasked,
}

#[derive(Clone, Copy)]
struct Failover {
    servers: usize,
    clients: usize,
    ttl: u8,
    /// The quarantine, and what is added for an old master that goes on for a while.
    quarantine: u8,
    margin: u8,
    /// The directory's answer holds for this number of ticks (rule R43); 0: it is not asked.
    view: u8,
    believes: Believes,
    /// An old master accepts writes for this number of ticks after a promotion (min-replicas, node timeout, Sentinel's repair).
    limit: u8,
    guard: bool,
    /// The identity is the run_id alone.
    run_only: bool,
    /// It is read behind each acquire and each extension (rule R42).
    looks_behind: bool,
    /// GET of the witness behind each acquire (rule R41).
    reads_witness: bool,
    /// The identity is compared in the second look.
    compares_again: bool,
    /// Whether the server was calm is read before the witness is there, not after.
    reads_calm_early: bool,
    /// The witness's age counts from its SET, not from the look before it.
    age_from_set: bool,
    /// A server that was never promoted or flushed needs no quarantine but that of its process.
    lenient: bool,
    sees_flush: bool,
    sees_promotion: bool,
    extend: Extend,
    /// A restart keeps old data.
    keeps_data: bool,
    /// A demotion closes connections.
    demotion_closes: bool,
    /// A replica may be promoted while the old master lives.
    graceful: bool,
    /// Clients may find any server that says that it is a master.
    partition: bool,
    crashes: u8,
    promotions: u8,
    flushes: u8,
    /// The server evicts the lock, or the witness, as often as this.
    evictions: u8,
    counts: Counts,
    /// A server that has evicted keys may be calm.
    evicting_is_calm: bool,
    /// New histories without a loss: a first replica, or a backlog that is dropped, after this number of ticks.
    new_histories: u8,
    backlog_ttl: u8,
    /// Servers report an uptime that is too large by this number of ticks.
    uptime_over: u8,
    /// The witness's slot moves to a server that is not here, as often as this.
    moves: u8,
    carry: Carry,
}

const CRASH: Failover = Failover {
    servers: 2,
    clients: 2,
    ttl: 2,
    quarantine: 2,
    margin: 1,
    view: 0,
    believes: Believes::Majority,
    limit: 0,
    guard: true,
    run_only: false,
    looks_behind: true,
    reads_witness: true,
    compares_again: true,
    reads_calm_early: false,
    age_from_set: true,
    lenient: true,
    sees_flush: true,
    sees_promotion: true,
    extend: Extend::AfterMargin,
    keeps_data: false,
    demotion_closes: false,
    graceful: false,
    partition: false,
    crashes: 1,
    promotions: 1,
    flushes: 0,
    evictions: 0,
    counts: Counts::Behind,
    evicting_is_calm: false,
    new_histories: 0,
    backlog_ttl: 9,
    uptime_over: 0,
    moves: 0,
    carry: Carry::Never,
};
const NO_GUARD: Failover = Failover {
    guard: false,
    looks_behind: false,
    reads_witness: false,
    ..CRASH
};
/// Twice, by crashes.
const TWICE: Failover = Failover {
    crashes: 2,
    promotions: 2,
    ..CRASH
};
/// There and back (A, B, A) without a crash; connections live on.
const BACK: Failover = Failover {
    graceful: true,
    crashes: 0,
    promotions: 2,
    ..CRASH
};
const FLUSH: Failover = Failover {
    flushes: 1,
    crashes: 0,
    promotions: 0,
    ..CRASH
};
const EVICT: Failover = Failover {
    evictions: 1,
    flushes: 0,
    ..FLUSH
};
/// The old master goes on.
const OLD: Failover = Failover {
    graceful: true,
    crashes: 0,
    ..CRASH
};
const FOR_EVER: u8 = 8;
const VIEWED: Failover = Failover {
    limit: FOR_EVER,
    view: 1,
    ..OLD
};

/// A lock lasts for one tick only, since clients remember so much.
const MOVED: Failover = Failover {
    ttl: 1,
    quarantine: 1,
    moves: 1,
    carry: Carry::SameUnflushed,
    ..CRASH
};
const FLUSHED: Failover = Failover {
    flushes: 1,
    crashes: 0,
    promotions: 0,
    ..MOVED
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("F0.1", Broken(6, 649), "no guard, the master crashes, its replica is promoted", NO_GUARD),
        row("F0.2", Broken(6, 407), "no guard, the master crashes and comes back empty", Failover { promotions: 0, ..NO_GUARD }),
        row("F0.3", Broken(5, 248), "no guard, FLUSHALL", Failover { flushes: 1, crashes: 0, promotions: 0, ..NO_GUARD }),
        row("F1.1", Holds(347_023), "the guard: crash and promotion", CRASH),
        row("F1.2", HoldsSoFar(12_000_000), "the same, 3 clients", Failover { clients: 3, ..CRASH }),
        row("F1.3", Holds(6_219_691), "the same, 3 servers", Failover { servers: 3, ..CRASH }),
        row("F1.4", Broken(15, 72_481), "Q = ttl - 1, no margin", Failover { quarantine: 1, margin: 0, ..CRASH }),
        row("F1.5", Holds(270_188), "Q = ttl, no margin, the old master is dead", Failover { margin: 0, ..CRASH }),
        row("F1.5b", Broken(15, 107_940), "the same, uptime reported too large by 1 (against R15)",
            Failover { margin: 0, uptime_over: 1, ..CRASH }),
        row("F1.6", Broken(14, 141_847), "master_replid2 is not looked at: a promoted replica without a witness",
            Failover { sees_promotion: false, ..CRASH }),
        row("F1.7", Holds(274_583), "the same, but no witness always means quarantine",
            Failover { sees_promotion: false, lenient: false, ..CRASH }),
        row("F1.8", Holds(2_681_841), "old data come back with a restart", Failover { keeps_data: true, crashes: 2, ..CRASH }),
        row("F2.1", Holds(1_818_580), "A, B, A by crashes", TWICE),
        row("F2.2", HoldsSoFar(12_000_000), "two failovers, 3 servers", Failover { servers: 3, ..TWICE }),
        row("F2.3", Holds(2_374_953), "A, B, A without a crash, living connections; the identity is read behind each vote (R42)", BACK),
        row("F2.4", Broken(14, 367_020), "the same, a living connection is not looked at again (against R42)",
            Failover { looks_behind: false, ..BACK }),
        row("F2.5", Broken(16, 713_271), "A, B, A, the identity is the run_id alone", Failover { run_only: true, ..BACK }),
        row("F2.6", Broken(18, 380_634), "the same, each demotion closes connections",
            Failover { run_only: true, demotion_closes: true, ..BACK }),
        row("F2.7", Holds(7_239_127), "A, B, A, B", Failover { promotions: 3, ..BACK }),
        row("F2.8", Broken(18, 1_284_469), "the identity is not compared in the second look (against R40)",
            Failover { compares_again: false, ..BACK }),
        row("F3.1", Holds(182_749), "FLUSHALL", FLUSH),
        row("F3.2", Broken(10, 18_334), "FLUSHALL, no GET behind an acquire (against R41)", Failover { reads_witness: false, ..FLUSH }),
        row("F3.3", Broken(13, 59_523), "FLUSHALL, commandstats are not looked at, or reset", Failover { sees_flush: false, ..FLUSH }),
        row("F3.4", Holds(85_313), "the same, but no witness always means quarantine",
            Failover { sees_flush: false, lenient: false, ..FLUSH }),
        row("F3.5", Holds(1_861_372), "FLUSHALL and failover", Failover { flushes: 1, ..CRASH }),
        row("F3.5b", Broken(13, 69_671), "whether the server was calm is read before the witness is there",
            Failover { reads_calm_early: true, ..FLUSH }),
        row("F3.5c", Broken(16, 78_449), "the age counts from the first look, not from the SET",
            Failover { age_from_set: false, lenient: false, ..FLUSH }),
        row("F3.6", HoldsSoFar(12_000_000), "2 FLUSHALLs, 3 clients", Failover { flushes: 2, clients: 3, ..FLUSH }),
        row("F4.1", Broken(16, 411_293), "the old master goes on for ever, with its clients", Failover { limit: FOR_EVER, ..OLD }),
        row("F4.2", Holds(539_534), "it goes on for 1 tick, the margin is 1", Failover { limit: 1, ..OLD }),
        row("F4.3", Broken(16, 333_217), "it goes on for 2 ticks, the margin is 1", Failover { limit: 2, ..OLD }),
        row("F4.4", Holds(728_727), "it goes on for 2 ticks, the margin is 2", Failover { limit: 2, margin: 2, ..OLD }),
        row("F4.5", Holds(824_644), "it goes on for ever; the directory's word holds for 1 tick, the margin is 1 (R43)", VIEWED),
        row("F4.6", Broken(16, 329_332), "the same without a margin", Failover { margin: 0, ..VIEWED }),
        row("F4.7", Broken(17, 1_403_790), "a partition: both sides have a master and a directory that names it",
            Failover { partition: true, ..VIEWED }),
        row("F4.8", Holds(1_267_191), "the same, the old master stops after 1 tick", Failover { partition: true, limit: 1, ..VIEWED }),
        row("F4.9", HoldsSoFar(12_000_000), "F4.5 with 3 clients", Failover { clients: 3, ..VIEWED }),
        row("F4.10", HoldsSoFar(12_000_000), "F4.5 with A, B, A and a crash", Failover { promotions: 2, crashes: 1, ..VIEWED }),
        row("F4.11", Broken(18, 849_484), "as F4.5, a directory that was not asked counts as one that does not answer (against R43)",
            Failover { believes: Believes::Unasked, ..VIEWED }),
        row("F4.12", Broken(17, 1_273_803), "as F4.5, what a few of the directory's servers name is used (against R43)",
            Failover { believes: Believes::Few, ..VIEWED }),
        row("F4.13", Holds(1_199_704), "the same, the old master stops after 1 tick",
            Failover { believes: Believes::Few, limit: 1, ..VIEWED }),
        row("F5.1", Holds(2_273_634), "extensions at once, the old master is dead", Failover { extend: Extend::AtOnce, ..TWICE }),
        row("F5.2", Broken(21, 501_252), "extensions at once, the old master goes on for 1 tick (against R44)",
            Failover { extend: Extend::AtOnce, limit: 1, ..OLD }),
        row("F5.3", Holds(2_883_156), "extensions after the margin, A, B, A, the old master goes on for 1 tick",
            Failover { limit: 1, ..BACK }),
        row("F5.3c", HoldsSoFar(12_000_000), "the same and a crash", Failover { limit: 1, crashes: 1, ..BACK }),
        row("F5.4", Holds(2_330_766), "as F5.3, no extension in quarantine", Failover { extend: Extend::Never, limit: 1, ..BACK }),
        row("F6.1", Holds(1_517_593), "a history begins without a loss", Failover { new_histories: 1, ..CRASH }),
        row("F6.2", Broken(15, 624_447), "the backlog of a promoted one is dropped before Q is over",
            Failover { new_histories: 1, backlog_ttl: 1, ..CRASH }),
        row("F6.3", Holds(3_010_664), "the same after Q and the margin (repl-backlog-ttl)",
            Failover { new_histories: 1, backlog_ttl: 3, ..CRASH }),
        row("F6.4", Holds(2_463_802), "before Q is over, but no witness always means quarantine",
            Failover { new_histories: 1, backlog_ttl: 1, lenient: false, ..CRASH }),
        row("F7.1", Holds(3_402_356), "a crash and a promotion; the witness's slot moves, and what clients knew of a server is carried over", MOVED),
        row("F7.2", Broken(16, 936_340), "the same, whatever server it is", Failover { carry: Carry::Unflushed, ..MOVED }),
        row("F7.3", Holds(899_464), "as F7.1, with FLUSHALL in place of the crash", FLUSHED),
        row("F7.4", Broken(16, 467_720), "the same, although it was flushed", Failover { carry: Carry::Same, ..FLUSHED }),
        row("F7.5", Holds(329_542), "as F7.1, nothing is carried over", Failover { carry: Carry::Never, ..MOVED }),
        row("F8.1", Holds(390_505), "the server evicts keys", EVICT),
        row("F8.2", Holds(1_544_491), "the same twice", Failover { evictions: 2, ..EVICT }),
        row("F8.3", Broken(12, 110_486), "what it has evicted is not counted (against R40, R42)",
            Failover { counts: Counts::Nowhere, ..EVICT }),
        row("F8.4", Broken(14, 61_160), "the same, and nothing is calm", Failover { counts: Counts::Nowhere, lenient: false, ..EVICT }),
        row("F8.5", Broken(12, 72_309), "the count is looked at only where a connection is made (against R42)",
            Failover { counts: Counts::AtConnection, ..EVICT }),
        row("F8.6", Broken(13, 117_829), "a server that has evicted keys is calm", Failover { evicting_is_calm: true, ..EVICT }),
        row("F8.7", Holds(395_831), "the count is not looked at behind extensions (fencing tokens need it)",
            Failover { counts: Counts::BehindAcquires, ..EVICT }),
        row("F8.8", Holds(3_940_386), "an eviction and a failover", Failover { evictions: 1, ..CRASH }),
    ]
}

/// What a server is: numbers without a meaning but that they differ. 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Identity {
    run: u8,
    history: u8,
    evicted: u8,
}

const NONE: Identity = Identity {
    run: 0,
    history: 0,
    evicted: 0,
};

/// What replication copies, and a restart or FLUSHALL loses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Data {
    holder: u8,
    left: u8,
    /// The witness: whose identity it names, its nonce (0: there is none), its age.
    identity: Identity,
    nonce: u8,
    age: u8,
}

const EMPTY: Data = Data {
    holder: NOBODY,
    left: 0,
    identity: NONE,
    nonce: 0,
    age: 0,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    /// 1 + ticks since its process started; 0: it is down.
    up: u8,
    identity: Identity,
    /// 1 + ticks since it was promoted; 0: it never was, as far as master_replid2 says.
    promoted: u8,
    flushed: bool,
    /// Whose replica it is.
    replica_of: u8,
    /// 1 + ticks since another one was promoted while it went on as a master; 0: there is none.
    replaced: u8,
    data: Data,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Away,
    /// It must write the witness, then look once more.
    Connected,
    Looking,
    Ready,
    /// Its SET was carried out, the GET behind it was not.
    Acquiring,
    /// It has what counts when the look behind it shows the same master.
    Answered,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    server: u8,
    phase: Phase,
    identity: Identity,
    /// The nonce that it expects, and how long its server has been the same.
    nonce: u8,
    age: u8,
    /// What is left of a lock that it believes in, or will when the answer counts.
    belief: u8,
    pending: u8,
    /// Ticks since the directory named this server.
    viewed: u8,
    /// What it knew of the server of its last connection.
    known: Identity,
    known_age: u8,
}

const AWAY: Client = Client {
    server: NOBODY,
    phase: Phase::Away,
    identity: NONE,
    nonce: 0,
    age: 0,
    belief: 0,
    pending: 0,
    viewed: 0,
    known: NONE,
    known_age: 0,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    /// The master, as the directory says.
    named: u8,
    crashes: u8,
    promotions: u8,
    flushes: u8,
    evictions: u8,
    new_histories: u8,
    moves: u8,
}

impl State {
    fn runs(&mut self) -> impl Iterator<Item = &mut u8> {
        let servers = self
            .servers
            .iter_mut()
            .flat_map(|server| [&mut server.identity.run, &mut server.data.identity.run]);
        let clients = self.clients.iter_mut();
        servers.chain(clients.flat_map(|client| [&mut client.identity.run, &mut client.known.run]))
    }

    fn histories(&mut self) -> impl Iterator<Item = &mut u8> {
        let servers = self.servers.iter_mut().flat_map(|server| {
            [
                &mut server.identity.history,
                &mut server.data.identity.history,
            ]
        });
        let clients = self.clients.iter_mut();
        servers.chain(
            clients.flat_map(|client| [&mut client.identity.history, &mut client.known.history]),
        )
    }

    fn nonces(&mut self) -> impl Iterator<Item = &mut u8> {
        let servers = self.servers.iter_mut().map(|server| &mut server.data.nonce);
        servers.chain(self.clients.iter_mut().map(|client| &mut client.nonce))
    }

    /// What runs, histories and nonces are called does not matter: they are numbered as they come.
    fn rename(&mut self) {
        number(self.runs());
        number(self.histories());
        number(self.nonces());
    }

    /// `remembers`: what it knew outlives the connection.
    fn sever(&mut self, client: usize, remembers: bool) {
        let Client {
            belief,
            phase,
            identity,
            age,
            known,
            known_age,
            ..
        } = self.clients[client];
        let (known, known_age) = match phase {
            Phase::Ready | Phase::Acquiring | Phase::Answered if remembers => (identity, age),
            _ => (known, known_age),
        };
        self.clients[client] = Client {
            belief,
            known,
            known_age,
            ..AWAY
        };
    }

    fn sever_all(&mut self, server: usize, remembers: bool) {
        for client in 0..CLIENTS {
            if usize::from(self.clients[client].server) == server {
                self.sever(client, remembers);
            }
        }
    }
}

fn number<'a>(names: impl Iterator<Item = &'a mut u8>) {
    let mut numbers = [0; 64];
    let mut next = 1;
    for name in names.filter(|name| **name != 0) {
        let number = &mut numbers[usize::from(*name)];
        if *number == 0 {
            *number = next;
            next += 1;
        }
        *name = *number;
    }
}

/// One that is not in use.
fn fresh<'a>(names: impl Iterator<Item = &'a mut u8>) -> u8 {
    names.map(|name| *name).max().unwrap_or(0) + 1
}

fn count_up(value: &mut u8, most: u8) {
    *value = most.min(*value + 1).max(*value);
}

impl Failover {
    /// More ticks than that make no difference.
    fn most(&self) -> u8 {
        self.quarantine + self.margin + 1
    }

    fn remembers(&self) -> bool {
        self.carry != Carry::Never
    }

    /// It cannot have lost anything since its process started.
    fn is_calm(&self, server: &Server) -> bool {
        let promoted = server.promoted > 0 && self.sees_promotion;
        let evicted = server.identity.evicted > 0 && !self.evicting_is_calm;
        let evicted = evicted && self.counts != Counts::Nowhere;
        let flushed = server.flushed && self.sees_flush;
        self.lenient && !(promoted || evicted || flushed)
    }

    fn is_same(&self, one: Identity, other: Identity) -> bool {
        let same = one.run == other.run && (self.run_only || one.history == other.history);
        same && (one.evicted == other.evicted || self.counts == Counts::Nowhere)
    }

    /// As a look behind a vote shows it.
    fn is_still(&self, client: &Client, is: Identity) -> bool {
        let acquired = client.belief == 0;
        let counted = match self.counts {
            Counts::Nowhere | Counts::AtConnection => false,
            Counts::BehindAcquires => acquired,
            Counts::Behind => true,
        };
        let evicted = match counted {
            true => is.evicted,
            false => client.identity.evicted,
        };
        self.is_same(client.identity, Identity { evicted, ..is })
    }

    fn add(&self, steps: &mut Steps<State>, mut state: State, describe: impl FnOnce() -> String) {
        state.rename();
        steps.add(state, describe);
    }

    fn tick(&self, state: &State, steps: &mut Steps<State>) {
        let most = self.most();
        let mut new = *state;
        for server in &mut new.servers[..self.servers] {
            let data = &mut server.data;
            let counters = [
                (&mut server.up, most + 1),
                (&mut server.promoted, most),
                (&mut server.replaced, 9),
            ];
            for (counter, most) in counters {
                if *counter > 0 {
                    count_up(counter, most);
                }
            }
            if data.nonce > 0 {
                count_up(&mut data.age, most);
            }
            if data.left > 0 {
                data.left -= 1;
                if data.left == 0 {
                    data.holder = NOBODY;
                }
            }
        }
        for client in &mut new.clients[..self.clients] {
            if client.belief == 1 {
                // An extension counts before the old deadline only (rule R10).
                client.pending = 0;
            }
            client.belief = client.belief.saturating_sub(1);
            if client.known.run > 0 {
                count_up(&mut client.known_age, most);
            }
            if client.phase != Phase::Away {
                count_up(&mut client.age, most);
                count_up(&mut client.viewed, self.view + 1);
                client.pending = client.pending.saturating_sub(1);
            }
        }
        self.add(steps, new, || "a tick".into());
    }

    fn client_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        let connected = client.phase != Phase::Away;
        if client.belief > 0 || connected {
            let mut new = *state;
            new.clients[at] = AWAY;
            self.add(steps, new, || {
                format!("{} ends, a fresh process takes its place", client_name(at))
            });
        }
        if connected {
            let mut new = *state;
            new.sever(at, self.remembers());
            self.add(steps, new, || {
                format!("{}'s connection closes", client_name(at))
            });
        }
        match client.phase {
            Phase::Away => (0..self.servers).for_each(|of| self.connect(state, at, of, steps)),
            Phase::Connected => self.write_witness(state, at, steps),
            Phase::Looking => self.look_again(state, at, steps),
            Phase::Acquiring => self.read_witness(state, at, steps),
            Phase::Answered => self.look_behind(state, at, steps),
            Phase::Ready => {
                self.ask_directory(state, at, steps);
                self.acquire(state, at, steps);
                self.extend(state, at, steps);
                self.release(state, at, steps);
            }
        }
    }

    /// Rule R40: the first look.
    fn connect(&self, state: &State, at: usize, of: usize, steps: &mut Steps<State>) {
        let server = &state.servers[of];
        let few = self.believes == Believes::Few;
        let found = usize::from(state.named) == of || self.partition || few;
        if !found || server.up == 0 || server.replica_of != MASTER {
            return;
        }
        let mut new = *state;
        let client = &mut new.clients[at];
        (client.server, client.identity) = (of as u8, server.identity);
        client.viewed = 0;
        let data = &server.data;
        if !self.guard {
            (client.phase, client.age) = (Phase::Ready, self.most());
        } else if data.nonce > 0 && self.is_same(server.identity, data.identity) {
            (client.nonce, client.age) = (data.nonce, data.age);
            let old = data.age >= self.quarantine + self.margin;
            client.phase = if old { Phase::Ready } else { Phase::Looking };
        } else {
            (client.phase, client.age) = (Phase::Connected, 0);
        }
        if self.reads_calm_early && client.phase != Phase::Ready && self.is_calm(server) {
            client.age = client.age.max(server.up - 1);
        }
        self.add(steps, new, || {
            format!("{} connects to {}", client_name(at), server_name(of))
        });
    }

    fn is_replica(&self, state: &State, of: usize) -> bool {
        state.servers[of].replica_of != MASTER
    }

    /// It knows, or is made to know, that it is not the master any more: NOREPLICAS, CLUSTERDOWN.
    fn is_closed(&self, state: &State, of: usize) -> bool {
        state.servers[of].replaced > self.limit + 1
    }

    /// It carries out nothing that changes a key.
    fn is_no_master(&self, state: &State, of: usize) -> bool {
        self.is_replica(state, of) || self.is_closed(state, of)
    }

    fn write_witness(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        let of = usize::from(client.server);
        let mut new = *state;
        if self.is_no_master(state, of) {
            new.sever(at, self.remembers());
        } else {
            let nonce = fresh(new.nonces());
            new.servers[of].data = Data {
                identity: client.identity,
                nonce,
                age: if self.age_from_set { 0 } else { client.age },
                ..state.servers[of].data
            };
            let client = &mut new.clients[at];
            (client.phase, client.nonce) = (Phase::Looking, nonce);
            if self.age_from_set && !self.reads_calm_early {
                client.age = 0;
            }
        }
        self.add(steps, new, || {
            format!(
                "{} writes the witness on {}",
                client_name(at),
                server_name(of)
            )
        });
    }

    fn look_again(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let of = usize::from(state.clients[at].server);
        let server = &state.servers[of];
        let mut new = *state;
        let client = &mut new.clients[at];
        let [is, was] = [server.identity, client.identity];
        let evicted = is.evicted != was.evicted && self.counts != Counts::Nowhere;
        let other = self.compares_again && (is.history != was.history || evicted);
        if self.is_replica(state, of) || other {
            new.sever(at, self.remembers());
        } else {
            (client.phase, client.identity) = (Phase::Ready, server.identity);
            if !self.reads_calm_early && self.is_calm(server) {
                let uptime = (server.up - 1 + self.uptime_over).min(self.most());
                client.age = client.age.max(uptime);
            }
            if self.carries(client, server) {
                client.age = client.age.max(client.known_age);
            }
        }
        self.add(steps, new, || {
            format!("{} looks at {} once more", client_name(at), server_name(of))
        });
    }

    fn carries(&self, client: &Client, server: &Server) -> bool {
        let known = client.known.run > 0;
        let same = self.is_same(client.known, client.identity);
        known
            && match self.carry {
                Carry::Never => false,
                Carry::SameUnflushed => same && !server.flushed,
                Carry::Same => same,
                Carry::Unflushed => !server.flushed,
            }
    }

    /// Rule R41.
    fn read_witness(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let of = usize::from(state.clients[at].server);
        let mut new = *state;
        let client = &mut new.clients[at];
        let nonce = state.servers[of].data.nonce;
        if nonce == client.nonce && nonce > 0 {
            self.answered(client);
        } else {
            new.sever(at, self.remembers());
        }
        self.add(steps, new, || {
            format!(
                "{} reads the witness on {}",
                client_name(at),
                server_name(of)
            )
        });
    }

    /// A server has answered that it has locked or extended it.
    fn answered(&self, client: &mut Client) {
        client.phase = Phase::Answered;
        if !(self.guard && self.looks_behind) {
            Self::counts(client);
        }
    }

    fn counts(client: &mut Client) {
        client.phase = Phase::Ready;
        client.belief = client.belief.max(client.pending);
        client.pending = 0;
    }

    /// Rule R42.
    fn look_behind(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let of = usize::from(state.clients[at].server);
        let mut new = *state;
        let client = &mut new.clients[at];
        if self.is_still(client, state.servers[of].identity) && !self.is_replica(state, of) {
            Self::counts(client);
        } else {
            new.sever(at, self.remembers());
        }
        self.add(steps, new, || {
            format!(
                "{} looks behind that at {}",
                client_name(at),
                server_name(of)
            )
        });
    }

    /// Rule R43.
    fn ask_directory(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = &state.clients[at];
        if self.view == 0 || client.viewed == 0 {
            return;
        }
        let mut new = *state;
        let unasked = self.believes == Believes::Unasked;
        if state.named == client.server || self.partition || unasked {
            new.clients[at].viewed = 0;
        } else {
            new.sever(at, self.remembers());
        }
        self.add(steps, new, || {
            format!("{} asks the directory", client_name(at))
        });
    }

    fn is_viewed(&self, client: &Client) -> bool {
        self.view == 0 || client.viewed <= self.view
    }

    fn acquire(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = &state.clients[at];
        let of = usize::from(client.server);
        let old = !self.guard || client.age >= self.quarantine + self.margin;
        if client.belief > 0 || !self.is_viewed(client) || !old {
            return;
        }
        if self.is_no_master(state, of) || state.servers[of].data.holder != NOBODY {
            return;
        }
        let mut new = *state;
        let data = &mut new.servers[of].data;
        (data.holder, data.left) = (at as u8, self.ttl);
        let client = &mut new.clients[at];
        (client.phase, client.pending) = (Phase::Acquiring, self.ttl);
        if !(self.guard && self.reads_witness) {
            self.answered(client);
        }
        self.add(steps, new, || {
            format!("SET of {} on {}", client_name(at), server_name(of))
        });
    }

    fn extend(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = &state.clients[at];
        let of = usize::from(client.server);
        let needed = match self.extend {
            Extend::Never => self.quarantine + self.margin,
            Extend::AfterMargin => self.margin,
            Extend::AtOnce => 0,
        };
        let may = !self.guard || client.age >= needed;
        if client.belief == 0 || !self.is_viewed(client) || !may {
            return;
        }
        let held = usize::from(state.servers[of].data.holder) == at;
        if self.is_no_master(state, of) || !held {
            return;
        }
        let mut new = *state;
        let data = &mut new.servers[of].data;
        data.left = data.left.max(self.ttl);
        new.clients[at].pending = self.ttl;
        self.answered(&mut new.clients[at]);
        self.add(steps, new, || {
            format!("{} extends on {}", client_name(at), server_name(of))
        });
    }

    fn release(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let of = usize::from(state.clients[at].server);
        if state.clients[at].belief == 0 || self.is_replica(state, of) {
            return;
        }
        let mut new = *state;
        new.clients[at].belief = 0;
        let data = &mut new.servers[of].data;
        if usize::from(data.holder) == at {
            (data.holder, data.left) = (NOBODY, 0);
        }
        self.add(steps, new, || {
            format!("{} releases on {}", client_name(at), server_name(of))
        });
    }

    fn server_steps(&self, state: &State, of: usize, steps: &mut Steps<State>) {
        let server = &state.servers[of];
        let name = server_name(of);
        if server.up == 0 {
            self.start(state, of, steps);
            return;
        }
        if server.replica_of != MASTER {
            self.replica_steps(state, of, steps);
            return;
        }
        if state.crashes < self.crashes {
            let mut new = *state;
            new.crashes += 1;
            (new.servers[of].up, new.servers[of].replaced) = (0, 0);
            new.sever_all(of, self.remembers());
            self.add(steps, new, || format!("{name} crashes"));
        }
        if state.flushes < self.flushes {
            let mut new = *state;
            new.flushes += 1;
            (new.servers[of].data, new.servers[of].flushed) = (EMPTY, true);
            self.add(steps, new, || format!("FLUSHALL on {name}"));
        }
        self.evict(state, of, steps);
        if state.moves < self.moves && server.data.nonce > 0 {
            let mut new = *state;
            new.moves += 1;
            new.servers[of].data = Data {
                holder: server.data.holder,
                left: server.data.left,
                ..EMPTY
            };
            self.add(steps, new, || format!("the slot of {name}'s witness moves"));
        }
        let backlog_over = server.promoted == 0 || server.promoted >= self.backlog_ttl;
        if state.new_histories < self.new_histories && backlog_over {
            let mut new = *state;
            new.new_histories += 1;
            let history = fresh(new.histories());
            (new.servers[of].identity.history, new.servers[of].promoted) = (history, 0);
            self.add(steps, new, || {
                format!("{name} begins another history, nothing is lost")
            });
        }
        if server.replaced > 0 && usize::from(state.named) != of {
            let mut new = *state;
            let server = &mut new.servers[of];
            (server.replica_of, server.replaced, server.promoted) = (state.named, 0, 0);
            if self.demotion_closes {
                new.sever_all(of, self.remembers());
            }
            self.add(steps, new, || format!("{name} is made a replica"));
        }
    }

    /// The lock or the witness goes, or both.
    fn evict(&self, state: &State, of: usize, steps: &mut Steps<State>) {
        if state.evictions >= self.evictions {
            return;
        }
        let data = &state.servers[of].data;
        let no_lock = Data {
            holder: NOBODY,
            left: 0,
            ..*data
        };
        let no_witness = |data: &Data| Data {
            holder: data.holder,
            left: data.left,
            ..EMPTY
        };
        for left in [no_lock, no_witness(data), EMPTY] {
            let mut new = *state;
            new.evictions += 1;
            new.servers[of].identity.evicted += 1;
            new.servers[of].data = left;
            self.add(steps, new, || format!("{} evicts keys", server_name(of)));
        }
    }

    fn start(&self, state: &State, of: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        let identity = Identity {
            run: fresh(new.runs()),
            history: fresh(new.histories()),
            evicted: 0,
        };
        let before = &state.servers[of];
        new.servers[of] = Server {
            up: 1,
            identity,
            promoted: 0,
            flushed: false,
            replica_of: MASTER,
            replaced: u8::from(usize::from(state.named) != of),
            data: if self.keeps_data { before.data } else { EMPTY },
        };
        self.add(steps, new, || format!("{} starts again", server_name(of)));
    }

    fn replica_steps(&self, state: &State, of: usize, steps: &mut Steps<State>) {
        let server = &state.servers[of];
        let master = &state.servers[usize::from(server.replica_of)];
        if master.up > 0 && master.replica_of == MASTER {
            let mut new = *state;
            new.servers[of].data = master.data;
            new.servers[of].identity.history = master.identity.history;
            if new != *state {
                self.add(steps, new, || {
                    format!("{} has its master's data", server_name(of))
                });
            }
        }
        let old = usize::from(state.named);
        let may = state.servers[old].up == 0 || self.graceful;
        if !may || state.promotions >= self.promotions {
            return;
        }
        let mut new = *state;
        new.promotions += 1;
        new.named = of as u8;
        let history = fresh(new.histories());
        let server = &mut new.servers[of];
        server.identity.history = history;
        (server.replica_of, server.promoted, server.replaced) = (MASTER, 1, 0);
        if new.servers[old].up > 0 {
            new.servers[old].replaced = 1;
        }
        for (other, server) in new.servers[..self.servers].iter_mut().enumerate() {
            if other != of && server.replica_of != MASTER {
                server.replica_of = of as u8;
            }
        }
        self.add(steps, new, || format!("{} is promoted", server_name(of)));
    }
}

fn client_name(at: usize) -> char {
    ['X', 'Y', 'Z'][at]
}

fn server_name(of: usize) -> char {
    ['A', 'B', 'C'][of]
}

impl World for Failover {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        let most = self.most();
        let server = |of: usize| Server {
            up: most + 1,
            identity: Identity {
                run: of as u8 + 1,
                history: 1,
                evicted: 0,
            },
            promoted: 0,
            flushed: false,
            replica_of: if of == 0 { MASTER } else { 0 },
            replaced: 0,
            data: EMPTY,
        };
        let mut state = State {
            servers: std::array::from_fn(server),
            clients: [AWAY; CLIENTS],
            named: 0,
            crashes: 0,
            promotions: 0,
            flushes: 0,
            evictions: 0,
            new_histories: 0,
            moves: 0,
        };
        state.rename();
        vec![state]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        self.tick(state, steps);
        for at in 0..self.clients {
            self.client_steps(state, at, steps);
        }
        for of in 0..self.servers {
            self.server_steps(state, of, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let holders = state
            .clients
            .iter()
            .filter(|client| client.belief > 0)
            .count();
        (holders > 1).then_some("two clients hold the lock at the same time")
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for (of, server) in state.servers[..self.servers].iter().enumerate() {
            let role = match server {
                Server { up: 0, .. } => "down",
                Server { replica_of, .. } if *replica_of != MASTER => "replica",
                Server { replaced: 0, .. } => "master",
                _ => "old master",
            };
            let data = &server.data;
            let lock = match data.holder {
                NOBODY => "-".into(),
                holder => format!("{}:{}", client_name(usize::from(holder)), data.left),
            };
            let (is, witness) = (server.identity, data.identity);
            text += &format!(
                "[{} {role} {}.{} {lock}",
                server_name(of),
                is.run,
                is.history
            );
            if data.nonce > 0 {
                text += &format!(
                    " witness {} of {}.{} age {}",
                    data.nonce, witness.run, witness.history, data.age
                );
            }
            text += "] ";
        }
        for (at, client) in state.clients[..self.clients].iter().enumerate() {
            text += &format!(" {}", client_name(at));
            if client.phase != Phase::Away {
                text += &format!(
                    "@{} age {}",
                    server_name(usize::from(client.server)),
                    client.age
                );
            }
            if client.belief > 0 {
                text += &format!(" HOLDS({})", client.belief);
            }
        }
        text
    }
}
