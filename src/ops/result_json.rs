//! Results, as the JSON of the command and of the C interface.

use std::time::Duration;

use crate::ops::holder::Holder;
use crate::ops::inspect::Inspection;
use crate::ops::json::Json;
use crate::ops::literal::{escaped, printable};
use crate::ops::report::{NodeFacts, Report};
use crate::ops::result_words::{LOCK, Seen, held_for};
use crate::ops::rules::finding::Finding;
use crate::ops::state::NodeState;
use crate::values::clock::millis;

/// The state of a lock, or what one node reports.
fn fields_of(seen: &Seen<'_>) -> Vec<(&'static str, Json)> {
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
    let only = seen.holders.first().filter(|_| seen.kind == Some(LOCK));
    let fingerprint = only.map(|(holder, _)| holder.fingerprint().to_string());
    let label = only.and_then(|(holder, _)| holder.label());
    let held = only.and_then(|(holder, _)| held_for(holder));
    let has_left = only.map(|(holder, _)| holder.has_left());
    vec![
        ("state", seen.word.into()),
        ("kind", seen.kind.into()),
        ("fingerprint", fingerprint.into()),
        ("label", label.into()),
        ("remaining_ms", seen.remaining.flatten().map(millis).into()),
        ("held_s", held.map(|time| time.as_secs()).into()),
        ("has_left", has_left.map_or(Json::Null, Json::from)),
        ("holders", seen.holders.iter().map(holder).collect()),
    ]
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
        fields.extend(fields_of(&seen));
        fields.push(("clock_offset_ms", found.clock_offset_ms(node).into()));
        fields.push(("error", seen.error.into()));
        Json::Object(fields)
    };
    let mut fields = vec![("name", escaped(name).into())];
    fields.extend(fields_of(&Seen::of_lock(&found.state())));
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
