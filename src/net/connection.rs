//! A connection to a node, connected and set up: AUTH, SELECT, HELLO, the client's name, INFO, the scripts.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, RedisConnectionInfo};

use crate::clock;
use crate::credentials::Credentials;
use crate::error::Cause;
use crate::net::peer::Peer;
use crate::net::plain::Plain;
use crate::net::tls::Tls;
use crate::protocol::resp::{Reply, ReplyReader};
use crate::protocol::scripts::SCRIPTS;
use crate::protocol::server_error::Meaning;
use crate::protocol::server_info::{Role, ServerInfo};
use crate::protocol::wire::Handshake;
use crate::secret::Secret;

/// The maximum that is read at once.
const BUFFER: usize = 16 * 1024;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Locks,
    /// With the restart guard.
    GuardedLocks,
    /// For notifications, or other questions. It needs neither INFO nor scripts.
    Messages,
}

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
        purpose: Purpose,
    ) -> Result<(Connection, Handshake), Cause> {
        let until = clock::instant() + timeout;
        let login = info.credentials(until, timeout)?;
        let mut connection = match info.addr() {
            ConnectionAddr::TcpTls { .. } => Connection::Tls(Tls::connect(info, until, timeout)?),
            _ => Connection::Plain(Plain::connect(info, until, timeout)?),
        };
        let handshake = connection.set_up(info, login, purpose, (until, timeout));
        let handshake = handshake.map_err(|cause| match cause {
            Cause::Garbage(mut text) => {
                if text.starts_with(TLS_ALERT) {
                    text.push_str(SPEAKS_TLS);
                }
                Cause::NotRedis(text)
            }
            cause => cause,
        })?;
        if purpose == Purpose::GuardedLocks && handshake.uptime.is_none() {
            return Err(Cause::NoUptime);
        }
        Ok((connection, handshake))
    }

    /// Writes all of `bytes`. After an error the connection is finished.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant, now: Instant) -> Result<(), Cause> {
        match self {
            Connection::Plain(plain) => plain.send(bytes, until, now),
            Connection::Tls(tls) => tls.send(bytes, until, now),
        }
    }

    /// What has come, or comes first until then; nothing, if nothing does. After an error the connection
    /// is finished.
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

    /// The address of the other side; unknown over Unix sockets.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        Some(self.socket().peer()?.ip())
    }

    /// Ends it also where forked children have copies.
    pub(crate) fn shutdown(&self) {
        self.socket().shutdown();
    }

    /// Nothing of what it still holds shall be delivered.
    pub(crate) fn reset(self) {
        match self {
            Connection::Plain(plain) => plain.reset(),
            Connection::Tls(tls) => tls.reset(),
        }
    }

    /// The next reply. `None`: it has not come until then.
    fn reply(
        &mut self,
        reader: &mut ReplyReader,
        buffer: &mut Vec<u8>,
        until: Instant,
    ) -> Result<Option<Reply>, Cause> {
        loop {
            if let Some(reply) = reader.next()? {
                return Ok(Some(reply));
            }
            match self.recv(buffer, until, clock::instant())? {
                [] => return Ok(None),
                bytes => reader.push(bytes),
            }
        }
    }

    /// By the server's answer to HELLO (rule R39). One that does not say its role is believed to be a master.
    fn is_master(&self, hello: &[Reply]) -> Result<(), Cause> {
        match Role::of_hello(hello) {
            Some(Role::Replica) => Err(Cause::Replica(self.socket().peer())),
            Some(Role::Sentinel) => Err(Cause::Sentinel),
            None => Ok(()),
        }
    }

    fn set_up(
        &mut self,
        info: &Peer,
        login: Option<Credentials>,
        purpose: Purpose,
        (until, timeout): (Instant, Duration),
    ) -> Result<Handshake, Cause> {
        let SetUp {
            commands,
            needed,
            hello,
        } = set_up(info.redis_settings(), login.as_ref(), purpose);
        let mut bytes = Vec::new();
        for command in &commands {
            command.write_packed_command(&mut bytes);
        }
        self.send(&bytes, until, clock::instant())?;
        let mut handshake = Handshake {
            by_record: matches!(self, Connection::Tls(_)),
            secret: Secret::of(login.as_ref().map(|login| &*login.password)),
            ..Handshake::default()
        };
        // A server that is full, or that demands what we do not have, answers that and hangs up.
        let mut refused: Option<Cause> = None;
        let mut reader = ReplyReader::new(handshake.secret.clone());
        let mut buffer = Vec::new();
        let (mut answered, mut loaded) = (0, 0);
        while answered < commands.len() {
            let reply = self.reply(&mut reader, &mut buffer, until);
            let reply = reply.map_err(|cause| match cause {
                Cause::Closed(text) => {
                    let silent = answered == 0 && reader.is_empty();
                    let hung_up = || hung_up(text, silent, info);
                    refused.take().unwrap_or_else(hung_up)
                }
                cause => cause,
            });
            let Some(reply) = reply? else {
                return Err(Cause::NotConnected(timeout, timeout));
            };
            answered += 1;
            match reply {
                Reply::Error(text) => {
                    let cause = info.refused(&text);
                    // Where INFO is merely not answered now, the run id can be had later.
                    let meaning = Meaning::of(&text);
                    let ends = meaning.is_not_now() || meaning == Meaning::NoLogin;
                    // A server that does not say its role is believed to be a master.
                    if hello != Some(answered) && (answered <= needed || ends) {
                        return Err(cause);
                    }
                    refused.get_or_insert(cause);
                }
                Reply::Array(fields) if hello == Some(answered) => self.is_master(&fields)?,
                Reply::Bulk(bulk) if SCRIPTS.iter().any(|script| script.hash == bulk) => {
                    loaded += 1
                }
                Reply::Bulk(server) => {
                    let server = ServerInfo::new(&server, &handshake.secret);
                    handshake.run_id = server.run_id().map(str::to_owned);
                    let uptime = server.uptime();
                    handshake.uptime = uptime.map(|uptime| (uptime, clock::instant()));
                }
                _ => {}
            }
        }
        if !reader.is_empty() {
            return Err(Cause::Garbage("more than was asked for".into()));
        }
        handshake.by_hash = loaded == SCRIPTS.len();
        Ok(handshake)
    }
}

const SPEAKS_TLS: &str = " (does it speak TLS? write rediss://)";
/// How an alert of TLS begins, as text.
const TLS_ALERT: &str = "\"\\u{15}\\u{3}";

/// A TLS server hangs up on a client that does not begin with a handshake, without a word.
fn hung_up(mut text: String, silent: bool, info: &Peer) -> Cause {
    if silent && matches!(info.addr(), ConnectionAddr::Tcp(..)) {
        text.push_str(SPEAKS_TLS);
    }
    Cause::Closed(text)
}

/// How a connection is set up.
struct SetUp {
    commands: Vec<Cmd>,
    /// How many of them, from the first on, must not be refused. (HELLO may be.)
    needed: usize,
    /// The number of HELLO, from 1 on. Without arguments it changes nothing, and every user may send it.
    hello: Option<usize>,
}

fn set_up(settings: &RedisConnectionInfo, login: Option<&Credentials>, purpose: Purpose) -> SetUp {
    let mut commands = Vec::new();
    if let Some(Credentials { user, password }) = login {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = user {
            auth.arg(&**user);
        }
        auth.arg(&**password);
        commands.push(auth);
    }
    let mut hello = None;
    if purpose != Purpose::Messages {
        commands.push(redis::cmd("HELLO"));
        hello = Some(commands.len());
    }
    if settings.db() != 0 {
        commands.push(redis::cmd("SELECT").arg(settings.db()).clone());
    }
    let needed = commands.len();
    if !settings.skip_set_lib_name() {
        let name = settings.lib_name().unwrap_or(env!("CARGO_PKG_NAME"));
        let version = settings.lib_ver().unwrap_or(env!("CARGO_PKG_VERSION"));
        for (what, value) in [("LIB-NAME", name), ("LIB-VER", version)] {
            let mut set_info = redis::cmd("CLIENT");
            set_info.arg("SETINFO").arg(what).arg(value);
            commands.push(set_info);
        }
    }
    if purpose != Purpose::Messages {
        commands.push(redis::cmd("INFO").arg("server").clone());
        for script in SCRIPTS {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.text);
            commands.push(load);
        }
    }
    SetUp {
        commands,
        needed,
        hello,
    }
}
