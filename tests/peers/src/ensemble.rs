//! Three servers of etcd or ZooKeeper, each with its default options as far as sessions of a second allow. They reach
//! each other over relays, so that one can be cut off.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::relay::Relay;
use crate::support::{Port, TempDir, free_port, is_stopped, watched};

/// What a contender locks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Redis,
    Etcd,
    ZooKeeper,
}

const CLASSES: &str = "/usr/share/java/zookeeper.jar";
/// A JVM on a busy machine needs some of it.
const PATIENCE: Duration = Duration::from_secs(60);

impl System {
    /// Why it cannot be had on this machine.
    pub fn missing(self) -> Option<&'static str> {
        let starts = |program: &str| {
            let mut command = Command::new(program);
            let command = command.arg("--version").stdin(Stdio::null());
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            child.is_ok_and(|mut child| child.wait().is_ok())
        };
        match self {
            System::Etcd if !starts("etcd") || !starts("etcdctl") => {
                Some("there is no etcd (apt-get install etcd-server etcd-client)")
            }
            System::ZooKeeper if !starts("java") || !Path::new(CLASSES).exists() => {
                Some("there is no ZooKeeper (apt-get install zookeeper default-jre-headless)")
            }
            _ => None,
        }
    }
}

/// A server of an ensemble, ended with its value.
pub struct Member {
    system: System,
    child: Option<Child>,
    /// For clients, for members, and for the votes of ZooKeeper.
    ports: [Port; 3],
    number: usize,
    args: Vec<String>,
    variables: Vec<(&'static str, PathBuf)>,
    dir: TempDir,
    wiped: bool,
}

/// How one member, or any of them, reaches another one.
pub struct Way {
    pub from: Option<usize>,
    pub to: usize,
    pub relay: Relay,
}

/// Members of a new ensemble. They have not begun yet.
pub fn new(system: System, count: usize) -> (Vec<Member>, Vec<Way>) {
    let member = |number| Member {
        system,
        child: None,
        ports: [free_port(), free_port(), free_port()],
        number,
        args: Vec::new(),
        variables: Vec::new(),
        dir: TempDir::new(),
        wiped: true,
    };
    let mut members: Vec<Member> = (0..count).map(member).collect();
    let mut ways = Vec::new();
    let mut way = |from, to: usize, port: &Port| {
        let relay = Relay::to(port.number());
        let port = relay.port();
        ways.push(Way { from, to, relay });
        port
    };
    let mut configurations = vec![String::new(); count];
    match system {
        // All have to name each member alike. What the one that is cut off asks of the others still passes.
        System::Etcd => {
            let all = members.iter().map(|member| {
                let port = way(None, member.number, &member.ports[1]);
                format!("m{}=http://127.0.0.1:{port}", member.number)
            });
            configurations = vec![all.collect::<Vec<_>>().join(","); count];
        }
        _ => {
            for (from, text) in configurations.iter_mut().enumerate() {
                for to in &members {
                    let [_, quorum, votes] = &to.ports;
                    let mut port = |port: &Port| match to.number == from {
                        true => port.number(),
                        false => way(Some(from), to.number, port),
                    };
                    let (number, quorum, votes) = (to.number + 1, port(quorum), port(votes));
                    text.push_str(&format!("server.{number}=127.0.0.1:{quorum}:{votes}\n"));
                }
            }
        }
    }
    for (member, text) in members.iter_mut().zip(configurations) {
        member.args = match system {
            System::Etcd => member.etcd(&text),
            _ => member.zookeeper(&text),
        };
    }
    (members, ways)
}

impl Member {
    fn etcd(&self, cluster: &str) -> Vec<String> {
        let [client, peer, _] = self
            .ports
            .each_ref()
            .map(|port| format!("http://127.0.0.1:{port}"));
        let name = format!("m{}", self.number);
        let own = cluster
            .split(',')
            .find_map(|member| member.strip_prefix(&format!("{name}=")));
        let args = [
            "etcd",
            "--name",
            &name,
            "--data-dir",
            "data",
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            own.unwrap_or(""),
            "--initial-cluster",
            cluster,
        ];
        args.map(str::to_owned).to_vec()
    }

    /// Half a second is a tick, so that a session may be as short as a second.
    fn zookeeper(&self, servers: &str) -> Vec<String> {
        let client = &self.ports[0];
        let text = format!(
            "tickTime=500\ninitLimit=10\nsyncLimit=5\nminSessionTimeout=1000\nmaxSessionTimeout=60000\ndataDir=data\n\
             clientPortAddress=127.0.0.1\nclientPort={client}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{servers}"
        );
        std::fs::write(self.dir.path().join("zoo.cfg"), text).expect("a file of its own");
        let classes = format!(".:{CLASSES}");
        let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
        let args = [
            "java",
            "-Xmx96m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            &classes,
            main,
            "zoo.cfg",
        ];
        args.map(str::to_owned).to_vec()
    }

    /// Variables of its environment, from its next start on.
    pub fn set_variables(&mut self, variables: &[(&'static str, PathBuf)]) {
        self.variables = variables.to_vec();
    }

    pub fn start(&mut self) {
        let data = self.dir.path().join("data");
        if std::mem::take(&mut self.wiped) {
            let _ = std::fs::remove_dir_all(&data);
            if self.system == System::ZooKeeper {
                std::fs::create_dir(&data).expect("a directory of its own");
                let number = format!("{}\n", self.number + 1);
                std::fs::write(data.join("myid"), number).expect("a file of its own");
            }
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"));
        let log = log.expect("a file of its own");
        let mut command = Command::new(&self.args[0]);
        let child = watched(&mut command)
            .args(&self.args[1..])
            .envs(self.variables.iter().cloned())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file of its own"))
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("a program that was there before"));
    }

    pub fn port(&self) -> u16 {
        self.ports[0].number()
    }

    fn signal(&self, signal: i32) {
        let child = self.child.as_ref().expect("it was not killed before");
        // SAFETY: a plain system call on a child that was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
    }

    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        is_stopped(self.child.as_ref().map_or(0, |child| child.id() as i32));
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn kill(&mut self, wiped: bool) {
        self.wiped |= wiped;
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// It was started, and has not ended by itself.
    pub fn is_up(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Whether it leads, or follows one that does; none if it does neither.
    pub fn leads(&self) -> Option<bool> {
        match self.system {
            System::Etcd => {
                let status = self.etcdctl(&["endpoint", "status", "-w", "fields"]);
                let field = |name: &str| {
                    let value = status.lines().find_map(|line| line.strip_prefix(name));
                    value.map(|value| value.trim_start_matches(['"', ' ', ':']).to_owned())
                };
                let leader = field("\"Leader")?;
                (leader != "0").then(|| field("\"MemberID").is_some_and(|own| own == leader))
            }
            _ => {
                let answer = self.four_letters("srvr");
                let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
                mode.map(|mode| mode == "leader")
            }
        }
    }

    fn etcdctl(&self, args: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        let endpoint = format!("127.0.0.1:{}", self.port());
        command.args([
            "--command-timeout",
            "1s",
            "--dial-timeout",
            "1s",
            "--endpoints",
            &endpoint,
        ]);
        let output = command.args(args).stdin(Stdio::null()).output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    }

    fn four_letters(&self, word: &str) -> String {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port()))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(word.as_bytes())?;
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_| text)
        };
        ask().unwrap_or_default()
    }

    /// Keys that belong to a lease or a session, with the milliseconds that they have left, or -1. (ZooKeeper lists sessions
    /// without an end, and only the leader does.)
    pub fn keys(&self) -> Vec<(String, i64)> {
        match self.system {
            System::Etcd => {
                let all = self.etcdctl(&["get", "", "--prefix", "-w", "fields"]);
                let keys = all
                    .lines()
                    .filter_map(|line| line.strip_prefix("\"Key\" : "));
                let leases = all
                    .lines()
                    .filter_map(|line| line.strip_prefix("\"Lease\" : "));
                let left = |lease: &str| {
                    let lease: i64 = lease.parse().ok()?;
                    let text = self.etcdctl(&["lease", "timetolive", &format!("{lease:x}")]);
                    let seconds: i64 = text
                        .split_once("remaining(")?
                        .1
                        .split_once('s')?
                        .0
                        .parse()
                        .ok()?;
                    Some(seconds * 1_000)
                };
                keys.zip(leases)
                    .map(|(key, lease)| {
                        (key.trim_matches('"').to_owned(), left(lease).unwrap_or(-1))
                    })
                    .collect()
            }
            _ => {
                let all = self.four_letters("dump");
                let keys = all
                    .lines()
                    .map(str::trim)
                    .filter(|line| line.starts_with('/'));
                keys.map(|key| (key.to_owned(), 1_000)).collect()
            }
        }
    }

    /// The end of its log.
    fn why(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(3).collect();
        lines.join(" | ")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill(false);
    }
}

/// Waits until each of these has a leader, or its process has ended, and says how many have one.
pub fn settle<'a>(members: impl Iterator<Item = &'a mut Member>, within: Duration) -> usize {
    let mut members: Vec<&mut Member> = members.collect();
    let end = speak::now() + within.as_micros() as u64;
    loop {
        members.retain_mut(|member| member.is_up());
        let ready = members
            .iter()
            .filter(|member| member.leads().is_some())
            .count();
        if ready == members.len() || speak::now() > end {
            return ready;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts them all.
pub fn begin(members: &mut [Member]) {
    members.iter_mut().for_each(Member::start);
    let count = members.len();
    let ready = settle(members.iter_mut(), PATIENCE);
    assert!(
        ready == count,
        "no ensemble: {}",
        members
            .iter()
            .map(Member::why)
            .collect::<Vec<_>>()
            .join("; ")
    );
}
