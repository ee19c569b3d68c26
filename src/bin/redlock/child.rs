//! The two processes beside the wrapper, both this program again: the one that becomes COMMAND, and the guard.
//! What belongs between fork and exec is done after an exec of ourselves, where it is safe.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, stdin};
use std::os::fd::{AsFd, RawFd};
use std::process::Command;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;
use nix::unistd::{Pid, close, getppid, read, write};

use crate::{NO_PROCESS, exec, say};

pub(crate) const COMMAND: &str = "__child";
pub(crate) const GUARD: &str = "__guard";

/// Counts while the machine is suspended.
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
    // It may have died before that was in force.
    if wrapper.is_none() || wrapper != Some(getppid()) {
        return NO_PROCESS;
    }
    // Nothing runs before the guard knows until when it may. Not a stop: anybody's SIGCONT would end that.
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

/// `__guard GROUP`: kills the group when the wrapper is gone, or when the time is over that the wrapper told
/// last. It answers the first time with a byte: from then on it is armed.
pub(crate) fn guard(mut words: impl Iterator<Item = OsString>) -> u8 {
    // Group 1 would mean every process.
    let Some(group) = pid(words.next()).filter(|group| group.as_raw() > 1) else {
        return NO_PROCESS;
    };
    let _ = SigSet::all().thread_block();
    // As `ps` and `pkill` know it; else it would be "exe".
    let _ = set_name(c"redlock-guard");
    let flags = TimerFlags::TFD_CLOEXEC;
    let Ok(timer) = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags) else {
        return NO_PROCESS;
    };
    let why = watch(&timer);
    // First this. Saying it may take its time.
    let killed = killpg(group, Signal::SIGKILL).is_ok();
    if killed {
        say(format_args!("COMMAND was killed: {why}"));
    }
    0
}

/// Until the group must be killed, and why.
fn watch(timer: &TimerFd) -> &'static str {
    const GONE: &str = "redlock itself is gone";
    let wrapper = stdin();
    let mut until: Option<Duration> = None;
    loop {
        let over = until.is_some_and(|until| boot_time() >= until);
        let wait = if over {
            PollTimeout::ZERO
        } else {
            PollTimeout::NONE
        };
        let mut files = [
            PollFd::new(wrapper.as_fd(), PollFlags::POLLIN),
            PollFd::new(timer.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut files, wait).is_err() {
            continue;
        }
        let told = files.first().and_then(PollFd::any).unwrap_or(false);
        if !told {
            match over {
                true => return "redlock stands still, and the lock is about to end",
                false => continue,
            }
        }
        // Whole messages: each was written at once.
        let mut buffer = [0; 4096];
        let Ok(length @ 1..) = read(wrapper.as_fd(), &mut buffer) else {
            return GONE;
        };
        let newest = buffer
            .get(..length)
            .and_then(|read| read.rchunks_exact(8).next());
        let Some(newest) = newest.and_then(|bytes| bytes.try_into().ok()) else {
            continue;
        };
        let first = until.is_none();
        let newest = Duration::from_nanos(u64::from_le_bytes(newest));
        until = Some(newest);
        let timed = timer.set(
            Expiration::OneShot(TimeSpec::from(newest.max(Duration::from_nanos(1)))),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        );
        if timed.is_err() {
            return "its guard has no timer";
        }
        if first && boot_time() < newest {
            let _ = write(wrapper.as_fd(), &[1]);
        }
    }
}

fn pid(word: Option<OsString>) -> Option<Pid> {
    let pid: i32 = word?.to_str()?.parse().ok()?;
    // 0 and -1 would mean others.
    (pid > 0).then(|| Pid::from_raw(pid))
}
