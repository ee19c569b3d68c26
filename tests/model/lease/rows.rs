//! Acquire, extend, restart: the rows that the rules R1–R18 come from.

use super::super::table::{Broken, Holds, HoldsSoFar, Row, row};
use super::Extension::{HeldOnly, SetCounts, SetHeals};
use super::{Lease, PLAIN};

const EXTENDS: Lease = Lease {
    attempts: 1,
    extension: HeldOnly,
    extensions: 1,
    ..PLAIN
};
const RESTARTS: Lease = Lease {
    attempts: 1,
    restarts: 1,
    ..PLAIN
};
const AWAY: Lease = Lease {
    away: true,
    guards_extensions: true,
    ..RESTARTS
};

pub(super) fn rows() -> Vec<Row> {
    [acquire(), undo(), extend(), guard(), away()]
        .into_iter()
        .flatten()
        .collect()
}

/// Quorum, validity, tokens (R1–R5, R9).
#[rustfmt::skip] // A row on two lines.
fn acquire() -> Vec<Row> {
    vec![
        row("D1.1", Holds(5_989_319), "3 nodes, A has 2 attempts, B 1, ttl 3, messages in any order",
            Lease { attempts_others: 1, ..PLAIN }),
        row("D1.1b", Holds(3_299_095), "3 nodes, 2 clients with 2 attempts, ttl 2, ordered connection",
            Lease { ordered: true, ttl: 2, ..PLAIN }),
        row("D1.2", Holds(13_288_541), "3 nodes, 3 clients with 1 attempt, ttl 3",
            Lease { clients: 3, attempts: 1, ..PLAIN }),
        row("D1.3", Holds(1_980_997), "5 nodes, 2 clients with 1 attempt, ttl 3",
            Lease { nodes: 5, quorum: 3, attempts: 1, ..PLAIN }),
        row("D1.4", Holds(250_951), "4 nodes and a quorum of 3, 2 clients with 1 attempt",
            Lease { nodes: 4, quorum: 3, attempts: 1, ..PLAIN }),
        row("D1.5", Broken(8, 4_427), "4 nodes and a quorum of 2, which is N/2",
            Lease { nodes: 4, quorum: 2, attempts: 1, ..PLAIN }),
        row("D1.6", Holds(1_255_938), "2 nodes and a quorum of 2",
            Lease { nodes: 2, quorum: 2, ..PLAIN }),
        row("D1.7", Holds(15_618), "1 node, 3 clients with 1 attempt",
            Lease { nodes: 1, quorum: 1, clients: 3, attempts: 1, ..PLAIN }),
        row("D1.8", Broken(11, 20_902), "the validity counts from the decision, not from before the request (against R3)",
            Lease { attempts: 1, counts_from_decision: true, ..PLAIN }),
        row("D1.9", Holds(95_902), "drift: a node fast by 1, a client slow by 1, allowance 2, ttl 5",
            Lease { ttl: 5, extension_ttl: 5, drift: 2, node_fast: 1, client_slow: 1, attempts: 1, ..PLAIN }),
        row("D1.9b", Holds(468_359), "as D1.9 with one extension",
            Lease { ttl: 4, extension_ttl: 4, drift: 2, node_fast: 1, client_slow: 1, attempts: 1, extension: HeldOnly, extensions: 1, ..PLAIN }),
        row("D1.9c", Holds(545_640), "as D1.9, with a restart and the guard; the uptime is reported too large by 1 (a fast clock), Q = ttl + 1",
            Lease { ttl: 4, extension_ttl: 4, drift: 2, node_fast: 1, client_slow: 1, attempts: 1, restarts: 1, quarantine: 5, uptime_over: 1, ..PLAIN }),
        row("D1.10", Broken(12, 58_275), "as D1.9, with an allowance of 1",
            Lease { ttl: 5, extension_ttl: 5, drift: 1, node_fast: 1, client_slow: 1, attempts: 1, ..PLAIN }),
        row("D1.11", Broken(11, 499_283), "one token for all attempts of a client (against R2)",
            Lease { reuses_token: true, ..PLAIN }),
        row("D1.12", Broken(12, 622_470), "one token for all attempts; the release follows its SET, or comes over another connection",
            Lease { reuses_token: true, ordered: true, ..PLAIN }),
    ]
}

/// Nothing is left behind (R6, R7).
#[rustfmt::skip] // A row on two lines.
fn undo() -> Vec<Row> {
    vec![
        row("D1.20", Broken(4, 54), "a release may overtake the SET (against R7)",
            Lease { attempts: 1, clients: 1, no_orphans: true, ..PLAIN }),
        row("D1.21", Holds(6_511_478), "SET and release on one ordered connection (R7): no orphans",
            Lease { attempts: 2, no_orphans: true, ordered: true, ..PLAIN }),
        row("D1.22", Broken(3, 38), "no release to nodes whose grant was not seen (against R6)",
            Lease { attempts: 1, clients: 1, no_orphans: true, ordered: true, releases_seen_only: true, ..PLAIN }),
    ]
}

/// Extensions (R10–R13).
#[rustfmt::skip] // A row on two lines.
fn extend() -> Vec<Row> {
    vec![
        row("D1.30", Holds(379_183), "an extension changes only keys that are held, before the old deadline (R10, R11)",
            EXTENDS),
        row("D1.31", Broken(17, 301_711), "the same without the old deadline (against R10)",
            Lease { old_deadline: false, ..EXTENDS }),
        row("D1.31b", Holds(1_921_432), "the same, but only nodes whose grant had been seen at the acquire count",
            Lease { old_deadline: false, extends_seen_only: true, extensions: 2, ..EXTENDS }),
        row("D1.32", Holds(2_337_046), "an extension sets lost keys, and that counts; before the old deadline",
            Lease { extension: SetCounts, ..EXTENDS }),
        row("D1.33", Broken(16, 446_274), "the same without the old deadline (against R10 and R11)",
            Lease { extension: SetCounts, old_deadline: false, ..EXTENDS }),
        row("D1.34", Broken(17, 724_248), "an extension sets lost keys, which counts from the next one on; no old deadline",
            Lease { extension: SetHeals, old_deadline: false, extensions: 1, ..EXTENDS }),
        row("D1.35", Broken(17, 445_384), "2 extensions, only keys that are held; no old deadline",
            Lease { extensions: 2, old_deadline: false, ..EXTENDS }),
        row("D1.36", Holds(6_497_584), "2 extensions set lost keys, which counts from the next one on; before the old deadline",
            Lease { extension: SetHeals, extensions: 2, ..EXTENDS }),
        row("D1.37", Broken(12, 105_212), "a shorter extension shortens keys, the old validity goes on (against R12)",
            Lease { ttl: 4, extension_ttl: 2, never_shortens: false, lowers_first: false, ..EXTENDS }),
        row("D1.38", Holds(1_008_355), "a shorter extension leaves keys as they are (R12), the old validity goes on",
            Lease { ttl: 4, extension_ttl: 2, never_shortens: true, lowers_first: false, ..EXTENDS }),
        row("D1.39", Holds(687_909), "a shorter extension shortens keys, the validity is lowered first",
            Lease { ttl: 4, extension_ttl: 2, never_shortens: false, lowers_first: true, ..EXTENDS }),
        row("D1.40", Holds(357_165), "a longer extension that reaches a minority, the old validity goes on (R13)",
            Lease { ttl: 2, extension_ttl: 4, ..EXTENDS }),
        row("D1.41", HoldsSoFar(40_000_000), "3 clients, ttl 2, extensions where held, before the old deadline",
            Lease { ttl: 2, extension_ttl: 2, clients: 3, ..EXTENDS }),
        row("D1.42", Broken(17, 1_050_546), "2 extensions set lost keys, which counts from the next one on; no old deadline",
            Lease { extension: SetHeals, old_deadline: false, extensions: 2, ..EXTENDS }),
        row("D1.50", Holds(991_800), "ttls differ (A 2, B 4), extensions, no restarts",
            Lease { restarts: 0, ttl: 2, extension_ttl: 2, ttl_others: 4, extension: HeldOnly, extensions: 1, ..RESTARTS }),
    ]
}

/// The restart guard (R14–R18).
#[rustfmt::skip] // A row on two lines.
fn guard() -> Vec<Row> {
    vec![
        row("D2.1", Broken(9, 18_392), "a restart loses keys, no guard",
            RESTARTS),
        row("D2.2", Holds(252_416), "the guard with Q = ttl (R15), connections break",
            Lease { quarantine: 3, ..RESTARTS }),
        row("D2.3", Broken(11, 110_715), "the guard with Q = ttl - 1",
            Lease { quarantine: 2, ..RESTARTS }),
        row("D2.4", Broken(11, 132_141), "the guard with Q = ttl, uptime reported too large by 1",
            Lease { quarantine: 3, uptime_over: 1, ..RESTARTS }),
        row("D2.5", Holds(332_359), "the guard with Q = ttl + 1, uptime reported too large by 1 (R15)",
            Lease { quarantine: 4, uptime_over: 1, ..RESTARTS }),
        row("D2.6", Broken(9, 54_951), "the guard with Q = ttl, but a proxy hides the restart and sends again (against R5)",
            Lease { quarantine: 3, restart_breaks: false, ..RESTARTS }),
        row("D2.7", Holds(916_795), "the guard with Q = ttl, 2 restarts",
            Lease { quarantine: 3, restarts: 2, ..RESTARTS }),
        row("D2.8", Holds(11_596_865), "the guard with Q = ttl = 2, 1 restart, A has 2 attempts, B 1",
            Lease { ttl: 2, extension_ttl: 2, quarantine: 2, attempts: 2, attempts_others: 1, ..RESTARTS }),
        row("D2.9", Holds(6_351_259), "the guard, 2 restarts, nodes in quarantine vote on extensions, all ttls equal",
            Lease { quarantine: 3, restarts: 2, extension: HeldOnly, extensions: 1, ..RESTARTS }),
        row("D2.10", Broken(19, 8_749_681), "the guard; keys set by an extension in quarantine count for the next one (against R16)",
            Lease { quarantine: 3, restarts: 1, extension: SetHeals, extensions: 2, ..RESTARTS }),
        row("D2.11", Broken(16, 7_838_570), "the guard, 2 restarts; extensions set keys in quarantine, and that counts (against R16)",
            Lease { quarantine: 3, restarts: 2, extension: SetCounts, extensions: 1, ..RESTARTS }),
        row("D2.12", Holds(472_573), "the guard, all nodes have just started",
            Lease { quarantine: 3, cold: true, ..RESTARTS }),
        row("D2.13", Broken(9, 38_684), "no guard, 2 restarts; extensions set lost keys, and that counts",
            Lease { restarts: 2, extension: SetCounts, extensions: 1, ..RESTARTS }),
        row("D2.14", Broken(16, 1_829_781), "the guard with Q = ttl, but extensions are for ttl + 1 (against R14)",
            Lease { quarantine: 3, extension: HeldOnly, extensions: 1, extension_ttl: 4, ..RESTARTS }),
        row("D2.16", Broken(16, 4_257_707), "the guard, ttls differ (A 2, B 4); nodes in quarantine vote on extensions (against R16)",
            Lease { ttl: 2, extension_ttl: 2, ttl_others: 4, quarantine: 4, extension: HeldOnly, extensions: 1, ..RESTARTS }),
        row("D2.17", Holds(8_432_859), "the same, without votes on extensions from nodes in quarantine (R16)",
            Lease { ttl: 2, extension_ttl: 2, ttl_others: 4, quarantine: 4, extension: HeldOnly, extensions: 1, guards_extensions: true, ..RESTARTS }),
        row("D2.18", Holds(15_290_537), "the guard, ttl 2; 2 extensions set lost keys; no votes of any kind in quarantine (R16)",
            Lease { ttl: 2, extension_ttl: 2, quarantine: 2, restarts: 1, extension: SetHeals, extensions: 2, guards_extensions: true, ..RESTARTS }),
        row("D2.19", Holds(69_986), "1 node, 1 restart, the guard, 3 clients",
            Lease { nodes: 1, quorum: 1, clients: 3, quarantine: 3, ..RESTARTS }),
        row("D2.20", Broken(7, 694), "1 node, 1 restart, no guard",
            Lease { nodes: 1, quorum: 1, clients: 2, ..RESTARTS }),
        row("D2.21", Holds(9_356_060), "the guard, 2 restarts, extensions; no votes of any kind in quarantine (R16)",
            Lease { quarantine: 3, restarts: 2, extension: HeldOnly, extensions: 1, guards_extensions: true, ..RESTARTS }),
        row("D2.22", HoldsSoFar(40_000_000), "5 nodes, 2 restarts, the guard",
            Lease { nodes: 5, quorum: 3, quarantine: 3, restarts: 2, ..RESTARTS }),
        row("D2.23", Holds(12_621_042), "the guard with Q = ttl + 1, uptime reported too large by 1, 2 restarts, extensions, R16",
            Lease { quarantine: 4, uptime_over: 1, restarts: 2, extension: HeldOnly, extensions: 1, guards_extensions: true, ..RESTARTS }),
        row("D2.24", Broken(9, 15_327), "keys are lost without a restart (FLUSHALL, eviction, a clock that is set): no guard by uptime sees that",
            Lease { quarantine: 3, unseen_loss: true, ..RESTARTS }),
        row("D2.15", Holds(3_893_667), "the guard with Q = the largest ttl, extensions included (R14)",
            Lease { quarantine: 4, extension: HeldOnly, extensions: 1, extension_ttl: 4, ..RESTARTS }),
    ]
}

/// The guard as it is built: a node in quarantine is sent releases only, and may come back with old data.
#[rustfmt::skip] // A row on two lines.
fn away() -> Vec<Row> {
    vec![
        row("D2A.1", Holds(94_527), "away in quarantine: restart empty, Q = ttl",
            Lease { quarantine: 3, ..AWAY }),
        row("D2A.2", Broken(11, 50_573), "away in quarantine: restart empty, Q = ttl - 1",
            Lease { quarantine: 2, ..AWAY }),
        row("D2A.3", Holds(1_308_166), "away in quarantine: restart empty, with the key, or with a released key back; Q = ttl",
            Lease { quarantine: 3, old_data: true, ..AWAY }),
        row("D2A.4", HoldsSoFar(8_000_000), "away in quarantine: as D2A.3, A has 2 attempts, B 1, ttl 2",
            Lease { quarantine: 2, ttl: 2, extension_ttl: 2, attempts: 2, attempts_others: 1, old_data: true, ..AWAY }),
        row("D2A.5", HoldsSoFar(8_000_000), "away in quarantine: as D2A.3, 2 restarts, extension",
            Lease { quarantine: 3, restarts: 2, extension: HeldOnly, extensions: 1, old_data: true, ..AWAY }),
        row("D2A.6", HoldsSoFar(8_000_000), "away in quarantine: old data, ttls differ (A 2, B 4), extension, Q = 4",
            Lease { ttl: 2, extension_ttl: 2, ttl_others: 4, quarantine: 4, extension: HeldOnly, extensions: 1, old_data: true, ..AWAY }),
        row("D2A.7", Broken(9, 44_838), "old data, no guard",
            Lease { old_data: true, away: false, quarantine: 0, ..RESTARTS }),
        row("D2A.8", Holds(66_936), "away in quarantine: 1 node, old data, 3 clients",
            Lease { nodes: 1, quorum: 1, clients: 3, quarantine: 3, old_data: true, ..AWAY }),
        row("D2A.9", HoldsSoFar(8_000_000), "away in quarantine: 3 clients, ttl 2, restart empty or with old data",
            Lease { ttl: 2, extension_ttl: 2, clients: 3, quarantine: 2, old_data: true, ..AWAY }),
        row("D2A.10", HoldsSoFar(8_000_000), "away in quarantine: uptime reported too large by 1, Q = ttl + 1, old data, extension",
            Lease { quarantine: 4, uptime_over: 1, extension: HeldOnly, extensions: 1, old_data: true, ..AWAY }),
    ]
}
