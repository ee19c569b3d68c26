//! Items for the command `redlock` that are not in the public interface. They may change in any version.

use std::time::Duration;

use crate::errors::text;
pub use crate::ops::literal::{escaped, printable};
pub use crate::ops::once_per::{PATIENCE, last_run, mark_patiently, may_pass_soon, patiently};
pub use crate::ops::result_words::{LOCK, PERMITS, READERS, Seen, held_for, kind};
use crate::ops::{list, result_json};
use crate::protocol::commands::kind::MAX_PERMITS as MOST;
pub use crate::settings::environment::{DEFAULT_FILE, Environment, NODES, NODES_FILE};
pub use crate::settings::nodes_file::LONGEST_FILE;
pub use crate::settings::time::{LONGEST_TIME, parse_time, parse_timeout};
use crate::values::label::Label;
use crate::{Error, Finding, Holder, Inspection, Listing, Lock, Lockable, NodeErrors};
use crate::{Redlock, Report};

/// The longest label, in bytes.
pub const MAX_LABEL: usize = Label::MAX;

/// The most permits of a semaphore.
pub const MAX_PERMITS: u16 = MOST;

/// Like [`Redlock::list`]. `progress` is called with the number of keys looked at so far.
///
/// # Errors
///
/// The errors of [`Redlock::list`].
pub fn list(
    redlock: &Redlock,
    pattern: Option<&[u8]>,
    mut progress: impl FnMut(usize),
) -> Result<Listing, Error> {
    list::list(redlock, pattern, &mut progress)
}

/// This report for `redlock doctor --max-ttl`. Programs need no more than [`NodeFacts::uptime`](crate::NodeFacts::uptime).
pub fn for_ttls_up_to(report: Report, max_ttl: Duration) -> Report {
    report.for_ttls_up_to(max_ttl)
}

/// Like [`Redlock::acquire_while`], but for no longer than `wait`.
///
/// # Errors
///
/// The errors of [`Redlock::acquire_within`] and [`Redlock::acquire_while`].
pub fn acquire(
    redlock: &Redlock,
    name: &[u8],
    ttl: Duration,
    wait: Duration,
    mut keep_trying: impl FnMut() -> bool,
) -> Result<Lock, Error> {
    redlock.acquire_asking(name, ttl, wait, Some(&mut keep_trying))
}

/// Like [`Lockable::acquire_while`], but for no longer than `wait`.
///
/// # Errors
///
/// The errors of [`Lockable::acquire_within`] and [`Lockable::acquire_while`].
pub fn acquire_of_kind(
    lockable: &Lockable,
    ttl: Duration,
    wait: Duration,
    mut keep_trying: impl FnMut() -> bool,
) -> Result<Lock, Error> {
    lockable.acquire_asking(ttl, wait, Some(&mut keep_trying))
}

/// Waits, but for no longer than `time`, until others can take the locks on this name that this program has given up, whose
/// release had this error: a node that denied it may be another holder's, and is none of their majority. Returns whether
/// they can. A release is sent again meanwhile to a node that was away, or has refused it for now. If a majority needs
/// nodes that are away, those have the time of one try to connect. `go_on` is called every 10 ms or so, and ends the wait
/// by returning false.
pub fn wait_released(
    redlock: &Redlock,
    (name, failed): (&[u8], &NodeErrors),
    time: Duration,
    mut go_on: impl FnMut() -> bool,
) -> bool {
    redlock.wait_owed(name, failed.denied(), time, &mut go_on)
}

/// Closes the connections for good, as the last drop does, but waits up to `time` for nodes that were connected and that a
/// release was confirmed without. If two holders, one after the other, each left their lock on one of three nodes, there
/// would be no majority for a third. (Not in a Redis Cluster.)
pub fn close_within(redlock: &Redlock, time: Duration) {
    redlock.close_within(time);
}

/// The longest ttl for which no failover makes two holders, where a set or a Redis Cluster is among the nodes and no
/// [restart guard](crate::Options::restart_guard) is set.
pub fn assumed_ttl(redlock: &Redlock) -> Option<Duration> {
    redlock.executor().assumed_ttl()
}

/// Whether it may help to wait for nodes that have failed.
pub fn may_pass(nodes: &NodeErrors) -> bool {
    nodes.may_pass()
}

/// The holder as it is shown, without the status behind it: whether it has left the lock.
pub fn identity(holder: &Holder) -> String {
    holder.identity().to_string()
}

/// A time, rounded for people.
pub fn human(time: Duration) -> String {
    text::human(time)
}

/// Whether a node may have left out permits or readers.
pub fn is_cut(found: &Inspection) -> bool {
    found.is_cut()
}

/// The result of an inspection, as JSON.
pub fn inspection_json(name: &[u8], found: &Inspection) -> String {
    result_json::inspection(name, found).to_string()
}

/// The result of a check, as JSON. `text`: writes a finding.
pub fn report_json(report: &Report, text: impl Fn(&Finding) -> String) -> String {
    result_json::report(report, text).to_string()
}
