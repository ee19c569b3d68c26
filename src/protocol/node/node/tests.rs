use super::*;
use crate::protocol::mutants::set_mutant;
use crate::protocol::node::node::task::NodeTask;
use crate::protocol::node::server_properties::ServerProperties;
use crate::values::clock;

/// One of several nodes may have the lock since its clock was set, and one that has had it all the time has granted
/// it to no other.
#[test]
fn behind_a_step_a_vote_counts_only_where_the_lock_has_counted_before() {
    let now = clock::instant();
    let guard = RestartGuard::new(Duration::from_secs(30), 3);
    let mut node = Node::new("x".into(), Some(guard));
    let withheld = |node: &Node| {
        [(true, true), (true, false), (false, true), (false, false)]
            .map(|(acquires, counted)| node.withholds(acquires, counted, now).is_some())
    };
    let read = |node: &mut Node, seconds| {
        node.server.read_clock(ClockReading {
            time_of_day: Duration::from_secs(seconds),
            sent: now,
            received: now,
        });
    };
    read(&mut node, 100);
    assert_eq!(withheld(&node), [false; 4]);
    assert!(node.take_step(now).is_none());
    read(&mut node, 112);
    assert_eq!(withheld(&node), [true, true, false, true]);
    set_mutant(Some(Mutant::ExtendWhereverHeld));
    assert_eq!(withheld(&node), [true, true, false, false]);
    set_mutant(None);
    let Some(NodeEvent::GivesNoVotes(cause)) = node.take_step(now) else {
        panic!("it is reported");
    };
    let (by, left) = (Duration::from_secs(12), Duration::from_secs(30));
    assert!(matches!(*cause, Cause::Stepped(one, two) if (one, two) == (by, left)));
    assert!(node.take_step(now).is_none(), "it is reported once");
}

/// The replies that the old server still sends must not be held against the record of the new one.
#[test]
fn what_other_lanes_have_learnt_of_the_next_server_counts_once_its_connection_is_used() {
    let now = clock::instant();
    let guard = RestartGuard::new(Duration::from_secs(30), 3);
    let properties = |run_id: &str| ServerProperties {
        run_id: Some(run_id.into()),
        uptime: Some((Duration::from_secs(1000), now)),
        routed: true,
        ..ServerProperties::default()
    };
    let known = |run_id, times: &[u64]| {
        let mut server = KnownServer::new(Some(guard));
        server.connected(&properties(run_id));
        for seconds in times {
            server.read_clock(ClockReading {
                time_of_day: Duration::from_secs(*seconds),
                sent: now,
                received: now,
            });
        }
        server
    };
    let mut node = Node::new("x".into(), Some(guard));
    node.server = known("r", &[100]);
    node.link = Link::Unresponsive;
    node.on_connected(properties("s"));
    node.inherit(known("s", &[50, 62]));
    assert_eq!(node.server.standing(now), Standing::Votes);
    // Another lane's record of the present server counts at once.
    node.inherit(known("r", &[100, 112]));
    assert_ne!(node.server.standing(now), Standing::Votes);
    node.server = known("r", &[100]);
    node.link = Link::Draining;
    let timeouts = Timeouts {
        node: Duration::from_secs(1),
        connect: Duration::from_secs(1),
    };
    assert!(matches!(node.task(now, None, timeouts), NodeTask::Adopt));
    assert_ne!(node.server.standing(now), Standing::Votes);
}
