//! A look at a server: whether it still has the locks that it granted, by its witness (rules R40–R42).
//!
//! A new connection looks once, and again if the witness had to be set.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::Meaning;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::node::witness::{
    Evidence, Identity, Witness, calls, changed, has_evicted, has_flushed, is_replica, refused,
};

/// The lifetime of the witness: ten years.
const LIFE: Duration = Duration::from_secs(3600 * 24 * 365 * 10);

/// The number of commands of a look.
const PARTS: usize = 6;
/// The number of commands that ask for the identity.
const IDENTITY_PARTS: usize = 4;

// The parts of INFO that the guard needs, as errors name them.
const SERVER: &str = "INFO server (uptime_in_seconds, run_id)";
pub(crate) const REPLICATION: &str = "INFO replication (master_replid)";
pub(crate) const STATS: &str = "INFO stats (evicted_keys)";
const COMMANDS: &str = "INFO commandstats";
const ANY_ID: &str = "run_id in INFO server, or master_replid in INFO replication";
const EVICTED: &str = "evicted_keys in INFO stats";

/// The commands of a look, for the witness with this key. Behind each vote most of that is looked at once more, but not what
/// commands were called. So this is read last: a witness that was there before has lost nothing by them.
pub(crate) fn look(key: &[u8]) -> [[&[u8]; 2]; PARTS] {
    [
        [b"INFO", b"server"],
        [b"INFO", b"replication"],
        [b"INFO", b"stats"],
        [b"GET", key],
        [b"PTTL", key],
        [b"INFO", b"commandstats"],
    ]
}

/// The commands of a look at a server that has no place for a witness.
pub(crate) fn look_without_witness() -> [[&'static [u8]; 2]; IDENTITY_PARTS] {
    let [server, replication, stats, _, _, commands] = look(b"");
    [server, replication, stats, commands]
}

/// The command that reads the server's clock.
pub(crate) const CLOCK: &[u8] = b"TIME";

/// The result of a look.
#[derive(Clone, Debug)]
pub(crate) struct WitnessLook {
    pub(crate) identity: Identity,
    pub(crate) uptime: Duration,
    /// Whether the server was promoted since its start, or was started with another server's data.
    pub(crate) promoted: bool,
    /// Whether a command may have deleted keys since its start.
    pub(crate) flushed: bool,
    /// Whether the key exists, whatever it names.
    pub(crate) is_set: bool,
    /// The witness, and its age.
    pub(crate) witness: Option<(Vec<u8>, Duration)>,
}

impl WitnessLook {
    /// Reads the replies to [`look`].
    pub(crate) fn of(replies: Vec<Reply>, secret: &Secret) -> Result<WitnessLook, Cause> {
        let replies = <[Reply; PARTS]>::try_from(replies);
        let [server, replication, stats, value, left, commands] =
            replies.map_err(|_| Cause::NoInfo("INFO"))?;
        if matches!(&replication, Reply::Bulk(text) if is_replica(text)) {
            return Err(Cause::Replica(None));
        }
        let server = info(server, SERVER, secret)?;
        let replication = info(replication, REPLICATION, secret)?;
        let evicted = info(stats, STATS, secret)?.number("evicted_keys");
        let evicted = evicted.ok_or(Cause::NoInfo(EVICTED))?;
        // A server that does not report its commands may have been flushed.
        let commands = match info(commands, COMMANDS, secret) {
            Err(Cause::NoInfo(_)) => ServerInfo::default(),
            commands => commands?,
        };
        let swaps = calls(&commands, "swapdb");
        let history = replication.get("master_replid");
        let before = replication.get("master_replid2").unwrap_or_default();
        let is_set = matches!(value, Reply::Bulk(_));
        let witness = match (value, left) {
            (Reply::Error(text), _) | (_, Reply::Error(text)) => return Err(refused(&text)),
            (Reply::Bulk(value), Reply::Int(left)) => aged(value, left),
            _ => None,
        };
        Ok(WitnessLook {
            identity: Identity::new(server.run_id(), history, evicted, swaps)
                .ok_or(Cause::NoInfo(ANY_ID))?,
            uptime: server.uptime().unwrap_or_default(),
            promoted: before.bytes().any(|digit| digit != b'0'),
            flushed: has_flushed(&commands),
            is_set,
            witness,
        })
    }

    /// The witness, if it names this identity.
    fn own_witness(&self) -> Option<&(Vec<u8>, Duration)> {
        self.witness_of(&self.identity)
    }

    fn witness_of(&self, identity: &Identity) -> Option<&(Vec<u8>, Duration)> {
        let name = identity.named();
        let witness = self.witness.as_ref();
        witness.filter(|(value, _)| value.starts_with(name.as_bytes()))
    }

    /// Judges this first look: a witness of age `seasoned` needs no second one.
    pub(crate) fn judge(self, seasoned: Duration) -> Judged {
        match self.own_witness() {
            Some((value, age)) if *age >= seasoned => {
                let witness = Witness {
                    evidence: Evidence::Value(value.clone()),
                    age: *age,
                    calm: false,
                    lossless: false,
                    clock: None,
                    identity: self.identity,
                };
                Judged::Fits(witness, self.uptime)
            }
            _ => Judged::LookAgain(self),
        }
    }

    /// How long the server would not vote on acquires for a program that connected now, and set the witness if that is
    /// necessary.
    pub(crate) fn left(&self, guard: RestartGuard) -> Duration {
        let age = self.own_witness().map(|(_, age)| *age);
        let calm = !self.promoted && !self.has_evicted() && !self.flushed;
        match age {
            Some(age) if age >= guard.seasoned() => Duration::ZERO,
            _ if calm => guard.left(self.uptime),
            age => guard.seasoned().saturating_sub(age.unwrap_or_default()),
        }
    }

    /// The command that sets the witness, if it has to be set. `random` makes each value unique. A client that looked
    /// before another one set the witness sets it once more: the other's connection is severed by its next proof, and
    /// its next first look finds this witness, and sets none. So this ends when all clients are connected that looked
    /// before the first one was set.
    pub(crate) fn set_witness(&self, key: &[u8], random: u64) -> Option<Vec<Vec<u8>>> {
        if self.own_witness().is_some() {
            return None;
        }
        let value = format!("{}{random:016x}", self.identity.named());
        let life = LIFE.as_millis().to_string();
        let mut set = vec![b"SET".to_vec(), key.to_vec(), value.into_bytes()];
        // Another client may be about to set it, too.
        if !self.is_set {
            set.push(b"NX".to_vec());
        }
        set.extend([b"PX".to_vec(), life.into_bytes()]);
        Some(set)
    }

    /// Combines both looks. `replies`: to the command that sets the witness, if it was sent, and then to the second
    /// look.
    pub(crate) fn again(
        &self,
        mut replies: Vec<Reply>,
        secret: &Secret,
    ) -> Result<(Witness, Duration), Cause> {
        let refuses = |reply: &Reply| match reply {
            Reply::Error(text) => Some(refused(text)),
            _ => None,
        };
        let look = replies.split_off(replies.len().saturating_sub(PARTS));
        if let Some(cause) = replies.iter().find_map(refuses) {
            return Err(cause);
        }
        let second = WitnessLook::of(look, secret)?;
        let uptime = second.uptime;
        let witness = self.and(second)?;
        Ok((witness, uptime))
    }

    /// Judges one look without a witness, by the replies to [`look_without_witness`]: a server that owns no slot of a Redis
    /// Cluster has no place for one. The server votes if it has lost nothing since its start, and its grants count if
    /// that is shown behind them.
    pub(crate) fn calm(
        mut look: Vec<Reply>,
        secret: &Secret,
    ) -> Result<(Witness, Duration), Cause> {
        let behind = look.len().min(IDENTITY_PARTS - 1);
        look.splice(behind..behind, [Reply::Nil, Reply::Nil]);
        let look = WitnessLook::of(look, secret)?;
        if look.promoted || look.has_evicted() || look.flushed {
            return Err(Cause::Connect(
                "it was promoted or flushed, or evicted keys, and has no slot for the restart guard's witness yet".into(),
            ));
        }
        let witness = Witness {
            evidence: Evidence::NoLosses,
            age: Duration::ZERO,
            calm: true,
            lossless: true,
            clock: None,
            identity: look.identity,
        };
        Ok((witness, look.uptime))
    }

    fn has_evicted(&self) -> bool {
        self.identity.has_evicted() && !mutant(Mutant::EvictingIsCalm)
    }

    /// Combines both looks. Whether the server was flushed is read when the witness exists: a later loss takes the witness
    /// along.
    pub(crate) fn and(&self, second: WitnessLook) -> Result<Witness, Cause> {
        let same = second.identity == self.identity;
        let found = match mutant(Mutant::SecondLookTrustsFirst) {
            true => second.witness_of(&self.identity),
            false => second.own_witness().filter(|_| same),
        };
        let why = match second.identity.evicted == self.identity.evicted {
            true => changed,
            false => has_evicted,
        };
        let (value, age) = found.ok_or_else(why)?.clone();
        let lossless = (!second.flushed || mutant(Mutant::IgnoreFlush)) && !second.has_evicted();
        Ok(Witness {
            evidence: Evidence::Value(value),
            age,
            calm: !second.promoted && lossless || mutant(Mutant::AlwaysCalm),
            lossless,
            clock: None,
            identity: second.identity,
        })
    }
}

/// The witness and its age. A value without a ttl, or with a longer one, was not set by this crate, or was set by
/// another server's clock.
fn aged(value: Vec<u8>, left: i64) -> Option<(Vec<u8>, Duration)> {
    let left = Duration::from_millis(u64::try_from(left).ok()?);
    Some((value, LIFE.checked_sub(left)?))
}

fn is_not_now(refusal: &str) -> bool {
    Meaning::of(refusal).is_not_now() && !mutant(Mutant::BusyInfoIsNone)
}

/// A section of INFO. `section`: how an error names it.
fn info(reply: Reply, section: &'static str, secret: &Secret) -> Result<ServerInfo, Cause> {
    match reply {
        Reply::Bulk(text) => Ok(ServerInfo::new(&text, secret)),
        // The server may report it a moment later, so that is no reason to do without the guard.
        Reply::Error(text) if is_not_now(&text) => Err(Cause::refused(&text)),
        _ => Err(Cause::NoInfo(section)),
    }
}

/// The next step after a first look.
pub(crate) enum Judged {
    /// The witness, and how long its server has been up.
    Fits(Witness, Duration),
    LookAgain(WitnessLook),
}

#[cfg(test)]
mod tests;
