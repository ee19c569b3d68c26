//! What fails over: a pair of servers behind a name that moves, a set with its sentinels, or a Cluster.

use std::time::Duration;

use crate::lock_keys;
use crate::now;
use crate::support::clusters::Cluster;
use crate::support::relay::Relay;
use crate::support::sentinels::Set;
use crate::support::{Random, Server, eventually, eventually_within, ms};

/// For how long a master before goes on here at most.
const GOES_ON: u64 = 3000;
/// Sentinels do not fail over twice within some seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happens to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Killed; its replica is promoted, without the last locks.
    Killed,
    /// Its replica is promoted; it goes on for a while, as do some of its clients, and is demoted.
    GoesOn,
    /// Stopped first, and otherwise as above.
    Stopped,
    /// The old master takes its place again, and closes no connection.
    Back,
    Flushed,
    Restarted,
    /// By a command, with both servers up.
    ByHand,
    /// By a command, without asking any other server.
    TakeOver,
}

/// Which of them all groups are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Pairs,
    Sets,
    Clusters,
}

impl Make {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Make::Pairs => "pairs",
            Make::Sets => "sets",
            Make::Clusters => "Clusters",
        }
    }

    pub(crate) fn kinds(self) -> &'static [Kind] {
        use Kind::{Back, ByHand, Flushed, GoesOn, Killed, Restarted, Stopped, TakeOver};
        match self {
            Make::Pairs => &[Killed, GoesOn, Stopped, Back, Flushed, Restarted],
            Make::Sets => &[Killed, Stopped, ByHand],
            Make::Clusters => &[Killed, Stopped, ByHand, TakeOver],
        }
    }
}

pub(crate) enum Group {
    Pair(Pair),
    Set(Set),
    /// With a name in the shard that fails over.
    Cluster(Cluster, String),
}

impl Group {
    /// `name`: of one of its locks.
    pub(crate) fn start(make: Make, random: Random, name: String) -> Group {
        match make {
            Make::Pairs => Group::Pair(Pair::start(random)),
            Make::Sets => Group::Set(Set::start(3)),
            Make::Clusters => Group::Cluster(Cluster::start(), name),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Group::Pair(pair) => pair.name.url(),
            Group::Set(set) => set.url(),
            Group::Cluster(cluster, _) => cluster.url(),
        }
    }

    /// Returns when all its servers are up again. For how long the old master was one beside the new one, where nothing
    /// but a name that moves tells clients.
    pub(crate) fn fail_over(&mut self, kind: Kind) -> Duration {
        match self {
            Group::Pair(pair) => return pair.fail_over(kind),
            Group::Set(set) => set_fails_over(set, kind),
            Group::Cluster(cluster, name) => shard_fails_over(cluster, name, kind),
        }
        Duration::ZERO
    }

    /// How many keys of locks its masters have.
    pub(crate) fn keys(&self) -> usize {
        match self {
            Group::Pair(pair) => lock_keys(&pair.servers[pair.master]).len(),
            Group::Set(set) => lock_keys(&set.servers[master_of(set)]).len(),
            Group::Cluster(cluster, _) => {
                let keys = cluster.keys().into_iter();
                keys.filter(|key| !key.ends_with(":w") && !key.ends_with(":wt"))
                    .count()
            }
        }
    }
}

fn master_of(set: &Set) -> usize {
    let mut master = None;
    eventually_within(PATIENCE, "the sentinels name a master", &mut || {
        master = (0..2).find(|server| set.is_promoted(*server) && set.is_master(*server));
        master.is_some()
    });
    master.expect("waited for")
}

fn set_fails_over(set: &mut Set, kind: Kind) {
    let old = master_of(set);
    let new = 1 - old;
    match kind {
        Kind::Killed => set.servers[old].kill(),
        Kind::Stopped => set.servers[old].stop(),
        _ => {}
    }
    eventually_within(PATIENCE, "the sentinels name the new master", &mut || {
        if kind == Kind::ByHand {
            // Once more where another failover followed, back to the old master.
            set.fail_over(new);
        }
        set.is_promoted(new) && set.is_master(new)
    });
    match kind {
        Kind::Killed => set.servers[old].restart(),
        Kind::Stopped => set.servers[old].resume(),
        _ => {}
    }
    // Another failover may have followed, back to the old master.
    eventually_within(PATIENCE, "one replicates the other", &mut || {
        (0..2).any(|server| set.replicates(server))
    });
}

fn shard_fails_over(cluster: &mut Cluster, name: &str, kind: Kind) {
    let old = cluster.master_of(name);
    let new = cluster.replicas_of(old)[0];
    match kind {
        Kind::Killed => cluster.nodes[old].kill(),
        Kind::Stopped => cluster.nodes[old].stop(),
        Kind::TakeOver => cluster.take_over(new),
        _ => cluster.fail_over(new),
    }
    cluster.promotes(new);
    match kind {
        Kind::Killed => cluster.nodes[old].restart(),
        Kind::Stopped => cluster.nodes[old].resume(),
        _ => {}
    }
    cluster.agree();
}

pub(crate) struct Pair {
    servers: [Server; 2],
    master: usize,
    name: Relay,
    random: Random,
}

impl Pair {
    fn start(random: Random) -> Pair {
        let servers = [(); 2].map(|()| Server::with_args(&["--repl-diskless-sync-delay", "0"]));
        let pair = Pair {
            name: Relay::to(servers[0].port()),
            servers,
            master: 0,
            random,
        };
        pair.replicate(1, 0);
        pair
    }

    fn replicate(&self, replica: usize, of: usize) {
        let port = self.servers[of].port().to_string();
        self.servers[replica].command(&["REPLICAOF", "127.0.0.1", &port]);
        self.follows(replica);
    }

    fn follows(&self, replica: usize) {
        eventually("it replicates", || {
            self.servers[replica].info("replication", "master_link_status") == "up"
        });
    }

    fn promote(&mut self, replica: usize) {
        self.servers[replica].command(&["REPLICAOF", "NO", "ONE"]);
        self.name.lead_to(self.servers[replica].port());
        self.master = replica;
    }

    /// What its master is told from now on it does not learn.
    fn lag(&mut self, replica: usize) {
        self.servers[replica].command(&["REPLICAOF", "127.0.0.1", "1"]);
        std::thread::sleep(ms(30 + self.random.below(400)));
    }

    /// Some clients have to connect anew, and find the new master.
    fn cut_some(&mut self, server: usize) {
        let clients = self.servers[server].command(&["CLIENT", "LIST", "TYPE", "normal"]);
        let clients: String = redis::from_redis_value(clients).expect("a list");
        let ids = clients.lines().filter_map(|line| {
            let id = line.strip_prefix("id=")?;
            Some(id.split_once(' ')?.0.to_owned())
        });
        let some = ids.filter(|_| self.random.below(2) == 0);
        let some: Vec<String> = some.collect();
        for id in some {
            self.servers[server].command(&["CLIENT", "KILL", "ID", &id]);
        }
    }

    fn fail_over(&mut self, kind: Kind) -> Duration {
        let (old, new) = (self.master, 1 - self.master);
        if kind == Kind::Flushed {
            self.servers[old].command(&["FLUSHALL"]);
            return Duration::ZERO;
        }
        if kind == Kind::Restarted {
            self.servers[old].kill();
            self.servers[old].restart();
            self.follows(new);
            return Duration::ZERO;
        }
        self.lag(new);
        match kind {
            Kind::Killed => self.servers[old].kill(),
            Kind::Stopped => self.servers[old].stop(),
            _ => {}
        }
        let since = now();
        self.promote(new);
        match kind {
            Kind::Killed => {
                self.servers[old].restart();
                self.replicate(old, new);
                return Duration::ZERO;
            }
            Kind::GoesOn => self.cut_some(old),
            _ => {}
        }
        if kind != Kind::Back {
            std::thread::sleep(ms(self.random.below(GOES_ON)));
        }
        if kind == Kind::Stopped {
            self.servers[old].resume();
        }
        let port = self.servers[new].port().to_string();
        self.servers[old].command(&["REPLICAOF", "127.0.0.1", &port]);
        let took = now() - since;
        self.follows(old);
        if kind == Kind::Back {
            self.promote(old);
            self.replicate(new, old);
        }
        took
    }
}
