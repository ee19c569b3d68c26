//! `redlock list`: the locks on the nodes, and what is wrong with them.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use redlock_sync::command::{escaped, held_for, kind, list as all, printable};
use redlock_sync::{Holder, ListedLock, Listing, Problem, Redlock};
use serde_json::{Value, json};

use crate::arguments::{LimitArgs, List};
use crate::explain::by_flag;
use crate::output::progress;
use crate::print::{print, print_json};
use crate::tables::{held, labels, milliseconds, table, time};
use crate::time::Time;
use crate::{End, FOUND, UNAVAILABLE, failed, report};

/// Progress is shown from this time on.
const LONG: Duration = Duration::from_secs(1);

pub(crate) fn list(arguments: &List, redlock: &Redlock) -> End {
    let pattern = arguments.pattern.as_ref();
    let pattern = pattern.map(|pattern| pattern.as_encoded_bytes());
    let mut shown = Progress::new();
    let listing = all(redlock, pattern, |keys| shown.show(keys));
    shown.end();
    let listing = match listing {
        Ok(listing) => listing,
        Err(error) => return failed(&error),
    };
    for error in listing.failed() {
        let (node, address, cause) = (error.node(), error.address(), error.cause());
        report(format_args!("node {node} ({address}): {cause}"));
    }
    let locks: Vec<ListRow<'_>> = listing
        .locks()
        .map(|lock| ListRow::new(lock, &arguments.limits))
        .filter(|row| !arguments.stuck || !row.problems.is_empty())
        .collect();
    let code = match (listing.has_majority(), arguments.stuck && !locks.is_empty()) {
        (false, _) => {
            report(format_args!("too few nodes answered"));
            UNAVAILABLE
        }
        (true, true) => FOUND,
        (true, false) => 0,
    };
    let end = match arguments.json {
        true => print_json(to_json(&locks, &listing), code),
        false => print(to_text(&locks, &listing).as_bytes(), code),
    };
    if locks.is_empty()
        && let Some(hint) = arguments.pattern.as_deref().and_then(by_flag)
    {
        report(format_args!("PATTERN is for keys: {hint}"));
    }
    let problems = locks.iter().filter(|row| !row.problems.is_empty());
    let behind = match listing.prefix() {
        "" => String::new(),
        prefix => format!(" behind the prefix {prefix}"),
    };
    report(format_args!(
        "{} listed{behind}, {} with a problem; {} keys looked at on {} of {} nodes",
        locks.len(),
        problems.count(),
        listing.key_count(),
        listing.node_count() - listing.failed().count(),
        listing.node_count(),
    ));
    end
}

/// A lock as it is shown.
struct ListRow<'a> {
    lock: &'a ListedLock,
    problems: Vec<String>,
}

impl<'a> ListRow<'a> {
    /// A lock that is beyond one of the limits is a problem.
    fn new(lock: &'a ListedLock, limits: &LimitArgs) -> ListRow<'a> {
        let longest = lock.nodes().filter_map(|(_, left)| left).max();
        let held = lock.holder().and_then(held_for);
        let beyond = |limit: &Option<Time>, time: Option<Duration>| {
            limit.is_some_and(|limit| time > Some(limit.0))
        };
        let mut problems: Vec<String> = lock.problem().iter().map(Problem::to_string).collect();
        for (is_problem, word) in [
            (beyond(&limits.older, held), "old"),
            (beyond(&limits.waited, lock.longest_wait()), "waited"),
            (beyond(&limits.remaining, longest), "long"),
        ] {
            problems.extend(is_problem.then(|| word.to_owned()));
        }
        ListRow { lock, problems }
    }
}

fn to_text(rows: &[ListRow<'_>], listing: &Listing) -> String {
    let head = [
        "NAME",
        "NODES",
        "REMAINING",
        "HELD",
        "WAITING",
        "PROBLEM",
        "HOLDER",
    ];
    let head = head.map(str::to_owned);
    let row = |row: &ListRow<'_>| {
        let holder = row.lock.holder().map(Holder::to_string);
        [
            escaped(row.lock.name()),
            format!("{}/{}", row.lock.nodes().count(), listing.node_count()),
            time(row.lock.remaining()),
            row.lock.holder().map_or("-".into(), held),
            waiting(row.lock),
            match &*row.problems.join(",") {
                "" => "-".into(),
                problems => problems.to_owned(),
            },
            printable(&holder.unwrap_or_default()),
        ]
    };
    let rows: Vec<_> = [head].into_iter().chain(rows.iter().map(row)).collect();
    table(&rows)
}

/// How many processes wait, and the first labels.
fn waiting(lock: &ListedLock) -> String {
    let Some(count) = lock.waiting() else {
        return "-".into();
    };
    match &*labels(count, lock.waiting_labels()) {
        "" => count.to_string(),
        labels => format!("{count} ({labels})"),
    }
}

fn to_json(rows: &[ListRow<'_>], listing: &Listing) -> Value {
    let row = |row: &ListRow<'_>| {
        let holder = row.lock.holder();
        json!({
            "name": escaped(row.lock.name()),
            "fingerprint": holder.map(|holder| holder.fingerprint().to_string()),
            "label": holder.and_then(Holder::label),
            "kind": holder.map(kind),
            "slot": holder.and_then(Holder::slot),
            "on": row.lock.nodes().count(),
            "of": listing.node_count(),
            "remaining_ms": milliseconds(row.lock.remaining()),
            "held_s": holder.and_then(held_for).map(|time| time.as_secs()),
            "has_left": holder.map(Holder::has_left),
            "waiting": row.lock.waiting(),
            "waiting_labels": row.lock.waiting().map(|_| row.lock.waiting_labels().collect::<Vec<_>>()),
            "longest_wait_s": row.lock.longest_wait().map(|time| time.as_secs()),
            "problems": row.problems,
        })
    };
    let failed = listing.failed().map(|error| {
        let (address, cause) = (
            printable(error.address()),
            printable(&error.cause().to_string()),
        );
        json!({ "node": error.node(), "address": address, "error": cause })
    });
    json!({
        "prefix": listing.prefix(),
        "locks": rows.iter().map(row).collect::<Value>(),
        "failed": failed.collect::<Value>(),
    })
}

/// The number of keys looked at so far, shown on a terminal.
struct Progress {
    begun: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            begun: Instant::now(),
            shown: None,
            is_terminal: stderr().is_terminal(),
        }
    }

    fn show(&mut self, keys: usize) {
        let is_due = match self.shown {
            None => self.begun.elapsed() > LONG,
            Some(shown) => shown.elapsed() > LONG / 4,
        };
        if self.is_terminal && is_due {
            self.shown = Some(Instant::now());
            progress(&format!("{keys} keys looked at so far"));
        }
    }

    /// Clears the line for the next output.
    fn end(&self) {
        if self.shown.is_some() {
            progress("");
        }
    }
}
