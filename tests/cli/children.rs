//! The programs that these tests start: `redlock`, and shells that start it. Each is killed with its value, and none is
//! waited for without a limit: a test that fails must not keep the others from being reported.

use crate::support;

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::*;

pub(crate) const REDLOCK: &str = env!("CARGO_BIN_EXE_redlock");

/// Until a program ends, or writes more: longer than any takes, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// All that programs get of the environment of this process: to be found, to write files, and to be loaded. They get none of
/// the variables by which a user changes what `redlock` and shells do.
const NEEDED: [&str; 6] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LLVM_PROFILE_FILE",
];

/// A program of this machine, which uses these nodes and finds `redlock` in its PATH: by that name scripts need not quote it,
/// wherever the checkout is. Its messages are not translated.
pub(crate) fn program(name: impl AsRef<OsStr>, nodes: &str) -> Command {
    let mut command = Command::new(name);
    let variable = |name: &str| Some((name.to_owned(), std::env::var_os(name)?));
    command
        .env_clear()
        .envs(NEEDED.iter().filter_map(|name| variable(name)));
    let own = Path::new(REDLOCK).parent().unwrap().to_owned();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = [own].into_iter().chain(std::env::split_paths(&others));
    pristine(&mut command)
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("LC_ALL", "C")
        .env("REDLOCK_NODES", nodes)
        .stdin(Stdio::null());
    command
}

/// A shell that runs a script.
pub(crate) fn shell(name: &str, nodes: &str, script: &str) -> Command {
    let mut command = program(name, nodes);
    command.args(["-c", script]);
    command
}

pub(crate) fn redlock_command(nodes: &str, arguments: &[&str]) -> Command {
    let mut command = program(REDLOCK, nodes);
    command.args(arguments);
    command
}

/// A file of this machine names nodes for all its users: `redlock` finds nodes where a test gives none.
pub(crate) fn machine_has_nodes(test: &str) -> bool {
    const FILE: &str = "/etc/redlock/nodes";
    let exists = Path::new(FILE).exists();
    if exists {
        skipped(test, &format!("without nodes, since there is {FILE}"));
    }
    exists
}

/// A loop of a shell until a condition holds, with a limit.
pub(crate) fn shell_waits(condition: &str) -> String {
    format!("i=0; until {condition}; do i=$((i + 1)); [ $i -lt 1200 ] || exit 99; sleep 0.05; done")
}

pub(crate) struct Program {
    pub(crate) child: Child,
    /// What it is, for errors.
    name: String,
}

pub(crate) fn start(command: &mut Command) -> Program {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    let name = words.join(" ").chars().take(200).collect();
    let child = command.spawn();
    Program {
        child: child.unwrap_or_else(|error| panic!("{name}: {error}")),
        name,
    }
}

/// All that it writes.
pub(crate) fn output_of(command: &mut Command) -> Output {
    start(command.stdout(Stdio::piped()).stderr(Stdio::piped())).output()
}

/// The same as text.
pub(crate) fn output(command: &mut Command) -> (ExitStatus, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = output_of(command);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status, text(stdout), text(stderr))
}

impl Program {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        let name = self.name.clone();
        eventually_within(LIMIT, &format!("the end of {name}"), &mut || {
            status = self.has_ended();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it writes to where nothing has read yet.
    pub(crate) fn output(mut self) -> Output {
        let stderr = self.child.stderr.take();
        let stderr = stderr.map(|stream| std::thread::spawn(|| Limited(stream).all()));
        let stdout = self.child.stdout.take();
        let stdout = stdout.map_or_else(Vec::new, |stream| Limited(stream).all());
        Output {
            status: self.wait(),
            stdout,
            stderr: stderr.map_or_else(Vec::new, |thread| thread.join().unwrap()),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a program writes, read with a limit.
pub(crate) struct Limited<R>(pub(crate) R);

impl<R: Read + AsFd> Read for Limited<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut files = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, PollTimeout::try_from(LIMIT).unwrap())? {
            0 => Err(std::io::ErrorKind::TimedOut.into()),
            _ => self.0.read(bytes),
        }
    }
}

impl<R: Read + AsFd> Limited<R> {
    pub(crate) fn all(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)
            .expect("it ends, or writes more, in time");
        bytes
    }
}
