//! The program that is started as a server: which one, and whether it will do.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Older ones have no ports of their own for the bus of a Cluster, and count differently what scripts call.
const OLDEST: u32 = 7;

/// The server that is tested, wherever it is started.
pub fn redis_server() -> PathBuf {
    let given = std::env::var_os("REDIS_SERVER").filter(|given| !given.is_empty());
    let given = PathBuf::from(given.unwrap_or_else(|| "redis-server".into()));
    match given.components().count() {
        1 => in_path(&given).unwrap_or(given),
        _ => std::path::absolute(given).unwrap(),
    }
}

/// Servers have another current directory, where a relative part of `PATH` would be another place.
fn in_path(name: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    std::path::absolute(places.find(|place| place.is_file())?).ok()
}

pub fn cannot_start(binary: &Path, error: &std::io::Error) -> String {
    let binary = binary.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "there is no {binary}: install it (apt-get install redis-server), or name another one in REDIS_SERVER"
        ),
        _ => format!("cannot start {binary}: {error}"),
    }
}

/// One line in place of some hundred tests that fail. Examples need no more than locks do.
pub fn will_do() {
    static ONCE: Once = Once::new();
    if cfg!(test) {
        ONCE.call_once(|| {
            let program = redis_server();
            let why = match Command::new(&program).arg("--version").output() {
                Ok(output) => too_old(&String::from_utf8_lossy(&output.stdout)),
                Err(error) => Some(cannot_start(&program, &error)),
            };
            if let Some(why) = why {
                eprintln_past_the_harness(&why);
                std::process::exit(1);
            }
        });
    }
}

/// By what it prints for `--version`: "Redis server v=7.0.15 sha=…", "Valkey server v=8.1.1 …". Another text tells nothing.
pub fn too_old(printed: &str) -> Option<String> {
    let words = printed.split_whitespace();
    let version = words.filter_map(|word| word.strip_prefix("v=")).next()?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    let program = redis_server();
    let text = || {
        format!(
            "The tests need Redis {OLDEST}.0 or later, and {} is {version}. Name another one in REDIS_SERVER.",
            program.display()
        )
    };
    (major < OLDEST).then(text)
}

/// The harness keeps what a test prints, and a process that ends here shows none of it.
fn eprintln_past_the_harness(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("\n{text}\n").as_bytes());
}

/// Signals go to the process that was started. Where that is a script which runs the server and does not become it, they
/// would freeze and kill the script.
pub fn is_itself(started: u32, stream: &UnixStream) {
    // Some sandboxes name the process that asks, or none.
    let others = listener(stream).filter(|pid| *pid != started && *pid != std::process::id());
    if let Some(pid) = others {
        panic!(
            "{} starts a server as another process ({pid}, not {started}), which could be neither stopped nor killed: \
             a script has to end with `exec`",
            redis_server().display()
        );
    }
}

/// The process that listens there, if this one can see it.
fn listener(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a plain system call, which writes to a value of ours within its length.
    let known = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    let pid = u32::try_from(peer.pid).ok().filter(|pid| *pid > 0);
    pid.filter(|_| known == 0)
}
