//! A Redis Cluster: masters, each with a replica or with none.

use redlock_sync::{Options, Redlock};

use super::certificates::Certificate;
use super::clocks::{Clock, Clocks};
use super::*;

pub const SLOTS: u16 = 16384;
/// After this time a node that does not answer has failed, where a replica can take its place.
const FAILED_AFTER: Duration = Duration::from_millis(1500);
/// Where none can: no test needs it, and a busy machine is no fault.
const NEVER: Duration = Duration::from_secs(60);
/// The address of a node without a host name, among others whose host name leads to 127.0.0.1.
const APART: &str = "127.0.0.3";
/// A vote that was lost is repeated after some seconds.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Cluster {
    /// The masters at the beginning, and behind them the replica of each.
    pub nodes: Vec<Server>,
    /// How many of them were masters at the beginning.
    pub masters: usize,
    pub ids: Vec<String>,
    plan: Plan,
}

/// How a cluster is started.
#[derive(Clone, Default)]
pub struct Plan {
    pub masters: usize,
    /// Each master has one.
    pub replicas: bool,
    /// More masters, behind all others, that have no slots.
    pub empty: usize,
    /// Of all nodes.
    pub password: Option<&'static str>,
    pub over_tls: bool,
    /// More arguments for each node.
    pub args: &'static [&'static str],
    /// Host names are announced, and the last node has none: it is at an IP address of its own, [`APART`], and has the port
    /// of the node before it. Without TLS.
    pub nameless: bool,
    /// Of the first nodes.
    pub clocks: Option<(Arc<Clocks>, Vec<Clock>)>,
}

impl Plan {
    fn count(&self) -> usize {
        self.masters * if self.replicas { 2 } else { 1 } + self.empty
    }

    fn is_apart(&self, node: usize) -> bool {
        self.nameless && node + 1 == self.count()
    }

    /// The address at which a node listens.
    fn host(&self, node: usize) -> &'static str {
        match self.is_apart(node) {
            true => APART,
            false => "127.0.0.1",
        }
    }
}

/// A node, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    id: String,
    is_master: bool,
    /// The id of its master.
    master: String,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

/// What a node sees of all, and which it is itself.
struct View {
    all: Vec<Seen>,
    myself: usize,
    /// One is not part of it yet, or is believed to have failed.
    is_doubtful: bool,
}

impl View {
    fn parse(text: &str) -> View {
        let mut view = View {
            all: Vec::new(),
            myself: 0,
            is_doubtful: false,
        };
        for line in text.lines().filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            let flags: Vec<&str> = words[2].split(',').collect();
            let slots = words[8..].iter().filter(|word| !word.starts_with('['));
            let range = |word: &&str| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                (first.parse().unwrap(), last.parse().unwrap())
            };
            if flags.contains(&"myself") {
                view.myself = view.all.len();
            }
            let doubts = ["handshake", "noaddr", "fail?", "fail"];
            view.is_doubtful |= flags.iter().any(|flag| doubts.contains(flag));
            view.is_doubtful |= words[7] == "disconnected";
            view.all.push(Seen {
                id: words[0].to_owned(),
                is_master: flags.contains(&"master"),
                master: words[3].to_owned(),
                epoch: words[6].parse().unwrap(),
                slots: slots.map(range).collect(),
            });
        }
        view
    }

    /// The master of a slot.
    fn owner(&self, slot: u16) -> Option<&Seen> {
        let has = |seen: &&Seen| {
            let mut slots = seen.slots.iter();
            slots.any(|(first, last)| (*first..=*last).contains(&slot))
        };
        self.all.iter().find(has)
    }

    fn me(&self) -> &Seen {
        &self.all[self.myself]
    }
}

impl Cluster {
    /// Three masters, and a replica of each.
    pub fn start() -> Cluster {
        Cluster::with(Plan {
            masters: 3,
            replicas: true,
            over_tls: over_tls(),
            ..Plan::default()
        })
    }

    /// Without replicas: nothing fails over.
    pub fn masters(masters: usize) -> Cluster {
        Cluster::with(Plan {
            masters,
            over_tls: over_tls(),
            ..Plan::default()
        })
    }

    /// Three masters, and behind them one without slots.
    pub fn with_newcomer() -> Cluster {
        Cluster::with(Plan {
            masters: 3,
            empty: 1,
            over_tls: over_tls(),
            ..Plan::default()
        })
    }

    pub fn with(plan: Plan) -> Cluster {
        let mut nodes = Vec::new();
        for at in 0..plan.count() {
            nodes.push(started(&plan, at, nodes.last()));
        }
        let text = |value| redis::from_redis_value::<String>(value).unwrap();
        let id = |node: &Server| text(node.command(&["CLUSTER", "MYID"]));
        let cluster = Cluster {
            masters: plan.masters,
            ids: nodes.iter().map(id).collect(),
            nodes,
            plan,
        };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            // No two may have the same.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for (at, node) in self.nodes[..self.masters].iter().enumerate() {
            let (first, last) = self.range(at);
            let (first, last) = (first.to_string(), last.to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (other_at, other) in self.nodes[..at].iter().enumerate() {
                let bus = other.bus.as_ref().map(Port::to_string);
                let (port, bus) = (other.port().to_string(), bus.unwrap());
                node.command(&["CLUSTER", "MEET", self.plan.host(other_at), &port, &bus]);
            }
        }
        let know_all = || {
            let views = self.views();
            let knows_all = |view: &View| {
                let ids = view.all.iter().filter(|seen| self.ids.contains(&seen.id));
                ids.count() == view.all.len() && view.all.len() == self.nodes.len()
            };
            views.len() == self.nodes.len() && views.iter().all(knows_all)
        };
        eventually_within(PATIENCE, "all know each other", &mut || know_all());
        let others = self.nodes.len() - self.plan.empty;
        for (at, replica) in self.nodes[..others].iter().enumerate().skip(self.masters) {
            replica.command(&["CLUSTER", "REPLICATE", &self.ids[at - self.masters]]);
        }
        self.agree();
    }

    /// The slots of a master at the beginning.
    fn range(&self, master: usize) -> (u16, u16) {
        let bound = |at: usize| (usize::from(SLOTS) * at / self.masters) as u16;
        (bound(master), bound(master + 1) - 1)
    }

    /// Names whose slots belong to this master at the beginning.
    pub fn names(&self, master: usize) -> impl Iterator<Item = String> + use<> {
        let (first, last) = self.range(master);
        let names = (0..).map(|number: u32| format!("name:{number}"));
        names.filter(move |name| (first..=last).contains(&slot(name)))
    }

    /// The first of them.
    pub fn name(&self, master: usize) -> String {
        self.names(master).next().unwrap()
    }

    /// All nodes as seeds.
    pub fn url(&self) -> String {
        let login = self.plan.password.map(|password| format!(":{password}@"));
        self.url_for(&login.unwrap_or_default(), 0..self.nodes.len())
    }

    /// `login`: what stands before the first host. `seeds`: the nodes that are named.
    pub fn url_for(&self, login: &str, seeds: impl IntoIterator<Item = usize>) -> String {
        let (scheme, insecure) = match self.plan.over_tls {
            true => ("rediss", "/#insecure"),
            false => ("redis", ""),
        };
        let host = |seed: usize| format!("{}:{}", self.plan.host(seed), self.nodes[seed].port());
        let hosts: Vec<String> = seeds.into_iter().map(host).collect();
        let hosts = hosts.join(",");
        format!("{scheme}+cluster://{login}{hosts}{insecure}")
    }

    /// Without the restart guard, which would wait for servers that were just started.
    pub fn client(&self) -> Redlock {
        self.client_with(options().node_timeout(Duration::from_secs(5)))
    }

    pub fn client_with(&self, options: Options) -> Redlock {
        let redlock = Redlock::new(self.url()).unwrap();
        let options = options.restart_guard(Duration::ZERO);
        redlock.with_options(options).unwrap()
    }

    /// Neither killed nor stopped.
    fn running(&self) -> impl Iterator<Item = (usize, &Server)> {
        let all = self.nodes.iter().enumerate();
        all.filter(|(_, node)| node.pid() > 0 && !is_frozen(node.pid()))
    }

    fn view(node: &Server) -> Option<View> {
        let text = node.try_command(&["CLUSTER", "NODES"]).ok()?;
        Some(View::parse(&redis::from_redis_value::<String>(text).ok()?))
    }

    fn views(&self) -> Vec<View> {
        let views = self.running().map(|(_, node)| Cluster::view(node));
        views.collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Waits until all that run say the same of the masters and their slots, all slots are served, and the replicas that
    /// run have the data of their masters.
    pub fn agree(&self) {
        eventually_within(PATIENCE, "the nodes agree", &mut || self.agrees());
    }

    fn agrees(&self) -> bool {
        let mut views = self.views();
        let says = |node: &Server, section: &str, words: &[&str]| {
            let text = match section {
                "cluster" => node.try_command(&["CLUSTER", "INFO"]),
                _ => node.try_command(&["INFO", section]),
            };
            let text = text.and_then(|text| Ok(redis::from_redis_value::<String>(text)?));
            text.is_ok_and(|text| words.iter().all(|word| text.contains(word)))
        };
        let alive: Vec<&String> = self.running().map(|(at, _)| &self.ids[at]).collect();
        let complete = format!("cluster_slots_ok:{SLOTS}");
        let serves = self.running().all(|(_, node)| {
            says(node, "cluster", &["cluster_state:ok", &complete])
                && (says(node, "replication", &["role:master"])
                    || says(node, "replication", &["master_link_status:up"]))
        });
        for view in &mut views {
            view.all.retain(|seen| alive.contains(&&seen.id));
            // Those of replicas are told late, and say nothing.
            let replicas = view.all.iter_mut().filter(|seen| !seen.is_master);
            replicas.for_each(|seen| seen.epoch = 0);
            view.all.sort();
        }
        let is_same = |two: &[View]| two[0].all == two[1].all;
        let all_run = alive.len() == self.nodes.len();
        let doubt = all_run && views.iter().any(|view| view.is_doubtful);
        let replicas = self.plan.replicas && all_run;
        let has_replicas = |view: &View| {
            let replicas = view.all.iter().filter(|seen| !seen.is_master);
            !replicas.clone().any(|seen| seen.master == "-") && replicas.count() == self.masters
        };
        serves
            && !doubt
            && views.windows(2).all(is_same)
            && views
                .first()
                .is_some_and(|view| !replicas || has_replicas(view))
    }

    /// The node that says of itself that the slot is its own. Of two the one that was told last.
    pub fn master_of_slot(&self, slot: u16) -> usize {
        let mut master = None;
        eventually_within(PATIENCE, "the slot has a master", &mut || {
            let views = self.running().filter_map(|(at, node)| {
                let view = Cluster::view(node)?;
                let is_own = view.owner(slot)?.id == view.me().id;
                is_own.then(|| (view.me().epoch, at))
            });
            master = views.max().map(|(_, at)| at);
            master.is_some()
        });
        master.unwrap()
    }

    pub fn master_of(&self, name: &str) -> usize {
        self.master_of_slot(slot(name))
    }

    /// The server that has the name's slot.
    pub fn at(&self, name: &str) -> &Server {
        &self.nodes[self.master_of(name)]
    }

    /// Those of the replicas that run.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let is_replica = |(_, node): &(usize, &Server)| {
            let view = Cluster::view(node);
            view.is_some_and(|view| view.me().master == self.ids[master])
        };
        let replicas = self.running().filter(is_replica);
        replicas.map(|(at, _)| at).collect()
    }

    pub fn is_master(&self, node: usize) -> bool {
        let view = Cluster::view(&self.nodes[node]);
        view.is_some_and(|view| view.me().is_master && !view.me().slots.is_empty())
    }

    /// Waits until it has taken its master's place.
    pub fn promotes(&self, replica: usize) {
        eventually_within(PATIENCE, "the replica is promoted", &mut || {
            self.is_master(replica)
        });
    }

    /// As an operator does it: both stay up, and nothing is lost. Returns when the replica is promoted.
    pub fn fail_over(&self, replica: usize) {
        eventually_within(PATIENCE, "a replica is promoted by hand", &mut || {
            // It is given up after five seconds, and another one would be begun with the same words.
            let _ = self.nodes[replica].try_command(&["CLUSTER", "FAILOVER"]);
            let end = Instant::now() + Duration::from_secs(6);
            while !self.is_master(replica) && Instant::now() < end {
                std::thread::sleep(ms(5));
            }
            self.is_master(replica)
        });
    }

    /// Without asking any other node.
    pub fn take_over(&self, replica: usize) {
        self.nodes[replica].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        self.promotes(replica);
    }

    /// Waits until the replicas have what this master has now.
    pub fn is_replicated(&self, master: usize) {
        let said = self.nodes[master].info("replication", "master_repl_offset");
        let said: u64 = said.parse().unwrap();
        eventually("it is replicated", || {
            let replicas = self.replicas_of(master);
            let offset = |at: &usize| self.nodes[*at].info("replication", "slave_repl_offset");
            let has_all = |at: &usize| offset(at).parse::<u64>().unwrap() >= said;
            !replicas.is_empty() && replicas.iter().all(has_all)
        });
    }

    /// The replica is frozen, and will not have what its master gets from now on.
    pub fn is_cut_off(&self, replica: usize, master: usize) {
        self.nodes[replica].stop();
        // Or it would find that in its socket.
        self.nodes[master].command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Those on all nodes that run, replicas too, but for the witnesses of the restart guard.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.running().flat_map(|(_, node)| node.keys()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Before the ttls of locks end by themselves.
    pub fn nothing_is_left(&self) {
        let mut left = Vec::new();
        let end = Instant::now() + TTL / 2;
        while Instant::now() < end {
            left = self.keys();
            if left.is_empty() {
                return;
            }
            std::thread::sleep(ms(5));
        }
        panic!("still there: {left:?}");
    }

    /// Where the key is, whatever slots they have.
    pub fn nodes_with(&self, key: &str) -> Vec<usize> {
        let has = |node: &Server| node.keys().iter().any(|one| one == key);
        let nodes = self.running().filter(|(_, node)| has(node));
        nodes.map(|(at, _)| at).collect()
    }

    /// Connections to a node, but for this one and those over which keys come: those that subscribe are given apart.
    pub fn connections(&self, node: usize) -> (usize, usize) {
        let list = |kind: &str| {
            let list = self.nodes[node].command(&["CLIENT", "LIST", "TYPE", kind]);
            let list: String = redis::from_redis_value(list).unwrap();
            let others = ["cmd=client", "cmd=restore"];
            let is_other = |line: &&str| others.iter().any(|cmd| line.contains(cmd));
            let all = list.lines().filter(|line| !line.is_empty());
            all.filter(|line| !is_other(line)).count()
        };
        (list("normal"), list("pubsub"))
    }

    /// One node believes that the slot of this name is another one's. The others are not told.
    pub fn gives_away(&self, name: &str, node: usize, to: usize) {
        let slot = slot(name).to_string();
        self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]);
    }

    /// Names are told one by one.
    pub fn knows_all_hostnames(&self) {
        eventually_within(PATIENCE, "all names are known", &mut || {
            self.running().all(|(_, node)| {
                let text = node.command(&["CLUSTER", "NODES"]);
                let text: String = redis::from_redis_value(text).unwrap();
                text.matches(",localhost").count()
                    == self.nodes.len() - usize::from(self.plan.nameless)
            })
        });
    }

    /// Gives the slot of this name to another master, with its keys.
    pub fn move_slot(&self, name: &str, to: usize) {
        let moving = self.begin_to_move(name, to);
        moving.all_keys();
        moving.end();
    }

    /// A master gives away all that it has.
    pub fn move_all_slots(&self, from: usize, to: usize) {
        // So that all believe the other one, it has the highest epoch from now on.
        self.move_slot(&self.name(from), to);
        let view = Cluster::view(&self.nodes[from]).unwrap();
        let ranges = view.me().slots.clone();
        let slots: Vec<u16> = ranges
            .iter()
            .flat_map(|(first, last)| *first..=*last)
            .collect();
        let mut counts = redis::pipe();
        for slot in &slots {
            counts.cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(*slot);
        }
        let client = redis::Client::open(self.nodes[from].own_url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let counts: Vec<u64> = counts.query(&mut connection).unwrap();
        let (full, empty): (Vec<_>, Vec<_>) =
            slots.iter().zip(counts).partition(|(_, keys)| *keys > 0);
        for (slot, _) in full {
            let moving = self.begin_to_move_slot(*slot, to);
            moving.all_keys();
            moving.end();
        }
        let empty: Vec<u16> = empty.into_iter().map(|(slot, _)| *slot).collect();
        for node in [to, from].into_iter().chain(0..self.nodes.len()) {
            self.is_told(node, &empty, to);
        }
        eventually_within(PATIENCE, "all know the moves", &mut || {
            let is_it = |owner: Option<&Seen>| owner.is_some_and(|seen| seen.id == self.ids[to]);
            let know = |view: &View| empty.iter().all(|slot| is_it(view.owner(*slot)));
            let views = self.views();
            !views.is_empty() && views.iter().all(know)
        });
    }

    /// A node believes from now on that another one has these slots.
    fn is_told(&self, node: usize, slots: &[u16], owner: usize) {
        let mut commands = redis::pipe();
        for slot in slots {
            let command = commands.cmd("CLUSTER").arg("SETSLOT");
            let command = command.arg(*slot).arg("NODE");
            command.arg(&self.ids[owner]).ignore();
        }
        let client = redis::Client::open(self.nodes[node].own_url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        // A replica refuses it; so does a master that has heard of it, and has become one.
        let set: redis::RedisResult<()> = commands.query(&mut connection);
        assert!(set.is_ok() || !self.is_master(node), "{set:?}");
    }

    /// A master is killed before any client learns that another one has its slots, with this key as it was. The other one
    /// does not answer until it `inherits` them.
    pub fn dies_and_leaves(&mut self, key: &str, from: usize, to: usize) {
        self.begin_to_move(key, to);
        let text = |value| redis::from_redis_value::<Vec<u8>>(value).unwrap();
        let dump = text(self.nodes[from].command(&["DUMP", key]));
        let ttl = self.nodes[from].command(&["PTTL", key]);
        let ttl: u64 = redis::from_redis_value(ttl).unwrap();
        let (key, ttl) = (key.as_bytes(), ttl.to_string());
        self.nodes[to].command_table(&[b"RESTORE-ASKING", key, ttl.as_bytes(), &dump]);
        self.nodes[to].stop();
        self.nodes[from].kill();
        let (first, last) = self.range(from);
        let slots: Vec<u16> = (first..=last).collect();
        for (node, _) in self.running() {
            self.is_told(node, &slots, to);
        }
    }

    pub fn inherits(&self, from: usize, to: usize) {
        let (first, last) = self.range(from);
        self.nodes[to].resume();
        self.is_told(to, &(first..=last).collect::<Vec<_>>(), to);
    }

    /// From now on keys that are not there are asked for at the other master.
    pub fn begin_to_move(&self, name: &str, to: usize) -> Move<'_> {
        self.begin_to_move_slot(slot(name), to)
    }

    fn begin_to_move_slot(&self, slot: u16, to: usize) -> Move<'_> {
        let from = self.master_of_slot(slot);
        assert_ne!(from, to, "it has the slot");
        let moving = Move {
            cluster: self,
            slot,
            from,
            to,
        };
        moving.set(to, "IMPORTING", &self.ids[from]).unwrap();
        moving.set(from, "MIGRATING", &self.ids[to]).unwrap();
        moving
    }
}

/// A slot on its way from a master to another one.
pub struct Move<'a> {
    cluster: &'a Cluster,
    pub slot: u16,
    pub from: usize,
    pub to: usize,
}

impl Move<'_> {
    fn set(&self, node: usize, what: &str, id: &str) -> redis::RedisResult<redis::Value> {
        let slot = self.slot.to_string();
        self.cluster.nodes[node].try_command(&["CLUSTER", "SETSLOT", &slot, what, id])
    }

    /// One key goes.
    pub fn key(&self, key: &str) {
        self.try_key(key).unwrap();
    }

    fn try_key(&self, key: &str) -> redis::RedisResult<redis::Value> {
        let cluster = self.cluster;
        let port = cluster.nodes[self.to].port().to_string();
        let host = cluster.plan.host(self.to);
        let mut words = vec!["MIGRATE", host, &port, "", "0", "60000"];
        if let Some(password) = cluster.plan.password {
            words.extend(["AUTH", password]);
        }
        words.extend(["KEYS", key]);
        cluster.nodes[self.from].try_command(&words)
    }

    /// All that are there go. One may end meanwhile.
    pub fn all_keys(&self) {
        let slot = self.slot.to_string();
        let from = &self.cluster.nodes[self.from];
        eventually("all keys have gone", || {
            let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
            keys.iter().for_each(|key| drop(self.try_key(key)));
            keys.is_empty()
        });
    }

    /// The other one has the slot with all its keys, and all nodes know it.
    pub fn end(self) {
        let (cluster, id) = (self.cluster, &self.cluster.ids[self.to]);
        self.all_keys();
        self.set(self.to, "NODE", id).unwrap();
        // It may have heard of it already.
        self.set(self.from, "NODE", id).unwrap();
        for (at, _) in cluster.running() {
            if at != self.to && at != self.from && cluster.is_master(at) {
                self.set(at, "NODE", id).unwrap();
            }
        }
        // Or the next move may be undone by what is on its way.
        eventually_within(PATIENCE, "all know the move", &mut || {
            let views = cluster.views();
            let owners = views.iter().map(|view| view.owner(self.slot).cloned());
            let owners: Option<Vec<Seen>> = owners.collect();
            owners.is_some_and(|owners| {
                let is_it = |seen: &Seen| seen.id == *id && seen.epoch == owners[0].epoch;
                owners.iter().all(is_it)
            })
        });
    }

    /// It stays where it was.
    pub fn give_up(self) {
        for node in [self.to, self.from] {
            let slot = self.slot.to_string();
            let node = &self.cluster.nodes[node];
            node.command(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
        }
    }
}

/// `before`: the node before it.
fn started(plan: &Plan, at: usize, before: Option<&Server>) -> Server {
    let limit = match plan.replicas {
        true => FAILED_AFTER,
        false => NEVER,
    };
    let mut args = vec![
        "--cluster-enabled".to_owned(),
        "yes".into(),
        "--cluster-node-timeout".into(),
        limit.as_millis().to_string(),
        // On a busy machine it may not have heard of its master for a while.
        "--cluster-replica-validity-factor".into(),
        "0".into(),
        "--repl-diskless-sync-delay".into(),
        "0".into(),
    ];
    if let Some(password) = plan.password {
        args.extend(["--requirepass".into(), password.into()]);
        args.extend(["--masterauth".into(), password.into()]);
    }
    args.extend(plan.args.iter().map(|arg| (*arg).to_owned()));
    let more = match (plan.nameless, plan.is_apart(at)) {
        (false, _) => &[][..],
        (true, false) => &["--cluster-announce-hostname", "localhost"],
        (true, true) => &["--bind", APART, "--cluster-announce-ip", APART],
    };
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    if plan.nameless {
        args.push("--cluster-preferred-endpoint-type".into());
        args.push("hostname".into());
    }
    if let Some(other) = before.filter(|_| plan.is_apart(at)) {
        return Server::with_port_of(other, args);
    }
    let certificate = plan.over_tls.then(|| Certificate::any().clone());
    let clocks = plan.clocks.as_ref();
    match clocks.and_then(|(all, each)| Some((all, each.get(at)?))) {
        Some((all, clock)) => {
            Server::with_args_and_variables(certificate, args, &all.variables(clock))
        }
        None => Server::started(certificate, args, None),
    }
}

fn is_frozen(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next();
    state.is_some_and(|state| state.trim_start().starts_with('T'))
}

/// The slot of a key, as the servers count it, but not with code of the library.
pub fn slot(key: &str) -> u16 {
    let behind = key.split_once('{').map(|(_, behind)| behind);
    let tag = behind.and_then(|behind| behind.split_once('}'));
    let hashed = tag.map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % SLOTS
}

/// The connection may be given up just then, since its server is no master any more, or most others do not know the new one
/// yet: it is sent elsewhere, later.
pub fn released_at_last(lock: Lock) {
    match lock.release() {
        Ok(()) | Err(Error::Unavailable(_)) => {}
        Err(error) => panic!("{error}"),
    }
}
