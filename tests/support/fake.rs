//! A server that answers each command as a test says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// The arguments of one command.
pub type Words = [Vec<u8>];

pub struct Fake {
    port: u16,
}

impl Fake {
    /// Lives as long as the test's process.
    pub fn new(answer: impl Fn(&Words) -> Vec<u8> + Send + Sync + 'static) -> Fake {
        Fake::ending(move |words| Some(answer(words)))
    }

    /// `None`: it ends the connection.
    pub fn ending(answer: impl Fn(&Words) -> Option<Vec<u8>> + Send + Sync + 'static) -> Fake {
        super::turns::take();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = answer.clone();
                std::thread::spawn(move || serve(stream, &*answer));
            }
        });
        Fake { port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// With a user's name and a password.
    pub fn url(&self, password: &str) -> String {
        format!("redis://u:{password}@127.0.0.1:{}", self.port)
    }
}

fn serve(mut stream: TcpStream, answer: &impl Fn(&Words) -> Option<Vec<u8>>) {
    let (mut inbox, mut page) = (Vec::new(), [0; 65_536]);
    loop {
        while let Some((words, length)) = command(&inbox) {
            inbox.drain(..length);
            let Some(reply) = answer(&words) else {
                // Without this, what was not read would take back what was written.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(200)));
                while stream.read(&mut page).is_ok_and(|read| read > 0) {}
                return;
            };
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
        match stream.read(&mut page) {
            Ok(count @ 1..) => inbox.extend_from_slice(&page[..count]),
            _ => return,
        }
    }
}

/// The first command, and its length, if it is complete.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let number = |at: &mut usize| -> Option<usize> {
        let rest = bytes.get(*at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let text = std::str::from_utf8(&rest[1..end]).unwrap();
        *at += end + 2;
        Some(text.parse().unwrap())
    };
    let mut words = Vec::new();
    for _ in 0..number(&mut at)? {
        let length = number(&mut at)?;
        words.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

/// What a client has sent, in one line.
pub fn line(words: &Words) -> String {
    let texts = words.iter().map(|word| String::from_utf8_lossy(word));
    let line = texts.collect::<Vec<_>>().join(" ");
    line.replace(['\r', '\n'], " ")
}
