//! The state of processes, from /proc.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::unistd::Pid;

struct ProcessStatus {
    state: String,
    parent: String,
    group: String,
    session: String,
}

/// `process`: a number, or `self`.
fn look(process: &str) -> Option<ProcessStatus> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // pid (name) state parent group session …, and a name may have blanks and brackets.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let mut next = || fields.next().map(str::to_owned);
    Some(ProcessStatus {
        state: next()?,
        parent: next()?,
        group: next()?,
        session: next()?,
    })
}

/// Whether any process of a group still runs. One that only waits to be waited for does not, unless just its first
/// thread has ended.
pub(crate) fn is_alive(group: Pid) -> bool {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    let group = group.to_string();
    let names = processes.filter_map(|process| process.ok()?.file_name().into_string().ok());
    let threads = |name: &str| {
        let threads = fs::read_dir(format!("/proc/{name}/task"));
        threads.map_or(0, Iterator::count)
    };
    names
        .filter_map(|name| look(&name).map(|process| (name, process)))
        .filter(|(_, process)| process.group == group)
        .any(|(name, process)| !["Z", "X"].contains(&&*process.state) || threads(&name) > 1)
}

/// Whether no process could let our group go on if it stopped: no shell in our session has started it. The kernel does
/// not stop such a group at the terminal's stop key.
pub(crate) fn is_orphaned() -> bool {
    let Some(ours) = look("self") else {
        return true;
    };
    let mut parent = look(&ours.parent);
    while let Some(process) = parent {
        if process.session != ours.session {
            return true;
        }
        if process.group != ours.group {
            return false;
        }
        parent = look(&process.parent);
    }
    true
}
