//! Programs that tests start: this one again, and others.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use super::watchdog::watched;

/// The command is run as from a shell in which nothing is set: without the user's own variables that begin with `REDLOCK_`
/// (set those that it needs behind this), no signal ignored (as nohup does) or blocked. It ends with this program at the
/// latest.
pub fn pristine(command: &mut Command) -> &mut Command {
    for name in std::env::vars_os().map(|one| one.0) {
        let text = name.to_string_lossy();
        // (Some installations are found by PYTHONHOME.)
        let changes_python = text.starts_with("PYTHON") && text != "PYTHONHOME";
        if text.starts_with("REDLOCK_") || changes_python {
            command.env_remove(name);
        }
    }
    with_default_signals(watched(command))
}

fn with_default_signals(command: &mut Command) -> &mut Command {
    let reset = || {
        // SAFETY: plain system calls on a value of ours, which may be made between fork and exec.
        unsafe {
            for signal in 1..=libc::SIGRTMAX() {
                libc::signal(signal, libc::SIG_DFL);
            }
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: it makes system calls only.
    unsafe { command.pre_exec(reset) }
}

/// Lines of /proc/PID/status that show signals, but for two that no program can use: glibc's `posix_spawn` leaves them ignored
/// in the program that it starts, and so in all that this starts itself. Other lines stay.
pub fn without_glibc_signals(lines: &str) -> String {
    let without = |line: &str| match line.split_once(":\t") {
        Some((head, signals)) => {
            let signals = u64::from_str_radix(signals, 16).unwrap() & !(0b11 << 31);
            format!("{head}:\t{signals:016x}\n")
        }
        None => format!("{line}\n"),
    };
    lines.lines().map(without).collect()
}

/// A test that cannot be made here is not silent about it.
pub fn skipped(test: &str, why: &str) {
    use std::io::Write;
    // Past what captures the output of a test that passes.
    let text = format!("SKIPPED {test}: {}\n", why.trim());
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

/// For a program that is missing. Other errors have other remedies.
pub fn started<T>(result: std::io::Result<T>, program: &str, package: &str) -> T {
    result.unwrap_or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            panic!("there is no {program}. Install it (apt-get install {package})")
        }
        _ => panic!("cannot start {program}: {error}"),
    })
}

/// Where this binary has the test `name`, as the only one of that name.
pub fn full_name(name: &str) -> String {
    let mut list = Command::new(std::env::current_exe().unwrap());
    let list = list.args(["--list", "--format", "terse"]).output().unwrap();
    let text = String::from_utf8(list.stdout).unwrap();
    let all = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let named = all.filter(|full| full.rsplit("::").next() == Some(name));
    let named: Vec<&str> = named.collect();
    assert_eq!(named.len(), 1, "tests named {name}: {named:?}");
    named[0].to_owned()
}

/// This binary once more, with the test `name` only.
fn this_program(name: &str) -> Command {
    super::turns::take();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&*full_name(name), "--exact", "--nocapture"]);
    with_default_signals(watched(&mut command));
    command
}

/// This test binary once more, as another process that plays a part: it runs the test `name` with
/// `ROLE` set to `role`.
pub fn another_process(name: &str, role: &str) -> Command {
    let mut command = this_program(name);
    command.env("ROLE", role).stdout(Stdio::null());
    command
}

/// The part to play, in such a process.
pub fn role() -> Option<String> {
    std::env::var("ROLE").ok()
}

const ALONE: &str = "REDLOCK_SYNC_TEST_ALONE";

/// Runs a test in a process of its own, which is this test binary again with only that test: for
/// what concerns a whole process, such as its threads, descriptors, signals and its end.
pub fn in_own_process(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let output = own_process(name, "").output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The command that runs a test of this binary alone, with a word for it to find in
/// [`told`].
pub fn own_process(name: &str, word: &str) -> Command {
    let mut command = this_program(name);
    command.arg("--include-ignored").env(ALONE, word);
    command
}

/// The output of a test of this binary, run alone behind the line of shell `first` in namespaces of its own (`kinds`, as
/// `unshare` names them: `m` mounts, `n` networks). `None`: this machine permits none, and `user` goes without.
pub fn in_namespaces(user: &str, kinds: &str, first: &str, name: &str) -> Option<Output> {
    let inner = own_process(name, "");
    let mut why = String::new();
    for options in [format!("-{kinds}"), format!("-r{kinds}")] {
        let mut command = Command::new("unshare");
        let script = format!("{first} && exec \"$@\"");
        command.args([&*options, "sh", "-c", &script, "sh"]);
        command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = started(watched(&mut command).output(), "unshare", "util-linux");
        if String::from_utf8_lossy(&output.stdout).contains("running 1 test") {
            return Some(output);
        }
        why = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    skipped(user, &why);
    None
}

/// What this process was told if it runs one test alone.
pub fn told() -> Option<String> {
    std::env::var(ALONE).ok()
}

/// The cargo that has built this. With the variables of this package, which only tests have, it would build again what
/// looks at them, and all that rests on that.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    let of_this = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")
    };
    for name in std::env::vars_os().map(|one| one.0).filter(of_this) {
        cargo.env_remove(name);
    }
    cargo
}
