//! Locks that are not plain, among processes: permits, readers and writers, several names. And what each kind costs a server.
//!
//! Each process takes what it wants, holds it and pauses, again and again. Waits are from the call to the lock; requests are
//! reads of all servers, per lock; shares are the locks of the process that had most, and of the one that had fewest.

use std::time::{Duration, Instant};

use redlock_sync::{Lockable, Redlock};

use super::contended::{begin, children, reads};
use super::support::{Random, Server, TTL, in_queue, ms, urls};
use super::{Bench, micros, patient, patient_options, quantile};

/// Set in a process that contends: for how long, its seed, what it wants, how long it holds that and pauses, in
/// milliseconds; and the nodes.
const WORKER: &str = "BENCH_KINDS";

/// A number of processes that want the same.
type Group = (usize, &'static str, u32);

/// What happens, on how many nodes, how long a lock is held, and by which processes with which pauses.
const CASES: [(&str, usize, u32, &[Group]); 9] = [
    ("3 permits", 3, 0, &[(1, "permit:3", 0)]),
    ("3 permits", 3, 1, &[(8, "permit:3", 1)]),
    ("4 permits", 5, 1, &[(8, "permit:4", 1)]),
    (
        "6 readers, 2 writers",
        3,
        5,
        &[(6, "read", 1), (2, "write", 1)],
    ),
    (
        "4 readers, 4 writers",
        3,
        2,
        &[(4, "read", 1), (4, "write", 1)],
    ),
    ("two of five names", 3, 1, &[(8, "two", 1)]),
    (
        "a, b and c; 6 loops on b",
        3,
        1,
        &[(1, "all", 0), (6, "b", 0)],
    ),
    (
        "the same; 2 loops on each",
        3,
        1,
        &[(1, "all", 0), (2, "a", 0), (2, "b", 0), (2, "c", 0)],
    ),
    ("a plain lock", 3, 1, &[(8, "b", 1)]),
];

pub(crate) fn run(bench: &mut Bench) {
    let time = if bench.rounds > 5 {
        ms(15_000)
    } else {
        ms(1000)
    };
    if !bench.json {
        println!("\nkinds: processes, {time:?} each");
        println!(
            "{:<26}{:>2}  {:<12}{:>6}  {:>9}{:>10}{:>11}  {:>8}  {:>12}",
            "", "N", "", "hold", "locks", "p50", "longest", "requests", "shares"
        );
    }
    for case in CASES {
        contend(bench, case, time);
    }
    readers_behind_a_writer(bench);
    server_time(bench);
}

/// In a process that contends: works, and prints its waits in microseconds.
pub(crate) fn worker() -> bool {
    let Ok(work) = std::env::var(WORKER) else {
        return false;
    };
    let mut words = work.split(' ');
    let mut word = || words.next().unwrap();
    let (time, seed, wants) = (word(), word(), word());
    let [time, hold, pause] = [time, word(), word()].map(|time| ms(time.parse().unwrap()));
    let redlock = Redlock::new(words.collect::<Vec<_>>()).unwrap();
    let redlock = redlock.with_options(patient_options()).unwrap();
    let mut random = Random(seed.parse().unwrap());
    super::pair(&redlock, &format!("own {}", std::process::id()));
    begin();
    let start = Instant::now();
    let mut waits = Vec::new();
    while start.elapsed() < time {
        let came = Instant::now();
        let lock = match lockable(&redlock, wants, &mut random) {
            Some(lockable) => lockable.acquire_within(TTL, TTL).unwrap(),
            None => redlock.acquire_within(wants, TTL, TTL).unwrap(),
        };
        waits.push(came.elapsed());
        std::thread::sleep(hold);
        lock.release().unwrap();
        std::thread::sleep(pause);
    }
    waits
        .into_iter()
        .for_each(|wait| println!("{}", micros(wait)));
    true
}

/// `None`: a plain lock of that name.
fn lockable(redlock: &Redlock, wants: &str, random: &mut Random) -> Option<Lockable> {
    let lockable = match (wants, wants.strip_prefix("permit:")) {
        (_, Some(permits)) => redlock.semaphore("s", permits.parse().unwrap()),
        ("read", _) => redlock.read_lock("rw"),
        ("write", _) => redlock.write_lock("rw"),
        ("all", _) => redlock.several(["a", "b", "c"]),
        ("two", _) => {
            let one = random.below(5);
            let other = (one + 1 + random.below(4)) % 5;
            redlock.several([one, other].map(|name| name.to_string()))
        }
        _ => return None,
    };
    Some(lockable.unwrap())
}

fn contend(
    bench: &mut Bench,
    (what, nodes, hold, groups): (&str, usize, u32, &[Group]),
    time: Duration,
) {
    let servers = Server::several(nodes);
    let nodes_given = urls(&servers).join(" ");
    let mut works = Vec::new();
    for (count, wants, pause) in groups {
        for _ in 0..*count {
            let (time, seed) = (time.as_millis(), works.len() + 1);
            works.push(format!(
                "{time} {seed} {wants} {hold} {pause} {nodes_given}"
            ));
        }
    }
    let mut before = 0;
    let lines = children(WORKER, &works, || before = reads(&servers));
    // Asking is a read itself.
    let reads = reads(&servers) - before - nodes as u64;
    let waits = |lines: &Vec<String>| lines.iter().map(|line| line.parse().unwrap()).collect();
    let mut waits: Vec<Vec<f64>> = lines.iter().map(waits).collect();
    let all: usize = waits.iter().map(Vec::len).sum();
    for (count, wants, _) in groups {
        let group: Vec<Vec<f64>> = waits.drain(..*count).collect();
        report(
            bench,
            (what, nodes, wants, hold),
            reads as f64 / all as f64,
            &group,
        );
    }
}

fn report(
    bench: &mut Bench,
    (what, nodes, wants, hold): (&str, usize, &str, u32),
    requests: f64,
    group: &[Vec<f64>],
) {
    let shares: Vec<usize> = group.iter().map(Vec::len).collect();
    let (most, fewest) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
    let waits = group.concat();
    let [p50, longest] = [0.5, 1.0].map(|share| quantile(&waits, share) / 1e3);
    let locks = waits.len();
    if bench.json {
        let comma = if bench.rows > 0 { "," } else { "" };
        println!(
            "{comma}{{\"scenario\":\"kinds\",\"case\":{what:?},\"nodes\":{nodes},\"wants\":{wants:?},\"hold_ms\":{hold},\
             \"locks\":{locks},\"p50_ms\":{p50:.2},\"longest_ms\":{longest:.1},\"requests\":{requests:.2},\
             \"most\":{most},\"fewest\":{fewest}}}"
        );
    } else {
        println!(
            "{what:<26}{nodes:>2}  {wants:<12}{hold:>3} ms  {locks:>9}{p50:>7.1} ms{longest:>8.0} ms  {requests:>8.1}  {:>12}",
            format!("{most}/{fewest}"),
        );
    }
    bench.rows += 1;
}

/// From a writer's release until eight clients, which wait to read, all do: as processes they wait in the nodes' queues.
fn readers_behind_a_writer(bench: &mut Bench) {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let writer = patient(urls(&servers)).write_lock("rw").unwrap();
        let clients = [(); 8].map(|()| patient(urls(&servers)));
        let readers = clients.map(|client| client.read_lock("rw").unwrap());
        let all_in = || {
            let lock = writer.acquire(TTL).unwrap();
            std::thread::scope(|scope| {
                let read = |reader: &Lockable| (reader.acquire(TTL).unwrap(), Instant::now());
                let waits: Vec<_> = readers
                    .iter()
                    .map(|one| scope.spawn(move || read(one)))
                    .collect();
                in_queue(&servers, "rw", 8);
                let released = Instant::now();
                lock.release().unwrap();
                let waits = waits.into_iter().map(|one| one.join().unwrap());
                let held: Vec<_> = waits.collect();
                micros(
                    held.iter()
                        .map(|(_, since)| *since - released)
                        .max()
                        .unwrap(),
                ) / 1e3
            })
        };
        all_in();
        let times: Vec<f64> = (0..bench.rounds).map(|_| all_in()).collect();
        let [p50, longest] = [0.5, 1.0].map(|share| quantile(&times, share));
        if bench.json {
            println!(
                ",{{\"scenario\":\"kinds\",\"case\":\"8 readers behind a writer\",\"nodes\":{nodes},\"p50_ms\":{p50:.2},\"longest_ms\":{longest:.2}}}"
            );
        } else {
            println!(
                "8 readers behind a writer: all in after{p50:>6.1} ms, at most{longest:>6.1} ms ({nodes} nodes)"
            );
        }
        bench.rows += 1;
    }
}

/// What the pairs of each kind cost a server, by its own account.
fn server_time(bench: &mut Bench) {
    let server = Server::start();
    let redlock = patient(vec![server.url()]);
    let names = |count: u32| (0..count).map(|name| name.to_string());
    let several = |count| Some(redlock.several(names(count)).unwrap());
    let permit = |permits| Some(redlock.semaphore("s", permits).unwrap());
    let kinds = [
        ("plain", None),
        ("permit of 3", permit(3)),
        ("permit of 100", permit(100)),
        ("permit of 1000", permit(1000)),
        ("read", Some(redlock.read_lock("r").unwrap())),
        ("write", Some(redlock.write_lock("w").unwrap())),
        ("2 names", several(2)),
        ("10 names", several(10)),
        ("100 names", several(100)),
        ("1000 names", several(1000)),
    ];
    let mut plain = 0.0;
    for (what, lockable) in kinds {
        let pairs = if bench.rounds > 5 { 2000 } else { 100 };
        let pair = || {
            let lock = match &lockable {
                Some(lockable) => lockable.try_acquire(TTL),
                None => redlock.try_acquire("plain", TTL),
            };
            lock.unwrap().unwrap().release().unwrap();
        };
        pair();
        server.command(&["CONFIG", "RESETSTAT"]);
        (0..pairs).for_each(|_| pair());
        // What a script calls is counted again by itself.
        let calls = if lockable.is_some() {
            &["evalsha"][..]
        } else {
            &["evalsha", "set"]
        };
        let time: u64 = calls.iter().map(|call| time_of(&server, call)).sum();
        let time = time as f64 / f64::from(pairs);
        if plain == 0.0 {
            plain = time;
        }
        let ratio = time / plain;
        if bench.json {
            println!(
                ",{{\"scenario\":\"kinds\",\"case\":\"server time\",\"kind\":{what:?},\"us\":{time:.1},\"ratio\":{ratio:.2}}}"
            );
        } else {
            println!("server time of a pair: {what:<16}{time:>8.1} µs  {ratio:>6.1}");
        }
        bench.rows += 1;
    }
}

/// In microseconds, since its figures were reset.
fn time_of(server: &Server, command: &str) -> u64 {
    let stats = server.info("commandstats", &format!("cmdstat_{command}"));
    let time = stats.split(',').find_map(|one| one.strip_prefix("usec="));
    time.unwrap().parse().unwrap()
}
