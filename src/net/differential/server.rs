//! A real server, and connections to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{packed, text, words};
use crate::clock;
use crate::protocol::resp::{self, Reply};
use crate::secret::Secret;

/// A `redis-server` of its own, ended with its value.
pub(super) struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    pub(super) fn start() -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("redlock-sync-differential-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let child = Command::new(&binary)
            .args(["--port", "0", "--unixsocket", "s", "--save", ""])
            .args(["--dir".as_ref(), dir.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot start {binary}: {error}. Install it (apt-get install redis-server), or name it in REDIS_SERVER")
        });
        Server { child, dir }
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
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A connection to it.
pub(super) struct Line {
    stream: UnixStream,
    inbox: Vec<u8>,
}

impl Line {
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply, as bytes and as what they mean.
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

    /// In microseconds.
    pub(super) fn time(&mut self) -> u64 {
        let words = words(self.reply().1);
        let number = |at: usize| -> u64 { text(&words[at]).parse().unwrap() };
        number(0) * 1_000_000 + number(1)
    }
}
