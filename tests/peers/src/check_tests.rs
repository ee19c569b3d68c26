use super::*;
use crate::history::parse;

fn verdict(text: &str) -> Verdict {
    judge(&parse(text).unwrap())
}

fn kinds(text: &str) -> Vec<Kind> {
    let findings = verdict(text).findings;
    findings.into_iter().map(|finding| finding.kind).collect()
}

/// a gets x at 1000 for 10 s, by its own account for 9.9 s.
const A_HOLDS: &str = "0 a acquire name=x ttl=10000 wait=2000
1100 a reply to=acquire is=ok begin=10 end=1000 left=9900000
";

#[test]
fn two_holders_in_turn_are_well() {
    let text = "500000 a release name=x
500900 a reply to=release is=ok begin=500010 end=500800
501000 b acquire name=x ttl=10000 wait=2000
502000 b reply to=acquire is=ok begin=501010 end=501900 left=9900000
";
    assert_eq!(kinds(&format!("{A_HOLDS}{text}")), []);
}

#[test]
fn a_second_holder_within_the_reported_time_is_an_overlap() {
    let text = "2000000 b acquire name=x ttl=10000 wait=2000
2001000 b reply to=acquire is=ok begin=2000010 end=2000900 left=9900000
";
    let verdict = verdict(&format!("{A_HOLDS}{text}"));
    assert_eq!(verdict.granted, (2, 2));
    let [overlap] = &verdict.findings[..] else {
        panic!("{:?}", verdict.findings);
    };
    assert_eq!(
        (overlap.kind, overlap.size),
        (Kind::Overlap, 9_901_000 - 2_000_900)
    );
}

#[test]
fn without_a_reported_time_the_ttl_counts_from_the_call() {
    let text = |at: u64| {
        format!(
            "0 a acquire name=x ttl=1000\n700100 a reply to=acquire is=ok begin=0 end=700000
{at} b acquire name=x ttl=1000\n{at} b reply to=acquire is=ok begin={at} end={at}\n"
        )
    };
    assert_eq!(kinds(&text(999_000)), [], "within what Redis rounds");
    assert_eq!(kinds(&text(997_000)), [Kind::Overlap]);
}

#[test]
fn belief_ends_with_a_release_a_loss_and_a_kill() {
    let b = "3000000 b acquire name=x ttl=10000
3000100 b reply to=acquire is=ok begin=3000010 end=3000090 left=9900000
";
    for end in [
        "2000000 a release name=x\n",
        "2000000 a extend name=x ttl=10000\n2000100 a reply to=extend is=lost begin=2000010 end=2000090 text=gone\n",
        "2000000 - fault client=a what=killed\n",
        "2000000 a gone name=x end=1999000\n",
    ] {
        assert!(
            !verdict(&format!("{A_HOLDS}{end}{b}")).has(Kind::Overlap),
            "{end}"
        );
    }
    let failed = "2000000 a extend name=x ttl=10000\n2000100 a reply to=extend is=failed begin=2000010 end=2000090 text=no quorum\n";
    let stopped = "2000000 - fault client=a what=stopped\n";
    for no_end in [failed, stopped, ""] {
        assert!(
            verdict(&format!("{A_HOLDS}{no_end}{b}")).has(Kind::Overlap),
            "{no_end}"
        );
    }
}

#[test]
fn an_extension_moves_the_end() {
    let text = "9000000 a extend name=x ttl=10000
9000100 a reply to=extend is=ok begin=9000010 end=9000090 left=9900000
12000000 b acquire name=x ttl=10000
12000100 b reply to=acquire is=ok begin=12000010 end=12000090 left=9900000
";
    assert_eq!(kinds(&format!("{A_HOLDS}{text}")), [Kind::Overlap]);
}

#[test]
fn a_lock_that_renews_itself_ends_when_it_reports_its_loss() {
    let text = |gone: &str| {
        format!(
            "0 a acquire name=x ttl=1000\n10 a reply to=acquire is=ok begin=0 end=9 left=kept\n{gone}
5000000 b acquire name=x ttl=1000\n5000100 b reply to=acquire is=ok begin=5000000 end=5000100\n"
        )
    };
    assert_eq!(kinds(&text("")), [Kind::Overlap]);
    assert_eq!(kinds(&text("4000000 a gone name=x end=4000000")), []);
}

#[test]
fn a_grant_after_the_ttl_is_found_by_itself() {
    let text = |left: &str| {
        format!(
            "0 a acquire name=x ttl=300\n1001000 a reply to=acquire is=ok begin=0 end=1001000 left={left}\n"
        )
    };
    assert_eq!(kinds(&text("18446744073709550615000")), [Kind::GrantedLate]);
    assert_eq!(kinds(&text("250000")), [], "after a wait");
    assert_eq!(kinds(&text("0")), [], "it says that nothing is left");
    let leased = format!("0 a ready wait=- leased=yes\n{}", text("kept"));
    assert_eq!(kinds(&text("kept")), [Kind::GrantedLate]);
    assert_eq!(kinds(&leased), [], "it was renewed meanwhile");
}

const BOTH_READ: &str = "1 a read name=x\n2 b read name=x\n";

fn writes(first: &str, second: &str) -> String {
    format!(
        "{BOTH_READ}10 b write name=x{first}\n11 b reply to=write is=ok begin=10 end=11
20 a write name=x{second}\n21 a reply to=write is=ok begin=20 end=21\n"
    )
}

#[test]
fn a_write_on_top_of_another_loses_it() {
    assert_eq!(kinds(&writes("", "")), [Kind::LostUpdate]);
}

#[test]
fn a_fence_refuses_the_older_token() {
    let refused = verdict(&writes(" fence=8", " fence=7"));
    assert_eq!(refused.refused, 1);
    assert!(refused.has(Kind::LostUpdate) && !refused.has(Kind::LostUpdateFenced));
    let taken = verdict(&writes(" fence=7", " fence=8"));
    assert!(taken.has(Kind::LostUpdateFenced), "{:?}", taken.findings);
}

#[test]
fn a_write_after_a_fresh_read_loses_nothing() {
    let text = "1 a read name=x\n2 a write name=x\n3 a reply to=write is=ok\n4 b read name=x\n5 b write name=x
6 b reply to=write is=ok\n7 b write name=x\n8 b reply to=write is=ok\n";
    assert_eq!(kinds(text), []);
}

#[test]
fn waits_that_end_late_are_measured_by_what_was_promised() {
    let text = |wait: &str, took: u64| {
        format!(
            "0 a ready wait={wait}\n0 a acquire name=x ttl=9000 wait=2000\n1 a reply to=acquire is=busy begin=0 end={took} text=x\n"
        )
    };
    assert_eq!(kinds(&text("given", 2_900_000)), []);
    assert_eq!(kinds(&text("given", 4_100_000)), [Kind::Late]);
    assert_eq!(kinds(&text("600", 2_700_000)), [Kind::Late]);
    assert_eq!(kinds(&text("-", 9_000_000)), []);
}

#[test]
fn a_free_lock_has_to_be_granted_where_that_is_expected() {
    let text = |expect: &str| {
        format!(
            "0 a acquire name=x ttl=9000{expect}\n1 a reply to=acquire is=failed begin=0 end=1 text=refused\n"
        )
    };
    assert_eq!(kinds(&text(" expect=granted")), [Kind::NotGranted]);
    assert_eq!(kinds(&text("")), []);
    let held = "1 b acquire name=x ttl=1\n1 b reply to=acquire is=ok begin=0 end=0 left=kept\n";
    let busy = "2 a acquire name=x ttl=9000 expect=granted\n3 a reply to=acquire is=busy begin=2 end=3 text=x\n";
    assert_eq!(kinds(&format!("{held}{busy}")), []);
    assert_eq!(verdict(&text("")).said, ["acquire: failed: refused"]);
}

#[test]
fn keys_are_left_unless_they_are_held_or_documented() {
    let left = |at: u64, rest: &str| format!("{A_HOLDS}{at} - key node=0 {rest}\n");
    assert_eq!(kinds(&left(2_000_000, "key=lock:x pttl=8000")), [], "held");
    assert_eq!(
        kinds(&left(20_000_000, "key=lock:x pttl=8000")),
        [Kind::KeyLeft]
    );
    assert_eq!(
        kinds(&left(20_000_000, "key=x pttl=-1")),
        [Kind::KeyForever]
    );
    let documented = format!(
        "0 a ready wait=given keeps=:fence,:w\n{}",
        left(20_000_000, "key=x:fence pttl=8000")
    );
    assert_eq!(kinds(&documented), []);
}

#[test]
fn a_loss_that_was_none_is_early() {
    let lost = "2000000 a check name=x\n2000100 a reply to=check is=lost begin=2000010 end=2000090 text=expired\n";
    assert_eq!(kinds(&format!("{A_HOLDS}{lost}")), [Kind::LostEarly]);
    let flushed = "1500000 - fault node=0 what=flushed data=lost\n";
    assert_eq!(kinds(&format!("{A_HOLDS}{flushed}{lost}")), []);
}

#[test]
fn an_extension_after_the_end_beside_another_holder_is_vouched_for_falsely() {
    let text = "11000000 b acquire name=x ttl=10000
11000100 b reply to=acquire is=ok begin=11000010 end=11000090 left=9900000
12000000 a extend name=x ttl=10000
12000100 a reply to=extend is=ok begin=12000010 end=12000090 left=9900000
";
    let kinds = kinds(&format!("{A_HOLDS}{text}"));
    assert!(kinds.contains(&Kind::Vouched), "{kinds:?}");
}

#[test]
fn hangs_and_deaths_are_found() {
    assert_eq!(
        kinds("0 a acquire name=x ttl=1\n9 a hung to=acquire\n"),
        [Kind::Hung]
    );
    assert_eq!(
        kinds("0 a acquire name=x ttl=1\n9 a died to=acquire\n"),
        [Kind::Died]
    );
}

#[test]
fn what_a_killed_client_leaves_is_not_held_against_its_library() {
    let hung = "0 a acquire name=x ttl=9000\n9 a hung to=acquire\n";
    let after = "10 b acquire name=x ttl=9000 expect=granted\n11 b reply to=acquire is=busy begin=10 end=11 text=x
12 - key node=0 key=x pttl=8000\n";
    assert_eq!(kinds(&format!("{hung}{after}")), [Kind::Hung]);
}
