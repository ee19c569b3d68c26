//! `Redlock::once_per`: of all that ask within a period, one does the work with success.

use crate::support;

use std::error::Error as StdError;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use redlock_sync::{Error, KeptLock, Redlock};
use support::*;

const PERIOD: Duration = Duration::from_secs(3600);

fn mark(server: &Server, name: &str) -> Option<String> {
    redis::from_redis_value(server.command(&["GET", &beside(name, "done")])).unwrap()
}

/// The look is over connections of its own.
#[test]
fn a_node_that_takes_no_connection_for_a_moment_keeps_no_work_from_being_done() {
    let server = Server::start();
    let (relays, redlock) = behind_relays(std::slice::from_ref(&server));
    take(&redlock, "x").release().unwrap();
    relays[0].take_no_more();
    let done = thread::scope(|scope| {
        let host = scope.spawn(|| redlock.once_per("nightly", TTL, PERIOD, |_| Ok::<_, Error>(7)));
        eventually("it has the lock", || server.exists("nightly"));
        thread::sleep(Duration::from_secs(1));
        assert!(!host.is_finished(), "it looks again");
        relays[0].accept();
        host.join().unwrap()
    });
    assert_eq!(done.unwrap(), Some(7));
}

/// Another host may do it by then.
#[test]
fn work_does_not_begin_under_a_lock_that_was_lost_while_its_mark_was_asked_for() {
    let server = Server::start();
    let (relays, redlock) = behind_relays(std::slice::from_ref(&server));
    take(&redlock, "x").release().unwrap();
    relays[0].take_no_more();
    let done = thread::scope(|scope| {
        let (ttl, begun) = (Duration::from_secs(1), || panic!("without the lock"));
        let host = scope.spawn(move || {
            redlock.once_per("nightly", ttl, PERIOD, |_| -> Result<(), Error> { begun() })
        });
        eventually("it has the lock", || server.exists("nightly"));
        // The answer to the acquire has arrived then.
        let renewals = server.calls("evalsha");
        eventually("it is renewed", || server.calls("evalsha") > renewals);
        relays[0].cut();
        eventually("the lock is over", || !server.exists("nightly"));
        relays[0].accept();
        host.join().unwrap()
    });
    assert!(matches!(done, Err(Error::Lost(_))), "{done:?}");
}

#[test]
fn one_of_all_that_ask_does_the_work_and_where_it_fails_the_next_one_does_it() {
    let servers = Server::several(3);
    let labelled = connected(&servers).with_options(options().label("web-3"));
    let labelled = labelled.unwrap();
    let runs = AtomicUsize::new(0);
    let once = |redlock: &Redlock| -> Result<Option<usize>, Box<dyn StdError + Send + Sync>> {
        redlock.once_per("nightly", TTL, PERIOD, |_| {
            // The first two fail.
            match runs.fetch_add(1, SeqCst) {
                0 | 1 => Err(io::Error::other("it failed").into()),
                run => Ok(run),
            }
        })
    };
    assert_eq!(labelled.last_run("nightly").unwrap(), None);
    for _ in 0..2 {
        assert_eq!(once(&labelled).unwrap_err().to_string(), "it failed");
        assert!(
            servers
                .iter()
                .all(|server| mark(server, "nightly").is_none())
        );
    }
    let done: Vec<Option<usize>> = thread::scope(|scope| {
        let hosts: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| once(&labelled).unwrap()))
            .collect();
        hosts.into_iter().map(|host| host.join().unwrap()).collect()
    });
    assert_eq!(done.iter().flatten().collect::<Vec<_>>(), [&2], "{done:?}");
    let last = connected(&servers).last_run("nightly").unwrap().unwrap();
    assert_eq!(last.label(), Some("web-3"));
    assert!(last.took() < TTL && last.ended().elapsed().unwrap() < TTL);
    assert!(last.again_in() <= PERIOD && last.again_in() > PERIOD - TTL);
    // It is beside the lock, and no lock itself.
    eventually("the lock is released", || {
        connected(&servers).list(None).unwrap().locks().count() == 0
    });
}

#[test]
fn a_mark_on_a_majority_is_seen_by_every_majority_and_fewer_answers_show_nothing() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = redlock.acquire("nightly", TTL).unwrap();
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("nightly"))
    });
    servers[2].stop();
    lock.mark_done(PERIOD, Duration::ZERO).unwrap();
    drop(lock);
    servers[2].resume();
    servers[0].stop();
    assert!(redlock.last_run("nightly").unwrap().is_some());
    servers[1].stop();
    assert!(matches!(
        redlock.last_run("nightly"),
        Err(Error::Unavailable(_))
    ));
    servers.iter().for_each(Server::resume);
}

#[test]
fn an_error_shows_whether_the_work_is_done() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let once = |name: &str, during: &dyn Fn()| {
        redlock.once_per(name, ms(1500), PERIOD, |_| {
            during();
            Ok::<_, Error>(7)
        })
    };
    let stop = || servers[1..].iter().for_each(Server::stop);
    let resume = || servers[1..].iter().for_each(Server::resume);
    let done = |error: Error| (error.after_work(), error.to_string());
    // Before the work.
    stop();
    let (is_done, text) = done(once("nightly", &|| panic!("there is no lock")).unwrap_err());
    assert!(!is_done && !text.contains("is done"), "{text}");
    resume();
    connects(&redlock);
    // Behind it, when nothing can be marked: the nodes are silent, or do not have the lock.
    let (is_done, text) = done(once("stopped", &stop).unwrap_err());
    assert!(is_done && text.contains("is done"), "{text}");
    resume();
    connects(&redlock);
    let delete = || {
        for server in &servers {
            server.command(&["DEL", "nightly"]);
        }
    };
    let (is_done, text) = done(once("nightly", &delete).unwrap_err());
    assert!(is_done && text.contains("is done"), "{text}");
    // The work itself: its error is its own.
    let failed = redlock.once_per("nightly", TTL, PERIOD, |lock| -> Result<(), Error> {
        delete();
        lock.fencing_token().map(drop)
    });
    assert!(!done(failed.unwrap_err()).0);
}

/// The lock is valid for up to its ttl behind the last renewal, which may come just before the end of the period.
#[test]
fn work_that_takes_longer_than_its_period_is_done_and_not_marked() {
    let server = Server::start();
    let redlock = connected(std::slice::from_ref(&server));
    let once = |during: &dyn Fn()| {
        redlock.once_per("nightly", ms(3000), ms(3000), |_| {
            thread::sleep(ms(3100));
            during();
            Ok::<_, Error>(7)
        })
    };
    assert_eq!(once(&|| {}).unwrap(), Some(7));
    assert_eq!(redlock.last_run("nightly").unwrap(), None);
    assert!(!server.exists("nightly"));
    // Without the lock another host may have done it meanwhile.
    let error = once(&|| thread::sleep(ms(3000))).unwrap_err();
    assert!(
        matches!(error, Error::Lost(_)) && error.after_work(),
        "{error}"
    );
}

fn connects(redlock: &Redlock) {
    eventually("all are connected", || {
        matches!(redlock.connect(), Ok(None))
    });
}

#[test]
fn a_look_at_the_last_run_reports_that_nodes_refuse_for_good() {
    let servers = Server::several(2);
    let redlock = connected(&servers);
    let look = || unavailable(redlock.last_run("nightly"));
    for server in &servers {
        server.command(&["ACL", "SETUSER", "default", "resetkeys", "~nightly"]);
    }
    let errors = look();
    assert!(errors.is_permanent(), "{errors}");
    servers[0].command(&["ACL", "SETUSER", "default", "~*"]);
    let errors = look();
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(text.starts_with("1 of 2 answered; node 1 "), "{text}");
    servers[1].command(&["ACL", "SETUSER", "default", "~*"]);
    assert_eq!(redlock.last_run("nightly").unwrap(), None);
    servers[1].stop();
    assert!(!look().is_permanent());
    servers[1].resume();
}

/// The nodes refuse the mark for some seconds.
#[test]
fn a_mark_that_is_written_late_ends_with_the_period_of_the_work() {
    const LATE: Duration = Duration::from_secs(4);
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let refuse = |count: &str| {
        on_all(&servers, &["CONFIG", "SET", "min-replicas-to-write", count]);
    };
    let ends = thread::scope(|scope| {
        let work = |_: &KeptLock| {
            let began = Instant::now();
            refuse("1");
            scope.spawn(|| {
                thread::sleep(LATE);
                refuse("0");
            });
            Ok::<_, Error>((began + PERIOD, SystemTime::now()))
        };
        let ends = redlock.once_per("nightly", TTL, PERIOD, work);
        // Before the thread that resumes the nodes is waited for.
        ends.map(|ends| (ends, Instant::now()))
    });
    let (ends, marked) = ends.unwrap();
    let (ends, ended) = ends.unwrap();
    let left = ends.saturating_duration_since(marked);
    assert!(left <= PERIOD - LATE, "it was written at once");
    let last = redlock.last_run("nightly").unwrap().unwrap();
    // Sending takes some time, too.
    let again_in = last.again_in();
    assert!(again_in <= left + LATE / 2, "{again_in:?}, {left:?}");
    assert!(last.ended() < ended + LATE / 2, "{last:?}");
}

#[test]
fn a_release_that_fails_changes_nothing_of_what_is_known() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    let once = |name: &str| redlock.once_per(name, TTL, PERIOD, |_| Ok::<_, Error>(7));
    assert_eq!(once("nightly").unwrap(), Some(7));
    // No script can delete a lock.
    servers[0].command(&["ACL", "SETUSER", "default", "-del"]);
    assert_eq!(once("nightly").unwrap(), None);
    assert!(servers[0].exists("nightly"), "it was not released");
    assert_eq!(once("weekly").unwrap(), Some(7));
    assert!(servers[0].exists("weekly"), "it was not released");
    assert!(redlock.last_run("weekly").unwrap().is_some());
}

#[test]
fn a_ttl_longer_than_the_period_is_refused_before_the_work() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    // The two are swapped.
    let once = redlock.once_per("nightly", PERIOD, ms(1000), |_| -> Result<(), Error> {
        panic!("it is refused")
    });
    let text = config(once);
    assert!(
        text.contains("the period of 1s is shorter than the ttl"),
        "{text}"
    );
    assert!(!servers[0].exists("nightly"));
    let done = redlock.once_per("nightly", TTL, TTL, |_| Ok::<_, Error>(7));
    assert_eq!(done.unwrap(), Some(7));
}

#[test]
fn a_late_holder_marks_nothing_and_other_data_is_left_alone() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    let lock = redlock.acquire("nightly", TTL).unwrap();
    // Another holder has it by now.
    servers[0].command_table(&[b"SET", b"nightly", &[7; 20], b"PX", b"60000"]);
    assert!(matches!(
        lock.mark_done(PERIOD, Duration::ZERO),
        Err(Error::Lost(_))
    ));
    assert_eq!(mark(&servers[0], "nightly"), None);
    assert_eq!(redlock.last_run("nightly").unwrap(), None);

    let lock = redlock.acquire("other", TTL).unwrap();
    servers[0].command(&["SET", &beside("other", "done"), "data"]);
    let refused = lock
        .mark_done(PERIOD, Duration::ZERO)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("other data"), "{refused}");
    let unread = redlock.last_run("other").unwrap_err().to_string();
    assert!(unread.contains("other data"), "{unread}");
    assert_eq!(mark(&servers[0], "other").as_deref(), Some("data"));

    // Its validity is over, which it finds out without a node.
    let lock = redlock.acquire("short", ms(500)).unwrap();
    eventually("its validity is over", || !lock.is_valid());
    let lost = lock.mark_done(PERIOD, Duration::ZERO);
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    assert_eq!(mark(&servers[0], "short"), None);

    let lock = redlock.acquire("swapped", TTL).unwrap();
    for (period, took) in [(ms(1000), PERIOD), (PERIOD, PERIOD), (ms(0), ms(0))] {
        assert!(config(lock.mark_done(period, took)).contains("nothing is left of the period"));
    }
    assert_eq!(mark(&servers[0], "swapped"), None);

    let permit = redlock.semaphore("pool", 2).unwrap().acquire(TTL).unwrap();
    assert!(config(permit.mark_done(PERIOD, Duration::ZERO)).contains("plain lock"));
}
