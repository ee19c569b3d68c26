use std::time::Duration;

use signal_hook::consts::{SIGQUIT, SIGSTOP, SIGUSR1, SIGWINCH};

use super::*;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn lease(now: Duration, remaining: Duration) -> LeaseState {
    LeaseState {
        now,
        remaining,
        hold_left: 3600 * S,
    }
}

/// COMMAND runs, under a lease of 30 s taken at 100 s.
fn running() -> RunPlan {
    let mut plan = RunPlan::new(5 * S);
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
                assert_eq!(why, EndReason::RunsOut);
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
    let told = Act::Terminate(EndReason::RunsOut);
    assert_eq!(plan.look(lease(125 * S, 5 * S)), told);
    assert_eq!(plan.look(lease(126 * S, 29 * S)), Act::Nothing);
    assert_eq!(
        plan.look(lease(130 * S, 25 * S)),
        Act::Kill(EndReason::RunsOut)
    );
    assert_eq!(plan.look(lease(131 * S, 25 * S)), Act::Nothing);
    let end = plan.ended(End::Code(0), lease(131 * S, 25 * S));
    assert_eq!(end, None);
}

#[test]
fn a_loss_kills_at_once() {
    let mut plan = running();
    let lost = lease(101 * S, Duration::ZERO);
    assert_eq!(plan.look(lost), Act::Kill(EndReason::Lost));
    assert_eq!(plan.look(lost), Act::Nothing);
    // Also between SIGTERM and SIGKILL.
    let mut plan = running();
    plan.look(lease(125 * S, 5 * S));
    assert_eq!(
        plan.look(lease(126 * S, MARGIN)),
        Act::Kill(EndReason::Lost)
    );
}

#[test]
fn max_hold_terminates_then_kills() {
    let mut plan = running();
    let over = |now| LeaseState {
        hold_left: Duration::ZERO,
        ..lease(now, 20 * S)
    };
    let mut before = over(99 * S);
    before.hold_left = 40 * MS;
    assert_eq!(plan.look(before), Act::Nothing);
    assert_eq!(plan.wait(before), 40 * MS);
    assert_eq!(plan.look(over(100 * S)), Act::Terminate(EndReason::Hold));
    assert_eq!(plan.look(over(104 * S)), Act::Nothing);
    assert_eq!(plan.wait(over(105 * S - 7 * MS)), 7 * MS);
    assert_eq!(plan.look(over(105 * S)), Act::Kill(EndReason::Hold));
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
fn who_asks_for_the_terminal_beside_us_gets_it_unless_others_have_it() {
    for (terminal, expected) in [
        (TerminalOwner::Commands, OnAsk::TakeBack),
        (TerminalOwner::Ours, OnAsk::TakeBack),
        (TerminalOwner::Others, OnAsk::HandOn),
        (TerminalOwner::Siblings, OnAsk::Nothing),
        (TerminalOwner::None, OnAsk::Nothing),
    ] {
        assert_eq!(asked_beside_us(terminal), expected, "{terminal:?}");
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
    let mut plan = RunPlan::new(S);
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
    assert_eq!(plan.look(lost), Act::Kill(EndReason::Lost));
    assert_eq!(plan.guard_until(lost), None);
    assert!(plan.guard_until(lease(112 * S, 30 * S)).is_some());
    assert!(GUARD_MARGIN < MARGIN && GUARD_SLACK <= GUARD_MARGIN);
}

#[test]
fn what_the_user_stops_stops_us_and_what_wants_the_terminal_gets_it() {
    let cases = [
        (SIGTSTP, TerminalOwner::None, OnStop::Nothing),
        (SIGSTOP, TerminalOwner::None, OnStop::Nothing),
        (SIGTTIN, TerminalOwner::None, OnStop::Nothing),
        (SIGTTIN, TerminalOwner::Ours, OnStop::GiveTerminal),
        (SIGTTOU, TerminalOwner::Ours, OnStop::GiveTerminal),
        (
            SIGTTIN,
            TerminalOwner::Others,
            OnStop::StopToo { group: true },
        ),
        (SIGTTOU, TerminalOwner::Siblings, OnStop::GiveTerminalLater),
        (
            SIGTSTP,
            TerminalOwner::Ours,
            OnStop::StopToo { group: false },
        ),
        (
            SIGTSTP,
            TerminalOwner::Commands,
            OnStop::StopToo { group: true },
        ),
        (
            SIGSTOP,
            TerminalOwner::Commands,
            OnStop::StopToo { group: false },
        ),
    ];
    for (signal, terminal, expected) in cases {
        let then = running().stopped(signal, terminal, Continuer::Parent);
        assert_eq!(then, expected);
        let in_script = running().stopped(signal, terminal, Continuer::Ancestor);
        // The script would not see that we stopped.
        let by_others = signal == SIGSTOP;
        assert_eq!(
            in_script,
            if by_others { OnStop::Nothing } else { expected }
        );
    }
    let orphaned = |signal, terminal| running().stopped(signal, terminal, Continuer::None);
    assert_eq!(orphaned(SIGTSTP, TerminalOwner::Commands), OnStop::GoOn);
    assert_eq!(orphaned(SIGTSTP, TerminalOwner::None), OnStop::Nothing);
    assert_eq!(orphaned(SIGTTIN, TerminalOwner::Ours), OnStop::GiveTerminal);
    assert_eq!(orphaned(SIGTTIN, TerminalOwner::Others), OnStop::Nothing);
    assert_eq!(orphaned(SIGSTOP, TerminalOwner::Commands), OnStop::Nothing);
}

#[test]
fn a_signal_that_ends_wakes_what_was_not_stopped_with_us() {
    let mut plan = running();
    assert!(plan.wakes(SIGTERM) && plan.wakes(SIGINT));
    assert!(!plan.wakes(SIGUSR1) && !plan.wakes(SIGWINCH));
    for (signal, terminal) in [
        (SIGTTIN, TerminalOwner::None),
        (SIGSTOP, TerminalOwner::None),
        (SIGTSTP, TerminalOwner::None),
    ] {
        plan.stopped(signal, terminal, Continuer::Parent);
        assert!(plan.wakes(SIGTERM) && plan.wakes(SIGHUP));
    }
    plan.stopped(SIGTSTP, TerminalOwner::Commands, Continuer::Parent);
    assert!(!plan.wakes(SIGTERM));
    plan.continued();
    assert!(plan.wakes(SIGTERM));
    // A COMMAND that did not stop with us.
    plan.stopped(SIGTSTP, TerminalOwner::Commands, Continuer::None);
    assert!(plan.wakes(SIGTERM));
}

#[test]
fn what_is_left_over_is_ended_and_the_code_stays() {
    let mut plan = running();
    let end = plan.ended(End::Code(3), lease(101 * S, 29 * S));
    assert_eq!(end, Some(End::Code(3)));
    let lease_at = |now| lease(now, 20 * S);
    let told = plan.left_over(lease_at(101 * S));
    assert_eq!(told, Act::Terminate(EndReason::LeftOver));
    assert_eq!(plan.left_over(lease_at(102 * S)), Act::Nothing);
    // Looked at often at first; max-hold is nothing to it.
    assert_eq!(plan.wait(lease_at(101 * S)), FIRST_LOOK);
    assert_eq!(plan.wait(lease_at(101 * S)), FIRST_LOOK * 2);
    let mut over = lease_at(102 * S);
    over.hold_left = Duration::ZERO;
    assert_eq!(plan.look(over), Act::Nothing);
    assert!(!plan.wait(over).is_zero());
    assert_eq!(plan.look(lease_at(106 * S)), Act::Kill(EndReason::LeftOver));
    assert!(!plan.gives_up(lease_at(106 * S + KILL_TAKES)));
    assert!(plan.gives_up(lease_at(106 * S + KILL_TAKES + MS)));
    // A loss leaves them no time.
    let mut plan = running();
    plan.ended(End::Code(3), lease(101 * S, 29 * S));
    plan.left_over(lease(101 * S, 29 * S));
    let lost = plan.look(lease(102 * S, Duration::ZERO));
    assert_eq!(lost, Act::Kill(EndReason::Lost));
}

#[test]
fn a_grace_of_zero_and_clocks_at_their_ends_do_no_harm() {
    let mut plan = RunPlan::new(Duration::ZERO);
    let at_end = lease(Duration::MAX, S);
    assert_eq!(plan.look(at_end), Act::Nothing);
    plan.arm(at_end);
    let told = plan.look(lease(S, MARGIN));
    assert_eq!(told, Act::Kill(EndReason::Lost));
    let forever = LeaseState {
        hold_left: Duration::MAX,
        ..lease(S, Duration::MAX)
    };
    let mut plan = RunPlan::new(S);
    assert_eq!(plan.look(forever), Act::Nothing);
    assert_eq!(plan.wait(forever), TICK);
}
