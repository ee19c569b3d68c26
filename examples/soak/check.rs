//! What the soak test finds in its records: pure, without a clock and without I/O.
//!
//! # When a holder believes
//!
//! All times are of one monotonic clock that all processes of the machine share. A *look* reads the
//! clock at `at` and then asks the lock what `remaining()` is; from that the holder knows that it
//! may believe until `at + remaining`. The true deadline is never earlier than that, since the
//! clock was read first. A holder believes in the union of
//!
//! - `[at, until]` for each look, cut off at the next look, which knows better;
//! - cut off where the holder gives the lock up: `end`, read *before* `release` or `drop` is called;
//! - not cut off where the lock is leaked, or where the process is killed before it wrote `end`:
//!   no release is sent then, so no other client may have the lock before its deadline.
//!
//! The first look is made after the acquire returned. So each span lies within the time in which the
//! library vouches for the lock: two that overlap are an error of the library, never of the
//! measurement. What is missed at the edges is the time between a clock reading and the line of code
//! after it.
//!
//! A record is written before what it announces is done, so that a `kill -9` loses none that counts.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A wall clock that is being slewed makes a lock end earlier than the monotonic clock alone says.
const SLEW: Duration = Duration::from_millis(2);

/// A line in a thread's record. A thread holds one lock at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Acquired, with the first look.
    Take {
        resource: String,
        token: String,
        at: Duration,
        until: Duration,
    },
    Look {
        at: Duration,
        until: Duration,
    },
    /// About to release or drop.
    End {
        at: Duration,
    },
    /// About to give it up without a release.
    Leak,
    /// `extend` or `release` has said at this time that the lock is lost.
    Lost {
        at: Duration,
    },
    /// The bytes that the process has allocated, and in how many allocations.
    Live([u64; 2]),
    /// Something to count.
    Note(String),
    /// Something that must not happen.
    Wrong(String),
}

impl Record {
    pub(crate) fn line(&self) -> String {
        let n = Duration::as_nanos;
        match self {
            Record::Take {
                resource,
                token,
                at,
                until,
            } => format!("take {resource} {token} {} {}\n", n(at), n(until)),
            Record::Look { at, until } => format!("look {} {}\n", n(at), n(until)),
            Record::End { at } => format!("end {}\n", n(at)),
            Record::Leak => "leak\n".to_owned(),
            Record::Lost { at } => format!("lost {}\n", n(at)),
            Record::Live([bytes, count]) => format!("live {bytes} {count}\n"),
            Record::Note(what) => format!("note {what}\n"),
            Record::Wrong(what) => format!("wrong {}\n", what.replace('\n', " ")),
        }
    }

    pub(crate) fn parse(line: &str) -> Option<Record> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = std::cell::RefCell::new(rest.split(' '));
        let word = || words.borrow_mut().next();
        let time = || Some(Duration::from_nanos(word()?.parse().ok()?));
        Some(match kind {
            "take" => Record::Take {
                resource: word()?.to_owned(),
                token: word()?.to_owned(),
                at: time()?,
                until: time()?,
            },
            "look" => Record::Look {
                at: time()?,
                until: time()?,
            },
            "end" => Record::End { at: time()? },
            "leak" => Record::Leak,
            "lost" => Record::Lost { at: time()? },
            "live" => Record::Live([word()?.parse().ok()?, word()?.parse().ok()?]),
            "note" => Record::Note(rest.to_owned()),
            "wrong" => Record::Wrong(rest.to_owned()),
            _ => return None,
        })
    }
}

/// A time in which a holder believes without a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) resource: String,
    /// Process, thread and number of the acquisition.
    pub(crate) holder: String,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// What all records say.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) spans: Vec<Span>,
    /// When something was acquired, by thread.
    pub(crate) taken: BTreeMap<String, Vec<Duration>>,
    /// The tokens of all locks, and when their release was called.
    pub(crate) ended: HashMap<String, Option<Duration>>,
    /// What each process had allocated, by thread.
    pub(crate) live: BTreeMap<String, Vec<[u64; 2]>>,
    pub(crate) notes: BTreeMap<String, u64>,
    /// Locks that were valid until their deadline, and were said to be lost before.
    pub(crate) lost_early: Vec<String>,
    pub(crate) wrong: Vec<String>,
}

/// The records of one thread, as they come.
#[derive(Debug)]
pub(crate) struct Thread {
    name: String,
    taken: u64,
    /// Where its belief has no break so far.
    open: Option<Span>,
    /// Of its last lock.
    token: String,
    /// What it last knew of its deadline, also when it has given the lock up.
    until: Duration,
    /// A line that is not complete yet.
    rest: String,
}

impl Thread {
    pub(crate) fn new(name: impl Into<String>) -> Thread {
        Thread {
            name: name.into(),
            taken: 0,
            open: None,
            token: String::new(),
            until: Duration::ZERO,
            rest: String::new(),
        }
    }

    /// Takes the lines in, as far as they are complete.
    pub(crate) fn feed(&mut self, text: &str, findings: &mut Findings) {
        self.rest.push_str(text);
        let whole = self.rest.rfind('\n').map_or(0, |last| last + 1);
        let rest = self.rest.split_off(whole);
        for line in std::mem::replace(&mut self.rest, rest).lines() {
            match Record::parse(line) {
                Some(record) => self.record(record, findings),
                None => findings
                    .wrong
                    .push(format!("{}: not a record: {line}", self.name)),
            }
        }
    }

    fn record(&mut self, record: Record, findings: &mut Findings) {
        match record {
            Record::Take {
                resource,
                token,
                at,
                until,
            } => {
                findings.ended.insert(token.clone(), None);
                self.token = token;
                self.close(findings);
                self.taken += 1;
                self.until = until;
                self.open = Some(Span {
                    resource,
                    holder: format!("{} #{}", self.name, self.taken),
                    from: at,
                    to: until,
                });
                let taken = findings.taken.entry(self.name.clone());
                taken.or_default().push(at);
            }
            Record::Look { at, until } => {
                self.until = until;
                if let Some(open) = &mut self.open {
                    if at > open.to {
                        // It was over before this look.
                        findings.spans.push(open.clone());
                        open.from = at;
                    }
                    open.to = until;
                }
            }
            Record::End { at } => {
                findings.ended.insert(self.token.clone(), Some(at));
                if let Some(open) = &mut self.open {
                    open.to = open.to.min(at);
                }
                self.close(findings);
            }
            Record::Leak => self.close(findings),
            Record::Lost { at } => {
                if at + SLEW < self.until {
                    let left = self.until - at;
                    findings.lost_early.push(format!(
                        "{} #{}: said to be lost with {left:?} left",
                        self.name, self.taken
                    ));
                }
            }
            Record::Live(live) => {
                let all = findings.live.entry(self.name.clone());
                all.or_default().push(live);
            }
            Record::Note(what) => *findings.notes.entry(what).or_default() += 1,
            Record::Wrong(what) => findings.wrong.push(format!("{}: {what}", self.name)),
        }
    }

    /// The end of the records.
    pub(crate) fn close(&mut self, findings: &mut Findings) {
        findings.spans.extend(self.open.take());
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) first: Span,
    pub(crate) second: Span,
}

/// Each span that begins before one of another holder on the same resource has ended, with the one
/// of those that ends last. Spans that only touch do not overlap.
pub(crate) fn overlaps(spans: &[Span]) -> Vec<Overlap> {
    let mut sorted: Vec<&Span> = spans.iter().filter(|span| span.from < span.to).collect();
    sorted.sort_by(|a, b| (&a.resource, a.from).cmp(&(&b.resource, b.from)));
    let mut found = Vec::new();
    let mut last: Option<&Span> = None;
    for span in sorted {
        match last {
            Some(before) if before.resource == span.resource => {
                if span.from < before.to && span.holder != before.holder {
                    found.push(Overlap {
                        first: before.clone(),
                        second: span.clone(),
                    });
                }
                if span.to > before.to {
                    last = Some(span);
                }
            }
            _ => last = Some(span),
        }
    }
    found
}

/// A key that was seen on a node again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) token: String,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

/// Whether the key was still there this long after its lock was released, or though it belongs to no
/// lock at all: what a failed attempt has left behind.
pub(crate) fn is_orphan(
    sight: &Sight,
    ended: &HashMap<String, Option<Duration>>,
    patience: Duration,
) -> bool {
    match ended.get(&sight.token) {
        Some(None) => false,
        Some(Some(end)) => sight.last > sight.first.max(*end) + patience,
        None => sight.last > sight.first + patience,
    }
}

/// A time in which a node was not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) node: usize,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// The times between `from` and `to` in which at least `quorum` of the nodes were well.
pub(crate) fn healthy(
    nodes: usize,
    quorum: usize,
    outages: &[Outage],
    from: Duration,
    to: Duration,
) -> Vec<(Duration, Duration)> {
    let mut edges: Vec<Duration> = outages
        .iter()
        .flat_map(|outage| [outage.from, outage.to])
        .filter(|edge| *edge > from && *edge < to)
        .chain([from, to])
        .collect();
    edges.sort();
    edges.dedup();
    let mut windows: Vec<(Duration, Duration)> = Vec::new();
    for pair in edges.windows(2) {
        let &[start, end] = pair else { continue };
        let down = |node: &usize| {
            let hit = |o: &Outage| o.node == *node && o.from <= start && o.to >= end;
            outages.iter().any(hit)
        };
        let well = nodes - (0..nodes).filter(down).count();
        if well < quorum {
            continue;
        }
        match windows.last_mut() {
            Some(window) if window.1 == start => window.1 = end,
            _ => windows.push((start, end)),
        }
    }
    windows
}

/// The times that are in a window of both.
pub(crate) fn both(
    some: &[(Duration, Duration)],
    others: &[(Duration, Duration)],
) -> Vec<(Duration, Duration)> {
    let pairs = some.iter().flat_map(|a| others.iter().map(move |b| (a, b)));
    let common = pairs.map(|(a, b)| (a.0.max(b.0), a.1.min(b.1)));
    common.filter(|(from, to)| from < to).collect()
}

/// The longest time within one of the windows in which nothing was taken, and when it began.
pub(crate) fn longest_without(
    taken: &[Duration],
    windows: &[(Duration, Duration)],
) -> (Duration, Duration) {
    let mut sorted = taken.to_vec();
    sorted.sort();
    let mut longest = (Duration::ZERO, Duration::ZERO);
    for &(from, to) in windows {
        let first = sorted.partition_point(|at| *at <= from);
        let within = sorted.iter().skip(first).take_while(|at| **at < to);
        let mut since = from;
        for at in within.copied().chain([to]) {
            longest = longest.max((at - since, since));
            since = at;
        }
    }
    longest
}
