//! Nothing is left behind, however a program of these tests ends. All its directories are in one, and the processes that it
//! starts have their current directory in that one or carry its name in their environment. A watchdog, which is a process
//! of its own, waits for the end of a pipe: the kernel closes that with the program, by whatever signal it ends. Then it
//! kills these processes, also stopped ones, and removes the directory. A program that ends by itself removes that, too: the
//! watchdog of the first process of a container ends with it.
//!
//! Processes are found at that moment, and not by ids that were written down: another process may have the same id by then.
//! `PR_SET_PDEATHSIG` would do less: it is bound to the thread that started a process, and tests have threads that end.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Its value is the name of the directory.
const MARK: &str = "DIRECTORY_OF_REDLOCK_TESTS";

/// So long a path may be that sockets in directories below it have names that the kernel takes: 107 bytes.
const LONGEST: usize = 80;

/// As many open files as tests need at most. (Where the limit is a thousand million, some programs try to close them all.)
const FILES: u64 = 65_536;

/// $1: the name. $2 and $3: directories of that name. The directory goes first: after that no process can be started in it.
const SCRIPT: &str = r#"
while read -r _; do :; done
for space in /run/netns/"$1"-*; do
    [ ! -e "$space" ] || ip netns del "${space##*/}"
done
tries=0
while [ $tries -lt 100 ]; do
    rm -rf "$2" ${3:+"$3"}
    left=$(
        ls -ld /proc/[0-9]*/cwd | sed -n "s|.* /proc/\([0-9]*\)/cwd -> .*/$1\([/ ].*\)\{0,1\}\$|\1|p"
        grep -lszxF "$0=$1" /proc/[0-9]*/environ | sed -n 's|^/proc/\([0-9]*\)/.*|\1|p'
    )
    if [ -n "$left" ]; then
        kill -9 $left
    elif [ ! -e "$2" ] && [ ! -e "${3:-$2}" ]; then
        break
    fi
    tries=$((tries + 1))
    sleep 0.1
done
"#;

struct Run {
    name: String,
    dir: PathBuf,
    /// Programs are built here: where temporary files are, none may be allowed to run.
    programs: PathBuf,
    /// The program, and not a process that was forked from it.
    process: u32,
    /// Never waited for. It ends with the pipe to it, which ends with this program.
    _watchdog: Child,
}

static RUN: OnceLock<Run> = OnceLock::new();

fn run() -> &'static Run {
    RUN.get_or_init(|| {
        raise_file_limit();
        let dir = new_directory(&base());
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        // Cargo names one to tests, but not to examples, which build nothing.
        let programs = option_env!("CARGO_TARGET_TMPDIR").map(|tmp| Path::new(tmp).join(&name));
        let programs = programs.unwrap_or_else(|| dir.clone());
        let watchdog = watchdog(&name, &[&dir, &programs]).unwrap_or_else(|error| {
            let _ = std::fs::remove_dir(&dir);
            panic!("cannot start sh: {error}")
        });
        // SAFETY: the function makes no use of what may be gone by then.
        unsafe { libc::atexit(at_exit) };
        Run {
            name,
            dir,
            programs,
            process: std::process::id(),
            _watchdog: watchdog,
        }
    })
}

extern "C" fn at_exit() {
    if let Some(run) = RUN.get().filter(|run| run.process == std::process::id()) {
        for dir in [&run.dir, &run.programs] {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// The name of all that this program leaves to its watchdog: also that of network namespaces, with `-` and more behind it.
pub fn name() -> &'static str {
    &run().name
}

/// The process that this starts is killed when this program ends, and so is what it starts itself.
pub fn watched(command: &mut Command) -> &mut Command {
    command.env(MARK, name())
}

fn watchdog(name: &str, dirs: &[&Path]) -> std::io::Result<Child> {
    let mut sh = Command::new("sh");
    // Its own environment must not have what it looks for, and its directory must not be in the way.
    let path = std::env::var_os("PATH").map(|path| (OsString::from("PATH"), path));
    sh.args(["-c", SCRIPT, MARK, name])
        .args(dirs)
        .env_clear()
        .envs(path)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let apart = || {
        // SAFETY: plain system calls, which may be made between fork and exec.
        unsafe {
            // Neither a terminal nor a process group ends it, nor a signal that is sent to all.
            libc::setsid();
            for signal in (1..32).filter(|signal| *signal != libc::SIGCHLD) {
                libc::signal(signal, libc::SIG_IGN);
            }
            // What this program was given besides, such as a pipe to whatever reads its output.
            for file in 3..1024 {
                libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        Ok(())
    };
    // SAFETY: it makes system calls only.
    unsafe { sh.pre_exec(apart) };
    sh.spawn()
}

/// Where temporary files belong, if sockets can be there.
fn base() -> PathBuf {
    let given = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    let Some(given) = given else {
        return "/tmp".into();
    };
    // Servers have another current directory.
    let path = std::path::absolute(&given).unwrap_or_else(|error| {
        let given = given.display();
        panic!("TMPDIR is {given}, which no current directory leads to: {error}")
    });
    if path.to_str().is_some_and(|path| path.len() <= LONGEST) {
        return path;
    }
    eprintln!(
        "{} cannot hold sockets, since its path has more than {LONGEST} bytes or is not UTF-8: /tmp takes the place of TMPDIR.",
        path.display()
    );
    "/tmp".into()
}

/// One that did not exist, and that no other user may enter.
fn new_directory(base: &Path) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut path = base.join("redlock-XXXXXX").as_os_str().as_bytes().to_vec();
    path.push(0);
    // SAFETY: it is a string with a zero at its end, and is written to within its length.
    let made = unsafe { libc::mkdtemp(path.as_mut_ptr().cast()) };
    if made.is_null() {
        let error = std::io::Error::last_os_error();
        panic!("no temporary directory in {}: {error}", base.display());
    }
    path.pop();
    OsString::from_vec(path).into()
}

/// Login shells allow 1,024.
fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain system calls on a value of ours.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_cur.max(limit.rlim_max.min(FILES));
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// A private directory, gone with its value.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        super::turns::take();
        TempDir::within(&run().dir)
    }

    /// For a program that is built and run.
    pub fn for_programs() -> TempDir {
        super::turns::take();
        let run = run();
        match std::fs::create_dir_all(&run.programs) {
            Ok(()) => TempDir::within(&run.programs),
            // A checkout that may only be read.
            Err(_) => TempDir::within(&run.dir),
        }
    }

    fn within(parent: &Path) -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(number.to_string());
            match std::fs::create_dir(&path) {
                Ok(()) => return TempDir(path),
                // By a process that was forked from this one.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("no directory {}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
