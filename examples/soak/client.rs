//! A process with locks: threads that take them, hold them, extend them, give them up in every way,
//! and write down what they believe before they act on it.

use std::fs::File;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redlock_sync::{Error, Lock, Options, Redlock, Token};

use crate::check::Record;
use crate::failovers::{RESOURCES_OF_PAIR, pair_name};
use crate::live::live;
use crate::support::{Random, ms};
use crate::{LONGEST_TTL, RESOURCES, WAIT, hex, now, process_name, random};

/// An answer that took longer was delayed by a fault.
const SLOW: Duration = Duration::from_millis(10);

/// A clock was taken for one that was set forward.
pub(crate) const ALARM: &str = "a clock counted as set forward";

/// Notes these alarms, each of which is a line of the log.
struct Alarms(Mutex<Journal>);

impl log::Log for Alarms {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, line: &log::Record<'_>) {
        let text = line.args().to_string();
        if text.contains("its clock was set forward") {
            println!("{text}");
            self.0.lock().expect("no thread panics").note(ALARM);
        }
    }

    fn flush(&self) {}
}

/// `dir slot generation seed threads guard fair calm together url…`: works until its standard input ends; a byte there asks it
/// to leave nothing behind from now on. `alone` in place of `together`: each thread has a node of its own.
pub(crate) fn run(args: &[String]) {
    let number = |at: usize| args[at].parse::<u64>().expect("a number");
    let (dir, slot, generation, seed) = (Path::new(&args[0]), number(1), number(2), number(3));
    let alarms = Journal::create(&dir.join(format!("alarms of process {slot}.{generation}")));
    let alarms: &Alarms = Box::leak(Box::new(Alarms(Mutex::new(alarms))));
    log::set_logger(alarms).expect("no other logger");
    log::set_max_level(log::LevelFilter::Warn);
    let mut options = Options::new().wait(WAIT).retry_delay(ms(1), ms(30));
    options = options.fair(number(6) > 0);
    if number(5) > 0 {
        options = options.restart_guard(LONGEST_TTL);
    }
    let urls: Vec<&str> = args[9..].iter().map(String::as_str).collect();
    let of = |urls: &[&str]| {
        Redlock::new(urls.iter().copied())
            .and_then(|redlock| redlock.with_options(options.clone()))
            .expect("the nodes are well-formed")
    };
    let alone = args[8] == "alone";
    let together = of(&urls);
    let (tidy, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..number(4) {
            let name = format!("{}thread {thread}", process_name(slot, generation));
            let path = dir.join(name);
            let at = usize::try_from(thread).expect("small");
            let worker = Worker {
                redlock: match alone {
                    true => of(&urls[at..=at]),
                    false => together.clone(),
                },
                names: match alone {
                    true => (pair_name(thread), RESOURCES_OF_PAIR),
                    false => ("soak:".into(), RESOURCES),
                },
                journal: Journal::create(&path),
                random: random(seed, [slot + 1, generation, thread]),
                slow: false,
                calm: number(7),
                tidy: &tidy,
            };
            let stop = &stop;
            scope.spawn(move || worker.work(stop));
        }
        let memory = format!("{}memory", process_name(slot, generation));
        let (stop, journal) = (&stop, Journal::create(&dir.join(memory)));
        scope.spawn(move || journal.weigh(stop));
        let mut byte = [0];
        while let Ok(1..) = std::io::stdin().read(&mut byte) {
            tidy.store(true, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // What a node is owed that is away at exit is lost; on a busy machine one may just be late.
    std::thread::sleep(ms(500));
}

/// What a thread believes and does, in a file that survives it.
struct Journal {
    file: File,
    over: bool,
}

impl Journal {
    fn create(path: &Path) -> Journal {
        Journal {
            file: File::create(path).expect("a journal"),
            over: false,
        }
    }

    fn write(&mut self, record: &Record) {
        let line = record.line();
        self.file
            .write_all(line.as_bytes())
            .expect("the journal can be written");
    }

    fn note(&mut self, what: &str) {
        self.write(&Record::Note(what.to_owned()));
    }

    /// Writes every second what the process has allocated.
    fn weigh(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.write(&Record::Live(live()));
            std::thread::sleep(ms(1000));
        }
    }

    /// Just acquired.
    fn take(&mut self, resource: &[u8], token: &Token, remaining: impl Fn() -> Duration) {
        let at = now();
        let left = remaining();
        self.over = left.is_zero();
        self.write(&Record::Take {
            resource: String::from_utf8_lossy(resource).into_owned(),
            token: hex(token.as_bytes()),
            at,
            until: at + left,
        });
    }

    /// Looks how long the lock is still valid.
    fn look(&mut self, remaining: impl Fn() -> Duration) -> Duration {
        let at = now();
        let left = remaining();
        if left.is_zero() && !self.over {
            self.write(&Record::Lost { at: now() });
        }
        self.write(&Record::Look {
            at,
            until: at + left,
        });
        if self.over && !left.is_zero() {
            self.write(&Record::Wrong(format!(
                "a lost lock is valid again for {left:?}"
            )));
        }
        self.over = left.is_zero();
        left
    }

    /// To be called before anything that releases the lock.
    fn end(&mut self) {
        self.write(&Record::End { at: now() });
    }

    /// A call on a held lock has returned.
    fn returned(&mut self, call: &str, result: &Result<(), Error>) {
        let at = now();
        match result {
            Ok(()) => self.note(call),
            Err(Error::Lost(_)) => {
                self.note(&format!("{call}: lost"));
                self.write(&Record::Lost { at });
            }
            Err(Error::Unavailable(_)) => self.note(&format!("{call}: unavailable")),
            Err(Error::ExtensionLimit(_)) => self.note(&format!("{call}: limit")),
            Err(error) => self.write(&Record::Wrong(format!("{call}: {error}"))),
        }
    }

    /// An acquire has failed.
    fn missed(&mut self, error: &Error) {
        match error {
            Error::Busy(_) => self.note("acquire: busy"),
            Error::Unavailable(_) => self.note("acquire: unavailable"),
            Error::TooSlow(_) => self.note("acquire: too slow"),
            error => self.write(&Record::Wrong(format!("acquire: {error}"))),
        }
    }
}

struct Worker<'a> {
    redlock: Redlock,
    /// How the names of its locks begin, and how many there are.
    names: (String, u64),
    journal: Journal,
    random: Random,
    /// The lock was slow to get.
    slow: bool,
    /// Its pauses are so many times as long.
    calm: u64,
    tidy: &'a AtomicBool,
}

impl Worker<'_> {
    fn work(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let resource = format!("{}{}", self.names.0, self.random.below(self.names.1));
            let ttl = self.ttl();
            let asked = now();
            let lock = match self.random.below(8) {
                0..=2 => self.redlock.try_acquire(&resource, ttl),
                3..=4 => self.redlock.acquire(&resource, ttl).map(Some),
                5 => {
                    let wait = ms(self.random.below(100));
                    self.redlock.acquire_within(&resource, ttl, wait).map(Some)
                }
                6 => {
                    let mut asks = self.random.below(8);
                    let keep_trying = || {
                        asks = asks.saturating_sub(1);
                        asks > 0
                    };
                    self.redlock
                        .acquire_while(&resource, ttl, keep_trying)
                        .map(Some)
                }
                _ => {
                    self.with_lock(&resource, ttl);
                    continue;
                }
            };
            match lock {
                Ok(Some(lock)) => {
                    self.slow = now() > asked + SLOW;
                    if self.random.below(6) == 0 {
                        self.kept(lock, ttl);
                    } else {
                        self.held(lock, ttl);
                    }
                }
                Ok(None) => self.journal.note("acquire: busy"),
                Err(Error::Cancelled(_)) => self.journal.note("acquire: cancelled"),
                Err(error) => self.journal.missed(&error),
            }
            std::thread::sleep(ms(self.random.below(8 * self.calm)));
        }
    }

    fn held(&mut self, mut lock: Lock, ttl: Duration) {
        self.journal
            .take(lock.resource(), lock.token(), || lock.remaining());
        self.hold(&mut lock, ttl);
        match self.random.below(64) {
            0 if !self.tidy.load(Ordering::Relaxed) => {
                self.journal.write(&Record::Leak);
                lock.leak();
                self.journal.note("leak");
            }
            0..=28 => {
                self.journal.end();
                drop(lock);
                self.journal.note("drop");
            }
            _ => {
                self.journal.end();
                let result = lock.release();
                self.journal.returned("release", &result);
            }
        }
    }

    /// Renewed by itself, sometimes for longer than that goes on.
    fn kept(&mut self, lock: Lock, ttl: Duration) {
        self.journal
            .take(lock.resource(), lock.token(), || lock.remaining());
        // When `keep_alive` fails the lock has been released.
        self.journal.end();
        let lock = match lock.keep_alive(ttl + self.part_of(ttl)) {
            Ok(lock) => lock,
            Err(error) => return self.journal.returned("keep_alive", &Err(error)),
        };
        self.journal
            .take(lock.resource(), lock.token(), || lock.remaining());
        self.journal.note("keep_alive");
        let end = now() + self.part_of(2 * ttl) / (1 << self.random.below(6));
        while now() < end {
            std::thread::sleep(ms(1) + self.part_of(ttl / 8));
            if self.journal.look(|| lock.remaining()).is_zero() {
                break;
            }
        }
        self.journal.end();
        match self.random.below(3) {
            0 => drop(lock),
            1 => drop(lock.stop()),
            _ => {
                let result = lock.release();
                self.journal.returned("release of kept", &result);
            }
        }
    }

    fn with_lock(&mut self, resource: &str, ttl: Duration) {
        let redlock = self.redlock.clone();
        let mut began = false;
        let result = catch_unwind(AssertUnwindSafe(|| {
            redlock.with_lock(resource, ttl, |lock| {
                began = true;
                self.journal
                    .take(lock.resource(), lock.token(), || lock.remaining());
                self.hold(lock, ttl);
                self.journal.end();
                if self.random.below(8) == 0 {
                    // A panic without the message on the terminal.
                    resume_unwind(Box::new(()));
                }
                Ok(())
            })
        }));
        match result {
            Ok(Err(error)) if !began => self.journal.missed(&error),
            Ok(result) => self.journal.returned("with_lock", &result),
            Err(_) => self.journal.note("with_lock: panic"),
        }
    }

    /// Has the lock for a time: mostly short, sometimes longer than it is valid, sometimes extended.
    /// Often to its end where the answers were slow to come: there a wrong deadline shows.
    fn hold(&mut self, lock: &mut Lock, ttl: Duration) {
        let slow = std::mem::take(&mut self.slow);
        let time = match self.random.below(48) {
            _ if slow && self.random.below(2) == 0 => ttl + ms(20),
            0..=40 => ms(self.random.below(5)),
            41..=44 => self.part_of(ttl / 2),
            45..=46 => self.part_of(ttl),
            _ => ttl + self.part_of(ttl / 2),
        };
        let mut end = now() + time;
        loop {
            let rest = end.saturating_sub(now());
            if rest.is_zero() {
                return;
            }
            if self.random.below(4) == 0 {
                let ttl = self.ttl();
                let asked = now();
                let result = lock.extend(ttl);
                self.journal.returned("extend", &result);
                if now() > asked + SLOW && self.random.below(2) == 0 {
                    end = end.max(now() + lock.remaining() + ms(20));
                }
            } else {
                let pause = ms(1) + self.part_of(ttl / 4);
                std::thread::sleep(rest.min(pause));
            }
            if self.journal.look(|| lock.remaining()).is_zero() && rest < ttl / 8 {
                return;
            }
        }
    }

    /// Mostly hundreds of milliseconds.
    fn ttl(&mut self) -> Duration {
        let longest = u64::try_from(LONGEST_TTL.as_millis()).expect("seconds");
        match self.random.below(8) {
            0 => ms(20 + self.random.below(80)),
            1..=5 => ms(100 + self.random.below(400)),
            _ => ms(longest - self.random.below(longest / 2)),
        }
    }

    fn part_of(&mut self, time: Duration) -> Duration {
        time / 64 * u32::try_from(self.random.below(65)).expect("small")
    }
}
