//! A soak test: processes and threads take locks on real servers while nodes and processes fail at
//! random; afterwards every holder's belief is compared with every other's.
//!
//! ```text
//! cargo run --release --example soak -- --seconds 20
//! ```
//!
//! | option | |
//! | --- | --- |
//! | `--seconds S` | how long there are faults (default 20); a few more seconds are for healing |
//! | `--seed X` | draws the same faults and the same work again; their timing is the machine's |
//! | `--nodes N` | default 3 |
//! | `--processes P`, `--threads T` | default 3 and 4 |
//! | `--wrong-quorum` | each process asks nodes of its own, so that majorities need not meet |
//! | `--lose-data` | nodes are also killed and restarted empty, which Redlock does not survive |
//! | `--restart-guard` | all clients have the restart guard, with which it does |
//! | `--slew PPM` | the wall clocks of nodes gain so many parts of a million, and lose as many on each second node; needs a C compiler |
//! | `--fair` | the client that has waited longest is next |
//! | `--calm N` | locks and faults are N times as far apart |
//! | `--record FILE` | this is a piece of a long soak: a row a minute is added to the file, and the next piece goes on with it |
//! | `--row-every S` | a row in S seconds (default 60) |
//!
//! `soak failovers`: see `soak/failovers.rs`. It has the last three options, too.
//!
//! `--wrong-quorum`, and `--lose-data` by itself, show that it can fail. The exit code is 0 if all is well, 1 if anything is violated,
//! 2 if it was called wrongly.
//!
//! **Faults**, none of which loses data: a node is stopped, its connections are cut, refused, made
//! slow, stalled in one direction or forgotten, its clients are paused (`CLIENT PAUSE`, also beyond
//! the longest ttl); a process is killed with `kill -9` and replaced, or stopped for a while. Mostly a minority
//! of the nodes is struck, sometimes all of them.
//!
//! **Checked**:
//! - no two belief intervals on one resource overlap; what belief is stands in `soak/check.rs`;
//! - no lock is reported lost before its deadline;
//! - no key without a ttl, or with a longer one than any client asked for, on any node at any look;
//! - while a majority of the nodes is healthy (for [`HEALING`] at least), each process makes progress;
//! - once all is healed, neither failed attempts nor releases leave a key behind, and once everybody
//!   has left, nothing at all is left;
//! - no process panics, hangs, or gets an error that it cannot get;
//! - with `--restart-guard`: no clock that is slewed by less than 0.2 %, and no pause, is taken for a clock that was set forward; and
//!   with `--slew`, one that gains more is;
//! - with `--record`: what the first process, which is never killed then, has allocated, its threads and its descriptors do not
//!   grow (`soak/record.rs`).
//!
//! The wall clock must not be set meanwhile: a lock would rightly be lost early.

#[path = "soak/check.rs"]
mod check;
#[path = "soak/client.rs"]
mod client;
#[path = "soak/failovers.rs"]
mod failovers;
#[path = "soak/groups.rs"]
mod groups;
#[path = "soak/journals.rs"]
mod journals;
#[path = "soak/live.rs"]
mod live;
#[path = "soak/record.rs"]
mod record;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use check::{Findings, Outage, Sight, Span};
use journals::Journals;
use record::{Record, Seen};
use support::clocks::{Clock, Clocks};
use support::relay::Relay;
use support::{Random, Server, ms};

/// Few, so that they are fought over.
const RESOURCES: u64 = 8;
/// The queues beside locks are kept for 5 s and three of the longest pauses, which are 1 s here.
const LONGEST_QUEUE: Duration = Duration::from_secs(8);
const LONGEST_TTL: Duration = Duration::from_secs(2);
/// A node that is well again votes within this time.
const HEALING: Duration = Duration::from_secs(1);
/// With the restart guard: from its start on a node gives no votes for the longest ttl and two seconds more.
const SITTING_OUT: Duration = Duration::from_secs(4);
/// The longest time in which a process may acquire nothing while a majority is healthy: killed and leaking holders
/// may have taken every resource for the longest ttl; the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// A thread that does nothing for this long hangs: an acquire waits for [`WAIT`], a lock is held for
/// one and a half times the longest ttl, and a process may be stopped meanwhile.
const HANG: Duration = Duration::from_secs(12);
/// On healthy nodes an undo and a release are carried out within this time; most at once.
const UNDOING: Duration = Duration::from_millis(600);
/// A clock that gains as many parts of a million counts as one that was set forward.
const FAST: i64 = 2000;
/// The longest wait of an acquire.
const WAIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--client") {
        client::run(&args[1..]);
        return ExitCode::SUCCESS;
    }
    if args.first().is_some_and(|arg| arg == "failovers") {
        return failovers::run(&args[1..]);
    }
    match Plan::parse(&args) {
        Ok(plan) => Soak::new(plan).run(),
        Err(text) => {
            eprintln!("{text}; see the top of examples/soak.rs");
            ExitCode::from(2)
        }
    }
}

/// The monotonic clock that all processes of this machine share.
fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).expect("the clock counts from the start");
    Duration::from_secs(seconds) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// A generator of its own for each user, from the one seed.
fn random(seed: u64, parts: [u64; 3]) -> Random {
    let mixed = parts.iter().fold(seed, |seed, part| {
        let mut mixed = seed.wrapping_add(*part).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    });
    Random(mixed.max(1))
}

struct Plan {
    seconds: u64,
    seed: u64,
    nodes: usize,
    processes: usize,
    threads: usize,
    wrong_quorum: bool,
    lose_data: bool,
    restart_guard: bool,
    /// In parts of a million.
    slew: i64,
    fair: bool,
    calm: u64,
    record: Option<PathBuf>,
    row_every: Duration,
}

impl Plan {
    fn parse(args: &[String]) -> Result<Plan, String> {
        let mut plan = Plan {
            seconds: 20,
            seed: u64::from(now().subsec_nanos()),
            nodes: 3,
            processes: 3,
            threads: 4,
            wrong_quorum: false,
            lose_data: false,
            restart_guard: false,
            slew: 0,
            fair: false,
            calm: 1,
            record: None,
            row_every: Duration::from_secs(60),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = |max: u64| -> Result<u64, String> {
                let value = args.next().and_then(|value| value.parse().ok());
                value
                    .filter(|value| *value <= max)
                    .ok_or(format!("{arg} needs a number of at most {max}"))
            };
            let mut count = || -> Result<usize, String> {
                let value = number(64)?;
                if value == 0 {
                    return Err(format!("{arg} cannot be zero"));
                }
                usize::try_from(value).map_err(|error| error.to_string())
            };
            match arg.as_str() {
                "--nodes" => plan.nodes = count()?,
                "--processes" => plan.processes = count()?,
                "--threads" => plan.threads = count()?,
                "--seconds" => plan.seconds = number(1_000_000)?,
                "--seed" => plan.seed = number(u64::MAX)?,
                "--wrong-quorum" => plan.wrong_quorum = true,
                "--lose-data" => plan.lose_data = true,
                "--restart-guard" => plan.restart_guard = true,
                "--slew" => plan.slew = number(100_000)?.cast_signed(),
                "--fair" => plan.fair = true,
                "--calm" => plan.calm = number(1000)?.max(1),
                "--record" => plan.record = args.next().map(PathBuf::from),
                "--row-every" => plan.row_every = Duration::from_secs(number(1000)?.max(1)),
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        if plan.wrong_quorum && plan.nodes.min(plan.processes) < 2 {
            return Err("--wrong-quorum needs two nodes and two processes".into());
        }
        Ok(plan)
    }

    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "seed {}, {} nodes, {} processes of {} threads, faults for {} s",
            self.seed, self.nodes, self.processes, self.threads, self.seconds,
        );
        let switches = [
            (self.wrong_quorum, ", wrong quorum"),
            (self.lose_data, ", data is lost"),
            (self.restart_guard, ", restart guard"),
            (self.fair, ", fair"),
        ];
        if self.slew != 0 {
            text += &format!(", clocks slewed by {} ppm", self.slew);
        }
        text.extend(switches.iter().filter(|(on, _)| *on).map(|(_, text)| *text));
        text
    }
}

/// What can happen to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Stop,
    Cut,
    Refuse,
    Delay,
    StallUp,
    StallDown,
    Forget,
    Pause,
    PauseWrites,
    Restart,
}

impl Fault {
    const WITHOUT_LOSS: [Fault; 9] = [
        Fault::Stop,
        Fault::Cut,
        Fault::Refuse,
        Fault::Delay,
        Fault::StallUp,
        Fault::StallDown,
        Fault::Forget,
        Fault::Pause,
        Fault::PauseWrites,
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::Stop => "stopped",
            Fault::Cut => "cut",
            Fault::Refuse => "refused",
            Fault::Delay => "delayed",
            Fault::StallUp => "stalled upwards",
            Fault::StallDown => "stalled downwards",
            Fault::Forget => "forgotten",
            Fault::Pause => "clients paused",
            Fault::PauseWrites => "writes paused",
            Fault::Restart => "restarted empty",
        }
    }
}

struct Node {
    server: Server,
    /// Its wall clock, if that is not this machine's.
    _clock: Option<Clock>,
    relay: Relay,
    /// The fault, since when, until when.
    ill: Option<(Fault, Duration, Duration)>,
    /// When it was last restarted empty.
    restarted: Option<Duration>,
}

impl Node {
    /// `clocks`: where its clock comes from, if it has one of its own, which gains `slew` parts of a million.
    fn start(number: usize, clocks: Option<&Clocks>, slew: i64) -> Node {
        let own = clocks.map(|clocks| clocks.server(&number.to_string()));
        let (server, clock) = match own {
            Some((server, clock)) => {
                clock.slew(slew, None);
                (server, Some(clock))
            }
            None => (Server::start(), None),
        };
        Node {
            relay: Relay::to(server.port()),
            server,
            _clock: clock,
            ill: None,
            restarted: None,
        }
    }

    fn strike(&mut self, fault: Fault, time: Duration, random: &mut Random) {
        let since = now();
        match fault {
            Fault::Stop => self.server.stop(),
            Fault::Cut => self.relay.cut(),
            Fault::Refuse => self.relay.refuse(),
            Fault::Delay => {
                // Half of them still in time.
                let most = if random.below(2) == 0 { 22 } else { 150 };
                let (up, down) = (ms(random.below(most)), ms(random.below(most)));
                self.relay.set(|policy| {
                    policy.up.delay = up;
                    policy.down.delay = down;
                });
            }
            Fault::StallUp => self.relay.set(|policy| policy.up.stalled = true),
            Fault::StallDown => self.relay.set(|policy| policy.down.stalled = true),
            Fault::Forget => self.relay.forget(),
            Fault::Pause | Fault::PauseWrites => {
                let time = time.as_millis().to_string();
                let what = if fault == Fault::Pause {
                    "ALL"
                } else {
                    "WRITE"
                };
                self.server.command(&["CLIENT", "PAUSE", &time, what]);
            }
            Fault::Restart => {
                self.relay.cut();
                self.server.restart();
                self.restarted = Some(now());
            }
        }
        let time = match fault {
            Fault::Cut | Fault::Forget | Fault::Restart => Duration::ZERO,
            _ => time,
        };
        self.ill = Some((fault, since, now() + time));
    }

    fn heal(&mut self, fault: Fault) {
        match fault {
            Fault::Stop => self.server.resume(),
            _ => self.relay.heal(),
        }
    }

    /// Whether it answers clients that do not come through the relay.
    fn answers(&self) -> bool {
        !matches!(
            self.ill,
            Some((Fault::Stop | Fault::Pause | Fault::PauseWrites, ..))
        )
    }

    fn keys(&self) -> Vec<(String, Vec<u8>)> {
        lock_keys(&self.server)
    }

    /// The keys without a ttl, and those with one that no client asked for.
    fn bad_keys(&self) -> Vec<String> {
        const SCRIPT: &str = "local bad = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
            local ttl, longest = redis.call('PTTL', key), tonumber(ARGV[1]) \
            if string.sub(key, -2) == ':w' then longest = tonumber(ARGV[2]) end \
            if key ~= 'redlock:witness' and (ttl == -1 or ttl > longest) then bad[#bad + 1] = key .. ' has ' .. ttl end \
            end return bad";
        let [longest, queue] = [LONGEST_TTL, LONGEST_QUEUE].map(|ttl| ttl.as_millis().to_string());
        let value = self
            .server
            .command(&["EVAL", SCRIPT, "0", &longest, &queue]);
        redis::from_redis_value(value).expect("a list")
    }
}

/// The keys of locks and their tokens. (Beside them are queues of waiters and reservations, and the key by which the restart guard knows a server.)
const KEYS: &str = "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
    if string.sub(key, -2) ~= ':w' and string.sub(key, -3) ~= ':wt' and key ~= 'redlock:witness' then \
    found[#found + 1] = key found[#found + 1] = string.sub(redis.call('GET', key) or '', 1, 20) end end return found";

fn lock_keys(server: &Server) -> Vec<(String, Vec<u8>)> {
    let value = server.command(&["EVAL", KEYS, "0"]);
    redis::from_redis_value(value).expect("a list of pairs")
}

struct Process {
    child: Child,
    slot: usize,
    generation: u64,
    started: Duration,
    /// Since when it is stopped, until when.
    stopped: Option<(Duration, Duration)>,
    /// When it was stopped, with the time to recover.
    pauses: Vec<Outage>,
}

/// When a process could work, as far as it was up to itself.
struct Life {
    name: String,
    windows: Vec<(Duration, Duration)>,
}

impl Process {
    fn life(&self, end: Duration) -> Life {
        let mut pauses = self.pauses.clone();
        pauses.extend(self.stopped.map(|(from, _)| Outage {
            node: 0,
            from,
            to: end,
        }));
        // It has to connect first.
        let from = (self.started + HEALING).min(end);
        Life {
            name: process_name(self.slot, self.generation),
            windows: check::healthy(1, 1, &pauses, from, end),
        }
    }
}

impl Drop for Process {
    /// Also when it is stopped.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Soak {
    plan: Plan,
    random: Random,
    nodes: Vec<Node>,
    _clocks: Option<Clocks>,
    processes: Vec<Process>,
    /// Of those that were killed.
    lives: Vec<Life>,
    journals: Journals,
    outages: Vec<Outage>,
    /// Keys on nodes when all was healed, by node, name and token.
    sights: BTreeMap<(usize, String), Sight>,
    counts: BTreeMap<&'static str, u64>,
    checks: u64,
    violations: Vec<String>,
    started: Duration,
    said: Duration,
    record: Option<Record>,
}

impl Soak {
    fn new(plan: Plan) -> Soak {
        println!("soak: {}", plan.describe());
        let clocks = (plan.slew != 0).then(|| {
            Clocks::build("--slew").expect("a C compiler, cc, for clocks that are slewed")
        });
        let node = |number: usize| {
            let slew = if number.is_multiple_of(2) {
                plan.slew
            } else {
                -plan.slew
            };
            Node::start(number, clocks.as_ref(), slew)
        };
        let nodes: Vec<Node> = (0..plan.nodes).map(node).collect();
        let open = |path| open_record(path, plan.row_every, "nodes", &plan.describe());
        Soak {
            random: random(plan.seed, [0; 3]),
            record: plan.record.as_deref().map(open),
            nodes,
            _clocks: clocks,
            processes: Vec::new(),
            lives: Vec::new(),
            journals: Journals::new(),
            outages: Vec::new(),
            sights: BTreeMap::new(),
            counts: BTreeMap::new(),
            checks: 0,
            violations: Vec::new(),
            started: now(),
            said: now(),
            plan,
        }
    }

    fn run(mut self) -> ExitCode {
        for slot in 0..self.plan.processes {
            let process = self.start_process(slot, 0);
            self.processes.push(process);
        }
        let end = self.started + Duration::from_secs(self.plan.seconds);
        let (mut next_fault, mut next_blow) = (now() + ms(500), now() + ms(1500));
        let mut next_check = now();
        while now() < end {
            self.recover();
            if now() >= next_fault {
                self.strike_nodes();
                // Mostly in quick succession, sometimes with time to get well between.
                let calm = if self.random.below(6) == 0 { 3000 } else { 0 };
                let pause = 30 + calm + self.random.below(500);
                next_fault = now() + ms(pause * self.plan.calm);
            }
            if now() >= next_blow {
                self.strike_process();
                let pause = 300 + self.random.below(2500);
                next_blow = now() + ms(pause * self.plan.calm);
            }
            if now() >= next_check {
                self.check_keys();
                next_check = now() + ms(200);
            }
            self.tell();
            std::thread::sleep(ms(3));
        }
        self.quiet();
        self.add_row();
        let worked_until = now();
        self.leave();
        self.conclude(worked_until)
    }

    fn start_process(&self, slot: usize, generation: u64) -> Process {
        let urls: Vec<String> = self.nodes.iter().map(|node| node.relay.url()).collect();
        let urls = if self.plan.wrong_quorum {
            // Disjoint for neighbours.
            let share = (urls.len() / 2).max(1);
            let from = slot * share;
            (from..from + share)
                .map(|at| urls[at % urls.len()].clone())
                .collect()
        } else {
            urls
        };
        let program = std::env::current_exe().expect("a path to this program");
        let child = support::watched(&mut Command::new(program))
            .arg("--client")
            .arg(self.journals.dir())
            .args([slot.to_string(), generation.to_string()])
            .args([self.plan.seed.to_string(), self.plan.threads.to_string()])
            .arg(u8::from(self.plan.restart_guard).to_string())
            .arg(u8::from(self.plan.fair).to_string())
            .args([&self.plan.calm.to_string(), "together"])
            .args(urls)
            .stdin(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        Process {
            child,
            slot,
            generation,
            started: now(),
            stopped: None,
            pauses: Vec::new(),
        }
    }

    fn replace_process(&mut self, slot: usize) {
        let next = self.start_process(slot, self.processes[slot].generation + 1);
        let old = std::mem::replace(&mut self.processes[slot], next);
        self.lives.push(old.life(now()));
    }

    /// Ends the faults whose time is over.
    fn recover(&mut self) {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if let Some((fault, since, until)) = node.ill
                && now() >= until
            {
                node.heal(fault);
                node.ill = None;
                let sits_out = fault == Fault::Restart && self.plan.restart_guard;
                let sits_out = if sits_out {
                    SITTING_OUT
                } else {
                    Duration::ZERO
                };
                self.outages.push(Outage {
                    node: number,
                    from: since,
                    to: now() + HEALING + sits_out,
                });
            }
        }
        for process in &mut self.processes {
            if let Some((from, until)) = process.stopped
                && now() >= until
            {
                signal(&process.child, libc::SIGCONT);
                process.stopped = None;
                process.pauses.push(Outage {
                    node: 0,
                    from,
                    to: now() + HEALING,
                });
            }
        }
        for slot in 0..self.processes.len() {
            let process = &mut self.processes[slot];
            if let Some(status) = process.child.try_wait().expect("a child of ours") {
                self.violate(format!("process {slot} ended by itself: {status}"));
                self.replace_process(slot);
            }
        }
    }

    fn strike_nodes(&mut self) {
        let all = self.plan.nodes;
        let cap = match self.random.below(5) {
            0 => all,
            // A single node has no minority.
            1 if all == 1 => all,
            _ => all - self.plan.quorum(),
        };
        if self.plan.lose_data && self.may_restart() {
            let at = self.pick(all);
            if self.nodes[at].ill.is_none() {
                self.strike_node(at, Fault::Restart);
            }
        }
        let well = |nodes: &[Node]| nodes.iter().filter(|node| node.ill.is_none()).count();
        while all - well(&self.nodes) < cap {
            let fault = Fault::WITHOUT_LOSS[self.pick(Fault::WITHOUT_LOSS.len())];
            let mut at = self.pick(all);
            while self.nodes[at].ill.is_some() {
                at = (at + 1) % all;
            }
            self.strike_node(at, fault);
            if self.random.below(2) == 0 {
                return;
            }
        }
    }

    /// With the restart guard mostly a minority sits out, or nothing would be locked.
    fn may_restart(&mut self) -> bool {
        if !self.plan.restart_guard || self.random.below(60) == 0 {
            return true;
        }
        let lately = |node: &&Node| {
            node.restarted
                .is_some_and(|at| now() < at + SITTING_OUT + HEALING)
        };
        let sitting_out = self.nodes.iter().filter(lately).count();
        sitting_out < self.plan.nodes - self.plan.quorum()
    }

    fn strike_node(&mut self, at: usize, fault: Fault) {
        let time = match self.random.below(6) {
            0..=2 => 20 + self.random.below(300),
            3..=4 => 300 + self.random.below(1200),
            // Beyond the longest ttl.
            _ => 2000 + self.random.below(1500),
        };
        self.nodes[at].strike(fault, ms(time), &mut self.random);
        *self.counts.entry(fault.name()).or_default() += 1;
    }

    fn strike_process(&mut self) {
        let slot = self.pick(self.plan.processes);
        let process = &mut self.processes[slot];
        let stays = slot == 0 && self.record.is_some();
        if stays && process.stopped.is_some() {
            return;
        }
        if process.stopped.is_none() && (stays || self.random.below(2) == 0) {
            let from = now();
            signal(&process.child, libc::SIGSTOP);
            let most = if self.random.below(2) == 0 { 300 } else { 2500 };
            process.stopped = Some((from, from + ms(30 + self.random.below(most))));
            *self.counts.entry("process stopped").or_default() += 1;
        } else {
            process.child.kill().expect("a child of ours");
            self.replace_process(slot);
            *self.counts.entry("process killed").or_default() += 1;
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).expect("small");
        usize::try_from(self.random.below(count)).expect("small")
    }

    fn check_keys(&mut self) {
        for number in 0..self.nodes.len() {
            let node = &self.nodes[number];
            if node.answers() {
                self.checks += 1;
                for key in node.bad_keys() {
                    let text = format!("node {number}: {key} ms to live");
                    self.violate(text);
                }
            }
        }
    }

    /// Remembers which keys are on which nodes.
    fn see_keys(&mut self) {
        for (number, node) in self.nodes.iter().enumerate() {
            for (key, token) in node.keys() {
                let token = hex(&token);
                let sights = self.sights.entry((number, format!("{key} {token}")));
                sights
                    .and_modify(|sight| sight.last = now())
                    .or_insert_with(|| Sight {
                        token,
                        first: now(),
                        last: now(),
                    });
            }
        }
    }

    fn violate(&mut self, text: String) {
        println!("VIOLATION: {text}");
        self.violations.push(text);
    }

    /// Threads that have not done anything for a time in which they cannot have waited for anything.
    fn check_hangs(&mut self) {
        let mut hung = Vec::new();
        for (slot, process) in self.processes.iter().enumerate() {
            let name = process_name(slot, process.generation);
            let silent = self.journals.silent(&name, HANG);
            let said = |thread| format!("{thread} has done nothing for {HANG:?}");
            hung.extend(silent.into_iter().map(said));
        }
        for text in hung {
            if !self.violations.contains(&text) {
                self.violate(text);
            }
        }
    }

    /// A row of the record when it is due, and a line of progress from time to time.
    fn tell(&mut self) {
        if self
            .record
            .as_ref()
            .is_some_and(|record| record.is_due(now()))
        {
            self.add_row();
        }
        if now() < self.said + Duration::from_secs(2 * self.plan.calm) {
            return;
        }
        self.said = now();
        self.journals.read();
        self.check_hangs();
        let ill = self.nodes.iter().filter_map(|node| node.ill);
        let ill: Vec<&str> = ill.map(|(fault, ..)| fault.name()).collect();
        println!(
            "{:5.0} s {:8} acquired {:5} faults   now: {}",
            (now() - self.started).as_secs_f64(),
            self.journals.acquired(),
            self.counts.values().sum::<u64>(),
            if ill.is_empty() {
                "all well".to_owned()
            } else {
                ill.join(", ")
            },
        );
    }

    fn add_row(&mut self) {
        let Some(record) = &mut self.record else {
            return;
        };
        self.journals.read();
        let answering = self.nodes.iter().filter(|node| node.answers());
        let faults = self.counts.iter();
        let seen = Seen {
            acquired: self.journals.acquired(),
            live: self.journals.take_live(&process_name(0, 0)),
            overlaps: check::overlaps(&self.journals.findings.spans).len(),
            keys: answering.map(|node| node.keys().len()).sum(),
            faults: faults
                .map(|(what, count)| ((*what).to_owned(), *count))
                .collect(),
        };
        let added = record.add(now(), self.processes[0].child.id(), seen);
        added.expect("the record can be written");
    }

    /// All faults end; the work goes on until the longest ttl has passed, so that nothing is left of
    /// processes that were killed and of locks that were leaked.
    fn quiet(&mut self) {
        while self.nodes.iter().any(|node| node.ill.is_some()) {
            for node in &mut self.nodes {
                if let Some((fault, since, until)) = node.ill
                    // A pause cannot be ended early: its end too is a command of a client.
                    && !matches!(fault, Fault::Pause | Fault::PauseWrites)
                {
                    node.ill = Some((fault, since, until.min(now())));
                }
            }
            self.recover();
            std::thread::sleep(ms(3));
        }
        for process in &mut self.processes {
            process.stopped = process
                .stopped
                .map(|(from, until)| (from, until.min(now())));
            let stdin = process.child.stdin.as_mut().expect("piped");
            let _ = stdin.write_all(b"t");
        }
        // A lock that was just being acquired may be leaked yet.
        let gone = now() + LONGEST_TTL + HEALING;
        while now() < gone + LONGEST_TTL + HEALING {
            self.recover();
            self.check_keys();
            if now() > gone {
                self.see_keys();
            }
            self.tell();
            std::thread::sleep(ms(50));
        }
    }

    /// Everybody leaves, and takes everything along.
    fn leave(&mut self) {
        for process in &mut self.processes {
            drop(process.child.stdin.take());
        }
        let end = now() + Duration::from_secs(15);
        for slot in 0..self.processes.len() {
            let child = &mut self.processes[slot].child;
            let mut status = None;
            while status.is_none() && now() < end {
                std::thread::sleep(ms(3));
                status = child.try_wait().expect("a child of ours");
            }
            match status {
                Some(status) if status.success() => {}
                Some(status) => self.violate(format!("process {slot} ended with {status}")),
                None => self.violate(format!("process {slot} does not end")),
            }
        }
    }

    fn describe(&self, span: &Span) -> String {
        let at = |time: Duration| time.saturating_sub(self.started).as_secs_f64();
        format!(
            "{} from {:.6} to {:.6} s",
            span.holder,
            at(span.from),
            at(span.to)
        )
    }

    /// How many overlaps there are.
    fn judge_beliefs(&mut self, findings: &Findings) -> usize {
        let overlaps = check::overlaps(&findings.spans);
        for overlap in &overlaps {
            self.violations.push(format!(
                "{}: {} and {}",
                overlap.first.resource,
                self.describe(&overlap.first),
                self.describe(&overlap.second)
            ));
        }
        overlaps.len()
    }

    /// For how long a majority was healthy, and the longest time in it in which a process acquired
    /// nothing.
    fn judge_progress(&mut self, findings: &Findings, end: Duration) -> (Duration, Duration) {
        let (nodes, quorum) = (self.plan.nodes, self.plan.quorum());
        let healthy = check::healthy(nodes, quorum, &self.outages, self.started, end);
        let survivors = self.processes.iter();
        self.lives
            .extend(survivors.map(|process| process.life(end)));
        let mut longest = Duration::ZERO;
        for life in &self.lives {
            let threads = findings.taken.iter();
            let taken = threads.filter(|(thread, _)| thread.starts_with(&life.name));
            let taken: Vec<Duration> = taken.flat_map(|(_, taken)| taken.clone()).collect();
            let windows = check::both(&healthy, &life.windows);
            let (time, since) = check::longest_without(&taken, &windows);
            longest = longest.max(time);
            // Nodes whose clocks are fast grant nothing to those who notice it.
            if time > PATIENCE && self.plan.slew < FAST {
                self.violations.push(format!(
                    "{}acquired nothing for {:.3} s from {:.3} s on, with a majority healthy",
                    life.name,
                    time.as_secs_f64(),
                    since.saturating_sub(self.started).as_secs_f64()
                ));
            }
        }
        (healthy.iter().map(|(from, to)| *to - *from).sum(), longest)
    }

    /// How many keys were left by clients that should have deleted them.
    fn judge_sights(&mut self, findings: &Findings) -> usize {
        let mut orphans = 0;
        for ((node, key), sight) in &self.sights {
            if check::is_orphan(sight, &findings.ended, UNDOING) {
                let whose = match findings.ended.get(&sight.token) {
                    None => "a failed attempt",
                    Some(_) => "a lock that was released",
                };
                self.violations.push(format!(
                    "node {node} kept the key and token {key} of {whose}"
                ));
                orphans += 1;
            }
        }
        orphans
    }

    /// How often a clock was taken for one that was set forward.
    fn judge_clocks(&mut self, findings: &Findings) -> u64 {
        let alarms = findings.notes.get(client::ALARM).copied().unwrap_or(0);
        // A clock counts as set forward once it has gained 10 ms more than FAST allows.
        let over = (self.plan.slew - FAST).max(0);
        let seconds = i64::try_from(self.plan.seconds).unwrap_or(i64::MAX);
        let gains_much = over.saturating_mul(seconds) > 20_000;
        let wrong = match self.plan.restart_guard && over > 0 {
            true => gains_much && alarms == 0,
            false => alarms > 0,
        };
        if wrong {
            self.violations.push(format!(
                "{alarms} times a clock counted as set forward that gains {} ppm",
                self.plan.slew
            ));
        }
        alarms
    }

    fn conclude(mut self, worked_until: Duration) -> ExitCode {
        let ended = now();
        let left: usize = self.nodes.iter().map(|node| node.keys().len()).sum();
        let mut later = left;
        while later > 0 && now() < ended + HEALING {
            std::thread::sleep(ms(20));
            later = self.nodes.iter().map(|node| node.keys().len()).sum();
        }
        if later > 0 {
            self.violate(format!("{later} keys are left {HEALING:?} after the end"));
        }

        let findings = self.journals.close();
        let acquired: usize = findings.taken.values().map(Vec::len).sum();
        let overlaps = self.judge_beliefs(&findings);
        self.violations.extend(findings.lost_early.iter().cloned());
        self.violations.extend(findings.wrong.iter().cloned());

        let (healthy, longest) = self.judge_progress(&findings, worked_until);
        let orphans = self.judge_sights(&findings);
        let alarms = self.judge_clocks(&findings);

        let list = |counts: Vec<(&str, u64)>| {
            let texts = counts.iter().map(|(what, count)| format!("{what} {count}"));
            texts.collect::<Vec<_>>().join(", ")
        };
        let beliefs = findings.spans.iter().filter(|span| span.from < span.to);
        let calls = findings.notes.iter();
        let calls = calls.map(|(what, count)| (what.as_str(), *count)).collect();
        let faults: u64 = self.counts.values().sum();
        let kinds = self.counts.iter().map(|(what, count)| (*what, *count));
        let whole = (worked_until - self.started).as_secs_f64();
        println!(
            "\nacquired     {acquired} locks, {} belief intervals",
            beliefs.count()
        );
        println!("calls        {}", list(calls));
        println!("faults       {faults}: {}", list(kinds.collect()));
        println!("overlaps     {overlaps}");
        println!("lost early   {}", findings.lost_early.len());
        println!("clocks       {alarms} times one counted as set forward");
        println!("key checks   {}", self.checks);
        println!(
            "orphans      {orphans} of {} keys seen on healthy nodes",
            self.sights.len()
        );
        println!("left behind  {left} keys at once, {later} within {HEALING:?}");
        println!(
            "progress     a majority was healthy for {:.0} % of {whole:.0} s; longest time in which a process acquired nothing then {:.3} s, limit {} s",
            100.0 * healthy.as_secs_f64() / whole,
            longest.as_secs_f64(),
            PATIENCE.as_secs(),
        );
        if let Some(record) = self.record.take() {
            let grown = record.end(self.violations.len());
            self.violations
                .extend(grown.expect("the record can be written"));
        }
        if self.violations.is_empty() {
            println!("no violation");
            return ExitCode::SUCCESS;
        }
        println!("\n{} VIOLATIONS", self.violations.len());
        for violation in self.violations.iter().take(20) {
            println!("  {violation}");
        }
        println!(
            "records kept in {}, seed {}",
            self.journals.dir().display(),
            self.plan.seed
        );
        self.journals.keep();
        ExitCode::FAILURE
    }
}

/// Begins a piece in the record, with the servers' version, how they are reached and what they are.
fn open_record(path: &Path, every: Duration, of: &str, piece: &str) -> Record {
    let version = Command::new(support::redis_server())
        .arg("--version")
        .output();
    let version = version.expect("a server that was started").stdout;
    let version = String::from_utf8_lossy(&version);
    let version: Vec<&str> = version.split(' ').take(3).collect();
    let way = if support::over_tls() { "TLS" } else { "TCP" };
    let piece = format!("{of} of {} over {way}, {piece}", version.join(" "));
    Record::open(path, now(), every, &piece)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the names of a process's journals begin with.
fn process_name(slot: impl Display, generation: u64) -> String {
    format!("process {slot}.{generation} ")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).expect("a process id");
    // SAFETY: plain system call on a child of ours that was not waited for.
    unsafe { libc::kill(pid, signal) };
}
