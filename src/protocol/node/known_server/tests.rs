use super::*;
use crate::protocol::node::witness::{Evidence, Witness};
use crate::values::clock;

/// Connections do not matter to a clock. Another server has another clock.
#[test]
fn a_clock_that_is_set_between_two_connections_is_noticed_unless_it_is_another_server_s() {
    let now = clock::instant();
    for (run_id, routed, ahead, expected) in [
        (Some("r"), false, 12, Some(12)),
        (Some("r"), true, 12, Some(12)),
        (None, false, 12, Some(12)),
        (Some("s"), false, 12, None),
        (Some("s"), true, 12, None),
        (Some("r"), false, 0, None),
    ] {
        let connected = |run_id: Option<&str>, seconds| ServerProperties {
            run_id: run_id.map(Into::into),
            uptime: Some((Duration::from_secs(1000), now)),
            witness: Some(Witness {
                evidence: Evidence::Value(Vec::new()),
                identity: Identity::new(Some("r"), Some("h"), 0, 0).unwrap(),
                age: Duration::from_secs(1000),
                calm: false,
                lossless: true,
                clock: Some(ClockReading {
                    time_of_day: Duration::from_secs(seconds),
                    sent: now,
                    received: now,
                }),
            }),
            routed,
            ..ServerProperties::default()
        };
        let mut server = KnownServer::new(Some(RestartGuard::new(Duration::from_secs(30), 1)));
        server.connected(&connected(Some("r"), 100));
        server.connected(&connected(run_id, 100 + ahead));
        let found = |server: &KnownServer| server.clock.step(now).map(|step| step.why);
        let expected = expected.map(|by| Why::ClockSet(Duration::from_secs(by)));
        assert_eq!(found(&server), expected, "{run_id:?}, {routed}, {ahead}");
        // A slot that leaves, and comes back.
        for run_id in ["other", "r"] {
            server.connected(&connected(Some(run_id), 100 + ahead));
        }
        assert_eq!(found(&server), expected, "{run_id:?}, {routed}, {ahead}");
    }
}

/// In a Redis Cluster a witness moves with its slot.
#[test]
fn a_promoted_server_that_has_lost_nothing_votes_on_when_its_witness_has_moved() {
    let now = clock::instant();
    let connected = |history: &str, age: u64, lossless: bool, routed: bool| ServerProperties {
        uptime: Some((Duration::from_secs(1000), now)),
        witness: Some(Witness {
            evidence: Evidence::Value(Vec::new()),
            identity: Identity::new(Some("r"), Some(history), 0, 0).unwrap(),
            age: Duration::from_secs(age),
            calm: false,
            lossless,
            clock: None,
        }),
        routed,
        ..ServerProperties::default()
    };
    for (history, lossless, routed, expected) in [
        ("h", true, true, [0, 15]),
        ("h", false, true, [5, 35]),
        ("g", true, true, [5, 35]),
        ("h", true, false, [5, 35]),
    ] {
        let guard = Some(RestartGuard::new(Duration::from_secs(30), 1));
        let mut server = KnownServer::new(guard);
        // The server may have forgotten locks until 15 seconds from now.
        server.connected(&connected("h", 20, false, routed));
        server.connected(&connected(history, 0, lossless, routed));
        let votes = server.forgets().unwrap().votes;
        let left = [votes.held, votes.all].map(|at| (at - now).as_secs());
        assert_eq!(left, expected, "{history}, {lossless}, {routed}");
    }
}

/// Bob's first lane has used a server. Its clock is set, or another server takes its place, before his second lane is
/// connected there.
#[test]
fn another_lane_s_record_of_a_server_counts() {
    let start = clock::instant();
    let at = |seconds| start + Duration::from_secs(seconds);
    let connected = |run_id: &str, seconds: u64, ahead: u64, routed| ServerProperties {
        run_id: Some(run_id.into()),
        uptime: Some((Duration::from_secs(1000), at(seconds))),
        witness: Some(Witness {
            evidence: Evidence::Value(Vec::new()),
            identity: Identity::new(Some(run_id), Some("h"), 0, 0).unwrap(),
            age: Duration::from_secs(1000),
            calm: true,
            lossless: true,
            clock: Some(ClockReading {
                time_of_day: Duration::from_secs(seconds + ahead),
                sent: at(seconds),
                received: at(seconds),
            }),
        }),
        routed,
        ..ServerProperties::default()
    };
    let new = || KnownServer::new(Some(RestartGuard::new(Duration::from_secs(30), 3)));
    let votes = |server: &KnownServer, seconds| server.standing(at(seconds)) == Standing::Votes;
    // The first lane notices the change before the second lane is connected, or does not; the second one is new, or
    // has been idle.
    for (run_id, ahead, routed, expected) in [
        ("r", 0, false, true),
        ("r", 12, false, false),
        ("r", 12, true, false),
        ("s", 0, false, false),
        // Its keys have moved to another server, of which nothing is known.
        ("s", 12, true, true),
    ] {
        for (notices, idle, mutated) in [
            (false, false, None),
            (true, false, None),
            (false, true, None),
            (true, true, None),
            (false, false, Some(Mutant::LaneKnowsNoServer)),
        ] {
            let (mut first, mut second) = (new(), new());
            if idle {
                second.connected(&connected("r", 0, 0, routed));
            }
            first.connected(&connected("r", 1, 0, routed));
            if notices {
                first.connected(&connected(run_id, 2, ahead, routed));
            }
            let properties = connected(run_id, 3, ahead, routed);
            let case = format!("{run_id} {ahead} {routed} {notices} {idle} {mutated:?}");
            crate::protocol::mutants::set_mutant(mutated);
            let leads_to = Connected::by(&properties);
            if first.precedes(leads_to) {
                second.learn(&first, leads_to);
            }
            second.connected(&properties);
            crate::protocol::mutants::set_mutant(None);
            assert_eq!(votes(&second, 4), expected || mutated.is_some(), "{case}");
            assert!(votes(&second, 40), "{case}");
        }
    }
    // The first lane has last heard "s" before the second one last heard "r", from which the slot moves to "s". Whichever
    // lane has noticed a step, it counts.
    for (ahead_r, ahead_s) in [(0, 12), (12, 0)] {
        let (mut first, mut second) = (new(), new());
        first.connected(&connected("s", 1, 0, true));
        first.connected(&connected("s", 2, ahead_s, true));
        second.connected(&connected("r", 3, 0, true));
        second.connected(&connected("r", 4, ahead_r, true));
        let properties = connected("s", 5, ahead_s, true);
        let leads_to = Connected::by(&properties);
        assert!(first.precedes(leads_to) && !second.precedes(leads_to));
        second.learn(&first, leads_to);
        second.connected(&properties);
        assert!(!votes(&second, 6) && votes(&second, 40), "{ahead_r}");
    }
}

/// Bob's second lane is idle, or has ended, while his first one goes on; then the clock is set forward by a second.
#[test]
fn a_clock_is_measured_from_the_latest_reading_of_any_lane() {
    let start = clock::instant();
    let at = |seconds| start + Duration::from_secs(seconds);
    let reading = |seconds: u64, ahead: u64| ClockReading {
        time_of_day: Duration::from_secs(seconds + ahead),
        sent: at(seconds),
        received: at(seconds),
    };
    let lane = |seconds, ahead| {
        let mut server = KnownServer::new(Some(RestartGuard::new(Duration::from_secs(30), 3)));
        server.previous = Some(PreviousServer {
            run_id: Some("r".into()),
            heard: at(seconds),
            votes: VotesFrom {
                held: start,
                all: start,
            },
        });
        server.read_clock(reading(0, 0));
        server.read_clock(reading(seconds, ahead));
        server
    };
    // By the idle lane's last reading, an hour ago, a clock may have gained 7 s by its rate.
    let hour = 3600;
    let set = crate::protocol::mutants::set_mutant;
    for (mutated, expected) in [(None, true), (Some(Mutant::LaneReadsAlone), false)] {
        let (first, mut second) = (lane(hour, 0), lane(0, 0));
        set(mutated);
        let asks = second.idle(at(hour)).unwrap();
        let leads_to = Connected::Server(Some(&asks));
        assert!(second.idle(at(1)).is_none() && first.precedes(leads_to));
        second.learn(&first, leads_to);
        second.read_clock(reading(hour + 1, 1));
        assert_eq!(second.clock.step(at(hour + 1)).is_some(), expected);
        set(None);
    }
    // A step that the first one has noticed is not forgotten, whichever of them was used last.
    let (mut first, mut second) = (lane(10, 0), lane(10, 0));
    first.read_clock(reading(20, 1));
    second.clock.read = Some(at(21));
    second.learn(&first, Connected::Server(Some("r")));
    assert!(second.clock.step(at(21)).is_some());
    assert!(second.new_step.is_none(), "it is reported once");
    // The records of lanes that have ended: one of each server, and the later reading.
    for (mutated, expected) in [(None, true), (Some(Mutant::RecordEndsWithLane), false)] {
        let mut ended = Vec::new();
        set(mutated);
        lane(hour, 0).outlive_lane(&mut ended);
        lane(0, 0).outlive_lane(&mut ended);
        set(None);
        assert_eq!(ended.len(), usize::from(expected));
        ended.push(lane(1, 0));
        let mut third = KnownServer::latest(&ended).unwrap();
        third.read_clock(reading(hour + 1, 1));
        assert_eq!(third.clock.step(at(hour + 1)).is_some(), expected);
    }
}

/// Locks that a server granted until another took its place end after the last reply that any lane had.
#[test]
fn the_last_reply_to_any_lane_counts() {
    let now = clock::instant();
    let guard = Some(RestartGuard::new(Duration::from_secs(30), 3));
    let server = |heard: Instant| KnownServer {
        previous: Some(PreviousServer {
            run_id: Some("r".into()),
            heard,
            votes: VotesFrom {
                held: now,
                all: now,
            },
        }),
        ..KnownServer::new(guard)
    };
    let later = now + Duration::from_secs(9);
    for (own, theirs) in [(now, later), (later, now)] {
        let mut own = server(own);
        own.learn(&server(theirs), Connected::AtAddress);
        assert_eq!(own.heard_at(), Some(later));
    }
}
