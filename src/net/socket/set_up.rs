//! The commands that set a connection up, and the replies to them: AUTH, HELLO, SELECT, CLUSTER MYID, INFO, the scripts. With the
//! rights of the README's user no command of these is refused: a capability is tried only if a reply shows that the
//! server may lack it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use redis::{Cmd, ConnectionAddr, RedisConnectionInfo};

use crate::errors::cause::{Cause, IS_A_PROXY};
use crate::errors::server_error::Meaning;
use crate::net::socket::conversation::{name_of, unanswered};
use crate::net::socket::peer::Peer;
use crate::protocol::commands::dialect::Dialect;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::scripts::{SCRIPTS, TRIAL};
use crate::protocol::commands::server_info::{Role, ServerInfo};
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::witness::is_replica;
use crate::protocol::node::witness_look;
use crate::settings::credentials::Credentials;
use crate::values::clock;

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

pub(super) const SPEAKS_TLS: &str = " (does it speak TLS? write rediss://)";

/// How a connection is set up.
pub(super) struct SetUp {
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
    pub(super) fn new(
        settings: &RedisConnectionInfo,
        login: Option<&Credentials>,
        (purpose, asks_for_id): (Purpose<'_>, bool),
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
        if asks_for_id {
            commands.push(redis::cmd("CLUSTER").arg("MYID").clone());
        }
        let first = commands.len() + 1;
        commands.extend(look(purpose));
        let look = first..commands.len() + 1;
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

    /// The commands as bytes.
    pub(super) fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for command in &self.commands {
            command.write_packed_command(&mut bytes);
        }
        bytes
    }
}

/// The commands that show what a server is.
fn look(purpose: Purpose<'_>) -> Vec<Cmd> {
    let without_witness = witness_look::look_without_witness();
    let look = match purpose {
        Purpose::GuardedLocks {
            witness: Some(key), ..
        } => witness_look::look(key).to_vec(),
        Purpose::GuardedLocks { witness: None, .. } => without_witness.to_vec(),
        Purpose::Locks | Purpose::Looks => without_witness[..2].to_vec(),
        Purpose::Messages | Purpose::Questions => Vec::new(),
    };
    let look = look.into_iter().map(|[name, argument]| {
        let mut command = Cmd::new();
        command.arg(name).arg(argument);
        command
    });
    let guarded = matches!(purpose, Purpose::GuardedLocks { .. });
    let clock = guarded.then(|| Cmd::new().arg(witness_look::CLOCK).clone());
    look.chain(clock).collect()
}

/// The replies to the commands that set a connection up.
pub(super) struct SetUpReplies<'a> {
    set_up: &'a SetUp,
    peer: &'a Peer,
    /// The address that the connection leads to.
    address: Option<SocketAddr>,
    properties: ServerProperties,
    answered: usize,
    /// The number of scripts that were loaded.
    loaded: usize,
    /// The replies to the first look.
    look: Vec<Reply>,
    /// The errors of the trials, EVAL and EVALSHA.
    trials: [Option<String>; 2],
    /// Whether the server has reported its role, which is that of a master, or has none to report (rule R39).
    is_master: &'a Cell<bool>,
    /// The refusal of a server that is full, or that demands what this client does not have, before the server hangs
    /// up.
    refused: Option<Cause>,
}

impl<'a> SetUpReplies<'a> {
    pub(super) fn new(
        set_up: &'a SetUp,
        peer: &'a Peer,
        address: Option<SocketAddr>,
        properties: ServerProperties,
        is_master: &'a Cell<bool>,
    ) -> SetUpReplies<'a> {
        SetUpReplies {
            set_up,
            peer,
            address,
            properties,
            answered: 0,
            loaded: 0,
            look: Vec::new(),
            trials: Default::default(),
            is_master,
            refused: None,
        }
    }

    /// Whether all commands are answered.
    pub(super) fn are_all(&self) -> bool {
        self.answered >= self.set_up.commands.len()
    }

    pub(super) fn next(&mut self, reply: Reply) -> Result<(), Cause> {
        self.answered += 1;
        let is_hello = self.set_up.hello == self.answered;
        // The ID of the server is asked for in between.
        let is_id = self.set_up.needed < self.answered && self.answered < self.set_up.look.start;
        match reply {
            id if is_id => self.properties.server.id = self.peer.recognize(&id)?,
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
                    None => self.is_master.set(true),
                }
            }
            // For servers without HELLO.
            Reply::Bulk(replication) if self.set_up.look.start + 1 == self.answered => {
                if is_replica(&replication) {
                    return Err(Cause::Replica(self.address));
                }
                self.is_master.set(true);
                self.look(Reply::Bulk(replication));
            }
            Reply::Bulk(bulk) if SCRIPTS.iter().any(|script| script.hash == bulk) => {
                self.loaded += 1;
            }
            server if self.set_up.look.start == self.answered => {
                let text = match &server {
                    Reply::Bulk(text) => &text[..],
                    _ => b"",
                };
                let info = ServerInfo::new(text, &self.properties.secret);
                self.properties.read_info(&info, clock::instant());
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

    /// The cause if the server does not answer: some proxies swallow a command that they do not support.
    pub(super) fn silent(&self, time: Duration, limit: Duration) -> Cause {
        let command = name_of(&self.set_up.packed(), self.answered);
        match command.filter(|_| self.answered > 0) {
            Some(command) => Cause::Unanswered(limit, command),
            None => Cause::NotConnected(time, limit),
        }
    }

    /// The cause if the server has hung up. A TLS server does so, without a word, on a client that does not begin with
    /// a handshake, and some proxies do on a command that they do not support.
    pub(super) fn hung_up(self, mut text: String, silent: bool) -> Cause {
        let plain = matches!(self.peer.addr(), ConnectionAddr::Tcp(..));
        text.push_str(&unanswered(&self.set_up.packed(), self.answered));
        if silent && self.answered == 0 && plain {
            text.push_str(SPEAKS_TLS);
        }
        text.push_str(IS_A_PROXY);
        self.refused.unwrap_or(Cause::Closed(text))
    }

    /// The refusal of a command that may be refused, if its words are not known here: the server may refuse the connection.
    pub(super) fn refused_in_unknown_words(&self) -> Option<Cause> {
        let refused = self.refused.clone();
        refused.filter(|cause| cause.meaning() == Meaning::Other)
    }

    /// How the server takes commands, or why it runs no scripts; what it has reported; the replies to the first look.
    pub(super) fn end(self) -> (Result<Dialect, String>, ServerProperties, Vec<Reply>) {
        let has_trials = self.set_up.before_trials < self.set_up.commands.len();
        let dialect = match has_trials {
            true => Dialect::with_scripts(self.loaded == SCRIPTS.len(), self.trials),
            false => Ok(Dialect::default()),
        };
        (dialect, self.properties, self.look)
    }
}
