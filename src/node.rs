//! The nodes that are away, and their attendants.
//!
//! A node is *here* (its wire is in the lane, a step may use it) or *away*. An away node has one
//! attendant, a thread that lives no longer than that:
//!
//! ```text
//!   here ──silent, closed, garbage──▶ away ──connected, nothing owed, debts paid──▶ here
//!                                    │    ▲
//!                                    └─┬──┘  attendant: listen on the silent wire, or pause;
//!                                      │     connect; pay; try again
//! ```
//!
//! A silent wire is kept, since the SETs on it may still be carried out: the releases that undo
//! them go behind them on the same wire (rule R7). If a node answers on a new connection while the
//! old one stays silent, the old one is dead, and its releases are said over the new one, once the
//! server must have read what the old one held (rule R8).

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use crate::clock;
use crate::error::{Cause, ConfigError, NodeError};
use crate::options::Options;
use crate::quorum::{MAX_NODES, bit, majority};
use crate::token::jitter;
use crate::wire::{Debt, Debts, MAX_DEBTS, Wire};

/// The pause between two tries to connect grows from the first to the last; a node that is well
/// again votes within one second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(700);
/// How long a silent wire may still answer once a new connection does, before it counts as dead: what
/// is on it may merely be slow.
const LAST_WORD: Duration = Duration::from_millis(200);
/// How often an attendant that listens to a silent wire looks for new releases to write.
const GLANCE: Duration = Duration::from_millis(50);
/// A Redis server reads so much of a connection in one turn of its event loop, and answers a new
/// connection at most once in a turn.
const TURN: usize = 16 * 1024;

pub(crate) struct Nodes {
    nodes: Vec<Node>,
    node_timeout: Duration,
    connect_timeout: Duration,
    office: Mutex<Office>,
    /// Rung at every change in the office.
    bell: Condvar,
}

struct Node {
    info: ConnectionInfo,
    /// Host and port, or path: what may be shown.
    address: Arc<str>,
}

/// Where the lane and the attendants meet.
struct Office {
    desks: Vec<Desk>,
    closed: bool,
}

/// What is known of one node, and waits for it or for the lane, while it is away.
struct Desk {
    /// Fit again, for the lane to take.
    returned: Option<Wire>,
    /// Silent, for the attendant to take.
    silent: Option<Wire>,
    /// Releases that could not be written.
    debts: Debts,
    /// Bytes that connections which died may have left for the server to read.
    unread: usize,
    cause: Arc<Cause>,
    attended: bool,
    /// It has been fit once.
    met: bool,
    /// A step needs this node: end the pause.
    hurry: bool,
    /// Tries to connect that have ended.
    tries: u64,
    /// The server behind the connection, while there is one.
    run_id: Option<String>,
    warned: bool,
}

impl Desk {
    fn new() -> Desk {
        Desk {
            returned: None,
            silent: None,
            debts: Debts::default(),
            unread: 0,
            cause: Arc::new(Cause::NotConnected(Duration::ZERO)),
            attended: false,
            met: false,
            hurry: false,
            tries: 0,
            run_id: None,
            warned: false,
        }
    }

    /// The wire that is fit again, unless it was closed while it waited to be taken.
    fn take_returned(&mut self) -> Option<Wire> {
        let mut wire = self.returned.take()?;
        if let Err(cause) = wire.look(clock::instant()) {
            self.cause = Arc::new(cause);
            self.bury(wire);
            return None;
        }
        Some(wire)
    }

    /// A wire is finished: what was released on it is due on the next.
    fn bury(&mut self, wire: Wire) {
        self.run_id = None;
        self.unread = self.unread.saturating_add(wire.unread());
        self.owe(wire.into_debts());
    }

    fn owe(&mut self, debts: impl IntoIterator<Item = Debt>) {
        debts.into_iter().for_each(|debt| self.debts.push(debt));
    }

    /// What is to be said on a wire on which, or before which, their acquires went: however late they are
    /// read, a key's life begins only then.
    fn take_debts(&mut self) -> Vec<Debt> {
        self.debts.take(MAX_DEBTS, None)
    }
}

impl Nodes {
    pub(crate) fn new(infos: Vec<ConnectionInfo>, options: &Options) -> Result<Nodes, ConfigError> {
        if infos.is_empty() {
            return Err(ConfigError::new(
                "no nodes given: at least 1 is needed, 3 or 5 are usual",
            ));
        }
        if infos.len() > MAX_NODES {
            return Err(ConfigError::new(format!(
                "{} nodes given, the limit is {MAX_NODES}",
                infos.len()
            )));
        }
        for (i, info) in infos.iter().enumerate() {
            if !info.addr().is_supported() {
                return Err(ConfigError::new(format!(
                    "node {i} ({}) cannot be reached by this build: TLS needs the feature \
                     `tls-rustls` or `tls-native-tls`, Unix sockets need Unix",
                    info.addr()
                )));
            }
            let same = |other: &ConnectionInfo| other.addr() == info.addr();
            if let Some(other) = infos.iter().take(i).position(same) {
                return Err(ConfigError::new(format!(
                    "nodes {other} and {i} have the same address {}: its vote must count once",
                    info.addr()
                )));
            }
        }
        let desks = infos.iter().map(|_| Desk::new()).collect();
        let nodes = infos.into_iter().map(|info| Node {
            address: info.addr().to_string().into(),
            info,
        });
        Ok(Nodes {
            nodes: nodes.collect(),
            node_timeout: options.node_timeout,
            connect_timeout: options.connect_timeout,
            office: Mutex::new(Office {
                desks,
                closed: false,
            }),
            bell: Condvar::new(),
        })
    }

    /// The same nodes, with nothing shared: for other timeouts, and for a forked child.
    pub(crate) fn afresh(&self, options: &Options) -> Nodes {
        let info = |node: &Node| Node {
            info: node.info.clone(),
            address: node.address.clone(),
        };
        Nodes {
            nodes: self.nodes.iter().map(info).collect(),
            node_timeout: options.node_timeout,
            connect_timeout: options.connect_timeout,
            office: Mutex::new(Office {
                desks: self.nodes.iter().map(|_| Desk::new()).collect(),
                closed: false,
            }),
            bell: Condvar::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| &*node.address)
    }

    fn office(&self) -> MutexGuard<'_, Office> {
        self.office.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error to show for a node, with `cause` or, by default, why it is away.
    pub(crate) fn error(&self, node: usize, cause: Option<Arc<Cause>>) -> Option<NodeError> {
        let cause = match cause {
            Some(cause) => cause,
            None => self.office().desks.get(node)?.cause.clone(),
        };
        // It was merely not waited for.
        if matches!(*cause, Cause::NotConnected(Duration::ZERO)) {
            return None;
        }
        Some(NodeError {
            node,
            address: self.nodes.get(node)?.address.clone(),
            cause,
        })
    }

    /// Takes back the wires that are fit again. If fewer than `need` of the nodes `wanted` are here
    /// then, hurries the attendants and waits for them: until `until`, or for `connect_timeout` as long as
    /// no majority has ever been connected, never past `patience`, and only while a try is under way.
    /// (Also where the others cannot suffice: an error names every cause.)
    pub(crate) fn fetch(
        self: &Arc<Self>,
        wires: &mut [Option<Wire>],
        wanted: u64,
        need: usize,
        started: Instant,
        until: Instant,
        patience: Option<Instant>,
    ) -> Fetched {
        let mut office = self.office();
        let mut asked: Option<Vec<u64>> = None;
        let mut fetched = Fetched::default();
        loop {
            let (mut here, mut trying) = (0, 0);
            let met = office.desks.iter().filter(|desk| desk.met).count();
            let first_use = met < majority(wires.len());
            fetched.same_server = false;
            for (node, (desk, wire)) in office.desks.iter_mut().zip(wires.iter_mut()).enumerate() {
                let wanted = wanted & bit(node) != 0;
                // No other: what this step owes to a node that it lost goes to the node's desk yet.
                if wanted && wire.is_none() {
                    *wire = desk.take_returned();
                }
                if wire.is_some() {
                    here += usize::from(wanted);
                    continue;
                }
                self.attend_to(node, desk);
                fetched.same_server |= matches!(*desk.cause, Cause::SameServer(_));
                let asked = asked.as_ref().and_then(|asked| asked.get(node));
                if wanted && desk.attended && asked.is_none_or(|asked| *asked == desk.tries) {
                    trying += 1;
                    fetched.first |= first_use && desk.tries == 0;
                }
            }
            if here >= need || trying == 0 {
                return fetched;
            }
            if asked.is_none() {
                asked = Some(office.desks.iter().map(|desk| desk.tries).collect());
                office
                    .desks
                    .iter_mut()
                    .for_each(|desk| desk.hurry = desk.attended);
                self.bell.notify_all();
            }
            let until = if fetched.first {
                until.max(started + self.connect_timeout)
            } else {
                until
            };
            let until = patience.map_or(until, |patience| until.min(patience));
            let rest = until.saturating_duration_since(clock::instant());
            if rest.is_zero() {
                let waited = clock::instant().saturating_duration_since(started);
                for (desk, wire) in office.desks.iter_mut().zip(wires.iter()) {
                    if wire.is_none() && desk.tries == 0 {
                        desk.cause = Arc::new(Cause::NotConnected(waited));
                    }
                }
                return fetched;
            }
            (office, _) = self
                .bell
                .wait_timeout(office, rest)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A node is away from now on: with its wire if that is merely silent (`keep`), otherwise with
    /// the releases that were not answered on it.
    pub(crate) fn away(self: &Arc<Self>, node: usize, wire: Wire, cause: Arc<Cause>, keep: bool) {
        let mut office = self.office();
        let Some(desk) = office.desks.get_mut(node) else {
            return;
        };
        let warn = !std::mem::replace(&mut desk.warned, true);
        if keep {
            desk.silent = Some(wire);
        } else {
            desk.bury(wire);
        }
        desk.cause = cause.clone();
        drop(office);
        // Before anybody can say that it is back.
        if warn {
            self.warn(node, format_args!("is away: {cause}"));
        }
        if let Some(desk) = self.office().desks.get_mut(node) {
            self.attend_to(node, desk);
        }
    }

    /// Releases for a node that the lane has no wire to.
    pub(crate) fn owe(self: &Arc<Self>, node: usize, debts: impl IntoIterator<Item = Debt>) {
        if let Some(desk) = self.office().desks.get_mut(node) {
            desk.owe(debts);
            // Fit again since the lane looked: its wire goes back to an attendant, to be paid on.
            if let Some(wire) = desk.returned.take() {
                desk.silent = Some(wire);
            }
            self.attend_to(node, desk);
        }
    }

    /// Ends the attendants; nobody waits for them. What they gave back and nobody took is returned.
    pub(crate) fn close(&self) -> Vec<Wire> {
        let mut office = self.office();
        office.closed = true;
        let returned = office
            .desks
            .iter_mut()
            .filter_map(|desk| desk.returned.take());
        let returned = returned.collect();
        drop(office);
        self.bell.notify_all();
        returned
    }

    pub(crate) fn warn(&self, node: usize, what: fmt::Arguments<'_>) {
        if let Some(Node { address, .. }) = self.nodes.get(node) {
            say!(warn, "node {node} ({address}) {what}");
        }
    }

    fn attend_to(self: &Arc<Self>, node: usize, desk: &mut Desk) {
        // Or a wire is fit already: never two to one node, or a release could overtake its acquire.
        if desk.attended || desk.returned.is_some() {
            return;
        }
        let nodes = Arc::clone(self);
        let attendant = std::thread::Builder::new().name(format!("redlock-node-{node}"));
        match attendant.spawn(move || nodes.attend(node)) {
            Ok(_) => desk.attended = true,
            Err(error) => desk.cause = Arc::new(Cause::NoThread(error.to_string())),
        }
    }

    /// The life of an attendant: until its node is fit, or everybody has left.
    fn attend(&self, node: usize) {
        let Some(Node { info, .. }) = self.nodes.get(node) else {
            return;
        };
        let mut silent = self.desk(node, |desk| desk.silent.take()).flatten();
        let mut again = false;
        let mut pause = FIRST_PAUSE;
        loop {
            let until = clock::instant() + jitter(pause / 2, pause);
            if let Some(wire) = silent.take() {
                match self.listen(node, wire, until) {
                    Heard::Everything => return,
                    Heard::Nothing(wire) => silent = Some(*wire),
                    Heard::ItDied => {}
                }
            } else if again {
                self.pause(node, until);
            }
            // The last releases are worth one try.
            if self.office().closed
                && (again || self.desk(node, |desk| desk.debts.is_empty()) != Some(false))
            {
                return;
            }
            let connected = Wire::connect(info, self.connect_timeout)
                .and_then(|fresh| self.replace(node, silent.take(), fresh))
                .and_then(|wire| self.give_back(node, wire));
            match connected {
                Ok(()) => return,
                Err(cause) => self.tried(node, cause),
            }
            again = true;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    fn desk<T>(&self, node: usize, f: impl FnOnce(&mut Desk) -> T) -> Option<T> {
        self.office().desks.get_mut(node).map(f)
    }

    /// Listens to a silent wire until `until`, and writes on it the releases that come due.
    fn listen(&self, node: usize, mut wire: Wire, mut until: Instant) -> Heard {
        loop {
            let now = clock::instant();
            // Nobody uses the node any more, so these are the last releases.
            let closed = self.office().closed;
            if closed {
                until = now + self.connect_timeout;
            }
            // What does not fit behind it any more waits here, where there is a bound.
            let due = if wire.owed() < MAX_DEBTS {
                self.desk(node, Desk::take_debts).unwrap_or_default()
            } else {
                Vec::new()
            };
            let glance = if closed {
                until
            } else {
                until.min(now + GLANCE)
            };
            let heard = wire
                .pay(due, now + self.connect_timeout)
                .and_then(|()| wire.settle(glance));
            match heard {
                Ok(true) => match self.give_back(node, wire) {
                    Ok(()) => return Heard::Everything,
                    Err(cause) => {
                        self.tried(node, cause);
                        return Heard::ItDied;
                    }
                },
                Ok(false) if closed => return Heard::Nothing(Box::new(wire)),
                // If everybody has left in the meantime, the last releases are still to be written.
                Ok(false) if clock::instant() >= until && !self.office().closed => {
                    return Heard::Nothing(Box::new(wire));
                }
                Ok(false) => {}
                Err(cause) => {
                    self.desk(node, |desk| {
                        desk.cause = Arc::new(cause);
                        desk.bury(wire);
                    });
                    return Heard::ItDied;
                }
            }
        }
    }

    /// A new connection is set up. If the old one is silent still, it is dead: what it owes is
    /// paid over the new one.
    fn replace(&self, node: usize, old: Option<Wire>, mut fresh: Wire) -> Result<Wire, Cause> {
        if let Some(mut old) = old {
            // Or both are alive: the node just woke up.
            let soon = clock::instant() + self.node_timeout.max(LAST_WORD);
            match old.settle(soon) {
                Ok(true) => return Ok(old),
                _ => self.desk(node, |desk| desk.bury(old)),
            };
        }
        // An acquire that the old connection left unread must not come after its release, whether
        // that is due already or not. Twice the turns: what did not fit into the server's socket
        // follows in smaller pieces.
        let until = clock::instant() + self.connect_timeout;
        let unread = |desk: &mut Desk| desk.unread > 0;
        let was_unread = self.desk(node, unread) == Some(true);
        while self.desk(node, unread) == Some(true) {
            if !fresh.ping(until)? {
                return Err(Cause::Silent(self.connect_timeout));
            }
            // A far node may need more of them than there is time for now.
            self.desk(node, |desk| {
                desk.unread = desk.unread.saturating_sub(TURN / 2);
            });
        }
        // The life of a key begins when its acquire is read.
        let now = (!was_unread).then(clock::instant);
        let due = self.desk(node, |desk| desk.debts.take(MAX_DEBTS, now));
        let paid = fresh
            .pay(due.unwrap_or_default(), until)
            .and_then(|()| fresh.settle(until));
        if !matches!(paid, Ok(true)) {
            self.desk(node, |desk| desk.bury(fresh));
            return Err(paid.err().unwrap_or(Cause::Silent(self.connect_timeout)));
        }
        Ok(fresh)
    }

    /// Hands a fit wire to the lane. An error: it is the same server as another node, or it died.
    fn give_back(&self, node: usize, mut wire: Wire) -> Result<(), Cause> {
        let mut office = self.office();
        if let Some(run_id) = wire.run_id() {
            let same = |desk: &Desk| desk.run_id.as_deref() == Some(run_id);
            let twin = office
                .desks
                .iter()
                .enumerate()
                .position(|(i, desk)| i != node && same(desk));
            if let Some(twin) = twin {
                return Err(Cause::SameServer(twin));
            }
        }
        let Some(desk) = office.desks.get_mut(node) else {
            return Ok(());
        };
        // Releases of the last moment go on it first; the lane reads past the answers. Waiting for
        // them here would never end while the lane is busy: there would always be new ones.
        let now = clock::instant();
        let due = desk.take_debts();
        if let Err(cause) = wire.pay(due, now + self.node_timeout) {
            desk.bury(wire);
            return Err(cause);
        }
        desk.run_id = wire.run_id().map(str::to_owned);
        desk.returned = Some(wire);
        desk.met = true;
        desk.attended = false;
        desk.hurry = false;
        desk.tries += 1;
        let warned = std::mem::take(&mut desk.warned);
        drop(office);
        self.bell.notify_all();
        if warned {
            self.warn(node, format_args!("is back"));
        }
        Ok(())
    }

    /// A try has failed.
    fn tried(&self, node: usize, cause: Cause) {
        let cause = Arc::new(cause);
        let warn = self.desk(node, |desk| {
            desk.cause = cause.clone();
            desk.run_id = None;
            desk.hurry = false;
            desk.tries += 1;
            !std::mem::replace(&mut desk.warned, true)
        });
        self.bell.notify_all();
        if warn == Some(true) {
            self.warn(node, format_args!("is away: {cause}"));
        }
    }

    fn pause(&self, node: usize, until: Instant) {
        let mut office = self.office();
        while !office.closed && office.desks.get(node).is_some_and(|desk| !desk.hurry) {
            let rest = until.saturating_duration_since(clock::instant());
            if rest.is_zero() {
                return;
            }
            (office, _) = self
                .bell
                .wait_timeout(office, rest)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What [`Nodes::fetch`] found.
#[derive(Default)]
pub(crate) struct Fetched {
    /// A node was being connected for the first time.
    pub(crate) first: bool,
    /// A node is the same server as another.
    pub(crate) same_server: bool,
}

/// What listening to a silent wire came to.
enum Heard {
    /// All that was owed: the node is here again.
    Everything,
    /// Not all yet.
    Nothing(Box<Wire>),
    ItDied,
}
