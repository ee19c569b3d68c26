//! The next step, decided from the lease, the signals and the state of COMMAND alone: no I/O, no clock.

use std::time::Duration;

use nix::libc::{SIGPWR, SIGRTMAX, SIGRTMIN};
use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGKILL, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP,
    SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
};

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
pub(crate) struct Lease {
    /// The time on a clock that counts suspend.
    pub(crate) now: Duration,
    /// Zero once it is lost.
    pub(crate) remaining: Duration,
    /// How long the lock is still renewed.
    pub(crate) hold_left: Duration,
}

/// Why COMMAND, or what it left behind, is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
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
    Terminate(Why),
    /// SIGKILL.
    Kill(Why),
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
    /// No process could continue us, so COMMAND goes on at once, as it would without us.
    GoOn,
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
pub(crate) enum Terminal {
    /// There is no terminal.
    None,
    /// Other groups have it.
    Others,
    Ours,
    Commands,
}

/// One run of COMMAND.
#[derive(Debug)]
pub(crate) struct Plan {
    grace: Duration,
    state: State,
    /// We were stopped with COMMAND. The SIGCONT that continues us is handed on.
    stopped_too: bool,
    /// Why COMMAND is being ended, and when SIGKILL follows.
    ending: Option<(Why, Duration)>,
    /// When we killed COMMAND.
    killed: Option<Duration>,
    /// The time until which the guard leaves COMMAND alone.
    guarded: Option<Duration>,
    /// The guard's time before had passed when a new one was set: it may have killed COMMAND, though the lock was
    /// renewed.
    overslept: bool,
    looks: u32,
}

impl Plan {
    pub(crate) fn new(grace: Duration) -> Plan {
        Plan {
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
    pub(crate) fn look(&mut self, lease: Lease) -> Act {
        if self.killed.is_some() {
            return Act::Nothing;
        }
        if lease.remaining <= MARGIN {
            return self.kill(Why::Lost, lease.now);
        }
        if let Some((why, kill_at)) = self.ending {
            return match lease.now >= kill_at {
                true => self.kill(why, lease.now),
                false => Act::Nothing,
            };
        }
        let why = if lease.remaining <= self.grace + MARGIN {
            Why::RunsOut
        } else if lease.hold_left.is_zero() && self.state != State::Ended {
            Why::Hold
        } else {
            return Act::Nothing;
        };
        self.terminate(why, lease.now)
    }

    fn terminate(&mut self, why: Why, now: Duration) -> Act {
        self.ending = Some((why, now.saturating_add(self.grace)));
        Act::Terminate(why)
    }

    fn kill(&mut self, why: Why, now: Duration) -> Act {
        // An end that was begun for another reason is a loss all the same, unless COMMAND had ended before.
        if self.state != State::Ended || self.ending.is_none() {
            self.ending = Some((why, now));
        }
        self.killed = Some(now);
        Act::Kill(why)
    }

    /// The time to give to the guard, if it needs another one.
    pub(crate) fn guard_until(&mut self, lease: Lease) -> Option<Duration> {
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
    pub(crate) fn arm(&mut self, lease: Lease) -> Duration {
        let until = guard_time(lease);
        self.guarded = Some(until);
        until
    }

    /// COMMAND was stopped. `orphaned`: no process could continue us if we stopped.
    pub(crate) fn stopped(&mut self, signal: i32, terminal: Terminal, orphaned: bool) -> OnStop {
        self.state = State::Stopped;
        let then = match (terminal, signal) {
            // Renewed until --max-hold ends that.
            (Terminal::None, _) => OnStop::Nothing,
            (Terminal::Ours, SIGTTIN | SIGTTOU) => OnStop::GiveTerminal,
            (_, SIGTSTP) if orphaned => OnStop::GoOn,
            _ if orphaned => OnStop::Nothing,
            (Terminal::Commands, SIGTSTP) => OnStop::StopToo { group: true },
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

    /// Whether SIGCONT follows a signal that is handed on, as timeout(1) and systemd do it: stopped, COMMAND could not
    /// end. A COMMAND that Ctrl-Z has stopped with us goes on with us.
    pub(crate) fn wakes(&self, signal: i32) -> bool {
        asks_to_end(signal) && !self.stopped_too
    }

    /// COMMAND has ended, and so do we, with the returned end. `None`: the lock was lost, so COMMAND was ended for
    /// that, or was unprotected at its end.
    pub(crate) fn ended(&mut self, end: End, lease: Lease) -> Option<End> {
        self.state = State::Ended;
        let killed_by_guard = end == End::Signal(SIGKILL)
            && self.killed.is_none()
            && (self.overslept || self.guarded.is_some_and(|until| lease.now >= until));
        if lease.remaining.is_zero() || killed_by_guard {
            return None;
        }
        match self.ending {
            Some((Why::Lost | Why::RunsOut, _)) => None,
            Some((Why::Hold, _)) => Some(End::Code(TIMED_OUT)),
            Some((Why::LeftOver, _)) | None => Some(end.to_shell()),
        }
    }

    /// COMMAND has ended and processes of its group have not.
    pub(crate) fn left_over(&mut self, lease: Lease) -> Act {
        match (self.killed, self.ending) {
            (None, None) => self.terminate(Why::LeftOver, lease.now),
            _ => Act::Nothing,
        }
    }

    /// SIGKILL was long ago and a process is still there: it hangs in the kernel, or is not ours to end.
    pub(crate) fn gives_up(&self, lease: Lease) -> bool {
        let since = |killed| lease.now.saturating_sub(killed);
        self.killed.is_some_and(|killed| since(killed) > KILL_TAKES)
    }

    /// How long nothing needs to be looked at, if nothing arrives.
    pub(crate) fn wait(&mut self, lease: Lease) -> Duration {
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

fn guard_time(lease: Lease) -> Duration {
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

/// Whether the signal is one by which others ask us to end.
pub(crate) fn asks_to_end(signal: i32) -> bool {
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(&signal)
}

/// The handled signals: all that end a process, and may be sent to it by others. Not those that cannot be handled, nor
/// those of its own fault (SIGSEGV, SIGSYS, …).
pub(crate) fn handled() -> impl Iterator<Item = i32> {
    ENDING
        .into_iter()
        .chain(OTHERS)
        .chain(SIGRTMIN()..=SIGRTMAX())
}

/// The signals that end a process which does not handle them.
const ENDING: [i32; 14] = [
    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGABRT, SIGALRM, SIGIO, SIGPROF, SIGPWR,
    SIGVTALRM, SIGXCPU, SIGXFSZ,
];
const OTHERS: [i32; 3] = [SIGWINCH, SIGTSTP, SIGCONT];

/// Whether the signal ends the wait for the lock.
pub(crate) fn ends_the_wait(signal: i32) -> bool {
    ENDING.contains(&signal) || signal >= SIGRTMIN()
}

/// Whether the signal is handed on to COMMAND's group as it is.
pub(crate) fn is_handed_on(signal: i32) -> bool {
    ends_the_wait(signal) || OTHERS.contains(&signal)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGSTOP;

    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn lease(now: Duration, remaining: Duration) -> Lease {
        Lease {
            now,
            remaining,
            hold_left: 3600 * S,
        }
    }

    /// COMMAND runs, under a lease of 30 s taken at 100 s.
    fn running() -> Plan {
        let mut plan = Plan::new(5 * S);
        plan.arm(lease(100 * S, 30 * S));
        plan
    }

    #[test]
    fn nothing_is_done_while_the_lease_is_renewed() {
        let mut plan = running();
        for now in 100..10_000 {
            assert_eq!(plan.look(lease(now * S, 20 * S)), Act::Nothing);
        }
    }

    #[test]
    fn the_lease_runs_out_term_a_grace_before_kill_before_the_end() {
        let mut plan = running();
        let (mut term, mut kill) = (None, None);
        // The time that a wait takes is the time until something is to be done, to the millisecond.
        let (mut now, end) = (100 * S, 130 * S);
        while now < end {
            let lease = lease(now, end - now);
            match plan.look(lease) {
                Act::Terminate(why) => {
                    assert_eq!(why, Why::RunsOut);
                    assert!(term.replace(end - now).is_none());
                }
                Act::Kill(_) => assert!(kill.replace(end - now).is_none()),
                Act::Nothing => {}
            }
            let wait = plan.wait(lease);
            assert!(wait <= TICK && wait > Duration::ZERO, "{wait:?} at {now:?}");
            now += wait;
        }
        assert_eq!((term, kill), (Some(5 * S + MARGIN), Some(MARGIN)));
        assert_eq!(
            plan.ended(End::Signal(SIGKILL), lease(now, Duration::ZERO)),
            None
        );
    }

    #[test]
    fn after_a_request_to_end_it_is_killed_renewed_or_not() {
        let mut plan = running();
        let told = Act::Terminate(Why::RunsOut);
        assert_eq!(plan.look(lease(125 * S, 5 * S)), told);
        assert_eq!(plan.look(lease(126 * S, 29 * S)), Act::Nothing);
        assert_eq!(plan.look(lease(130 * S, 25 * S)), Act::Kill(Why::RunsOut));
        assert_eq!(plan.look(lease(131 * S, 25 * S)), Act::Nothing);
        let end = plan.ended(End::Code(0), lease(131 * S, 25 * S));
        assert_eq!(end, None);
    }

    #[test]
    fn a_loss_kills_at_once() {
        let mut plan = running();
        let lost = lease(101 * S, Duration::ZERO);
        assert_eq!(plan.look(lost), Act::Kill(Why::Lost));
        assert_eq!(plan.look(lost), Act::Nothing);
        // Also between SIGTERM and SIGKILL.
        let mut plan = running();
        plan.look(lease(125 * S, 5 * S));
        assert_eq!(plan.look(lease(126 * S, MARGIN)), Act::Kill(Why::Lost));
    }

    #[test]
    fn max_hold_terminates_then_kills() {
        let mut plan = running();
        let over = |now| Lease {
            hold_left: Duration::ZERO,
            ..lease(now, 20 * S)
        };
        let mut before = over(99 * S);
        before.hold_left = 40 * MS;
        assert_eq!(plan.look(before), Act::Nothing);
        assert_eq!(plan.wait(before), 40 * MS);
        assert_eq!(plan.look(over(100 * S)), Act::Terminate(Why::Hold));
        assert_eq!(plan.look(over(104 * S)), Act::Nothing);
        assert_eq!(plan.wait(over(105 * S - 7 * MS)), 7 * MS);
        assert_eq!(plan.look(over(105 * S)), Act::Kill(Why::Hold));
        let end = plan.ended(End::Signal(SIGKILL), over(105 * S));
        assert_eq!(end, Some(End::Code(TIMED_OUT)));
        // The loss goes before.
        let mut plan = running();
        plan.look(over(100 * S));
        let end = plan.ended(End::Code(0), lease(101 * S, Duration::ZERO));
        assert_eq!(end, None);
    }

    #[test]
    fn codes_are_those_of_the_table() {
        let cases = [
            (End::Code(0), End::Code(0)),
            (End::Code(76), End::Code(76)),
            (End::Code(255), End::Code(255)),
            (End::Signal(SIGINT), End::Signal(SIGINT)),
            (End::Signal(SIGTERM), End::Signal(SIGTERM)),
            (End::Signal(SIGHUP), End::Signal(SIGHUP)),
            (End::Signal(SIGQUIT), End::Code(131)),
            (End::Signal(SIGKILL), End::Code(137)),
            (End::Signal(64), End::Code(192)),
        ];
        for (end, expected) in cases {
            let in_time = lease(101 * S, 29 * S);
            assert_eq!(running().ended(end, in_time), Some(expected));
            let late = lease(131 * S, Duration::ZERO);
            assert_eq!(running().ended(end, late), None);
        }
    }

    #[test]
    fn a_kill_past_the_guards_time_was_the_guards() {
        let renewed = |now| lease(now, 20 * S);
        let kill = End::Signal(SIGKILL);
        let (before, after) = (renewed(129 * S), renewed(130 * S));
        assert_eq!(running().ended(kill, before), Some(End::Code(137)));
        assert_eq!(running().ended(kill, after), None);
        let ended = running().ended(End::Code(3), after);
        assert_eq!(ended, Some(End::Code(3)));
        // We woke up when it had killed, and just in time to renew the lock.
        let mut plan = running();
        plan.guard_until(after).unwrap();
        assert_eq!(plan.ended(kill, after), None);
        // A later kill is another process's.
        let mut plan = running();
        plan.guard_until(after).unwrap();
        plan.guard_until(renewed(140 * S)).unwrap();
        let ended = plan.ended(kill, renewed(141 * S));
        assert_eq!(ended, Some(End::Code(137)));
    }

    #[test]
    fn the_guard_gets_each_new_time_before_the_lease_ends() {
        let mut plan = Plan::new(S);
        assert_eq!(plan.guard_until(lease(100 * S, 30 * S)), None);
        assert_eq!(plan.arm(lease(100 * S, 30 * S)), 130 * S - GUARD_MARGIN);
        assert_eq!(plan.guard_until(lease(110 * S, 20 * S)), None);
        assert_eq!(plan.guard_until(lease(110 * S, 20 * S + 50 * MS)), None);
        let renewed = plan.guard_until(lease(110 * S, 29 * S));
        assert_eq!(renewed, Some(139 * S - GUARD_MARGIN));
        // The clock was set, or it was lost.
        let lost = plan.guard_until(lease(111 * S, Duration::ZERO));
        assert_eq!(lost, Some(111 * S));
        // We have killed it ourselves.
        plan.arm(lease(100 * S, 30 * S));
        let lost = lease(111 * S, Duration::ZERO);
        assert_eq!(plan.look(lost), Act::Kill(Why::Lost));
        assert_eq!(plan.guard_until(lost), None);
        assert!(plan.guard_until(lease(112 * S, 30 * S)).is_some());
        assert!(GUARD_MARGIN < MARGIN && GUARD_SLACK <= GUARD_MARGIN);
    }

    #[test]
    fn what_the_user_stops_stops_us_and_what_wants_the_terminal_gets_it() {
        let cases = [
            (SIGTSTP, Terminal::None, OnStop::Nothing),
            (SIGSTOP, Terminal::None, OnStop::Nothing),
            (SIGTTIN, Terminal::None, OnStop::Nothing),
            (SIGTTIN, Terminal::Ours, OnStop::GiveTerminal),
            (SIGTTOU, Terminal::Ours, OnStop::GiveTerminal),
            (SIGTTIN, Terminal::Others, OnStop::StopToo { group: false }),
            (SIGTSTP, Terminal::Ours, OnStop::StopToo { group: false }),
            (SIGTSTP, Terminal::Commands, OnStop::StopToo { group: true }),
            (
                SIGSTOP,
                Terminal::Commands,
                OnStop::StopToo { group: false },
            ),
        ];
        for (signal, terminal, expected) in cases {
            assert_eq!(running().stopped(signal, terminal, false), expected);
        }
        let orphaned = |signal, terminal| running().stopped(signal, terminal, true);
        assert_eq!(orphaned(SIGTSTP, Terminal::Commands), OnStop::GoOn);
        assert_eq!(orphaned(SIGTSTP, Terminal::None), OnStop::Nothing);
        assert_eq!(orphaned(SIGTTIN, Terminal::Ours), OnStop::GiveTerminal);
        assert_eq!(orphaned(SIGTTIN, Terminal::Others), OnStop::Nothing);
        assert_eq!(orphaned(SIGSTOP, Terminal::Commands), OnStop::Nothing);
    }

    #[test]
    fn a_signal_that_ends_wakes_what_was_not_stopped_with_us() {
        let mut plan = running();
        assert!(plan.wakes(SIGTERM) && plan.wakes(SIGINT));
        assert!(!plan.wakes(SIGUSR1) && !plan.wakes(SIGWINCH));
        for (signal, terminal) in [
            (SIGTTIN, Terminal::None),
            (SIGSTOP, Terminal::None),
            (SIGTSTP, Terminal::None),
        ] {
            plan.stopped(signal, terminal, false);
            assert!(plan.wakes(SIGTERM) && plan.wakes(SIGHUP));
        }
        plan.stopped(SIGTSTP, Terminal::Commands, false);
        assert!(!plan.wakes(SIGTERM));
        plan.continued();
        assert!(plan.wakes(SIGTERM));
        // A COMMAND that did not stop with us.
        plan.stopped(SIGTSTP, Terminal::Commands, true);
        assert!(plan.wakes(SIGTERM));
    }

    #[test]
    fn what_may_come_from_others_and_ends_a_process_is_handed_on() {
        let all: Vec<i32> = handled().collect();
        for signal in [SIGALRM, SIGABRT, SIGPROF, SIGRTMIN(), SIGRTMAX()] {
            assert!(all.contains(&signal) && is_handed_on(signal) && ends_the_wait(signal));
        }
        for signal in [SIGKILL, SIGSTOP, nix::libc::SIGSEGV, nix::libc::SIGCHLD] {
            assert!(!all.contains(&signal) && !is_handed_on(signal));
        }
        assert!(!ends_the_wait(SIGWINCH) && is_handed_on(SIGWINCH));
    }

    #[test]
    fn what_is_left_over_is_ended_and_the_code_stays() {
        let mut plan = running();
        let end = plan.ended(End::Code(3), lease(101 * S, 29 * S));
        assert_eq!(end, Some(End::Code(3)));
        let lease_at = |now| lease(now, 20 * S);
        let told = plan.left_over(lease_at(101 * S));
        assert_eq!(told, Act::Terminate(Why::LeftOver));
        assert_eq!(plan.left_over(lease_at(102 * S)), Act::Nothing);
        // Looked at often at first; max-hold is nothing to it.
        assert_eq!(plan.wait(lease_at(101 * S)), FIRST_LOOK);
        assert_eq!(plan.wait(lease_at(101 * S)), FIRST_LOOK * 2);
        let mut over = lease_at(102 * S);
        over.hold_left = Duration::ZERO;
        assert_eq!(plan.look(over), Act::Nothing);
        assert!(!plan.wait(over).is_zero());
        assert_eq!(plan.look(lease_at(106 * S)), Act::Kill(Why::LeftOver));
        assert!(!plan.gives_up(lease_at(106 * S + KILL_TAKES)));
        assert!(plan.gives_up(lease_at(106 * S + KILL_TAKES + MS)));
        // A loss leaves them no time.
        let mut plan = running();
        plan.ended(End::Code(3), lease(101 * S, 29 * S));
        plan.left_over(lease(101 * S, 29 * S));
        let lost = plan.look(lease(102 * S, Duration::ZERO));
        assert_eq!(lost, Act::Kill(Why::Lost));
    }

    #[test]
    fn a_grace_of_zero_and_clocks_at_their_ends_do_no_harm() {
        let mut plan = Plan::new(Duration::ZERO);
        let at_end = lease(Duration::MAX, S);
        assert_eq!(plan.look(at_end), Act::Nothing);
        plan.arm(at_end);
        let told = plan.look(lease(S, MARGIN));
        assert_eq!(told, Act::Kill(Why::Lost));
        let forever = Lease {
            hold_left: Duration::MAX,
            ..lease(S, Duration::MAX)
        };
        let mut plan = Plan::new(S);
        assert_eq!(plan.look(forever), Act::Nothing);
        assert_eq!(plan.wait(forever), TICK);
    }
}
