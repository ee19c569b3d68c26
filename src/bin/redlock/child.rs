//! The two processes beside the wrapper, both this program again: the one that becomes COMMAND, and the guard. The work
//! that belongs between fork and exec is done after an exec of ourselves, where it is safe.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

use log::info;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;
use nix::unistd::{Pid, close, dup2_stdin, dup2_stdout, getppid, read, write};

use crate::{NO_PROCESS, exec, report};

pub(crate) const COMMAND: &str = "__child";
pub(crate) const GUARD: &str = "__guard";

/// The time since boot, which also counts while the machine is suspended.
pub(crate) fn boot_time() -> Duration {
    clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// `__child WRAPPER GATE COMMAND [ARG]...`: becomes COMMAND as soon as there is a byte to read from the pipe GATE, a
/// file descriptor.
pub(crate) fn become_command(mut words: impl Iterator<Item = OsString>) -> u8 {
    let wrapper = pid(words.next());
    let (Some(gate), Some(program)) = (gate(words.next()), words.next()) else {
        return NO_PROCESS;
    };
    if set_pdeathsig(Signal::SIGKILL).is_err() {
        return NO_PROCESS;
    }
    // The wrapper may have died before that was in force.
    if wrapper.is_none() || wrapper != Some(getppid()) {
        return NO_PROCESS;
    }
    // Nothing runs before the guard has its time limit. A stop would not do: a SIGCONT of any process would end it.
    if { gate }.read_exact(&mut [0]).is_err() {
        return NO_PROCESS;
    }
    exec(Command::new(program).args(words))
}

/// The pipe, opened such that COMMAND does not inherit it.
fn gate(word: Option<OsString>) -> Option<File> {
    let inherited: RawFd = word?.to_str()?.parse().ok()?;
    let gate = File::open(format!("/proc/self/fd/{inherited}")).ok()?;
    close(inherited).ok()?;
    Some(gate)
}

/// The time until which COMMAND may run, in a file that the wrapper writes and its guard reads: a message could wait,
/// or find no room, while the guard is stopped.
pub(crate) struct Until(File);

impl Until {
    pub(crate) fn new(file: impl Into<OwnedFd>) -> Until {
        Until(File::from(file.into()))
    }

    /// Writes the time twice, so that half of it is not taken for the whole.
    pub(crate) fn set(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = [0; 16];
        let (time, check) = bytes.split_at_mut(8);
        time.copy_from_slice(&nanos.to_le_bytes());
        check.copy_from_slice(&(!nanos).to_le_bytes());
        let _ = self.0.write_all_at(&bytes, 0);
    }

    /// The time; `None` if none can be read.
    fn get(&self) -> Option<Duration> {
        // A read fails while the time is being written.
        const TRIES: u32 = 1000;
        (0..TRIES).find_map(|_| {
            let mut bytes = [0; 16];
            self.0.read_exact_at(&mut bytes, 0).ok()?;
            let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
            let (time, check) = bytes.split_at(8);
            let nanos = number(time)?;
            (number(check)? == !nanos).then(|| Duration::from_nanos(nanos))
        })
    }
}

/// `__guard GROUP`: kills the group when the wrapper is gone, or when the time in the file that is its standard output
/// is over. A byte on its standard input wakes it when that time has changed. The guard answers the first time with a
/// byte: from then on it is armed.
pub(crate) fn guard(mut words: impl Iterator<Item = OsString>) -> u8 {
    // Group 1 would mean every process.
    let Some(group) = pid(words.next()).filter(|group| group.as_raw() > 1) else {
        return NO_PROCESS;
    };
    let _ = SigSet::all().thread_block();
    // The name that `ps` and `pkill` see; otherwise it would be "exe".
    let _ = set_name(c"redlock-guard");
    let flags = TimerFlags::TFD_CLOEXEC;
    let (Ok(timer), Ok(until)) = (
        TimerFd::new(ClockId::CLOCK_BOOTTIME, flags),
        stdout().as_fd().try_clone_to_owned(),
    ) else {
        return NO_PROCESS;
    };
    let why = watch(&timer, &Until::new(until));
    // Kill first. Reporting it may take its time.
    let killed = killpg(group, Signal::SIGKILL).is_ok();
    if killed {
        report(format_args!("COMMAND was killed: {why}"));
    }
    0
}

/// Waits until the group must be killed, and returns why.
fn watch(timer: &TimerFd, told: &Until) -> &'static str {
    const GONE: &str = "redlock itself is gone";
    let wrapper = stdin();
    let mut timed: Option<Duration> = None;
    loop {
        let mut files = [
            PollFd::new(wrapper.as_fd(), PollFlags::POLLIN),
            PollFd::new(timer.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut files, PollTimeout::NONE).is_err() {
            continue;
        }
        let woken = files.first().and_then(PollFd::any).unwrap_or(false);
        if woken && !matches!(read(wrapper.as_fd(), &mut [0; 4096]), Ok(1..)) {
            return GONE;
        }
        // However long we were stopped, this time counts now.
        let Some(until) = told.get() else {
            return "its guard does not know until when it may run";
        };
        if boot_time() >= until {
            return "redlock stands still, and the lock is about to end";
        }
        if timed == Some(until) {
            continue;
        }
        let at = Expiration::OneShot(TimeSpec::from(until));
        if timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME).is_err() {
            return "its guard has no timer";
        }
        if timed.replace(until).is_none() {
            let _ = write(wrapper.as_fd(), &[1]);
        }
    }
}

fn pid(word: Option<OsString>) -> Option<Pid> {
    let pid: i32 = word?.to_str()?.parse().ok()?;
    // 0 and -1 would mean other processes.
    (pid > 0).then(|| Pid::from_raw(pid))
}

/// How long the guard may take to start. If it takes longer, something is wrong with it.
const GUARD_START: Duration = Duration::from_secs(10);

/// The process that kills COMMAND when the lock ends, whatever happens to us.
pub(crate) struct GuardProcess {
    /// `None` once the process is gone.
    pub(crate) process: Option<Child>,
    pub(crate) socket: UnixStream,
    /// The time that the guard reads.
    pub(crate) until: Until,
}

impl GuardProcess {
    /// Sets the time. The byte wakes the guard; if there is no room for one, other bytes are waiting.
    pub(crate) fn tell(&mut self, until: Duration) {
        self.until.set(until);
        let _ = self.socket.write_all(&[1]);
    }

    /// Waits for the guard's answer that it is armed, within `GUARD_START`.
    pub(crate) fn wait_until_armed(&mut self) -> io::Result<()> {
        self.socket.set_read_timeout(Some(GUARD_START))?;
        self.socket.read_exact(&mut [0])?;
        self.socket.set_nonblocking(true)
    }

    /// Looks whether the guard is alive. Without it we go on.
    pub(crate) fn look(&mut self) {
        if let Some(process) = &mut self.process
            && !matches!(process.try_wait(), Ok(None))
        {
            self.process = None;
            info!("the guard is gone");
        }
    }
}

/// Closes our input and output, so that COMMAND alone has them: the other end of a pipe learns when it closes them.
pub(crate) fn hand_over_input_and_output() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
}
