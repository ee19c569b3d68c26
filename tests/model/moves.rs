//! A slot of a Redis Cluster that moves from one master to another, with one lock in it (rules R43, R45).
//!
//! Each server believes that it has the slot, or names the one that has it (MOVED). While the slot is on its way, the source
//! sends those whose key it does not have to the target (ASK), and the target carries out what says that it was sent (ASKING).
//! The operator sets the target to importing, then the source to migrating, moves the key, tells the target, and then the
//! source: so for a time both may carry out commands. The source may fail over to its replica, which has its data of any time
//! before, and knows of no move. The master before goes on, and three other servers learn of the failover one by one.
//!
//! A command of a client is carried out at any time after it was sent, and its answer is there at once. No two clients may hold
//! the lock, and no key may be left that nobody releases.
//!
//! Not here: extensions, and the witness (`failover`); clocks that differ.

use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, Row, row};

const NOBODY: u8 = 0xff;
/// The source, the target, and the source's replica.
const A: u8 = 0;
const B: u8 = 1;
const R: u8 = 2;
const SERVERS: usize = 3;
const CLIENTS: usize = 2;
/// Those that name the master of the slot.
const VOTERS: u8 = 3;

/// Whom a client asks whether a server still is the master of the slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    Nobody,
    /// Any of them.
    One,
    Most,
    /// As `Most`; and where none was asked, that confirms.
    Unasked,
}

/// How the operator gives a move up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivesUp {
    Never,
    /// When the target has no key; the target is told first.
    TargetFirst,
    SourceFirst,
    /// Whatever the target has.
    WithKeys,
}

#[derive(Clone, Copy)]
struct Moves {
    ttl: u8,
    quarantine: u8,
    margin: u8,
    view: View,
    /// A word of the directory holds for this number of ticks, and behind it one of the source (ASK).
    holds: u8,
    asked_holds: u8,
    /// What was sent to the target once is sent there at once from then on.
    remembers_asked: bool,
    /// A release that is sent elsewhere follows.
    releases_follow: bool,
    gives_up: GivesUp,
    fails_over: bool,
    /// So it may when the target has the slot and the source was not told yet.
    fails_between: bool,
    /// The slot may begin to move when the replica has been promoted.
    moves_late: bool,
}

const MOVE: Moves = Moves {
    ttl: 2,
    quarantine: 2,
    margin: 1,
    view: View::Most,
    holds: 1,
    asked_holds: 0,
    remembers_asked: false,
    releases_follow: true,
    gives_up: GivesUp::Never,
    fails_over: false,
    fails_between: false,
    moves_late: false,
};
const FAILS_OVER: Moves = Moves {
    fails_over: true,
    ..MOVE
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    let gives_up = |gives_up| Moves { gives_up, ..MOVE };
    vec![
        row("M1.1", Holds(94_932), "a slot moves", MOVE),
        row("M1.2", Broken(7, 2_990), "a release that is sent elsewhere is dropped (against R45)",
            Moves { releases_follow: false, ..MOVE }),
        row("M1.3", Broken(7, 4_262), "the target is asked although the source has not named it", Moves { remembers_asked: true, ..MOVE }),
        row("M1.4", Holds(110_636), "a move is given up, the target is told first", gives_up(GivesUp::TargetFirst)),
        row("M1.5", Broken(8, 6_961), "the same, the source is told first", gives_up(GivesUp::SourceFirst)),
        row("M1.6", Broken(9, 11_913), "the same, the target has the key", gives_up(GivesUp::WithKeys)),
        row("M2.1", Holds(853_088), "the source fails over, before, behind or in the middle of a move, and goes on", FAILS_OVER),
        row("M2.2", Holds(1_006_682), "the same, the source's word holds for a tick, too: a lock's time counts from before it was asked for",
            Moves { asked_holds: 1, ..FAILS_OVER }),
        row("M2.3", Broken(12, 324_668), "one server that names the master is believed (against R43)", Moves { view: View::One, ..FAILS_OVER }),
        row("M2.4", Broken(12, 59_989), "no server is asked (against R43)", Moves { view: View::Nobody, ..FAILS_OVER }),
        row("M2.4b", Broken(12, 306_118), "servers that are silent, or were not asked, confirm (against R43)",
            Moves { view: View::Unasked, ..FAILS_OVER }),
        row("M2.5", Broken(9, 54_525), "the slot moves from a promoted master that gives no votes yet", Moves { moves_late: true, ..FAILS_OVER }),
        row("M2.6", Broken(22, 2_189_192), "the source fails over when the target has the slot and the source was not told yet",
            Moves { fails_between: true, ..FAILS_OVER }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    /// The one that has the slot, as it believes.
    owner: u8,
    migrating: bool,
    importing: bool,
    holder: u8,
    left: u8,
    /// For so long it gives no votes.
    waits: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Acquire,
    Release,
}

/// A command on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Command {
    kind: Kind,
    to: u8,
    asking: bool,
    /// Ticks since the source has named the target.
    named: u8,
    /// What would be left of a lock.
    valid: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    belief: u8,
    command: Option<Command>,
    /// The server that has the slot, as far as it knows, and ticks since the directory has named it.
    map: u8,
    viewed: u8,
    was_sent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Move {
    None,
    /// From then on the target imports.
    Begun,
    UnderWay,
    /// The target has the slot, or the first of two was told that it does not move.
    Ending,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    progress: Move,
    /// The replica was promoted, and how many of the others know it.
    promoted: bool,
    told: u8,
}

impl State {
    /// The one of the two that others follow.
    fn source(&self) -> usize {
        usize::from(if self.promoted { R } else { A })
    }

    /// What those say that were told, or most of them, once they agree.
    fn named(&self, told: bool) -> u8 {
        let moved = matches!(self.progress, Move::Ending | Move::Ended)
            && self.servers[usize::from(B)].owner == B;
        match (moved, told && self.promoted) {
            (true, _) => B,
            (false, true) => R,
            (false, false) => A,
        }
    }
}

impl Moves {
    fn tick(&self, state: &State, steps: &mut Steps<State>) {
        // Most of the others learn it at once.
        if state.promoted && state.told <= VOTERS / 2 {
            return;
        }
        let mut new = *state;
        for server in &mut new.servers {
            server.waits = server.waits.saturating_sub(1);
            server.left = server.left.saturating_sub(1);
            if server.left == 0 {
                server.holder = NOBODY;
            }
        }
        for client in &mut new.clients {
            client.belief = client.belief.saturating_sub(1);
            client.viewed = (client.viewed + 1).min(self.holds + 1);
            if let Some(command) = &mut client.command {
                command.valid = command.valid.saturating_sub(1);
                command.named = (command.named + 1).min(self.asked_holds + 1);
            }
        }
        steps.add(new, || "a tick".into());
    }

    fn client_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        self.ask_directory(state, at, steps);
        self.ask_nobody(state, at, steps);
        if self.remembers_asked && state.servers[state.source()].migrating {
            let mut new = *state;
            new.clients[at].was_sent = true;
            steps.add(new, || {
                format!(
                    "{} is told ASK B for another name in the slot",
                    client_name(at)
                )
            });
        }
        if let Some(command) = client.command {
            self.carry_out(state, at, command, steps);
            return;
        }
        let (kind, word) = match client.belief {
            0 => (Kind::Acquire, "acquires"),
            _ => (Kind::Release, "releases"),
        };
        let mut new = *state;
        new.clients[at].belief = 0;
        new.clients[at].command = Some(Command {
            kind,
            to: client.map,
            asking: false,
            named: 0,
            valid: self.ttl,
        });
        steps.add(new, || format!("{} {word}", client_name(at)));
        if self.remembers_asked && client.was_sent && kind == Kind::Acquire {
            let to = new.clients[at].command.as_mut().expect("it was sent");
            (to.to, to.asking) = (B, true);
            steps.add(new, || format!("{} {word} at the target", client_name(at)));
        }
    }

    /// Rule R43.
    fn ask_directory(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let most = state.told > VOTERS / 2;
        let some = state.told < VOTERS;
        let says: &[bool] = match self.view {
            View::Nobody => return,
            View::Most | View::Unasked => &[most],
            // Any that was told, and any that was not.
            View::One if some && state.told > 0 => &[true, false],
            View::One => &[!some],
        };
        for told in says {
            let mut new = *state;
            let client = &mut new.clients[at];
            (client.map, client.viewed) = (state.named(*told), 0);
            // Another address ends the connection, and what is on it does not count.
            client.command = client.command.filter(|command| {
                command.asking || command.kind == Kind::Release || command.to == client.map
            });
            if new != *state {
                steps.add(new, || format!("{} asks the directory", client_name(at)));
            }
        }
    }

    /// Against rule R43.
    fn ask_nobody(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        new.clients[at].viewed = 0;
        if self.view == View::Unasked && new != *state {
            steps.add(new, || {
                format!("{} does not ask the directory", client_name(at))
            });
        }
    }

    fn carry_out(&self, state: &State, at: usize, command: Command, steps: &mut Steps<State>) {
        let of = usize::from(command.to);
        let server = state.servers[of];
        let mut new = *state;
        let client = &mut new.clients[at];
        let acquires = command.kind == Kind::Acquire;
        let old = match command.asking {
            true => command.named > self.asked_holds,
            false => self.view != View::Nobody && client.viewed > self.holds,
        };
        if acquires && old {
            // It is not sent: the caller may try again.
            client.command = None;
            steps.add(new, || format!("{} gives up", client_name(at)));
            return;
        }
        let elsewhere = if usize::from(server.owner) == of {
            (server.migrating && server.holder == NOBODY).then_some((B, true))
        } else if server.importing && command.asking {
            None
        } else {
            Some((server.owner, false))
        };
        if let Some((to, asking)) = elsewhere {
            let follows = acquires || self.releases_follow;
            if !asking {
                client.map = to;
            }
            client.was_sent |= asking;
            client.command = follows.then_some(Command {
                to,
                asking,
                named: 0,
                ..command
            });
            steps.add(new, || {
                let says = if asking { "ASK" } else { "MOVED" };
                format!("{} is told {says} {}", client_name(at), server_name(to))
            });
            return;
        }
        client.command = None;
        let server = &mut new.servers[of];
        match command.kind {
            Kind::Release if usize::from(server.holder) == at => {
                (server.holder, server.left) = (NOBODY, 0);
            }
            Kind::Acquire if server.waits == 0 && server.holder == NOBODY => {
                (server.holder, server.left) = (at as u8, self.ttl);
                client.belief = command.valid;
                if command.valid == 0 {
                    // It came too late, and is undone.
                    client.command = Some(Command {
                        kind: Kind::Release,
                        ..command
                    });
                }
            }
            Kind::Acquire | Kind::Release => {}
        }
        steps.add(new, || {
            format!(
                "{}'s command is carried out on {}",
                client_name(at),
                server_name(command.to)
            )
        });
    }

    fn operator_steps(&self, state: &State, steps: &mut Steps<State>) {
        let (source, target) = (state.source(), usize::from(B));
        let mut new = *state;
        match state.progress {
            Move::None if !state.promoted || self.moves_late => {
                new.servers[target].importing = true;
                new.progress = Move::Begun;
                steps.add(new, || "the target imports".into());
            }
            Move::Begun if !state.promoted || self.moves_late => {
                new.servers[source].migrating = true;
                new.progress = Move::UnderWay;
                steps.add(new, || "the source migrates".into());
            }
            Move::UnderWay if state.servers[source].migrating => {
                self.move_on(state, steps);
                self.give_up(state, steps);
            }
            Move::Ending => {
                let server = &mut new.servers[source];
                (server.migrating, server.owner) = (false, state.servers[target].owner);
                if server.owner != B {
                    server.owner = source as u8;
                }
                new.servers[target].importing = false;
                new.progress = Move::Ended;
                steps.add(new, || "the other one is told".into());
            }
            _ => {}
        }
    }

    fn move_on(&self, state: &State, steps: &mut Steps<State>) {
        let (source, target) = (state.source(), usize::from(B));
        let key = state.servers[source];
        let mut new = *state;
        if key.holder != NOBODY && state.servers[target].holder == NOBODY {
            let server = &mut new.servers[target];
            (server.holder, server.left) = (key.holder, key.left);
            let server = &mut new.servers[source];
            (server.holder, server.left) = (NOBODY, 0);
            steps.add(new, || "the key moves".into());
        }
        if key.holder == NOBODY {
            let mut new = *state;
            let server = &mut new.servers[target];
            (server.owner, server.importing) = (B, false);
            new.progress = Move::Ending;
            steps.add(new, || "the target has the slot".into());
        }
    }

    fn give_up(&self, state: &State, steps: &mut Steps<State>) {
        let (source, target) = (state.source(), usize::from(B));
        let mut new = *state;
        let empty = state.servers[target].holder == NOBODY;
        match self.gives_up {
            GivesUp::TargetFirst if empty => new.servers[target].importing = false,
            GivesUp::SourceFirst if empty => new.servers[source].migrating = false,
            GivesUp::WithKeys => new.servers[target].importing = false,
            _ => return,
        }
        new.progress = Move::Ending;
        steps.add(new, || "the move is given up".into());
    }

    fn failover_steps(&self, state: &State, steps: &mut Steps<State>) {
        let (old, replica) = (usize::from(A), usize::from(R));
        let may = self.fails_over && (state.progress != Move::Ending || self.fails_between);
        if !state.promoted && may && state.servers[old].owner == A {
            // With the key, or without.
            for holder in [state.servers[old].holder, NOBODY] {
                let mut new = *state;
                new.promoted = true;
                new.servers[replica] = Server {
                    owner: R,
                    holder,
                    left: if holder == NOBODY {
                        0
                    } else {
                        state.servers[old].left
                    },
                    waits: self.quarantine + self.margin,
                    migrating: false,
                    importing: false,
                };
                steps.add(new, || "the replica is promoted".into());
            }
        }
        if state.promoted && state.told < VOTERS {
            let mut new = *state;
            new.told += 1;
            let server = &mut new.servers[usize::from(B)];
            if server.owner == A {
                server.owner = R;
            }
            steps.add(new, || "another server learns of the failover".into());
        }
        if state.promoted && state.servers[old].owner == A {
            let mut new = *state;
            let server = &mut new.servers[old];
            (server.owner, server.migrating) = (R, false);
            steps.add(new, || "the master before learns of the failover".into());
        }
    }

    /// Where the source failed over, what it had may come back.
    fn is_left(&self, state: &State) -> bool {
        let is_left = |server: &Server| {
            let Some(client) = state.clients.get(usize::from(server.holder)) else {
                return false;
            };
            // It was released in the same tick.
            client.belief == 0 && client.command.is_none() && server.left == self.ttl
        };
        !self.fails_over && state.servers.iter().any(is_left)
    }
}

fn client_name(at: usize) -> char {
    ['X', 'Y'][at]
}

fn server_name(of: u8) -> char {
    ['A', 'B', 'R'][usize::from(of)]
}

impl World for Moves {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        let server = Server {
            owner: A,
            migrating: false,
            importing: false,
            holder: NOBODY,
            left: 0,
            waits: 0,
        };
        let client = Client {
            belief: 0,
            command: None,
            map: A,
            viewed: 0,
            was_sent: false,
        };
        vec![State {
            servers: [server; SERVERS],
            clients: [client; CLIENTS],
            progress: Move::None,
            promoted: false,
            told: 0,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        self.tick(state, steps);
        for at in 0..CLIENTS {
            self.client_steps(state, at, steps);
        }
        self.operator_steps(state, steps);
        self.failover_steps(state, steps);
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let holders = state.clients.iter().filter(|client| client.belief > 0);
        if holders.count() > 1 {
            return Some("two clients hold the lock at the same time");
        }
        self.is_left(state)
            .then_some("a released lock is left to end with its ttl")
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for (of, server) in (0..).zip(&state.servers) {
            let lock = match server.holder {
                NOBODY => "-".into(),
                holder => format!("{}:{}", client_name(usize::from(holder)), server.left),
            };
            let migrating = if server.migrating { " migrating" } else { "" };
            let importing = if server.importing { " importing" } else { "" };
            let owner = server_name(server.owner);
            text += &format!(
                "[{} says {owner}{migrating}{importing} {lock}] ",
                server_name(of)
            );
        }
        for (at, client) in state.clients.iter().enumerate() {
            text += &format!(" {}", client_name(at));
            if let Some(command) = client.command {
                let asking = if command.asking { " asking" } else { "" };
                text += &format!(" to {}{asking}", server_name(command.to));
            }
            if client.belief > 0 {
                text += &format!(" HOLDS({})", client.belief);
            }
        }
        text
    }
}
