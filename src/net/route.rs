//! Operations that follow their keys, where a node is many servers and each has a part of the keys (rule R45).

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock;
use crate::error::Cause;
use crate::net::driver::Driver;
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::queue::LockInfo;
use crate::protocol::script::{Action, Key, Notify};
use crate::protocol::slots::{Elsewhere, Endpoint};

/// How often an operation is sent on.
const MAX_REDIRECTS: usize = 5;
/// Before it is sent on once more.
const PAUSE: Duration = Duration::from_millis(5);

/// Which servers have a key.
pub(crate) trait Route: Send + Sync + UnwindSafe + RefUnwindSafe {
    fn slot(&self, resource: &[u8]) -> u16;

    /// What leads to the servers that have this slot.
    fn driver(&self, slot: u16) -> Arc<Driver>;

    /// What leads to this server of the node.
    fn driver_to(&self, node: usize, server: &Endpoint) -> Option<Arc<Driver>>;
}

/// What to do after a server has said that another one has the key.
enum Next {
    /// Nothing more.
    End,
    /// The same where the slot is now.
    Again(Op),
    /// The same at a server that does not have the slot yet.
    At(Arc<Driver>, Op),
}

/// Carries out an operation on the servers that have its key.
pub(crate) fn run(route: &Arc<dyn Route>, op: Op) -> Answer {
    let driver = route.driver(route.slot(&op.key.resource));
    let answer = driver.run_here(op.clone());
    follow(route, (driver, op), answer)
}

/// The answer once the operation was sent on to where its key is. `driver`: where it was answered so.
pub(crate) fn follow(
    route: &Arc<dyn Route>,
    (mut driver, mut op): (Arc<Driver>, Op),
    mut answer: Answer,
) -> Answer {
    let slot = route.slot(&op.key.resource);
    let until = clock::instant() + 2 * driver.nodes().node_timeout;
    let enqueues = op.enqueues();
    for redirects in 0..MAX_REDIRECTS {
        let said = said(&driver, slot, &answer);
        if said.is_empty() || clock::instant() >= until {
            break;
        }
        (driver, op) = match next(route, &driver, op.clone(), &said, &answer) {
            Next::Again(op) => (route.driver(slot), op.asking(false)),
            Next::At(driver, op) => (driver, op.asking(true)),
            Next::End => break,
        };
        if redirects > 0 {
            // Until both servers know who has the slot, each may name the other one.
            std::thread::sleep(PAUSE);
        }
        answer = driver.run_here(op.clone());
    }
    if enqueues && !op.enqueues() {
        // It has entered no queue, and knows no holder.
        let refused = answer.tally.refused.len();
        answer.lock_infos.resize_with(refused, LockInfo::default);
    }
    answer
}

/// What its servers have said that do not have the slot. It is known from then on.
fn said(driver: &Driver, slot: u16, answer: &Answer) -> Vec<(usize, Elsewhere)> {
    let places = driver.nodes().places();
    let said = answer.causes.iter().filter_map(|(node, cause)| {
        let Cause::Elsewhere(text) = &**cause else {
            return None;
        };
        Some((*node, places.get(*node)?.elsewhere(slot, text)?))
    });
    said.collect()
}

fn next(
    route: &Arc<dyn Route>,
    driver: &Arc<Driver>,
    op: Op,
    said: &[(usize, Elsewhere)],
    answer: &Answer,
) -> Next {
    let Some((node, elsewhere)) = said.first() else {
        return Next::End;
    };
    let release = op.action.is_release();
    if !matches!(answer.outcome, Outcome::Unavailable { .. }) {
        // The other nodes will do. But no release is left out.
        if release {
            release_later(route, vec![op.key]);
        }
        return Next::End;
    }
    let alone = driver.nodes().places().len() == 1;
    // What other nodes have granted is being undone: the next try has another token (rule R2).
    if op.is_acquire() && !alone {
        return Next::End;
    }
    match elsewhere {
        Elsewhere::Moved(to) => {
            let slot = route.slot(&op.key.resource);
            if Arc::ptr_eq(&route.driver(slot), driver) {
                driver.nodes().leave(*node, to);
            }
            Next::Again(op)
        }
        Elsewhere::Asks(to) if alone => match route.driver_to(*node, to) {
            Some(driver) => Next::At(driver, op),
            None => Next::End,
        },
        // One of the two has the lock's key. The one that has the slot says which: servers before Redis 7 send a command on
        // although they have some of its keys.
        Elsewhere::Torn => with_one_key(op).map_or(Next::End, Next::Again),
        Elsewhere::Asks(_) => Next::End,
    }
}

/// The same with the lock's key alone, which one of the two servers has.
fn with_one_key(op: Op) -> Option<Op> {
    let action = match op.action {
        Action::Release(notify) if notify != Notify::None => Action::Release(Notify::None),
        Action::AcquireOrEnqueue(ttl, _) => Action::Acquire(ttl),
        _ => return None,
    };
    op.key.kind.is_plain().then_some(Op { action, ..op })
}

/// Another thread sends releases on. It ends when they are answered.
pub(crate) fn release_later(route: &Arc<dyn Route>, releases: Vec<Key>) {
    let route = route.clone();
    let thread = std::thread::Builder::new().name("redlock-moved".into());
    // Without a thread the keys end with their ttl.
    let _ = thread.spawn(move || {
        for key in releases {
            drop(run(&route, Op::new(Action::Release(Notify::None), key)));
        }
    });
}

/// The same, unless nothing uses the nodes any more.
pub(crate) fn upgraded(route: Option<&Weak<dyn Route>>) -> Option<Arc<dyn Route>> {
    route.and_then(Weak::upgrade)
}
