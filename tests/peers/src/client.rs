//! A contender's process, and the lines that go to it and come from it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::history::Time;

pub struct Client {
    child: Child,
    input: ChildStdin,
    lines: Receiver<(Time, String)>,
}

/// What came in place of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Silence {
    NothingYet,
    Ended,
}

impl Client {
    /// Its standard error is shown if `PEERS_STDERR` is set.
    pub fn start(command: &[String], variables: &[(String, String)]) -> Result<Client, String> {
        let (program, args) = command.split_first().ok_or("no command")?;
        let errors = match std::env::var_os("PEERS_STDERR") {
            Some(_) => Stdio::inherit(),
            None => Stdio::null(),
        };
        let child = crate::support::watched(&mut Command::new(program))
            .args(args)
            .envs(variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn();
        let mut child = child.map_err(|error| format!("{program}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        let (sender, lines) = channel();
        // Ends with the process's output.
        std::thread::spawn(move || {
            let read = BufReader::new(output).lines().map_while(Result::ok);
            for line in read {
                if sender.send((speak::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Client {
            child,
            input,
            lines,
        })
    }

    /// A process that is gone is noticed by what does not come back.
    pub fn send(&mut self, line: &str) {
        let _ = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
    }

    pub fn line(&self, within: Duration) -> Result<(Time, String), Silence> {
        self.lines
            .recv_timeout(within)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => Silence::NothingYet,
                RecvTimeoutError::Disconnected => Silence::Ended,
            })
    }

    pub fn signal(&self, signal: i32) {
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        // SAFETY: a plain system call on a child that was not waited for.
        unsafe { libc::kill(pid, signal) };
        if signal == libc::SIGSTOP {
            crate::support::is_stopped(pid);
        }
    }
}

impl Drop for Client {
    /// Also when it is stopped.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
