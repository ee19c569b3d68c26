//! From hand to hand: 8 threads, or 8 processes, fair ones or not, want one key; each holds it for 1 ms and pauses for 3 ms.
//!
//! The gap is the time from the beginning of a release to the next acquisition by any contender. Requests are
//! reads of all servers, per acquisition. Shares: the acquisitions of the one that had most, and of the one
//! that had fewest.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use redlock_sync::Redlock;

use super::support::{Server, TTL, ms, urls, watched};
use super::{Bench, patient, patient_options, quantile};

const HOLD: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(3);
const CONTENDERS: usize = 8;
/// Set in a process that contends: the nodes and for how long.
const WORKER: &str = "BENCH_WORKER";

/// When it was acquired, and when its release began: nanoseconds of a clock that all processes share.
type Turn = (u64, u64);

pub(crate) fn run(bench: &mut Bench) {
    let time = if bench.rounds > 5 { ms(5000) } else { ms(1000) };
    if !bench.json {
        println!(
            "\ncontended: {CONTENDERS} want one key, hold it for {HOLD:?} and pause for {PAUSE:?}; {time:?} each"
        );
        println!(
            "{:<18}{:>3}  {:>10}{:>10}{:>10}  {:>12}  {:>12}",
            "", "N", "mean gap", "p50", "p99", "requests", "shares"
        );
    }
    for nodes in [1, 5] {
        let servers = Server::several(nodes);
        for (who, contend) in [
            (
                "threads",
                threads as fn(&[Server], Duration) -> Vec<Vec<Turn>>,
            ),
            ("processes", |servers, time| processes(servers, time, false)),
            ("fair processes", |servers, time| {
                processes(servers, time, true)
            }),
        ] {
            // The first operations connect.
            contend(&servers, ms(300));
            let before = reads(&servers);
            let turns = contend(&servers, time);
            // Asking is a read itself.
            let reads = reads(&servers) - before - nodes as u64;
            report(bench, who, nodes, reads, &turns);
        }
    }
}

/// In a process that contends: works, and prints its turns.
pub(crate) fn worker() -> bool {
    let Ok(work) = std::env::var(WORKER) else {
        return false;
    };
    let mut words = work.split(' ').map(str::to_owned);
    let [time, fair] = [(); 2].map(|()| words.next().unwrap());
    let fair = patient_options().fair(fair == "true");
    let redlock = Redlock::new(words.collect::<Vec<_>>()).unwrap();
    let redlock = redlock.with_options(fair).unwrap();
    super::pair(&redlock, &format!("own {}", std::process::id()));
    begin();
    for (acquired, released) in contend(&redlock, ms(time.parse().unwrap())) {
        println!("{acquired} {released}");
    }
    true
}

/// The process is ready, and waits for the others.
pub(crate) fn begin() {
    println!("ready");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).unwrap();
}

fn contend(redlock: &Redlock, time: Duration) -> Vec<Turn> {
    let start = Instant::now();
    let mut turns = Vec::new();
    while start.elapsed() < time {
        let lock = redlock.acquire("a", TTL).unwrap();
        let acquired = clock();
        std::thread::sleep(HOLD);
        turns.push((acquired, clock()));
        lock.release().unwrap();
        std::thread::sleep(PAUSE);
    }
    turns
}

fn threads(servers: &[Server], time: Duration) -> Vec<Vec<Turn>> {
    let redlock = patient(urls(servers));
    let ready = Barrier::new(CONTENDERS);
    std::thread::scope(|scope| {
        let work = |_| {
            scope.spawn(|| {
                ready.wait();
                contend(&redlock, time)
            })
        };
        let workers: Vec<_> = (0..CONTENDERS).map(work).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join().unwrap();
        workers.into_iter().map(join).collect()
    })
}

fn processes(servers: &[Server], time: Duration, fair: bool) -> Vec<Vec<Turn>> {
    let work = format!("{} {fair} {}", time.as_millis(), urls(servers).join(" "));
    let turn = |line: &String| {
        let (acquired, released) = line.split_once(' ').unwrap();
        (acquired.parse().unwrap(), released.parse().unwrap())
    };
    let lines = children(WORKER, &[(); CONTENDERS].map(|()| work.clone()), || {});
    let turns = lines.iter().map(|lines| lines.iter().map(turn).collect());
    turns.collect()
}

/// Processes of this program that begin at the same time, each with its work in that variable: the lines that they print.
pub(crate) fn children(variable: &str, works: &[String], ready: impl FnOnce()) -> Vec<Vec<String>> {
    let start = |work| {
        watched(&mut Command::new(std::env::current_exe().unwrap()))
            .env(variable, work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = works.iter().map(start).collect();
    let outputs = children
        .iter_mut()
        .map(|child| child.stdout.take().unwrap());
    let mut outputs: Vec<_> = outputs.map(BufReader::new).collect();
    for output in &mut outputs {
        output.read_line(&mut String::new()).unwrap();
    }
    ready();
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    let lines = outputs.into_iter();
    let lines = lines.map(|output| output.lines().map(Result::unwrap).collect());
    let lines = lines.collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    lines
}

fn report(bench: &mut Bench, who: &str, nodes: usize, reads: u64, turns: &[Vec<Turn>]) {
    let shares: Vec<usize> = turns.iter().map(Vec::len).collect();
    let mut all: Vec<Turn> = turns.iter().flatten().copied().collect();
    all.sort_unstable();
    let gap = |pair: &[Turn]| (pair[1].0.saturating_sub(pair[0].1)) as f64 / 1e3;
    let gaps: Vec<f64> = all.windows(2).map(gap).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&gaps, share));
    let requests = reads as f64 / all.len() as f64;
    let (most, fewest) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
    if bench.json {
        let comma = if bench.rows > 0 { "," } else { "" };
        println!(
            "{comma}{{\"scenario\":\"contended\",\"case\":{who:?},\"nodes\":{nodes},\"mean_gap_us\":{mean:.1},\
             \"p50_us\":{p50:.1},\"p99_us\":{p99:.1},\"requests\":{requests:.2},\"most\":{most},\"fewest\":{fewest}}}"
        );
    } else {
        println!(
            "{:<18}{nodes:>3}  {mean:>7.0} µs{p50:>7.0} µs{p99:>7.0} µs  {requests:>12.2}  {:>12}",
            format!("{CONTENDERS} {who}"),
            format!("{most}/{fewest}"),
        );
    }
    bench.rows += 1;
}

/// What the servers have read so far, over all connections.
pub(crate) fn reads(servers: &[Server]) -> u64 {
    let read = |server: &Server| server.info("stats", "total_reads_processed");
    servers
        .iter()
        .map(|server| read(server).parse::<u64>().unwrap())
        .sum()
}

fn clock() -> u64 {
    let mut time = std::mem::MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: a valid pointer to a timespec, which the call fills.
    let time = unsafe {
        assert_eq!(
            libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr()),
            0
        );
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
