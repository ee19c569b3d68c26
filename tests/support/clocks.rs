//! Servers with wall clocks of their own, by a library that is preloaded into them.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Server, TempDir, programs};

/// The library, and the files from which the servers have their clocks.
pub struct Clocks {
    dir: TempDir,
    library: PathBuf,
}

/// The wall clock of a server.
#[derive(Clone)]
pub struct Clock {
    /// The numbers that `clock.c` reads.
    numbers: PathBuf,
}

impl Clocks {
    /// `None`: this machine has no C compiler. `user`: who goes without.
    pub fn build(user: &str) -> Option<Clocks> {
        let dir = TempDir::for_programs();
        let library = dir.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/src/clock.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl");
        match compiler.output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => {
                programs::skipped(user, &format!("no cc: {error}"));
                return None;
            }
        }
        Some(Clocks { dir, library })
    }

    /// `name`: of the server's file, which no other server has.
    pub fn server(&self, name: &str) -> (Server, Clock) {
        let clock = self.clock(name);
        let server = Server::with_variables(&self.variables(&clock));
        (server, clock)
    }

    /// A clock for a server that is not started yet.
    pub fn clock(&self, name: &str) -> Clock {
        let numbers = self.dir.path().join(name);
        std::fs::write(&numbers, [0; 32]).unwrap();
        Clock { numbers }
    }

    /// The variables of a server that has this clock.
    pub fn variables<'a>(&'a self, clock: &'a Clock) -> [(&'static str, &'a Path); 2] {
        let numbers: &Path = &clock.numbers;
        [("LD_PRELOAD", &self.library), ("CLOCK_OFFSET", numbers)]
    }
}

impl Clock {
    /// The clock is so far ahead from now on.
    pub fn set(&self, nanoseconds: i64) {
        self.write(0, nanoseconds);
    }

    /// The clock gains so many parts of a million from now on, and `most` in all. (A clock can be slewed once.)
    pub fn slew(&self, rate: i64, most: Option<Duration>) {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes to a timespec of ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let most = most.map_or(0, |most| most.as_nanos() as i64);
        self.write(3, most);
        self.write(2, now.tv_sec * 1_000_000_000 + now.tv_nsec);
        self.write(1, rate);
    }

    /// Each number is written at once.
    fn write(&self, number: u64, value: i64) {
        let file = OpenOptions::new().write(true).open(&self.numbers).unwrap();
        file.write_all_at(&value.to_le_bytes(), 8 * number).unwrap();
    }
}
