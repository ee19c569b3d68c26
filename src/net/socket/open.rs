//! How a connection is opened and set up, with the witness of its server.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::net::socket::connection::Connection;
use crate::net::socket::conversation::Conversation;
use crate::net::socket::peer::{Peer, Sharing};
use crate::net::socket::plain::{self, PlainSocket};
use crate::net::socket::set_up::{Purpose, SPEAKS_TLS, SetUp, SetUpReplies};
use crate::net::socket::tls::TlsSocket;
use crate::protocol::commands::dialect::{self, Dialect, Scripts};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{self, LATER};
use crate::protocol::node::clock_watch::ClockReading;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::witness::Witness;
use crate::protocol::node::witness_look::{self, Judged, WitnessLook};
use crate::settings::credentials::Credentials;
use crate::values::clock;

/// Called when only the server is left to wait for.
pub(crate) type Begins<'a> = dyn Fn() -> Result<(), Cause> + 'a;
/// Called with the connection, and the time by which all must be done.
pub(crate) type Then<'a, T> =
    dyn FnMut((Connection, ServerProperties), Instant) -> Result<T, Cause> + 'a;

/// How an alert of TLS begins, as text.
const TLS_ALERT: &str = "\"\\u{15}\\u{3}";

impl Connection {
    /// Connects and sets up, address after address, step after step, all within `timeout`; only name
    /// resolution, the closure that gives credentials and the full queue of a Unix socket cannot be bounded.
    pub(crate) fn open(
        info: &Peer,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, ServerProperties), Cause> {
        let then = &mut |opened, _| Ok(opened);
        Connection::open_and(info, timeout, purpose, (&|| Ok(()), then))
    }

    /// Opens a connection like [`open`](Connection::open), and calls `then` with it, by that time. `begins` is called
    /// when only the server is left to wait for: the credentials and the addresses are there. If a name has several
    /// addresses, the next one is tried if one fails, and they share the time ([`Sharing`]). Only a server that
    /// is a master and refuses locks decides: the next one may be a former master.
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
        let is_master = Cell::new(false);
        let mut open = |address: &Option<SocketAddr>, purpose, time: (Instant, Duration)| {
            let (address, login) = (address.as_ref(), login.as_ref());
            is_master.set(false);
            let opened = Connection::open_at(info, address, login, (purpose, time), &is_master)?;
            then(opened, time.0)
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
                // Another one's grants would not exclude its own.
                Err(cause) if locks && is_master.get() && cause.is_refusal() => return Err(cause),
                Err(cause) => failed.extend(address.map(|address| (address, cause))),
            }
        }
        if purpose != Purpose::Questions {
            info.failed_after(failures);
        }
        Err(Cause::of_addresses(failed))
    }

    /// Opens a connection for a question to the server at one address of a name, within the time that ends at `until`.
    pub(crate) fn open_address(
        info: &Peer,
        (address, login): (Option<&SocketAddr>, Option<&Credentials>),
        time: (Instant, Duration),
    ) -> Result<(Connection, ServerProperties), Cause> {
        let purpose = Purpose::Questions;
        Connection::open_at(info, address, login, (purpose, time), &Cell::new(false))
    }

    fn open_at(
        info: &Peer,
        address: Option<&SocketAddr>,
        login: Option<&Credentials>,
        (purpose, (until, timeout)): (Purpose<'_>, (Instant, Duration)),
        is_master: &Cell<bool>,
    ) -> Result<(Connection, ServerProperties), Cause> {
        let time = (until, timeout);
        let (connection, by_record) = match info.addr() {
            ConnectionAddr::TcpTls { .. } => (
                Connection::Tls(TlsSocket::connect(info, address, time)?),
                true,
            ),
            _ => (
                Connection::Plain(PlainSocket::connect(info, address, time)?),
                false,
            ),
        };
        let late = Cause::NotConnected(timeout, timeout);
        let opened = (connection, info.secret(login));
        let mut conversation = Conversation::new(opened, until, late);
        let properties = conversation.set_up(info, login, purpose, is_master);
        let properties = properties.map_err(|cause| match cause {
            Cause::Garbage(mut text) => {
                if text.starts_with(TLS_ALERT) {
                    text.push_str(SPEAKS_TLS);
                }
                Cause::NotRedis(text)
            }
            cause => cause,
        })?;
        let properties = ServerProperties {
            by_record,
            ..properties
        };
        Ok((conversation.connection, properties))
    }
}

impl Conversation {
    fn set_up(
        &mut self,
        info: &Peer,
        login: Option<&Credentials>,
        purpose: Purpose<'_>,
        is_master: &Cell<bool>,
    ) -> Result<ServerProperties, Cause> {
        let set_up = SetUp::new(info.redis_settings(), login, (purpose, info.asks_for_id()));
        let began = clock::instant();
        // A full server reports that and hangs up, perhaps before all of this is written.
        let sent = self.send(&set_up.packed());
        let properties = ServerProperties {
            secret: self.reader.secret().clone(),
            ..ServerProperties::default()
        };
        let address = self.connection.socket().peer();
        let mut replies = SetUpReplies::new(&set_up, info, address, properties, is_master);
        while !replies.are_all() {
            match self.reply() {
                Ok(reply) => replies.next(reply)?,
                Err(Cause::Closed(text)) => {
                    return Err(replies.hung_up(text, self.reader.is_empty()));
                }
                Err(Cause::NotConnected(time, limit)) => {
                    return sent.and(Err(replies.silent(time, limit)));
                }
                Err(cause) => return Err(cause),
            }
        }
        sent?;
        self.is_at_end()?;
        if let Some(refused) = replies.refused_in_unknown_words() {
            // A server that refuses connections closes them behind that.
            let mut ping = Vec::new();
            resp::pack(&mut ping, &[&[&b"PING"[..]]], None);
            if let Err(Cause::Closed(_)) = self.ask(&ping, 1) {
                return Err(refused);
            }
        }
        let (dialect, mut properties, look) = replies.end();
        properties.dialect = dialect.or_else(|refused| self.without_scripts(&refused))?;
        if properties.dialect.scripts == Scripts::OnlyByHash {
            // Otherwise each is loaded with its first call, which has its text.
            let mut bytes = Vec::new();
            scripts::load(&LATER, &mut bytes);
            let replies = self.ask(&bytes, LATER.len())?;
            scripts::are_loaded(&LATER, &replies)?;
        }
        self.guarded((properties, look, began), purpose)
    }

    /// Only a server that runs no scripts is asked for the commands that replace them: each of these questions is
    /// answered by an error, which operators watch.
    fn without_scripts(&mut self, refused: &str) -> Result<Dialect, Cause> {
        let replies = self.ask(&dialect::native_trials(), dialect::NATIVE.len())?;
        Dialect::without_scripts(refused, &replies)
    }

    /// With the restart guard, adds the witness of a new connection's server to its properties.
    fn guarded(
        &mut self,
        (properties, mut look, sent): (ServerProperties, Vec<Reply>, Instant),
        purpose: Purpose<'_>,
    ) -> Result<ServerProperties, Cause> {
        let Purpose::GuardedLocks {
            witness,
            seasoned,
            needed,
        } = purpose
        else {
            return Ok(properties);
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
                let judged =
                    WitnessLook::of(look, &properties.secret).map(|look| look.judge(seasoned));
                judged.and_then(|judged| match judged {
                    Judged::Fits(witness, uptime) => Ok((witness, uptime)),
                    Judged::LookAgain(first) => self.look_again(key, &first),
                })
            }
            None => WitnessLook::calm(look, &properties.secret),
        };
        let found = found.map(|(witness, uptime)| (Witness { clock, ..witness }, uptime));
        properties.with_witness(found, needed, clock::instant())
    }

    /// The witness of a new connection's server, for the locks that it has granted, and how long it has been up. Sets the
    /// witness if that is necessary, and looks at what is there then.
    fn look_again(
        &mut self,
        key: &[u8],
        first: &WitnessLook,
    ) -> Result<(Witness, Duration), Cause> {
        let random = getrandom::u64().map_err(|error| Cause::Connect(error.to_string()))?;
        let (mut bytes, set) = (Vec::new(), first.set_witness(key, random));
        if let Some(set) = &set {
            let set: Vec<&[u8]> = set.iter().map(Vec::as_slice).collect();
            resp::pack(&mut bytes, &[&set], None);
        }
        let look = witness_look::look(key);
        for command in &look {
            resp::pack(&mut bytes, &[command], None);
        }
        let count = usize::from(set.is_some()) + look.len();
        let replies = self.ask(&bytes, count)?;
        first.again(replies, self.reader.secret())
    }
}
