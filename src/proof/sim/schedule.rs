//! One schedule: a world from its seed, a time of faults, then quiet, then nothing may be left.

use std::time::Duration;

use super::agenda::Agenda;
use super::basics::{CONNECT_TIMEOUT, MS, NODE_TIMEOUT, PROBED, Random, Violation};
use super::client::{Client, Doing, Thread};
use super::conditions::{Conditions, Locks};
use super::connection::Net;
use super::server::Server;
use super::world::{Checks, Count, Counts, Event, World};
use crate::protocol::mutants::Promise;
use crate::values::arithmetic::Ttl;

impl World {
    pub(super) fn new(seed: u64, traced: bool) -> World {
        let mut random = Random(seed);
        let nodes = [1, 2, 3, 3, 4, 5][random.pick(6)];
        let clients = 2 + random.pick(2);
        let mut conditions = Conditions::draw(&mut random);
        let fragile = seed % 8 == 4;
        if fragile {
            conditions = Conditions::fragile(conditions);
        }
        let set = seed % 8 == 5;
        if set {
            conditions = conditions.of_set(random.chance(40));
        }
        let nodes = if (fragile || set) && random.chance(85) {
            1
        } else {
            nodes
        };
        match seed % 8 {
            _ if conditions.fair => {}
            0 | 1 => conditions.locks = Locks::Permits([1, 2, 2, 3][random.pick(4)]),
            2 => conditions.locks = Locks::ReadWrite,
            3 => conditions.locks = Locks::Several,
            _ => {}
        }
        let clients = match conditions.fair && conditions.prompt {
            _ if conditions.is_forsaken() => 1,
            // One client may hang, and the order of the others counts.
            true => 3,
            false => clients,
        };
        // Locks on other resources make a free one seem held.
        let collides = conditions.waits && !conditions.prompt && random.chance(30);
        let counters = if collides { 1 } else { 1024 };
        let mut world = World {
            t: 0,
            agenda: Agenda::new(),
            servers: servers(&conditions, nodes, &mut random),
            clients: (0..clients)
                .map(|number| Client::new(number, nodes, &conditions, counters, &mut random))
                .collect(),
            random,
            net: Net::default(),
            checks: Checks::default(),
            conditions,
            quiet: false,
            counts: Counts::default(),
            traced,
        };
        if seed / 8 % 2 == 1 && world.conditions.watches_clocks() {
            world.clients.iter_mut().for_each(|one| one.clocks.steady());
            world.servers.iter_mut().for_each(Server::watch_clock);
        }
        world.start();
        world
    }

    fn start(&mut self) {
        if self.conditions.sluggish {
            // Threads of different clients meet on the nodes.
            let threads = self.clients.iter_mut().map(|client| &mut client.threads);
            threads.for_each(|threads| threads.truncate(1));
        }
        for client in 0..self.clients.len() {
            let at = self.random.below(10 * MS);
            self.at(at, Event::Wake(client));
        }
        let faults = !self.conditions.faultless || self.conditions.prompt;
        if faults && !self.conditions.is_forsaken() {
            let at = self.random.below(20 * MS);
            self.at(at, Event::Fault);
        }
    }

    /// A schedule: a time of faults, then quiet, then nothing may be left.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        if self.conditions.is_forsaken() {
            return self.run_forsaken();
        }
        let long = match self.conditions.guarded {
            true if self.conditions.is_fragile() => 2000,
            true if self.conditions.fails_over => 1000,
            true => 500,
            false => 200,
        };
        let long = match (self.conditions.lazy, self.conditions.sluggish) {
            (true, _) => 4000,
            (_, true) => 2000,
            _ => long,
        };
        let busy = 60 * MS + self.random.below(long * MS);
        self.until(busy);
        self.quiet = true;
        for client in 0..self.clients.len() {
            self.calm(client);
        }
        for server in &mut self.servers {
            server.calm();
            server.settle();
            server.sentinels.calm(server.named);
        }
        // Workers pause for up to 0.7 s; deferred work is tried again with later operations.
        let mut left = None;
        // Waiters may poll; subscriptions end a time after the last need.
        let (rounds, long) = if self.conditions.waits {
            (14, 3000)
        } else {
            (8, 1000)
        };
        for _ in 0..rounds {
            (self.checks.probes, self.checks.probes_failed) = (0, 0);
            for client in 0..self.clients.len() {
                self.probe(client);
            }
            self.until(self.t + long * MS);
            left = self.left();
            if left.is_none() || self.checks.wrong.is_some() {
                break;
            }
        }
        if left.is_none() {
            self.close();
        }
        match self.checks.wrong.take().or(left) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// A schedule after which nothing follows: nothing may be left all the same, and no thread.
    fn run_forsaken(&mut self) -> Result<(), Violation> {
        self.quiet = true;
        self.probe(0);
        // Long after the thread that confirms the release has ended: another one confirms the next.
        self.until(6000 * MS);
        self.probe(0);
        self.until(self.t + 9000 * MS);
        match self.checks.wrong.take().or(self.left()) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// Nothing is in a client's way any longer, and it gives up the locks that it holds.
    fn calm(&mut self, c: usize) {
        for connection in &mut self.net.connections {
            connection.release(self.t);
        }
        self.at(self.t, Event::Wake(c));
    }

    /// One thread that has nothing to do takes and releases a lock without contention.
    fn probe(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        let stopped = |thread: &Thread| matches!(thread.doing, Doing::Stopped | Doing::Idle(_));
        let Some(thread) = self.clients[c].threads.iter().position(stopped) else {
            return;
        };
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
        self.checks.probes += 1;
        let resource = PROBED + u8::try_from(c).unwrap();
        self.try_once(c, thread, resource, ttl);
        self.pump(c);
    }

    /// All clients are closed.
    fn close(&mut self) {
        for client in 0..self.clients.len() {
            self.close_client(client);
        }
        self.until(self.t + NODE_TIMEOUT);
        // A thread that is connecting ends later.
        if self.clients.iter().any(Client::connects) {
            self.until(self.t + CONNECT_TIMEOUT);
        }
        let running = |client: &Client| client.running();
        let left = self.clients.iter().find_map(running);
        left.into_iter()
            .for_each(|left| self.violated(Promise::AllEnds, left));
    }

    /// Anything that is not as it must be when all is quiet.
    fn left(&self) -> Option<Violation> {
        for (node, server) in self.servers.iter().enumerate() {
            for (resource, token) in server.locks(self.t) {
                let history = &self.checks.tokens[token];
                if history.belief.is_none() && !history.leaked {
                    let what = format!("node {node}: {resource} is left behind by {token}");
                    return Some(Violation::of(Promise::NothingLeft, what));
                }
            }
        }
        if let Some(token) = self.not_shortened() {
            let what = format!("{token} was shortened, and a server has it still");
            return Some(Violation::of(Promise::NothingLeft, what));
        }
        if self.checks.probes_failed > 0 || self.checks.probes == 0 {
            let (failed, all) = (self.checks.probes_failed, self.checks.probes);
            let what = format!("{failed} of {all} locks cannot be acquired");
            return Some(Violation::of(Promise::Available, what));
        }
        let not_quiescent = |(at, client): (usize, &Client)| {
            let what = format!("client {at}: {}", client.not_quiescent()?);
            Some(Violation::of(Promise::AllEnds, what))
        };
        let not_quiescent = self.clients.iter().enumerate().find_map(not_quiescent);
        not_quiescent.or_else(|| self.still_waits())
    }

    fn until(&mut self, end: u64) {
        while let Some((at, event)) = self.agenda.next(end) {
            self.t = at;
            self.counts[Count::Events] += 1;
            match event {
                Event::Arrive(connection) => self.arrive(connection),
                Event::Deliver(connection) => self.deliver(connection),
                Event::Leftover(connection) => self.leftover(connection),
                Event::Connected { client, node, well } => self.connected(client, node, well),
                Event::Wake(client) => self.pump(client),
                Event::Subscription(subscription, sound) => self.sound(subscription, sound),
                Event::Late(at) => self.join_late(at),
                Event::Fault => self.fault(),
                Event::Forsake(client) => self.forsake(client),
                Event::LookAgain(at) => self.look_again(at),
                Event::Demoted(node, instance) => self.demoted(node, instance),
                Event::Back(node, instance) => self.back(node, instance),
                Event::Change(node) => self.change_servers(node),
                Event::Promote(node) => self.promote(node),
                Event::Heals(node, master) => self.heals(node, master),
                Event::Asks(client, node, asks) => self.asked(client, node, asks),
                Event::Gone(token) => self.is_gone(token),
                Event::InPlace(token) => self.is_in_place(token, true),
            }
            self.watch();
            self.watch_kept();
            if self.checks.wrong.is_some() {
                return;
            }
        }
        self.t = end;
    }
}

fn servers(conditions: &Conditions, nodes: usize, random: &mut Random) -> Vec<Server> {
    let new = |_| {
        let instances = match conditions.fails_over {
            true => 2 + random.pick(2),
            false => 1,
        };
        Server::new(conditions.guarded, instances, random)
    };
    (0..nodes).map(new).collect()
}
