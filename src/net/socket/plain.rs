//! A plain TCP or Unix socket: sends and receives bytes by a deadline.
//!
//! The redis crate's blocking connection cannot bound time: its timeouts are per read (a reply that
//! trickles in outlasts any of them), a signal loses the reply for good, and connecting gives each
//! reply of the set-up a fresh timeout.

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo};

use crate::errors::cause::{Cause, Limit};
use crate::values::clock;

/// The shortest time that a socket waits. The kernel counts in ticks of a few milliseconds anyway.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);
/// Keeps a connection over a NAT or a firewall from being forgotten while a lock is held.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The flags for peeking at received bytes without taking them, and without waiting.
#[cfg(any(target_os = "linux", target_os = "android"))]
const PEEK: Option<i32> = Some(0x02 | 0x40);
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const PEEK: Option<i32> = Some(0x02 | 0x80);
#[cfg(not(unix))]
const PEEK: Option<i32> = None;

/// The flags for writing without waiting, and without a signal if the other side is gone.
#[cfg(any(target_os = "linux", target_os = "android"))]
const AT_ONCE: Option<i32> = Some(0x40 | 0x4000);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const AT_ONCE: Option<i32> = None;

pub(crate) struct PlainSocket {
    /// A Unix socket too: the system calls are the same.
    stream: TcpStream,
    read_timeout: Duration,
    write_timeout: Duration,
}

impl PlainSocket {
    /// Connects to one of the [addresses]. `timeout`: the whole time that ends at `until`.
    pub(crate) fn connect(
        info: &ConnectionInfo,
        address: Option<&SocketAddr>,
        (until, timeout): (Instant, Duration),
    ) -> Result<PlainSocket, Cause> {
        let stream = match (info.addr(), address) {
            (_, Some(address)) => {
                let stream = connect_tcp(address, until, timeout)?;
                let keepalive = keepalive(info.tcp_settings());
                // Without NODELAY a release behind an acquire waits 40 ms for the peer's delayed ACK.
                stream
                    .set_nodelay(true)
                    .and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive))
                    .map_err(|error| Cause::Connect(error.to_string()))?;
                stream
            }
            #[cfg(unix)]
            (ConnectionAddr::Unix(path), None) => std::os::unix::net::UnixStream::connect(path)
                .map(|stream| TcpStream::from(std::os::fd::OwnedFd::from(stream)))
                .map_err(|error| Cause::Connect(error.to_string()))?,
            (other, None) => return Err(Cause::Connect(format!("{other} is not supported"))),
        };
        Ok(PlainSocket {
            stream,
            read_timeout: Duration::ZERO,
            write_timeout: Duration::ZERO,
        })
    }

    /// Writes all of `bytes`. After an error a command may be torn.
    pub(crate) fn send(
        &mut self,
        mut bytes: &[u8],
        until: Instant,
        now: Instant,
    ) -> Result<(), Cause> {
        // Mostly the kernel takes all of it, and no time is needed.
        if let Some(flags) = AT_ONCE.filter(|_| !bytes.is_empty()) {
            match SockRef::from(&self.stream).send_with_flags(bytes, flags) {
                Ok(written) if written == bytes.len() => return Ok(()),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if timed_out(error.kind()) => {}
                Err(error) => return Err(Cause::io(&error)),
            }
        }
        let mut rest = until.saturating_duration_since(now).max(SHORTEST);
        let asked = rest;
        while !bytes.is_empty() {
            if needs_reset(self.write_timeout, rest) {
                self.stream
                    .set_write_timeout(Some(rest))
                    .map_err(|error| Cause::io(&error))?;
                self.write_timeout = rest;
            }
            match self.stream.write(bytes) {
                Ok(0) => return Err(Cause::Closed("nothing can be written".into())),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if timed_out(error.kind()) => {}
                Err(error) => return Err(Cause::io(&error)),
            }
            if !bytes.is_empty() {
                // Neither signals nor a peer that reads little by little prolong the wait.
                rest = until.saturating_duration_since(clock::instant());
                if rest.is_zero() {
                    return Err(Cause::NoAnswer(asked, Limit::Write));
                }
                rest = rest.max(SHORTEST);
            }
        }
        Ok(())
    }

    /// Reads the first bytes received by `until`. Zero: none arrived.
    pub(crate) fn recv(
        &mut self,
        buffer: &mut [u8],
        until: Instant,
        now: Instant,
    ) -> Result<usize, Cause> {
        let mut rest = match until == now + self.read_timeout {
            // The usual wait.
            true => self.read_timeout,
            false => until.saturating_duration_since(now),
        };
        loop {
            let read = if rest.is_zero() {
                self.read_what_is_here(buffer)
            } else {
                self.read_for(rest, buffer)
            };
            match read {
                Ok(0) => return Err(Cause::Closed("by the other side".into())),
                Ok(read) => return Ok(read),
                // Signals do not prolong the wait.
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    rest = until.saturating_duration_since(clock::instant());
                }
                Err(error) if timed_out(error.kind()) => return Ok(0),
                Err(error) => return Err(Cause::io(&error)),
            }
        }
    }

    fn read_for(&mut self, rest: Duration, buffer: &mut [u8]) -> std::io::Result<usize> {
        let rest = rest.max(SHORTEST);
        if needs_reset(self.read_timeout, rest) {
            self.stream.set_read_timeout(Some(rest))?;
            self.read_timeout = rest;
        }
        self.stream.read(buffer)
    }

    fn read_what_is_here(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(peek) = PEEK else {
            self.stream.set_nonblocking(true)?;
            let read = self.stream.read(buffer);
            self.stream.set_nonblocking(false)?;
            return read;
        };
        // In most cases nothing is here, and this is the only system call.
        let mut one = [MaybeUninit::uninit()];
        match SockRef::from(&self.stream).recv_with_flags(&mut one, peek)? {
            0 => Ok(0),
            _ => self.stream.read(buffer),
        }
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Ends the connection for forked children too, which have copies of it.
    pub(crate) fn shutdown(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends the connection so that nothing that the kernel still holds is delivered: a command that arrives later than
    /// its undo over the next connection would do harm (rule R8).
    pub(crate) fn reset(self) {
        // If this fails, the connection is closed as usual.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}

/// Whether a socket's timeout must be set anew for `rest`. Setting it is a system call, so one that is at
/// most a sixteenth too long stays, or too short by half: a read in vain checks the clock, and
/// waits again.
fn needs_reset(current: Duration, rest: Duration) -> bool {
    current != rest && (current > rest + rest / 16 || current < rest / 2)
}

/// The kernel returns `WouldBlock` for its own timeouts.
fn timed_out(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The addresses of a server's name, in the order of the resolver, each once. `None`: the server is at a path.
pub(crate) fn addresses(addr: &ConnectionAddr) -> Result<Vec<Option<SocketAddr>>, Cause> {
    let (host, port) = match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host, port),
        _ => return Ok(vec![None]),
    };
    let found = (&**host, *port).to_socket_addrs();
    let found = found.map_err(|error| not_resolved(host, &error))?;
    let mut addresses: Vec<Option<SocketAddr>> = Vec::new();
    for address in found {
        if !addresses.contains(&Some(address)) {
            addresses.push(Some(address));
        }
    }
    match addresses.is_empty() {
        true => Err(Cause::Connect(format!("{host} has no address"))),
        false => Ok(addresses),
    }
}

fn connect_tcp(
    address: &SocketAddr,
    until: Instant,
    timeout: Duration,
) -> Result<TcpStream, Cause> {
    let left = until.saturating_duration_since(clock::instant());
    match TcpStream::connect_timeout(address, left.max(SHORTEST)) {
        // Loopback quirk: a port without a listener can connect to itself.
        Ok(stream) if stream.local_addr().is_ok_and(|local| local == *address) => {
            Err(Cause::Connect("connection refused".into()))
        }
        Ok(stream) => Ok(stream),
        Err(error) if timed_out(error.kind()) && clock::instant() >= until => {
            Err(Cause::NotConnected(timeout, timeout))
        }
        Err(error) if is_of_network(error.kind()) => Err(Cause::Connect(error.to_string())),
        Err(error) => Err(Cause::NoSocket(error.to_string())),
    }
}

/// Whether the other side, or the network, caused the error. Other errors are of this process: too many open files,
/// no port left, no memory.
fn is_of_network(kind: ErrorKind) -> bool {
    timed_out(kind)
        || matches!(
            kind,
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
        )
}

/// The texts of resolvers for a name that does not exist, or has no address: glibc, musl, and the BSDs. The standard
/// library passes no number on.
const NO_HOST: [&str; 5] = [
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "Name has no usable address",
    "nodename nor servname provided",
];
/// The numbers for that on Windows: `WSAHOST_NOT_FOUND` and `WSANO_DATA`.
const NO_HOST_NUMBERS: [i32; 2] = [11001, 11004];

/// The cause if a name is not resolved. If there is no such host, no server can be reached there. A resolver that fails is
/// a failure of this host: the server may be well, and name another master (rule R43).
fn not_resolved(host: &str, error: &std::io::Error) -> Cause {
    let text = error.to_string();
    let number = error.raw_os_error().filter(|_| cfg!(windows));
    let is_none = number.is_some_and(|number| NO_HOST_NUMBERS.contains(&number))
        || NO_HOST.iter().any(|none| text.contains(none));
    let text = format!("{host}: {text}");
    // A resolver that finds no socket may report that there is no such host.
    match UdpSocket::bind(("0.0.0.0", 0)).or_else(|_| UdpSocket::bind(("::", 0))) {
        Ok(_) if is_none => Cause::Connect(text),
        Ok(_) => Cause::NoResolver(text),
        Err(_) => Cause::NoSocket(text),
    }
}

fn keepalive(settings: &TcpSettings) -> TcpKeepalive {
    settings
        .keepalive()
        .cloned()
        .unwrap_or_else(|| TcpKeepalive::new().with_time(KEEPALIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_exist_and_a_resolver_that_fails_are_told_apart() {
        let cause = |detail: &str| {
            let text = format!("failed to lookup address information: {detail}");
            not_resolved("h", &std::io::Error::other(text))
        };
        for (detail, fails) in [
            ("Name or service not known", false),
            ("No address associated with hostname", false),
            ("Name does not resolve", false),
            ("nodename nor servname provided, or not known", false),
            ("Temporary failure in name resolution", true),
            ("Try again", true),
            ("Non-recoverable failure in name resolution", true),
            ("Der Name oder der Dienst ist nicht bekannt", true),
        ] {
            let cause = cause(detail);
            let expected =
                format!("cannot connect: h: failed to lookup address information: {detail}");
            assert_eq!(cause.to_string(), expected);
            assert_eq!(cause.is_silence(), !fails, "{detail}");
            assert_eq!(cause.is_of_this_process(), fails, "{detail}");
        }
    }
}
