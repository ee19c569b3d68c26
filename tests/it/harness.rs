//! What these tests rest on: nothing is left behind, however a program ends, and none is in the way of another.

use crate::support;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::*;

/// How a program may end: a closed terminal, Ctrl-C, `kill`, too little memory, and faults of its own.
const ENDS: [i32; 6] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGKILL,
    libc::SIGABRT,
];

fn processes() -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    all.filter(move |one| one.file_name().to_str().is_some_and(is_process))
        .map(|one| one.path())
}

/// Its state, and the process that has started it.
fn stat(process: &Path) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    let mut words = stat.rsplit(')').next()?.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

/// Of what a process has started: where each is, and its state.
fn started_by(parent: u32) -> Vec<(PathBuf, String)> {
    let child = |process: &PathBuf| {
        let (state, its_parent) = stat(process)?;
        (its_parent == parent).then_some((process.clone(), state))
    };
    processes().filter_map(|process| child(&process)).collect()
}

/// The directory of all that a program has, as soon as this number of its servers run, and so many of them are stopped.
fn directory(program: &Child, servers: usize, stopped: usize) -> PathBuf {
    let mut found = PathBuf::new();
    eventually("its servers run", || {
        let children = started_by(program.id());
        let dirs = children.iter().filter_map(|(process, state)| {
            let dir = std::fs::read_link(process.join("cwd")).ok()?;
            let all = dir.parent()?.to_owned();
            let is_ours = all.file_name()?.to_str()?.starts_with("redlock-");
            is_ours.then_some((all, state == "T"))
        });
        let dirs: Vec<_> = dirs.collect();
        if let Some((dir, _)) = dirs.first() {
            found.clone_from(dir);
        }
        let still = dirs.iter().filter(|(_, stopped)| *stopped).count();
        dirs.len() == servers && still == stopped
    });
    found
}

/// Neither the directory, nor a process in it or with its name.
fn is_gone(dir: &Path) {
    let name = dir.file_name().unwrap().to_str().unwrap();
    let belongs = |process: &PathBuf| {
        let cwd = std::fs::read_link(process.join("cwd")).unwrap_or_default();
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        cwd.to_string_lossy().contains(name)
            || String::from_utf8_lossy(&environment).contains(&format!("={name}\0"))
    };
    eventually("nothing is left", || {
        !dir.exists() && !processes().any(|process| belongs(&process))
    });
}

fn end(program: &mut Child, signal: i32) {
    // SAFETY: plain system call on the process group of a child of ours that was not waited for.
    unsafe { libc::killpg(program.id().try_into().unwrap(), signal) };
    // What reads the output is not kept waiting by whatever the program has started.
    let mut out = program.stdout.take().unwrap();
    out.read_to_end(&mut Vec::new()).unwrap();
    program.wait().unwrap();
}

/// The program that is ended.
#[test]
#[ignore = "a part of the test below"]
fn keeps_servers() {
    if role().is_some() {
        let servers = Server::several(2);
        let mut sleep = Command::new("sleep");
        let sleep = pristine(sleep.arg("600"))
            .current_dir("/")
            .stdout(Stdio::null());
        let mut sleep = sleep.spawn().unwrap();
        servers[1].stop();
        sleep.wait().unwrap();
    }
}

#[test]
fn nothing_is_left_of_a_test_however_it_ends() {
    for signal in ENDS {
        let mut program = another_process("keeps_servers", "stay");
        program.arg("--ignored").stdout(Stdio::piped());
        let mut program = program.process_group(0).spawn().unwrap();
        let dir = directory(&program, 2, 1);
        end(&mut program, signal);
        is_gone(&dir);
    }
}

#[test]
fn nothing_is_left_of_an_example_however_it_ends() {
    for signal in ENDS {
        let mut program = crate::documents::examples::example("long_job");
        program.stdout(Stdio::piped()).process_group(0);
        let mut program = program.spawn().unwrap();
        let dir = directory(&program, 3, 0);
        end(&mut program, signal);
        is_gone(&dir);
    }
}

/// Of a program that ends by itself, and of one that ends by a panic.
#[test]
fn nothing_is_left_of_a_program_that_ends() {
    let dir = TempDir::new();
    let mut program = crate::documents::examples::example("single_instance");
    program.env("TMPDIR", dir.path()).stdout(Stdio::null());
    assert!(program.status().unwrap().success());
    eventually("its directory is gone", || {
        std::fs::read_dir(dir.path()).unwrap().count() == 0
    });
    program.env_remove("RUST_BACKTRACE");
    program.env("REDIS_SERVER", "/no/such/server");
    let output = program.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("there is no /no/such/server: install it"));
    eventually("its directory is gone", || {
        std::fs::read_dir(dir.path()).unwrap().count() == 0
    });
}

#[test]
fn the_watchdog_holds_nothing_open_and_is_apart() {
    let _dir = TempDir::new();
    let is_watchdog = |process: &PathBuf| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with("sh\0-c\0") && line.contains(&format!("\0{}\0", watchdog::name()))
    };
    let process = processes().find(is_watchdog).unwrap();
    let files = std::fs::read_dir(process.join("fd")).unwrap().flatten();
    let files: Vec<_> = files
        .map(|file| std::fs::read_link(file.path()).unwrap())
        .map(|file| file.to_string_lossy().split(':').next().unwrap().to_owned())
        .collect();
    let mut files = files.iter().map(String::as_str).collect::<Vec<_>>();
    files.sort_unstable();
    assert_eq!(files, ["/dev/null", "/dev/null", "pipe"]);
    assert_eq!(
        std::fs::read_link(process.join("cwd")).unwrap(),
        Path::new("/")
    );
    let pid: i32 = process
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    // SAFETY: plain system calls.
    assert_eq!(unsafe { libc::getsid(pid) }, pid);
}

#[test]
fn a_port_has_one_user_and_is_free_after_it() {
    let port = free_port();
    assert!(ports::reserve(port.number()).is_err());
    let address = ("127.0.0.1", port.number());
    assert!(std::net::TcpStream::connect(address).is_err());
    let listener = std::net::TcpListener::bind(address).unwrap();
    drop(std::net::TcpStream::connect(address).unwrap());
    drop(listener);
    let number = port.number();
    drop(port);
    // Another test may have it just then.
    eventually("it is free", || ports::reserve(number).is_ok());
}

#[test]
fn where_no_port_is_left_the_error_has_the_reason() {
    in_own_process("where_no_port_is_left_the_error_has_the_reason", || {
        drop(free_port());
        let few = libc::rlimit {
            rlim_cur: open_files() as u64,
            rlim_max: open_files() as u64,
        };
        // SAFETY: a plain system call on a value of ours.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
        assert_eq!(set, 0);
        let panic = std::panic::catch_unwind(|| [(); 100].map(|()| free_port()));
        let panic = panic.err().unwrap();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("Too many open files"), "{text}");
    });
}

/// Whatever has made this machine's limit, and however many tests run beside this one.
#[test]
fn no_more_tests_run_at_a_time_than_the_processors_carry() {
    let _dir = TempDir::new();
    let cores = std::thread::available_parallelism().unwrap().get();
    let names = std::fs::read_to_string("/proc/net/unix").unwrap();
    let turn = |line: &str| line.rsplit_once("@redlock-sync-turn-")?.1.parse().ok();
    let taken: Vec<usize> = names.lines().filter_map(turn).collect();
    assert!(
        !taken.is_empty() && taken.iter().all(|turn| *turn < turns::AT_MOST * cores),
        "{taken:?}"
    );
}

#[test]
fn programs_are_run_as_from_a_shell_in_which_nothing_is_set() {
    const NAME: &str = "programs_are_run_as_from_a_shell_in_which_nothing_is_set";
    if told().is_none() {
        let mut process = own_process(NAME, "");
        process.env("REDLOCK_PREFIX", "x").env("REDLOCK_NODES", "y");
        let output = process.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    // SAFETY: plain system calls on a value of ours.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
    let mut grep = Command::new("grep");
    grep.args(["-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    let signals = pristine(&mut grep).output().unwrap();
    let none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n";
    let signals = String::from_utf8(signals.stdout).unwrap();
    assert_eq!(without_glibc_signals(&signals), none);
    let variables = pristine(&mut Command::new("env")).output().unwrap();
    let variables = String::from_utf8_lossy(&variables.stdout);
    assert!(
        !variables.lines().any(|line| line.starts_with("REDLOCK_")),
        "{variables}"
    );
}

/// Where a directory is named that sockets cannot be in.
#[test]
fn temporary_directories_that_cannot_be_used_are_not() {
    let dir = TempDir::new();
    let long = dir.path().join("x".repeat(100));
    let spaces = dir.path().join("a b\"'c");
    std::fs::create_dir(&long).unwrap();
    std::fs::create_dir(&spaces).unwrap();
    let bytes = dir.path().join(OsStr::from_bytes(b"\xff\xfe"));
    std::fs::create_dir(&bytes).unwrap();
    for given in [Path::new(""), Path::new("."), &long, &spaces, &bytes] {
        let mut program = crate::documents::examples::example("single_instance");
        let output = program
            .env("TMPDIR", given)
            .current_dir(dir.path())
            .output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", given.display());
        assert_eq!(
            said.contains("takes the place of TMPDIR"),
            given == long || given == bytes,
            "{said}"
        );
    }
}

/// As where /tmp is mounted with `noexec`: what tests build and run is elsewhere.
#[test]
fn what_tests_build_runs_where_temporary_files_may_not_be_run() {
    const NAME: &str = "what_tests_build_runs_where_temporary_files_may_not_be_run";
    const BUILDS: &str = "a_c_program_that_uses_every_function_for_tests_passes_as_c_and_as_cpp";
    let dir = TempDir::new();
    let path = dir.path().display();
    let first = format!("mount -t tmpfs -o noexec none '{path}' && export TMPDIR='{path}'");
    if let Some(output) = in_namespaces(NAME, "m", &first, BUILDS) {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{said}");
    }
}

/// As behind `unshare -n`.
#[test]
fn without_a_loopback_interface_one_line_names_it() {
    const NAME: &str = "without_a_loopback_interface_one_line_names_it";
    const CONNECTS: &str = "a_port_has_one_user_and_is_free_after_it";
    if let Some(output) = in_namespaces(NAME, "n", "true", CONNECTS) {
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        let named = said
            .lines()
            .filter(|line| line.contains("ip link set lo up"));
        assert_eq!(named.count(), 1, "{said}");
    }
}

/// A program that runs `before`, and then the server.
fn server_script(dir: &TempDir, before: &str, run: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.path().join("redis-server");
    let server = redis_server();
    let text = format!(
        "#!/bin/sh\n{before}\n{run} '{}' \"$@\"\nexit\n",
        server.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    path
}

/// The exit code and the standard error of the test `name`, run alone with this server.
fn alone_with(server: &Path, name: &str) -> (Option<i32>, String) {
    let mut process = own_process(name, "start");
    let output = process.env("REDIS_SERVER", server).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

/// As on Ubuntu 22.04.
#[test]
fn a_server_before_7_0_is_named_once_and_no_test_fails_for_it() {
    const NAME: &str = "a_server_before_7_0_is_named_once_and_no_test_fails_for_it";
    if told().is_some() {
        Server::several(2);
        return;
    }
    let dir = TempDir::for_programs();
    let old =
        "[ \"$1\" != --version ] || { echo 'Redis server v=6.0.16 sha=00000000:0 bits=64'; exit; }";
    let (code, said) = alone_with(&server_script(&dir, old, "exec"), NAME);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.trim()
            .starts_with("The tests need Redis 7.0 or later, and "),
        "{said}"
    );
    assert!(said.contains(" is 6.0.16. "), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    let too_old = |printed| server_program::too_old(printed).is_some();
    assert!(too_old("Redis server v=6.2.14 sha=00000000:0 malloc=libc"));
    for fits in [
        "Redis server v=7.0.15 sha=0",
        "Valkey server v=8.1.1 sha=0",
        "Redis server v=10.0.0",
        "v=unstable",
        "",
    ] {
        assert!(!too_old(fits), "{fits}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_once_and_no_test_fails_for_it() {
    const NAME: &str = "a_server_that_is_not_there_is_named_once_and_no_test_fails_for_it";
    if told().is_some() {
        Server::several(2);
        return;
    }
    let (code, said) = alone_with(Path::new("/no/such/server"), NAME);
    assert_eq!(code, Some(1), "{said}");
    let expected = "there is no /no/such/server: install it";
    assert!(said.trim().starts_with(expected), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}

#[test]
fn a_server_in_a_relative_part_of_path_is_started() {
    const NAME: &str = "a_server_in_a_relative_part_of_path_is_started";
    if told().is_some() {
        Server::start().stop();
        return;
    }
    let dir = TempDir::for_programs();
    let server = server_script(&dir, "", "exec");
    std::fs::rename(server, dir.path().join("a-server")).unwrap();
    let parent = dir.path().parent().unwrap();
    let part = Path::new(dir.path().file_name().unwrap());
    let path = std::env::var_os("PATH").unwrap();
    let parts = std::iter::once(part.to_owned()).chain(std::env::split_paths(&path));
    let mut process = own_process(NAME, "start");
    process.env("PATH", std::env::join_paths(parts).unwrap());
    let output = process.env("REDIS_SERVER", "a-server").current_dir(parent);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_script_that_runs_the_server_as_another_process_is_refused_and_one_that_becomes_it_is_not() {
    const NAME: &str = "a_script_that_runs_the_server_as_another_process_is_refused_and_one_that_becomes_it_is_not";
    if told().is_some() {
        Server::start().stop();
        return;
    }
    let dir = TempDir::for_programs();
    let (code, said) = alone_with(&server_script(&dir, "", "exec"), NAME);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = alone_with(&server_script(&dir, "", ""), NAME);
    assert_eq!(code, Some(101), "{said}");
    assert!(said.contains("a script has to end with `exec`"), "{said}");
}

/// As behind `docker run -v /tmp:/tmp`: its end is that of its watchdog.
#[test]
fn the_first_process_of_a_container_leaves_no_directory() {
    const NAME: &str = "the_first_process_of_a_container_leaves_no_directory";
    let dir = TempDir::new();
    if told().is_some() {
        return;
    }
    let path = dir.path();
    let first = format!("export TMPDIR='{}'", path.display());
    if let Some(output) = in_namespaces(NAME, "pf", &first, NAME) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
    }
}

/// As with `cargo test --manifest-path`, where the current directory is not in the checkout.
#[test]
fn as_many_tests_wait_for_a_turn_wherever_cargo_was_called() {
    const NAME: &str = "as_many_tests_wait_for_a_turn_wherever_cargo_was_called";
    if let Some(threads) = told() {
        assert_eq!(std::env::var("RUST_TEST_THREADS"), Ok(threads));
        return;
    }
    for (given, threads) in [(None, "32"), (Some("3"), "3")] {
        let mut process = own_process(NAME, threads);
        process.env_remove("RUST_TEST_THREADS");
        process.envs(given.map(|given| ("RUST_TEST_THREADS", given)));
        let output = process.output().unwrap();
        assert!(output.status.success(), "{threads}");
    }
}
