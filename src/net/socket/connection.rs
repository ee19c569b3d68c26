//! A connection to a node, connected and set up (`set_up`), with the witness of its server.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::net::socket::peer::{Peer, Sharing};
use crate::net::socket::plain::{self, Plain};
use crate::net::socket::set_up::{Purpose, SPEAKS_TLS, SetUp, SetUpReplies};
use crate::net::socket::tls::Tls;
use crate::protocol::commands::means::{self, Means};
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::protocol::node::clock_watch::ClockReading;
use crate::protocol::node::handshake::Handshake;
use crate::protocol::node::look::{self, FLUSHED, Judged, Look};
use crate::protocol::node::witness::Witness;
use crate::settings::credentials::Credentials;
use crate::values::clock;

/// The most bytes that are read at once.
const BUFFER: usize = 16 * 1024;

/// Called when only the server is left to wait for.
pub(crate) type Begins<'a> = dyn Fn() -> Result<(), Cause> + 'a;
/// Called with the connection, and the time by which all must be done.
pub(crate) type Then<'a, T> = dyn FnMut((Connection, Handshake), Instant) -> Result<T, Cause> + 'a;

pub(crate) enum Connection {
    Plain(Plain),
    Tls(Tls),
}

impl Connection {
    /// Connects and sets up, address after address, step after step, all within `timeout`; only name
    /// resolution, the closure that gives credentials and the full queue of a Unix socket cannot be bounded.
    pub(crate) fn open(
        info: &Peer,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let then = &mut |opened, _| Ok(opened);
        Connection::open_and(info, timeout, purpose, (&|| Ok(()), then))
    }

    /// Opens a connection like [`open`](Connection::open), and calls `then` with it, by that time. `begins` is called
    /// when only the server is left to wait for: the credentials and the addresses are there. If a name has several
    /// addresses, the next one is tried if one fails, and they share the time ([`Sharing`]). Only a server that
    /// refuses locks decides: the next one may be a former master.
    pub(crate) fn open_and<T>(
        info: &Peer,
        timeout: Duration,
        purpose: Purpose<'_>,
        (begins, then): (&Begins<'_>, &mut Then<'_, T>),
    ) -> Result<T, Cause> {
        let until = clock::instant() + timeout;
        let login = info.credentials(until, timeout)?;
        let addresses = plain::addresses(info.addr())?;
        begins()?;
        let mut open = |address: &Option<SocketAddr>, purpose, time: (Instant, Duration)| {
            let (address, login) = (address.as_ref(), login.as_ref());
            then(
                Connection::open_at(info, address, login, (purpose, time))?,
                time.0,
            )
        };
        if let [address] = &addresses[..] {
            let purpose = match purpose {
                Purpose::Looks => Purpose::Questions,
                other => other,
            };
            return open(address, purpose, (until, timeout));
        }
        let locks = matches!(purpose, Purpose::Locks | Purpose::GuardedLocks { .. });
        let failures = info.failures();
        let sharing = match purpose {
            // A server of a directory is silent only if all its addresses were tried.
            Purpose::Questions => Sharing::Equal,
            _ => Sharing::after(failures, addresses.len()),
        };
        let tries = addresses.into_iter().map(|address| (address, purpose));
        let (mut tries, mut failed) = (tries.collect::<VecDeque<_>>(), Vec::new());
        if let Sharing::From(first) = sharing {
            tries.rotate_left(first);
        }
        while let Some((address, purpose)) = tries.pop_front() {
            let now = clock::instant();
            let share = sharing.of(until.saturating_duration_since(now), tries.len());
            if share.is_zero() {
                failed.extend(address.map(|address| (address, Cause::NotAsked)));
                continue;
            }
            match open(&address, purpose, (now + share, share)) {
                Ok(done) => return Ok(done),
                // Tried again after all others, if none of them is a master.
                Err(cause) if purpose == Purpose::Looks && cause.is_replica() => {
                    tries.push_back((address, Purpose::Questions));
                }
                // It may be the master, and another one's grants would not exclude its own.
                Err(cause) if locks && cause.is_refusal() => return Err(cause),
                Err(cause) => failed.extend(address.map(|address| (address, cause))),
            }
        }
        if purpose != Purpose::Questions {
            info.failed_after(failures);
        }
        Err(Cause::of_addresses(failed))
    }

    fn open_at(
        info: &Peer,
        address: Option<&SocketAddr>,
        login: Option<&Credentials>,
        (purpose, time): (Purpose<'_>, (Instant, Duration)),
    ) -> Result<(Connection, Handshake), Cause> {
        let mut connection = match info.addr() {
            ConnectionAddr::TcpTls { .. } => Connection::Tls(Tls::connect(info, address, time)?),
            _ => Connection::Plain(Plain::connect(info, address, time)?),
        };
        let handshake = connection.set_up(info, login, purpose, time);
        let handshake = handshake.map_err(|cause| match cause {
            Cause::Garbage(mut text) => {
                if text.starts_with(TLS_ALERT) {
                    text.push_str(SPEAKS_TLS);
                }
                Cause::NotRedis(text)
            }
            cause => cause,
        })?;
        Ok((connection, handshake))
    }

    /// Writes all of `bytes`. After an error the connection is finished.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant, now: Instant) -> Result<(), Cause> {
        match self {
            Connection::Plain(plain) => plain.send(bytes, until, now),
            Connection::Tls(tls) => tls.send(bytes, until, now),
        }
    }

    /// The first bytes received by `until`. Empty if none arrived. After an error the connection is finished.
    pub(crate) fn recv<'a>(
        &mut self,
        buffer: &'a mut Vec<u8>,
        until: Instant,
        now: Instant,
    ) -> Result<&'a [u8], Cause> {
        buffer.resize(BUFFER, 0);
        let read = match self {
            Connection::Plain(plain) => plain.recv(buffer, until, now)?,
            Connection::Tls(tls) => tls.recv(buffer, until, now)?,
        };
        Ok(buffer.get(..read).unwrap_or_default())
    }

    fn socket(&self) -> &Plain {
        match self {
            Connection::Plain(plain) => plain,
            Connection::Tls(tls) => tls.plain(),
        }
    }

    /// The address of the other side. `None` over Unix sockets.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        Some(self.socket().peer()?.ip())
    }

    /// Ends the connection, also where forked children have copies.
    pub(crate) fn shutdown(&self) {
        self.socket().shutdown();
    }

    /// Ends the connection, so that nothing that it still holds is delivered.
    pub(crate) fn reset(self) {
        match self {
            Connection::Plain(plain) => plain.reset(),
            Connection::Tls(tls) => tls.reset(),
        }
    }

    fn set_up(
        &mut self,
        info: &Peer,
        login: Option<&Credentials>,
        purpose: Purpose<'_>,
        (until, timeout): (Instant, Duration),
    ) -> Result<Handshake, Cause> {
        let set_up = SetUp::new(info.redis_settings(), login, purpose);
        let (bytes, began) = (set_up.packed(), clock::instant());
        // A full server reports that and hangs up, perhaps before all of this is written.
        let sent = self.send(&bytes, until, clock::instant());
        let handshake = Handshake {
            by_record: matches!(self, Connection::Tls(_)),
            secret: info.secret(login),
            ..Handshake::default()
        };
        let mut reader = ReplyReader::new(handshake.secret.clone());
        let mut buffer = Vec::new();
        let mut replies = SetUpReplies::new(&set_up, info, self.socket().peer(), handshake);
        while !replies.are_all() {
            if let Some(reply) = reader.next()? {
                replies.next(reply)?;
                continue;
            }
            match self.recv(&mut buffer, until, clock::instant()) {
                Ok([]) => {
                    sent?;
                    return Err(Cause::NotConnected(timeout, timeout));
                }
                Ok(bytes) => reader.push(bytes),
                Err(Cause::Closed(text)) => {
                    return Err(replies.hung_up(text, reader.is_empty()));
                }
                Err(cause) => return Err(cause),
            }
        }
        sent?;
        if !reader.is_empty() {
            return Err(Cause::Garbage("more than was asked for".into()));
        }
        let (means, mut handshake, look) = replies.end();
        let (time, secret) = ((until, timeout), &handshake.secret);
        handshake.means = means.or_else(|refused| self.without_scripts(&refused, secret, time))?;
        self.guarded((handshake, look, began), purpose, reader, time)
    }

    /// Only a server that runs no scripts is asked for the commands that replace them: each of these questions is
    /// answered by an error, which operators watch.
    fn without_scripts(
        &mut self,
        refused: &str,
        secret: &Secret,
        time: (Instant, Duration),
    ) -> Result<Means, Cause> {
        let (trials, reader) = (means::native_trials(), ReplyReader::new(secret.clone()));
        let replies = self.ask_more(&trials, means::NATIVE.len(), reader, time)?;
        Means::without_scripts(refused, &replies)
    }

    /// Adds to the handshake, with the restart guard, what a new connection's server shows.
    fn guarded(
        &mut self,
        (handshake, mut look, sent): (Handshake, Vec<Reply>, Instant),
        purpose: Purpose<'_>,
        reader: ReplyReader,
        time: (Instant, Duration),
    ) -> Result<Handshake, Cause> {
        let Purpose::GuardedLocks {
            witness,
            seasoned,
            needed,
        } = purpose
        else {
            return Ok(handshake);
        };
        let received = clock::instant();
        let time_of_day = look.pop().and_then(|reply| reply.time_of_day());
        let clock = time_of_day.map(|time_of_day| ClockReading {
            time_of_day,
            sent,
            received,
        });
        let found = match witness {
            Some(key) => {
                let judged = Look::of(look, &handshake.secret).map(|look| look.judge(seasoned));
                judged.and_then(|judged| self.find_witness((key, judged), reader, time))
            }
            None => self.find_calm(look, reader, time),
        };
        let found = found.map(|(witness, uptime)| (Witness { clock, ..witness }, uptime));
        handshake.with_witness(found, needed, clock::instant())
    }

    /// The witness of a server that has no place for one, and how long the server has been up.
    fn find_calm(
        &mut self,
        look: Vec<Reply>,
        reader: ReplyReader,
        time: (Instant, Duration),
    ) -> Result<(Witness, Duration), Cause> {
        let mut bytes = Vec::new();
        resp::pack(&mut bytes, &[&FLUSHED], None);
        let secret = reader.secret().clone();
        let commands = self.ask_more(&bytes, 1, reader, time)?;
        Look::calm(look, commands.first(), &secret)
    }

    /// The witness of a new connection's server, for the locks that it has granted, and how long it has been up.
    fn find_witness(
        &mut self,
        (key, judged): (&[u8], Judged),
        reader: ReplyReader,
        time: (Instant, Duration),
    ) -> Result<(Witness, Duration), Cause> {
        match judged {
            Judged::Fits(witness, uptime) => Ok((witness, uptime)),
            Judged::LookAgain(first) => self.look_again((key, &first), reader, time),
        }
    }

    /// Sets the witness if that is necessary, and looks at what is there then.
    fn look_again(
        &mut self,
        (key, first): (&[u8], &Look),
        reader: ReplyReader,
        time: (Instant, Duration),
    ) -> Result<(Witness, Duration), Cause> {
        let random = getrandom::u64().map_err(|error| Cause::Connect(error.to_string()))?;
        let (mut bytes, set) = (Vec::new(), first.set_witness(key, random));
        if let Some(set) = &set {
            let set: Vec<&[u8]> = set.iter().map(Vec::as_slice).collect();
            resp::pack(&mut bytes, &[&set], None);
        }
        let look = look::look(key);
        for command in look.iter().chain([&FLUSHED]) {
            resp::pack(&mut bytes, &[command], None);
        }
        let count = usize::from(set.is_some()) + look.len() + 1;
        let secret = reader.secret().clone();
        let replies = self.ask_more(&bytes, count, reader, time)?;
        first.again(replies, &secret)
    }

    /// The replies to this number of commands.
    fn ask_more(
        &mut self,
        commands: &[u8],
        count: usize,
        mut reader: ReplyReader,
        (until, timeout): (Instant, Duration),
    ) -> Result<Vec<Reply>, Cause> {
        self.send(commands, until, clock::instant())?;
        let (mut buffer, mut replies) = (Vec::new(), Vec::new());
        while replies.len() < count {
            if let Some(reply) = reader.next()? {
                replies.push(reply);
                continue;
            }
            match self.recv(&mut buffer, until, clock::instant())? {
                [] => return Err(Cause::NotConnected(timeout, timeout)),
                bytes => reader.push(bytes),
            }
        }
        Ok(replies)
    }
}

/// How an alert of TLS begins, as text.
const TLS_ALERT: &str = "\"\\u{15}\\u{3}";
