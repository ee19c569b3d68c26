//! The record of a soak that runs in pieces: a file with a row a minute, which the next piece goes on with. It stands by itself.
//!
//! A line that begins with `#` is for readers: the columns, how a piece began, and how it ended. Each other line is a [`Row`].

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

/// What grows by more than that during a piece, in percent, is an error.
const MOST_GROWTH: f64 = 1.0;
const COLUMNS: &str = "# piece seconds acquired overlaps keys memory/kB threads descriptors; faults since the row before";

/// What the soak has seen since the piece began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) acquired: usize,
    pub(crate) overlaps: usize,
    /// Keys of locks, on the nodes that answer now.
    pub(crate) keys: usize,
    pub(crate) faults: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) piece: u64,
    /// Of this piece and all before, as are the next two.
    pub(crate) seconds: u64,
    pub(crate) acquired: u64,
    pub(crate) overlaps: u64,
    pub(crate) keys: u64,
    /// Of the process that lives for the whole piece.
    pub(crate) usage: Usage,
    pub(crate) faults: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// In kB.
    pub(crate) memory: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: u64,
}

impl Usage {
    fn of(process: u32) -> Result<Usage, Error> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let number = |name| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            let value = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
            value.ok_or_else(|| Error::other(format!("process {process} has no {name}")))
        };
        Ok(Usage {
            memory: number("VmRSS:")?,
            threads: number("Threads:")?,
            descriptors: std::fs::read_dir(format!("/proc/{process}/fd"))?.count() as u64,
        })
    }
}

impl Row {
    fn line(&self) -> String {
        let Usage {
            memory,
            threads,
            descriptors,
        } = self.usage;
        let numbers = [
            self.piece,
            self.seconds,
            self.acquired,
            self.overlaps,
            self.keys,
            memory,
            threads,
            descriptors,
        ];
        let numbers = numbers.map(|number| number.to_string()).join(" ");
        format!("{numbers}; {}\n", self.faults)
    }

    pub(crate) fn parse(line: &str) -> Option<Row> {
        let (numbers, faults) = line.split_once("; ")?;
        let numbers: Result<Vec<u64>, _> = numbers.split(' ').map(str::parse).collect();
        let [
            piece,
            seconds,
            acquired,
            overlaps,
            keys,
            memory,
            threads,
            descriptors,
        ] = numbers.ok()?.try_into().ok()?;
        Some(Row {
            piece,
            seconds,
            acquired,
            overlaps,
            keys,
            usage: Usage {
                memory,
                threads,
                descriptors,
            },
            faults: faults.to_owned(),
        })
    }
}

pub(crate) struct Record {
    file: File,
    /// The row that the pieces before ended with.
    before: Row,
    began: Duration,
    every: Duration,
    next: Duration,
    /// As they were at the last row.
    faults: BTreeMap<String, u64>,
    rows: Vec<Row>,
}

impl Record {
    /// Begins a piece, with a description of it.
    pub(crate) fn open(
        path: &Path,
        now: Duration,
        every: Duration,
        piece: &str,
    ) -> Result<Record, Error> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        let old = std::fs::read_to_string(path)?;
        let mut before = Row::default();
        for line in old.lines().filter(|line| !line.starts_with('#')) {
            let no_row = || Error::new(ErrorKind::InvalidData, format!("not a row: {line}"));
            before = Row::parse(line).ok_or_else(no_row)?;
        }
        if old.is_empty() {
            writeln!(file, "{COLUMNS}")?;
        }
        writeln!(file, "# piece {}: {piece}", before.piece + 1)?;
        Ok(Record {
            file,
            before,
            began: now,
            every,
            next: now + every,
            faults: BTreeMap::new(),
            rows: Vec::new(),
        })
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// `process`: the one that lives for the whole piece.
    pub(crate) fn add(&mut self, now: Duration, process: u32, seen: Seen) -> Result<(), Error> {
        self.next = now + self.every;
        let lately = seen.faults.iter().filter_map(|(what, count)| {
            let count = count - self.faults.get(what).unwrap_or(&0);
            (count > 0).then(|| format!("{what} {count}"))
        });
        let row = Row {
            piece: self.before.piece + 1,
            seconds: self.before.seconds + (now - self.began).as_secs(),
            acquired: self.before.acquired + seen.acquired as u64,
            overlaps: self.before.overlaps + seen.overlaps as u64,
            keys: seen.keys as u64,
            usage: Usage::of(process)?,
            faults: lately.collect::<Vec<_>>().join(", "),
        };
        self.faults = seen.faults;
        self.file.write_all(row.line().as_bytes())?;
        self.rows.push(row);
        Ok(())
    }

    /// What has grown too much, in words; `violations` were found otherwise.
    pub(crate) fn end(mut self, violations: usize) -> Result<Vec<String>, Error> {
        let growth = growth(&self.rows);
        let texts: Vec<String> = growth.iter().map(Growth::text).collect();
        let texts = match texts.is_empty() {
            true => "too short for growth".to_owned(),
            false => texts.join(", "),
        };
        println!("growth       {texts}");
        let piece = self.before.piece + 1;
        writeln!(
            self.file,
            "# piece {piece} has ended: {texts}; {violations} other violations"
        )?;
        let grown = growth.iter().filter(|growth| growth.is_too_much());
        Ok(grown
            .map(|growth| format!("growth: {}", growth.text()))
            .collect())
    }
}

/// The medians of a piece's second tenth and of its last one: in the first it warms up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) what: &'static str,
    pub(crate) early: u64,
    pub(crate) late: u64,
}

impl Growth {
    pub(crate) fn percent(&self) -> f64 {
        100.0 * (self.late as f64 / self.early as f64 - 1.0)
    }

    fn text(&self) -> String {
        format!(
            "{} {} to {} ({:+.1} %)",
            self.what,
            self.early,
            self.late,
            self.percent()
        )
    }

    /// The number of threads goes up and down by one.
    pub(crate) fn is_too_much(&self) -> bool {
        self.percent() > MOST_GROWTH && self.late > self.early + 1
    }
}

/// Of memory, threads and descriptors; of nothing, if a tenth of the rows is less than three.
pub(crate) fn growth(rows: &[Row]) -> Vec<Growth> {
    let tenth = rows.len() / 10;
    if tenth < 3 {
        return Vec::new();
    }
    let (early, late) = (&rows[tenth..2 * tenth], &rows[rows.len() - tenth..]);
    let median = |rows: &[Row], of: fn(&Usage) -> u64| {
        let mut all: Vec<u64> = rows.iter().map(|row| of(&row.usage)).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let grown = |what, of| Growth {
        what,
        early: median(early, of),
        late: median(late, of),
    };
    vec![
        grown("memory/kB", |usage| usage.memory),
        grown("threads", |usage| usage.threads),
        grown("descriptors", |usage| usage.descriptors),
    ]
}
