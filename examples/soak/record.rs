//! The record of a soak that runs in pieces: a file with a row a minute, which the next piece goes on with. It stands by itself.
//!
//! A line that begins with `#` is for readers: the columns, how a piece began, and how it ended. Each other line is a [`Row`].

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

/// Threads and descriptors that grow by more than that during a piece, in percent, are an error.
const MOST_GROWTH: f64 = 1.0;
/// The same for what is allocated: some hundred allocations, of which buffers grow until they have met the longest answer. A piece has hundreds
/// of faults: if one allocation were kept for each of them, there would be several times as many in the end.
const MOST_LIVE_GROWTH: f64 = 10.0;
/// Not judged: the kernel also counts code that is read when it is first run, and holes between allocations.
const MEMORY: &str = "memory/kB";
const LIVE: &str = "live/B";
const ALLOCATIONS: &str = "allocations";
const COLUMNS: &str = "# piece seconds acquired overlaps keys memory/kB threads descriptors live/B allocations; faults since the row before";

/// What the soak has seen since the piece began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) acquired: usize,
    /// What the process that lives for the whole piece had allocated since the row before: bytes, and in how many allocations.
    pub(crate) live: Vec<[u64; 2]>,
    pub(crate) overlaps: usize,
    /// Keys of locks, on the nodes that answer now.
    pub(crate) keys: usize,
    pub(crate) faults: BTreeMap<String, u64>,
}

/// In records of 2026-11-26, which lack the last two.
const OLD_COLUMNS: usize = 8;

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
    /// The median since the row before, in bytes; and of how many allocations. Zero in records of 2026-11-26.
    pub(crate) live: u64,
    pub(crate) allocations: u64,
}

impl Usage {
    fn of(process: u32, live: &[[u64; 2]]) -> Result<Usage, Error> {
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
            live: median(live, |[bytes, _]| *bytes),
            allocations: median(live, |[_, count]| *count),
        })
    }
}

impl Row {
    fn line(&self) -> String {
        let usage = &self.usage;
        let numbers = [
            self.piece,
            self.seconds,
            self.acquired,
            self.overlaps,
            self.keys,
            usage.memory,
            usage.threads,
            usage.descriptors,
            usage.live,
            usage.allocations,
        ];
        let numbers = numbers.map(|number| number.to_string()).join(" ");
        format!("{numbers}; {}\n", self.faults)
    }

    pub(crate) fn parse(line: &str) -> Option<Row> {
        let (numbers, faults) = line.split_once("; ")?;
        let numbers: Result<Vec<u64>, _> = numbers.split(' ').map(str::parse).collect();
        let mut numbers = numbers.ok()?;
        if numbers.len() == OLD_COLUMNS {
            numbers.extend([0, 0]);
        }
        let [
            piece,
            seconds,
            acquired,
            overlaps,
            keys,
            memory,
            threads,
            descriptors,
            live,
            allocations,
        ] = numbers.try_into().ok()?;
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
                live,
                allocations,
            },
            faults: faults.to_owned(),
        })
    }
}

/// The name of a figure of a row, and the figure.
type Figure = (&'static str, fn(&Row) -> u64);

/// Zero of nothing.
fn median<T>(all: &[T], of: impl Fn(&T) -> u64) -> u64 {
    let mut all: Vec<u64> = all.iter().map(of).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
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
            usage: Usage::of(process, &seen.live)?,
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
        let most = match self.what {
            MEMORY => return false,
            LIVE | ALLOCATIONS => MOST_LIVE_GROWTH,
            _ => MOST_GROWTH,
        };
        self.percent() > most && self.late > self.early + 1
    }
}

/// Of all that is recorded of the process; of nothing, if a tenth of the rows is less than three.
pub(crate) fn growth(rows: &[Row]) -> Vec<Growth> {
    let tenth = rows.len() / 10;
    if tenth < 3 {
        return Vec::new();
    }
    let (early, late) = (&rows[tenth..2 * tenth], &rows[rows.len() - tenth..]);
    let grown = |(what, of): Figure| Growth {
        what,
        early: median(early, of),
        late: median(late, of),
    };
    let all: [Figure; 5] = [
        (MEMORY, |row| row.usage.memory),
        ("threads", |row| row.usage.threads),
        ("descriptors", |row| row.usage.descriptors),
        (LIVE, |row| row.usage.live),
        (ALLOCATIONS, |row| row.usage.allocations),
    ];
    let all = all.map(grown).into_iter();
    all.filter(|growth| growth.early > 0).collect()
}
