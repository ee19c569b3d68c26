//! The state of processes, from /proc.

use std::{fs, io};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgrp};

use crate::run_plan::Continuer;

struct ProcessStatus {
    state: String,
    parent: String,
    group: String,
    session: String,
}

/// `process`: a number, or `self`. `None`: there is none, or none that may be seen.
fn look(process: &str) -> io::Result<Option<ProcessStatus>> {
    let stat = match fs::read(format!("/proc/{process}/stat")) {
        Ok(stat) => stat,
        Err(error) if is_gone_or_hidden(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    // pid (name) state parent group session …, and a name may have blanks and brackets, or be cut within a character.
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let mut next = || fields.next().unwrap_or_default().to_owned();
    Ok(Some(ProcessStatus {
        state: next(),
        parent: next(),
        group: next(),
        session: next(),
    }))
}

fn is_gone_or_hidden(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// All processes, each with its number.
fn all() -> io::Result<Vec<(String, ProcessStatus)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if name.starts_with(|first: char| first.is_ascii_digit())
            && let Some(process) = look(&name)?
        {
            found.push((name, process));
        }
    }
    Ok(found)
}

/// Whether any process of a group still runs. One that only waits to be waited for does not, unless just its first
/// thread has ended.
pub(crate) fn is_alive(group: Pid) -> bool {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return false;
    }
    if is_seen(group) {
        return true;
    }
    // While /proc is read a process may start another one and end: neither is seen. Processes that are stopped start none.
    // (Those of another user cannot be stopped.)
    let _ = killpg(group, Signal::SIGSTOP);
    let alive = is_seen(group);
    let _ = killpg(group, Signal::SIGCONT);
    alive
}

fn is_seen(group: Pid) -> bool {
    // Without files, say, nothing is certain.
    let Ok(processes) = all() else {
        return true;
    };
    let group = group.to_string();
    let threads = |name: &str| {
        let threads = fs::read_dir(format!("/proc/{name}/task"));
        threads.map_or(0, Iterator::count)
    };
    processes
        .into_iter()
        .filter(|(_, process)| process.group == group)
        .any(|(name, process)| !["Z", "X"].contains(&&*process.state) || threads(&name) > 1)
}

/// Waits for children that have ended, and are none of `ours`, if this is process 1: the children of all processes that have
/// ended become its children.
pub(crate) fn reap_orphans(ours: &[u32]) {
    let us = std::process::id();
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let none = [Ok(WaitStatus::StillAlive), Err(Errno::ECHILD)];
    if us != 1 || none.contains(&waitid(Id::All, peek)) {
        return;
    }
    // (The status of one that a real-time signal has ended is an error, which does not name it.)
    let us = us.to_string();
    let ended = |process: &ProcessStatus| process.parent == us && process.state == "Z";
    for (name, _) in all().into_iter().flatten().filter(|(_, one)| ended(one)) {
        if let Ok(number) = name.parse::<u32>()
            && !ours.contains(&number)
            && let Ok(process) = i32::try_from(number)
        {
            let _ = waitpid(Pid::from_raw(process), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// The process that could let our group go on if it stopped. The kernel does not stop a group without one at the
/// terminal's stop key.
pub(crate) fn continuer() -> Continuer {
    let found = |process: &str| look(process).ok().flatten();
    let Some(ours) = found("self") else {
        return Continuer::None;
    };
    let (mut parent, mut continuer) = (found(&ours.parent), Continuer::Parent);
    while let Some(process) = parent {
        if process.session != ours.session {
            return Continuer::None;
        }
        if process.group != ours.group {
            return continuer;
        }
        (parent, continuer) = (found(&process.parent), Continuer::Ancestor);
    }
    Continuer::None
}

/// Whether a process of our group has started that group: its first process, or any, where that one is gone.
pub(crate) fn is_started_beside_us(group: Pid) -> bool {
    let found = |process: &str| look(process).ok().flatten();
    let (group, ours) = (group.to_string(), getpgrp().to_string());
    let is_started = |process: &ProcessStatus| {
        let parent = found(&process.parent);
        parent.is_some_and(|parent| parent.group == ours)
    };
    if let Some(first) = found(&group) {
        return is_started(&first);
    }
    let mut all = all().into_iter().flatten();
    all.any(|(_, process)| process.group == group && is_started(&process))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// A pipeline of a script with job control is such a group, and its first program may end first.
    #[test]
    fn a_group_beside_us_is_seen_when_its_first_process_is_gone() {
        let mut first = Command::new("true").process_group(0).spawn().unwrap();
        let group = first.id().try_into().unwrap();
        let mut second = Command::new("sleep");
        let second = second.arg("1000").process_group(group).spawn();
        let group = Pid::from_raw(group);
        let before = is_started_beside_us(group);
        first.wait().unwrap();
        let behind = is_started_beside_us(group);
        let mut second = second.unwrap();
        second.kill().and_then(|()| second.wait()).unwrap();
        let gone = is_started_beside_us(group);
        assert_eq!((before, behind, gone), (true, true, false));
    }
}
