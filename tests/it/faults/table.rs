//! Every fault on one node, on the largest minority and on the smallest majority, met by every
//! operation, with 1, 3 and 5 nodes: the outcome, the time it takes, and what is left when all is
//! well again.

use crate::support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, NodeError, Redlock};
use support::relay::Relay;
use support::*;

/// Just over the timeout.
const SLOW: Duration = Duration::from_millis(1600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Refused,
    Killed,
    KilledInMidReply,
    Stopped,
    StalledBeforeTheRequest,
    StalledAfterTheRequest,
    SlowJustUnder,
    SlowJustOver,
    Trickling,
    Garbage,
    WrongProtocol,
    AuthLost,
    ReadOnly,
    Loading,
    OutOfMemory,
    WrongType,
    Moved,
    ClusterDown,
    ConnectionLimit,
    IdleClosed,
}

use Fault::*;

const FAULTS: [Fault; 20] = [
    Killed,
    Loading,
    Moved,
    ClusterDown,
    Trickling,
    SlowJustOver,
    Stopped,
    StalledBeforeTheRequest,
    StalledAfterTheRequest,
    SlowJustUnder,
    Refused,
    KilledInMidReply,
    Garbage,
    WrongProtocol,
    AuthLost,
    ReadOnly,
    OutOfMemory,
    WrongType,
    ConnectionLimit,
    IdleClosed,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Acquire,
    Extend,
    Release,
    Drop,
}

const OPERATIONS: [Operation; 4] = [
    Operation::Acquire,
    Operation::Extend,
    Operation::Release,
    Operation::Drop,
];

/// What a node in this fault says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// What it always says.
    Votes,
    /// No vote.
    Fails,
    /// "Another client has it."
    Denies,
}

/// What the fault does to a lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Stays,
    Gone,
    /// The node says that it is another's: the ttl ends the key.
    LeftToItsTtl,
}

const RESOURCE: &str = "the resource";
/// Held by another client, on all nodes, always.
const TAKEN: &str = "taken";
/// All that is locked in a fault.
const LOCKED: [&str; 13] = [
    RESOURCE, TAKEN, "again", "other", "shared", "of 0", "of 1", "of 2", "of 3", "of 4", "of 5",
    "of 6", "of 7",
];

/// Two nodes of a Redis Cluster: the server itself, and one that does not exist.
const MYSELF: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const ANOTHER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

impl Fault {
    fn effect(self, operation: Operation) -> Effect {
        match (self, operation) {
            (SlowJustUnder | IdleClosed, _) => Effect::Votes,
            // What frees memory, or needs none, goes on.
            (OutOfMemory, Operation::Acquire) => Effect::Fails,
            (OutOfMemory, _) => Effect::Votes,
            (WrongType, Operation::Acquire) => Effect::Denies,
            _ => Effect::Fails,
        }
    }

    fn key(self) -> Key {
        match self {
            Killed | WrongType => Key::Gone,
            Moved => Key::LeftToItsTtl,
            _ => Key::Stays,
        }
    }

    fn refuses_releases(self) -> bool {
        matches!(self, ReadOnly | Loading | ClusterDown)
    }

    /// Whether it is of any use to wait for nodes in this fault. `None`: that is known of a new connection alone.
    fn is_permanent(self) -> Option<bool> {
        match self {
            Garbage | WrongProtocol => None,
            _ => Some(matches!(self, Moved | AuthLost)),
        }
    }

    /// What spoils the way to the node; the others befall the server.
    fn by_relay(self) -> bool {
        matches!(
            self,
            Refused
                | KilledInMidReply
                | StalledBeforeTheRequest
                | StalledAfterTheRequest
                | SlowJustUnder
                | SlowJustOver
                | Trickling
                | Garbage
                | WrongProtocol
        )
    }

    fn server_args(self) -> &'static [&'static str] {
        match self {
            Moved | ClusterDown => &[
                "--cluster-enabled",
                "yes",
                "--cluster-require-full-coverage",
                "no",
                // That the other cannot be reached makes no difference.
                "--cluster-node-timeout",
                "3600000",
            ],
            // So that a node that is loading answers.
            Loading => &["--loading-process-events-interval-bytes", "1024"],
            _ => &[],
        }
    }
}

struct Node {
    server: Server,
    relay: Relay,
    /// Made while all was well.
    admin: redis::Connection,
    _dir: TempDir,
}

impl Node {
    fn start(fault: Fault) -> Node {
        let dir = TempDir::new();
        let nodes = dir.path().join("nodes");
        let mut args = fault.server_args().to_vec();
        if matches!(fault, Moved | ClusterDown) {
            let cluster = format!(
                "{MYSELF} 127.0.0.1:0@0 myself,master - 0 0 1 connected 0-16383\n\
                 {ANOTHER} 127.0.0.1:1@2 master - 0 0 2 connected\n\
                 vars currentEpoch 2 lastVoteEpoch 0\n"
            );
            std::fs::write(&nodes, cluster).unwrap();
            args.extend(["--cluster-config-file", nodes.to_str().unwrap()]);
        }
        let server = Server::with_args(&args);
        let relay = Relay::to(server.port());
        let admin = admin(&server);
        let mut node = Node {
            server,
            relay,
            admin,
            _dir: dir,
        };
        match fault {
            Moved | ClusterDown => {
                eventually("the cluster of one is up", || {
                    node.try_admin(&["SET", "probe", "x"]).is_ok()
                });
                node.admin(&["DEL", "probe"]);
            }
            Loading => {
                let mut random = Random(0x1234_5678_9ABC);
                for i in 0..200 {
                    let filler: String = (0..100)
                        .map(|_| random.below(u64::MAX).to_string())
                        .collect();
                    node.admin(&["SET", &format!("filler:{i}"), &filler]);
                }
            }
            _ => {}
        }
        node.occupy();
        node
    }

    fn occupy(&mut self) {
        self.admin(&["SET", TAKEN, "by another program"]);
    }

    fn try_admin(&mut self, args: &[&str]) -> redis::RedisResult<redis::Value> {
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(*arg);
        }
        command.query(&mut self.admin)
    }

    fn admin(&mut self, args: &[&str]) -> redis::Value {
        self.try_admin(args)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// Of all that is locked in a fault.
    fn slots(&mut self) -> Vec<String> {
        let slot = |key| redis::from_redis_value(self.admin(&["CLUSTER", "KEYSLOT", key])).unwrap();
        let slots: Vec<u16> = LOCKED.into_iter().map(slot).collect();
        slots.iter().map(u16::to_string).collect()
    }

    /// All connections but the administrator's.
    fn kill_clients(&mut self) {
        self.admin(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }

    fn url(&self, fault: Fault) -> String {
        if fault.by_relay() {
            self.relay.url()
        } else {
            self.server.url()
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Refused => self.relay.refuse(),
            Killed => self.server.kill(),
            KilledInMidReply => self.relay.set(|policy| policy.down.cut_after = Some(2)),
            Stopped => self.server.stop(),
            StalledBeforeTheRequest => self.relay.set(|policy| policy.up.stalled = true),
            StalledAfterTheRequest => self.relay.set(|policy| policy.down.stalled = true),
            SlowJustUnder => self
                .relay
                .set(|policy| policy.down.delay = NODE_TIMEOUT / 2),
            SlowJustOver => self.relay.set(|policy| policy.down.delay = SLOW),
            // The shortest reply has four bytes.
            Trickling => self
                .relay
                .set(|policy| policy.down.trickle = Some(NODE_TIMEOUT * 2 / 5)),
            Garbage => self
                .relay
                .set(|policy| policy.down.replace = Some(b"\xde\xad\xbe\xef\r\n".to_vec())),
            WrongProtocol => self.relay.set(|policy| {
                policy.down.replace =
                    Some(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec());
            }),
            AuthLost => {
                self.admin(&["CONFIG", "SET", "requirepass", "changed"]);
                self.kill_clients();
            }
            ReadOnly => {
                // Of a master that does not exist: the data stays, writes are refused.
                self.admin(&["REPLICAOF", "127.0.0.1", "1"]);
            }
            Loading => {
                self.admin(&["SAVE"]);
                self.server.set_args(&[
                    "--loading-process-events-interval-bytes",
                    "1024",
                    "--key-load-delay",
                    "100000",
                ]);
                self.server.restart();
            }
            OutOfMemory => {
                self.admin(&["CONFIG", "SET", "maxmemory", "1"]);
            }
            WrongType => {
                self.admin(&["DEL", RESOURCE]);
                self.admin(&["RPUSH", RESOURCE, "not", "a", "lock"]);
            }
            Moved => {
                for slot in self.slots() {
                    self.admin(&["CLUSTER", "DELSLOTS", &slot]);
                    self.admin(&["CLUSTER", "SETSLOT", &slot, "NODE", ANOTHER]);
                }
            }
            ClusterDown => {
                for slot in self.slots() {
                    self.admin(&["CLUSTER", "DELSLOTS", &slot]);
                }
            }
            ConnectionLimit => {
                self.admin(&["CONFIG", "SET", "maxclients", "1"]);
                self.kill_clients();
            }
            IdleClosed => self.kill_clients(),
        }
    }

    fn heal(&mut self, fault: Fault) {
        match fault {
            Killed => {
                self.server.restart();
                self.admin = admin(&self.server);
                self.occupy();
            }
            Stopped => self.server.resume(),
            AuthLost => {
                self.admin(&["CONFIG", "SET", "requirepass", ""]);
            }
            ReadOnly => {
                self.admin(&["REPLICAOF", "NO", "ONE"]);
            }
            Loading => {
                self.admin = admin(&self.server);
                self.admin(&["CONFIG", "SET", "key-load-delay", "0"]);
                eventually("loaded", || self.try_admin(&["GET", TAKEN]).is_ok());
            }
            OutOfMemory => {
                self.admin(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            WrongType => {
                self.admin(&["DEL", RESOURCE]);
            }
            Moved | ClusterDown => {
                for slot in self.slots() {
                    self.admin(&["CLUSTER", "SETSLOT", &slot, "NODE", MYSELF]);
                }
            }
            ConnectionLimit => {
                self.admin(&["CONFIG", "SET", "maxclients", "10000"]);
            }
            IdleClosed => {}
            _ => self.relay.heal(),
        }
    }

    fn locks(&mut self) -> Vec<String> {
        let keys = self.admin(&["KEYS", "*"]);
        let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
        keys.into_iter()
            .filter(|key| key != TAKEN && !key.starts_with("filler"))
            .collect()
    }

    /// Connections but the administrator's.
    fn clients(&mut self) -> usize {
        let clients: String = redis::from_redis_value(self.admin(&["INFO", "clients"])).unwrap();
        let connected = clients
            .lines()
            .find_map(|line| line.strip_prefix("connected_clients:"));
        connected.unwrap().trim().parse::<usize>().unwrap() - 1
    }
}

fn admin(server: &Server) -> redis::Connection {
    let client = redis::Client::open(server.unix_url()).unwrap();
    client.get_connection().unwrap()
}

/// Whether a lock that is taken now is on all nodes.
fn all_vote(redlock: &Redlock, nodes: &mut [Node]) -> bool {
    let lock = match redlock.acquire("again", TTL) {
        Ok(lock) => lock,
        Err(error) => {
            // All is well by now, whatever a try to connect has met that was under way before.
            let for_good = matches!(&error, Error::Unavailable(nodes) if nodes.is_permanent());
            assert!(!for_good, "{error}");
            return false;
        }
    };
    let mut on = |node: &mut Node| node.admin(&["EXISTS", "again"]) == redis::Value::Int(1);
    let all = nodes.iter_mut().all(&mut on);
    // Confirmed or not: it is written to all.
    let _ = lock.release();
    all
}

/// The nodes of one process, used by one case after another.
struct World {
    nodes: Vec<Node>,
    /// Descriptors and threads without a connection.
    idle: (usize, usize),
}

struct Case {
    fault: Fault,
    operation: Operation,
    nodes: usize,
    faulty: BTreeSet<usize>,
    name: String,
}

impl Case {
    fn spare(&self) -> usize {
        (self.nodes - 1) / 2
    }

    fn survives(&self) -> bool {
        self.faulty.len() <= self.spare()
    }

    fn expects(&self) -> Effect {
        if self.survives() {
            Effect::Votes
        } else {
            self.fault.effect(self.operation)
        }
    }
}

fn cases(fault: Fault) -> Vec<Case> {
    let mut cases = Vec::new();
    for nodes in [1, 3, 5] {
        let spare = (nodes - 1) / 2;
        let mut counts = BTreeSet::from([1, spare.max(1), spare + 1]);
        if fault == IdleClosed {
            counts.insert(nodes);
        }
        for count in counts {
            for operation in OPERATIONS {
                // Another place each time: the first, the middle, the last.
                let first = cases.len();
                let faulty = (first..first + count).map(|node| node % nodes).collect();
                cases.push(Case {
                    fault,
                    operation,
                    nodes,
                    name: format!(
                        "{fault:?} on {count} of {nodes} nodes, nodes {faulty:?}, met by {operation:?}"
                    ),
                    faulty,
                });
            }
        }
    }
    cases
}

impl World {
    fn of(fault: Fault) -> World {
        let nodes = (0..5).map(|_| Node::start(fault)).collect();
        World {
            nodes,
            idle: (open_files(), threads()),
        }
    }

    fn run(&mut self, case: &Case) {
        let nodes = &mut self.nodes[..case.nodes];
        let fault = case.fault;
        let urls: Vec<String> = nodes.iter().map(|node| node.url(fault)).collect();
        let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
        // A relay holds two descriptors and four threads for each connection.
        let each = if fault.by_relay() { (3, 4) } else { (1, 0) };
        let quiet = (
            self.idle.0 + case.nodes * each.0,
            self.idle.1 + case.nodes * each.1,
        );
        eventually("all are connected", || all_vote(&redlock, nodes));
        eventually("all is quiet", || (open_files(), threads()) == quiet);
        take(&redlock, "warm").release().unwrap();

        let lock = (case.operation != Operation::Acquire).then(|| take(&redlock, RESOURCE));
        if lock.is_some() {
            // A majority has answered. The rest may not have read it yet.
            eventually("it is on all nodes", || {
                nodes.iter().all(|node| node.server.exists(RESOURCE))
            });
        }
        for node in &case.faulty {
            nodes[*node].strike(fault);
        }
        let kept = self.meet(case, &redlock, lock);
        self.cost_nothing(case, &redlock);

        let nodes = &mut self.nodes[..case.nodes];
        for node in &case.faulty {
            nodes[*node].heal(fault);
        }
        self.healed(case, &redlock, kept, quiet);
        drop(redlock);
        let name = &case.name;
        eventually(&format!("{name}: all is closed"), || {
            (open_files(), threads()) == self.idle
        });
    }

    /// The operation in the fault: its outcome and its time. The lock, if it is still to be released.
    fn meet(&mut self, case: &Case, redlock: &Redlock, lock: Option<Lock>) -> Option<Lock> {
        let name = &case.name;
        let expected = case.expects();
        let started = Instant::now();
        let mut bound = 1;
        let mut kept = None;
        match (case.operation, lock) {
            (Operation::Acquire, _) => {
                bound = 2;
                match (redlock.try_acquire(RESOURCE, TTL), expected) {
                    (Ok(Some(lock)), Effect::Votes) => drop(lock),
                    (Ok(None), Effect::Denies) => {}
                    (Err(Error::Unavailable(nodes)), Effect::Fails) => {
                        let failed: BTreeSet<usize> = nodes.iter().map(NodeError::node).collect();
                        assert_eq!(failed, case.faulty, "{name}: {nodes}");
                        if let Some(permanent) = case.fault.is_permanent() {
                            assert_eq!(nodes.is_permanent(), permanent, "{name}: {nodes}");
                        }
                    }
                    (other, _) => panic!("{name}: {other:?}"),
                }
            }
            (Operation::Extend, Some(mut lock)) => {
                match (lock.extend(2 * TTL), expected) {
                    (Ok(()), Effect::Votes) => assert!(lock.remaining() > TTL, "{name}"),
                    (Err(Error::Unavailable(nodes)), Effect::Fails) => {
                        let failed: BTreeSet<usize> = nodes.iter().map(NodeError::node).collect();
                        assert_eq!(failed, case.faulty, "{name}: {nodes}");
                        assert!(lock.is_valid(), "{name}");
                        assert!(lock.remaining() <= TTL, "{name}");
                    }
                    (other, _) => panic!("{name}: {other:?}"),
                }
                kept = Some(lock);
            }
            (Operation::Release, Some(lock)) => match (lock.release(), expected) {
                (Ok(()), Effect::Votes) => {}
                (Err(Error::Unavailable(nodes)), Effect::Fails) => {
                    let failed: BTreeSet<usize> = nodes.iter().map(NodeError::node).collect();
                    assert_eq!(failed, case.faulty, "{name}: {nodes}");
                }
                (other, _) => panic!("{name}: {other:?}"),
            },
            (Operation::Drop, Some(lock)) => drop(lock),
            (_, None) => unreachable!(),
        }
        let took = started.elapsed();
        // One more for a busy machine.
        assert!(took < (bound + 1) * NODE_TIMEOUT, "{name}: took {took:?}");
        kept
    }

    /// After the first operation that met it, a faulty minority costs nothing; a faulty majority
    /// never yields a lock.
    fn cost_nothing(&mut self, case: &Case, redlock: &Redlock) {
        let name = &case.name;
        if case.survives() {
            // Silent nodes cost a timeout once, together, unless the operation before has met them.
            // Which nodes are merely slow is learnt node by node.
            let bound = NODE_TIMEOUT
                * match case.fault {
                    SlowJustUnder | SlowJustOver => 2 + u32::try_from(case.faulty.len()).unwrap(),
                    _ => 3,
                };
            let started = Instant::now();
            for _ in 0..20 {
                drop(take(redlock, "other"));
            }
            let took = started.elapsed();
            assert!(took < bound, "{name}: 20 rounds took {took:?}");
        }
        match redlock.try_acquire(TAKEN, TTL) {
            Ok(None) | Err(Error::Unavailable(_)) => {}
            other => panic!("{name}: {other:?}"),
        }
    }

    fn healed(
        &mut self,
        case: &Case,
        redlock: &Redlock,
        kept: Option<Lock>,
        quiet: (usize, usize),
    ) {
        let name = &case.name;
        let nodes = &mut self.nodes[..case.nodes];
        // Within a second, all vote again. (What was slow is still under way when it is not any more.)
        let late = match case.fault {
            SlowJustOver => SLOW,
            _ => Duration::ZERO,
        };
        let bound = 2 * NODE_TIMEOUT + late;
        eventually_within(bound, name, &mut || all_vote(redlock, nodes));
        // No reply was taken for another's.
        assert!(
            redlock.try_acquire(TAKEN, TTL).unwrap().is_none(),
            "{name}: taken"
        );
        if let Some(lock) = kept {
            let gone = case.fault.key() == Key::Gone && !case.survives();
            match lock.release() {
                Ok(()) if !gone => {}
                Err(Error::Lost(_)) if gone => {}
                other => panic!("{name}: released after healing: {other:?}"),
            }
        }
        let given_up = matches!(case.operation, Operation::Release | Operation::Drop);
        for (i, node) in nodes.iter_mut().enumerate() {
            if given_up && case.faulty.contains(&i) && case.fault.key() == Key::LeftToItsTtl {
                let left: i64 = redis::from_redis_value(node.admin(&["PTTL", RESOURCE])).unwrap();
                assert!(left != -1, "{name}: node {i} has a key without a ttl");
                node.admin(&["DEL", RESOURCE]);
            }
            eventually(&format!("{name}: nothing left on node {i}"), || {
                // That a node refused a release is seen by the next use of the connections.
                if case.fault.refuses_releases() {
                    let _ = take(redlock, "again").release();
                }
                node.locks().is_empty()
            });
            let end = Instant::now() + 20 * NODE_TIMEOUT;
            while node.clients() != 1 {
                if Instant::now() > end {
                    let list = node.admin(&["CLIENT", "LIST"]);
                    panic!("{name}: connections to node {i}: {list:?}");
                }
                std::thread::sleep(ms(2));
            }
        }
        let end = Instant::now() + 20 * NODE_TIMEOUT;
        loop {
            let now = (open_files(), threads());
            if now == quiet {
                return;
            }
            assert!(
                Instant::now() < end,
                "{name}: descriptors and threads are {now:?}, not {quiet:?}"
            );
            std::thread::sleep(ms(2));
        }
    }
}

impl World {
    /// Eight threads use one lane while the fault comes and goes.
    fn crowd(&mut self, fault: Fault, faulty: usize) {
        const NODES: usize = 3;
        let name = format!("{fault:?} on {faulty} of {NODES} nodes, met by eight threads");
        let each = if fault.by_relay() { (3, 4) } else { (1, 0) };
        let quiet = (self.idle.0 + NODES * each.0, self.idle.1 + NODES * each.1);
        let nodes = &mut self.nodes[..NODES];
        let urls: Vec<String> = nodes.iter().map(|node| node.url(fault)).collect();
        let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
        eventually("all are connected", || all_vote(&redlock, nodes));
        eventually("all is quiet", || (open_files(), threads()) == quiet);

        let over = AtomicBool::new(false);
        let inside = AtomicUsize::new(0);
        let healed = std::thread::scope(|scope| {
            let _over = OnDrop(&over);
            for user in 0..8 {
                let (redlock, over, inside, name) = (&redlock, &over, &inside, &name);
                scope.spawn(move || use_it(fault, faulty, user, redlock, over, inside, name));
            }
            std::thread::sleep(NODE_TIMEOUT / 2);
            nodes[..faulty]
                .iter_mut()
                .for_each(|node| node.strike(fault));
            std::thread::sleep(2 * NODE_TIMEOUT);
            nodes[..faulty].iter_mut().for_each(|node| node.heal(fault));
            let healed = Instant::now();
            std::thread::sleep(NODE_TIMEOUT);
            // With everybody busy, too.
            eventually_within(2 * NODE_TIMEOUT, &name, &mut || all_vote(&redlock, nodes));
            healed.elapsed()
        });
        println!("{name}: all voted again within {healed:?}");
        eventually(&format!("{name}: quiet again"), || {
            (open_files(), threads()) == quiet
        });
        for (i, node) in nodes.iter_mut().enumerate() {
            // What is loaded again may have been released after it was saved.
            if fault.key() == Key::LeftToItsTtl || fault == Loading {
                for key in node.locks() {
                    let left: i64 = redis::from_redis_value(node.admin(&["PTTL", &key])).unwrap();
                    assert!(left != -1, "{name}: {key} has no ttl");
                    node.admin(&["DEL", &key]);
                }
            }
            let mut left = node.locks();
            let end = Instant::now() + 4 * NODE_TIMEOUT;
            while !left.is_empty() {
                if fault.refuses_releases() {
                    let _ = take(&redlock, "again").release();
                }
                assert!(Instant::now() < end, "{name}: left on node {i}: {left:?}");
                std::thread::sleep(ms(2));
                left = node.locks();
            }
        }
    }
}

/// One of many threads, which lock by turns what they share and what is theirs.
fn use_it(
    fault: Fault,
    faulty: usize,
    user: usize,
    redlock: &Redlock,
    over: &AtomicBool,
    inside: &AtomicUsize,
    name: &str,
) {
    // One step may be under way, then comes its own, and its repetition; one for a busy machine.
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let started = Instant::now();
        work();
        let took = started.elapsed();
        assert!(took < 4 * NODE_TIMEOUT, "{name}: {what} took {took:?}");
    };
    let mut round = user;
    while !over.load(Ordering::Relaxed) {
        round += 1;
        let shared = round.is_multiple_of(4);
        let resource = if shared {
            "shared".to_owned()
        } else {
            format!("of {user}")
        };
        let mut lock = None;
        timed(
            "acquire",
            &mut || match redlock.try_acquire(&resource, TTL) {
                Ok(granted) => lock = granted,
                Err(Error::Unavailable(_)) if faulty > 1 => {}
                Err(error) => panic!("{name}: {error}"),
            },
        );
        let Some(mut lock) = lock else {
            std::thread::sleep(ms(2));
            continue;
        };
        if shared {
            // A node that comes back without its data grants twice.
            let others = inside.fetch_add(1, Ordering::SeqCst);
            assert!(others == 0 || fault == Killed, "{name}: two hold it");
        }
        timed("extend", &mut || match lock.extend(2 * TTL) {
            Ok(()) => {}
            Err(Error::Unavailable(_)) if faulty > 1 => {}
            Err(Error::Lost(_)) if fault == Killed => {}
            Err(error) => panic!("{name}: {error}"),
        });
        if shared {
            inside.fetch_sub(1, Ordering::SeqCst);
        }
        // There are many of these and few processors.
        std::thread::sleep(ms(2));
        let mut lock = Some(lock);
        if round.is_multiple_of(2) {
            timed("drop", &mut || drop(lock.take()));
            continue;
        }
        timed("release", &mut || match lock.take().map(Lock::release) {
            None | Some(Ok(())) => {}
            Some(Err(Error::Unavailable(_))) if faulty > 1 => {}
            Some(Err(Error::Lost(_))) if fault == Killed => {}
            Some(Err(error)) => panic!("{name}: {error}"),
        });
    }
}

/// One fault's part of the table, in a process of its own.
#[test]
#[ignore = "run by the tests below"]
fn table() {
    let name = told().expect("run alone");
    let fault = FAULTS
        .into_iter()
        .find(|fault| format!("{fault:?}") == name);
    let fault = fault.expect("a fault");
    let mut world = World::of(fault);

    for case in cases(fault) {
        let started = Instant::now();
        world.run(&case);
        println!("{}: {:?}", case.name, started.elapsed());
    }
    for faulty in 1..=2 {
        world.crowd(fault, faulty);
    }
}

#[test]
fn some_faults_have_their_outcome_and_leave_nothing_behind() {
    tables(&[KilledInMidReply, Garbage, ReadOnly]);
}

#[test]
#[ignore = "takes a minute"]
fn every_fault_has_its_outcome_and_leaves_nothing_behind() {
    tables(&FAULTS);
}

fn tables(faults: &[Fault]) {
    // Most of the time is spent waiting.
    const AT_ONCE: usize = 7;
    let waiting = std::sync::Mutex::new(faults.iter());
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(fault) = waiting.lock().unwrap().next() else {
                        return;
                    };
                    let output = own_process("table", &format!("{fault:?}"))
                        .output()
                        .unwrap();
                    if !output.status.success() {
                        let text = String::from_utf8_lossy(&output.stdout).into_owned()
                            + &String::from_utf8_lossy(&output.stderr);
                        failures.lock().unwrap().push(text);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
