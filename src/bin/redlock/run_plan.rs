//! The next step, decided from the lease, the signals and the state of COMMAND alone: no I/O, no clock.

use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

use crate::signals::asks_to_end;
use crate::{End, TIMED_OUT};

/// How long before the lease ends the wrapper kills COMMAND's group.
pub(crate) const MARGIN: Duration = Duration::from_millis(100);
/// How long before the lease ends the guard kills the group, if the wrapper has not.
pub(crate) const GUARD_MARGIN: Duration = Duration::from_millis(50);
/// How far the guard's time may be off before it is set again: it still acts before the lease ends.
const GUARD_SLACK: Duration = Duration::from_millis(50);
/// A wait on the monotonic clock does not see a suspend, so none is longer.
const TICK: Duration = Duration::from_millis(100);
/// How long SIGKILL may take to end a group.
const KILL_TAKES: Duration = Duration::from_secs(5);
/// How soon to look again whether the processes that COMMAND left behind are gone, at first; then half as often each
/// time.
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// A signal that ended COMMAND, and that only the last wait for it can name.
pub(crate) const UNNAMED: i32 = 0;

/// The state of the lock at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseState {
    /// The time on a clock that counts suspend.
    pub(crate) now: Duration,
    /// Zero once it is lost.
    pub(crate) remaining: Duration,
    /// How long the lock is still renewed.
    pub(crate) hold_left: Duration,
}

/// Why COMMAND, or what it left behind, is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The lock is lost.
    Lost,
    /// The lock is about to be lost.
    RunsOut,
    /// `--max-hold` is used up.
    Hold,
    /// COMMAND has ended, and processes of its group have not.
    LeftOver,
}

/// The action on COMMAND's group. Always carried out before it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    /// SIGTERM and SIGCONT.
    Terminate(EndReason),
    /// SIGKILL.
    Kill(EndReason),
}

/// The reaction when COMMAND was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnStop {
    Nothing,
    /// COMMAND wants the terminal, which is ours to give.
    GiveTerminal,
    /// The user stopped COMMAND, so we stop too: with the rest of our group if the terminal's stop key would have
    /// stopped that as well.
    StopToo {
        group: bool,
    },
    /// COMMAND wants the terminal, which another COMMAND beside us has: it gets it behind that one.
    GiveTerminalLater,
    /// No process could continue us, so COMMAND goes on at once, as it would without us.
    GoOn,
}

/// The reaction when the terminal would stop our group, since a process of it has asked for the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnAsk {
    Nothing,
    /// The terminal comes back from COMMAND, which asks for it when it needs it again; and our group goes on.
    TakeBack,
    /// Others have the terminal, so COMMAND stops as it would in our group; and then we do.
    HandOn,
}

/// A process of our group has asked for the terminal.
pub(crate) fn asked_beside_us(terminal: TerminalOwner) -> OnAsk {
    match terminal {
        TerminalOwner::Commands | TerminalOwner::Ours => OnAsk::TakeBack,
        TerminalOwner::Others => OnAsk::HandOn,
        // The one that has lent it takes it back.
        TerminalOwner::Siblings | TerminalOwner::None => OnAsk::Nothing,
    }
}

/// The process above us that could let our group go on if it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuer {
    /// There is none: no shell in our session has started us.
    None,
    /// Our parent, which is in another group: a shell with job control, which sees that we stop.
    Parent,
    /// Such a shell has started a process of our group, as a script, which does not see it.
    Ancestor,
}

/// The state of COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Stopped,
    Ended,
}

/// Which of our group and COMMAND's has the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalOwner {
    /// There is no terminal.
    None,
    /// Other groups have it.
    Others,
    /// A process has it that one of our group has started, as another wrapper in the same script.
    Siblings,
    Ours,
    Commands,
}

/// One run of COMMAND.
#[derive(Debug)]
pub(crate) struct RunPlan {
    grace: Duration,
    state: State,
    /// We were stopped with COMMAND. The SIGCONT that continues us is handed on.
    stopped_too: bool,
    /// Why COMMAND is being ended, and when SIGKILL follows.
    ending: Option<(EndReason, Duration)>,
    /// When we killed COMMAND.
    killed: Option<Duration>,
    /// The time until which the guard leaves COMMAND alone.
    guarded: Option<Duration>,
    /// The guard's time before had passed when a new one was set: it may have killed COMMAND, though the lock was
    /// renewed.
    overslept: bool,
    looks: u32,
}

impl RunPlan {
    pub(crate) fn new(grace: Duration) -> RunPlan {
        RunPlan {
            grace,
            state: State::Running,
            stopped_too: false,
            ending: None,
            killed: None,
            guarded: None,
            overslept: false,
            looks: 0,
        }
    }

    /// The action that is due. Must be called whenever something may have changed, before anything else is done then.
    pub(crate) fn look(&mut self, lease: LeaseState) -> Act {
        if self.killed.is_some() {
            return Act::Nothing;
        }
        if lease.remaining <= MARGIN {
            return self.kill(EndReason::Lost, lease.now);
        }
        if let Some((why, kill_at)) = self.ending {
            return match lease.now >= kill_at {
                true => self.kill(why, lease.now),
                false => Act::Nothing,
            };
        }
        let why = if lease.remaining <= self.grace + MARGIN {
            EndReason::RunsOut
        } else if lease.hold_left.is_zero() && self.state != State::Ended {
            EndReason::Hold
        } else {
            return Act::Nothing;
        };
        self.terminate(why, lease.now)
    }

    fn terminate(&mut self, why: EndReason, now: Duration) -> Act {
        self.ending = Some((why, now.saturating_add(self.grace)));
        Act::Terminate(why)
    }

    fn kill(&mut self, why: EndReason, now: Duration) -> Act {
        // An end that was begun for another reason is a loss all the same, unless COMMAND had ended before.
        if self.state != State::Ended || self.ending.is_none() {
            self.ending = Some((why, now));
        }
        self.killed = Some(now);
        Act::Kill(why)
    }

    /// The time to give to the guard, if it needs another one.
    pub(crate) fn guard_until(&mut self, lease: LeaseState) -> Option<Duration> {
        let told = self.guarded?;
        let until = guard_time(lease);
        // After our SIGKILL an earlier time would only make the guard kill once more, and report that we are stopped.
        let killed = self.killed.is_some() && until < told;
        if killed || until.abs_diff(told) <= GUARD_SLACK {
            return None;
        }
        self.overslept = lease.now >= told;
        self.guarded = Some(until);
        Some(until)
    }

    /// The first time to give to the guard. COMMAND begins when the guard has answered.
    pub(crate) fn arm(&mut self, lease: LeaseState) -> Duration {
        let until = guard_time(lease);
        self.guarded = Some(until);
        until
    }

    /// COMMAND was stopped.
    pub(crate) fn stopped(
        &mut self,
        signal: i32,
        terminal: TerminalOwner,
        above: Continuer,
    ) -> OnStop {
        self.state = State::Stopped;
        let then = match (terminal, signal, above) {
            // Renewed until --max-hold ends that.
            (TerminalOwner::None, ..) => OnStop::Nothing,
            (TerminalOwner::Ours, SIGTTIN | SIGTTOU, _) => OnStop::GiveTerminal,
            (TerminalOwner::Siblings, SIGTTIN | SIGTTOU, _) => OnStop::GiveTerminalLater,
            (_, SIGTSTP, Continuer::None) => OnStop::GoOn,
            (_, _, Continuer::None) => OnStop::Nothing,
            // Another process has stopped COMMAND, and lets it alone go on.
            (_, SIGSTOP, Continuer::Ancestor) => OnStop::Nothing,
            // The terminal stops a whole group.
            (TerminalOwner::Commands, SIGTSTP, _)
            | (TerminalOwner::Others, SIGTTIN | SIGTTOU, _) => OnStop::StopToo { group: true },
            _ => OnStop::StopToo { group: false },
        };
        self.stopped_too = matches!(then, OnStop::StopToo { .. });
        then
    }

    pub(crate) fn continued(&mut self) {
        if self.state != State::Ended {
            self.state = State::Running;
            self.stopped_too = false;
        }
    }

    /// Whether we have asked COMMAND, or its group, to end.
    pub(crate) fn has_ended_it(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether COMMAND was ended since `--max-hold` was used up.
    pub(crate) fn has_used_up_hold(&self) -> bool {
        matches!(self.ending, Some((EndReason::Hold, _)))
    }

    /// Whether SIGCONT follows a signal that is handed on, as timeout(1) and systemd do it: stopped, COMMAND could not
    /// end. A COMMAND that Ctrl-Z has stopped with us goes on with us.
    pub(crate) fn wakes(&self, signal: i32) -> bool {
        asks_to_end(signal) && !self.stopped_too
    }

    /// COMMAND has ended, and so do we, with the returned end. `None`: the lock was lost, so COMMAND was ended for
    /// that, or was unprotected at its end.
    pub(crate) fn ended(&mut self, end: End, lease: LeaseState) -> Option<End> {
        self.state = State::Ended;
        let killed_by_guard = end == End::Signal(SIGKILL)
            && self.killed.is_none()
            && (self.overslept || self.guarded.is_some_and(|until| lease.now >= until));
        if lease.remaining.is_zero() || killed_by_guard {
            return None;
        }
        match self.ending {
            Some((EndReason::Lost | EndReason::RunsOut, _)) => None,
            Some((EndReason::Hold, _)) => Some(End::Code(TIMED_OUT)),
            Some((EndReason::LeftOver, _)) | None => Some(end.to_shell()),
        }
    }

    /// COMMAND has ended and processes of its group have not.
    pub(crate) fn left_over(&mut self, lease: LeaseState) -> Act {
        match (self.killed, self.ending) {
            (None, None) => self.terminate(EndReason::LeftOver, lease.now),
            _ => Act::Nothing,
        }
    }

    /// SIGKILL was long ago and a process is still there: it hangs in the kernel, or is not ours to end.
    pub(crate) fn gives_up(&self, lease: LeaseState) -> bool {
        let since = |killed| lease.now.saturating_sub(killed);
        self.killed.is_some_and(|killed| since(killed) > KILL_TAKES)
    }

    /// How long nothing needs to be looked at, if nothing arrives.
    pub(crate) fn wait(&mut self, lease: LeaseState) -> Duration {
        let mut wait = TICK;
        if self.state == State::Ended {
            wait = wait.min(FIRST_LOOK * 2_u32.pow(self.looks.min(5)));
            self.looks += 1;
        }
        if self.killed.is_some() {
            return wait;
        }
        wait = wait.min(lease.remaining.saturating_sub(MARGIN));
        match self.ending {
            Some((_, kill_at)) => wait.min(kill_at.saturating_sub(lease.now)),
            None => wait
                .min(lease.remaining.saturating_sub(self.grace + MARGIN))
                .min(if self.state == State::Ended {
                    wait
                } else {
                    lease.hold_left
                }),
        }
    }
}

fn guard_time(lease: LeaseState) -> Duration {
    let left = lease.remaining.saturating_sub(GUARD_MARGIN);
    lease.now.saturating_add(left)
}

impl End {
    /// The exit code that a shell would return, except if the table has us die by the same signal as COMMAND.
    pub(crate) fn to_shell(self) -> End {
        match self {
            End::Signal(SIGINT | SIGTERM | SIGHUP | UNNAMED) | End::Code(_) => self,
            End::Signal(signal) => End::Code(128 | u8::try_from(signal).unwrap_or(127)),
        }
    }
}

#[cfg(test)]
mod tests;
