//! Refill (R11b), and what else a lost key could be replaced with.

use super::super::table::{Broken, Holds, HoldsSoFar, Row, row};
use super::Extension::{HeldOnly, SetCounts, SetHeals};
use super::Refill::{AfterQuorum, AtOnce};
use super::Restart::{AllHoldOne, Anytime, Calm, OthersCalm, OthersHoldOne};
use super::{Lease, PLAIN, Refill, Skip};

const REFILLS: Lease = Lease {
    attempts: 1,
    extension: HeldOnly,
    extensions: 2,
    refill: AfterQuorum,
    ..PLAIN
};
const SHORT: Lease = Lease {
    ttl: 2,
    extension_ttl: 2,
    ..REFILLS
};
const ORDERED: Lease = Lease {
    ordered: true,
    drops_all: true,
    overlapping: true,
    ..REFILLS
};
const ORDERED_SHORT: Lease = Lease {
    ordered: true,
    drops_all: true,
    overlapping: true,
    ..SHORT
};
const ONE_EXTENDS: Lease = Lease {
    only_first_extends: true,
    ..ORDERED_SHORT
};
const REFILLS_ALL: Lease = Lease {
    refill_all: true,
    refill_with_verdict: true,
    ..ORDERED_SHORT
};
const REVIVAL: Lease = Lease {
    no_revival: true,
    overlap_ignored: true,
    restarts: 2,
    clients: 1,
    extensions: 3,
    ..ORDERED
};
const OVER_OTHERS: Lease = Lease {
    overlap_ignored: true,
    restarts: 2,
    only_first_extends: true,
    ordered: true,
    ..REFILLS
};
const GUARDED: Lease = Lease {
    away: true,
    guards_extensions: true,
    quarantine: 2,
    restarts: 1,
    ..ORDERED_SHORT
};
const RESTARTS_SHORT: Lease = Lease {
    restarts: 1,
    only_first_extends: true,
    ..ORDERED_SHORT
};
const RESTARTS: Lease = Lease {
    ttl: 3,
    extension_ttl: 3,
    drops_all: false,
    overlapping: false,
    ..RESTARTS_SHORT
};
const ROLLING: Lease = Lease {
    rolling: true,
    ttl: 3,
    extension_ttl: 3,
    ordered: true,
    attempts: 2,
    attempts_others: 2,
    restarts: 3,
    restart: AllHoldOne,
    ..REFILLS
};

pub(super) fn rows() -> Vec<Row> {
    [
        refill(),
        at_once(),
        revival(),
        guarded(),
        unguarded(),
        rolling(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// After the quorum of an extension, as it is built; no restarts.
#[rustfmt::skip] // A row on two lines.
fn refill() -> Vec<Row> {
    vec![
        row("RA.1", Holds(4_955_070), "any order, both clients extend twice, ttl 2",
            SHORT),
        row("RA.1c", Holds(1_617_359), "any order, both clients extend once, ttl 3",
            Lease { extensions: 1, ..REFILLS }),
        row("RA.2", Holds(1_765_552), "ordered with drops, both extend twice, ttl 2; no orphans",
            Lease { no_orphans: true, ..ORDERED_SHORT }),
        row("RA.3", Holds(4_399_203), "ordered, A has 1 attempt and extends twice, B has 2 attempts, ttl 2; no orphans",
            Lease { attempts: 2, attempts_first: 1, no_orphans: true, ..ONE_EXTENDS }),
        row("RA.3b", Holds(10_636_054), "ordered, A has 2 attempts with 2 extensions each, B 1 attempt, ttl 2",
            Lease { attempts: 2, attempts_others: 1, ..ONE_EXTENDS }),
        row("RA.3c", HoldsSoFar(28_000_000), "any order, A has 1 attempt and extends twice, B has 2 attempts, ttl 2",
            Lease { attempts: 2, attempts_first: 1, only_first_extends: true, ..SHORT }),
        row("RA.3d", Holds(26_485_008), "ordered, A has 1 attempt and extends once, B has 3 attempts, ttl 2, refills with the verdict",
            Lease { attempts: 3, attempts_first: 1, extensions: 1, refill_with_verdict: true, ..ONE_EXTENDS }),
        row("RA.4", Broken(14, 66_930), "a refill sent after the release: an orphan",
            Lease { no_orphans: true, refill_after_release: true, extensions: 1, ..ONE_EXTENDS }),
        row("RA.4b", Holds(295_911), "a refill sent after the release, ordered: mutual exclusion alone holds",
            Lease { refill_after_release: true, extensions: 1, ..ORDERED_SHORT }),
        row("RA.4c", Broken(4, 49), "a release may overtake the refill (against R7): an orphan",
            Lease { no_orphans: true, extensions: 1, clients: 1, ordered: false, releases_seen_only: false, ..SHORT }),
        row("RA.5", Broken(17, 708_677), "no old deadline (against R10)",
            Lease { old_deadline: false, extensions: 1, ..REFILLS }),
        row("RA.5b", Broken(16, 350_684), "ordered, no old deadline (against R10)",
            Lease { old_deadline: false, ..ORDERED_SHORT }),
        row("RA.6", Holds(1_010_683), "the ttl of a refill is what is left of the validity; ordered, ttl 3",
            Lease { refill_for_rest: true, only_first_extends: true, ..ORDERED }),
        row("RA.7", Holds(6_988_360), "refills only of nodes that granted at the acquire, ordered, ttl 2",
            Lease { refill_seen_only: true, ..ORDERED_SHORT }),
        row("RA.8", Holds(675_038), "drift: a node fast by 1, a client slow by 1, allowance 2, ttl 4, any order",
            Lease { ttl: 4, extension_ttl: 4, drift: 2, node_fast: 1, client_slow: 1, extensions: 1, only_first_extends: true, ..REFILLS }),
        row("RA.9", Holds(3_042_325), "ttls differ (A 2, B 4), both extend once, ordered",
            Lease { ttl_others: 4, extensions: 1, ..ORDERED_SHORT }),
        row("RA.9b", Holds(804_223), "extension longer than the acquire (2, then 4), once, ordered",
            Lease { extension_ttl: 4, extensions: 1, ..ORDERED_SHORT }),
        row("RA.9c", Holds(3_054_507), "extension shorter than the acquire (4, then 2), never shortens, once, ordered",
            Lease { ttl: 4, extension_ttl: 2, lowers_first: false, extensions: 1, ..ORDERED_SHORT }),
        row("RA.10", Holds(8_971_705), "3 clients, A extends once, ttl 2, ordered",
            Lease { clients: 3, extensions: 1, refill_with_verdict: true, ..ONE_EXTENDS }),
        row("RA.11", Holds(2_313_318), "5 nodes, A extends once, ttl 2, ordered, refills with the verdict",
            Lease { nodes: 5, quorum: 3, extensions: 1, refill_with_verdict: true, overlapping: false, drops_all: false, ..ONE_EXTENDS }),
        row("RA.12", Holds(437_819), "4 nodes and a quorum of 3, A extends once, ttl 2, ordered",
            Lease { nodes: 4, quorum: 3, extensions: 1, overlapping: false, ..ONE_EXTENDS }),
        row("RA.13", Holds(75_898), "2 nodes, both extend twice, ttl 3, ordered",
            Lease { nodes: 2, quorum: 2, ..ORDERED }),
        row("RA.14", Broken(17, 168_492), "no release to a node that denied the acquire, though it was refilled since",
            Lease { skip: Skip::Denied, no_orphans: true, extensions: 1, ..ONE_EXTENDS }),
        row("RA.14b", Holds(169_888), "no release to a node that denied the acquire, unless it was sent a refill since",
            Lease { skip: Skip::DeniedNotRefilled, no_orphans: true, extensions: 1, ..ONE_EXTENDS }),
        row("RA.15", Holds(9_005_010), "refill of all nodes with the verdict, both extend twice, ttl 2, ordered; no orphans",
            Lease { no_orphans: true, ..REFILLS_ALL }),
        row("RA.15b", HoldsSoFar(12_000_000), "as RA.15, 1 restart, the guard",
            Lease { away: true, guards_extensions: true, quarantine: 2, restarts: 1, ..REFILLS_ALL }),
        row("RA.15c", Holds(10_273_398), "refill of all nodes with the verdict, any order, both extend once, ttl 3",
            Lease { refill_all: true, refill_with_verdict: true, extensions: 1, ..REFILLS }),
        row("RA.15e", HoldsSoFar(100_000), "refill of all nodes with the verdict: as RC.1",
            Lease { refill_all: true, refill_with_verdict: true, no_revival: true, overlap_ignored: true, restarts: 2, clients: 1, extensions: 3, ..ORDERED }),
    ]
}

/// Without waiting for the quorum, or by the extension itself; no restarts.
#[rustfmt::skip] // A row on two lines.
fn at_once() -> Vec<Row> {
    vec![
        row("RB.1", Holds(8_577_399), "refill on each `gone`, which counts; no restarts, ordered, ttl 2",
            Lease { refill: AtOnce, refill_counts: true, ..ORDERED_SHORT }),
        row("RB.2", Holds(4_902_679), "refill on each `gone`, which does not count; no restarts, ordered, ttl 2",
            Lease { refill: AtOnce, ..ORDERED_SHORT }),
        row("RB.3", Holds(2_034_408), "the extension itself sets lost keys, which counts; no restarts, ordered, ttl 2",
            Lease { extension: SetCounts, refill: Refill::Never, ..ORDERED_SHORT }),
        row("RB.4", Holds(2_076_497), "the extension itself sets lost keys, which does not count; no restarts, ordered, ttl 2",
            Lease { extension: SetHeals, refill: Refill::Never, ..ORDERED_SHORT }),
        row("RB.3o", Holds(190_919), "the extension itself sets lost keys, which counts; ordered: no orphans",
            Lease { extension: SetCounts, refill: Refill::Never, no_orphans: true, extensions: 1, ..ORDERED_SHORT }),
    ]
}

/// Whether a lock without a majority of keys comes back; restarts without the guard.
#[rustfmt::skip] // A row on two lines.
fn revival() -> Vec<Row> {
    vec![
        row("RC.0", Holds(42_512), "no refill: a lock that has fewer than q keys, none under way, is not extended again",
            Lease { refill: Refill::Never, ..REVIVAL }),
        row("RC.1", Holds(57_632), "refill after the quorum (R11b): such a lock is not extended again",
            REVIVAL),
        row("RC.2", Broken(15, 57_907), "refill on each `gone`, which counts: such a lock comes back",
            Lease { refill: AtOnce, refill_counts: true, ..REVIVAL }),
        row("RC.3", Broken(16, 64_273), "refill on each `gone`, which does not count: such a lock comes back",
            Lease { refill: AtOnce, ..REVIVAL }),
        row("RC.4", Broken(10, 6_894), "the extension itself sets lost keys, which counts: such a lock comes back",
            Lease { extension: SetCounts, refill: Refill::Never, ..REVIVAL }),
        row("RC.5", Broken(14, 39_081), "the extension itself sets lost keys, which does not count: such a lock comes back",
            Lease { extension: SetHeals, refill: Refill::Never, ..REVIVAL }),
        row("RC.10", Broken(13, 466_726), "no refill, no guard, 2 restarts: an extension begun after another client held is confirmed",
            Lease { refill: Refill::Never, ..OVER_OTHERS }),
        row("RC.11", Broken(13, 641_276), "the same with refill after the quorum",
            OVER_OTHERS),
        row("RC.12", Broken(13, 723_926), "the same with refill on each `gone`, which counts",
            Lease { refill: AtOnce, refill_counts: true, ..OVER_OTHERS }),
        row("RC.13", Broken(13, 746_013), "the same where the extension itself sets lost keys, which does not count",
            Lease { extension: SetHeals, refill: Refill::Never, ..OVER_OTHERS }),
    ]
}

/// With the guard.
#[rustfmt::skip] // A row on two lines.
fn guarded() -> Vec<Row> {
    vec![
        row("RG.1", Holds(4_868_402), "the guard, Q = ttl 2, 1 restart, both extend twice, ordered",
            GUARDED),
        row("RG.1b", Holds(2_696_449), "the guard, Q = ttl 3, 1 restart, A extends twice, ordered",
            Lease { ttl: 3, extension_ttl: 3, quarantine: 3, only_first_extends: true, ..GUARDED }),
        row("RG.2", Holds(1_225_492), "the guard, Q = ttl 2, 2 restarts, A extends twice, ordered",
            Lease { restarts: 2, only_first_extends: true, ..GUARDED }),
        row("RG.2b", Holds(1_515_234), "the guard, Q = ttl 2, 3 restarts, A extends three times, ordered, no drops",
            Lease { restarts: 3, extensions: 3, drops_all: false, overlapping: false, only_first_extends: true, ..GUARDED }),
        row("RG.3", Broken(11, 132_062), "the guard, Q = ttl - 1",
            Lease { ttl: 3, extension_ttl: 3, quarantine: 2, only_first_extends: true, ..GUARDED }),
        row("RG.4", Broken(24, 2_588_108), "the guard; a node in quarantine is extended and refilled, and counts the next time (against R16)",
            Lease { ttl: 3, extension_ttl: 3, quarantine: 3, away: false, guards_extensions: false, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
        row("RG.5", Holds(2_999_290), "the guard; a node in quarantine is refilled, too, and gives no vote",
            Lease { ttl: 3, extension_ttl: 3, quarantine: 3, away: false, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
        row("RG.6", Holds(812_160), "the guard, uptime too large by 1, Q = ttl + 1",
            Lease { quarantine: 3, uptime_over: 1, only_first_extends: true, ..GUARDED }),
        row("RG.7", Holds(1_898_486), "the guard, restart empty or with old data, A extends twice",
            Lease { old_data: true, only_first_extends: true, ..GUARDED }),
        row("RG.8", Holds(5_506_272), "the guard, ttls differ (A 2, B 4), Q = 4, both extend once",
            Lease { ttl_others: 4, quarantine: 4, extensions: 1, drops_all: false, ..GUARDED }),
        row("RG.9", Holds(6_683_583), "the guard, A has 1 attempt and extends twice, B has 2 attempts, 1 restart",
            Lease { attempts: 2, attempts_first: 1, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
        row("RG.10", Holds(2_311_409), "refill on each `gone`, which counts; the guard, 2 restarts, A extends twice",
            Lease { refill: AtOnce, refill_counts: true, restarts: 2, only_first_extends: true, ..GUARDED }),
        row("RG.11", Holds(1_407_471), "the extension itself sets lost keys, which counts; the guard, 2 restarts, A extends twice",
            Lease { extension: SetCounts, refill: Refill::Never, restarts: 2, only_first_extends: true, ..GUARDED }),
        row("RG.12", Broken(16, 5_274_031), "the extension itself sets keys in quarantine, which counts (against R16); the guard, 2 restarts",
            Lease { extension: SetCounts, refill: Refill::Never, away: false, guards_extensions: false, restarts: 2, ttl: 3, extension_ttl: 3, quarantine: 3, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
        row("RG.13", Holds(702_538), "the guard, no orphans, 1 restart",
            Lease { no_orphans: true, only_first_extends: true, ..GUARDED }),
        row("RG.9b", Holds(5_540_766), "the guard, A has 2 attempts with 1 extension each, B has 1 attempt, 1 restart",
            Lease { attempts: 2, attempts_others: 1, extensions: 1, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
        row("RG.14", HoldsSoFar(15_000_000), "the guard, 5 nodes, 2 restarts, A extends once, refills with the verdict",
            Lease { nodes: 5, quorum: 3, restarts: 2, extensions: 1, refill_with_verdict: true, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
        row("RG.15", Holds(2_302_738), "refill of all nodes with the verdict, the guard, 2 restarts, A extends twice",
            Lease { refill_all: true, refill_with_verdict: true, restarts: 2, only_first_extends: true, ..GUARDED }),
        row("RG.16", Holds(1_490_111), "the guard, any order, 1 restart, A extends twice",
            Lease { ordered: false, drops_all: false, overlapping: false, only_first_extends: true, ..GUARDED }),
        row("RG.17", Holds(2_776_395), "as RG.5, 2 restarts, ttl 2",
            Lease { away: false, restarts: 2, only_first_extends: true, drops_all: false, overlapping: false, ..GUARDED }),
    ]
}

/// Restarts without the guard.
#[rustfmt::skip] // A row on two lines.
fn unguarded() -> Vec<Row> {
    vec![
        row("RN.0", Broken(9, 39_870), "no refill, no guard, 1 restart at any time",
            Lease { refill: Refill::Never, ..RESTARTS }),
        row("RN.1", Broken(9, 40_921), "no guard, 1 restart at any time",
            RESTARTS),
        row("RN.2", Broken(17, 258_543), "no refill, no guard, 1 restart, only while all nodes hold one token",
            Lease { refill: Refill::Never, restarts: 1, restart: AllHoldOne, ..RESTARTS }),
        row("RN.3", Broken(17, 430_658), "no guard, 1 restart, only while all nodes hold one token",
            Lease { restarts: 1, restart: AllHoldOne, ..RESTARTS }),
        row("RN.8", Holds(248_926), "no refill, no guard, 3 restarts, each when calm: all nodes hold the holder's token, nothing of it is under way",
            Lease { refill: Refill::Never, restarts: 3, restart: Calm, ..RESTARTS }),
        row("RN.9", Holds(693_294), "no guard, 3 restarts, each when calm",
            Lease { restarts: 3, restart: Calm, ..RESTARTS }),
        row("RN.9a", Holds(1_457_032), "refill of all nodes with the verdict, no guard, 3 restarts, each when calm",
            Lease { refill_all: true, refill_with_verdict: true, restarts: 3, restart: Calm, ..RESTARTS }),
        row("RN.9b", Holds(3_443_327), "as RN.9, ttl 2, both extend twice, drops",
            Lease { restarts: 3, restart: Calm, only_first_extends: false, ..RESTARTS_SHORT }),
        row("RN.9c", Holds(8_418_713), "as RN.9, ttl 2, A extends 3 times, B has 2 attempts",
            Lease { restarts: 3, restart: Calm, attempts: 2, attempts_first: 1, extensions: 3, drops_all: false, overlapping: false, ..RESTARTS_SHORT }),
        row("RN.4", Broken(17, 624_480), "no guard, 2 restarts, each while q other nodes hold one token (not all)",
            Lease { restarts: 2, restart: OthersHoldOne, ..RESTARTS }),
        row("RN.4b", Broken(17, 361_449), "no refill, no guard, 2 restarts, each while q other nodes hold one token",
            Lease { refill: Refill::Never, restarts: 2, restart: OthersHoldOne, ..RESTARTS }),
        row("RN.5", Broken(17, 640_207), "no guard, 2 restarts, each while q other nodes hold one token, at least ttl apart",
            Lease { restarts: 2, restart: OthersHoldOne, gap: 3, ..RESTARTS }),
        row("RN.6", Holds(452_548), "the extension itself sets lost keys, which counts; no guard, 3 restarts, each when calm",
            Lease { extension: SetCounts, refill: Refill::Never, restarts: 3, restart: Calm, ..RESTARTS }),
        row("RN.7", Holds(2_664_885), "5 nodes, no guard, 2 restarts, each when calm",
            Lease { nodes: 5, quorum: 3, restarts: 2, restart: Calm, extensions: 1, refill_with_verdict: true, ttl: 2, extension_ttl: 2, ..RESTARTS }),
        row("RN.10", Holds(344_417), "no refill, no guard, 3 restarts, each while q others hold the holder's token and nothing of it is under way",
            Lease { refill: Refill::Never, restarts: 3, restart: OthersCalm, ..RESTARTS }),
        row("RN.11", Holds(871_252), "as RN.10 with refill, 2 restarts",
            Lease { restarts: 2, restart: OthersCalm, ..RESTARTS }),
        row("RN.12", Holds(875_717), "as RN.10 with refill, restarts at least ttl apart",
            Lease { restarts: 3, restart: OthersCalm, gap: 3, ..RESTARTS }),
        row("RN.13", Holds(894_374), "as RN.10 with refill, 2 restarts at least ttl - 1 apart",
            Lease { restarts: 2, restart: OthersCalm, gap: 2, ..RESTARTS }),
        row("RN.14", Holds(318_689), "as RN.10, 2 restarts, but a SET may reach the restarted node over a new connection",
            Lease { refill: Refill::Never, restarts: 2, restart: OthersCalm, restart_breaks: false, ..RESTARTS }),
        row("RN.15", Broken(18, 588_938), "as RN.14 with refill",
            Lease { restarts: 2, restart: OthersCalm, restart_breaks: false, ..RESTARTS }),
        row("RN.16", Holds(990_641), "as RN.14 with refill, 3 restarts at least ttl apart",
            Lease { restarts: 3, restart: OthersCalm, gap: 3, restart_breaks: false, ..RESTARTS }),
        row("RN.17", Holds(742_591), "as RN.14 with refill, 3 restarts, each when calm",
            Lease { restarts: 3, restart: Calm, restart_breaks: false, ..RESTARTS }),
    ]
}

/// Rolling restarts: the holder keeps its lock.
#[rustfmt::skip] // A row on two lines.
fn rolling() -> Vec<Row> {
    vec![
        row("RL.1", Broken(30, 68), "no refill, no guard: restarts ttl + 1 ticks apart, no other client asks",
            Lease { refill: Refill::Never, restart: Anytime, gap: 4, attempts_others: 0, ..ROLLING }),
        row("RL.1b", Broken(30, 4_257), "no refill, the guard: restarts Q + 1 ticks apart",
            Lease { refill: Refill::Never, restart: Anytime, gap: 4, quarantine: 3, away: true, guards_extensions: true, ..ROLLING }),
        row("RL.2", Holds(20_491), "no guard: each restart when the node before was refilled, B asks twice: A keeps its lock",
            ROLLING),
        row("RL.2t", Holds(175), "no guard: restarts 2 ticks apart, no other client asks",
            Lease { restart: Anytime, gap: 2, attempts_others: 0, ..ROLLING }),
        row("RL.2w", Broken(26, 16_941), "a witness for RL.2: all nodes have restarted and hold the key",
            Lease { witness: true, ..ROLLING }),
        row("RL.3", Holds(15_690), "the guard with Q = ttl: as RL.2",
            Lease { quarantine: 3, away: true, guards_extensions: true, ..ROLLING }),
        row("RL.3w", Broken(61, 13_059), "a witness for RL.3",
            Lease { quarantine: 3, away: true, guards_extensions: true, witness: true, ..ROLLING }),
        row("RL.4", Holds(172), "the guard: restarts Q + 2 ticks apart, no other client asks",
            Lease { quarantine: 3, away: true, guards_extensions: true, restart: Anytime, gap: 5, attempts_others: 0, ..ROLLING }),
        row("RL.4x", Broken(27, 87), "the guard: restarts only Q ticks apart, no other client asks",
            Lease { quarantine: 3, away: true, guards_extensions: true, restart: Anytime, gap: 3, attempts_others: 0, ..ROLLING }),
        row("RL.5", Broken(51, 8_288), "the guard, B asks twice: restarts Q + 2 ticks apart, without a look at the keys",
            Lease { quarantine: 3, away: true, guards_extensions: true, restart: Anytime, gap: 5, ..ROLLING }),
        row("RL.6", Holds(19_855), "no guard; A was granted by q of 3 nodes only; each restart when all hold",
            Lease { held_at_first: 2, ..ROLLING }),
        row("RL.6x", Broken(5, 332), "no refill, no guard; A was granted by q of 3 nodes only; one node restarts",
            Lease { held_at_first: 2, refill: Refill::Never, restarts: 1, restart: Anytime, ..ROLLING }),
        row("RL.7", Holds(454_411), "5 nodes, no guard: as RL.2",
            Lease { nodes: 5, quorum: 3, restarts: 5, ..ROLLING }),
        row("RL.7w", Broken(49, 417_674), "a witness for RL.7",
            Lease { nodes: 5, quorum: 3, restarts: 5, witness: true, ..ROLLING }),
        row("RL.9", Holds(30_396), "refill of all nodes with the verdict, the guard: as RL.3",
            Lease { refill_all: true, refill_with_verdict: true, quarantine: 3, away: true, guards_extensions: true, ..ROLLING }),
        row("RL.10", Holds(543), "5 nodes, the guard: restarts Q ticks apart, so that two may be away at once; no other client asks",
            Lease { nodes: 5, quorum: 3, restarts: 5, quarantine: 3, away: true, guards_extensions: true, restart: Anytime, gap: 3, attempts_others: 0, ..ROLLING }),
        row("RL.8", Holds(21_705), "the extension itself sets lost keys, which counts; no guard: as RL.2",
            Lease { extension: SetCounts, refill: Refill::Never, ..ROLLING }),
    ]
}
