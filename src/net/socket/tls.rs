//! TLS over a plain socket: sends and receives bytes by a deadline.
//!
//! rustls does no input and output itself. So the bounds of time, reads without waiting, signals and resets are those
//! of the plain socket.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use crate::errors::cause::Cause;
use crate::net::socket::peer::Peer;
use crate::net::socket::plain::{PlainSocket, SHORTEST};
use crate::net::socket::trust::cause;
use crate::values::clock;

/// How many bytes are read at once.
const BUFFER: usize = 16 * 1024;

pub(crate) struct TlsSocket {
    plain: PlainSocket,
    session: Box<ClientConnection>,
    /// Records to be written.
    out: Vec<u8>,
    /// The bytes that were read, and which part of them the session has not taken.
    raw: Vec<u8>,
    rest: (usize, usize),
    /// Why nothing more can be received.
    end: Option<Cause>,
}

impl TlsSocket {
    /// Connects, and ends the handshake except for the last message, which goes with the first bytes that are sent.
    pub(crate) fn connect(
        peer: &Peer,
        address: Option<&SocketAddr>,
        (until, timeout): (Instant, Duration),
    ) -> Result<TlsSocket, Cause> {
        let access = peer.access()?;
        let session = guarded(|| ClientConnection::new(access.config, access.name))?
            .map_err(|error| Cause::Tls(error.to_string()))?;
        let mut tls = TlsSocket {
            plain: PlainSocket::connect(peer, address, (until, timeout))?,
            session: Box::new(session),
            out: Vec::new(),
            raw: vec![0; BUFFER],
            rest: (0, 0),
            end: None,
        };
        tls.session.set_buffer_limit(None);
        let mut heard = false;
        while tls.session.is_handshaking() {
            let now = clock::instant();
            if now >= until {
                return Err(match heard {
                    true => Cause::NotConnected(timeout, timeout),
                    false => Cause::Mute(timeout),
                });
            }
            let read = tls.flush(until, now);
            let read = read.and_then(|()| tls.read(until, now));
            heard |= read.map_err(hung_up)?;
            if let Err(cause) = tls.take() {
                // The server may learn what is wrong with its certificate.
                let now = clock::instant();
                let _ = tls.flush(now + SHORTEST, now);
                return Err(match cause {
                    Cause::Garbage(text) => Cause::Tls(text),
                    cause => cause,
                });
            }
        }
        Ok(tls)
    }

    /// Writes all of `bytes`, and before them what the handshake or a change of keys has left. After an error part of
    /// a record may be out: the connection is finished.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant, now: Instant) -> Result<(), Cause> {
        guarded(|| self.session.writer().write_all(bytes))?.map_err(|error| Cause::io(&error))?;
        self.flush(until, now)
    }

    fn flush(&mut self, until: Instant, now: Instant) -> Result<(), Cause> {
        self.out.clear();
        while self.session.wants_write() {
            let written = guarded(|| self.session.write_tls(&mut self.out))?;
            written.map_err(|error| Cause::io(&error))?;
        }
        self.plain.send(&self.out, until, now)
    }

    /// Reads the first bytes received by `until`. Zero: none arrived. Bytes that only concern the session, such as a
    /// ticket or part of a record, count as none, and do not prolong the wait.
    pub(crate) fn recv(
        &mut self,
        buffer: &mut [u8],
        until: Instant,
        mut now: Instant,
    ) -> Result<usize, Cause> {
        let mut came = false;
        loop {
            if let Some(read) = self.plaintext(buffer)? {
                return Ok(read);
            }
            if let Some(end) = &self.end {
                return Err(end.clone());
            }
            if came && self.is_used_up() {
                now = clock::instant();
                if now >= until {
                    return Ok(0);
                }
            }
            if !self.read(until, now)? {
                return Ok(0);
            }
            came = true;
            // Bytes that arrived before the end count first.
            self.end = self.take().err();
        }
    }

    /// The bytes that the session has taken, and that were not read yet.
    fn plaintext(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Cause> {
        match self.session.reader().read(buffer) {
            Ok(0) => Err(Cause::Closed("by the other side".into())),
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Cause::io(&error)),
        }
    }

    fn is_used_up(&self) -> bool {
        self.rest.0 >= self.rest.1
    }

    /// Reads from the socket, unless there is something left for the session. Returns false if nothing arrived.
    fn read(&mut self, until: Instant, now: Instant) -> Result<bool, Cause> {
        if self.is_used_up() {
            self.rest = (0, self.plain.recv(&mut self.raw, until, now)?);
        }
        Ok(!self.is_used_up())
    }

    /// Lets the session take a part of the bytes that were read.
    fn take(&mut self) -> Result<(), Cause> {
        let (from, to) = self.rest;
        let mut rest = self.raw.get(from..to).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        let session = &mut self.session;
        let handshakes = session.is_handshaking();
        let taken = guarded(|| {
            let taken = session.read_tls(&mut rest);
            (taken, session.process_new_packets())
        })?;
        self.rest.0 += taken.0.map_err(|error| Cause::io(&error))?;
        taken.1.map(drop).map_err(|error| cause(&error, handshakes))
    }

    pub(crate) fn plain(&self) -> &PlainSocket {
        &self.plain
    }

    pub(crate) fn reset(self) {
        self.plain.reset();
    }
}

/// Catches panics: rustls calls the crypto provider and the logger, which are the program's.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Cause> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|_| Cause::Closed("the TLS library panicked".into()))
}

fn hung_up(cause: Cause) -> Cause {
    match cause {
        Cause::Closed(text) => Cause::Closed(format!(
            "{text} in the handshake (does this port speak TLS?)"
        )),
        cause => cause,
    }
}

#[cfg(test)]
#[cfg(feature = "tls")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::sync::{Arc, OnceLock};

    use redis::IntoConnectionInfo;
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{
        CipherSuiteCommon, ServerConfig, ServerConnection, SupportedCipherSuite, Tls12CipherSuite,
        Tls13CipherSuite,
    };

    use super::*;
    use crate::net::socket::trust::{Access, Trust};

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// The other side.
    struct TlsServer {
        session: ServerConnection,
        stream: TcpStream,
    }

    impl TlsServer {
        /// Writes `text` in one record, and returns the bytes instead of sending them.
        fn record(&mut self, text: &[u8]) -> Vec<u8> {
            self.session.writer().write_all(text).unwrap();
            self.written()
        }

        fn written(&mut self) -> Vec<u8> {
            let mut bytes = Vec::new();
            while self.session.wants_write() {
                self.session.write_tls(&mut bytes).unwrap();
            }
            bytes
        }

        fn say(&mut self, text: &[u8]) {
            let bytes = self.record(text);
            self.stream.write_all(&bytes).unwrap();
        }

        /// Reads this number of bytes.
        fn hear(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
            let mut heard = vec![0; count];
            let mut stream = rustls::Stream::new(&mut self.session, &mut self.stream);
            stream.read_exact(&mut heard).map(|()| heard)
        }
    }

    fn certificate() -> &'static (CertificateDer<'static>, PrivateKeyDer<'static>) {
        static MADE: OnceLock<(CertificateDer<'static>, PrivateKeyDer<'static>)> = OnceLock::new();
        MADE.get_or_init(|| {
            let made = Command::new("openssl")
                .args([
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                ])
                .args(["-nodes", "-subj", "/CN=test", "-keyout", "-", "-out", "-"])
                .output()
                .expect("openssl makes a certificate (apt-get install openssl)");
            let key = PrivateKeyDer::from_pem_slice(&made.stdout).unwrap();
            (CertificateDer::from_pem_slice(&made.stdout).unwrap(), key)
        })
    }

    /// A connection whose client has this provider instead of the usual one.
    fn pair(provider: Option<CryptoProvider>) -> (TlsSocket, TlsServer) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("rediss://127.0.0.1:{port}/#insecure");
        let info = url.into_connection_info().unwrap();
        let trust = Trust::new(&crate::settings::tls::Tls::new(), [&info]);
        let mut access = trust.access(info.addr()).unwrap().unwrap();
        if let Some(provider) = provider {
            access = Access::of_provider(Arc::new(provider), access.name);
        }
        let peer = Peer::with(info, access);
        let server = std::thread::spawn(move || {
            let (certificate, key) = certificate();
            let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.clone()], key.clone_key())
                .unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut session = ServerConnection::new(Arc::new(config)).unwrap();
            // The client's last message arrives with the first bytes that it sends.
            while session.is_handshaking() {
                session.complete_io(&mut stream).unwrap();
            }
            session.complete_io(&mut stream).unwrap();
            TlsServer { session, stream }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let time = (clock::instant() + 10 * SECOND, 10 * SECOND);
        let mut tls = TlsSocket::connect(&peer, Some(&address), time).unwrap();
        tls.send(b"hello", clock::instant() + SECOND, clock::instant())
            .unwrap();
        let mut server = server.join().unwrap();
        assert_eq!(server.hear(5).unwrap(), b"hello");
        (tls, server)
    }

    fn recv(tls: &mut TlsSocket, wait: Duration) -> Result<Vec<u8>, Cause> {
        let mut buffer = [0; 64];
        let now = clock::instant();
        let read = tls.recv(&mut buffer, now + wait, now)?;
        Ok(buffer[..read].to_vec())
    }

    #[test]
    fn tickets_are_nothing_to_a_look_and_to_a_wait() {
        let (mut tls, mut server) = pair(None);
        let began = clock::instant();
        assert_eq!(recv(&mut tls, 20 * MS).unwrap(), b"");
        assert!(clock::instant() - began < SECOND);
        assert_eq!(recv(&mut tls, Duration::ZERO).unwrap(), b"");
        server.say(b"+OK");
        assert_eq!(recv(&mut tls, SECOND).unwrap(), b"+OK");
    }

    #[test]
    fn a_record_that_trickles_in_makes_no_wait_longer() {
        let (mut tls, mut server) = pair(None);
        let record = server.record(b"+OK");
        let pause = SECOND / 8;
        let whole = pause * u32::try_from(record.len()).unwrap();
        let mut stream = server.stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            for byte in record {
                stream.write_all(&[byte]).unwrap();
                std::thread::sleep(pause);
            }
        });
        let began = clock::instant();
        assert_eq!(recv(&mut tls, SECOND / 2).unwrap(), b"");
        assert!(clock::instant() - began < whole / 2);
        assert_eq!(recv(&mut tls, 10 * SECOND).unwrap(), b"+OK");
        writer.join().unwrap();
    }

    #[test]
    fn keys_change_between_two_replies() {
        let (mut tls, mut server) = pair(None);
        for reply in [b"+A", b"+B"] {
            server.session.refresh_traffic_keys().unwrap();
            server.say(reply);
            assert_eq!(recv(&mut tls, SECOND).unwrap(), reply);
            let now = clock::instant();
            tls.send(b"more", now + SECOND, now).unwrap();
            assert_eq!(server.hear(4).unwrap(), b"more");
        }
    }

    #[test]
    fn what_came_before_the_end_counts() {
        let (mut tls, mut server) = pair(None);
        let mut bytes = server.record(b"+OK");
        server.session.send_close_notify();
        bytes.extend(server.written());
        server.stream.write_all(&bytes).unwrap();
        assert_eq!(recv(&mut tls, SECOND).unwrap(), b"+OK");
        let end = recv(&mut tls, SECOND).unwrap_err().to_string();
        assert_eq!(end, "connection closed: by the other side");

        // Also before bytes that are no record.
        let (mut tls, mut server) = pair(None);
        let mut bytes = server.record(b"+OK");
        bytes.extend(b"-ERR this is no TLS\r\n");
        server.stream.write_all(&bytes).unwrap();
        assert_eq!(recv(&mut tls, SECOND).unwrap(), b"+OK");
        recv(&mut tls, SECOND).unwrap_err();
    }

    #[test]
    fn more_than_is_read_at_once_is_read_later() {
        let (mut tls, mut server) = pair(None);
        server.say(&[b'x'; 3 * BUFFER]);
        let mut all = 0;
        while all < 3 * BUFFER {
            all += recv(&mut tls, SECOND).unwrap().len();
        }
        assert_eq!(recv(&mut tls, Duration::ZERO).unwrap(), b"");
    }

    /// A provider whose keys may be used for a thousand records.
    fn short_lived(versions: fn(&SupportedCipherSuite) -> bool) -> CryptoProvider {
        let common = |of: &CipherSuiteCommon| CipherSuiteCommon {
            suite: of.suite,
            hash_provider: of.hash_provider,
            confidentiality_limit: 1000,
        };
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(versions);
        for suite in &mut provider.cipher_suites {
            *suite = match *suite {
                SupportedCipherSuite::Tls13(of) => {
                    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                        common: common(&of.common),
                        ..*of
                    })))
                }
                SupportedCipherSuite::Tls12(of) => {
                    SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                        common: common(&of.common),
                        ..*of
                    })))
                }
            };
        }
        provider
    }

    #[test]
    fn keys_that_are_used_up_are_changed_or_end_the_connection() {
        // How many arrive.
        let pings = |tls: &mut TlsSocket, server: &mut TlsServer| {
            let arrives = |_: &u32| {
                let now = clock::instant();
                tls.send(b"ping", now + SECOND, now).is_ok() && server.hear(4).is_ok()
            };
            (0..3000).take_while(arrives).count()
        };
        let new = |suite: &SupportedCipherSuite| matches!(suite, SupportedCipherSuite::Tls13(_));
        let (mut tls, mut server) = pair(Some(short_lived(new)));
        assert_eq!(pings(&mut tls, &mut server), 3000);
        let old = |suite: &SupportedCipherSuite| matches!(suite, SupportedCipherSuite::Tls12(_));
        let (mut tls, mut server) = pair(Some(short_lived(old)));
        assert!(pings(&mut tls, &mut server) < 1000);
        // A server does this if its client has announced that it sends no more.
        drop(server);
        let end = recv(&mut tls, SECOND).unwrap_err();
        assert!(matches!(end, Cause::Closed(_)), "{end}");
    }
}
