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
    let look = |evicted, value: Reply| evicting(evicted, "h", ZEROS, value, left(9 * S)).unwrap();
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
    let of =
        |server: &str, replication: &str, value| look(server, replication, "evicted_keys:0", value);
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
        let replication = format!("role:{role}\r\nmaster_replid:h\r\nmaster_replid2:{before}\r\n");
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
