//! How clients connect, and the servers that they find.

use std::time::Duration;

use super::basics::{CONNECT_TIMEOUT, MS};
use super::client::{Task, guard};
use super::connection::{Connection, LooksAgain};
use super::counts::trace;
use super::server::Trouble;
use super::world::{Count, Event, World};
use crate::errors::cause::Cause;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::commands::dialect::{Delete, Dialect, Scripts};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::clock_watch::ClockReading;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::witness::{Witness, refused};
use crate::protocol::node::witness_look::Judged;

impl World {
    pub(super) fn connect(&mut self, c: usize, node: usize) {
        if self.clients[c].driver.connections[node].is_none() {
            self.clients[c].driver.workers[node] = Task::Connects;
        }
        match self.conditions.is_set() {
            true => self.find(c, node),
            false => self.connect_to(c, node),
        }
    }

    /// Connects to the server that the name leads to, or that the sentinels have named.
    pub(super) fn connect_to(&mut self, c: usize, node: usize) {
        let refused = self.servers[node].has(Trouble::RefusesConnections, self.t);
        let luck = self.conditions.faultless || self.quiet || !self.random.chance(10);
        let at = self.t + self.delay(node) + self.delay(node);
        let (client, well) = (c, !refused && luck);
        self.comes_through(c, node, at);
        self.at(at, Event::Connected { client, node, well });
    }

    pub(super) fn connected(&mut self, c: usize, node: usize, well: bool) {
        if self.clients[c].dead {
            return;
        }
        let paused = self.servers[node].is_paused(self.t).unwrap_or(0);
        let later = paused.max(self.clients[c].clocks.stands_until);
        if well && later > self.t {
            // A connection that takes too long has failed.
            let late = later > self.t + CONNECT_TIMEOUT;
            let at = later.min(self.t + CONNECT_TIMEOUT);
            let (client, well) = (c, !late);
            return self.at(at, Event::Connected { client, node, well });
        }
        if !well {
            self.hinder(c, node, self.t);
        }
        let (fresh, result) = self.shake_hands(c, node, well);
        let (Some(connection), Ok(mut properties), true) =
            (fresh, result.clone(), self.conditions.guarded)
        else {
            return self.has_connected(c, node, fresh, result);
        };
        let first = self.servers[node].look_at(self.net.connections[connection].instance, self.t);
        let clock = self.read_clock(c, node, self.net.connections[connection].instance);
        match first.judge(guard(self.servers.len()).seasoned()) {
            Judged::Fits(witness, _) => {
                properties.witness = Some(Witness { clock, ..witness });
                self.has_connected(c, node, fresh, Ok(properties));
            }
            Judged::LookAgain(first) => {
                self.counts[Count::SecondLooks] += 1;
                let since = self.t;
                let at = self.t + self.delay(node) + self.delay(node);
                self.comes_through(c, node, at);
                self.at(at, Event::LookAgain(self.net.looks.len()));
                self.net.looks.push(LooksAgain {
                    connection,
                    first,
                    clock,
                    properties,
                    since,
                    has_set: false,
                });
                if self.conditions.is_fragile() && self.random.chance(20) {
                    let at = self.t + self.random.below(300);
                    self.at(at, Event::Change(node));
                }
            }
        }
    }

    /// The witness is set, and the server is looked at again.
    pub(super) fn look_again(&mut self, at: usize) {
        let looks = &self.net.looks[at];
        let (connection, since) = (looks.connection, looks.since);
        let Connection {
            client: c,
            node,
            instance,
            ..
        } = self.net.connections[connection];
        if self.clients[c].dead {
            return;
        }
        let paused = self.servers[node].is_paused(self.t).unwrap_or(0);
        let later = paused.max(self.clients[c].clocks.stands_until);
        let late = later.max(self.t) > since + CONNECT_TIMEOUT;
        if later > self.t && !late {
            return self.at(later, Event::LookAgain(at));
        }
        if !self.net.connections[connection].is_open() || late {
            let closed = Err(Cause::Closed("while it was set up".into()));
            return self.has_connected(c, node, Some(connection), closed);
        }
        let looks = &self.net.looks[at];
        let (first, mut properties) = (looks.first.clone(), looks.properties.clone());
        let set = first.set_witness(WITNESS, self.random.next());
        let sets = !std::mem::replace(&mut self.net.looks[at].has_set, true);
        if let Some(set) = set.filter(|_| sets)
            && let Err(refused) = self.set_witness(connection, &set)
        {
            return self.has_connected(c, node, Some(connection), Err(refused));
        }
        // The client may read the rest in another turn.
        if sets && self.random.chance(20) {
            let long = self.conditions.is_fragile() && self.random.chance(50);
            // Long enough for the witness to be old, and for another server to be the master meanwhile.
            let long = if long { 400 * MS } else { 0 };
            let later = self.t + self.delay(node) + self.random.below(long + 1);
            self.comes_through(c, node, later);
            return self.at(later, Event::LookAgain(at));
        }
        if self.servers[node].instances[instance].is_replica {
            return self.has_connected(c, node, Some(connection), Err(Cause::Replica(None)));
        }
        let mut second = self.servers[node].look_at(instance, self.t);
        if mutant(Mutant::CalmReadFirst) {
            second.flushed = first.flushed;
        }
        let uptime = self.uptime(node, instance);
        properties.uptime = Some((uptime, self.now(c)));
        let witness = first.and(second);
        let clock = self.net.looks[at].clock;
        let result = witness.map(|witness| ServerProperties {
            witness: Some(Witness { clock, ..witness }),
            ..properties
        });
        self.has_connected(c, node, Some(connection), result);
    }

    fn set_witness(&mut self, connection: usize, set: &[Vec<u8>]) -> Result<(), Cause> {
        let Connection { node, instance, .. } = self.net.connections[connection];
        let set: Vec<&[u8]> = set.iter().map(Vec::as_slice).collect();
        let asked = std::mem::replace(&mut self.servers[node].asked, instance);
        self.servers[node].demoted = self.net.connections[connection].demoted;
        let reply = self.ask(node, &set, None);
        self.servers[node].asked = asked;
        match reply.strip_prefix(b"-") {
            // Here a user may soon be permitted again what is refused now.
            Some(text) if text.starts_with(b"NOPERM") => Err(Cause::Connect("refused".into())),
            Some(text) => Err(refused(&String::from_utf8_lossy(text))),
            None => Ok(()),
        }
    }

    /// The clock of one of a node's servers, read in no time. Where clocks are not set, they may run so fast as if they
    /// were, and users may not read them.
    fn read_clock(&self, c: usize, node: usize, instance: usize) -> Option<ClockReading> {
        let time = self.servers[node].instances[instance].time(self.t);
        let reading = ClockReading {
            time_of_day: Duration::from_micros(time),
            sent: self.now(c),
            received: self.now(c),
        };
        self.servers[node].clock_is_watched.then_some(reading)
    }

    fn uptime(&mut self, node: usize, instance: usize) -> Duration {
        let server = &mut self.servers[node];
        let asked = std::mem::replace(&mut server.asked, instance);
        let uptime = server.uptime(self.t, &mut self.random);
        server.asked = asked;
        Duration::from_micros(uptime)
    }

    pub(super) fn has_connected(
        &mut self,
        c: usize,
        node: usize,
        fresh: Option<usize>,
        result: Result<ServerProperties, Cause>,
    ) {
        let well = result.is_ok();
        trace!(self, "client {c} has connected {node}: {result:?}");
        let now = self.now(c);
        let released = self.conditions.is_forsaken() && self.clients[c].forsaken.gone_by > self.t;
        if released && well && self.clients[c].forsaken.unlucky > 0 {
            self.clients[c].forsaken.unlucky -= 1;
            let at = self.t + self.random.below(400);
            self.at(at, Event::Forsake(c));
        }
        if self.clients[c].core.connected(node, result, now) {
            self.clients[c].driver.fresh[node] = fresh;
        } else if let Some(fresh) = fresh {
            self.give_up(fresh, false);
        }
        let worker = &mut self.clients[c].driver.workers[node];
        if *worker == Task::Connects {
            *worker = Task::Runs;
        }
        self.announce(c);
        self.pump(c);
    }

    /// A new connection, and the report of its server.
    fn shake_hands(
        &mut self,
        c: usize,
        node: usize,
        well: bool,
    ) -> (Option<usize>, Result<ServerProperties, Cause>) {
        let mut fresh = None;
        let named = self.clients[c].driver.places[node].found.take();
        let (t, server) = (self.t, &self.servers[node]);
        let leads_to = |named: &(usize, _)| server.sentinels.leads_to(t, c, named.0);
        let well = well && named.as_ref().is_none_or(leads_to);
        let is_replica = |named: &(usize, _)| server.instances[named.0].is_replica;
        let is_replica = named.as_ref().is_some_and(is_replica);
        let result = if well && (server.has(Trouble::Replica, t) || is_replica) {
            Err(Cause::Replica(None))
        } else if well {
            let instance = match &named {
                Some((instance, _)) => *instance,
                None => self.servers[node].resolve(&mut self.random),
            };
            self.net
                .connections
                .push(Connection::new(c, node, instance, t));
            let connection = self.net.connections.len() - 1;
            trace!(
                self,
                "connection {connection}: client {c}, node {node}, {instance}"
            );
            fresh = Some(connection);
            let by_hash = self.random.chance(70);
            if by_hash {
                self.servers[node].instances[instance].store.load_scripts();
            }
            let uptime = self.uptime(node, instance);
            Ok(ServerProperties {
                dialect: self.random_means(node, by_hash),
                run_id: Some(self.servers[node].run_id(node, instance)),
                uptime: Some((uptime, self.now(c))),
                by_record: self.conditions.by_record,
                found: named.map(|(_, found)| found),
                ..ServerProperties::default()
            })
        } else {
            Err(Cause::Connect("refused".into()))
        };
        (fresh, result)
    }

    /// How a server takes commands: some run no scripts, and delete without.
    fn random_means(&mut self, node: usize, by_hash: bool) -> Dialect {
        let delete = match self.random.chance(50) {
            true => Delete::IfEq,
            false => Delete::Ex,
        };
        // If it runs none, no waiter is notified.
        let runs_none = self.servers[node].runs_no_scripts && !self.conditions.prompt;
        Dialect {
            scripts: match runs_none {
                true => Scripts::None(delete),
                false => Scripts::by_hash_if(by_hash),
            },
            ..Dialect::default()
        }
    }
}
