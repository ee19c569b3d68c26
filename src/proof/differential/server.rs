//! A real server, and connections to it.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{packed, text, words};
use crate::errors::secret::Secret;
use crate::protocol::commands::resp::{self, Reply};
use crate::values::clock;

/// Standard input ends with this process, however that ends, and then the server ends. $1: its directory. $2: its
/// program.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
command -v "$2" || { rm -rf "$1"; exit; }
"$2" --port 0 --unixsocket s --save "" --dir "$1" &
read -r _
kill -9 $!
rm -rf "$1"
"#;

/// A separate `redis-server`, ended when the value is dropped.
pub(super) struct Server {
    shell: Child,
    dir: PathBuf,
}

/// Creates a directory that did not exist. A socket's path must not be long.
fn new_directory() -> PathBuf {
    let given = std::env::temp_dir();
    let usable = (1..64).contains(&given.as_os_str().len());
    let base = if usable { given } else { "/tmp".into() };
    let name = format!("redlock-{:016x}", getrandom::u64().unwrap());
    let dir = std::path::absolute(base.join(name)).unwrap();
    DirBuilder::new().mode(0o700).create(&dir).unwrap();
    dir
}

/// Users of servers before 6.2 have no rights for channels, and those before 7.0 no selectors.
fn is_recent(binary: &OsStr) {
    let Ok(output) = Command::new(binary).arg("--version").output() else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text
        .split("v=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    assert!(
        major.is_none_or(|major| major >= 7),
        "The tests need Redis 7.0 or later, and {} is {}. Name another one in REDIS_SERVER.",
        binary.display(),
        version.unwrap_or_default()
    );
}

impl Server {
    pub(super) fn start() -> Server {
        let dir = new_directory();
        let binary = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        is_recent(&binary);
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .args([dir.as_os_str(), &binary])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut server = Server {
            shell: shell.unwrap(),
            dir,
        };
        let end = clock::instant() + Duration::from_secs(20);
        while !server.dir.join("s").exists() && clock::instant() < end {
            assert!(
                server.shell.try_wait().unwrap().is_none(),
                "there is no {}. Install it (apt-get install redis-server), or name it in REDIS_SERVER",
                binary.display()
            );
            std::thread::sleep(Duration::from_millis(3));
        }
        server
    }

    pub(super) fn connect(&self) -> Line {
        let end = clock::instant() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(self.dir.join("s")) {
                Ok(stream) => {
                    let patience = Some(Duration::from_secs(20));
                    stream.set_read_timeout(patience).unwrap();
                    let inbox = Vec::new();
                    return Line { stream, inbox };
                }
                Err(error) => assert!(clock::instant() < end, "no server: {error}"),
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This closes its standard input.
        let _ = self.shell.wait();
    }
}

/// A connection to the server.
pub(super) struct Line {
    stream: UnixStream,
    inbox: Vec<u8>,
}

impl Line {
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply, as bytes and parsed.
    pub(super) fn reply(&mut self) -> (Vec<u8>, Reply) {
        loop {
            if let Some((reply, length)) = resp::parse(&self.inbox, &Secret::default()).unwrap() {
                return (self.inbox.drain(..length).collect(), reply);
            }
            let mut buffer = [0; 16 * 1024];
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the server has closed the connection");
            self.inbox.extend_from_slice(&buffer[..read]);
        }
    }

    pub(super) fn ask(&mut self, args: &[&[u8]]) -> (Vec<u8>, Reply) {
        self.send(&packed(args));
        self.reply()
    }

    /// The server's time in microseconds.
    pub(super) fn time(&mut self) -> u64 {
        let words = words(self.reply().1);
        let number = |at: usize| -> u64 { text(&words[at]).parse().unwrap() };
        number(0) * 1_000_000 + number(1)
    }
}
