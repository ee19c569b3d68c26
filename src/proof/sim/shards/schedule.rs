//! One schedule: a world from its seed, a time of changes and faults, then quiet, then nothing may be left.

use super::super::agenda::Agenda;
use super::super::basics::{MS, Random, Violation};
use super::super::command::token;
use super::process::{Doing, LaneState, Process, Thread};
use super::servers::{Cluster, NAMES, SERVERS};
use super::world::{Checks, Conditions, Count, Event, Locks, ShardWorld};
use crate::protocol::cluster::cluster_map::ClusterMap;
use crate::protocol::cluster::map_refreshes::Refreshes;
use crate::protocol::cluster::redirected_releases::RedirectedReleases;
use crate::protocol::mutants::Promise;
use crate::testing::store::{StoredValue, members};
use crate::values::clock;

impl Conditions {
    fn draw(seed: u64, random: &mut Random) -> Conditions {
        let nodes = if random.chance(25) { 3 } else { 1 };
        // A permit of one of several Clusters may be in another slot, which is released in between.
        let locks = match (seed / 5 % 8, seed / 40 % 2) {
            (0, 0) if nodes == 1 => Locks::Permits,
            (0, _) => Locks::ReadWrite,
            _ => Locks::Plain,
        };
        let plain = Conditions {
            nodes,
            locks,
            ..Conditions::default()
        };
        match seed % 5 {
            0 => plain,
            1 => Conditions {
                cuts: true,
                shrinks: random.chance(40),
                ..plain
            },
            2 => {
                let guarded = random.chance(80);
                Conditions {
                    fails_over: true,
                    lags: guarded || random.chance(30),
                    cuts: random.chance(30),
                    parts: guarded && (seed / 40).is_multiple_of(4),
                    guarded,
                    ..plain
                }
            }
            3 => Conditions {
                disagrees: true,
                ..plain
            },
            _ => Conditions {
                shrinks: true,
                ..plain
            },
        }
    }
}

impl ShardWorld {
    pub(crate) fn new(seed: u64, traced: bool) -> ShardWorld {
        let mut random = Random(seed ^ 0x5108);
        let conditions = Conditions::draw(seed, &mut random);
        let start = clock::instant();
        let mut world = ShardWorld {
            t: 0,
            now: start,
            agenda: Agenda::new(),
            start,
            clusters: (0..conditions.nodes)
                .map(|number| Cluster::new(number, &mut random))
                .collect(),
            processes: Vec::new(),
            connections: Vec::new(),
            conditions,
            checks: Checks::default(),
            quiet: false,
            traced,
            random,
        };
        for p in 0..2 {
            world.add_process(p);
        }
        world.begin();
        world
    }

    fn add_process(&mut self, p: usize) {
        let threads = 1 + self.random.pick(2);
        let thread = |random: &mut Random| Thread {
            doing: Doing::Idle(random.below(30 * MS)),
            lane: None,
            acquired: None,
            flight: None,
            acts: 0,
        };
        self.processes.push(Process {
            maps: self
                .clusters
                .iter()
                .map(|_| ClusterMap::default())
                .collect(),
            refreshes: Refreshes::default(),
            lanes: Vec::new(),
            active: Vec::new(),
            threads: (0..threads).map(|_| thread(&mut self.random)).collect(),
            owed: RedirectedReleases::default(),
            sent: None,
            owed_at: 0,
            wake_at: u64::MAX,
        });
        for cluster in 0..self.clusters.len() {
            self.look_up(p, cluster, 0);
        }
        self.at(p as u64, Event::Wake(p));
    }

    fn begin(&mut self) {
        // Locks at more than one Cluster whose slots are on their way are not taken.
        let moving = match self.conditions.is_calm() {
            true => 1,
            false => self.clusters.len(),
        };
        for cluster in 0..moving {
            let at = self.random.below(300 * MS);
            self.at(at, Event::Move(cluster));
        }
        if self.conditions.cuts {
            self.at(10 * MS, Event::Fault);
        }
        if self.conditions.fails_over {
            let at = 500 * MS + self.random.below(3_000 * MS);
            let cluster = self.random.pick(self.clusters.len());
            self.at(at, Event::FailOver(cluster));
        }
    }

    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let long = match self.conditions.fails_over {
            true if self.conditions.parts => 17_000,
            true => 12_000,
            false => 2_500,
        };
        self.until(long * MS);
        if self.conditions.shrinks {
            for cluster in 0..self.clusters.len() {
                self.at(self.t, Event::Remove(cluster));
            }
            // Clients that have been idle have not seen the moves.
            self.until(self.t + 1_500 * MS);
        }
        self.quiet = true;
        // All slots are somewhere, and known to be there.
        self.until(self.t + 13_000 * MS);
        let mut left = None;
        for _ in 0..3 {
            for p in 0..self.processes.len() {
                self.probe(p);
            }
            self.until(self.t + 2_000 * MS);
            left = self.left();
            if left.is_none() || self.checks.wrong.is_some() {
                break;
            }
        }
        match self.checks.wrong.take().or(left) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// One thread that has nothing to do takes a lock that no other one wants.
    fn probe(&mut self, p: usize) {
        let rests = |thread: &Thread| matches!(thread.doing, Doing::Stopped | Doing::Idle(_));
        if let Some(thread) = self.processes[p].threads.iter().position(rests) {
            self.acquire(p, thread, NAMES.len() - 1);
            self.pump(p);
        }
    }

    fn until(&mut self, end: u64) {
        while let Some((at, event)) = self.agenda.next(end) {
            self.go_to(at);
            self.checks.counts[Count::Events] += 1;
            match event {
                Event::Arrive(connection) => self.arrive(connection),
                Event::Deliver(connection) => self.deliver(connection),
                Event::Leftover(connection) => self.leftover(connection),
                Event::Connected(p, l, node) => self.connected(p, l, node),
                Event::Confirmed(p, l, node, asked) => self.confirmed(p, l, node, asked),
                Event::Wake(p) => self.pump(p),
                Event::Refresh(p) => self.refresh(p),
                Event::Refreshed(p, number, asked) => self.refreshed(p, number, asked),
                Event::Fault => self.fault(),
                Event::Move(cluster) => self.begin_move(cluster),
                Event::CallStep(cluster, name, step) => self.step_move(cluster, name, step),
                Event::FailOver(cluster) => self.fail_over(cluster),
                Event::Ends(cluster, server) => self.end_server(cluster, server),
                Event::Settles(cluster, name, to) => self.settles(cluster, name, to),
                Event::Learns(cluster, name) => self.learns(cluster, name),
                Event::Mended(cluster) => self.mended(cluster),
                Event::Remove(cluster) => self.remove(cluster),
            }
            if self.checks.wrong.is_some() {
                return;
            }
        }
        self.go_to(end);
    }

    /// Anything that is not as it must be when all is quiet.
    fn left(&self) -> Option<Violation> {
        let keys = self.keys_left();
        let keys = keys.map(|what| Violation::of(Promise::NothingLeft, what));
        let processes = || self.processes_left();
        keys.or_else(|| Some(Violation::of(Promise::AllEnds, processes()?)))
    }

    /// A lock that no thread has, on a server that can be asked for it.
    fn keys_left(&self) -> Option<String> {
        for number in 0..self.clusters.len() {
            for at in 0..SERVERS {
                for token in self.locks_at(number, at, true) {
                    let history = &self.checks.tokens[token];
                    if !history.overtaken && !history.stranded {
                        let name = history.name;
                        return Some(format!("{name} is left on {at} of {number} by {token}"));
                    }
                }
            }
        }
        None
    }

    /// The tokens of the locks on a master, of which it has the slots, or has not.
    pub(super) fn locks_at(&self, cluster: usize, at: usize, owned: bool) -> Vec<usize> {
        let server = &self.clusters[cluster].servers[at];
        if !server.alive || server.here.is_replica {
            return Vec::new();
        }
        let keys = server.here.store.keys(server.here.time(self.t));
        let locks =
            keys.filter(|(key, ..)| key.len() == 1 && self.is_owned(cluster, at, key) == owned);
        let tokens = locks.flat_map(|(_, value, _)| match value {
            StoredValue::Text(text) => vec![token(text)],
            StoredValue::Queue(all) => {
                let tokens = all.iter().filter_map(|member| members::token(&member.1));
                tokens.map(token).collect()
            }
            _ => Vec::new(),
        });
        tokens.collect()
    }

    fn processes_left(&self) -> Option<String> {
        for (p, process) in self.processes.iter().enumerate() {
            let waits = |thread: &Thread| !matches!(thread.doing, Doing::Stopped | Doing::Idle(_));
            if let Some(thread) = process.threads.iter().find(|thread| waits(thread)) {
                return Some(format!("process {p}: a thread is not done: {thread}"));
            }
            if process.owed.is_running() {
                return Some(format!("process {p}: a release is still sent on"));
            }
            // A lane for each combination of masters; and one for a server that slots were on their way to.
            let most = if self.clusters.len() == 1 { 4 } else { 12 };
            let open = self.open_lanes(p).count();
            if open > most {
                return Some(format!("process {p}: {open} lanes are open"));
            }
            for (l, lane) in process.lanes.iter().enumerate() {
                let mut places = lane.places.iter().enumerate();
                let is_out_of_reach = places.any(|(cluster, place)| {
                    let here = &self.clusters[cluster];
                    // With the guard a promoted master cannot be connected to before a slot for its witness has come.
                    let is_barred = |at: usize| {
                        self.conditions.guarded
                            && here.servers[at].here.promoted
                            && place.at.is_none()
                    };
                    let target = place.target;
                    target.is_some_and(|at| !here.servers[at].alive || is_barred(at))
                });
                if is_out_of_reach {
                    // The keys have gone with the server, or no process can ask for them there.
                    continue;
                }
                let owes = lane.core.owes_any() || lane.core.longest_waiting().is_some();
                let done = match lane.state {
                    // (A server that nothing is asked of may be away.)
                    LaneState::Open => !owes,
                    LaneState::Closed => lane.is_idle(),
                    LaneState::Unused | LaneState::Closing(_) => false,
                };
                if !done {
                    let (state, what) = (lane.state, lane.core.not_quiescent());
                    let places = &lane.places;
                    return Some(format!(
                        "process {p}: lane {l} to {places:?} is {state:?}: {what:?}"
                    ));
                }
            }
        }
        None
    }
}
