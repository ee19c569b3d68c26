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
mod tests {
    use super::*;
    use crate::protocol::commands::companions::WITNESS;
    use crate::protocol::node::witness::FLUSHES;

    const S: Duration = Duration::from_secs(1);
    const ZEROS: &str = "0000000000000000000000000000000000000000";

    /// INFO commandstats of a server that has lost nothing.
    const COUNTS: &str = "cmdstat_info:calls=1,usec=1";

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    fn look(history: &str, before: &str, value: Reply, left: Reply) -> Result<WitnessLook, Cause> {
        evicting(0, history, before, value, left)
    }

    fn evicting(
        evicted: u64,
        history: &str,
        before: &str,
        value: Reply,
        left: Reply,
    ) -> Result<WitnessLook, Cause> {
        let replication =
            format!("role:master\r\nmaster_replid:{history}\r\nmaster_replid2:{before}\r\n");
        let stats = format!("evicted_keys:{evicted}\r\n");
        let look = ["run_id:r\r\n", &replication, &stats].map(bulk);
        let replies = look
            .into_iter()
            .chain([value, left, bulk(COUNTS)])
            .collect();
        WitnessLook::of(replies, &Secret::default())
    }

    fn left(age: Duration) -> Reply {
        Reply::Int(i64::try_from((LIFE - age).as_millis()).unwrap())
    }

    #[test]
    fn a_witness_fits_that_names_the_identity_and_is_old_enough() {
        for (value, age, fits) in [
            ("r h 0 0 0123456789abcdef", 9 * S, true),
            ("r h 0 0 0123456789abcdef", 8 * S, true),
            ("r h 0 0 0123456789abcdef", 7 * S, false),
            ("r hh 0 0 0123456789abcdef", 9 * S, false),
            ("r g 0 0 0123456789abcdef", 9 * S, false),
            ("r h 1 0 0123456789abcdef", 9 * S, false),
            ("r h 00 0 123456789abcdef", 9 * S, false),
            ("r h 0 1 0123456789abcdef", 9 * S, false),
            ("r h 0123456789abcdef", 9 * S, false),
            ("r h 0", 9 * S, false),
            ("", 9 * S, false),
        ] {
            let look = look("h", ZEROS, bulk(value), left(age)).unwrap();
            let own = look.own_witness().is_some();
            assert_eq!(look.set_witness(WITNESS, 7).is_none(), own, "{value}");
            let judged = look.judge(8 * S);
            assert_eq!(matches!(judged, Judged::Fits(..)), fits, "{value}");
        }
        // The witness was set by hand.
        for left in [Reply::Int(-1), Reply::Int(i64::MAX)] {
            let look = look("h", ZEROS, bulk("r h 0 0 0"), left).unwrap();
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
            "SET redlock:witness r h 0 0 000000000000001f NX PX 315360000000"
        );
        let other = look("h", ZEROS, bulk("r g 0 0 0"), left(S)).unwrap();
        assert!(text(&other.set_witness(WITNESS, 1).unwrap()).ends_with(" PX 315360000000"));
    }

    #[test]
    fn a_look_shows_for_how_long_a_connection_would_have_no_votes() {
        let guard = RestartGuard::new(30 * S, 3);
        // Uptime, whether it was promoted, the witness and its age, whether it was flushed; and for how long.
        let own = "r h 0 0 1";
        for (uptime, before, witness, flushed, expected) in [
            (9000, ZEROS, None, false, 0),
            (29, ZEROS, None, false, 2),
            (9000, "00a", None, false, 35),
            (9000, ZEROS, None, true, 35),
            (9000, "00a", Some((own, 10)), false, 25),
            (9000, "00a", Some((own, 35)), true, 0),
            (9, ZEROS, Some((own, 35)), false, 0),
            (9000, "00a", Some(("r g 0 0 1", 35)), false, 35),
        ] {
            let (value, age) = match witness {
                Some((value, age)) => (bulk(value), left(age * S)),
                None => (Reply::Nil, Reply::Int(-2)),
            };
            let mut look = look("h", before, value, age).unwrap();
            (look.uptime, look.flushed) = (uptime * S, flushed);
            let left = look.left(guard);
            assert_eq!(
                left,
                expected * S,
                "{uptime} {before} {witness:?} {flushed}"
            );
        }
    }

    #[test]
    fn the_second_look_must_show_the_same_server() {
        let first = || look("h", ZEROS, Reply::Nil, Reply::Int(-2)).unwrap();
        let second = |history, value| look(history, ZEROS, bulk(value), left(S)).unwrap();
        let witness = first().and(second("h", "r h 0 0 1")).unwrap();
        let value = Evidence::Value(b"r h 0 0 1".to_vec());
        assert_eq!((&witness.evidence, witness.age), (&value, S));
        assert!(witness.calm);
        let mut flushed = second("h", "r h 0 0 1");
        flushed.flushed = true;
        assert!(!first().and(flushed).unwrap().calm);
        let promoted = look("h", "00a", bulk("r h 0 0 1"), left(S)).unwrap();
        assert!(!first().and(promoted).unwrap().calm);
        for (history, value) in [("g", "r g 0 0 1"), ("h", "r g 0 0 1")] {
            assert!(first().and(second(history, value)).is_err());
        }
    }

    /// Keys may be evicted before the first look, between the two, or after the witness was set.
    #[test]
    fn a_server_that_evicts_keys_is_another_one_and_has_lost_something() {
        let look =
            |evicted, value: Reply| evicting(evicted, "h", ZEROS, value, left(9 * S)).unwrap();
        let set = look(3, Reply::Nil).set_witness(WITNESS, 1).unwrap();
        assert_eq!(set[2], b"r h 3 0 0000000000000001");
        let witness = look(3, Reply::Nil).and(look(3, bulk("r h 3 0 1")));
        let witness = witness.unwrap();
        assert!(!witness.calm && !witness.lossless);
        for (second, value) in [(4, "r h 3 0 1"), (4, "r h 4 0 1"), (2, "r h 3 0 1")] {
            let refused = look(3, Reply::Nil).and(look(second, bulk(value)));
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("maxmemory-policy noeviction"), "{text}");
        }
        assert!(matches!(
            look(4, bulk("r h 3 0 1")).judge(8 * S),
            Judged::LookAgain(_)
        ));
    }

    #[test]
    fn a_replica_and_a_server_that_reports_no_identity_are_refused() {
        let look = |server: &str, replication: &str, stats: &str, value| {
            let info = [server, replication, stats].map(bulk);
            let replies = info
                .into_iter()
                .chain([value, Reply::Int(-2), bulk(COUNTS)]);
            let look = WitnessLook::of(replies.collect(), &Secret::default());
            look.map(|look| look.identity.name)
        };
        let of = |server: &str, replication: &str, value| {
            look(server, replication, "evicted_keys:0", value)
        };
        assert!(matches!(
            of("run_id:r", "role:slave", Reply::Nil),
            Err(Cause::Replica(_))
        ));
        assert!(matches!(
            of("", "role:master", Reply::Nil),
            Err(Cause::NoInfo(ANY_ID))
        ));
        for (at, section) in [SERVER, REPLICATION, STATS].into_iter().enumerate() {
            let mut replies = Vec::from(["run_id:r", "role:master", "evicted_keys:0"].map(bulk));
            replies.extend([Reply::Nil, Reply::Int(-2), bulk(COUNTS)]);
            replies[at] = Reply::Error("NOPERM no".into());
            let text = WitnessLook::of(replies, &Secret::default())
                .unwrap_err()
                .to_string();
            assert!(text.contains(&format!("needs {section}, which")), "{text}");
        }
        for stats in [
            "",
            "evicted_keys:",
            "evicted_keys:-1",
            "evicted_keys:0\nevicted_keys:0",
        ] {
            let refused = look("run_id:r", "role:master", stats, Reply::Nil);
            let text = refused.unwrap_err().to_string();
            assert!(
                text.starts_with("the restart guard needs evicted_keys in INFO stats, which"),
                "{stats}: {text}"
            );
        }
        assert_eq!(of("run_id:r", "", Reply::Nil).unwrap(), "r -");
        assert_eq!(of("", "master_replid:h", Reply::Nil).unwrap(), "- h");
        for error in ["NOPERM No permissions", "WRONGTYPE Operation"] {
            let refused = of("run_id:r", "", Reply::Error(error.into())).unwrap_err();
            let text = refused.to_string();
            let named = text.contains("redlock:witness") && text.contains(error);
            assert!(named && refused.is_final(), "{text}");
        }
    }

    /// A look at a server that has a witness, by INFO commandstats.
    fn counted(commands: Reply) -> WitnessLook {
        let look = ["run_id:r", "master_replid:h", "evicted_keys:0"].map(bulk);
        let witness = [bulk("r h 0 0 1"), left(9 * S), commands];
        let replies = look.into_iter().chain(witness).collect();
        WitnessLook::of(replies, &Secret::default()).unwrap()
    }

    /// The witness is that of the other database, or is back with its own; until then others may have held locks in its
    /// place.
    #[test]
    fn a_witness_that_was_swapped_does_not_fit() {
        let swapped = |calls| {
            let swaps = format!("{COUNTS}\ncmdstat_swapdb:{calls},usec=1");
            counted(bulk(&swaps))
        };
        assert!(matches!(swapped("calls=0").judge(8 * S), Judged::Fits(..)));
        for calls in ["calls=1", "calls=2", "calls=-"] {
            let look = swapped(calls);
            assert!(look.set_witness(WITNESS, 1).is_some(), "{calls}");
            assert!(matches!(look.judge(8 * S), Judged::LookAgain(_)), "{calls}");
        }
        let set = swapped("calls=2").set_witness(WITNESS, 1).unwrap();
        assert_eq!(set[2], b"r h 0 2 0000000000000001");
        let between = swapped("calls=1").and(swapped("calls=2"));
        assert!(between.unwrap_err().to_string().contains("flushed"));
    }

    #[test]
    fn what_empties_a_server_is_seen() {
        let lost = |commands: &str| counted(bulk(&format!("{COUNTS}\n{commands}"))).flushed;
        assert!(!lost("cmdstat_set:calls=1,usec=1"));
        assert!(!lost("cmdstat_flushall:calls=0,usec=0"));
        assert!(!lost("cmdstat_function|flush:calls=1,usec=0"));
        for name in FLUSHES {
            assert!(lost(&format!("cmdstat_{name}:calls=1,usec=1")));
        }
        for none in [Reply::Error("NOPERM".into()), bulk("# Commandstats")] {
            assert!(counted(none).flushed);
        }
    }

    /// While a script runs, INFO is refused as all else is. The connection is made anew then, and not without the guard.
    #[test]
    fn a_section_that_is_refused_for_now_is_not_missing() {
        for at in 0..IDENTITY_PARTS {
            for refusal in [
                "BUSY Redis is busy running a script.",
                "LOADING Redis is loading",
            ] {
                let identity = || {
                    let identity = ["run_id:r", "role:master", "evicted_keys:0", COUNTS];
                    let mut replies = Vec::from(identity.map(bulk));
                    replies[at] = Reply::Error(refusal.into());
                    replies
                };
                let calm = WitnessLook::calm(identity(), &Secret::default());
                assert!(matches!(calm, Err(Cause::Refused(_))), "{at}, {refusal}");
                let mut all = identity();
                all.splice(3..3, [Reply::Nil, Reply::Int(-2)]);
                let looked = WitnessLook::of(all, &Secret::default());
                assert!(matches!(looked, Err(Cause::Refused(_))), "{at}, {refusal}");
            }
        }
    }

    #[test]
    fn without_a_witness_a_server_votes_that_has_lost_nothing() {
        let calm = |evicted: u8, before: &str, role: &str, commands: &str| {
            let replication =
                format!("role:{role}\r\nmaster_replid:h\r\nmaster_replid2:{before}\r\n");
            let server = "run_id:r\r\nuptime_in_seconds:7\r\n";
            let stats = format!("evicted_keys:{evicted}");
            let look = [server, &replication, &stats, commands].map(bulk);
            WitnessLook::calm(look.into(), &Secret::default())
        };
        let seen = "cmdstat_info:calls=1,usec=1";
        let (witness, uptime) = calm(0, ZEROS, "master", seen).unwrap();
        assert!(witness.calm && witness.evidence == Evidence::NoLosses && uptime == 7 * S);
        let flushed = format!("{seen}\ncmdstat_flushall:calls=1,usec=1");
        for refused in [
            calm(0, "00a", "master", seen),
            calm(0, ZEROS, "slave", seen),
            calm(0, ZEROS, "master", &flushed),
            calm(0, ZEROS, "master", ""),
            calm(1, ZEROS, "master", seen),
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
