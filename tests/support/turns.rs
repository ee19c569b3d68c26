//! As many tests at a time as the machine carries, in however many programs they are. Most of their time they wait, but
//! what they start has to answer within timeouts of about a second.

use std::cell::OnceCell;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::ms;

/// For each processor, where nothing else keeps it busy: tests use a third of it at 12.
pub const AT_MOST: usize = 16;
/// For each processor, however busy it is.
const AT_LEAST: usize = 3;
/// Threads and processes for each processor that want to run: each that comes next has to wait for them.
const BUSY: usize = 3;
/// The files that a test opens, roughly.
const FILES: u64 = 64;
/// Then it goes on anyhow.
const PATIENCE: Duration = Duration::from_secs(600);

thread_local! {
    /// Freed when the thread ends, and with it the test.
    static TURN: OnceCell<Option<UnixListener>> = const { OnceCell::new() };
}

/// Threads of the harness, which may wait for a turn. In the checkout `.cargo/config.toml` sets this for all tests; cargo does
/// not read that for `--manifest-path` from elsewhere, and the harness would have a thread for each processor. The linker's
/// list of what runs before `main` has this function.
#[cfg(test)]
#[used]
// SAFETY: the list is one of such functions, and no thread runs yet that could look at the environment.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn threads() {
        // SAFETY: a plain call with strings that end with a zero. What the user has set stays.
        unsafe { libc::setenv(c"RUST_TEST_THREADS".as_ptr(), c"32".as_ptr(), 0) };
    }
    threads
};

/// Waits until this test may begin, when it is about to start its first server or process. In all other threads than those
/// that the test harness makes, which have names, it returns at once.
pub fn take() {
    let thread = std::thread::current();
    let is_test = thread.name().is_some_and(|name| name != "main");
    // A process that a test starts has its turn.
    if is_test && super::told().is_none() && super::role().is_none() {
        TURN.with(|turn| turn.get_or_init(wait).is_some());
    }
}

fn wait() -> Option<UnixListener> {
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _others_wait = ONE_BY_ONE.lock();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let each = if keeps_up() { AT_MOST } else { AT_LEAST };
        let count = (each * cores).min(files()).max(1);
        if let Some(turn) = (0..count).find_map(turn) {
            return Some(turn);
        }
    }
    None
}

/// All programs see these names, and each name is taken once.
fn turn(number: usize) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("redlock-sync-turn-{number}"));
    UnixListener::bind_addr(&name.ok()?).ok()
}

/// Looked at several times: one moment means little. In a container the whole machine is looked at, of which it may have a
/// share: there the others have theirs.
fn keeps_up() -> bool {
    const LOOKS: usize = 5;
    let look = |_| {
        std::thread::sleep(ms(5));
        // This thread is one of them.
        runnable().saturating_sub(1)
    };
    // SAFETY: a plain system call.
    let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let all = usize::try_from(all).unwrap_or(1).max(1);
    (0..LOOKS).map(look).sum::<usize>() <= BUSY * all * LOOKS
}

/// On the whole machine, and not on average over a minute: "0.20 0.18 0.12 1/80 11206".
fn runnable() -> usize {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let now = text.split(' ').nth(3).and_then(|both| both.split_once('/'));
    now.and_then(|(runnable, _)| runnable.parse().ok())
        .unwrap_or(0)
}

fn files() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a plain system call on a value of ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    match known {
        true => usize::try_from(limit.rlim_cur / FILES).unwrap_or(usize::MAX),
        false => usize::MAX,
    }
}
