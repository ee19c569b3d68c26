//! Leases with time: which client holds a lock until when (rules R1–R18).
//!
//! Nodes, clients, and a few attempts each. Time is counted in ticks; lifetimes, validities and uptimes are counters, so there are
//! finitely many states. SET, extension, refill and release are messages of their own to each node: they arrive at any time, in
//! any order unless the connection is `ordered`, or never (they stay under way). On an ordered connection a SET may be dropped,
//! as where the connection breaks, so that the release behind it can pass. A client decides as soon as it has a quorum, or at any
//! later time; it may give up at any time. A restarted node has lost its keys and what was under way to it; replies that it had
//! sent still arrive.
//!
//! No two clients may hold at the same time, and no extension may be confirmed if another client has held in between. What a
//! client does that goes on working after its validity is not here: that is what fencing tokens are for.

mod client;
#[allow(
    dead_code,
    reason = "what runs the real code on these schedules is in src/proof/oracle.rs"
)]
pub(crate) mod named;
mod node;
mod refill_rows;
mod rows;

use super::bits::{Bits, Pairs, letter};
use super::explorer::{Steps, World};
use super::table::Row;

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = rows::rows();
    rows.extend(refill_rows::rows());
    rows
}

const NODES: usize = 5;
const CLIENTS: usize = 3;

/// What an extension does on a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extension {
    /// There are none.
    Never,
    /// It extends a key that is there, and only that is a vote (rule R11).
    HeldOnly,
    /// It also sets a key that is not there, which is a vote.
    SetCounts,
    /// It also sets a key that is not there, which is no vote this time.
    SetHeals,
}

/// When a client sends the acquire's SET once more to a node where its key is gone (rule R11b).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refill {
    Never,
    /// When the extension has its quorum.
    AfterQuorum,
    /// When the node says that the key is gone.
    AtOnce,
}

/// Which nodes are sent no release (rule R6).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skip {
    None,
    /// Nodes that denied the acquire.
    Denied,
    /// Nodes that denied the acquire and were sent no refill since.
    DeniedNotRefilled,
}

/// When a node may restart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Restart {
    Anytime,
    /// All nodes hold one token.
    AllHoldOne,
    /// A quorum of the other nodes holds one token.
    OthersHoldOne,
    /// All nodes hold a holder's token for as long as it believes, and nothing of its is under way.
    Calm,
    /// So does a quorum of the other nodes.
    OthersCalm,
}

#[derive(Clone, Copy)]
pub(crate) struct Lease {
    nodes: usize,
    quorum: usize,
    clients: usize,
    /// Of each client, and at most: of the first, and of the others.
    attempts: usize,
    attempts_first: usize,
    attempts_others: usize,
    ttl: u8,
    /// Of the clients but the first; 0: the same.
    ttl_others: u8,
    /// What a client takes off the ttl (rule R3).
    drift: u8,
    /// A node expires keys too early by this number of ticks: its clock is fast.
    node_fast: u8,
    /// A client believes too long by this number of ticks: its clock is slow.
    client_slow: u8,
    /// SET, extension, release of an attempt reach a node in this order (rule R7).
    ordered: bool,
    /// A broken connection may drop extensions and refills too.
    drops_all: bool,
    /// A client has one token for all its attempts (against rule R2).
    reuses_token: bool,
    /// The validity counts from the decision (against rule R3).
    counts_from_decision: bool,
    extension: Extension,
    /// The maximum for each lock.
    extensions: u8,
    extension_ttl: u8,
    /// Only the first client extends.
    only_first_extends: bool,
    /// An extension does not shorten a lifetime (rule R12).
    never_shortens: bool,
    /// A client lowers what it believes before it sends a shorter extension.
    lowers_first: bool,
    /// An extension succeeds before the old deadline only (rule R10).
    old_deadline: bool,
    /// An extension counts only nodes whose grant had been seen when the lock was acquired.
    extends_seen_only: bool,
    /// The extension before may still be under way when another one is sent.
    overlapping: bool,
    restarts: u8,
    restart: Restart,
    /// Ticks between two restarts.
    gap: u8,
    /// A restart loses the requests under way: they belong to connections that broke (rule R5).
    restart_breaks: bool,
    /// A restart may keep the key, or bring back the one that was last released.
    old_data: bool,
    /// Keys are lost without a restart: FLUSHALL, eviction, a clock that was set, a promoted replica.
    unseen_loss: bool,
    /// A node votes from this uptime on (rule R15); 0: there is no guard.
    quarantine: u8,
    /// Servers report an uptime that is too large by this number of ticks.
    uptime_over: u8,
    /// All nodes have just started.
    cold: bool,
    /// A node in quarantine gives no vote on extensions either (rule R16).
    guards_extensions: bool,
    /// It is not even sent anything but releases.
    away: bool,
    refill: Refill,
    /// A refill's "set" is a vote on the extension under way.
    refill_counts: bool,
    /// It may be sent after the release.
    refill_after_release: bool,
    /// Its ttl is what is left of the validity.
    refill_for_rest: bool,
    /// It is sent together with the verdict; answers that come later are ignored.
    refill_with_verdict: bool,
    /// Only to nodes whose grant had been seen when the lock was acquired.
    refill_seen_only: bool,
    /// To all nodes, whatever they answered: SET NX does nothing where there is a key.
    refill_all: bool,
    /// Only nodes whose grant was seen are sent the release (against rule R6).
    releases_seen_only: bool,
    skip: Skip,
    /// A key without an owner, with no release under way, is wrong.
    no_orphans: bool,
    /// To extend a lock that had fewer than q keys, with none under way, is wrong.
    no_revival: bool,
    /// Two holders at once are no matter, but only extensions that were begun after another client had held.
    overlap_ignored: bool,
    /// A rolling restart: the first client holds from the beginning and extends each tick, messages take no time, each node
    /// restarts once, and to lose the lock is wrong.
    rolling: bool,
    /// The nodes that have the first client's key at the beginning; 0: all.
    held_at_first: usize,
    /// The end of the rolling restart counts as a violation, to show that it is reached.
    witness: bool,
    /// Nodes and clients keep their places, and messages that can do nothing are not forgotten.
    named: bool,
}

/// Three nodes, two clients with two attempts each, every rule kept, no extensions and no restarts.
const PLAIN: Lease = Lease {
    nodes: 3,
    quorum: 2,
    clients: 2,
    attempts: 2,
    attempts_first: 9,
    attempts_others: 9,
    ttl: 3,
    ttl_others: 0,
    drift: 0,
    node_fast: 0,
    client_slow: 0,
    ordered: false,
    drops_all: false,
    reuses_token: false,
    counts_from_decision: false,
    extension: Extension::Never,
    extensions: 0,
    extension_ttl: 3,
    only_first_extends: false,
    never_shortens: true,
    lowers_first: true,
    old_deadline: true,
    extends_seen_only: false,
    overlapping: false,
    restarts: 0,
    restart: Restart::Anytime,
    gap: 0,
    restart_breaks: true,
    old_data: false,
    unseen_loss: false,
    quarantine: 0,
    uptime_over: 0,
    cold: false,
    guards_extensions: false,
    away: false,
    refill: Refill::Never,
    refill_counts: false,
    refill_after_release: false,
    refill_for_rest: false,
    refill_with_verdict: false,
    refill_seen_only: false,
    refill_all: false,
    releases_seen_only: false,
    skip: Skip::None,
    no_orphans: false,
    no_revival: false,
    overlap_ignored: false,
    rolling: false,
    held_at_first: 0,
    witness: false,
    named: false,
};

/// How far a SET has got. (`OVER`: its reply is of no more interest.)
const UNDER_WAY: u8 = 1;
const GRANTED: u8 = 2;
const OVER: u8 = 3;
/// How far an extension has got, `UNDER_WAY` or: no answer that counts, extended, the key was gone.
const SILENT: u8 = 0;
const EXTENDED: u8 = 2;
const GONE: u8 = 3;

/// Sets and pairs have a place for each attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Node {
    /// 0: there is none; else 1 + whose.
    key: u8,
    ttl: u8,
    uptime: u8,
    set: Pairs,
    extension: Pairs,
    /// The extension before that one is under way, too.
    earlier: Bits,
    release: Bits,
    refill: Bits,
    refill_ttl: u8,
    /// The client may send a refill.
    to_refill: Bits,
    /// It denied, or granted, the acquire, and the client saw that.
    denied: Bits,
    granted: Bits,
    /// A grant is a vote: it was not in quarantine.
    votes: Bits,
    extension_votes: Bits,
    /// It has restarted.
    rolled: bool,
    /// The key that was released last, until it would have expired.
    old_key: u8,
    old_ttl: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Phase {
    #[default]
    Idle,
    Acquiring,
    Holding,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Client {
    phase: Phase,
    attempt: u8,
    /// Ticks since it asked for the lock, and for the extension.
    elapsed: u8,
    extension_elapsed: u8,
    extending: bool,
    extensions: u8,
    /// For how long it believes that it holds the lock.
    belief: u8,
    /// Another client has held since it acquired; and so it was when it began to extend.
    other_held: bool,
    other_held_before: bool,
    /// Its last extension was confirmed, and some of the answers are not here yet.
    confirmed: bool,
    /// It began to extend a lock that had too few keys.
    lost: bool,
    /// In a rolling restart: it has extended in this tick.
    done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Wrong {
    #[default]
    Nothing,
    ExtendedOverOther,
    Revived,
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    restarts: u8,
    /// Ticks since the last restart.
    since: u8,
    wrong: Wrong,
}

impl Lease {
    fn all_attempts(&self) -> usize {
        self.clients * self.attempts
    }

    fn client_of(&self, attempt: usize) -> usize {
        attempt / self.attempts
    }

    /// What a node stores for an attempt.
    fn token(&self, attempt: usize) -> u8 {
        let whose = if self.reuses_token {
            self.client_of(attempt)
        } else {
            attempt
        };
        1 + whose as u8
    }

    fn ttl_of(&self, client: usize) -> u8 {
        if client > 0 && self.ttl_others > 0 {
            self.ttl_others
        } else {
            self.ttl
        }
    }

    fn extension_ttl_of(&self, client: usize) -> u8 {
        if client > 0 && self.ttl_others > 0 {
            self.ttl_others
        } else {
            self.extension_ttl
        }
    }

    /// It is what its client is busy with.
    fn is_current(&self, state: &State, attempt: usize) -> bool {
        let client = &state.clients[self.client_of(attempt)];
        client.phase != Phase::Idle && usize::from(client.attempt) == attempt % self.attempts
    }

    fn is_held(&self, state: &State, attempt: usize) -> bool {
        self.is_current(state, attempt)
            && state.clients[self.client_of(attempt)].phase == Phase::Holding
    }

    /// As far as a client can know (rule R15).
    fn is_in_quarantine(&self, node: &Node) -> bool {
        node.uptime + self.uptime_over < self.quarantine
    }

    fn name(&self, attempt: usize) -> String {
        let client = letter(self.client_of(attempt));
        format!("{client}{}", attempt % self.attempts + 1)
    }

    /// Adds a state in its normal form: without what can have no effect any more, nodes in the order of their values, and of two
    /// clients that are alike the smaller first. Without that there would be many names for one state.
    fn add(&self, steps: &mut Steps<State>, mut state: State, describe: impl FnOnce() -> String) {
        if self.named {
            return steps.add(state, describe);
        }
        self.forget(&mut state);
        state.nodes[..self.nodes].sort_unstable();
        if self.alike() {
            let other = self.renamed(&state);
            if (other.clients, other.nodes) < (state.clients, state.nodes) {
                state = other;
            }
        }
        steps.add(state, describe);
    }

    fn forget(&self, state: &mut State) {
        for at in 0..self.nodes {
            for attempt in 0..self.all_attempts() {
                self.forget_on(state, at, attempt);
            }
            let node = &mut state.nodes[at];
            if node.refill.is_empty() {
                node.refill_ttl = 0;
            }
        }
        for at in 0..self.clients {
            let attempt = at * self.attempts + usize::from(state.clients[at].attempt);
            let client = &mut state.clients[at];
            let awaits = |node: &Node| node.extension.get(attempt) == UNDER_WAY;
            if client.phase != Phase::Holding || !state.nodes[..self.nodes].iter().any(awaits) {
                client.confirmed = false;
            }
        }
    }

    fn forget_on(&self, state: &mut State, at: usize, attempt: usize) {
        let client = state.clients[self.client_of(attempt)];
        let held = self.is_held(state, attempt);
        let node = &mut state.nodes[at];
        if node.set.get(attempt) == OVER {
            node.set.put(attempt, 0);
        }
        if node.set.get(attempt) == 0 {
            node.votes.remove(attempt);
        }
        if node.extension.get(attempt) == SILENT {
            node.extension_votes.remove(attempt);
        }
        let set_may_come = node.set.get(attempt) == UNDER_WAY || node.refill.has(attempt);
        if self.reuses_token || node.key == self.token(attempt) || set_may_come {
            return;
        }
        // There is nothing to delete or to extend, now or later.
        let held_only = self.extension == Extension::HeldOnly;
        if held_only && node.extension.get(attempt) == UNDER_WAY {
            let awaited = client.extending && held;
            let may_refill = held
                && client.confirmed
                && self.refill == Refill::AfterQuorum
                && !self.refill_with_verdict;
            if self.refill == Refill::Never {
                node.extension
                    .put(attempt, if awaited { GONE } else { SILENT });
            } else if !awaited && !may_refill {
                node.extension.put(attempt, SILENT);
            }
        }
        if held_only {
            node.earlier.remove(attempt);
        }
        let may_come_back = self.refill_after_release && node.to_refill.has(attempt);
        let extension_over = node.extension.get(attempt) != UNDER_WAY || held_only;
        if extension_over && !node.earlier.has(attempt) && !may_come_back {
            node.release.remove(attempt);
        }
    }

    fn alike(&self) -> bool {
        let same_attempts =
            self.attempts_first >= self.attempts && self.attempts_others >= self.attempts;
        let same_rights = !self.only_first_extends && self.ttl_others == 0 && !self.old_data;
        self.clients == 2 && same_attempts && same_rights && !self.rolling
    }

    /// With the two clients' names exchanged.
    fn renamed(&self, state: &State) -> State {
        let count = self.attempts;
        let tokens = if self.reuses_token { 1 } else { count as u8 };
        let bits = |old: Bits| old.halves_exchanged(count);
        let pairs = |old: Pairs| old.halves_exchanged(count);
        let mut new = *state;
        new.clients.swap(0, 1);
        for node in &mut new.nodes[..self.nodes] {
            if node.key > tokens {
                node.key -= tokens;
            } else if node.key > 0 {
                node.key += tokens;
            }
            *node = Node {
                set: pairs(node.set),
                extension: pairs(node.extension),
                earlier: bits(node.earlier),
                release: bits(node.release),
                refill: bits(node.refill),
                to_refill: bits(node.to_refill),
                denied: bits(node.denied),
                granted: bits(node.granted),
                votes: bits(node.votes),
                extension_votes: bits(node.extension_votes),
                ..*node
            };
        }
        new.nodes[..self.nodes].sort_unstable();
        new
    }

    fn is_orphan(&self, state: &State, node: &Node) -> bool {
        let Some(attempt) = usize::from(node.key).checked_sub(1) else {
            return false;
        };
        let client = &state.clients[self.client_of(attempt)];
        usize::from(client.attempt) > attempt % self.attempts && !node.release.has(attempt)
    }
}

impl World for Lease {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        let mut nodes = [Node::default(); NODES];
        let mut clients = [Client::default(); CLIENTS];
        for node in &mut nodes[..self.nodes] {
            node.uptime = if self.cold { 0 } else { self.quarantine };
        }
        if self.rolling {
            let held = match self.held_at_first {
                0 => self.nodes,
                some => some,
            };
            for node in &mut nodes[..held] {
                (node.key, node.ttl) = (self.token(0), self.ttl);
            }
            (clients[0].phase, clients[0].belief) = (Phase::Holding, self.ttl);
        }
        vec![State {
            nodes,
            clients,
            restarts: 0,
            since: self.gap,
            wrong: Wrong::Nothing,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        for at in 0..self.nodes {
            for attempt in 0..self.all_attempts() {
                self.node_steps(state, at, attempt, steps);
            }
            self.restart_steps(state, at, steps);
        }
        self.tick(state, steps);
        for at in 0..self.clients {
            self.client_steps(state, at, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let believes = |client: &&Client| client.phase == Phase::Holding && client.belief > 0;
        if !self.overlap_ignored && state.clients.iter().filter(believes).count() > 1 {
            return Some("two clients hold the lock at the same time");
        }
        match state.wrong {
            Wrong::Nothing => {}
            Wrong::ExtendedOverOther => {
                return Some("extended, although another client held the lock in between");
            }
            Wrong::Revived => return Some("a lock that had fewer than q keys was extended"),
            Wrong::Lost => return Some("the holder lost the lock"),
        }
        let nodes = &state.nodes[..self.nodes];
        if self.witness && nodes.iter().all(|node| node.rolled && node.key == 1) {
            return Some(
                "(a witness) all nodes have restarted and hold A's key, and A still holds the lock",
            );
        }
        let orphan = self.no_orphans && nodes.iter().any(|node| self.is_orphan(state, node));
        orphan.then_some("an orphan: a key without an owner, with no release under way")
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for node in &state.nodes[..self.nodes] {
            let key = match usize::from(node.key) {
                0 => "-".into(),
                key if self.reuses_token => format!("{}:{}", letter(key - 1), node.ttl),
                key => format!("{}:{}", self.name(key - 1), node.ttl),
            };
            text += &match self.quarantine {
                0 => format!("[{key}] "),
                _ => format!("[{key} up {}] ", node.uptime),
            };
        }
        for (at, client) in state.clients[..self.clients].iter().enumerate() {
            let name = letter(at);
            text += &match client.phase {
                Phase::Idle => format!(" {name} idle"),
                Phase::Acquiring => format!(" {name} acquiring"),
                Phase::Holding => format!(" {name} HOLDS({})", client.belief),
            };
        }
        text
    }
}
