//! The lines that a contender speaks on standard input and output: see `tests/peers/README.md`.

use std::fmt::Display;
use std::io::{BufRead, Write};
use std::time::{Duration, SystemTime};

/// What a library said.
pub enum Said {
    /// Done, and nothing more.
    Ok,
    /// Held for this long from now on, by the library's own account.
    Held(Duration),
    /// A fencing token.
    Fence(u64),
    /// Another holds the lock.
    Busy(String),
    /// The lock is not held, or not any more.
    Lost(String),
    /// An error, which may have any cause.
    Failed(String),
    /// The library has no such call.
    None,
}

impl Said {
    pub fn busy(why: impl Display) -> Said {
        Said::Busy(why.to_string())
    }
    pub fn lost(why: impl Display) -> Said {
        Said::Lost(why.to_string())
    }
    pub fn failed(why: impl Display) -> Said {
        Said::Failed(why.to_string())
    }
}

pub trait Contender {
    /// `wait` is for libraries that let their user bound the wait by a time.
    fn acquire(&mut self, name: &str, ttl: Duration, wait: Duration) -> Said;
    fn release(&mut self, name: &str) -> Said;
    fn extend(&mut self, _name: &str, _ttl: Duration) -> Said {
        Said::None
    }
    /// Whether the lock is still held.
    fn check(&mut self, _name: &str) -> Said {
        Said::None
    }
    fn fence(&mut self, _name: &str) -> Said {
        Said::None
    }
}

/// The addresses of the nodes.
pub fn nodes() -> Vec<String> {
    let nodes = std::env::var("NODES").expect("NODES has the addresses");
    nodes.split(',').map(str::to_owned).collect()
}

/// Microseconds of the monotonic clock, which all processes of a machine share.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

fn wall() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Answers until the input ends. `ready` is the line that introduces the library.
pub fn speak(ready: &str, mut contender: impl Contender) {
    say(&format!("ready {ready}"));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let ms = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        let name = words.get(1).copied().unwrap_or("");
        let begin = now();
        let said = match words[0] {
            "acquire" => contender.acquire(
                name,
                Duration::from_millis(ms(2)),
                Duration::from_millis(ms(3)),
            ),
            "release" => contender.release(name),
            "extend" => contender.extend(name, Duration::from_millis(ms(2))),
            "check" => contender.check(name),
            "fence" => contender.fence(name),
            "wall" => Said::Fence(wall()),
            // The guarded register takes the answer for the write.
            "write" => Said::Ok,
            _ => Said::None,
        };
        let time = format!("begin={begin} end={}", now());
        say(&match said {
            Said::Ok => format!("ok {time}"),
            Said::Held(left) => format!("ok {time} left={}", left.as_micros()),
            Said::Fence(number) => format!("ok {time} number={number}"),
            Said::Busy(text) => format!("busy {time} text={}", one_line(&text)),
            Said::Lost(text) => format!("lost {time} text={}", one_line(&text)),
            Said::Failed(text) => format!("failed {time} text={}", one_line(&text)),
            Said::None => format!("none {time}"),
        });
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A harness that is gone closes the input, too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
