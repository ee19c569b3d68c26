//! The record of `examples/soak.rs`: it goes on where the piece before ended, and shows what grows.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

#[path = "../../../examples/soak/record.rs"]
mod record;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::support::TempDir;
use record::{Growth, Record, Row, Seen, Usage};

const S: Duration = Duration::from_secs(1);

fn piece(path: &Path, began: Duration) -> Record {
    Record::open(path, began, 60 * S, "a piece").unwrap()
}

/// With one kind of fault, which was made so many times.
fn seen(acquired: usize, overlaps: usize, cuts: u64) -> Seen {
    Seen {
        acquired,
        live: vec![[90, 2], [70, 4], [80, 1]],
        overlaps,
        keys: 7,
        faults: BTreeMap::from([("cut".to_owned(), cuts)]),
    }
}

#[test]
fn a_piece_goes_on_where_the_one_before_ended() {
    let dir = TempDir::new();
    let path = dir.path().join("record");
    let process = std::process::id();
    let mut first = piece(&path, 1000 * S);
    assert!(!first.is_due(1059 * S));
    assert!(first.is_due(1060 * S));
    first.add(1060 * S, process, seen(50, 0, 3)).unwrap();
    assert!(!first.is_due(1119 * S));
    first.add(1120 * S, process, seen(90, 1, 5)).unwrap();
    assert_eq!(first.end(0).unwrap(), Vec::<String>::new());
    // Of another boot: its clock begins anew.
    let mut second = piece(&path, 20 * S);
    second.add(80 * S, process, seen(10, 0, 0)).unwrap();
    drop(second);

    let text = std::fs::read_to_string(&path).unwrap();
    let row = text.lines().find_map(Row::parse).unwrap();
    assert_eq!((row.usage.live, row.usage.allocations), (80, 2));
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<(&str, &str)> = rows
        .map(|row| {
            let (numbers, faults) = row.split_once("; ").unwrap();
            let usage = numbers.match_indices(' ').nth(4).unwrap().0;
            (&numbers[..usage], faults)
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("1 60 50 0 7", "cut 3"),
            ("1 120 90 1 7", "cut 2"),
            ("2 180 100 1 7", "")
        ],
    );
    let remarks: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(
        remarks[1..],
        [
            "# piece 1: a piece",
            "# piece 1 has ended: too short for growth; 0 other violations",
            "# piece 2: a piece"
        ],
    );
}

#[test]
fn a_file_that_is_no_record_is_refused() {
    let dir = TempDir::new();
    let path = dir.path().join("record");
    std::fs::write(&path, "# columns\n1 60 50 0 7 5000 8\n").unwrap();
    let error = Record::open(&path, S, S, "a piece").map(drop).unwrap_err();
    assert_eq!(error.to_string(), "not a row: 1 60 50 0 7 5000 8");
}

/// A piece of a hundred rows, in which the memory that the kernel counts grows.
fn grown(live: fn(u64) -> u64, threads: fn(u64) -> u64) -> Vec<&'static str> {
    let row = |at| Row {
        usage: Usage {
            memory: 5000 + 100 * at,
            threads: threads(at),
            descriptors: 14,
            live: live(at),
            allocations: 100,
        },
        ..Row::default()
    };
    let rows: Vec<Row> = (0..100).map(row).collect();
    let all = record::growth(&rows);
    let too_much = all.iter().filter(|growth| growth.is_too_much());
    too_much.map(|growth| growth.what).collect()
}

#[test]
fn what_grows_behind_the_warming_up_is_found() {
    // Buffers grow at first, and a little now and then.
    assert!(grown(|at| 5000 + at.min(10) * 100 + 20 * (at % 3), |_| 8).is_empty());
    assert!(grown(|at| 5000 + 5 * at, |_| 8).is_empty());
    assert_eq!(grown(|at| 5000 + 10 * at, |_| 8), ["live/B"]);
    // A thread for each lock that is kept, of which there is mostly one.
    assert!(grown(|_| 5000, |at| 8 + (at + at / 90) % 2).is_empty());
    assert_eq!(grown(|_| 5000, |at| 8 + at / 40), ["threads"]);
}

#[test]
fn growth_is_of_the_last_tenth_over_the_second() {
    let row = |memory| Row {
        usage: Usage {
            memory,
            threads: 1,
            ..Usage::default()
        },
        ..Row::default()
    };
    let rows: Vec<Row> = (0..30).map(row).collect();
    let of_memory = Growth {
        what: "memory/kB",
        early: 4,
        late: 28,
    };
    // Records of 2026-11-26 have no live bytes.
    let found: Vec<&str> = record::growth(&rows).iter().map(|one| one.what).collect();
    assert_eq!(found, ["memory/kB", "threads"]);
    assert_eq!(record::growth(&rows)[0], of_memory);
    assert!(record::growth(&rows[1..]).is_empty());
}

/// A row of the guide's table: the whole of a record.
fn summary(record: &str) -> String {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let rows: Vec<Row> = record.lines().filter_map(Row::parse).collect();
    let end = rows.last().unwrap();
    let counts = rows
        .iter()
        .flat_map(|row| row.faults.split_terminator(", "));
    let faults: u64 = counts
        .map(|one| number(one.rsplit(' ').next().unwrap()))
        .sum();
    let piece = record
        .lines()
        .find_map(|line| line.strip_prefix("# piece 1: "));
    let ends = record
        .lines()
        .filter_map(|line| line.strip_suffix(" other violations"));
    let violations: Vec<u64> = ends
        .map(|end| number(end.rsplit(' ').next().unwrap()))
        .collect();
    assert_eq!(violations.len() as u64, end.piece, "a piece has not ended");
    let grown = |what: &str| {
        let pieces = rows.chunk_by(|one, next| one.piece == next.piece);
        let all = pieces
            .flat_map(record::growth)
            .filter(|growth| growth.what == what);
        let most = all.map(|growth| growth.percent()).reduce(f64::max);
        most.map_or_else(|| "–".to_owned(), |most| format!("{most:+.1} %"))
    };
    format!(
        "| {} | {:.1} in {} | {} | {faults} | {} | {} | {} | {} | {} | {} |\n",
        piece.unwrap().split(',').next().unwrap(),
        end.seconds as f64 / 3600.0,
        end.piece,
        end.acquired,
        end.overlaps,
        violations.iter().sum::<u64>(),
        grown("live/B"),
        grown("memory/kB"),
        grown("threads"),
        grown("descriptors"),
    )
}

#[test]
fn the_guide_has_what_the_records_have() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(top.join("src/guide/how_we_know.md")).unwrap();
    let row = |record| {
        let file = top.join(format!("examples/soak/records/{record}.txt"));
        summary(&std::fs::read_to_string(file).unwrap())
    };
    let records = [
        "plain",
        "tls",
        "valkey9",
        "sets",
        "sets_valkey8",
        "clusters",
    ];
    let rows = records.map(row).concat();
    assert!(guide.contains(&rows), "the guide has not\n{rows}");
}
