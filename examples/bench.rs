//! The benchmark. A *pair* is one acquire and one release; the floor is the same two commands on
//! bare sockets: written to all nodes, then read from all. Both take turns in blocks of a fraction
//! of a second, in one run, so that whatever else the machine does happens to both.
//!
//! ```text
//! cargo run --release --example bench [-- [--quick] [--json] [scenario…]]
//!     uncontended   one thread
//!     threads       8 and 64 threads, each with a key of its own
//!     contended     8 threads, and 8 processes, want one key: how fast it goes from hand to hand
//!     kinds         permits, readers and writers, several names: 8 processes; and what each kind costs a server
//!     native        release by a native command, against release by a script (Valkey 9, Redis 8.4)
//!     rtt           1.2 ms of round trip; one node 40 ms away and listed first
//!     faults        a minority of the nodes stopped
//!     cluster       a Redis Cluster of one master, against the same server as a plain node
//!     clocks        with the restart guard, a user that may read the server's clock, against one that may not
//! ```
//!
//! It starts the redis-servers it needs (from PATH, or the binary in `REDIS_SERVER`).

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "bench/contended.rs"]
mod contended;
#[path = "bench/figures.rs"]
mod figures;
#[path = "bench/kinds.rs"]
mod kinds;
#[path = "bench/native.rs"]
mod native;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use redlock_sync::{Options, Redlock};
use support::clusters::Cluster;
use support::relay::Relay;
use support::{Server, TTL, eventually, ms, urls};

type Scenario = (&'static str, fn(&mut Bench));
const SCENARIOS: [Scenario; 9] = [
    ("uncontended", uncontended),
    ("threads", threads),
    ("contended", contended::run),
    ("kinds", kinds::run),
    ("native", native::run),
    ("rtt", rtt),
    ("faults", faults),
    ("cluster", cluster),
    ("clocks", clocks),
];
const NODES: [usize; 3] = [1, 3, 5];

fn main() {
    if contended::worker() || kinds::worker() || figures::run() {
        return;
    }
    let (flags, chosen): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|arg| arg.starts_with('-'));
    let known = |name: &String| SCENARIOS.iter().any(|(known, _)| known == name);
    let flag_known = |flag: &String| ["--quick", "--json"].contains(&flag.as_str());
    if !chosen.iter().all(known) || !flags.iter().all(flag_known) {
        eprintln!(
            "usage: bench [--quick] [--json] [uncontended|threads|contended|kinds|native|rtt|faults|cluster|clocks]…"
        );
        std::process::exit(2);
    }
    let has = |flag: &str| flags.iter().any(|given| given == flag);
    let (rounds, block) = if has("--quick") {
        (5, ms(40))
    } else {
        (25, ms(120))
    };
    let mut bench = Bench {
        rounds,
        block,
        json: has("--json"),
        scenario: "",
        rows: 0,
    };
    bench.begin();
    for (name, run) in SCENARIOS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            bench.scenario = name;
            run(&mut bench);
        }
    }
    bench.end();
}

// ---- scenarios ------------------------------------------------------------------------------

fn uncontended(bench: &mut Bench) {
    bench.title("one thread");
    for nodes in NODES {
        let servers = Server::several(nodes);
        let redlock = patient(urls(&servers));
        let mut bare = Bare::new(&ports(&servers));
        let head = Head::new("release() waited for", nodes, Unit::Pair);
        bench.compare(
            head,
            &mut alone(|| pair(&redlock, "a")),
            &mut alone(|| bare.pair("b")),
        );
        let head = Head::new("lock dropped", nodes, Unit::Pair);
        bench.compare(
            head,
            &mut alone(|| drop(support::take(&redlock, "a"))),
            &mut alone(|| bare.pair("b")),
        );
    }
}

fn threads(bench: &mut Bench) {
    bench.title("threads with a key each (bare sockets: a connection per thread)");
    for nodes in NODES {
        let servers = Server::several(nodes);
        for threads in [8, 64] {
            let redlock = patient(urls(&servers));
            let users = (0..threads).map(|i| (format!("a{i}"), &redlock));
            let bares = (0..threads).map(|i| (format!("b{i}"), Bare::new(&ports(&servers))));
            let (mut users, mut bares) = (users.collect::<Vec<_>>(), bares.collect::<Vec<_>>());
            let head = Head::new("own keys", nodes, Unit::Rate).threads(threads);
            bench.compare(
                head,
                &mut together(&mut users, |(key, redlock)| pair(redlock, key)),
                &mut together(&mut bares, |(key, bare)| bare.pair(key)),
            );
        }
    }
}

fn rtt(bench: &mut Bench) {
    bench.title("at a distance, one thread");
    for nodes in NODES {
        let servers = Server::several(nodes);
        let relays: Vec<Relay> = servers
            .iter()
            .map(|server| distant(server, ms(12) / 10))
            .collect();
        let redlock = patient(relays.iter().map(Relay::url).collect());
        let relay_ports: Vec<u16> = relays.iter().map(Relay::port).collect();
        let mut bare = Bare::new(&relay_ports);
        let head = Head::new("1.2 ms, release()", nodes, Unit::Pair);
        bench.compare(
            head.shares_cpu(),
            &mut alone(|| pair(&redlock, "a")),
            &mut alone(|| bare.pair("b")),
        );
        let head = Head::new("1.2 ms, dropped", nodes, Unit::Pair);
        bench.compare(
            head.shares_cpu(),
            &mut alone(|| drop(support::take(&redlock, "a"))),
            &mut alone(|| bare.pair("b")),
        );
    }
    for nodes in [3, 5] {
        let servers = Server::several(nodes);
        let far = distant(&servers[0], ms(40));
        let near = urls(&servers[1..]);
        let redlock = patient([vec![far.url()], near.clone()].concat());
        let others = patient(near);
        let bare_ports = [&[far.port()], &ports(&servers)[1..]].concat();
        let mut bare = Bare::new(&bare_ports);
        let head = Head::new("first node 40 ms away", nodes, Unit::Pair);
        bench.compare(
            head.against("the others alone").shares_cpu(),
            &mut alone(|| pair(&redlock, "a")),
            &mut alone(|| pair(&others, "b")),
        );
        let head = Head::new("first node 40 ms away", nodes, Unit::Pair);
        bench.compare(
            head.shares_cpu(),
            &mut alone(|| pair(&redlock, "a")),
            &mut alone(|| bare.pair("c")),
        );
    }
}

fn faults(bench: &mut Bench) {
    bench.title("one thread, node_timeout 50 ms; max: the pair that met it");
    for nodes in [3, 5] {
        let servers = Server::several(nodes);
        let options = Options::new().retry_delay(ms(1), ms(5));
        let redlock = Redlock::new(urls(&servers)).unwrap();
        let redlock = redlock.with_options(options).unwrap();
        // A busy machine can make a third node look stopped: that pair takes longer, and counts.
        let pair = || {
            let _ = redlock.acquire("a", TTL).unwrap().release();
        };
        let minority = nodes - (nodes / 2 + 1);
        let mut bare = Bare::new(&ports(&servers));
        let head = Head::new("all nodes well", nodes, Unit::Pair);
        bench.compare(head, &mut alone(pair), &mut alone(|| bare.pair("b")));
        let mut work = alone(pair);
        let mut first = 0;
        bench.compare(
            Head::new(&format!("{minority} stopped"), nodes, Unit::Pair).against("all nodes well"),
            &mut |block| {
                // Others than the last time, which are not trusted yet.
                first += minority;
                let stopped = servers.iter().cycle().skip(first % nodes).take(minority);
                stopped.clone().for_each(Server::stop);
                // The first pair meets it, the others know.
                let sample = work(block + ms(100));
                stopped.for_each(Server::resume);
                eventually("all nodes are back", || {
                    pair();
                    support::attendants() == 0
                });
                sample
            },
            &mut alone(pair),
        );
    }
}

/// The cost of the way through the lanes.
fn cluster(bench: &mut Bench) {
    bench.title("one thread, a Redis Cluster of one master");
    let cluster = Cluster::masters(1);
    let shards = cluster.client_with(patient_options());
    let plain = patient(vec![cluster.nodes[0].url()]);
    let head = Head::new("release() waited for", 1, Unit::Pair);
    bench.compare(
        head.against("as a plain node"),
        &mut alone(|| pair(&shards, "a")),
        &mut alone(|| pair(&plain, "b")),
    );
}

/// What it costs that a step of the server's clock is noticed (rule R57).
fn clocks(bench: &mut Bench) {
    const MAX_TTL: Duration = Duration::from_secs(5);
    bench.title("one thread, the restart guard");
    let server = Server::plain();
    let rights = ["on", ">p", "~*", "&*", "+@all", "-time"];
    server.command(&[&["ACL", "SETUSER", "blind"], &rights[..]].concat());
    let [reads, blind] = ["", "blind:p@"].map(|user| {
        let redlock = patient(vec![format!("redis://{user}127.0.0.1:{}", server.port())]);
        let options = patient_options().restart_guard(MAX_TTL);
        let redlock = redlock.with_options(options).unwrap();
        eventually("it votes", || {
            matches!(redlock.try_acquire("a", MAX_TTL), Ok(Some(_)))
        });
        redlock
    });
    let pair = |redlock: &Redlock, key| {
        let lock = redlock.try_acquire(key, MAX_TTL).unwrap().unwrap();
        lock.release().unwrap();
    };
    let head = Head::new("the clock is read", 1, Unit::Pair);
    bench.compare(
        head.against("by a user that may not"),
        &mut alone(|| pair(&reads, "a")),
        &mut alone(|| pair(&blind, "b")),
    );
}

/// With a patience that no other load on the machine exhausts.
fn patient(urls: Vec<String>) -> Redlock {
    let options = patient_options();
    Redlock::new(urls).unwrap().with_options(options).unwrap()
}

fn patient_options() -> Options {
    Options::new()
        .node_timeout(ms(1000))
        .connect_timeout(ms(5000))
}

fn distant(server: &Server, round_trip: Duration) -> Relay {
    let relay = Relay::to(server.port());
    relay.set(|policy| {
        policy.up.delay = round_trip / 2;
        policy.down.delay = round_trip / 2;
    });
    relay
}

fn ports(servers: &[Server]) -> Vec<u16> {
    servers.iter().map(Server::port).collect()
}

fn pair(redlock: &Redlock, key: &str) {
    support::take(redlock, key).release().unwrap();
}

// ---- bare sockets ---------------------------------------------------------------------------

/// The floor: what a pair costs without a library.
struct Bare {
    nodes: Vec<TcpStream>,
    bytes: Vec<u8>,
    token: [u8; 20],
}

impl Bare {
    fn new(ports: &[u16]) -> Bare {
        let connect = |port: &u16| {
            let stream = TcpStream::connect(("127.0.0.1", *port)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        Bare {
            nodes: ports.iter().map(connect).collect(),
            bytes: Vec::new(),
            token: [0; 20],
        }
    }

    fn pair(&mut self, key: &str) {
        assert!(self.acquire(key));
        assert_eq!(self.release(key), self.nodes.len());
    }

    fn acquire(&mut self, key: &str) -> bool {
        getrandom::fill(&mut self.token).unwrap();
        self.pack(&[b"SET", key.as_bytes(), &[], b"NX", b"PX", b"60000"]);
        self.ask() > self.nodes.len() / 2
    }

    fn release(&mut self, key: &str) -> usize {
        const RELEASE: &[u8] = b"if redis.call('GET',KEYS[1])==ARGV[1] then \
            return redis.call('DEL',KEYS[1]) end return 0";
        self.pack(&[b"EVAL", RELEASE, b"1", key.as_bytes(), &[]]);
        self.ask()
    }

    /// An empty argument stands for the token.
    fn pack(&mut self, args: &[&[u8]]) {
        self.bytes.clear();
        write!(self.bytes, "*{}\r\n", args.len()).unwrap();
        for arg in args {
            let arg = if arg.is_empty() { &self.token } else { *arg };
            write!(self.bytes, "${}\r\n", arg.len()).unwrap();
            self.bytes.extend_from_slice(arg);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// How many nodes said yes.
    fn ask(&mut self) -> usize {
        for node in &mut self.nodes {
            node.write_all(&self.bytes).unwrap();
        }
        let yes = |node: &mut TcpStream| {
            let mut reply = [0; 64];
            let mut length = 0;
            while !reply[..length].ends_with(b"\r\n") {
                let read = node.read(&mut reply[length..]).unwrap();
                assert!(read > 0, "a node hung up");
                length += read;
            }
            usize::from(reply.starts_with(b"+OK") || reply.starts_with(b":1"))
        };
        self.nodes.iter_mut().map(yes).sum()
    }
}

// ---- measuring ------------------------------------------------------------------------------

/// A block of pairs.
struct Sample {
    pairs: Vec<Duration>,
    elapsed: Duration,
    cpu: Duration,
}

/// Pair after pair.
fn alone(mut pair: impl FnMut()) -> impl FnMut(Duration) -> Sample {
    move |block| {
        let mut pairs = Vec::with_capacity(16_384);
        let (start, cpu) = (Instant::now(), cpu());
        let mut from = start;
        while from - start < block {
            pair();
            let to = Instant::now();
            pairs.push(to - from);
            from = to;
        }
        Sample {
            pairs,
            elapsed: from - start,
            cpu: self::cpu() - cpu,
        }
    }
}

/// A thread for each user.
fn together<U: Send>(
    users: &mut [U],
    pair: impl Fn(&mut U) + Sync,
) -> impl FnMut(Duration) -> Sample {
    move |block| {
        let ready = Barrier::new(users.len() + 1);
        std::thread::scope(|scope| {
            let (ready, pair) = (&ready, &pair);
            let work = |user| {
                scope.spawn(move || {
                    let user: &mut U = user;
                    ready.wait();
                    alone(|| pair(user))(block)
                })
            };
            let workers: Vec<_> = users.iter_mut().map(work).collect();
            ready.wait();
            let cpu = cpu();
            let samples: Vec<Sample> = workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect();
            Sample {
                elapsed: samples.iter().map(|sample| sample.elapsed).max().unwrap(),
                pairs: samples
                    .into_iter()
                    .flat_map(|sample| sample.pairs)
                    .collect(),
                cpu: self::cpu() - cpu,
            }
        })
    }
}

/// What this process has used.
fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: a valid pointer to a rusage, which the call fills.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    /// Time for a pair: less is better.
    Pair,
    /// Pairs per second of all threads: more is better.
    Rate,
}

/// What a row is about.
struct Head {
    case: String,
    nodes: usize,
    threads: usize,
    unit: Unit,
    against: &'static str,
    /// Something else in this process works too: the CPU time means nothing.
    shares_cpu: bool,
}

impl Head {
    fn new(case: &str, nodes: usize, unit: Unit) -> Head {
        Head {
            case: case.into(),
            nodes,
            threads: 1,
            unit,
            against: "bare sockets",
            shares_cpu: false,
        }
    }

    fn threads(self, threads: usize) -> Head {
        Head { threads, ..self }
    }

    fn against(self, against: &'static str) -> Head {
        Head { against, ..self }
    }

    fn shares_cpu(self) -> Head {
        Head {
            shares_cpu: true,
            ..self
        }
    }
}

/// Of one side of a comparison: a value for each round, and all pairs.
#[derive(Default)]
struct Series {
    values: Vec<f64>,
    cpu: Vec<f64>,
    pairs: Vec<f64>,
}

impl Series {
    fn add(&mut self, unit: Unit, sample: &Sample) {
        let pairs: Vec<f64> = sample.pairs.iter().copied().map(micros).collect();
        self.values.push(match unit {
            Unit::Pair => quantile(&pairs, 0.5),
            Unit::Rate => pairs.len() as f64 / sample.elapsed.as_secs_f64(),
        });
        self.cpu.push(micros(sample.cpu) / pairs.len() as f64);
        self.pairs.extend(pairs);
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// A median, and the range in which four fifths of the rounds were.
fn range(values: &[f64]) -> [f64; 3] {
    [0.5, 0.1, 0.9].map(|share| quantile(values, share))
}

struct Bench {
    rounds: usize,
    block: Duration,
    json: bool,
    scenario: &'static str,
    rows: usize,
}

impl Bench {
    fn compare(
        &mut self,
        head: Head,
        ours: &mut dyn FnMut(Duration) -> Sample,
        reference: &mut dyn FnMut(Duration) -> Sample,
    ) {
        let (mut our, mut their) = (Series::default(), Series::default());
        ours(self.block);
        reference(self.block);
        for round in 0..self.rounds {
            // Neither always comes first.
            if round % 2 == 0 {
                our.add(head.unit, &ours(self.block));
            }
            their.add(head.unit, &reference(self.block));
            if round % 2 != 0 {
                our.add(head.unit, &ours(self.block));
            }
        }
        self.row(&head, &our, &their);
    }

    fn begin(&self) {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let line = |path: &str, start: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(start));
            let value = line.and_then(|line| line.rsplit(": ").next());
            value.unwrap_or("unknown").trim().to_owned()
        };
        let cpu = line("/proc/cpuinfo", "model name");
        let kernel = line("/proc/sys/kernel/osrelease", "");
        let server = Server::start();
        let redis = server.info("server", "redis_version");
        let load = line("/proc/loadavg", "");
        let build = if cfg!(debug_assertions) {
            "debug (figures of a debug build mean little: use --release)"
        } else {
            "release"
        };
        let version = env!("CARGO_PKG_VERSION");
        if self.json {
            println!(
                "{{\"machine\":{{\"cores\":{cores},\"cpu\":{cpu:?},\"kernel\":{kernel:?},\
                 \"redis\":{redis:?},\"load\":{load:?},\"build\":{build:?},\
                 \"version\":{version:?}}},\"rounds\":{},\"block_ms\":{},\"rows\":[",
                self.rounds,
                self.block.as_millis()
            );
            return;
        }
        println!(
            "redlock-sync {version}, {build}; {cores} cores ({cpu}), Linux {kernel}, redis-server {redis} on the same machine, load {load}"
        );
        println!(
            "Median (middle 80 %) of {} rounds of {:?}; p99 and max of all pairs; CPU = of this process, per pair.",
            self.rounds, self.block
        );
    }

    fn title(&self, title: &str) {
        if !self.json {
            println!("\n{}: {title}", self.scenario);
            println!(
                "{:<24}{:>3}{:>4}  {:>26}{:>8}{:>9}{:>7}  {:>26}{:>8}{:>7}  {:<18}",
                "",
                "N",
                "thr",
                "redlock-sync",
                "p99",
                "max",
                "CPU",
                "reference",
                "p99",
                "CPU",
                "ratio"
            );
        }
    }

    fn row(&mut self, head: &Head, our: &Series, their: &Series) {
        let ratios: Vec<f64> = std::iter::zip(&our.values, &their.values)
            .map(|(our, their)| our / their)
            .collect();
        let (ours, theirs, ratio) = (range(&our.values), range(&their.values), range(&ratios));
        let p99 = [our, their].map(|series| quantile(&series.pairs, 0.99));
        let max = quantile(&our.pairs, 1.0);
        let cpu = [our, their].map(|series| quantile(&series.cpu, 0.5));
        let unit = match head.unit {
            Unit::Pair => "us",
            Unit::Rate => "pairs/s",
        };
        if self.json {
            let comma = if self.rows > 0 { "," } else { "" };
            let list =
                |values: [f64; 3]| format!("[{:.3},{:.3},{:.3}]", values[0], values[1], values[2]);
            let cpu = if head.shares_cpu {
                "null".to_owned()
            } else {
                format!("[{:.2},{:.2}]", cpu[0], cpu[1])
            };
            println!(
                "{comma}{{\"scenario\":{:?},\"case\":{:?},\"nodes\":{},\"threads\":{},\"unit\":{unit:?},\
                 \"ours\":{},\"against\":{:?},\"reference\":{},\"ratio\":{},\
                 \"p99_us\":[{:.1},{:.1}],\"max_us\":{max:.1},\"cpu_us\":{cpu}}}",
                self.scenario,
                head.case,
                head.nodes,
                head.threads,
                list(ours),
                head.against,
                list(theirs),
                list(ratio),
                p99[0],
                p99[1],
            );
        } else {
            let show = |[median, low, high]: [f64; 3]| match head.unit {
                Unit::Pair => format!("{median:.1} µs ({low:.1}–{high:.1})"),
                Unit::Rate => format!("{median:.0} /s ({low:.0}–{high:.0})"),
            };
            let cpu = cpu.map(|cpu| match head.shares_cpu {
                true => "–".into(),
                false => format!("{cpu:.1}"),
            });
            println!(
                "{:<24}{:>3}{:>4}  {:>26}{:>8.0}{max:>9.0}{:>7}  {:>26}{:>8.0}{:>7}  {:<18} {}",
                head.case,
                head.nodes,
                head.threads,
                show(ours),
                p99[0],
                cpu[0],
                show(theirs),
                p99[1],
                cpu[1],
                format!("{:.2} ({:.2}–{:.2})", ratio[0], ratio[1], ratio[2]),
                if head.against == "bare sockets" {
                    ""
                } else {
                    head.against
                },
            );
        }
        self.rows += 1;
    }

    fn end(&self) {
        if self.json {
            println!("]}}");
        } else {
            println!(
                "\nreference = the same commands on bare sockets, unless named. µs: less is better; /s: more."
            );
        }
    }
}
