//! A connection to a node, connected and set up: AUTH, HELLO, SELECT, INFO, the scripts, the witness. With the rights
//! of the README's user no command of these is refused: a capability is tried only if a reply shows that the server may
//! lack it.

use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, ConnectionAddr, RedisConnectionInfo};

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::Meaning;
use crate::net::socket::peer::Peer;
use crate::net::socket::plain::{self, Plain};
use crate::net::socket::tls::Tls;
use crate::protocol::commands::means::{self, Means};
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::protocol::commands::scripts::{SCRIPTS, TRIAL};
use crate::protocol::commands::server_info::{Role, ServerInfo};
use crate::protocol::node::wire::Handshake;
use crate::protocol::node::witness::{self, FLUSHED, IDENTITY_PARTS, Judged, Look, Witness};
use crate::settings::credentials::Credentials;
use crate::values::clock;

/// The most bytes that are read at once.
const BUFFER: usize = 16 * 1024;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    Locks,
    /// Locks with the restart guard: a witness with this key, of this age, needs no second look. `None`: the server has
    /// no place for one. `needed`: without the guard there are no locks.
    GuardedLocks {
        witness: Option<&'a [u8]>,
        seasoned: Duration,
        needed: bool,
    },
    /// Notifications of releases. Needs neither INFO nor scripts.
    Messages,
    /// Questions about locks: to the master if a name has several addresses, else also to a replica.
    Looks,
    /// Other questions, also to a replica or a sentinel.
    Questions,
}

impl Purpose<'_> {
    /// This purpose at a server that has no place for a witness.
    pub(crate) fn without_witness(self) -> Self {
        match self {
            Purpose::GuardedLocks {
                seasoned, needed, ..
            } => Purpose::GuardedLocks {
                witness: None,
                seasoned,
                needed,
            },
            other => other,
        }
    }
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
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        Connection::open_and(info, timeout, purpose, &mut |opened, _| Ok(opened))
    }

    /// Opens a connection like [`open`](Connection::open), and calls `then` with it, by that time. If a name has
    /// several addresses, the next one is tried if one fails, and each has its share of the time that is left. Only a
    /// server that refuses locks decides: the next one may be a former master.
    pub(crate) fn open_and<T>(
        info: &Peer,
        timeout: Duration,
        purpose: Purpose<'_>,
        then: &mut dyn FnMut((Connection, Handshake), Instant) -> Result<T, Cause>,
    ) -> Result<T, Cause> {
        let until = clock::instant() + timeout;
        let login = info.credentials(until, timeout)?;
        let addresses = plain::addresses(info.addr())?;
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
        let tries = addresses.into_iter().map(|address| (address, purpose));
        let (mut tries, mut failed) = (tries.collect::<VecDeque<_>>(), Vec::new());
        while let Some((address, purpose)) = tries.pop_front() {
            let now = clock::instant();
            let left = u32::try_from(tries.len() + 1).unwrap_or(u32::MAX);
            let share = until.saturating_duration_since(now) / left;
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
        let mut bytes = Vec::new();
        for command in &set_up.commands {
            command.write_packed_command(&mut bytes);
        }
        // A full server reports that and hangs up, perhaps before all of this is written.
        let sent = self.send(&bytes, until, clock::instant());
        let handshake = Handshake {
            by_record: matches!(self, Connection::Tls(_)),
            secret: Secret::of(login.map(|login| &*login.password)),
            ..Handshake::default()
        };
        let mut reader = ReplyReader::new(handshake.secret.clone());
        let mut buffer = Vec::new();
        let mut replies = SetUpReplies {
            set_up: &set_up,
            peer: info,
            address: self.socket().peer(),
            handshake,
            answered: 0,
            loaded: 0,
            look: Vec::new(),
            trials: Default::default(),
            refused: None,
        };
        while replies.answered < set_up.commands.len() {
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
        self.guarded((handshake, look), purpose, reader, time)
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
        (handshake, look): (Handshake, Vec<Reply>),
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
        let found = match witness {
            Some(key) => {
                let judged = Look::of(look, &handshake.secret).map(|look| look.judge(seasoned));
                judged.and_then(|judged| self.find_witness((key, judged), reader, time))
            }
            None => self.find_calm(look, reader, time),
        };
        with_witness(handshake, found, needed)
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
        let look = witness::look(key);
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

/// Adds the witness to the handshake. `needed`: without a witness there is no connection.
fn with_witness(
    handshake: Handshake,
    found: Result<(Witness, Duration), Cause>,
    needed: bool,
) -> Result<Handshake, Cause> {
    match found {
        Ok((witness, uptime)) => Ok(Handshake {
            uptime: Some((uptime, clock::instant())),
            witness: Some(witness),
            ..handshake
        }),
        Err(Cause::NoInfo | Cause::NoWitness(_)) if !needed => Ok(Handshake {
            unguarded: true,
            ..handshake
        }),
        Err(cause) => Err(cause),
    }
}

const SPEAKS_TLS: &str = " (does it speak TLS? write rediss://)";
const IS_A_PROXY: &str =
    " (is it a proxy? it may not know that command: give the address of the server behind it)";
/// How an alert of TLS begins, as text.
const TLS_ALERT: &str = "\"\\u{15}\\u{3}";

/// How a connection is set up.
struct SetUp {
    commands: Vec<Cmd>,
    /// How many of the commands, from the first on, must not be refused. (HELLO may be.)
    needed: usize,
    /// The number of HELLO, from 1 on. Without arguments it changes nothing, and every user may send it. A server that
    /// does not speak Redis' protocol shows that here.
    hello: usize,
    /// Whether the server must be a master.
    for_locks: bool,
    /// The number of the command before the trials.
    before_trials: usize,
    /// The numbers of the commands of a look.
    look: Range<usize>,
}

impl SetUp {
    fn new(
        settings: &RedisConnectionInfo,
        login: Option<&Credentials>,
        purpose: Purpose<'_>,
    ) -> SetUp {
        let mut commands = Vec::new();
        if let Some(Credentials { user, password }) = login {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = user {
                auth.arg(&**user);
            }
            auth.arg(&**password);
            commands.push(auth);
        }
        commands.push(redis::cmd("HELLO"));
        let hello = commands.len();
        if settings.db() != 0 {
            commands.push(redis::cmd("SELECT").arg(settings.db()).clone());
        }
        let needed = commands.len();
        // Only on request: few users are permitted it, and each refusal is an entry in the server's ACL LOG.
        let names = [
            ("LIB-NAME", settings.lib_name()),
            ("LIB-VER", settings.lib_ver()),
        ];
        for (what, value) in names {
            if let Some(value) = value.filter(|_| !settings.skip_set_lib_name()) {
                let mut set_info = redis::cmd("CLIENT");
                set_info.arg("SETINFO").arg(what).arg(value);
                commands.push(set_info);
            }
        }
        let before_look = commands.len();
        commands.extend(look(purpose));
        let look = before_look + 1..commands.len() + 1;
        let locks = matches!(purpose, Purpose::Locks | Purpose::GuardedLocks { .. });
        if locks {
            for script in SCRIPTS {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.text);
                commands.push(load);
            }
        }
        let before_trials = commands.len();
        if locks {
            for (call, script) in [("EVAL", TRIAL.text), ("EVALSHA", TRIAL.hash)] {
                commands.push(redis::cmd(call).arg(script).arg(0).clone());
            }
        }
        SetUp {
            commands,
            needed,
            hello,
            for_locks: purpose != Purpose::Questions,
            before_trials,
            look,
        }
    }
}

/// The commands that show what a server is.
fn look(purpose: Purpose<'_>) -> Vec<Cmd> {
    let (key, parts) = match purpose {
        Purpose::GuardedLocks {
            witness: Some(key), ..
        } => (key, usize::MAX),
        Purpose::GuardedLocks { witness: None, .. } => (&b""[..], IDENTITY_PARTS),
        Purpose::Locks | Purpose::Looks => (&b""[..], 2),
        Purpose::Messages | Purpose::Questions => (&b""[..], 0),
    };
    let look = witness::look(key).into_iter().take(parts);
    look.map(|[name, argument]| {
        let mut command = Cmd::new();
        command.arg(name).arg(argument);
        command
    })
    .collect()
}

/// The replies to the commands that set a connection up.
struct SetUpReplies<'a> {
    set_up: &'a SetUp,
    peer: &'a Peer,
    /// The address that the connection leads to.
    address: Option<SocketAddr>,
    handshake: Handshake,
    answered: usize,
    /// The number of scripts that were loaded.
    loaded: usize,
    /// The replies to the first look.
    look: Vec<Reply>,
    /// The errors of the trials, EVAL and EVALSHA.
    trials: [Option<String>; 2],
    /// The refusal of a server that is full, or that demands what this client does not have, before the server hangs
    /// up.
    refused: Option<Cause>,
}

impl SetUpReplies<'_> {
    fn next(&mut self, reply: Reply) -> Result<(), Cause> {
        self.answered += 1;
        let is_hello = self.set_up.hello == self.answered;
        // A name that, for example, a busy server does not take now is no reason to do without the server.
        let is_name = self.set_up.needed < self.answered && self.answered < self.set_up.look.start;
        match reply {
            Reply::Error(_) if is_name => {}
            Reply::Error(text) => {
                let cause = self.peer.refused(&text);
                // If INFO is merely not answered now, the run id can be had later.
                let meaning = Meaning::of(&text);
                let ends = meaning.is_not_now() || meaning == Meaning::NoLogin;
                let turned_away = matches!(meaning, Meaning::TooManyClients | Meaning::Protected);
                // A server that does not report its role counts as a master (rule R39).
                let is_needed = !is_hello && (self.answered <= self.set_up.needed || ends);
                if is_needed || turned_away {
                    return Err(cause);
                }
                self.look(Reply::Error(text.clone()));
                let trial = self.answered.checked_sub(self.set_up.before_trials + 1);
                match trial.and_then(|trial| self.trials.get_mut(trial)) {
                    Some(trial) => *trial = Some(text),
                    None => drop(self.refused.get_or_insert(cause)),
                }
            }
            Reply::Array(fields) if is_hello && self.set_up.for_locks => {
                match Role::of_hello(&fields) {
                    Some(Role::Replica) => return Err(Cause::Replica(self.address)),
                    Some(Role::Sentinel) => return Err(Cause::Sentinel),
                    None => {}
                }
            }
            // For servers without HELLO.
            Reply::Bulk(replication)
                if self.set_up.look.start + 1 == self.answered
                    && witness::is_replica(&replication) =>
            {
                return Err(Cause::Replica(self.address));
            }
            Reply::Bulk(bulk) if SCRIPTS.iter().any(|script| script.hash == bulk) => {
                self.loaded += 1;
            }
            server if self.set_up.look.start == self.answered => {
                let text = match &server {
                    Reply::Bulk(text) => &text[..],
                    _ => b"",
                };
                let info = ServerInfo::new(text, &self.handshake.secret);
                self.handshake.run_id = info.run_id().map(str::to_owned);
                // Without a number, the server may have been started just now (rule R15).
                let uptime = info.uptime().unwrap_or_default();
                self.handshake.uptime = Some((uptime, clock::instant()));
                self.look(server);
            }
            other => self.look(other),
        }
        Ok(())
    }

    /// Adds the reply to the look, if it belongs there.
    fn look(&mut self, reply: Reply) {
        if self.set_up.look.contains(&self.answered) {
            self.look.push(reply);
        }
    }

    /// The cause if the server has hung up. A TLS server does so, without a word, on a client that does not begin with
    /// a handshake, and some proxies do on a command that they do not support.
    fn hung_up(self, mut text: String, silent: bool) -> Cause {
        let plain = matches!(self.peer.addr(), ConnectionAddr::Tcp(..));
        let unanswered = self.set_up.commands.get(self.answered);
        if let Some(Arg::Simple(name)) = unanswered.and_then(|command| command.args_iter().next()) {
            let name = String::from_utf8_lossy(name);
            let _ = write!(text, ", before it answered {name}");
        }
        if silent && self.answered == 0 && plain {
            text.push_str(SPEAKS_TLS);
        }
        text.push_str(IS_A_PROXY);
        self.refused.unwrap_or(Cause::Closed(text))
    }

    /// How the server takes commands, or why it runs no scripts; what it has reported; the replies to the first look.
    fn end(self) -> (Result<Means, String>, Handshake, Vec<Reply>) {
        let has_trials = self.set_up.before_trials < self.set_up.commands.len();
        let means = match has_trials {
            true => Means::with_scripts(self.loaded == SCRIPTS.len(), self.trials),
            false => Ok(Means::default()),
        };
        (means, self.handshake, self.look)
    }
}
