//! A plain TCP or Unix socket: bytes within a point in time, and the replies in them.
//!
//! Of RESP only what our commands are answered with: four kinds of line, and a bulk string. The redis
//! crate's parser and connections would make a small program a third larger.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo};

use crate::clock;
use crate::error::Cause;
use crate::script::Reply;

/// No reply that we ask for is larger; what is, is not a Redis answer.
const MAX_FRAME: usize = 64 * 1024;
/// The shortest time that a socket waits. The kernel counts in ticks of some milliseconds anyway.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);
/// So that a connection over a NAT or a firewall is not forgotten while a lock is held.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A plain TCP or Unix socket with its read buffer.
pub(crate) struct Plain {
    /// A Unix socket too: the system calls are the same.
    stream: TcpStream,
    buffer: Vec<u8>,
    /// `buffer[at..end]` was received and not taken yet.
    at: usize,
    end: usize,
    read_timeout: Duration,
    write_timeout: Duration,
}

impl Plain {
    pub(crate) fn connect(info: &ConnectionInfo, until: Instant) -> Result<Plain, Cause> {
        let stream = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, until)?;
                let keepalive = keepalive(info.tcp_settings());
                // Without NODELAY a release behind an acquire waits 40 ms for the peer's delayed ACK.
                stream
                    .set_nodelay(true)
                    .and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive))
                    .map_err(|error| Cause::Connect(error.to_string()))?;
                stream
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => std::os::unix::net::UnixStream::connect(path)
                .map(|stream| TcpStream::from(std::os::fd::OwnedFd::from(stream)))
                .map_err(|error| Cause::Connect(error.to_string()))?,
            other => return Err(Cause::Connect(format!("{other} is not supported"))),
        };
        Ok(Plain {
            stream,
            buffer: vec![0; 4096],
            at: 0,
            end: 0,
            read_timeout: Duration::ZERO,
            write_timeout: Duration::ZERO,
        })
    }

    pub(crate) fn unread(&self) -> &[u8] {
        self.buffer.get(self.at..self.end).unwrap_or_default()
    }

    /// Whether a reply can be had without a system call.
    pub(crate) fn has_reply(&self) -> bool {
        matches!(frame(self.unread()), Ok(Some(_)))
    }

    pub(crate) fn send(
        &mut self,
        mut bytes: &[u8],
        until: Instant,
        mut rest: Duration,
    ) -> Result<(), Cause> {
        let asked = rest;
        while !bytes.is_empty() {
            if unfit(self.write_timeout, rest) {
                self.stream
                    .set_write_timeout(Some(rest))
                    .map_err(|error| Cause::io(&error))?;
                self.write_timeout = rest;
            }
            match self.stream.write(bytes) {
                Ok(0) => return Err(Cause::Closed("nothing can be written".into())),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if timed_out(error.kind()) => return Err(Cause::Silent(asked)),
                Err(error) => return Err(Cause::io(&error)),
            }
            if !bytes.is_empty() {
                // Neither signals nor a peer that reads little by little make it longer.
                rest = until.saturating_duration_since(clock::instant());
                if rest.is_zero() {
                    return Err(Cause::Silent(asked));
                }
                rest = rest.max(SHORTEST);
            }
        }
        Ok(())
    }

    pub(crate) fn recv(
        &mut self,
        until: Instant,
        heard: &mut Instant,
        waited: &mut Duration,
    ) -> Result<Option<Reply>, Cause> {
        let mut read_at: Option<(Instant, Instant)> = None;
        loop {
            if let Some(length) = frame(self.unread())? {
                let reply = reply(self.unread().get(..length).unwrap_or_default())?;
                self.at += length;
                // Bytes that trickle in are not an answer yet.
                if let Some((from, to)) = read_at {
                    *heard = to;
                    *waited += to.saturating_duration_since(from);
                }
                return Ok(Some(reply));
            }
            self.make_room();
            let now = clock::instant();
            let rest = until.saturating_duration_since(now);
            let read = if rest.is_zero() {
                self.read_what_is_here()
            } else {
                self.read_for(rest)
            };
            match read {
                Ok(0) => return Err(Cause::Closed("by the other side".into())),
                Ok(read) => {
                    self.end += read;
                    read_at = Some((now, clock::instant()));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // One more look when the time is over: the answer may have come in the last tick.
                Err(error) if timed_out(error.kind()) && !rest.is_zero() => {}
                Err(error) if timed_out(error.kind()) => return Ok(None),
                Err(error) => return Err(Cause::io(&error)),
            }
        }
    }

    /// With nothing owed: is it still open, and silent as it should be?
    pub(crate) fn look(&mut self) -> Result<(), Cause> {
        self.make_room();
        match self.read_what_is_here() {
            Ok(0) => Err(Cause::Closed("by the other side".into())),
            Ok(_) => Err(Cause::Garbage("more than was asked for".into())),
            Err(error) if timed_out(error.kind()) => Ok(()),
            Err(error) => Err(Cause::io(&error)),
        }
    }

    fn make_room(&mut self) {
        if self.at > 0 {
            self.buffer.copy_within(self.at..self.end, 0);
            self.end -= self.at;
            self.at = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
    }

    fn read_for(&mut self, rest: Duration) -> std::io::Result<usize> {
        let rest = rest.max(SHORTEST);
        if unfit(self.read_timeout, rest) {
            self.stream.set_read_timeout(Some(rest))?;
            self.read_timeout = rest;
        }
        self.stream
            .read(self.buffer.get_mut(self.end..).unwrap_or_default())
    }

    fn read_what_is_here(&mut self) -> std::io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let read = self
            .stream
            .read(self.buffer.get_mut(self.end..).unwrap_or_default());
        self.stream.set_nonblocking(false)?;
        read
    }
}

/// Whether a socket's timeout must be set anew for `rest`. Setting it is a system call, so one that
/// is right but for a sixteenth stays; one that ends too early only makes the loop turn once more.
fn unfit(current: Duration, rest: Duration) -> bool {
    current > rest + rest / 16 || current < rest / 2
}

/// The kernel says `WouldBlock` for its own timeouts.
fn timed_out(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn connect_tcp(host: &str, port: u16, until: Instant) -> Result<TcpStream, Cause> {
    let addresses: Vec<_> = (host, port)
        .to_socket_addrs()
        .map_err(|error| Cause::Connect(format!("{host}: {error}")))?
        .collect();
    let mut last = format!("{host} has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // A share for each, so that one dead address does not use up the others' time.
        let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(clock::instant()) / left;
        match TcpStream::connect_timeout(address, share.max(SHORTEST)) {
            // Loopback quirk: a port that nobody listens on can connect to itself.
            Ok(stream) if stream.local_addr().is_ok_and(|local| local == *address) => {
                last = "connection refused".into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error.to_string(),
        }
    }
    Err(Cause::Connect(last))
}

pub(crate) fn keepalive(settings: &TcpSettings) -> TcpKeepalive {
    settings
        .keepalive()
        .cloned()
        .unwrap_or_else(|| TcpKeepalive::new().with_time(KEEPALIVE))
}

/// What came is no Redis answer; how it begins tells people what it is.
fn garbage(bytes: &[u8]) -> Cause {
    let start = bytes.get(..bytes.len().min(16)).unwrap_or_default();
    Cause::Garbage(format!("\"{}\"", start.escape_ascii()))
}

/// The length of the first frame in `bytes`, once it is complete. Our commands have one-line
/// replies, and one bulk string at connecting.
fn frame(bytes: &[u8]) -> Result<Option<usize>, Cause> {
    let Some(kind) = bytes.first() else {
        return Ok(None);
    };
    if !b"+-:$".contains(kind) {
        return Err(garbage(bytes));
    }
    let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() > MAX_FRAME {
            Err(garbage(bytes))
        } else {
            Ok(None)
        };
    };
    let mut length = line + 2;
    if *kind == b'$' {
        let digits = bytes
            .get(1..line)
            .and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| digits.parse::<i64>().ok()) {
            Some(-1) => {}
            Some(bulk) => match usize::try_from(bulk) {
                Ok(bulk) if bulk <= MAX_FRAME => length += bulk + 2,
                _ => return Err(garbage(bytes)),
            },
            None => return Err(garbage(bytes)),
        }
    }
    Ok((bytes.len() >= length).then_some(length))
}

/// The reply in one complete frame.
fn reply(frame: &[u8]) -> Result<Reply, Cause> {
    // The usual answers at once.
    match frame {
        b"+OK\r\n" => return Ok(Reply::Okay),
        b"$-1\r\n" => return Ok(Reply::Nil),
        b":1\r\n" => return Ok(Reply::Int(1)),
        b":0\r\n" => return Ok(Reply::Int(0)),
        _ => {}
    }
    let line = frame.windows(2).position(|pair| pair == b"\r\n");
    let text = frame.get(1..line.unwrap_or_default()).unwrap_or_default();
    let text = || String::from_utf8_lossy(text).into_owned();
    match frame.first() {
        Some(b'-') => Ok(Reply::Error(text())),
        Some(b':') => text().parse().map(Reply::Int).map_err(|_| garbage(frame)),
        Some(b'$') => {
            let start = line.unwrap_or_default() + 2;
            let bulk = frame
                .get(start..frame.len().saturating_sub(2))
                .unwrap_or_default();
            Ok(Reply::Bulk(bulk.to_vec()))
        }
        _ => Ok(Reply::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_only_when_it_is_complete() {
        for whole in [
            "+OK\r\n",
            "$-1\r\n",
            ":12\r\n",
            "-ERR no\r\n",
            "$3\r\na\r\n\r\n",
            "$0\r\n\r\n",
        ] {
            let bytes = [whole.as_bytes(), b"+next\r\n"].concat();
            for cut in 0..whole.len() {
                assert_eq!(
                    frame(&bytes[..cut]).unwrap(),
                    None,
                    "{whole:?} cut at {cut}"
                );
            }
            for cut in whole.len()..bytes.len() {
                assert_eq!(
                    frame(&bytes[..cut]).unwrap(),
                    Some(whole.len()),
                    "{whole:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_resp_is_an_error_at_the_first_certain_byte() {
        for bytes in [
            "HTTP/1.1 400",
            "\0",
            "*1\r\n",
            "$-2\r\n",
            "$x\r\n",
            "$99999999\r\n",
            "_\r\n",
        ] {
            assert!(
                matches!(frame(bytes.as_bytes()), Err(Cause::Garbage(_))),
                "{bytes:?}"
            );
        }
        let endless = vec![b'+'; MAX_FRAME + 1];
        assert!(matches!(frame(&endless), Err(Cause::Garbage(_))));
    }

    #[test]
    fn replies_are_understood() {
        assert_eq!(reply(b"+OK\r\n").unwrap(), Reply::Okay);
        assert_eq!(reply(b"$-1\r\n").unwrap(), Reply::Nil);
        assert_eq!(reply(b":1\r\n").unwrap(), Reply::Int(1));
        assert_eq!(reply(b":-7\r\n").unwrap(), Reply::Int(-7));
        assert_eq!(reply(b"$2\r\nhi\r\n").unwrap(), Reply::Bulk(b"hi".to_vec()));
        assert_eq!(reply(b"+QUEUED\r\n").unwrap(), Reply::Other);
        let error = Reply::Error("READONLY You can't write".into());
        assert_eq!(reply(b"-READONLY You can't write\r\n").unwrap(), error);
        let odd = Reply::Error("\u{fffd}".into());
        assert_eq!(reply(b"-\xff\r\n").unwrap(), odd);
        assert!(reply(b":x\r\n").is_err());
    }

    /// Random bytes, cut anywhere: an answer or an error, never a panic.
    #[test]
    fn no_bytes_make_the_parser_panic() {
        let mut seed = 1_u64;
        let alphabet = b"+-:$*_\r\n0123456789OKab\xff";
        for _ in 0..100_000 {
            let mut bytes = Vec::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = usize::try_from(seed >> 40).unwrap() % alphabet.len();
                bytes.push(alphabet[index]);
            }
            if let Ok(Some(length)) = frame(&bytes) {
                let _ = reply(&bytes[..length]);
            }
        }
    }
}
