//! `redlock run`: takes the lock, runs COMMAND, and ends it before the lock ends.
//!
//! Three processes. This one, the *wrapper*, renews the lock. *COMMAND* leads its own group, so that all processes that
//! it starts can be ended with it. The *guard* ends that group should the wrapper be gone or stopped. The steps are
//! decided in run_plan.rs.

use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;
use std::{fs, io};

use log::info;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use redlock_sync::{Error, KeptLock, Options, Redlock};
use signal_hook::consts::{SIGCONT, SIGINT, SIGQUIT};

use crate::acquire::{Handlers, acquire, signals};
use crate::checked_arguments::Job;
use crate::child::{self, GuardProcess, Until, boot_time};
use crate::end_lock::{give_up, say_lost};
use crate::metrics::{self, RunOutcome};
use crate::once_per::{before_start, mark_done};
use crate::processes;
use crate::run_plan::{
    Act, EndReason, LeaseState, OnAsk, OnStop, RunPlan, TerminalOwner, UNNAMED, asked_beside_us,
};
use crate::signals::{ASKING, is_handed_on};
use crate::terminal::Terminal;
use crate::{End, LOST, NO_PROCESS, environment, failed, report};

const SELF: &str = "/proc/self/exe";

pub(crate) fn run(
    job: &Job,
    redlock: &Redlock,
    options: &Options,
    metrics_file: Option<&Path>,
) -> End {
    let mut counted = metrics::CountedRun::begin();
    let (end, outcome) = match locked(job, redlock, options, &mut counted) {
        Ok(ended) => ended,
        Err(end) => (end, RunOutcome::before_start(end)),
    };
    if let Some(path) = metrics_file {
        counted.count(path, &job.name, outcome);
    }
    end
}

/// Takes the lock, runs COMMAND and gives up the lock. `Err`: COMMAND has not run.
fn locked(
    job: &Job,
    redlock: &Redlock,
    options: &Options,
    counted: &mut metrics::CountedRun,
) -> Result<(End, RunOutcome), End> {
    // Without these nothing could be started once there is a lock.
    let signals = fs::metadata(SELF).and_then(|_| signals());
    let (signals, handlers) =
        signals.map_err(|error| no_process("the process's signals from /proc", &error))?;
    let until = job.wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut is_second = false;
    let (kept, started) = loop {
        let lock = match acquire(job, redlock, options, &signals, until) {
            Ok(lock) => lock,
            Err(ended) => return Ok(ended),
        };
        let started = boot_time();
        match lock.keep_alive(job.max_hold) {
            Ok(kept) => break (kept, started),
            // We were stopped, so the lock is over, or held for longer than --max-hold; and nothing has begun yet.
            Err(Error::Lost(_)) => {}
            Err(Error::Config(_)) if !is_second => is_second = true,
            Err(error) => return Err(failed(&error)),
        }
    };
    let fence = match before_start(job, redlock, &kept, &signals) {
        Ok(fence) => fence,
        Err(ended) => {
            let _ = kept.release();
            return Ok(ended);
        }
    };
    let run = RunningJob::start(job, kept, fence, (&signals, &handlers));
    let run = run.map_err(|error| no_process("a process", &error))?;
    counted.command_begins();
    let (ended, kept) = run.finish();
    let held = boot_time().saturating_sub(started);
    counted.command_ended(held);
    let (Some((end, outcome)), Some(kept)) = (ended, kept) else {
        return Ok((End::Code(LOST), RunOutcome::Lost));
    };
    let asked = match (job.once_per, end) {
        // Otherwise the period is over, and COMMAND may run again.
        (Some(period), End::Code(0)) if held < period => mark_done(&kept, period, held, &signals),
        _ => None,
    };
    // A COMMAND that has not begun may begin elsewhere, whatever --at-least is.
    let held = match outcome {
        RunOutcome::NotStarted => std::time::Duration::MAX,
        _ => held,
    };
    let given_up = give_up((job, redlock), kept, held, end, (&signals, asked));
    let lost = given_up != end && given_up == End::Code(LOST);
    Ok((given_up, if lost { RunOutcome::Lost } else { outcome }))
}

fn no_process(what: &str, error: &dyn std::error::Error) -> End {
    report(format_args!("cannot get {what}: {error}"));
    End::Code(NO_PROCESS)
}

/// COMMAND, the guard, and the channels between them and us.
struct RunningJob<'a> {
    plan: RunPlan,
    kept: KeptLock,
    command: Child,
    /// The process group of COMMAND.
    group: Pid,
    guard: GuardProcess,
    terminal: Terminal,
    signals: &'a Receiver<i32>,
    /// An interrupt or quit came by way of us, not from the keyboard straight to COMMAND.
    handed_on_key: bool,
    /// Signals did not reach COMMAND, and that was reported.
    refused: bool,
    /// COMMAND never began, since the guard did not answer.
    unguarded: bool,
    /// Shells that hand on real-time signals.
    senders: Vec<Child>,
}

impl<'a> RunningJob<'a> {
    /// Starts the two, on the main thread: COMMAND dies with the thread that started it.
    fn start(
        job: &Job,
        kept: KeptLock,
        fence: Option<u64>,
        (signals, handlers): (&'a Receiver<i32>, &Handlers),
    ) -> io::Result<RunningJob<'a>> {
        let (socket, from_us) = UnixStream::pair()?;
        let shared = memfd_create(c"redlock-until", MFdFlags::MFD_CLOEXEC)?;
        let until = Until::new(shared.try_clone()?);
        let (wait_here, gate) = pipe()?;
        let mut command = RunningJob::command(job, (fence, kept.slot()), wait_here)?;
        let group = Pid::from_raw(i32::try_from(command.id()).unwrap_or(i32::MAX));
        let guard = Command::new(SELF)
            .arg0("redlock: guard")
            .args([child::GUARD, &group.to_string()])
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(from_us)))
            .stdout(Stdio::from(shared))
            .spawn();
        let guard = guard.inspect_err(|_| {
            // The process waits to begin.
            let _ = command.kill().and_then(|()| command.wait());
        })?;
        let terminal = Terminal::new(group);
        if terminal.exists() {
            handlers.add(&ASKING);
        }
        child::hand_over_input_and_output();
        let mut run = RunningJob {
            plan: RunPlan::new(job.grace),
            kept,
            command,
            group,
            guard: GuardProcess {
                process: Some(guard),
                socket,
                until,
            },
            terminal,
            signals,
            handed_on_key: false,
            refused: false,
            unguarded: false,
            senders: Vec::new(),
        };
        run.begin(gate);
        Ok(run)
    }

    /// The process that becomes COMMAND as soon as there is something to read.
    fn command(
        job: &Job,
        (fence, slot): (Option<u64>, Option<u32>),
        wait_here: PipeReader,
    ) -> io::Result<Child> {
        // Only this process inherits the pipe: nothing else is started before we have closed ours.
        fcntl(&wait_here, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = Command::new(SELF);
        command
            .arg0("redlock")
            .arg(child::COMMAND)
            .arg(std::process::id().to_string())
            .arg(wait_here.as_raw_fd().to_string())
            .arg(&job.command.0)
            .args(&job.command.1)
            .process_group(0);
        environment(&mut command, &job.name, fence, slot);
        command.spawn()
    }

    /// Lets COMMAND begin, once the guard has answered that it is armed.
    fn begin(&mut self, mut gate: PipeWriter) {
        let until = self.plan.arm(self.lease());
        self.guard.tell(until);
        match self.guard.wait_until_armed() {
            Ok(()) => {
                self.terminal.offer();
                // If the group is empty, that is found when its end is looked for.
                let _ = gate.write_all(&[1]);
            }
            Err(_) => {
                self.unguarded = true;
                self.send(Signal::SIGKILL);
            }
        }
    }

    /// How we end, as [`RunPlan::ended`] decides; and the lock, if nothing of COMMAND's group is left: otherwise no
    /// process may have it before its ttl is over.
    fn finish(mut self) -> (Option<(End, RunOutcome)>, Option<KeptLock>) {
        let end = loop {
            self.look();
            let wait = self.plan.wait(self.lease());
            let signal = self.signals.recv_timeout(wait).ok();
            // We may have been stopped meanwhile: first do what is due.
            self.look();
            if let Some(signal) = signal {
                self.signal(signal);
            }
            self.stops();
            match self.command_end() {
                Ok(None) => {}
                Ok(Some(end)) => break self.ended(end),
                // Another thread has waited for it.
                Err(error) => break Some(no_process("COMMAND's end", &error)),
            }
            if self.plan.gives_up(self.lease()) {
                break None;
            }
            self.guard.look();
            self.adopted();
        };
        let gone = self.leftovers();
        // From here on the guard and the senders could kill another group that gets this number: they end before the
        // number is free.
        let guard = self.guard.process.take();
        for mut process in guard.into_iter().chain(self.senders.drain(..)) {
            let _ = process.kill().and_then(|()| process.wait());
        }
        if !gone {
            report(format_args!(
                "processes of COMMAND do not end (group {}): the lock is left to its ttl",
                self.group
            ));
            self.kept.stop().leak();
            return (None, None);
        }
        let end = match (end, self.command.wait()) {
            (Some(End::Signal(UNNAMED)), Ok(status)) => Some(End::of(status).to_shell()),
            (end, _) => end,
        };
        let outcome = |end| match end {
            _ if self.unguarded => RunOutcome::NotStarted,
            _ if self.plan.has_used_up_hold() => RunOutcome::MaxHold,
            End::Code(0) => RunOutcome::Succeeded,
            _ => RunOutcome::Failed,
        };
        (end.map(|end| (end, outcome(end))), Some(self.kept))
    }

    /// COMMAND's end, if it has ended. COMMAND stays a zombie, so that no other process reuses its number, or its
    /// group's.
    fn command_end(&self) -> Result<Option<End>, Errno> {
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.group), peek) {
            Ok(WaitStatus::Exited(_, code)) => Ok(u8::try_from(code).ok().map(End::Code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Ok(Some(End::Signal(signal as i32))),
            // A real-time signal.
            Err(Errno::EINVAL) => Ok(Some(End::Signal(UNNAMED))),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lease(&self) -> LeaseState {
        LeaseState {
            // The order matters: time that passes in between makes the lease shorter.
            now: boot_time(),
            remaining: self.kept.remaining(),
            hold_left: self.kept.hold_left(),
        }
    }

    /// Does what is due.
    fn look(&mut self) {
        let lease = self.lease();
        let act = self.plan.look(lease);
        self.act(act);
        if let Some(until) = self.plan.guard_until(lease) {
            self.guard.tell(until);
        }
    }

    fn act(&mut self, act: Act) {
        let why = match act {
            Act::Nothing => return,
            Act::Terminate(why) => {
                self.send(Signal::SIGTERM);
                self.send(Signal::SIGCONT);
                why
            }
            Act::Kill(why) => {
                if !self.send(Signal::SIGKILL) {
                    report(format_args!("COMMAND could not be killed"));
                    return;
                }
                why
            }
        };
        match (act, why) {
            (_, EndReason::LeftOver) => info!("ending the processes that COMMAND left behind"),
            (Act::Kill(_), EndReason::Lost) => match self.kept.lost() {
                Some(reason) => report(format_args!(
                    "the lock is lost ({reason}): COMMAND was killed"
                )),
                None => report(format_args!("the lock is about to end: COMMAND was killed")),
            },
            (Act::Kill(_), _) => report(format_args!(
                "COMMAND did not end by SIGTERM: it was killed"
            )),
            (_, EndReason::Hold) => {
                report(format_args!("--max-hold is used up: COMMAND is to end"))
            }
            _ => report(format_args!(
                "the lock cannot be renewed and is about to end: COMMAND is to end"
            )),
        }
    }

    /// Sends the signal to COMMAND's group. Returns whether that is permitted.
    fn send(&mut self, signal: Signal) -> bool {
        if killpg(self.group, signal) != Err(Errno::EPERM) {
            return true;
        }
        if !self.refused {
            self.refused = true;
            report(format_args!(
                "COMMAND runs as another user and cannot be sent {signal}: run redlock as that user"
            ));
        }
        false
    }

    /// Hands a signal on.
    fn signal(&mut self, signal: i32) {
        if signal == SIGCONT {
            self.terminal.offer();
        }
        let is_asked = ASKING.contains(&signal);
        let on_ask = is_asked.then(|| asked_beside_us(self.terminal.state()));
        if on_ask == Some(OnAsk::TakeBack) {
            return self.terminal.give_back();
        }
        if !is_handed_on(signal) && on_ask != Some(OnAsk::HandOn) {
            return;
        }
        let Ok(known) = Signal::try_from(signal) else {
            return self.send_real_time(signal);
        };
        self.handed_on_key |= [SIGINT, SIGQUIT].contains(&signal);
        self.send(known);
        if self.plan.wakes(signal) {
            self.send(Signal::SIGCONT);
        }
    }

    /// Sends a signal without a name, which only a shell can send for us. (Data that sigqueue(3) sent along is lost.)
    fn send_real_time(&mut self, signal: i32) {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "kill -s \"$1\" -- \"-$2\"", "sh"]);
        shell.args([signal.to_string(), self.group.to_string()]);
        match shell.stdin(Stdio::null()).spawn() {
            Ok(sender) => self.senders.push(sender),
            Err(error) => report(format_args!(
                "signal {signal} cannot be handed on without /bin/sh: {error}"
            )),
        }
    }

    /// Handles COMMAND's stops and continuations. Its end is not taken from here.
    fn stops(&mut self) {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED;
        loop {
            match waitid(Id::Pid(self.group), flags) {
                Ok(WaitStatus::Stopped(_, signal)) => self.stopped(signal),
                Ok(WaitStatus::Continued(_)) => {
                    self.terminal.awaited = false;
                    self.plan.continued();
                }
                _ => break,
            }
        }
        if self.terminal.awaited && self.terminal.state() == TerminalOwner::Ours {
            self.give_terminal();
        }
    }

    fn give_terminal(&mut self) {
        self.terminal.awaited = false;
        self.terminal.offer();
        self.send(Signal::SIGCONT);
    }

    fn stopped(&mut self, signal: Signal) {
        self.terminal.stopped_by(signal);
        let (state, above) = (self.terminal.state(), processes::continuer());
        match self.plan.stopped(signal as i32, state, above) {
            OnStop::Nothing => {}
            OnStop::GiveTerminal => self.give_terminal(),
            OnStop::GiveTerminalLater => self.terminal.awaited = true,
            // SIGCONT lets us go on, and is handed on.
            OnStop::StopToo { group } => self.terminal.stop_too(group),
            OnStop::GoOn => {
                self.send(Signal::SIGCONT);
            }
        }
    }

    fn ended(&mut self, end: End) -> Option<End> {
        let verdict = self.plan.ended(end, self.lease());
        let had_terminal = self.terminal.take_back();
        if let End::Signal(signal @ (SIGINT | SIGQUIT)) = end
            && had_terminal
            && !self.handed_on_key
            && let Ok(signal) = Signal::try_from(signal)
        {
            self.terminal.pass_on_key(signal);
        }
        match verdict {
            // Not a loss: the guard had until the end of the lease.
            Some(_) if self.unguarded => {
                let error = io::Error::other("it did not get ready, so COMMAND did not begin");
                return Some(no_process("a guard", &error));
            }
            None if !self.plan.has_ended_it() => say_lost(self.kept.lost()),
            _ => {}
        }
        verdict
    }

    /// Ends the processes that COMMAND left behind in its group. Returns whether nothing is left.
    fn leftovers(&mut self) -> bool {
        while processes::is_alive(self.group) {
            let lease = self.lease();
            let act = self.plan.left_over(lease);
            self.act(act);
            self.look();
            if self.plan.gives_up(lease) {
                return false;
            }
            let wait = self.plan.wait(lease);
            if let Ok(signal) = self.signals.recv_timeout(wait) {
                self.look();
                self.signal(signal);
            }
            self.guard.look();
            self.adopted();
        }
        true
    }

    /// Waits for adopted children: process 1 waits for the children of all processes.
    fn adopted(&mut self) {
        self.senders
            .retain_mut(|sender| matches!(sender.try_wait(), Ok(None)));
        let guard = self.guard.process.as_ref();
        let ours = guard.into_iter().chain(&self.senders);
        let ours: Vec<u32> = ours.chain([&self.command]).map(Child::id).collect();
        processes::reap_orphans(&ours);
    }
}
