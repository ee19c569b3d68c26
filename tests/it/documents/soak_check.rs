//! The checker of `examples/soak.rs`: it finds what is wrong, and only that.

#![allow(clippy::unwrap_used)]

#[path = "../../../examples/soak/check.rs"]
mod check;

use std::time::Duration;

use check::{Findings, Outage, Overlap, Record, Sight, Span, Thread};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn take(at: u64, until: u64) -> Record {
    Record::Take {
        resource: "r".into(),
        token: format!("{at}-{until}"),
        at: ms(at),
        until: ms(until),
    }
}

fn look(at: u64, until: u64) -> Record {
    Record::Look {
        at: ms(at),
        until: ms(until),
    }
}

fn end(at: u64) -> Record {
    Record::End { at: ms(at) }
}

fn lost(at: u64) -> Record {
    Record::Lost { at: ms(at) }
}

/// The findings in the records of threads that end when the records do.
fn findings(threads: &[&[Record]]) -> Findings {
    let mut findings = Findings::default();
    for (number, records) in threads.iter().enumerate() {
        let mut thread = Thread::new(format!("t{number}"));
        for record in *records {
            thread.feed(&record.line(), &mut findings);
        }
        thread.close(&mut findings);
    }
    findings
}

fn spans(records: &[Record]) -> Vec<(u64, u64)> {
    let time = |time: Duration| u64::try_from(time.as_millis()).unwrap();
    let found = findings(&[records]).spans;
    found.iter().map(|s| (time(s.from), time(s.to))).collect()
}

fn overlaps(threads: &[&[Record]]) -> Vec<Overlap> {
    check::overlaps(&findings(threads).spans)
}

#[test]
fn records_survive_writing_and_reading() {
    let records = [
        take(1, 2),
        look(3, 4),
        end(5),
        Record::Leak,
        lost(6),
        Record::Note("a note".into()),
        Record::Wrong("two words".into()),
    ];
    for record in records {
        let line = record.line();
        assert_eq!(
            Record::parse(line.strip_suffix('\n').unwrap()),
            Some(record)
        );
    }
    for line in ["", "take r t 1", "look 1 x", "end", "lost", "what 1"] {
        assert_eq!(Record::parse(line), None, "{line:?}");
    }
}

#[test]
fn belief_ends_when_the_release_is_called() {
    assert_eq!(spans(&[take(10, 100), end(50)]), [(10, 50)]);
}

#[test]
fn belief_ends_at_the_deadline_when_the_release_comes_later() {
    assert_eq!(spans(&[take(10, 100), end(150)]), [(10, 100)]);
}

#[test]
fn belief_of_a_killed_or_leaked_holder_lasts_until_the_deadline() {
    assert_eq!(spans(&[take(10, 100)]), [(10, 100)]);
    assert_eq!(
        spans(&[take(10, 100), Record::Leak, take(20, 30), end(25)]),
        [(10, 100), (20, 25)]
    );
}

#[test]
fn an_extension_prolongs_belief() {
    assert_eq!(
        spans(&[take(10, 100), look(50, 150), end(120)]),
        [(10, 120)]
    );
}

#[test]
fn the_last_look_counts() {
    assert_eq!(spans(&[take(10, 100), look(50, 60)]), [(10, 60)]);
}

#[test]
fn belief_has_a_gap_between_a_deadline_and_a_later_look() {
    assert_eq!(
        spans(&[take(10, 100), look(110, 200), end(150)]),
        [(10, 100), (110, 150)]
    );
    // Nothing was left at that look.
    assert_eq!(
        spans(&[take(10, 100), look(110, 110), end(150)]),
        [(10, 100), (110, 110)]
    );
}

#[test]
fn a_line_torn_by_a_kill_is_ignored_and_one_in_two_pieces_is_not() {
    let mut findings = Findings::default();
    let mut thread = Thread::new("t");
    let line = take(10, 100).line();
    thread.feed(&line[..7], &mut findings);
    assert!(findings.taken.is_empty());
    thread.feed(&line[7..], &mut findings);
    assert_eq!(findings.taken.get("t"), Some(&vec![ms(10)]));
    thread.feed("end 500", &mut findings);
    thread.close(&mut findings);
    assert_eq!(findings.spans.len(), 1);
    assert_eq!(findings.spans[0].to, ms(100));
    assert!(findings.wrong.is_empty());
}

#[test]
fn what_is_not_a_record_is_reported() {
    let mut findings = Findings::default();
    Thread::new("t").feed("nonsense 1\n", &mut findings);
    assert_eq!(findings.wrong.len(), 1);
}

#[test]
fn notes_are_counted_and_wrongs_kept() {
    let note = || Record::Note("busy".into());
    let found = findings(&[&[note(), note()], &[note(), Record::Wrong("odd".into())]]);
    assert_eq!(found.notes.get("busy"), Some(&3));
    assert_eq!(found.wrong, ["t1: odd"]);
}

#[test]
fn a_loss_that_is_announced_before_the_deadline_is_reported() {
    assert_eq!(findings(&[&[take(10, 100), lost(50)]]).lost_early.len(), 1);
    assert_eq!(
        findings(&[&[take(10, 100), end(40), lost(50)]])
            .lost_early
            .len(),
        1
    );
    assert!(
        findings(&[&[take(10, 100), lost(100)]])
            .lost_early
            .is_empty()
    );
    assert!(
        findings(&[&[take(10, 100), end(99), lost(120)]])
            .lost_early
            .is_empty()
    );
}

#[test]
fn beliefs_one_after_the_other_do_not_overlap() {
    let found = overlaps(&[
        &[take(10, 100), end(50), take(80, 100), end(90)],
        &[take(50, 150), end(80), take(90, 120)],
    ]);
    assert_eq!(found, []);
}

#[test]
fn beliefs_that_overlap_by_a_millisecond_are_found() {
    let found = overlaps(&[&[take(10, 100), end(51)], &[take(50, 150), end(80)]]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].first.holder, "t0 #1");
    assert_eq!(found[0].second.holder, "t1 #1");
}

#[test]
fn a_belief_within_a_longer_one_is_found_also_behind_others() {
    let found = overlaps(&[
        &[take(10, 1000)],
        &[take(20, 30), end(25)],
        &[take(900, 950)],
    ]);
    assert_eq!(found.len(), 2);
}

#[test]
fn a_thread_that_takes_what_it_leaked_overlaps_with_itself() {
    let found = overlaps(&[&[take(10, 100), Record::Leak, take(50, 60)]]);
    assert_eq!(found.len(), 1);
}

#[test]
fn a_belief_with_gaps_does_not_overlap_with_itself() {
    let found = overlaps(&[&[take(10, 100), look(110, 200), end(150)]]);
    assert_eq!(found, []);
}

#[test]
fn another_resource_is_another_matter() {
    let span = |resource: &str, holder: &str| Span {
        resource: resource.into(),
        holder: holder.into(),
        from: ms(10),
        to: ms(20),
    };
    assert_eq!(check::overlaps(&[span("a", "1"), span("b", "2")]), []);
    assert_eq!(
        check::overlaps(&[span("a", "1"), span("b", "2"), span("a", "3")]).len(),
        1
    );
}

/// Against a comparison of each with each, on small random cases.
#[test]
fn the_sweep_finds_an_overlap_exactly_where_there_is_one() {
    let mut seed = 7_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let mut with = 0;
    for _ in 0..20_000 {
        let spans: Vec<Span> = (0..=below(4))
            .map(|_| {
                let from = below(12);
                Span {
                    resource: below(2).to_string(),
                    holder: below(4).to_string(),
                    from: ms(from),
                    to: ms(from + below(6)),
                }
            })
            .collect();
        let clash = |a: &Span, b: &Span| {
            a.resource == b.resource && a.holder != b.holder && a.from.max(b.from) < a.to.min(b.to)
        };
        let any = spans.iter().any(|a| spans.iter().any(|b| clash(a, b)));
        with += u32::from(any);
        assert_eq!(!check::overlaps(&spans).is_empty(), any, "{spans:?}");
    }
    assert!((2_000..18_000).contains(&with), "{with}");
}

fn outage(node: usize, from: u64, to: u64) -> Outage {
    Outage {
        node,
        from: ms(from),
        to: ms(to),
    }
}

#[test]
fn a_majority_is_healthy_outside_of_outages_that_coincide() {
    let healthy = |outages: &[Outage]| check::healthy(3, 2, outages, ms(0), ms(100));
    assert_eq!(healthy(&[]), [(ms(0), ms(100))]);
    assert_eq!(healthy(&[outage(0, 10, 90)]), [(ms(0), ms(100))]);
    // Two of the same node are one.
    assert_eq!(
        healthy(&[outage(0, 10, 90), outage(0, 20, 80)]),
        [(ms(0), ms(100))]
    );
    assert_eq!(
        healthy(&[outage(0, 10, 60), outage(1, 40, 90)]),
        [(ms(0), ms(40)), (ms(60), ms(100))]
    );
    assert_eq!(healthy(&[outage(0, 0, 200), outage(2, 0, 100)]), []);
    assert_eq!(
        check::healthy(1, 1, &[outage(0, 10, 20)], ms(0), ms(100)),
        [(ms(0), ms(10)), (ms(20), ms(100))]
    );
}

#[test]
fn the_longest_time_without_an_acquisition_counts_only_healthy_times() {
    let taken = [ms(30), ms(10), ms(95)];
    let longest = |windows: &[(Duration, Duration)]| check::longest_without(&taken, windows);
    assert_eq!(longest(&[(ms(0), ms(100))]), (ms(65), ms(30)));
    assert_eq!(
        longest(&[(ms(0), ms(40)), (ms(80), ms(100))]),
        (ms(20), ms(10))
    );
    assert_eq!(longest(&[(ms(40), ms(90))]), (ms(50), ms(40)));
    assert_eq!(longest(&[]), (ms(0), ms(0)));
}

#[test]
fn what_two_lists_of_windows_have_in_common() {
    let some = [(ms(0), ms(10)), (ms(20), ms(30))];
    let others = [(ms(5), ms(25)), (ms(30), ms(40))];
    assert_eq!(
        check::both(&some, &others),
        [(ms(5), ms(10)), (ms(20), ms(25))]
    );
    assert_eq!(check::both(&some, &[]), []);
}

#[test]
fn a_key_that_outlives_its_release_is_an_orphan() {
    let ended = findings(&[&[
        take(10, 100),
        end(50),
        take(60, 100),
        Record::Leak,
        take(70, 100),
    ]])
    .ended;
    let orphan = |token: &str, first: u64, last: u64| {
        let sight = Sight {
            token: token.into(),
            first: ms(first),
            last: ms(last),
        };
        check::is_orphan(&sight, &ended, ms(20))
    };
    assert!(!orphan("10-100", 10, 70));
    assert!(orphan("10-100", 10, 71));
    assert!(!orphan("10-100", 60, 80));
    assert!(orphan("10-100", 60, 81));
    // Leaked, and of a holder that was killed.
    assert!(!orphan("60-100", 60, 100));
    assert!(!orphan("70-100", 70, 100));
    // Of an attempt that failed.
    assert!(!orphan("other", 10, 30));
    assert!(orphan("other", 10, 31));
}
