//! The package for Python, examples/python: its own tests, with the library that these tests are built with.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::support::clusters::Cluster;
use super::support::{Server, TempDir, pristine, urls};
use super::{libraries, python_passes, said};

pub(crate) fn file(name: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    top.join("examples/python").join(name)
}

/// The directory of a package as the wheel has it: the modules, and the library beside them.
fn package() -> &'static Path {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    PACKAGE.get_or_init(|| {
        // It goes with the process.
        let to = std::mem::ManuallyDrop::new(TempDir::for_programs());
        let package = to.path().join("redlock");
        std::fs::create_dir(&package).unwrap();
        let library = [libraries().join("libredlock_sync.so")];
        let modules = std::fs::read_dir(file("src/redlock")).unwrap();
        for from in modules.map(|entry| entry.unwrap().path()).chain(library) {
            symlink(&from, package.join(from.file_name().unwrap())).unwrap();
        }
        to.path().to_owned()
    })
}

/// Python, where the package is installed.
pub(crate) fn interpreter() -> Command {
    let mut python = Command::new("python3");
    pristine(&mut python)
        .env("PYTHONPATH", package())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

/// A server that asks for a certificate, and the files for it.
#[cfg(feature = "tls")]
pub(crate) struct OverTls {
    server: Server,
    files: TempDir,
}

#[cfg(feature = "tls")]
impl OverTls {
    pub(crate) fn start() -> OverTls {
        use super::support::certificates::{Authority, HERE};
        let (authority, files) = (Authority::new(), TempDir::new());
        let client = authority.signs(&[]);
        let server = Server::over_tls(&authority.signs(&[HERE]), &["--tls-auth-clients", "yes"]);
        for (name, text) in [
            ("ca", &authority.certificate),
            ("chain", &client.certificate),
            ("key", &client.key),
        ] {
            std::fs::write(files.path().join(name), text).unwrap();
        }
        OverTls { server, files }
    }

    /// Its URL, and the files: CA, certificate, key.
    pub(crate) fn arguments(&self) -> String {
        let files = ["ca", "chain", "key"].map(|name| self.files.path().join(name));
        let files = files.map(|file| file.display().to_string()).join("\n");
        format!("rediss://127.0.0.1:{}\n{files}", self.server.port())
    }
}

/// Runs one file of the package's tests.
fn passes(tests: &str, left: impl Fn(&str) -> bool) {
    let servers = Server::several(3);
    let mut python = interpreter();
    python
        .env("REDLOCK_TEST_NODES", urls(&servers).join(" "))
        .env(
            "COMMAND",
            option_env!("CARGO_BIN_EXE_redlock").unwrap_or_default(),
        )
        .arg(file("tests").join(tests));
    #[cfg(feature = "tls")]
    let over_tls = OverTls::start();
    #[cfg(feature = "tls")]
    python.env("REDLOCK_TEST_TLS", over_tls.arguments());
    let output = python_passes(python, &servers, left);
    let said = said(&output);
    assert!(said.contains("OK"), "{said}");
    // Tests that need what was not built are left out.
    let is_complete = cfg!(feature = "cli");
    assert!(!is_complete || !said.contains("skipped"), "{said}");
}

/// For programs in a checkout.
#[test]
fn the_module_beside_the_c_example_is_the_package() {
    let program = "import redlock, redlock.errors; from redlock import Busy; print(redlock.__path__, Busy is redlock.errors.Busy)";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", program]);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let python = pristine(&mut python).env("PYTHONPATH", examples.join("capi"));
    let output = python.output().unwrap();
    let package = examples.join("python/src/redlock");
    let path = format!("['{}'] True\n", package.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), path);
}

#[test]
fn locks_in_python_do_what_they_promise() {
    // The counter of fencing tokens stays for a day.
    passes("test_locks.py", |key| key == "{größe}:redlock:fence");
}

#[test]
fn signals_and_the_end_of_a_program_end_waits_in_python() {
    passes("test_waits.py", |_| false);
}

#[test]
fn events_errors_and_hand_overs_in_python() {
    // The mark of what was done stays for its period.
    passes("test_reports.py", |key| key == "{nightly}:redlock:done");
}

#[cfg(feature = "testing")]
#[test]
fn unit_tests_in_python_use_nodes_for_tests() {
    passes("test_nodes.py", |_| false);
}

/// And in C, whose functions these are.
#[test]
fn a_name_that_can_never_have_a_token_or_a_mark_in_a_cluster_is_config_in_python() {
    let cluster = Cluster::masters(3);
    let script = r#"
import sys
from redlock import Config, Redlock

def refused(call):
    try:
        call()
    except Config as error:
        print(error)
    else:
        sys.exit("no error")

locks = Redlock(sys.argv[1], restart_guard=0, node_timeout=5)
name, ttl = "a}b", 60
for take in [
    lambda: locks.lock(name, ttl),
    lambda: locks.semaphore(name, 3, ttl),
    lambda: locks.read_lock(name, ttl),
    lambda: locks.write_lock(name, ttl),
    lambda: locks.several([name], ttl),
]:
    with take() as lock:
        refused(lock.fencing_token)
with locks.lock(name, ttl) as lock:
    refused(lambda: lock.mark_done(3600, 1))
refused(lambda: locks.last_run(name))
"#;
    let mut python = interpreter();
    python.args(["-c", script, &cluster.url()]);
    let texts = said(&python_passes(python, &cluster.nodes, |_| false));
    let count = |text: &str| texts.matches(text).count();
    assert_eq!(count("\"a}b\" has no fencing tokens"), 5, "{texts}");
    assert_eq!(count("\"a}b\" cannot be marked as done"), 2, "{texts}");
}
