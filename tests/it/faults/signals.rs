//! A process that gets a thousand signals a second, with handlers that do not restart system calls,
//! loses no vote and waits no longer.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use support::relay::Relay;
use support::*;

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts the calling thread all the time while `work` runs.
fn interrupted<T>(work: impl FnOnce() -> T) -> T {
    for signal in [libc::SIGALRM, libc::SIGPROF] {
        // SAFETY: the handler only adds to an atomic; no SA_RESTART.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
    // SAFETY: plain system call.
    let target = unsafe { libc::pthread_self() };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for signal in [libc::SIGALRM, libc::SIGPROF] {
                    // SAFETY: the thread is alive: it waits for this one at the end of the scope.
                    unsafe { libc::pthread_kill(target, signal) };
                }
                std::thread::sleep(ms(1));
            }
        });
        let _over = OnDrop(&over);
        work()
    })
}

#[test]
fn a_thousand_signals_a_second_lose_no_vote() {
    let name = "a_thousand_signals_a_second_lose_no_vote";
    in_own_process(name, || {
        for count in [1, 3] {
            let servers = Server::several(count);
            let relays: Vec<Relay> = servers
                .iter()
                .map(|server| Relay::to(server.port()))
                .collect();
            let redlock = redlock_sync::Redlock::new(relays.iter().map(Relay::url)).unwrap();
            let redlock = redlock.with_options(options()).unwrap();
            take(&redlock, "warm").release().unwrap();
            eventually("all are connected", || {
                servers.iter().all(|server| server.clients() == 1)
            });
            let made = |server: &Server| -> usize {
                let text = server.info("stats", "total_connections_received");
                text.parse().unwrap()
            };
            let before: Vec<usize> = servers.iter().map(made).collect();
            for relay in &relays {
                relay.set(|policy| policy.down.delay = ms(5));
            }
            let handled = HANDLED.load(Ordering::Relaxed);
            interrupted(|| {
                for _ in 0..100 {
                    let mut lock = take(&redlock, "a");
                    lock.extend(2 * TTL).unwrap();
                    lock.release().unwrap();
                }
            });
            assert!(HANDLED.load(Ordering::Relaxed) - handled > 300);
            // No connection was given up for another; each look at the numbers was one more itself.
            for (server, before) in servers.iter().zip(before) {
                assert!(made(server) <= before + 3, "node was reconnected");
                assert!(server.keys().is_empty());
            }
        }
    });
}

/// A write that blocks is interrupted too, and must not begin its time anew.
#[test]
fn signals_make_no_blocked_write_longer() {
    let name = "signals_make_no_blocked_write_longer";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = redlock(&servers);
        take(&redlock, "warm").release().unwrap();
        eventually("all are connected", || {
            servers.iter().all(|server| server.clients() == 1)
        });
        servers[0].stop();
        let name = |i: usize| format!("{i:_>65000}");
        interrupted(|| {
            // Until the stopped node's buffers are full, or it is away.
            for i in 0..150 {
                let started = Instant::now();
                let lock = redlock.try_acquire(name(i), TTL).unwrap();
                lock.expect("the lock is free").release().unwrap();
                let took = started.elapsed();
                assert!(took < 3 * NODE_TIMEOUT, "round {i} took {took:?}");
            }
        });
        servers[0].resume();
        eventually("it votes again", || {
            let lock = take(&redlock, "again");
            let voted = servers[0].exists("again");
            lock.release().unwrap();
            voted
        });
    });
}
