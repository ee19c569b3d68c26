//! Whether a server still has the locks that it has granted (rules R40–R42).
//!
//! A server may lose them without being restarted: it was a replica and was promoted, or it was flushed. Its *identity*
//! changes with each start and with each promotion. The *witness* is a key that names an identity: where it is, and names
//! that of its server, nothing was lost since it was set, and what is left of its ttl tells when that was. A new connection
//! *looks* for both, once, and again if the witness had to be set. [`proof`](crate::protocol::proof) sees to it that they
//! stay.

use std::time::Duration;

use crate::error::Cause;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::resp::Reply;
use crate::protocol::server_error::{Meaning, without_arguments};
use crate::protocol::server_info::{self, ServerInfo};
use crate::secret::Secret;

/// Where the witness is, in the database of the locks, behind their prefix: a user whose rights are for that prefix may
/// have it. It is never deleted. Several show as much as one.
pub(crate) const WITNESS: &[u8] = b"redlock:witness";
/// How long the witness lives: ten years.
const LIFE: Duration = Duration::from_secs(3600 * 24 * 365 * 10);
/// Commands after which locks may be gone.
const FLUSHES: [&str; 3] = ["flushall", "flushdb", "swapdb"];

/// The number of commands of a look.
const PARTS: usize = 4;

/// Them, for the witness with this key.
pub(crate) fn look(key: &[u8]) -> [[&[u8]; 2]; PARTS] {
    [
        [b"INFO", b"server"],
        [b"INFO", b"replication"],
        [b"GET", key],
        [b"PTTL", key],
    ]
}

/// What the second one asks besides.
pub(crate) const LOSSES: [[&[u8]; 2]; 2] = [[b"INFO", b"commandstats"], [b"INFO", b"stats"]];

/// The same in one reply, with more.
pub(crate) const ALL: [&[u8]; 2] = [b"INFO", b"all"];

/// A server's data, as they grow from one command to the next. It changes when the server is restarted or promoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity(String);

impl Identity {
    /// Where one of the two is missing, the other has to do.
    pub(crate) fn new(run_id: Option<&str>, history: Option<&str>) -> Option<Identity> {
        let history = history.filter(|_| !mutant(Mutant::IdentityIsRunId));
        (run_id.is_some() || history.is_some()).then(|| {
            let [run_id, history] = [run_id, history].map(|id| id.unwrap_or("-"));
            Identity(format!("{run_id} {history}"))
        })
    }

    /// Whether a master that has told this in INFO replication can be the same: over one connection it is one process.
    pub(crate) fn is_still(&self, replication: &[u8]) -> bool {
        let Ok(info) = str::from_utf8(replication) else {
            return false;
        };
        let history = self.0.split(' ').nth(1);
        let same = history == Some("-") || history == server_info::value(info, "master_replid");
        same && !is_replica(replication)
    }
}

/// Whether a server has told this in INFO replication that is none (R39).
pub(crate) fn is_replica(replication: &[u8]) -> bool {
    let info = str::from_utf8(replication).unwrap_or_default();
    matches!(server_info::value(info, "role"), Some("slave" | "replica"))
}

/// What a look has found.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) identity: Identity,
    pub(crate) uptime: Option<Duration>,
    /// It has been promoted since it was started, or was started with the data of another one.
    pub(crate) promoted: bool,
    /// The key is there, whatever it names.
    pub(crate) is_set: bool,
    /// The witness, and its age.
    pub(crate) witness: Option<(Vec<u8>, Duration)>,
}

impl Look {
    /// By the replies to [`look`].
    pub(crate) fn of(replies: Vec<Reply>, secret: &Secret) -> Result<Look, Cause> {
        let replies = <[Reply; PARTS]>::try_from(replies);
        let [server, replication, value, left] = replies.map_err(|_| Cause::NoInfo)?;
        if matches!(&replication, Reply::Bulk(text) if is_replica(text)) {
            return Err(Cause::Replica(None));
        }
        let (server, replication) = (info(server, secret)?, info(replication, secret)?);
        let history = replication.get("master_replid");
        let before = replication.get("master_replid2").unwrap_or_default();
        let is_set = matches!(value, Reply::Bulk(_));
        let witness = match (value, left) {
            (Reply::Error(text), _) | (_, Reply::Error(text)) => return Err(refused(&text)),
            (Reply::Bulk(value), Reply::Int(left)) => aged(value, left),
            _ => None,
        };
        Ok(Look {
            identity: Identity::new(server.run_id(), history).ok_or(Cause::NoInfo)?,
            uptime: server.uptime(),
            promoted: before.bytes().any(|digit| digit != b'0'),
            is_set,
            witness,
        })
    }

    /// The witness, if it names this identity.
    fn own_witness(&self) -> Option<&(Vec<u8>, Duration)> {
        self.witness_of(&self.identity)
    }

    fn witness_of(&self, identity: &Identity) -> Option<&(Vec<u8>, Duration)> {
        let is_own = |value: &[u8]| {
            let rest = value.strip_prefix(identity.0.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b" "))
        };
        self.witness.as_ref().filter(|(value, _)| is_own(value))
    }

    /// What this first look is good for, if a witness of age `seasoned` needs no other.
    pub(crate) fn judge(self, seasoned: Duration) -> Judged {
        match self.own_witness() {
            Some((value, age)) if *age >= seasoned => {
                let witness = Witness {
                    evidence: Evidence::Value(value.clone()),
                    age: *age,
                    calm: false,
                    lossless: false,
                    identity: self.identity,
                };
                Judged::Fits(witness, self.uptime)
            }
            _ => Judged::LookAgain(self),
        }
    }

    /// The command that sets the witness, if it has to be set. `random`: no two are the same. A client that looked before
    /// another one set it sets it once more: the other's connection is severed by its next proof, and its next first look
    /// finds this one, and sets none. So it is over when those are connected that looked before the first one was set.
    pub(crate) fn set_witness(&self, key: &[u8], random: u64) -> Option<Vec<Vec<u8>>> {
        if self.own_witness().is_some() {
            return None;
        }
        let value = format!("{} {random:016x}", self.identity.0);
        let life = LIFE.as_millis().to_string();
        let mut set = vec![b"SET".to_vec(), key.to_vec(), value.into_bytes()];
        // Another client may be about to do the same.
        if !self.is_set {
            set.push(b"NX".to_vec());
        }
        set.extend([b"PX".to_vec(), life.into_bytes()]);
        Some(set)
    }

    /// What both looks show together, by the replies to the second one, behind that to the command that sets the witness.
    pub(crate) fn again(
        &self,
        mut replies: Vec<Reply>,
        secret: &Secret,
    ) -> Result<(Witness, Option<Duration>), Cause> {
        let refuses = |reply: &Reply| match reply {
            Reply::Error(text) => Some(refused(text)),
            _ => None,
        };
        let losses = replies.split_off(replies.len().saturating_sub(LOSSES.len()));
        let look = replies.split_off(replies.len().saturating_sub(PARTS));
        if let Some(cause) = replies.iter().find_map(refuses) {
            return Err(cause);
        }
        let second = Look::of(look, secret)?;
        let uptime = second.uptime;
        let witness = self.and(second, lost_keys(&losses, secret))?;
        Ok((witness, uptime))
    }

    /// What one look without a witness shows, by the replies to its first half and to [`LOSSES`]: a server that has no slot of
    /// a Redis Cluster has no place for a witness. It votes if it has lost nothing since it was started, and what it grants
    /// counts where that is shown behind it.
    pub(crate) fn calm(
        mut look: Vec<Reply>,
        losses: &[Reply],
        secret: &Secret,
    ) -> Result<(Witness, Option<Duration>), Cause> {
        look.extend([Reply::Nil, Reply::Nil]);
        let look = Look::of(look, secret)?;
        if look.promoted || lost_keys(losses, secret) {
            return Err(Cause::Connect(
                "it was promoted or flushed, or evicted keys, and has no slot for the restart guard's witness yet".into(),
            ));
        }
        let witness = Witness {
            evidence: Evidence::NoLosses,
            age: Duration::ZERO,
            calm: true,
            lossless: true,
            identity: look.identity,
        };
        Ok((witness, look.uptime))
    }

    /// What both looks show together. `flushed`: as was found when the witness was there: what is lost from then on takes
    /// it along.
    pub(crate) fn and(&self, second: Look, flushed: bool) -> Result<Witness, Cause> {
        let same = second.identity == self.identity;
        let found = match mutant(Mutant::SecondLookTrustsFirst) {
            true => second.witness_of(&self.identity),
            false => second.own_witness().filter(|_| same),
        };
        let (value, age) = found.ok_or_else(changed)?.clone();
        let lossless = !flushed || mutant(Mutant::IgnoreFlush);
        Ok(Witness {
            evidence: Evidence::Value(value),
            age,
            calm: !second.promoted && lossless || mutant(Mutant::AlwaysCalm),
            lossless,
            identity: second.identity,
        })
    }
}

/// A value without a ttl, or with a longer one, was not set by this crate, or by another server's clock.
fn aged(value: Vec<u8>, left: i64) -> Option<(Vec<u8>, Duration)> {
    let left = Duration::from_millis(u64::try_from(left).ok()?);
    Some((value, LIFE.checked_sub(left)?))
}

fn info(reply: Reply, secret: &Secret) -> Result<ServerInfo, Cause> {
    match reply {
        Reply::Bulk(text) => Ok(ServerInfo::new(&text, secret)),
        _ => Err(Cause::NoInfo),
    }
}

/// The server refuses to have a witness, or cannot have one now.
pub(crate) fn refused(text: &str) -> Cause {
    let meaning = Meaning::of(text);
    if meaning.is_demoted() {
        return Cause::demoted(text);
    }
    // In a Redis Cluster another server may have its slot by now, which says nothing against a witness.
    let not_now = !meaning.is_final() || meaning.is_elsewhere();
    if not_now && meaning != Meaning::WrongType {
        return Cause::refused(text);
    }
    Cause::NoWitness(without_arguments(text).to_owned())
}

/// The connection is of no more use, and a new one shows what is there.
pub(crate) fn changed() -> Cause {
    Cause::Closed("the server was promoted or flushed, or is another one".into())
}

/// Whether keys may have been lost, by the replies to [`LOSSES`].
fn lost_keys(replies: &[Reply], secret: &Secret) -> bool {
    let [Reply::Bulk(commands), Reply::Bulk(stats)] = replies else {
        return true;
    };
    let [commands, stats] = [commands, stats].map(|text| ServerInfo::new(text, secret));
    has_lost(&commands, &stats)
}

fn has_lost(commands: &ServerInfo, stats: &ServerInfo) -> bool {
    // A server that says nothing of any command may not say it of these either.
    let counts = commands.get("cmdstat_info").is_some();
    let was_called = |name: &&str| {
        let calls = commands.get(&format!("cmdstat_{name}"));
        calls.is_some_and(|calls| !calls.starts_with("calls=0,"))
    };
    let evicted = stats.number("evicted_keys");
    !counts || FLUSHES.iter().any(was_called) || evicted != Some(0)
}

/// What is to be done after a first look.
pub(crate) enum Judged {
    /// And how long its server has been up.
    Fits(Witness, Option<Duration>),
    LookAgain(Look),
}

/// What shows that a server has lost nothing since its witness was set, or since it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The witness has this value.
    Value(Vec<u8>),
    /// There is no witness, and nothing was lost since the server was started.
    NoLosses,
}

impl Evidence {
    /// Whether this reply shows it: the witness, or the reply to [`ALL`].
    pub(crate) fn is_shown_by(&self, reply: &[u8]) -> bool {
        match self {
            Evidence::Value(value) if mutant(Mutant::AnyWitness) => {
                let named = value.len().saturating_sub(16);
                reply.get(..named) == value.get(..named)
            }
            Evidence::Value(value) => *reply == **value,
            Evidence::NoLosses => {
                let info = ServerInfo::new(reply, &Secret::default());
                !has_lost(&info, &info)
            }
        }
    }
}

/// A witness that names the identity of its server, or what stands for it.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    pub(crate) evidence: Evidence,
    pub(crate) identity: Identity,
    /// How old it was when the server said so, by the clock by which locks end there.
    pub(crate) age: Duration,
    /// The server was never promoted nor flushed: it has lost nothing since it was started.
    pub(crate) calm: bool,
    /// It was not flushed, as far as that was looked at: it has lost nothing since it became this identity.
    pub(crate) lossless: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const ZEROS: &str = "0000000000000000000000000000000000000000";

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    fn look(history: &str, before: &str, value: Reply, left: Reply) -> Result<Look, Cause> {
        let replication =
            format!("role:master\r\nmaster_replid:{history}\r\nmaster_replid2:{before}\r\n");
        let replies = [bulk("run_id:r\r\n"), bulk(&replication), value, left];
        Look::of(replies.into(), &Secret::default())
    }

    fn left(age: Duration) -> Reply {
        Reply::Int(i64::try_from((LIFE - age).as_millis()).unwrap())
    }

    #[test]
    fn a_witness_fits_that_names_the_identity_and_is_old_enough() {
        for (value, age, fits) in [
            ("r h 0123456789abcdef", 9 * S, true),
            ("r h 0123456789abcdef", 8 * S, true),
            ("r h 0123456789abcdef", 7 * S, false),
            ("r hh 0123456789abcdef", 9 * S, false),
            ("r g 0123456789abcdef", 9 * S, false),
            ("r h", 9 * S, false),
            ("", 9 * S, false),
        ] {
            let look = look("h", ZEROS, bulk(value), left(age)).unwrap();
            let own = look.own_witness().is_some();
            assert_eq!(look.set_witness(WITNESS, 7).is_none(), own, "{value}");
            let judged = look.judge(8 * S);
            assert_eq!(matches!(judged, Judged::Fits(..)), fits, "{value}");
        }
        // It was set by hand.
        for left in [Reply::Int(-1), Reply::Int(i64::MAX)] {
            let look = look("h", ZEROS, bulk("r h 0"), left).unwrap();
            let set = look.set_witness(WITNESS, 1).unwrap();
            assert!(!set.contains(&b"NX".to_vec()));
            assert!(!matches!(look.judge(8 * S), Judged::Fits(..)));
        }
    }

    #[test]
    fn the_witness_is_set_where_there_is_none_or_another_s() {
        let none = look("h", ZEROS, Reply::Nil, Reply::Int(-2)).unwrap();
        let set = none.set_witness(WITNESS, 0x1f).unwrap();
        let text = |set: &[Vec<u8>]| String::from_utf8(set.join(&b' ')).unwrap();
        assert_eq!(
            text(&set),
            "SET redlock:witness r h 000000000000001f NX PX 315360000000"
        );
        let other = look("h", ZEROS, bulk("r g 0"), left(S)).unwrap();
        assert!(text(&other.set_witness(WITNESS, 1).unwrap()).ends_with(" PX 315360000000"));
    }

    #[test]
    fn the_second_look_must_show_the_same_server() {
        let first = || look("h", ZEROS, Reply::Nil, Reply::Int(-2)).unwrap();
        let second = |history, value| look(history, ZEROS, bulk(value), left(S)).unwrap();
        let witness = first().and(second("h", "r h 1"), false).unwrap();
        let value = Evidence::Value(b"r h 1".to_vec());
        assert_eq!((&witness.evidence, witness.age), (&value, S));
        assert!(witness.calm);
        assert!(!first().and(second("h", "r h 1"), true).unwrap().calm);
        let promoted = look("h", "00a", bulk("r h 1"), left(S)).unwrap();
        assert!(!first().and(promoted, false).unwrap().calm);
        for (history, value) in [("g", "r g 1"), ("h", "r g 1")] {
            assert!(first().and(second(history, value), false).is_err());
        }
    }

    #[test]
    fn a_replica_and_a_server_that_tells_nothing_of_itself_are_refused() {
        let of = |server: &str, replication: &str, value| {
            let replies = [bulk(server), bulk(replication), value, Reply::Int(-2)];
            Look::of(replies.into(), &Secret::default()).map(|look| look.identity.0)
        };
        assert!(matches!(
            of("run_id:r", "role:slave", Reply::Nil),
            Err(Cause::Replica(_))
        ));
        assert!(matches!(
            of("", "role:master", Reply::Nil),
            Err(Cause::NoInfo)
        ));
        assert_eq!(of("run_id:r", "", Reply::Nil).unwrap(), "r -");
        assert_eq!(of("", "master_replid:h", Reply::Nil).unwrap(), "- h");
        for error in ["NOPERM No permissions", "WRONGTYPE Operation"] {
            let refused = of("run_id:r", "", Reply::Error(error.into())).unwrap_err();
            let text = refused.to_string();
            let named = text.contains("redlock:witness") && text.contains(error);
            assert!(named && refused.is_final(), "{text}");
        }
    }

    #[test]
    fn a_server_is_still_the_same_while_it_is_a_master_with_the_same_history() {
        let identity = Identity::new(Some("r"), Some("h")).unwrap();
        for (text, expected) in [
            ("role:master\nmaster_replid:h", true),
            ("role:master\nmaster_replid:g", false),
            ("role:slave\nmaster_replid:h", false),
            ("role:master", false),
        ] {
            assert_eq!(identity.is_still(text.as_bytes()), expected, "{text}");
        }
        assert!(
            Identity::new(Some("r"), None)
                .unwrap()
                .is_still(b"role:master")
        );
    }

    #[test]
    fn what_empties_a_server_is_seen() {
        let lost = |commands: &str, stats: &str| {
            let commands = format!("cmdstat_info:calls=1,usec=1\n{commands}");
            lost_keys(&[bulk(&commands), bulk(stats)], &Secret::default())
        };
        assert!(!lost("cmdstat_set:calls=1,usec=1", "evicted_keys:0"));
        assert!(!lost("cmdstat_flushall:calls=0,usec=0", "evicted_keys:0"));
        assert!(!lost(
            "cmdstat_function|flush:calls=1,usec=0",
            "evicted_keys:0"
        ));
        for name in FLUSHES {
            assert!(lost(
                &format!("cmdstat_{name}:calls=1,usec=1"),
                "evicted_keys:0"
            ));
        }
        assert!(lost("", "evicted_keys:3") && lost("", ""));
        let none = || bulk("evicted_keys:0");
        let refused = Reply::Error("NOPERM".into());
        assert!(lost_keys(&[refused, none()], &Secret::default()));
        assert!(lost_keys(
            &[bulk("# Commandstats"), none()],
            &Secret::default()
        ));
    }

    #[test]
    fn without_a_witness_a_server_votes_that_has_lost_nothing() {
        let calm = |before: &str, role: &str, commands: &str| {
            let replication =
                format!("role:{role}\r\nmaster_replid:h\r\nmaster_replid2:{before}\r\n");
            let look = [
                bulk("run_id:r\r\nuptime_in_seconds:7\r\n"),
                bulk(&replication),
            ];
            let losses = [bulk(commands), bulk("evicted_keys:0")];
            Look::calm(look.into(), &losses, &Secret::default())
        };
        let seen = "cmdstat_info:calls=1,usec=1";
        let (witness, uptime) = calm(ZEROS, "master", seen).unwrap();
        assert!(witness.calm && witness.evidence == Evidence::NoLosses && uptime == Some(7 * S));
        let flushed = format!("{seen}\ncmdstat_flushall:calls=1,usec=1");
        for refused in [
            calm("00a", "master", seen),
            calm(ZEROS, "slave", seen),
            calm(ZEROS, "master", &flushed),
            calm(ZEROS, "master", ""),
        ] {
            assert!(refused.is_err());
        }
        let shows = |commands: &str, evicted: &str| {
            let info = format!("evicted_keys:{evicted}\r\n{commands}\r\n");
            witness.evidence.is_shown_by(info.as_bytes())
        };
        assert!(shows(seen, "0"));
        assert!(!shows(&flushed, "0") && !shows(seen, "1") && !shows("", "0"));
    }
}
