//! Which signals are handled, and which of them end something.

use nix::libc::{SIGPWR, SIGRTMAX, SIGRTMIN};
use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN,
    SIGTTOU, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
};

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
/// The signals by which a terminal stops the whole group of a process that asks for it, where another group has it. Handled
/// from COMMAND's start on.
pub(crate) const ASKING: [i32; 2] = [SIGTTIN, SIGTTOU];

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
    use signal_hook::consts::{SIGKILL, SIGSTOP};

    use super::*;

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
}
