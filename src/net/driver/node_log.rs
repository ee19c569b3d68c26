//! The log lines of nodes, and the observer's notifications.

use std::sync::Arc;
use std::time::Instant;

use crate::errors::cause::Cause;
use crate::errors::node_errors::NodeError;
use crate::errors::shown::{Shown, Unquoted};
use crate::errors::text::human;
use crate::net::driver::observe::{self, Observer};
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::lock_info::NotALock;
use crate::protocol::node::node_events::NodeEvent;
use crate::protocol::node::notice::Notice;

/// Logs an event. `guarded`: whether a server that may have forgotten locks gives no votes.
pub(super) fn log(node: &str, event: &NodeEvent, guarded: bool) {
    match event {
        NodeEvent::Away(cause) => say!(warn, node = node; "{node} is away: {cause}"),
        NodeEvent::Back(dropped, true) if !guarded => say!(
            warn,
            node = node;
            "{node} is back: restarted or replaced, it may have forgotten locks (see \
             Options::restart_guard){}",
            dropped_suffix(*dropped)
        ),
        NodeEvent::Back(dropped, _) => {
            say!(warn, node = node; "{node} is back{}", dropped_suffix(*dropped))
        }
        NodeEvent::Quarantined(left, false) => say!(
            warn,
            node = node;
            "{node} gives no votes for {}: it was restarted or replaced and may have forgotten locks",
            human(*left)
        ),
        NodeEvent::Quarantined(left, true) => say!(
            warn,
            node = node;
            "{node} gives no votes for {}: it has evicted keys, locks perhaps among them (set maxmemory-policy noeviction)",
            human(*left)
        ),
        NodeEvent::GivesNoVotes(cause) => say!(warn, node = node; "{node} gives no votes: {cause}"),
        NodeEvent::VotesAgain(dropped) => {
            say!(warn, node = node; "{node} gives votes again{}", dropped_suffix(*dropped));
        }
        NodeEvent::Lacks(lack) => log_lack(node, *lack),
        NodeEvent::Notice(resource, notice) => log_notice(node, &Shown(resource), notice),
    }
}

/// Notifies the observer when a node begins to give no votes, and when it gives votes again. `since`: since when it has
/// given none, as the observer was notified.
pub(super) fn notify(
    observer: &Observer,
    (node, address): (usize, &str),
    event: &NodeEvent,
    since: &mut Option<Instant>,
    at: Instant,
) {
    let quarantined;
    let cause = match event {
        NodeEvent::Notice(..) | NodeEvent::Lacks(_) => return,
        NodeEvent::Back(..) | NodeEvent::VotesAgain(_) => None,
        NodeEvent::Away(cause) | NodeEvent::GivesNoVotes(cause) => Some(&**cause),
        NodeEvent::Quarantined(left, evicts) => {
            quarantined = Cause::Quarantined(*left, *evicts);
            Some(&quarantined)
        }
    };
    match (cause, *since) {
        (Some(cause), None) => {
            *since = Some(at);
            let error = NodeError {
                node,
                address: address.into(),
                cause: Arc::new(cause.clone()),
            };
            observer.notify(|| observe::Event::NodeAway { error: &error });
        }
        (None, Some(began)) => {
            *since = None;
            observer.notify(|| observe::Event::NodeBack {
                node,
                address,
                away: at.saturating_duration_since(began),
            });
        }
        // The node is away for another reason now.
        _ => {}
    }
}

fn log_lack(node: &str, lack: Lack) {
    match lack {
        Lack::Scripts => say!(
            info,
            node = node;
            "{node} runs no scripts: it notifies no waiter, keeps no order of arrival, and counts no fencing tokens"
        ),
        Lack::Messages => say!(
            info,
            node = node;
            "{node} sends no messages about releases (PUBLISH, SUBSCRIBE): waiters ask it from time to time"
        ),
        Lack::RunId => say!(
            warn,
            node = node;
            "{node} does not report which server it is (INFO server: run_id): if it is reached under two addresses, that is not \
             noticed"
        ),
        Lack::Fencing => say!(
            warn,
            node = node;
            "{node} counts no fencing tokens: it does not have a command for them, or does not permit it"
        ),
        Lack::Queues => say!(
            info,
            node = node;
            "{node} does not permit the keys beside locks, such as \"{{NAME}}:redlock:w\": it notifies no waiter, and keeps no \
             order of arrival"
        ),
        Lack::Clock => say!(
            info,
            node = node;
            "{node} does not permit TIME: the restart guard does not notice if its clock is set forward"
        ),
        Lack::Guard(needed) => say!(
            warn,
            node = node;
            "{node}: a failover may give a lock to two holders: the restart guard needs {needed}, which this server does \
             not report or permit"
        ),
    }
}

fn log_notice(node: &str, resource: &Shown<'_>, notice: &Notice) {
    match notice {
        Notice::NotReleased(cause) => {
            let needs = match cause.meaning().concerns_rights() {
                true => {
                    "; a user that releases locks needs the commands EVAL, EVALSHA, GET and DEL there, for their keys"
                }
                false => "",
            };
            say!(
                warn,
                node = node, lock:% = Unquoted(resource.0);
                "{node} refuses to release {resource}: {}; the lock ends there with its ttl{needs}",
                cause.without_advice()
            );
        }
        Notice::NoLock(NotALock::OtherType) => say!(
            warn,
            node = node, lock:% = Unquoted(resource.0);
            "{node}: {resource} is no lock, it holds data of another type; it counts as taken until it \
             is deleted (give locks a prefix that no other data has)"
        ),
        Notice::NoLock(NotALock::NoTtl) => say!(
            warn,
            node = node, lock:% = Unquoted(resource.0);
            "{node}: {resource} is no lock, it has no ttl; it counts as taken until it is deleted (give \
             locks a prefix that no other data has)"
        ),
    }
}

/// The end of the log line of a node that is well again.
fn dropped_suffix(dropped: u64) -> String {
    if dropped == 0 {
        return String::new();
    }
    format!(
        "; {dropped} releases were too many to be kept for it: those locks end there with their ttls"
    )
}
