//! The C interface: header and libraries agree, a C program that uses every function passes as C and
//! as C++ (and, where tests that are ignored are run, under AddressSanitizer and valgrind), the examples
//! say the same, and nothing crashes it.
// Handles, and functions that only C declares.
#![allow(clippy::missing_safety_doc)]

#[path = "capi/cpp.rs"]
mod cpp;
#[path = "capi/looks.rs"]
mod looks;
#[path = "capi/python.rs"]
pub(crate) mod python;

use crate::support;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{OnceLock, RwLock};
use std::time::{Duration, Instant};

use redlock_sync::Redlock;
use support::clusters::Cluster;
use support::sentinels::Set;
use support::*;

const HEADER: &str = include_str!("../../src/redlock.h");

// ---- building ---------------------------------------------------------------------------------

/// Runs a tool of the machine, which must be there and must succeed.
pub(crate) fn run(command: &mut Command, install: &str) -> Output {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = started(command.output(), &tool, install);
    assert!(output.status.success(), "{command:?}:\n{}", said(&output));
    output
}

pub(crate) fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Where this is set, the libraries are built as a user builds them, which takes longer.
const RELEASE: &str = "REDLOCK_CAPI_RELEASE";

/// The directory with both libraries, built once.
pub(crate) fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        if std::env::var_os(RELEASE).is_none() {
            // Of this process: another one may run the same tests. It goes with the process.
            let to = std::mem::ManuallyDrop::new(TempDir::for_programs());
            link_libraries(&crate::library(), to.path());
            return to.path().to_owned();
        }
        let features = match cfg!(feature = "tls") {
            true => "capi,tls",
            false => "capi",
        };
        let mut cargo = support::cargo();
        cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["rustc", "--lib", "--crate-type", "cdylib,staticlib"])
            .arg("--target-dir")
            .arg(crate::target());
        run(cargo.args(["--release", "--features", features]), "cargo");
        crate::built().join("release")
    })
}

/// Of what the tests were built with, which takes no time.
fn link_libraries(library: &Path, to: &Path) {
    let source = to.join("capi.rs");
    std::fs::write(&source, "pub extern crate library;").unwrap();
    let dependencies = library.with_file_name("deps");
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition", "2024", "--crate-name", "redlock_sync"])
        .args(["--crate-type", "cdylib,staticlib", "-Cmetadata=capi"])
        .arg(source)
        .arg("--extern")
        .arg(format!("library={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", dependencies.display()))
        .arg("--out-dir")
        .arg(to);
    run(&mut rustc, "rustc");
}

#[derive(Clone, Copy)]
pub(crate) enum Language {
    C99,
    Cpp17,
}

/// Compiles a C file of this repository against the static or the shared library.
pub(crate) fn compile(source: &str, language: Language, shared: bool, flags: &[&str], to: &Path) {
    let compiler = match language {
        Language::C99 => ("gcc", &["-x", "c", "-std=c99"], "gcc libc6-dev"),
        Language::Cpp17 => ("g++", &["-x", "c++", "-std=c++17"], "g++"),
    };
    compile_with(compiler, source, shared, flags, to);
}

/// The same with this compiler, its standard, and its package.
fn compile_with(
    (compiler, standard, package): (&str, &[&str; 3], &str),
    source: &str,
    shared: bool,
    flags: &[&str],
    to: &Path,
) {
    let mut command = Command::new(compiler);
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(standard)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-Isrc"])
        .args(flags)
        .args([source, "-x", "none", "-o"])
        .arg(to);
    if shared {
        let path = libraries().display();
        command.args([
            format!("-L{path}"),
            "-lredlock_sync".into(),
            // Before LD_LIBRARY_PATH, by which cargo leads to what another build has left in its directory.
            format!("-Wl,--disable-new-dtags,-rpath,{path}"),
        ]);
    } else {
        command.arg(libraries().join("libredlock_sync.a"));
    }
    run(command.args(["-lpthread", "-ldl", "-lm"]), package);
}

// ---- the C program ----------------------------------------------------------------------------

/// Runs tests/capi.c, compiled to `program`, with servers of its own.
fn c_program(mut command: Command, pairs: u32, growth_kib: u32) -> Output {
    let servers = Server::several(5);
    pristine(&mut command).args(urls(&servers[..3]));
    for (url, server) in [
        (servers[3].url(), &servers[3]),
        (servers[4].unix_url(), &servers[4]),
    ] {
        command.args([url, server.pid().to_string()]);
    }
    command.args([pairs.to_string(), growth_kib.to_string()]);
    run(&mut command, "valgrind")
}

/// The C program as C99 with the static library, compiled once.
fn static_c_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let to = std::mem::ManuallyDrop::new(TempDir::for_programs());
        let program = to.path().join("capi");
        compile("tests/capi.c", Language::C99, false, &[], &program);
        program
    })
}

/// Compiles and runs it.
fn c_program_passes(language: Language, shared: bool, pairs: u32, growth_kib: u32) {
    let dir = TempDir::for_programs();
    let program = dir.path().join("capi");
    compile("tests/capi.c", language, shared, &[], &program);
    let output = c_program(Command::new(program), pairs, growth_kib);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_c99_program_with_the_static_library_passes() {
    let output = c_program(Command::new(static_c_program()), 1000, 0);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "takes half a minute"]
fn pairs_100_000_times_do_not_grow() {
    // The smallest block that malloc gives, lost once in a pair, would be 3 MiB.
    c_program_passes(Language::C99, false, 100_000, 1024);
}

#[test]
#[ignore = "the one in C says nearly the same"]
fn a_c99_program_with_the_shared_library_passes() {
    c_program_passes(Language::C99, true, 1000, 0);
}

#[test]
#[ignore = "the one in C says nearly the same"]
fn a_cpp17_program_with_the_static_library_passes() {
    c_program_passes(Language::Cpp17, false, 1000, 0);
}

/// It does nearly the same as the one in C: it is only compiled, and linked with the shared library.
#[test]
fn a_cpp17_program_with_the_shared_library_compiles() {
    let dir = TempDir::for_programs();
    let program = dir.path().join("capi");
    compile("tests/capi.c", Language::Cpp17, true, &[], &program);
}

#[test]
#[ignore = "the one in C says nearly the same"]
fn a_cpp17_program_with_the_shared_library_passes() {
    c_program_passes(Language::Cpp17, true, 1000, 0);
}

const SANITIZER: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

#[test]
#[ignore = "takes half a minute"]
fn address_sanitizer_finds_nothing_and_would() {
    let dir = TempDir::for_programs();
    let program = dir.path().join("capi");
    compile("tests/capi.c", Language::C99, false, &SANITIZER, &program);
    c_program(Command::new(&program), 100_000, 0);

    let flags = [&SANITIZER[..], &["-DLEAK"]].concat();
    compile("tests/capi.c", Language::C99, false, &flags, &program);
    let mut leaking = Command::new(&program);
    // Frames of the library have no frame pointers.
    leaking.env("ASAN_OPTIONS", "fast_unwind_on_malloc=0");
    let output = leaking.output().unwrap();
    let text = said(&output);
    assert!(
        !output.status.success() && text.contains("redlock_new"),
        "{text}"
    );
}

fn valgrind(program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--error-exitcode=9", "--leak-check=full"])
        .arg(concat!(
            "--suppressions=",
            env!("CARGO_MANIFEST_DIR"),
            "/tests/capi.supp"
        ))
        // Threads take turns there; without this one may wait for its own until a lock expires.
        .arg("--fair-sched=yes")
        .args([
            "--show-leak-kinds=definite,indirect",
            "--errors-for-leak-kinds=definite,indirect",
        ])
        .arg(program);
    command
}

#[test]
#[ignore = "takes a minute"]
fn valgrind_finds_nothing_and_would() {
    let dir = TempDir::for_programs();
    let program = dir.path().join("capi");
    compile("tests/capi.c", Language::C99, false, &[], &program);
    // Silent also about the child, whose errors are not in the exit code.
    let output = c_program(valgrind(&program), 2000, 0);
    assert!(output.stderr.is_empty(), "{}", said(&output));

    compile("tests/capi.c", Language::C99, false, &["-DLEAK"], &program);
    let output = valgrind(&program).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(9), "{text}");
    assert!(text.contains("redlock_new"), "{text}");
}

/// A program in C holds a lock at this address while something happens to its servers, and extends and releases it then.
fn a_c_program_holds(url: &str, name: &str, meanwhile: impl FnOnce()) {
    let mut child = pristine(&mut Command::new(static_c_program()))
        .args([url, name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut says = |line: &str| assert_eq!(lines.next().unwrap().unwrap(), line);
    says("held");
    meanwhile();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    says("ok");
    assert!(child.wait().unwrap().success());
}

/// Of the servers that have the key, and its fencing token stays for a day.
fn is_released(keys: &[String], name: &str) {
    let expected = [beside(name, "fence")];
    assert_eq!(keys, expected);
}

#[test]
fn a_c_program_holds_a_lock_behind_sentinels_while_they_fail_over() {
    let (set, name) = (Set::start(3), "job");
    // What is written last.
    let last = beside(name, "fence");
    a_c_program_holds(&set.url(), name, || {
        eventually("all is replicated", || {
            set.servers.iter().all(|server| server.exists(&last))
        });
        set.fail_over(1);
        set.has_failed_over();
        // Until then it goes on as a master.
        eventually("the old one replicates", || {
            let info = set.servers[0].try_command(&["INFO", "replication"]);
            let text = info.and_then(|text| Ok(redis::from_redis_value::<String>(text)?));
            text.is_ok_and(|text| text.contains("master_link_status:up"))
        });
    });
    is_released(&set.servers[1].keys(), name);
}

#[test]
fn a_c_program_holds_a_lock_in_a_cluster_while_its_slot_moves() {
    let cluster = Cluster::masters(3);
    let name = cluster.name(0);
    a_c_program_holds(&cluster.url(), &name, || {
        assert_eq!(cluster.nodes_with(&name), [0]);
        cluster.move_slot(&name, 1);
        assert_eq!(cluster.nodes_with(&name), [1]);
    });
    is_released(&cluster.keys(), &name);
}

// ---- header and libraries ---------------------------------------------------------------------

/// The functions that a header declares.
pub(crate) fn declared(header: &str) -> BTreeSet<String> {
    let mut code = String::new();
    for (i, part) in header.split("/*").enumerate() {
        code += if i == 0 {
            part
        } else {
            part.split_once("*/").unwrap().1
        };
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let calls = code.match_indices('(').filter_map(|(at, _)| {
        let name = code[..at].rsplit(|c| !is_part(c)).next()?;
        name.starts_with("redlock_").then(|| name.to_owned())
    });
    calls.collect()
}

pub(crate) fn exported(library: &str, flags: &[&str]) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    nm.args(flags)
        .args(["--defined-only"])
        .arg(libraries().join(library));
    let output = run(&mut nm, "binutils");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    names.map(str::to_owned).collect()
}

#[test]
fn the_libraries_export_what_the_header_declares_and_the_shared_one_nothing_else() {
    let mut all_declared = declared(HEADER);
    assert!(all_declared.len() >= 27, "{all_declared:?}");
    // As a user builds them they have nothing for tests.
    if cfg!(feature = "testing") && std::env::var_os(RELEASE).is_none() {
        all_declared.extend(declared(include_str!("../../src/redlock_testing.h")));
    }
    let declared = all_declared;
    assert_eq!(declared, exported("libredlock_sync.so", &["-D"]));
    let all = exported("libredlock_sync.a", &["-g"]);
    let ours = all.into_iter().filter(|name| name.starts_with("redlock_"));
    assert_eq!(declared, ours.collect());
}

#[test]
fn every_function_and_constant_of_the_header_is_used_by_the_c_program() {
    let program = include_str!("../capi.c");
    for name in declared(HEADER) {
        assert!(program.contains(&format!("{name}(")), "{name}");
    }
    let defines = HEADER
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    for name in defines.filter_map(|line| line.split_once(' ')) {
        let part = ["_MAJOR", "_MINOR", "_PATCH"]
            .iter()
            .any(|part| name.0.ends_with(part));
        assert!(part || program.contains(name.0), "{}", name.0);
    }
}

// ---- examples ---------------------------------------------------------------------------------

#[test]
fn the_examples_in_c_and_python_print_the_same() {
    let dir = TempDir::for_programs();
    let program = dir.path().join("batch_job");
    compile(
        "examples/capi/batch_job.c",
        Language::C99,
        false,
        &[],
        &program,
    );
    let servers = Server::several(3);
    let c = || {
        let mut command = Command::new(&program);
        pristine(&mut command).args(urls(&servers));
        command
    };
    let python = || {
        let mut command = python::interpreter();
        command
            .arg(python::file("batch_job.py"))
            .args(urls(&servers));
        command
    };
    let said = |mut command: Command| run(&mut command, "python3").stdout;
    let text = String::from_utf8(said(c())).unwrap();
    assert!(
        text.starts_with("importing part 1 of 5\n") && text.ends_with("done\n"),
        "{text}"
    );
    assert_eq!(text.as_bytes(), said(python()));

    let lock = redlock(&servers)
        .acquire("shop:nightly-import", TTL)
        .unwrap();
    for mut command in [c(), python()] {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(75));
        assert_eq!(output.stdout, b"another host is running it\n");
    }
    lock.release().unwrap();
}

/// What a Python program of this repository says to these servers. Only these keys are left.
fn python_passes(mut python: Command, servers: &[Server], left: impl Fn(&str) -> bool) -> Output {
    let output = run(&mut python, "python3 python3-cffi");
    for server in servers {
        // A node that was not waited for may be told of a release later.
        eventually("no other keys are left", || {
            server.keys().iter().all(|key| left(key))
        });
    }
    output
}

#[test]
#[ignore = "needs the Python package cffi"]
fn python_s_cffi_reads_the_header_and_uses_the_library() {
    let servers = Server::several(3);
    let mut cffi = python::interpreter();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    cffi.arg(top.join("tests/capi_cffi.py"))
        .arg(top.join("src/redlock.h"))
        .arg(libraries().join("libredlock_sync.so"))
        .args(urls(&servers));
    #[cfg(feature = "tls")]
    let over_tls = python::OverTls::start();
    #[cfg(feature = "tls")]
    cffi.env("TLS", over_tls.arguments());
    let output = python_passes(cffi, &servers, |_| false);
    assert_eq!(output.stdout, b"ok\n");
}

#[test]
fn the_program_for_cffi_reads_the_header_as_the_guide_shows() {
    let program = include_str!("../capi_cffi.py");
    let lines = HEADER
        .lines()
        .filter_map(|line| line.strip_prefix(" *     "));
    let (mut lines, mut count) = (lines.skip_while(|line| !line.starts_with("text =")), 0);
    for line in lines.by_ref().take(4) {
        let line = line.split("  #").next().unwrap().trim();
        let line = line.replace("\"redlock.h\"", "header");
        let line = line.replace("\"libredlock_sync.so\"", "library");
        assert!(program.lines().any(|own| own == line), "{line}");
        count += 1;
    }
    assert_eq!(count, 4);
}

// ---- anything, in any order -------------------------------------------------------------------

/// A handle; null, or from C.
type Handle = *mut c_void;

unsafe extern "C" {
    safe fn redlock_version_number() -> u32;
    safe fn redlock_status_string(status: c_int) -> *const c_char;
    fn redlock_last_error(buf: *mut c_char, cap: usize) -> usize;
    fn redlock_new(urls: *const *const c_char, n: usize, out: *mut Handle) -> c_int;
    fn redlock_set(client: Handle, option: c_int, value: u64) -> c_int;
    fn redlock_set_tls(
        client: Handle,
        roots: *const c_char,
        roots_len: usize,
        chain: *const c_char,
        chain_len: usize,
        key: *const c_char,
        key_len: usize,
        server_name: *const c_char,
    ) -> c_int;
    fn redlock_free(client: Handle);
    fn redlock_try_acquire(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_acquire(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_acquire_within(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        wait: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_acquire_while(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        keep_trying: Option<extern "C" fn(*mut c_void) -> c_int>,
        user: *mut c_void,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_resume(
        client: Handle,
        resource: *const c_void,
        len: usize,
        token: *const u8,
        validity: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_lock_remaining_ms(lock: Handle) -> u64;
    fn redlock_lock_is_valid(lock: Handle) -> c_int;
    fn redlock_lock_ensure(lock: Handle, at_least: u64) -> c_int;
    fn redlock_lock_extensions_left(lock: Handle) -> u32;
    fn redlock_lock_token(lock: Handle, buf: *mut u8, cap: usize) -> usize;
    fn redlock_lock_resource(lock: Handle, buf: *mut c_void, cap: usize) -> usize;
    fn redlock_lock_extend(lock: Handle, ttl: u64) -> c_int;
    fn redlock_lock_release(lock: Handle) -> c_int;
    fn redlock_lock_leak(lock: Handle) -> c_int;
    fn redlock_lock_leak_for(lock: Handle, time: u64) -> c_int;
    fn redlock_lock_keep_alive(lock: Handle, max_hold: u64) -> c_int;
    fn redlock_lock_stop(lock: Handle) -> c_int;
    fn redlock_lock_hold_left_ms(lock: Handle) -> u64;
    fn redlock_lock_wait_lost(lock: Handle, timeout: u64) -> c_int;
    fn redlock_lock_lost_reason(lock: Handle) -> c_int;
    fn redlock_acquire_several(
        client: Handle,
        resources: *const *const c_void,
        lens: *const usize,
        n: usize,
        ttl: u64,
        wait: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_acquire_permit(
        client: Handle,
        resource: *const c_void,
        len: usize,
        permits: u32,
        ttl: u64,
        wait: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_acquire_read(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        wait: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_acquire_write(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        wait: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_resume_several(
        client: Handle,
        resources: *const *const c_void,
        lens: *const usize,
        n: usize,
        token: *const u8,
        validity: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_resume_permit(
        client: Handle,
        resource: *const c_void,
        len: usize,
        permits: u32,
        token: *const u8,
        validity: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_resume_read(
        client: Handle,
        resource: *const c_void,
        len: usize,
        token: *const u8,
        validity: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_resume_write(
        client: Handle,
        resource: *const c_void,
        len: usize,
        token: *const u8,
        validity: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_lock_slot(lock: Handle) -> i64;
    fn redlock_lock_on_lost(
        lock: Handle,
        function: Option<extern "C" fn(c_int, *mut c_void)>,
        user: *mut c_void,
    ) -> c_int;
    fn redlock_set_log(max_level: c_int, function: Option<LogFn>, user: *mut c_void) -> c_int;
}

type LogFn = extern "C" fn(c_int, *const c_char, *mut c_void);

/// A handle that threads share: used under the read lock, ended under the write lock, as the header
/// demands it.
#[derive(Default)]
struct Slot(RwLock<usize>);

impl Slot {
    fn with<T>(&self, work: impl FnOnce(Handle) -> T) -> T {
        work(std::ptr::with_exposed_provenance_mut(
            *self.0.read().unwrap(),
        ))
    }

    fn put(&self, handle: Handle) -> Handle {
        let old = std::mem::replace(&mut *self.0.write().unwrap(), handle.expose_provenance());
        std::ptr::with_exposed_provenance_mut(old)
    }
}

/// Clients and locks that exist.
static ALIVE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
const CLIENT: usize = 0;
const LOCK: usize = 1;
static LOSSES: AtomicUsize = AtomicUsize::new(0);

extern "C" fn lost(reason: c_int, user: *mut c_void) {
    assert!((1..=5).contains(&reason) && user.is_null());
    LOSSES.fetch_add(1, Relaxed);
}

static MESSAGES: AtomicUsize = AtomicUsize::new(0);

extern "C" fn logged(level: c_int, message: *const c_char, user: *mut c_void) {
    // SAFETY: the library promises a string.
    let message = unsafe { CStr::from_ptr(message) };
    assert!((1..=5).contains(&level) && user.is_null() && message.to_str().is_ok());
    MESSAGES.fetch_add(1, Relaxed);
}

extern "C" fn count_down(user: *mut c_void) -> c_int {
    // SAFETY: what `chaos` passes, in its own thread.
    let left = unsafe { &mut *user.cast::<u64>() };
    *left = left.saturating_sub(1);
    (*left > 0).into()
}

/// Keeps what was made, if it was, and ends what had been there.
fn keep(status: c_int, kind: usize, slot: &Slot, made: Handle, passed: bool) -> c_int {
    assert_eq!(status == 0, passed && !made.is_null(), "{status}");
    if !made.is_null() {
        ALIVE[kind].fetch_add(1, Relaxed);
        end(kind, slot.put(made), End::Release);
    }
    status
}

/// How a lock ends.
enum End {
    Release,
    Leak,
    LeakFor(u64),
}

fn end(kind: usize, handle: Handle, how: End) {
    if !handle.is_null() {
        ALIVE[kind].fetch_sub(1, Relaxed);
    }
    // SAFETY: null, or taken out of its slot, so no other thread has it.
    unsafe {
        let status = match how {
            _ if kind == CLIENT => {
                redlock_free(handle);
                0
            }
            End::Leak => redlock_lock_leak(handle),
            End::LeakFor(time) => redlock_lock_leak_for(handle, time),
            End::Release => redlock_lock_release(handle),
        };
        assert!((0..=8).contains(&status));
    }
}

/// A permit, a read lock, a write lock, or a lock on several names.
///
/// # Safety
///
/// As the header demands it.
unsafe fn other_kind(
    client: Handle,
    pick: &mut impl FnMut(u64) -> usize,
    (resource, len): (*const c_void, usize),
    (ttl, wait): (u64, u64),
    out: *mut Handle,
) -> c_int {
    let permits = [0, 1, 3, 1000, u32::MAX][pick(5)];
    let n = [0, 1, 3, usize::MAX >> 4][pick(4)];
    let (names, lens) = ([resource, null(), resource], [len, 0, len]);
    let names = if pick(10) == 0 {
        null()
    } else {
        names.as_ptr()
    };
    let lens = if pick(10) == 0 { null() } else { lens.as_ptr() };
    let token = [7; 20];
    let token = [null(), token.as_ptr()][pick(2)];
    // SAFETY: the caller says so; the arrays have three elements, and a number that no array has is refused.
    unsafe {
        match pick(8) {
            4 => redlock_resume_several(client, names, lens, n, token, ttl, out),
            5 => redlock_resume_permit(client, resource, len, permits, token, ttl, out),
            6 => redlock_resume_read(client, resource, len, token, ttl, out),
            7 => redlock_resume_write(client, resource, len, token, ttl, out),
            0 => redlock_acquire_several(client, names, lens, n, ttl, wait, out),
            1 => redlock_acquire_permit(client, resource, len, permits, ttl, wait, out),
            2 => redlock_acquire_read(client, resource, len, ttl, wait, out),
            _ => redlock_acquire_write(client, resource, len, ttl, wait, out),
        }
    }
}

/// Calls functions in random order with random handles and values until `until`.
fn chaos(
    seed: u64,
    urls: &[CString],
    clients: &[Slot],
    locks: &[Slot],
    until: Instant,
) -> (u64, u64) {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        2,
        3,
        10,
        50,
        500,
        2000,
        60_000,
        3_600_000,
        1 << 32,
        u64::MAX,
    ];
    let mut random = Random(seed);
    let none = Slot::default();
    let (mut calls, mut made) = (0, 0);
    while Instant::now() < until {
        calls += 1;
        let mut pick = |bound: u64| usize::try_from(random.below(bound)).unwrap();
        let client = if pick(10) == 0 {
            &none
        } else {
            &clients[pick(4)]
        };
        let lock = if pick(10) == 0 {
            &none
        } else {
            &locks[pick(8)]
        };
        let number = NUMBERS[pick(12)];
        // No thread waits for long: the locks' holders are among those that wait.
        let short = [0, 1, 5, 20][pick(4)];
        // Many, since some stay locked for a hundred years.
        let name = random.below(1 << 16).to_le_bytes();
        let mut pick = |bound: u64| usize::try_from(random.below(bound)).unwrap();
        let name = &name[..[0, 1, 2, 2, 2, 2, 2, 2][pick(8)]];
        let resource = if pick(20) == 0 {
            null()
        } else {
            name.as_ptr().cast()
        };
        let len = name.len();
        let mut out: Handle = std::ptr::without_provenance_mut(1);
        let has_out = pick(20) > 0;
        let out_to = if has_out { &raw mut out } else { null_mut() };
        let mut buf = [0xAA_u8; 40];
        let cap = pick(33);
        let buf_to = if pick(10) == 0 {
            null_mut()
        } else {
            buf.as_mut_ptr()
        };
        let mut token = [0_u8; 20];
        let what = pick(36);
        // SAFETY: handles are null or alive, for as long as their slot is being read; buffers have
        // the lengths that are passed.
        let status = unsafe {
            let made = |status, kind, slot, out: Handle| {
                keep(
                    status,
                    kind,
                    slot,
                    if has_out { out } else { null_mut() },
                    has_out,
                )
            };
            match what {
                0 => {
                    let mut list: Vec<_> = urls.iter().map(|url| url.as_ptr()).collect();
                    list.truncate(pick(4));
                    if pick(10) == 0 {
                        list.push(null());
                    }
                    let from = if pick(10) == 0 { null() } else { list.as_ptr() };
                    let status = redlock_new(from, list.len(), out_to);
                    if status == 0 {
                        // Busy machine, and bounded waits.
                        redlock_set(out, 1, 20);
                        redlock_set(out, 4, 2000);
                        looks::observe(out);
                    }
                    made(status, CLIENT, &clients[pick(4)], out)
                }
                1 => match pick(7) {
                    1 => client.with(|client| redlock_set(client, 1, short)),
                    option => {
                        let option = c_int::try_from(option).unwrap();
                        client.with(|client| redlock_set(client, option, number))
                    }
                },
                2 if pick(10) == 0 => {
                    end(CLIENT, client.put(null_mut()), End::Release);
                    0
                }
                3..=6 => {
                    let status =
                        client.with(|c| redlock_try_acquire(c, resource, len, number, out_to));
                    made(status, LOCK, &locks[pick(8)], out)
                }
                7 => {
                    let status = client.with(|c| redlock_acquire(c, resource, len, number, out_to));
                    made(status, LOCK, &locks[pick(8)], out)
                }
                8 => {
                    let status = client
                        .with(|c| redlock_acquire_within(c, resource, len, number, short, out_to));
                    made(status, LOCK, &locks[pick(8)], out)
                }
                9 => {
                    let mut left = short;
                    let user = (&raw mut left).cast();
                    let f = (pick(10) > 0).then_some(count_down as extern "C" fn(_) -> _);
                    let status = client
                        .with(|c| redlock_acquire_while(c, resource, len, number, f, user, out_to));
                    made(status, LOCK, &locks[pick(8)], out)
                }
                10 => {
                    let size = lock.with(|lock| redlock_lock_token(lock, token.as_mut_ptr(), 20));
                    let from = if size == 20 { token.as_ptr() } else { null() };
                    let status =
                        client.with(|c| redlock_resume(c, resource, len, from, number, out_to));
                    made(status, LOCK, &locks[pick(8)], out)
                }
                11 => {
                    lock.with(|lock| redlock_lock_remaining_ms(lock));
                    lock.with(|lock| redlock_lock_is_valid(lock))
                }
                12 => lock.with(|lock| redlock_lock_ensure(lock, number)),
                13 => {
                    lock.with(|lock| redlock_lock_extensions_left(lock));
                    lock.with(|lock| redlock_lock_hold_left_ms(lock));
                    lock.with(|lock| redlock_lock_lost_reason(lock))
                }
                14 => {
                    let size = lock.with(|lock| redlock_lock_token(lock, buf_to, cap));
                    assert!(size == 0 || size == 20);
                    0
                }
                15 => {
                    let size = lock.with(|lock| redlock_lock_resource(lock, buf_to.cast(), cap));
                    assert!(size <= 3);
                    0
                }
                16 | 17 => lock.with(|lock| redlock_lock_extend(lock, number)),
                18..=20 => {
                    let how = match pick(6) {
                        0 => End::Leak,
                        1 => End::LeakFor(number),
                        _ => End::Release,
                    };
                    end(LOCK, lock.put(null_mut()), how);
                    0
                }
                21..=23 => lock.with(|lock| redlock_lock_keep_alive(lock, number)),
                24 => lock.with(|lock| redlock_lock_stop(lock)),
                25 => lock.with(|lock| redlock_lock_wait_lost(lock, short)),
                26 | 27 => {
                    let f = (pick(10) > 0).then_some(lost as extern "C" fn(_, _));
                    lock.with(|lock| redlock_lock_on_lost(lock, f, null_mut()))
                }
                28 => {
                    let f = (pick(3) > 0).then_some(logged as LogFn);
                    let max_level = c_int::try_from(pick(8)).unwrap() - 1;
                    redlock_set_log(max_level, f, null_mut())
                }
                30 => made(
                    client.with(|c| {
                        other_kind(c, &mut pick, (resource, len), (number, short), out_to)
                    }),
                    LOCK,
                    &locks[pick(8)],
                    out,
                ),
                31 | 32 => {
                    let slot = lock.with(|lock| redlock_lock_slot(lock));
                    assert!((-1..1000).contains(&slot));
                    0
                }
                // Seldom: they make new connections.
                33 => client.with(|client| {
                    looks::look(client, lock, &mut pick, (resource, len), (number, short))
                }),
                29 => {
                    redlock_last_error(buf_to.cast(), cap);
                    0
                }
                _ => {
                    let code = u32::try_from(number & 0xFFFF_FFFF).unwrap().cast_signed();
                    assert!(!redlock_status_string(code).is_null());
                    0
                }
            }
        };
        // (9 is a panic, and 10 another kind of lock under the name.)
        let is_expected = (0..=8).contains(&status) || status == 10;
        assert!(is_expected, "{what}: {status}");
        // Nothing is written behind what was allowed.
        assert!(buf[cap..].iter().all(|byte| *byte == 0xAA));
        made += u64::from(status == 0 && (3..=10).contains(&what));
    }
    (calls, made)
}

#[test]
fn random_calls_with_random_arguments_crash_nothing_and_leave_nothing() {
    let name = "random_calls_with_random_arguments_crash_nothing_and_leave_nothing";
    in_own_process(name, || {
        // So that the linker takes the C functions from the crate.
        drop(Redlock::new(["redis://127.0.0.1"]).unwrap());
        assert!(redlock_version_number() > 0);
        let servers = Server::several(3);
        let list: Vec<CString> = servers
            .iter()
            .map(|s| CString::new(s.url()).unwrap())
            .collect();
        let (threads_before, files_before) = (threads(), open_files());
        let clients: Vec<Slot> = (0..4).map(|_| Slot::default()).collect();
        let locks: Vec<Slot> = (0..8).map(|_| Slot::default()).collect();
        let until = Instant::now() + Duration::from_secs(5);
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let (calls, made) = std::thread::scope(|scope| {
            let start = |number| {
                let (list, clients, locks) = (&list, &clients, &locks);
                let seed = (seed << 8) + number;
                scope.spawn(move || chaos(seed, list, clients, locks, until))
            };
            let threads: Vec<_> = (1..=4).map(start).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        });
        assert!(made > 20, "{made} locks in {calls} calls");
        assert!(MESSAGES.load(Relaxed) > 0 && looks::EVENTS.load(Relaxed) > 0);
        let passed = looks::PASSED.each_ref().map(|count| count.load(Relaxed));
        assert!(passed.iter().any(|count| *count > 0), "{passed:?}");
        for slot in &locks {
            end(LOCK, slot.put(null_mut()), End::Release);
        }
        for slot in &clients {
            end(CLIENT, slot.put(null_mut()), End::Release);
        }
        let alive = ALIVE.each_ref().map(|count| count.load(Relaxed));
        assert_eq!(alive, [0, 0]);
        println!("{calls} calls, {passed:?}, {} losses", LOSSES.load(Relaxed));
        eventually("no connection is left", || {
            servers.iter().all(|server| server.clients() == 0)
        });
        eventually("no thread is left", || threads() == threads_before);
        eventually("no file is left", || open_files() == files_before);
    });
}

// ---- log messages -----------------------------------------------------------------------------

#[test]
fn a_rust_program_keeps_its_own_logger() {
    struct Own;
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    impl log::Log for Own {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            TOLD.fetch_add(usize::from(record.target() == "redlock_sync"), Relaxed);
        }
        fn flush(&self) {}
    }
    let name = "a_rust_program_keeps_its_own_logger";
    in_own_process(name, || {
        log::set_logger(&Own).unwrap();
        log::set_max_level(log::LevelFilter::Debug);
        // SAFETY: a function that lives as long as the process.
        let set = |level, function| unsafe { redlock_set_log(level, function, null_mut()) };
        assert_eq!(set(5, Some(logged)), 7);
        let mut text = [0_u8; 200];
        // SAFETY: as long as it says.
        let len = unsafe { redlock_last_error(text.as_mut_ptr().cast(), text.len()) };
        let text = std::str::from_utf8(&text[..len]).unwrap();
        assert!(text.contains("a logger of its own"), "{text}");
        assert_eq!(set(0, None), 0);
        assert_eq!(log::max_level(), log::LevelFilter::Debug);
        let servers = Server::several(1);
        drop(redlock(&servers).try_acquire("a", TTL).unwrap());
        assert!(TOLD.load(Relaxed) > 0);
        assert_eq!(MESSAGES.load(Relaxed), 0);
    });
}

#[test]
fn what_others_log_is_not_passed_on() {
    let name = "what_others_log_is_not_passed_on";
    in_own_process(name, || {
        // So that the linker takes the C functions from the crate.
        drop(Redlock::new(["redis://127.0.0.1"]).unwrap());
        // SAFETY: a function that lives as long as the process.
        assert_eq!(unsafe { redlock_set_log(5, Some(logged), null_mut()) }, 0);
        for target in [
            "redis",
            "redlock_synchronous",
            "redlock_sync::net",
            "redlock",
            "",
            "x::redlock_sync",
        ] {
            log::error!(target: target, "not ours");
        }
        assert_eq!(MESSAGES.load(Relaxed), 0);
        log::error!(target: "redlock_sync", "ours, with a \0");
        log::trace!(target: "redlock_sync", "ours");
        assert_eq!(MESSAGES.load(Relaxed), 2);
    });
}

// ---- overhead ---------------------------------------------------------------------------------

/// Half of all pairs are faster.
fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "a measurement: run it alone, with --release"]
fn a_pair_through_c_costs_at_most_1_02_of_the_rust_call() {
    const PAIRS: usize = 20_000;
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let urls: Vec<String> = servers.iter().map(Server::unix_url).collect();
        let rust = Redlock::new(urls.clone()).unwrap();
        let list: Vec<CString> = urls
            .into_iter()
            .map(|url| CString::new(url).unwrap())
            .collect();
        let list: Vec<*const c_char> = list.iter().map(|url| url.as_ptr()).collect();
        let mut client = null_mut();
        // SAFETY: strings that live long enough, and handles that are ended below.
        assert_eq!(unsafe { redlock_new(list.as_ptr(), nodes, &mut client) }, 0);
        let through_rust = || {
            let lock = rust.try_acquire("pair", TTL).unwrap().unwrap();
            lock.release().unwrap();
        };
        let through_c = || {
            let mut lock = null_mut();
            // SAFETY: as above.
            unsafe {
                let status =
                    redlock_try_acquire(client, c"pair".as_ptr().cast(), 4, 60_000, &mut lock);
                assert_eq!(status, 0);
                assert_eq!(redlock_lock_release(lock), 0);
            }
        };
        let mut times = [Vec::new(), Vec::new()];
        for i in 0..2 * PAIRS {
            let start = Instant::now();
            if i % 2 == 0 {
                through_rust()
            } else {
                through_c()
            }
            times[i % 2].push(start.elapsed());
        }
        let [rust, c] = times.each_mut().map(|times| median(times));
        let ratio = c.as_secs_f64() / rust.as_secs_f64();
        println!("{nodes} nodes: Rust {rust:?}, C {c:?}: {ratio:.4}");
        assert!(ratio <= 1.02);
        // SAFETY: as above.
        unsafe { redlock_free(client) };
    }
}

/// The certificates are given as a C program gives them.
#[cfg(feature = "tls")]
#[test]
fn a_lock_over_tls_with_certificates_through_c() {
    use support::certificates::{Authority, HERE};
    let authority = Authority::new();
    let client = authority.signs(&[]);
    let server = Server::over_tls(&authority.signs(&[HERE]), &["--tls-auth-clients", "yes"]);
    let url = CString::new(format!("rediss://127.0.0.1:{}", server.port())).unwrap();
    let (ca, chain, key) = (&authority.certificate, &client.certificate, &client.key);
    let name = CString::new("localhost").unwrap();
    let try_lock = |tls: &dyn Fn(Handle) -> c_int| {
        let (mut redlock, mut lock) = (null_mut(), null_mut());
        // SAFETY: as the header has it.
        unsafe {
            assert_eq!(redlock_new(&url.as_ptr(), 1, &mut redlock), 0);
            assert_eq!(redlock_set(redlock, 5, 5000), 0);
            assert_eq!(redlock_set(redlock, 4, 2000), 0);
            assert_eq!(tls(redlock), 0);
            let status = redlock_try_acquire(redlock, c"a".as_ptr().cast(), 1, 10_000, &mut lock);
            redlock_lock_release(lock);
            redlock_free(redlock);
            status
        }
    };
    let none: *const c_char = null();
    let given = |text: &String| text.as_ptr().cast::<c_char>();
    // SAFETY: as the header has it.
    let with = |redlock| unsafe {
        let (ca_to, chain_to, key_to) = (given(ca), given(chain), given(key));
        let name = name.as_ptr();
        redlock_set_tls(
            redlock,
            ca_to,
            ca.len(),
            chain_to,
            chain.len(),
            key_to,
            key.len(),
            name,
        )
    };
    // SAFETY: as the header has it.
    let without =
        |redlock| unsafe { redlock_set_tls(redlock, given(ca), ca.len(), none, 0, none, 0, none) };
    assert_eq!(try_lock(&with), 0);
    // UNAVAILABLE: it wants a certificate.
    let status = try_lock(&without);
    // SAFETY: it is a string.
    let said = unsafe { CStr::from_ptr(redlock_status_string(status)) };
    let mut text = [0; 400];
    // SAFETY: as the header has it.
    let length = unsafe { redlock_last_error(text.as_mut_ptr().cast(), text.len()) };
    let text = String::from_utf8_lossy(&text[..length.min(400)]).into_owned();
    assert!(
        status != 0 && text.contains("CertificateRequired"),
        "{said:?}: {text}"
    );
}
