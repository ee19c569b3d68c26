//! One connection: what is sent, what is received before a point in time, which replies are owed.
//!
//! The redis crate's blocking connection cannot bound time: its timeouts are per read (a reply that
//! trickles in outlasts any of them), a signal loses the reply for good, and connecting gives each
//! reply of the set-up a fresh timeout. So plain connections are sockets of our own. The crate does
//! what is not about time: addresses, set-up commands, parsing, and TLS.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, Value};

use crate::clock;
use crate::error::Cause;
use crate::script::{Action, Key, Reply};

/// No reply that we ask for is larger; what is, is not a Redis answer.
const MAX_FRAME: usize = 64 * 1024;
/// The shortest time that a socket waits. The kernel counts in ticks of some milliseconds anyway.
const SHORTEST: Duration = Duration::from_millis(1);
/// So that a connection over a NAT or a firewall is not forgotten while a lock is held.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A node's unread replies are read past when so many have come in since the last time. They cost the
/// node's memory, not ours, and looking for them costs system calls.
const MAX_OWED: usize = 256;

/// A release that a node has not answered yet: if the connection dies it is said again over a new
/// one (rule R8), unless the key has ended by itself.
#[derive(Clone)]
pub(crate) struct Debt {
    pub(crate) key: Key,
    pub(crate) forget_at: Instant,
}

/// A reply to come.
struct Owed {
    asked: Instant,
    /// How many bytes had been sent before it was asked.
    from: usize,
    /// What it says is deleted, if it answers a release.
    release: Option<Debt>,
}

pub(crate) struct Wire {
    stream: Stream,
    /// The replies still to come, in order.
    owed: VecDeque<Owed>,
    /// Bytes sent so far.
    sent: usize,
    /// With more owed than this it is time to look for them.
    may_owe: usize,
    /// When the node last completed an answer.
    heard: Instant,
    /// How long readers have waited for it in this step.
    waited: Duration,
    /// When the last question was asked that it has answered.
    answered: Instant,
    /// Which server this is (rule R1); unknown where INFO is forbidden.
    run_id: Option<String>,
}

enum Stream {
    Plain(Plain),
    Tls(Box<redis::Connection>),
}

impl Wire {
    /// Connects and sets up: AUTH, SELECT, the client's name (best effort), INFO. Address after
    /// address, step after step, all within `timeout`; only name resolution, and parts of a TLS
    /// handshake, cannot be bounded.
    pub(crate) fn connect(info: &ConnectionInfo, timeout: Duration) -> Result<Wire, Cause> {
        let now = clock::instant();
        let until = now + timeout;
        let mut wire = Wire {
            stream: match info.addr() {
                ConnectionAddr::TcpTls { .. } => Stream::Tls(Box::new(connect_tls(info, timeout)?)),
                _ => Stream::Plain(Plain::connect(info, until)?),
            },
            owed: VecDeque::new(),
            sent: 0,
            may_owe: MAX_OWED,
            heard: now,
            waited: Duration::ZERO,
            answered: now,
            run_id: None,
        };
        wire.set_up(info, until, timeout)?;
        Ok(wire)
    }

    fn set_up(
        &mut self,
        info: &ConnectionInfo,
        until: Instant,
        timeout: Duration,
    ) -> Result<(), Cause> {
        let settings = info.redis_settings();
        let mut commands = Vec::new();
        // A refusal of these is the end; the rest is best effort.
        let mut needed = 0;
        if let Stream::Plain(_) = self.stream {
            if let Some(password) = settings.password() {
                let mut auth = redis::cmd("AUTH");
                if let Some(username) = settings.username() {
                    auth.arg(username);
                }
                auth.arg(password);
                commands.push(auth);
            }
            if settings.db() != 0 {
                let mut select = redis::cmd("SELECT");
                select.arg(settings.db());
                commands.push(select);
            }
            needed = commands.len();
            if !settings.skip_set_lib_name() {
                let name = settings.lib_name().unwrap_or(env!("CARGO_PKG_NAME"));
                let version = settings.lib_ver().unwrap_or(env!("CARGO_PKG_VERSION"));
                for (what, value) in [("LIB-NAME", name), ("LIB-VER", version)] {
                    let mut set_info = redis::cmd("CLIENT");
                    set_info.arg("SETINFO").arg(what).arg(value);
                    commands.push(set_info);
                }
            }
        }
        let mut info_server = redis::cmd("INFO");
        info_server.arg("server");
        commands.push(info_server);

        let mut bytes = Vec::new();
        for command in &commands {
            command.write_packed_command(&mut bytes);
            self.owe(None, clock::instant());
        }
        self.send(&bytes, until)?;
        // A server that is full, or that demands what we do not have, says so and hangs up.
        let mut said: Option<Cause> = None;
        for i in 0..commands.len() {
            match self.recv(until) {
                Ok(Some(Reply::Error(text))) => {
                    let cause = Cause::refused(&text);
                    if i < needed || text.starts_with("NOAUTH") {
                        return Err(cause);
                    }
                    said.get_or_insert(cause);
                }
                Ok(Some(Reply::Bulk(server))) => self.run_id = run_id(&server),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Cause::NotConnected(timeout)),
                Err(Cause::Closed(text)) => return Err(said.unwrap_or(Cause::Closed(text))),
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    pub(crate) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// How many replies are still to come.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// The releases that the replies still to come answer, in order; `None` for other commands.
    pub(crate) fn owed_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Option<Debt>> {
        self.owed.iter_mut().map(|owed| &mut owed.release)
    }

    /// Replies have piled up, and enough have been asked for since the last look. (A far node owes
    /// many at any time.)
    pub(crate) fn is_behind(&self) -> bool {
        self.owed.len() > self.may_owe
    }

    /// A reply more will come.
    pub(crate) fn owe(&mut self, release: Option<Debt>, asked: Instant) {
        self.owed.push_back(Owed {
            asked,
            from: self.sent,
            release,
        });
    }

    /// The releases that were not answered.
    pub(crate) fn into_debts(self) -> impl Iterator<Item = Debt> {
        self.owed.into_iter().filter_map(|owed| owed.release)
    }

    /// How many bytes the node may not have read yet.
    pub(crate) fn unread(&self) -> usize {
        self.owed
            .front()
            .map_or(0, |owed| self.sent.wrapping_sub(owed.from))
    }

    /// How long the oldest reply that is owed has been.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        self.owed.front().map_or(Duration::ZERO, |owed| {
            now.saturating_duration_since(owed.asked)
        })
    }

    /// When the node was last heard, and how long readers waited for it in this step.
    pub(crate) fn last_heard(&self) -> (Instant, Duration) {
        (self.heard, self.waited)
    }

    /// Writes all of `bytes`. After an error the wire is finished: a command may be torn.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant) -> Result<(), Cause> {
        let now = clock::instant();
        let rest = until.saturating_duration_since(now).max(SHORTEST);
        self.sent = self.sent.wrapping_add(bytes.len());
        match &mut self.stream {
            Stream::Plain(plain) => plain.send(bytes, until, rest)?,
            Stream::Tls(connection) => connection
                .set_write_timeout(Some(rest))
                .and_then(|()| connection.send_packed_command(bytes))
                .map_err(|error| tls_cause(&error, rest))?,
        }
        Ok(())
    }

    /// From here on the reader's waiting is counted anew.
    pub(crate) fn begin(&mut self) {
        self.waited = Duration::ZERO;
    }

    /// The next reply, or `None` if it is not here in time. At or past `until` it takes what is
    /// here and does not wait. After an error the wire is finished.
    pub(crate) fn recv(&mut self, until: Instant) -> Result<Option<Reply>, Cause> {
        let reply = match &mut self.stream {
            Stream::Plain(plain) => plain.recv(until, &mut self.heard, &mut self.waited)?,
            Stream::Tls(connection) => {
                let now = clock::instant();
                let rest = until.saturating_duration_since(now).max(SHORTEST);
                let value = connection
                    .set_read_timeout(Some(rest))
                    .and_then(|()| connection.recv_response())
                    .map_err(|error| tls_cause(&error, rest))?;
                self.heard = clock::instant();
                self.waited += self.heard.saturating_duration_since(now);
                Some(Reply::from(value))
            }
        };
        if reply.is_some()
            && let Some(owed) = self.owed.pop_front()
        {
            self.answered = owed.asked;
        }
        // Or the next reply would be taken for another's.
        if self.owed.is_empty() && self.has_unread() {
            return Err(Cause::Garbage("more than was asked for".into()));
        }
        Ok(reply)
    }

    /// Whether the next reply can be had without a system call.
    pub(crate) fn has_reply(&self) -> bool {
        match &self.stream {
            Stream::Plain(plain) => matches!(frame(plain.unread()), Ok(Some(_))),
            Stream::Tls(_) => false,
        }
    }

    fn has_unread(&self) -> bool {
        match &self.stream {
            Stream::Plain(plain) => !plain.unread().is_empty(),
            Stream::Tls(_) => false,
        }
    }

    /// Reads past the replies that are here, without waiting (TLS: until `until`, since there is no
    /// other way to look). Tells how long the node takes at most.
    pub(crate) fn catch_up(&mut self, now: Instant, until: Instant) -> Result<Duration, Cause> {
        let until = match self.stream {
            Stream::Plain(_) => now,
            Stream::Tls(_) => until,
        };
        self.settle(until)?;
        self.may_owe = self.owed.len() + MAX_OWED;
        Ok(now.saturating_duration_since(self.answered))
    }

    /// Finds out without waiting whether the connection was closed, as far as that can be had. Reads
    /// past the replies that are here.
    pub(crate) fn look(&mut self, now: Instant) -> Result<(), Cause> {
        if matches!(self.stream, Stream::Tls(_)) || !self.settle(now)? {
            return Ok(());
        }
        match &mut self.stream {
            Stream::Plain(plain) => plain.look(),
            Stream::Tls(_) => Ok(()),
        }
    }

    /// Reads past all replies that are owed; false if some are not here in time.
    pub(crate) fn settle(&mut self, until: Instant) -> Result<bool, Cause> {
        while !self.owed.is_empty() {
            if self.recv(until)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks for nothing and waits for the answer, so often.
    pub(crate) fn ping(&mut self, times: usize, until: Instant) -> Result<bool, Cause> {
        for _ in 0..times {
            self.owe(None, clock::instant());
            self.send(b"*1\r\n$4\r\nPING\r\n", until)?;
            if !self.settle(until)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes releases that are due and notes their replies as owed. On an error they are among
    /// [`into_debts`](Wire::into_debts) too.
    pub(crate) fn pay(&mut self, debts: Vec<Debt>, until: Instant) -> Result<(), Cause> {
        // The redis crate refuses to write nothing.
        if debts.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let now = clock::instant();
        for debt in debts {
            Action::Release.pack(&debt.key, &mut bytes);
            self.owe(Some(debt), now);
        }
        self.send(&bytes, until)
    }
}

/// A plain TCP or Unix socket with its read buffer.
struct Plain {
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
    fn connect(info: &ConnectionInfo, until: Instant) -> Result<Plain, Cause> {
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

    fn unread(&self) -> &[u8] {
        self.buffer.get(self.at..self.end).unwrap_or_default()
    }

    fn send(&mut self, mut bytes: &[u8], until: Instant, mut rest: Duration) -> Result<(), Cause> {
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

    fn recv(
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
    fn look(&mut self) -> Result<(), Cause> {
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

fn keepalive(settings: &TcpSettings) -> TcpKeepalive {
    settings
        .keepalive()
        .cloned()
        .unwrap_or_else(|| TcpKeepalive::new().with_time(KEEPALIVE))
}

fn connect_tls(info: &ConnectionInfo, timeout: Duration) -> Result<redis::Connection, Cause> {
    let settings = info.tcp_settings().clone().set_nodelay(true);
    let settings = settings.set_keepalive(keepalive(info.tcp_settings()));
    let client = redis::Client::open(info.clone().set_tcp_settings(settings));
    // rustls panics if the program has chosen no crypto provider.
    let connected = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        client.and_then(|client| client.get_connection_with_timeout(timeout))
    }));
    match connected {
        Ok(connection) => connection.map_err(|error| Cause::Connect(error.to_string())),
        Err(_) => Err(Cause::Connect(
            "the TLS library panicked: rustls needs a crypto provider, which the program chooses"
                .into(),
        )),
    }
}

fn tls_cause(error: &redis::RedisError, waited: Duration) -> Cause {
    if error.is_timeout() {
        Cause::Silent(waited)
    } else if error.is_io_error() {
        Cause::Closed(error.to_string())
    } else {
        Cause::Garbage(error.to_string())
    }
}

/// The length of the first frame in `bytes`, once it is complete. Our commands have one-line
/// replies, and one bulk string at connecting.
fn frame(bytes: &[u8]) -> Result<Option<usize>, Cause> {
    let garbage = || {
        let start = bytes.get(..bytes.len().min(16)).unwrap_or_default();
        Err(Cause::Garbage(format!("\"{}\"", start.escape_ascii())))
    };
    let Some(kind) = bytes.first() else {
        return Ok(None);
    };
    if !b"+-:$".contains(kind) {
        return garbage();
    }
    let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() > MAX_FRAME {
            garbage()
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
                _ => return garbage(),
            },
            None => return garbage(),
        }
    }
    Ok((bytes.len() >= length).then_some(length))
}

/// The reply in one complete frame.
fn reply(frame: &[u8]) -> Result<Reply, Cause> {
    // The usual answers, without the parser's allocations.
    match frame {
        b"+OK\r\n" => return Ok(Reply::Okay),
        b"$-1\r\n" => return Ok(Reply::Nil),
        b":1\r\n" => return Ok(Reply::Int(1)),
        b":0\r\n" => return Ok(Reply::Int(0)),
        _ => {}
    }
    redis::parse_redis_value(frame)
        .map(Reply::from)
        .map_err(|error| Cause::Garbage(error.to_string()))
}

impl From<Value> for Reply {
    fn from(value: Value) -> Reply {
        match value {
            Value::Okay => Reply::Okay,
            Value::Nil => Reply::Nil,
            Value::Int(number) => Reply::Int(number),
            Value::BulkString(bytes) => Reply::Bulk(bytes),
            Value::ServerError(error) => Reply::Error(match error.details() {
                Some(details) => format!("{} {details}", error.code()),
                None => error.code().to_owned(),
            }),
            _ => Reply::Other,
        }
    }
}

fn run_id(info: &[u8]) -> Option<String> {
    let text = str::from_utf8(info).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    Some(line.trim().to_owned())
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
        assert!(reply(b"-\xff\xfe\r\n").is_err());
        assert!(reply(b":x\r\n").is_err());
    }

    #[test]
    fn the_run_id_is_found_in_info() {
        let info = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc123\r\ntcp_port:1\r\n";
        assert_eq!(run_id(info).as_deref(), Some("abc123"));
        assert_eq!(run_id(b"# Server\r\n"), None);
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
