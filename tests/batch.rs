//! Operations that share a step do not share their fate.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Barrier;

use support::*;

/// Node 2 is away. Of two acquires in one batch, "denied" is granted by node 0 and refused by node 1;
/// "stuck" is granted by node 0 and fails on node 1, so it waits for node 2 and lets it take part.
/// By then "denied" has failed for good, and is undone: whatever node 2 says.
#[test]
fn a_node_that_joins_late_does_not_revive_an_acquire_that_is_undone() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    servers[1].command(&["SET", "denied", "another", "PX", "60000"]);
    servers[1].command(&["ACL", "SETUSER", "default", "resetkeys", "~denied", "~warm"]);

    servers[2].stop();
    eventually("node 2 is away", || {
        take(&redlock, "warm").release().unwrap();
        attendants() > 0
    });

    // While node 0 keeps the first one waiting the other two queue, and become one batch.
    servers[0].stop();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        let acquire = |resource: &'static str| {
            let (redlock, barrier) = (&redlock, &barrier);
            scope.spawn(move || {
                if resource != "warm" {
                    barrier.wait();
                    std::thread::sleep(ms(50));
                } else {
                    barrier.wait();
                }
                redlock.try_acquire(resource, TTL)
            })
        };
        let first = acquire("warm");
        let denied = acquire("denied");
        let stuck = acquire("stuck");
        barrier.wait();
        // Nothing shows that they have queued.
        std::thread::sleep(ms(200));
        servers[0].resume();
        eventually("the batch is written", || servers[0].exists("stuck"));
        servers[2].resume();

        first.join().unwrap().unwrap().unwrap().release().unwrap();
        let stuck = stuck.join().unwrap().unwrap().unwrap();
        assert!(denied.join().unwrap().unwrap().is_none());
        stuck.release().ok();
    });
}
