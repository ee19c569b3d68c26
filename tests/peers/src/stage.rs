//! Where a scenario is played: nodes behind relays, contenders' processes, faults, and the history of it all.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::client::{Client, Silence};
use crate::ensemble::{self, Member, System, Way};
use crate::history::{Event, Time};
use crate::support::relay::Relay;
use crate::support::{Server, TempDir, free_port};

/// What a user who can wait is ready to wait, in milliseconds.
pub const WAIT: u64 = 2_000;
/// A call without an answer for this long hangs.
const HANG: Duration = Duration::from_secs(12);
const LONGEST_LINE: usize = 300;
/// What goes on in the background on nodes that are well is done by then.
const SETTLING: Duration = Duration::from_millis(700);

/// A disk without a fault, one without room, and one that keeps nothing of what is written.
pub const WELL: u8 = 0;
pub const FULL: u8 = 1;
pub const FORGETFUL: u8 = 2;
/// Longer than an ensemble takes on a busy machine.
const ELECTION: Duration = Duration::from_secs(15);

/// How a contender is run.
#[derive(Clone, Debug)]
pub struct Contender {
    pub name: String,
    pub system: System,
    pub nodes: usize,
    pub command: Vec<String>,
    pub variables: Vec<(String, String)>,
    /// Shifts the wall clock of a process that it is preloaded into.
    pub clock: Option<String>,
    /// Spoils the disk of a server that it is preloaded into.
    pub disk: Option<String>,
    /// Nodes are reached by TLS.
    pub tls: bool,
    /// The only scenarios that it is for; all if there are none.
    pub only: &'static [&'static str],
    /// How long nodes have to be up before they are of use.
    pub settling: Duration,
}

/// A server, or a member of an ensemble of servers.
pub enum Service {
    Redis(Server),
    Member(Member),
}

impl Service {
    fn port(&self) -> u16 {
        match self {
            Service::Redis(server) => server.port(),
            Service::Member(member) => member.port(),
        }
    }

    /// For what ensembles do not have. Scenarios with that are not for them.
    fn redis(&self) -> &Server {
        match self {
            Service::Redis(server) => server,
            Service::Member(_) => unreachable!("a scenario for Redis alone"),
        }
    }
}

pub struct Node {
    pub server: Service,
    pub relay: Relay,
    /// With the way to it from its master.
    pub replica: Option<(Server, Relay)>,
}

/// A library's answer; `hung` and `died` are the harness's own words.
#[derive(Clone, Debug)]
pub struct Answer {
    pub is: String,
    pub number: Option<u64>,
}

impl Answer {
    fn only(is: &str) -> Answer {
        Answer {
            is: is.to_owned(),
            number: None,
        }
    }

    pub fn ok(&self) -> bool {
        self.is == "ok"
    }
}

struct Player {
    client: Option<Client>,
    asked: Option<Event>,
    fence: Option<u64>,
    no_fence: bool,
    no_check: bool,
    /// What it may believe, for libraries that cannot be asked: the end, by lock.
    until: BTreeMap<String, Time>,
    clock: Option<File>,
}

pub struct Stage {
    pub nodes: Vec<Node>,
    /// Between the members of an ensemble.
    ways: Vec<Way>,
    contender: Contender,
    players: BTreeMap<String, Player>,
    events: Vec<Event>,
    origin: Time,
    dir: TempDir,
}

/// What servers are started with, besides what all are.
#[derive(Default)]
pub struct Setting {
    pub args: &'static [&'static str],
    /// Their clocks and disks can be spoilt.
    pub spoilt: bool,
    /// One of them is the program `redis-server` of this directory.
    pub other: Option<PathBuf>,
}

type Variables = Vec<(&'static str, PathBuf)>;

impl Stage {
    pub fn new(contender: &Contender, head: &str, setting: &Setting) -> Stage {
        let dir = TempDir::new();
        let variables = |number: usize| {
            let other = setting.other.iter().filter(|_| number == OTHER);
            let other = other.map(|path| ("PATH", path.clone()));
            let spoilt = setting
                .spoilt
                .then(|| spoils(contender, dir.path(), number));
            other
                .chain(spoilt.into_iter().flatten())
                .collect::<Variables>()
        };
        let variables: Vec<Variables> = (0..contender.nodes).map(variables).collect();
        let (nodes, ways) = match contender.system {
            System::Redis => {
                let certificate = contender.tls.then(|| make_certificate(dir.path()));
                let start = |variables| start_node(setting.args, variables, certificate.as_deref());
                (variables.iter().map(start).collect(), Vec::new())
            }
            system => start_ensemble(system, &variables),
        };
        Stage::on(contender, head, nodes, ways, dir)
    }

    fn on(
        contender: &Contender,
        head: &str,
        nodes: Vec<Node>,
        ways: Vec<Way>,
        dir: TempDir,
    ) -> Stage {
        std::thread::sleep(contender.settling);
        let head = Event::new(0, "-", "scenario").with("name", head);
        let head = head
            .with("contender", &contender.name)
            .with("nodes", contender.nodes);
        // Times mean little without what else the machine did.
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let head = head.with("load", load.split(' ').next().unwrap_or(""));
        Stage {
            nodes,
            ways,
            contender: contender.clone(),
            players: BTreeMap::new(),
            events: vec![head],
            origin: speak::now(),
            dir,
        }
    }

    pub fn now(&self) -> Time {
        speak::now() - self.origin
    }

    pub fn is_tls(&self) -> bool {
        self.contender.tls
    }

    pub fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    pub fn sleep(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn event(&self, who: &str, what: &str) -> Event {
        Event::new(self.now(), who, what)
    }

    pub fn skip(&mut self, why: &str) {
        let event = self.event("-", "skipped").with("text", why);
        self.events.push(event);
    }

    // Clients.

    pub fn start(&mut self, who: &str) {
        self.start_with(who, None);
    }

    /// One whose wall clock can be shifted; false if the contender's program does not go along.
    pub fn start_with_clock(&mut self, who: &str) -> bool {
        let Some(library) = self.contender.clock.clone() else {
            return false;
        };
        let path = self.dir.path().join(format!("clock-{who}"));
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path);
        let Ok(file) = file else {
            return false;
        };
        if file.write_all_at(&0_i64.to_le_bytes(), 0).is_err() {
            return false;
        }
        self.start_with(who, Some((&library, &path)));
        if let Some(player) = self.players.get_mut(who) {
            player.clock = Some(file);
        }
        let before = self.ask(who, "wall", "").number.unwrap_or(0);
        self.shift(who, -3_600_000);
        let after = self.ask(who, "wall", "").number.unwrap_or(0);
        self.shift(who, 0);
        before.saturating_sub(after) > 3_000_000
    }

    /// By milliseconds, from what it was at the start.
    pub fn shift(&mut self, who: &str, ms: i64) {
        let clock = self
            .players
            .get(who)
            .and_then(|player| player.clock.as_ref());
        if let Some(clock) = clock {
            let _ = clock.write_all_at(&(ms * 1_000_000).to_le_bytes(), 0);
        }
        let event = self.event("-", "fault").with("client", who);
        self.events.push(event.with("what", "clock").with("ms", ms));
    }

    fn start_with(&mut self, who: &str, clock: Option<(&str, &Path)>) {
        let urls = self.nodes.iter().map(|node| match self.contender.system {
            System::Redis if self.contender.tls => {
                format!("rediss://127.0.0.1:{}/#insecure", node.relay.port())
            }
            System::Redis => node.relay.url(),
            _ => format!("127.0.0.1:{}", node.relay.port()),
        });
        let mut variables = self.contender.variables.clone();
        variables.push(("NODES".into(), urls.collect::<Vec<_>>().join(",")));
        if let Some((library, path)) = clock {
            variables.push(("LD_PRELOAD".into(), library.into()));
            variables.push(("CLOCK_OFFSET".into(), path.display().to_string()));
        }
        let client = Client::start(&self.contender.command, &variables);
        let ready = client.as_ref().map(|client| client.line(HANG));
        let line = match ready {
            Ok(Ok((_, line))) if line.starts_with("ready ") => line,
            Ok(Ok((_, line))) => return self.skip(&format!("not ready: {line}")),
            Ok(Err(silence)) => return self.skip(&format!("not ready: {silence:?}")),
            Err(error) => return self.skip(&error.clone()),
        };
        let ready = self.event(who, "ready").with_line(&line["ready ".len()..]);
        self.events.push(ready);
        let player = Player {
            client: client.ok(),
            asked: None,
            fence: None,
            no_fence: false,
            no_check: false,
            until: BTreeMap::new(),
            clock: None,
        };
        self.players.insert(who.to_owned(), player);
    }

    /// Sends a request; its answer is what [`poll`](Self::poll) gives.
    pub fn request(&mut self, who: &str, what: &str, name: &str, ttl: u64, expect: &str) {
        let mut event = self.event(who, what);
        if !name.is_empty() {
            event = event.with("name", name);
        }
        if ttl > 0 {
            event = event.with("ttl", ttl);
        }
        let mut line = format!("{what} {name} {ttl}");
        if what == "acquire" {
            event = event.with("wait", WAIT);
            line = format!("{line} {WAIT}");
        }
        if !expect.is_empty() {
            event = event.with("expect", expect);
        }
        let Some(player) = self.players.get_mut(who) else {
            return;
        };
        if let (Some(fence), "write") = (player.fence, what) {
            event = event.with("fence", fence);
        }
        let Some(client) = &mut player.client else {
            return;
        };
        client.send(&line);
        player.asked = Some(event.clone());
        // What only serves the harness is no part of the history.
        if what != "wall" {
            self.events.push(event);
        }
    }

    /// The answer to what was asked, if it comes within this time.
    pub fn poll(&mut self, who: &str, within: Duration) -> Option<Answer> {
        let Some(player) = self.players.get_mut(who) else {
            return Some(Answer::only("died"));
        };
        let (Some(client), Some(asked)) = (&player.client, player.asked.clone()) else {
            return Some(Answer::only("died"));
        };
        let end = speak::now() + u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        loop {
            let left = Duration::from_micros(end.saturating_sub(speak::now()));
            let (at, line) = match client.line(left) {
                Ok(line) => line,
                Err(Silence::NothingYet) => return None,
                Err(Silence::Ended) => return Some(self.lose(who, "died")),
            };
            // Some texts name every node in full.
            let line: String = line.chars().take(LONGEST_LINE).collect();
            let (is, fields) = line.split_once(' ').unwrap_or((&line, ""));
            let event = |what: &str| Event::new(at - self.origin, who, what);
            let shift = |event: Event| {
                event
                    .shifted("begin", self.origin)
                    .shifted("end", self.origin)
            };
            if is == "gone" {
                self.events.push(shift(event("gone").with_line(fields)));
                continue;
            }
            let reply = event("reply")
                .with("to", &asked.what)
                .with("is", is)
                .with_line(fields);
            let reply = shift(reply);
            return Some(self.take(who, &asked, reply));
        }
    }

    fn take(&mut self, who: &str, asked: &Event, reply: Event) -> Answer {
        let answer = Answer {
            is: reply.get("is").to_owned(),
            number: reply.number("number"),
        };
        if let Some(player) = self.players.get_mut(who) {
            player.asked = None;
            let name = asked.get("name").to_owned();
            match (asked.what.as_str(), answer.is.as_str()) {
                ("acquire" | "extend", "ok") => {
                    let ttl = asked.number("ttl").unwrap_or(0) * 1_000;
                    let until = match reply.number("left") {
                        Some(left) => reply.number("end").unwrap_or(0).saturating_add(left),
                        None if reply.get("left") == "kept" => Time::MAX,
                        None => reply.number("begin").unwrap_or(0) + ttl,
                    };
                    player.until.insert(name, until);
                }
                // Without a number there is no reason to believe the one before.
                ("fence", "ok" | "lost" | "failed") => player.fence = answer.number,
                ("fence", "none") => player.no_fence = true,
                ("check", "none") => player.no_check = true,
                _ => {}
            }
        }
        if asked.what != "wall" {
            self.events.push(reply);
        }
        answer
    }

    fn lose(&mut self, who: &str, how: &str) -> Answer {
        let mut to = String::new();
        if let Some(player) = self.players.get_mut(who) {
            player.client = None;
            to = player
                .asked
                .take()
                .map(|asked| asked.what)
                .unwrap_or_default();
        }
        let event = self.event(who, how).with("to", to);
        self.events.push(event);
        Answer::only(how)
    }

    /// The answer to what was asked, or the end of the client.
    pub fn wait(&mut self, who: &str) -> Answer {
        match self.poll(who, HANG) {
            Some(answer) => answer,
            None => self.lose(who, "hung"),
        }
    }

    pub fn ask(&mut self, who: &str, what: &str, name: &str) -> Answer {
        self.request(who, what, name, 0, "");
        self.wait(who)
    }

    pub fn acquire(&mut self, who: &str, name: &str, ttl: u64) -> Answer {
        self.request(who, "acquire", name, ttl, "");
        self.wait(who)
    }

    /// Where the lock is free and enough nodes are well.
    pub fn acquire_free(&mut self, who: &str, name: &str, ttl: u64) -> Answer {
        self.request(who, "acquire", name, ttl, "granted");
        self.wait(who)
    }

    pub fn release(&mut self, who: &str, name: &str) -> Answer {
        self.ask(who, "release", name)
    }

    pub fn extend(&mut self, who: &str, name: &str, ttl: u64) -> Answer {
        self.request(who, "extend", name, ttl, "");
        self.wait(who)
    }

    /// Whether the client has reason to write: by the library's word, or else by the time that it was told.
    pub fn believes(&mut self, who: &str, name: &str) -> bool {
        let no_check = self.players.get(who).is_none_or(|player| player.no_check);
        if !no_check {
            let answer = self.ask(who, "check", name);
            if answer.is != "none" {
                return answer.ok();
            }
        }
        let player = self.players.get(who);
        let until = player.and_then(|player| player.until.get(name)).copied();
        until.is_some_and(|until| self.now() < until)
    }

    /// The fencing token, if there is one, and then the guarded value, as the documents of those with tokens say.
    pub fn read(&mut self, who: &str, name: &str) {
        let no_fence = self.players.get(who).is_none_or(|player| player.no_fence);
        if !no_fence {
            self.ask(who, "fence", name);
        }
        self.only_read(who, name);
    }

    pub fn only_read(&mut self, who: &str, name: &str) {
        let event = self.event(who, "read").with("name", name);
        self.events.push(event);
    }

    pub fn write(&mut self, who: &str, name: &str) -> Answer {
        self.ask(who, "write", name)
    }

    pub fn fences(&self, who: &str) -> bool {
        self.players.get(who).is_some_and(|player| !player.no_fence)
    }

    fn client_fault(&mut self, who: &str, what: &str) {
        let event = self
            .event("-", "fault")
            .with("client", who)
            .with("what", what);
        self.events.push(event);
    }

    pub fn stop_client(&mut self, who: &str) {
        self.client_fault(who, "stopped");
        self.signal(who, libc::SIGSTOP);
    }

    pub fn resume_client(&mut self, who: &str) {
        self.client_fault(who, "resumed");
        self.signal(who, libc::SIGCONT);
    }

    pub fn kill_client(&mut self, who: &str) {
        self.client_fault(who, "killed");
        if let Some(player) = self.players.get_mut(who) {
            player.client = None;
        }
    }

    fn signal(&self, who: &str, signal: i32) {
        if let Some(client) = self
            .players
            .get(who)
            .and_then(|player| player.client.as_ref())
        {
            client.signal(signal);
        }
    }

    // Nodes.

    fn node_fault(&mut self, node: usize, what: &str, data: &str) {
        let mut event = self
            .event("-", "fault")
            .with("node", node)
            .with("what", what);
        if !data.is_empty() {
            event = event.with("data", data);
        }
        self.events.push(event);
    }

    /// Connections are refused from now on. `data`: `lost`, as servers of Redis lose it that keep none; `wiped`, also where it was
    /// kept; or nothing.
    pub fn kill(&mut self, node: usize, data: &str) {
        let is_redis = self.is_redis();
        let lost = data == "wiped" || data == "lost" && is_redis;
        self.node_fault(node, "killed", if lost { "lost" } else { "" });
        match &mut self.nodes[node].server {
            Service::Redis(server) => server.kill(),
            Service::Member(member) => member.kill(lost),
        }
        self.nodes[node].relay.refuse();
    }

    pub fn restart(&mut self, node: usize) {
        self.node_fault(node, "restarted", "");
        match &mut self.nodes[node].server {
            Service::Redis(server) => server.restart(),
            Service::Member(member) => member.start(),
        }
        self.nodes[node].relay.accept();
    }

    pub fn stop(&mut self, node: usize) {
        self.node_fault(node, "stopped", "");
        match &self.nodes[node].server {
            Service::Redis(server) => server.stop(),
            Service::Member(member) => member.stop(),
        }
    }

    pub fn resume(&mut self, node: usize) {
        self.node_fault(node, "resumed", "");
        match &self.nodes[node].server {
            Service::Redis(server) => server.resume(),
            Service::Member(member) => member.resume(),
        }
    }

    fn ways_of(&self, node: usize) -> impl Iterator<Item = &Relay> {
        let its = move |way: &&Way| way.to == node || way.from == Some(node);
        self.ways.iter().filter(its).map(|way| &way.relay)
    }

    /// Connections that are up go dead without a word; new ones are made, and nothing passes.
    pub fn partition(&mut self, node: usize) {
        self.node_fault(node, "partitioned", "");
        for relay in self.ways_of(node).chain([&self.nodes[node].relay]) {
            relay.forget();
            relay.set(|policy| {
                policy.up.stalled = true;
                policy.down.stalled = true;
            });
        }
    }

    /// Requests arrive, answers do not.
    pub fn withhold_answers(&mut self, node: usize) {
        self.node_fault(node, "answers-withheld", "");
        self.nodes[node]
            .relay
            .set(|policy| policy.down.stalled = true);
    }

    pub fn delay_answers(&mut self, node: usize, ms: u64) {
        self.node_fault(node, &format!("answers-{ms}-ms-late"), "");
        let delay = Duration::from_millis(ms);
        self.nodes[node]
            .relay
            .set(|policy| policy.down.delay = delay);
    }

    pub fn heal(&mut self, node: usize) {
        self.node_fault(node, "healed", "");
        for relay in self.ways_of(node).chain([&self.nodes[node].relay]) {
            relay.heal();
        }
    }

    /// Something was preloaded into its servers: etcd is linked without a C library.
    pub fn can_spoil(&self) -> bool {
        self.contender.system != System::Etcd
            && self.contender.clock.is_some()
            && self.contender.disk.is_some()
    }

    pub fn is_redis(&self) -> bool {
        self.contender.system == System::Redis
    }

    /// A second, in which servers that were restarted are found again; or as long as an ensemble takes to have a leader.
    pub fn settle(&mut self) {
        self.sleep(1_000);
        let members = self
            .nodes
            .iter_mut()
            .filter_map(|node| match &mut node.server {
                Service::Redis(_) => None,
                Service::Member(member) => Some(member),
            });
        let ready = ensemble::settle(members, ELECTION);
        let event = self.event("-", "settled").with("members", ready);
        self.events.push(event);
    }

    /// The member that leads. Any other server is as good as the third.
    pub fn leader(&self) -> usize {
        let leads = |node: &Node| matches!(&node.server, Service::Member(member) if member.leads() == Some(true));
        self.nodes.iter().position(leads).unwrap_or(OTHER)
    }

    /// By milliseconds, from what it was at the start.
    pub fn shift_server(&mut self, node: usize, ms: i64) {
        self.node_fault(node, &format!("clock-{ms:+}-ms"), "");
        self.write_to("offset", node, &(ms * 1_000_000).to_le_bytes());
    }

    pub fn spoil_disk(&mut self, node: usize, fault: u8) {
        let what = ["disk-well", "disk-full", "disk-forgetful"][usize::from(fault)];
        self.node_fault(node, what, "");
        self.write_to("fault", node, &[fault]);
    }

    /// In place: servers have it mapped.
    fn write_to(&self, file: &str, node: usize, bytes: &[u8]) {
        let path = self.dir.path().join(format!("{file}-{node}"));
        let file = File::options().write(true).open(path);
        let written = file.and_then(|file| file.write_all_at(bytes, 0));
        written.expect("a file of its own");
    }

    /// A server that has ended, with its disk, is started again with what it kept.
    pub fn revive(&mut self, node: usize) {
        self.kill(node, "");
        self.restart(node);
    }

    pub fn flush(&mut self, node: usize) {
        self.node_fault(node, "flushed", "lost");
        self.nodes[node].server.redis().command(&["FLUSHALL"]);
    }

    /// A replica that is up to date now.
    pub fn add_replica(&mut self, node: usize) {
        let way = Relay::to(self.nodes[node].server.port());
        let port = way.port().to_string();
        let replica = Server::with_args(&["--replicaof", "127.0.0.1", &port]);
        crate::support::eventually("the replica is up to date", || {
            replica.info("replication", "master_link_status") == "up"
        });
        self.nodes[node].replica = Some((replica, way));
    }

    /// Nothing reaches the replica from now on.
    pub fn lag(&mut self, node: usize) {
        self.node_fault(node, "replica-cut-off", "");
        if let Some((_, way)) = &self.nodes[node].replica {
            way.forget();
        }
    }

    /// The replica takes the place of its master, without what did not reach it.
    pub fn fail_over(&mut self, node: usize) {
        self.node_fault(node, "failed-over", "lost");
        let node = &mut self.nodes[node];
        if let Service::Redis(server) = &mut node.server {
            server.kill();
        }
        if let Some((replica, _)) = &node.replica {
            replica.command(&["REPLICAOF", "NO", "ONE"]);
            node.relay.lead_to(replica.port());
        }
        node.relay.cut();
    }

    // The end.

    /// Looks for keys, which takes nodes that are well, and ends all.
    pub fn finish(mut self) -> Vec<Event> {
        std::thread::sleep(SETTLING);
        for number in 0..self.nodes.len() {
            for (key, ttl) in self.keys_on(number) {
                let event = self.event("-", "key").with("node", number);
                self.events.push(event.with("key", key).with("pttl", ttl));
            }
        }
        let end = self.event("-", "end");
        self.events.push(end);
        self.events
    }

    fn keys_on(&self, number: usize) -> Vec<(String, i64)> {
        let node = &self.nodes[number];
        match (&node.server, &node.replica) {
            (_, Some((replica, _))) => keys(replica),
            (Service::Redis(server), None) if server.pid() == 0 => Vec::new(),
            (Service::Redis(server), None) => keys(server),
            // All members have the same keys.
            (Service::Member(member), None) if member.leads() == Some(true) => member.keys(),
            (Service::Member(_), None) => Vec::new(),
        }
    }
}

/// The node that is another program in some scenario, and that is killed where all are alike.
pub const OTHER: usize = 2;

/// For a server whose clock and disk can be spoilt, by files of this directory.
fn spoils(contender: &Contender, dir: &Path, number: usize) -> Variables {
    let (Some(clock), Some(disk)) = (&contender.clock, &contender.disk) else {
        return Variables::new();
    };
    let file = |name: &str| dir.join(format!("{name}-{number}"));
    let (offset, fault) = (file("offset"), file("fault"));
    let made = std::fs::write(&offset, [0; 8]).and_then(|()| std::fs::write(&fault, [WELL]));
    made.expect("files of its own");
    vec![
        ("LD_PRELOAD", format!("{clock}:{disk}").into()),
        ("CLOCK_OFFSET", offset),
        ("DISK_FAULT", fault),
    ]
}

fn start_ensemble(system: System, variables: &[Variables]) -> (Vec<Node>, Vec<Way>) {
    let (mut members, ways) = ensemble::new(system, variables.len());
    for (member, variables) in members.iter_mut().zip(variables) {
        member.set_variables(variables);
    }
    ensemble::begin(&mut members);
    let node = |member: Member| Node {
        relay: Relay::to(member.port()),
        server: Service::Member(member),
        replica: None,
    };
    (members.into_iter().map(node).collect(), ways)
}

/// Options of a server that has a certificate of its own making.
fn make_certificate(dir: &Path) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let (key, certificate) = (file("key"), file("certificate"));
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]);
    // If it fails, the servers do not start.
    let _ = openssl
        .args(["-keyout", &key, "-out", &certificate])
        .output();
    let args = [
        ["--tls-auth-clients", "no"],
        ["--tls-key-file", &key],
        ["--tls-cert-file", &certificate],
        ["--tls-ca-cert-file", &certificate],
    ];
    args.into_iter().flatten().map(str::to_owned).collect()
}

fn start_node(args: &[&str], variables: &Variables, certificate: Option<&[String]>) -> Node {
    let borrowed: Vec<(&str, &Path)> = variables
        .iter()
        .map(|(name, value)| (*name, value.as_path()))
        .collect();
    let port = certificate.map(|_| free_port());
    let number = port.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut all = Vec::new();
    if let Some(certificate) = certificate {
        all.extend(["--tls-port", &number]);
        all.extend(certificate.iter().map(String::as_str));
    }
    all.extend(args);
    let server = match variables.is_empty() {
        true => Server::with_args(&all),
        false => {
            let mut server = Server::with_variables(&borrowed);
            server.set_args(&all);
            server.restart();
            server
        }
    };
    Node {
        relay: Relay::to(port.map_or(server.port(), |port| port.number())),
        server: Service::Redis(server),
        replica: None,
    }
}

/// All keys with the time that they have left.
fn keys(server: &Server) -> Vec<(String, i64)> {
    let keys = server.keys().into_iter();
    keys.filter_map(|key| {
        let ttl: i64 = redis::from_redis_value(server.command(&["PTTL", &key])).ok()?;
        (ttl != -2).then(|| (key.replace(' ', "_"), ttl))
    })
    .collect()
}
