//! Processes that wait for the same lock. The binary of a test that uses them has a test `worker`, which such a process
//! runs.

use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use redlock_sync::Redlock;

use super::*;

/// Another process, killed with its value.
pub struct Process(Child);

impl Process {
    /// `part`: what [`worker`] does. `name`: of the files that it writes.
    pub fn start(servers: &[Server], dir: &Path, part: &str, name: &str) -> Process {
        Process::at(&urls(servers).join(","), dir, part, name)
    }

    /// `nodes`: their URLs, with commas between them.
    pub fn at(nodes: &str, dir: &Path, part: &str, name: &str) -> Process {
        let process = another_process("worker", part)
            .arg("--include-ignored")
            .env("NODES", nodes)
            .env("FILE", dir.join(name))
            .spawn();
        Process(process.unwrap())
    }

    pub fn signal(&self, signal: i32) {
        let process = self.0.id().try_into().unwrap();
        // SAFETY: a plain system call on a child of ours that was not waited for.
        unsafe { libc::kill(process, signal) };
        if signal == libc::SIGSTOP {
            is_stopped(process);
        }
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn succeeds(&mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Microseconds of a clock that all processes share.
pub fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_micros().try_into().unwrap()
}

/// What such a process does: the body of its test.
pub fn worker() {
    let Some(role) = role() else {
        return;
    };
    let mut words = role.split(' ');
    let mut word = || words.next().unwrap();
    let file = std::env::var("FILE").unwrap();
    let nodes = std::env::var("NODES").unwrap();
    let nodes = items(&nodes);
    // A cluster has one by default, and would wait for servers that were just started.
    let options = || unhurried().restart_guard(Duration::ZERO);
    let micros = |word: &str| Duration::from_micros(word.parse().unwrap());
    match word() {
        // Holds the lock for the given ttl in milliseconds, and does not end.
        "hold" => {
            let ttl = ms(word().parse().unwrap());
            let redlock = Redlock::new(nodes).unwrap().with_options(options());
            let _lock = redlock.unwrap().acquire("a", ttl).unwrap();
            std::fs::write(file, "").unwrap();
            std::thread::sleep(TTL);
        }
        // Waits for the lock, and releases it.
        "wait" => {
            let poll = ms(word().parse().unwrap());
            let redlock = Redlock::new(nodes).unwrap();
            let fair = words.next() == Some("fair");
            let redlock = redlock.with_options(options().retry_delay(poll, poll).fair(fair));
            let lock = redlock.unwrap().acquire("a", TTL).unwrap();
            std::fs::write(file, "").unwrap();
            lock.release().unwrap();
        }
        // Takes the lock again and again, until a file is there that ends it.
        "loop" => {
            let (poll, hold, pause) = (micros(word()), micros(word()), micros(word()));
            let drops = word() == "drop";
            let fair = words.next() == Some("fair");
            let redlock = Redlock::new(nodes).unwrap();
            let redlock = redlock.with_options(options().retry_delay(poll, poll).fair(fair));
            let redlock = redlock.unwrap();
            take(&redlock, &file).release().unwrap();
            std::fs::write(&file, "").unwrap();
            let dir = Path::new(&file).parent().unwrap();
            let (begin, end) = (dir.join("begin"), dir.join("end"));
            eventually("all begin", || begin.exists());
            let over = AtomicBool::new(false);
            let mut holds = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    eventually_within(TTL, "the end", &mut || end.exists());
                    over.store(true, Ordering::Relaxed);
                });
                while !over.load(Ordering::Relaxed) {
                    let came = wall_clock();
                    let lock = redlock.acquire("a", TTL).unwrap();
                    let since = wall_clock();
                    if !hold.is_zero() {
                        std::thread::sleep(hold);
                    }
                    holds.push(format!("{came} {since} {}", wall_clock()));
                    match drops {
                        true => drop(lock),
                        false => lock.release().unwrap(),
                    }
                    if !pause.is_zero() {
                        std::thread::sleep(pause);
                    }
                }
            });
            std::fs::write(file, holds.join("\n")).unwrap();
        }
        other => panic!("unknown part: {other}"),
    }
}

/// How often each of several processes has had the lock, the gaps between two that had it in microseconds,
/// and what each node was sent.
pub struct Shares {
    pub holds: Vec<usize>,
    pub gaps: Vec<u64>,
    pub requests: Vec<u64>,
    /// When each began to wait, and when it had the lock, in the order of the latter.
    pub turns: Vec<(u64, u64)>,
}

/// What a server was sent for locks. Each try sets the key, whether in a script or not. A release gets it; so does a
/// knock that is denied, which alone adds to the queue. A waiter that is granted the lock, or leaves, is taken out of the queue
/// and reads the reservation; one that leaves also asks whether the key exists.
pub fn requests(server: &Server) -> u64 {
    let [set, get, zadd, zrem, exists] =
        ["set", "get", "zadd", "zrem", "exists"].map(|command| server.calls(command));
    set + get - zadd - zrem + exists
}

pub fn contend(servers: &[Server], processes: usize, part: &str, time: Duration) -> Shares {
    let dir = TempDir::new();
    let names: Vec<String> = (0..processes).map(|i| format!("process {i}")).collect();
    let start = |name: &String| Process::start(servers, dir.path(), part, name);
    let mut processes: Vec<Process> = names.iter().map(start).collect();
    let file = |name: &String| dir.path().join(name);
    eventually("all are ready", || {
        names.iter().all(|name| file(name).exists())
    });
    let before: Vec<u64> = servers.iter().map(requests).collect();
    std::fs::write(dir.path().join("begin"), "").unwrap();
    std::thread::sleep(time);
    std::fs::write(dir.path().join("end"), "").unwrap();
    processes.iter_mut().for_each(Process::succeeds);
    let after = servers.iter().map(requests);
    let requests = after.zip(before).map(|(after, before)| after - before);
    let read = |name| std::fs::read_to_string(file(name)).unwrap();
    let texts: Vec<String> = names.iter().map(read).collect();
    let times = |line: &str| {
        let mut times = line.split(' ').map(|time| time.parse().unwrap());
        [(); 3].map(|()| times.next().unwrap())
    };
    let mut all: Vec<[u64; 3]> = texts
        .iter()
        .flat_map(|text| text.lines())
        .map(times)
        .collect();
    all.sort_unstable_by_key(|[_, since, _]| *since);
    let gap = |pair: &[[u64; 3]]| {
        let ([_, _, until], [_, since, _]) = (pair[0], pair[1]);
        assert!(until <= since, "two held it at once: {pair:?}");
        since - until
    };
    let mut gaps: Vec<u64> = all.windows(2).map(gap).collect();
    gaps.sort_unstable();
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
    Shares {
        holds: texts.iter().map(|text| text.lines().count()).collect(),
        gaps,
        requests: requests.collect(),
        turns: all.iter().map(|[came, since, _]| (*came, *since)).collect(),
    }
}

impl Shares {
    pub fn least_and_most(&self) -> (usize, usize) {
        let (least, most) = (self.holds.iter().min(), self.holds.iter().max());
        (*least.unwrap(), *most.unwrap())
    }

    pub fn print(&self, what: &str) {
        let total: usize = self.holds.iter().sum();
        let each = self.requests.iter().sum::<u64>() as f64 / total as f64;
        let (median, longest) = (self.gaps[self.gaps.len() / 2], self.gaps.last().unwrap());
        println!(
            "{what}: {:?}, gaps of {median} µs, at most {longest} µs, {each:.2} requests each",
            self.holds
        );
    }
}
