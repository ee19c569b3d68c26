//! Whose turn it is at the terminal: as a shell does it, COMMAND's group has it while it runs.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use crate::{processes, run_plan};

/// The controlling terminal, if there is one.
pub(crate) struct Terminal {
    file: Option<File>,
    /// The process group of COMMAND.
    group: Pid,
    /// COMMAND should have the terminal when we have it: it reads from and writes to it, or has asked for it, and no process
    /// of our group has since then.
    wanted: bool,
    /// COMMAND has stopped, to get it later.
    pub(crate) awaited: bool,
}

impl Terminal {
    /// Called by the main thread when all processes are started: from here on this thread has SIGTTOU blocked, which
    /// would stop us when we take the terminal back, or write to it.
    pub(crate) fn new(group: Pid) -> Terminal {
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        let _ = blocked.thread_block();
        let file = File::options().read(true).write(true).open("/dev/tty");
        Terminal {
            file: file.ok(),
            group,
            // In a pipeline the terminal belongs to the process that shows the result.
            wanted: stdin().is_terminal() && stdout().is_terminal(),
            awaited: false,
        }
    }

    pub(crate) fn exists(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn state(&self) -> run_plan::TerminalOwner {
        let Some(file) = &self.file else {
            return run_plan::TerminalOwner::None;
        };
        match tcgetpgrp(file) {
            Err(_) => run_plan::TerminalOwner::None,
            Ok(group) if group == self.group => run_plan::TerminalOwner::Commands,
            Ok(group) if group == getpgrp() => run_plan::TerminalOwner::Ours,
            Ok(group) if processes::is_started_beside_us(group) => {
                run_plan::TerminalOwner::Siblings
            }
            Ok(_) => run_plan::TerminalOwner::Others,
        }
    }

    /// COMMAND begins, or goes on: it gets the terminal if it should have it and it is ours to give.
    pub(crate) fn offer(&self) {
        if self.wanted
            && self.state() == run_plan::TerminalOwner::Ours
            && let Some(file) = &self.file
        {
            let _ = tcsetpgrp(file, self.group);
        }
    }

    /// COMMAND was stopped by `signal`, which may mean that it has asked for the terminal.
    pub(crate) fn stopped_by(&mut self, signal: Signal) {
        self.wanted |= [Signal::SIGTTIN, Signal::SIGTTOU].contains(&signal);
    }

    /// A process of our group has asked for the terminal: it gets it, and what was stopped of our group goes on.
    pub(crate) fn give_back(&mut self) {
        self.wanted = false;
        self.take_back();
        let _ = kill(Pid::from_raw(0), Signal::SIGCONT);
    }

    /// COMMAND has stopped or ended. Returns whether it had the terminal.
    pub(crate) fn take_back(&self) -> bool {
        let had = self.state() == run_plan::TerminalOwner::Commands;
        if had && let Some(file) = &self.file {
            let _ = tcsetpgrp(file, getpgrp());
        }
        had
    }

    /// Stops this process until it is continued; or its whole group, which the terminal's stop key would have stopped,
    /// had COMMAND been in it.
    pub(crate) fn stop_too(&self, group: bool) {
        self.take_back();
        if group {
            let _ = kill(Pid::from_raw(0), Signal::SIGSTOP);
        } else {
            let _ = raise(Signal::SIGSTOP);
        }
    }

    /// COMMAND was ended from the keyboard, so a process of our group that waits for us (a script) is signalled, too,
    /// as if COMMAND had been in it. We are as well, and end next.
    pub(crate) fn pass_on_key(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(0), signal);
    }
}
