//! Slots that move, shards that fail over, and servers that are removed.

use super::super::basics::MS;
use super::super::counts::trace;
use super::process::Doing;
use super::servers::{NAMES, Parted, REPLICA, SERVERS, name_of};
use super::world::{Count, Event, ShardWorld};
use crate::protocol::commands::companions::tag;
use crate::protocol::commands::slots::slot;
use crate::testing::store::StoredValue;

/// For this long after a failover of its shard no slot moves: longer than a new master gives no votes.
pub(super) const UNMOVED: u64 = 7_000 * MS;

/// The steps of a move.
const IMPORT: usize = 0;
const MIGRATE: usize = 1;
const KEYS: usize = 2;
const OWN: usize = 3;
const DISOWN: usize = 4;

impl ShardWorld {
    /// A slot of a Cluster begins to move to the other shard's master.
    pub(super) fn begin_move(&mut self, cluster: usize) {
        let name = self.random.pick(NAMES.len() - 1);
        if !self.quiet {
            self.move_name(cluster, name);
            let next = self.t + 20 * MS + self.random.below(1500 * MS);
            self.at(next, Event::Move(cluster));
        }
    }

    /// Begins to move a slot, if none is on its way.
    pub(super) fn move_name(&mut self, cluster: usize, name: usize) -> bool {
        let lately = self
            .checks
            .failed_over
            .is_some_and(|at| self.t < at + UNMOVED);
        let here = &mut self.clusters[cluster];
        let Some(owner) = here
            .owner(name)
            .filter(|_| here.moving.is_none() && !lately)
        else {
            return false;
        };
        // Where the other master was removed, there is none to move to.
        let masters = here.servers[owner].masters;
        if masters[0] == masters[1] {
            return false;
        }
        here.moving = Some(name);
        self.at(self.t, Event::CallStep(cluster, name, IMPORT));
        true
    }

    pub(super) fn step_move(&mut self, cluster: usize, name: usize, step: usize) {
        let here = &mut self.clusters[cluster];
        let Some(from) = here.owner(name).filter(|_| here.moving == Some(name)) else {
            return;
        };
        let masters = here.servers[from].masters;
        let to = match masters[0] == from {
            true => masters[1],
            false => masters[0],
        };
        if !here.servers[to].alive {
            here.moving = None;
            return;
        }
        trace!(
            self,
            "cluster {cluster}: {} moves, step {step}", NAMES[name]
        );
        // Each step is a command for each of the two, or several (rule R8).
        self.turn(cluster, from);
        self.turn(cluster, to);
        let has_more = step == KEYS && self.move_key((cluster, name), from, to);
        let here = &mut self.clusters[cluster];
        let mut pause = self.random.below(10 * MS);
        let mut next = step + 1;
        match step {
            IMPORT => here.servers[to].importing[name] = Some(from),
            MIGRATE => here.servers[from].migrating[name] = Some(to),
            KEYS if has_more => next = KEYS,
            OWN => {
                self.checks.counts[Count::Moves] += 1;
                if !self.quiet && self.conditions.disagrees && self.random.chance(40) {
                    // The source learns first, and each of the two names the other one.
                    let until = self.t + 300 * MS + self.random.below(3000 * MS);
                    let source = &mut self.clusters[cluster].servers[from];
                    (source.view[name], source.migrating[name]) = (to, None);
                    return self.at(until, Event::Settles(cluster, name, to));
                }
                let target = &mut here.servers[to];
                (target.view[name], target.importing[name]) = (to, None);
                // The source still has the slot, in its own opinion.
                let at = self.t + pause;
                return self.at(at, Event::Settles(cluster, name, to));
            }
            DISOWN => return,
            _ => {}
        }
        if step == MIGRATE && self.random.chance(40) {
            pause += self.random.below(400 * MS);
        }
        let at = self.t + pause;
        self.at(at, Event::CallStep(cluster, name, next));
    }

    /// The two servers that move a slot learn which of them owns it; others do later.
    pub(super) fn settles(&mut self, cluster: usize, name: usize, to: usize) {
        let late = self.t + self.random.below(1500 * MS);
        let here = &mut self.clusters[cluster];
        if here.moving != Some(name) {
            return;
        }
        for at in 0..SERVERS {
            let server = &mut here.servers[at];
            let takes_part =
                at == to || server.view[name] == at || server.migrating[name].is_some();
            if takes_part {
                server.view[name] = to;
                (server.migrating[name], server.importing[name]) = (None, None);
            }
        }
        here.moving = None;
        self.at(late, Event::Learns(cluster, name));
    }

    /// All servers learn which server owns a slot, if none is on its way.
    pub(super) fn learns(&mut self, cluster: usize, name: usize) {
        let here = &mut self.clusters[cluster];
        if here.moving != Some(name)
            && let Some(owner) = here.owner(name)
        {
            let is_replaced = here.servers[1].masters[0] != 0;
            for server in here.servers.iter_mut().skip(usize::from(is_replaced)) {
                server.view[name] = owner;
            }
        }
    }

    /// Moves one key of a slot. Returns false if the source has none.
    fn move_key(&mut self, (cluster, name): (usize, usize), from: usize, to: usize) -> bool {
        let own = slot(&[NAMES[name]]);
        let source = &mut self.clusters[cluster].servers[from].here;
        let time = source.time(self.t);
        let keys = source.store.keys(time);
        let here = |key: &&[u8]| slot(key) == own && (tag(key).is_some() || key.len() == 1);
        let mut all: Vec<(Vec<u8>, StoredValue, Option<u64>)> = keys
            .filter(|(key, ..)| here(key))
            .map(|(key, value, left)| (key.to_vec(), value.clone(), left))
            .collect();
        if all.is_empty() {
            return false;
        }
        let (key, value, left) = all.swap_remove(self.random.pick(all.len()));
        source.store.remove(&key);
        let target = &mut self.clusters[cluster].servers[to].here;
        let last = left.map(|left| target.time(self.t) / 1000 + left);
        target.store.remove(&key);
        target.store.insert(&key, value, last);
        trace!(self, "cluster {cluster}: key {} moves", key.escape_ascii());
        true
    }

    // ---- failovers

    /// The replica of the first shard takes its master's place.
    pub(super) fn fail_over(&mut self, cluster: usize) {
        let lags = self.conditions.lags && self.random.chance(60);
        let here = &mut self.clusters[cluster];
        let [old, new] = [0, REPLICA];
        if !here.servers[old].alive || !here.servers[new].here.is_replica || self.quiet {
            return;
        }
        // Without the guard such a failover makes two holders, as any that loses a lock does: the guide says so.
        if here.moving.is_some() && !self.conditions.guarded {
            return;
        }
        self.agenda.order += 1;
        if !lags {
            self.replicate(cluster);
        }
        let (t, history) = (self.t, self.agenda.order);
        trace!(self, "cluster {cluster} fails over, lags: {lags}");
        self.checks.counts[Count::Failovers] += 1;
        self.checks.failed_over = Some(t);
        let here = &mut self.clusters[cluster];
        let promoted = &mut here.servers[new];
        (promoted.here.is_replica, promoted.here.promoted) = (false, true);
        (promoted.here.promoted_at, promoted.here.history) = (t, history);
        // A move that is under way is given up, of which the new master knows nothing, and the other one for a while too
        // much: an operator mends that once the new master votes.
        here.moving = None;
        let owned: Vec<usize> = {
            let (before, other) = (&here.servers[old], &here.servers[1]);
            let owns = |name: &usize| before.view[*name] == old && other.view[*name] != 1;
            (0..NAMES.len()).filter(owns).collect()
        };
        for at in 0..SERVERS {
            let server = &mut here.servers[at];
            if at == old {
                continue;
            }
            server.masters[0] = new;
            for name in &owned {
                server.view[*name] = new;
            }
        }
        self.at(t + UNMOVED - MS, Event::Mended(cluster));
        if self.conditions.parts {
            return self.part(cluster, old);
        }
        // The master before ends, or goes on for a while, cut off from the others.
        let goes_on = match self.conditions.guarded && self.random.chance(50) {
            true => self.random.below(4_000 * MS),
            false => 0,
        };
        self.at(t + goes_on, Event::Ends(cluster, old));
    }

    /// A master that was replaced, and the first process, are frozen until about the time at which the next master begins to
    /// vote, the master's clock with them. The master has to notice that it is cut off before it ends.
    fn part(&mut self, cluster: usize, server: usize) {
        let long = 4_000 * MS + self.random.below(4_000 * MS);
        let frozen = self.t + long;
        let ends = frozen + 2_000 * MS + self.random.below(2_000 * MS);
        self.clusters[cluster].parted = Some(Parted {
            server,
            frozen,
            ends,
        });
        let clock = &mut self.clusters[cluster].servers[server].here.clock;
        clock.set(self.t, -i64::try_from(long).unwrap());
        for connection in 0..self.connections.len() {
            let here = &self.connections[connection];
            if here.cluster == cluster && (here.of.0 == 0) != (here.server == server) {
                self.cut(connection);
            }
        }
        // The process has so much more time for its calls.
        for thread in &mut self.processes[0].threads {
            if let Some(flight) = &mut thread.flight {
                flight.since += long;
            }
            match &mut thread.doing {
                Doing::Acquires(call) => call.ends += long,
                Doing::Releases {
                    call: Some(call), ..
                } => call.ends += long,
                _ => {}
            }
        }
        self.wake(0, frozen);
        self.at(ends, Event::Ends(cluster, server));
    }

    /// No server of a Cluster takes part in a move that was given up, and each has learnt which server owns the slot: the
    /// importing one may have taken it just before the failover. Locks whose keys the move left at a server without their
    /// slot are lost: a release of one may have gone to the promoted master, which had no such key.
    pub(super) fn mended(&mut self, cluster: usize) {
        (0..NAMES.len()).for_each(|name| self.learns(cluster, name));
        for at in 0..SERVERS {
            for token in self.locks_at(cluster, at, false) {
                self.checks.tokens[token].stranded = true;
            }
            let server = &mut self.clusters[cluster].servers[at];
            (server.importing, server.migrating) = Default::default();
        }
    }

    /// The replica gets its master's data.
    pub(super) fn replicate(&mut self, cluster: usize) {
        let servers = &mut self.clusters[cluster].servers;
        let (data, history) = (servers[0].here.store.clone(), servers[0].here.history);
        let replica = &mut servers[REPLICA].here;
        if replica.is_replica {
            replica.store.take_data_of(data);
            replica.history = history;
        }
    }

    // ---- a master that is removed

    /// The second master is removed once it has no slots, which move to the first one.
    pub(super) fn remove(&mut self, cluster: usize) {
        let here = &self.clusters[cluster];
        if !here.servers[1].alive {
            return;
        }
        let owned = (0..NAMES.len()).find(|name| here.owner(*name) == Some(1));
        let idle = here.moving.is_none();
        match owned {
            Some(name) => drop(self.move_name(cluster, name)),
            None if idle && self.knows_all(cluster) => {
                self.checks.counts[Count::Removed] += 1;
                for server in &mut self.clusters[cluster].servers {
                    server.masters[1] = server.masters[0];
                }
                return self.end_server(cluster, 1);
            }
            None => {}
        }
        self.at(self.t + 50 * MS, Event::Remove(cluster));
    }

    /// Whether all servers agree on which server owns the slots.
    fn knows_all(&self, cluster: usize) -> bool {
        let here = &self.clusters[cluster];
        let alive = here.servers.iter().filter(|server| server.alive);
        let mut views = alive.map(|server| server.view);
        let first = views.next();
        views.all(|view| Some(view) == first)
    }

    /// Whether a server owns the slot of a key that it has, so that the key can be released there.
    pub(super) fn is_owned(&self, cluster: usize, server: usize, key: &[u8]) -> bool {
        let name = name_of(slot(key));
        name.is_none_or(|name| self.clusters[cluster].owner(name) == Some(server))
    }
}
