//! Results, in the words and the JSON of the command and of the C interface.

use std::time::Duration;

use crate::errors::node_errors::NodeErrors;
use crate::ops::holder::Holder;
use crate::ops::inspect::Inspection;
use crate::ops::json::Json;
use crate::ops::literal::{escaped, printable};
use crate::ops::report::{NodeFacts, Report};
use crate::ops::rules::finding::Finding;
use crate::ops::state::{LockState, NodeState};
use crate::values::clock::{self, millis};

/// The kind of a lock that one holder has.
pub const LOCK: &str = "lock";
/// The kind of read locks.
pub const READERS: &str = "readers";
/// The kind of permits.
pub const PERMITS: &str = "permits";

/// The kind of lock that a holder has.
pub fn kind(holder: &Holder) -> &'static str {
    match (holder.slot(), holder.is_reader()) {
        (Some(_), _) => PERMITS,
        (None, true) => READERS,
        (None, false) => LOCK,
    }
}

/// How long a holder has had its lock, in whole seconds. `None` also if it has left it.
pub fn held_for(holder: &Holder) -> Option<Duration> {
    let since = holder.since().filter(|_| !holder.has_left())?;
    let held = clock::wall().duration_since(since);
    Some(Duration::from_secs(held.unwrap_or_default().as_secs()))
}

/// The state of a lock, or what one node reports.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The state, in a word.
    pub word: &'static str,
    /// The kind of lock that is held.
    pub kind: Option<&'static str>,
    /// The holders, and how long each has it.
    pub holders: Vec<(&'a Holder, Option<Duration>)>,
    /// How long until the state ends; the inner `None`: forever. The outer `None`: there is nothing that could end.
    pub remaining: Option<Option<Duration>>,
    /// Why a node has failed.
    pub error: Option<String>,
}

impl<'a> Seen<'a> {
    fn new(word: &'static str, remaining: Option<Option<Duration>>) -> Seen<'a> {
        Seen {
            word,
            kind: None,
            holders: Vec::new(),
            remaining,
            error: None,
        }
    }

    fn held(
        kind: &'static str,
        holders: impl Iterator<Item = (&'a Holder, Option<Duration>)>,
    ) -> Seen<'a> {
        let holders: Vec<_> = holders.collect();
        let times = holders
            .iter()
            .map(|(_, left)| left.unwrap_or(Duration::MAX));
        let last = times.max().filter(|last| *last != Duration::MAX);
        Seen {
            kind: Some(kind),
            holders,
            ..Seen::new("held", Some(last))
        }
    }

    /// The state of a lock on all nodes together.
    pub fn of_lock(state: &'a LockState) -> Seen<'a> {
        match state {
            LockState::Held { .. } => Seen::held(LOCK, state.holders()),
            LockState::Readers { .. } => Seen::held(READERS, state.holders()),
            LockState::Permits { .. } => Seen::held(PERMITS, state.holders()),
            LockState::Free => Seen::new("free", None),
            LockState::Blocked { remaining } => Seen::new("blocked", Some(*remaining)),
            LockState::Unknown => Seen::new("unknown", None),
        }
    }

    /// The state of a lock on one node.
    pub fn of_node(state: &'a NodeState) -> Seen<'a> {
        match state {
            NodeState::Held { .. } => Seen::held(LOCK, state.holders()),
            NodeState::Readers { .. } => Seen::held(READERS, state.holders()),
            NodeState::Permits { .. } => Seen::held(PERMITS, state.holders()),
            NodeState::Free => Seen::new("free", None),
            NodeState::Foreign { remaining } => Seen::new("foreign", Some(*remaining)),
            NodeState::Failed(errors) => Seen {
                error: Some(cause(errors)),
                ..Seen::new("failed", None)
            },
        }
    }

    fn fields(&self) -> Vec<(&'static str, Json)> {
        let holder = |(holder, left): &(&Holder, Option<Duration>)| {
            Json::Object(vec![
                ("fingerprint", holder.fingerprint().to_string().into()),
                ("label", holder.label().into()),
                ("slot", holder.slot().into()),
                ("remaining_ms", left.map(millis).into()),
                ("held_s", held_for(holder).map(|time| time.as_secs()).into()),
                ("has_left", holder.has_left().into()),
            ])
        };
        let only = self.holders.first().filter(|_| self.kind == Some(LOCK));
        let fingerprint = only.map(|(holder, _)| holder.fingerprint().to_string());
        let label = only.and_then(|(holder, _)| holder.label());
        let held = only.and_then(|(holder, _)| held_for(holder));
        let has_left = only.map(|(holder, _)| holder.has_left());
        vec![
            ("state", self.word.into()),
            ("kind", self.kind.into()),
            ("fingerprint", fingerprint.into()),
            ("label", label.into()),
            ("remaining_ms", self.remaining.flatten().map(millis).into()),
            ("held_s", held.map(|time| time.as_secs()).into()),
            ("has_left", has_left.map_or(Json::Null, Json::from)),
            ("holders", self.holders.iter().map(holder).collect()),
        ]
    }
}

/// The cause without the address, which is shown beside it.
fn cause(errors: &NodeErrors) -> String {
    let causes: Vec<String> = errors.iter().map(|error| error.cause.to_string()).collect();
    printable(&causes.join("; "))
}

fn number(number: usize) -> Json {
    u64::try_from(number).unwrap_or(u64::MAX).into()
}

/// A lock, and the answer of each node about it.
pub(crate) fn inspection(name: &[u8], found: &Inspection) -> Json {
    let node = |(node, address, state): (usize, &str, &NodeState)| {
        let seen = Seen::of_node(state);
        let mut fields = vec![
            ("node", number(node)),
            ("address", printable(address).into()),
        ];
        fields.extend(seen.fields());
        fields.push(("clock_offset_ms", found.clock_offset_ms(node).into()));
        fields.push(("error", seen.error.into()));
        Json::Object(fields)
    };
    let mut fields = vec![("name", escaped(name).into())];
    fields.extend(Seen::of_lock(&found.state()).fields());
    fields.push(("waiting", found.waiting().map(number).unwrap_or(Json::Null)));
    fields.push(("waiting_labels", waiting_labels(found)));
    let longest = found.longest_wait().map(|time| time.as_secs());
    fields.push(("longest_wait_s", longest.into()));
    fields.push(("nodes", found.nodes().map(node).collect()));
    Json::Object(fields)
}

fn waiting_labels(found: &Inspection) -> Json {
    match found.waiting() {
        Some(_) => found.waiting_labels().map(Json::from).collect(),
        None => Json::Null,
    }
}

/// The result of a check. `text`: writes a finding.
pub(crate) fn report(report: &Report, text: impl Fn(&Finding) -> String) -> Json {
    let finding = |finding: &Finding| {
        Json::Object(vec![
            ("severity", finding.severity().to_string().into()),
            ("code", finding.code().into()),
            ("node", finding.node().map(number).unwrap_or(Json::Null)),
            ("text", printable(&text(finding)).into()),
        ])
    };
    let node = |(node, facts): (usize, &NodeFacts)| {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let uptime = facts.uptime().map(|time| time.as_secs());
        Json::Object(vec![
            ("node", number(node)),
            ("address", printable(facts.address()).into()),
            ("version", facts.version().map(printable).into()),
            ("role", facts.role().into()),
            ("uptime_s", uptime.into()),
            ("round_trip_us", facts.round_trip().map(micros).into()),
            ("clock_offset_ms", facts.clock_offset_ms().into()),
        ])
    };
    Json::Object(vec![
        ("checked", report.is_checked().into()),
        ("fit", report.is_fit().into()),
        ("findings", report.findings().map(finding).collect()),
        ("nodes", report.nodes().enumerate().map(node).collect()),
    ])
}
