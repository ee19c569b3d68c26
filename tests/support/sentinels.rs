//! A master, its replica, and sentinels that watch them.

use redlock_sync::{Options, Redlock};

use super::certificates::Certificate;
use super::*;

/// What sentinels call the master.
pub const NAME: &str = "set-1";
/// After this time a master that does not answer is down.
const DOWN_AFTER: Duration = Duration::from_millis(2000);

/// Sentinels that vote for each other at the same moment try again after some seconds.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Set {
    /// The first is the master at the beginning.
    pub servers: [Server; 2],
    pub sentinels: Vec<Server>,
    over_tls: bool,
}

impl Set {
    /// Watched by this number of sentinels. It can fail over.
    pub fn start(sentinels: usize) -> Set {
        Set::with(sentinels, over_tls())
    }

    pub fn with(sentinels: usize, over_tls: bool) -> Set {
        let certificate = over_tls.then(|| Certificate::any().clone());
        let args = ["--repl-diskless-sync-delay", "0"];
        let servers = [(); 2].map(|()| Server::with(certificate.clone(), &args));
        let master = servers[0].port();
        servers[1].command(&["REPLICAOF", "127.0.0.1", &master.to_string()]);
        eventually("it replicates", || {
            servers[1].info("replication", "master_link_status") == "up"
        });
        let quorum = sentinels / 2 + 1;
        let configuration = format!(
            "sentinel monitor {NAME} 127.0.0.1 {master} {quorum}\n\
             sentinel down-after-milliseconds {NAME} {}\nsentinel failover-timeout {NAME} 3000\n",
            DOWN_AFTER.as_millis()
        );
        let sentinel =
            |_| Server::started(certificate.clone(), Vec::new(), Some(configuration.clone()));
        let set = Set {
            sentinels: (0..sentinels).map(sentinel).collect(),
            servers,
            over_tls,
        };
        set.is_complete();
        set
    }

    /// Each sentinel knows the replica and the other sentinels.
    fn is_complete(&self) {
        let others = (self.sentinels.len() - 1).to_string();
        eventually("the sentinels know all of them", || {
            self.sentinels.iter().all(|sentinel| {
                let known = told(sentinel, "master");
                let replicas = told(sentinel, "replicas");
                let is = |name: &str, value: &str| {
                    let mut pairs = known.windows(2);
                    pairs.any(|pair| pair == [name, value])
                };
                let good = replicas
                    .windows(2)
                    .any(|pair| pair == ["master-link-status", "ok"]);
                is("num-slaves", "1") && is("num-other-sentinels", &others) && good
            })
        });
    }

    pub fn url(&self) -> String {
        self.url_for("", "")
    }

    /// `login`: what stands before the first host. `parameters`: what stands behind the name.
    pub fn url_for(&self, login: &str, parameters: &str) -> String {
        let (scheme, insecure) = match self.over_tls {
            true => ("rediss", "#insecure"),
            false => ("redis", ""),
        };
        let hosts = self.sentinels.iter();
        let hosts: Vec<String> = hosts
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        let hosts = hosts.join(",");
        format!("{scheme}+sentinel://{login}{hosts}/{NAME}{parameters}{insecure}")
    }

    /// Without the restart guard, which would wait for a server that was just started.
    pub fn client(&self) -> Redlock {
        client(&self.url(), options().restart_guard(Duration::ZERO))
    }

    /// The server that the sentinels name is this one.
    pub fn is_master(&self, server: usize) -> bool {
        let port = self.servers[server].port().to_string();
        let running = self.sentinels.iter().filter(|one| one.pid() > 0);
        let mut named = running.map(|sentinel| told(sentinel, "get-master-addr-by-name"));
        named.all(|named| named.last() == Some(&port))
    }

    pub fn is_promoted(&self, server: usize) -> bool {
        self.replication_has(server, "role:master")
    }

    fn replication_has(&self, server: usize, line: &str) -> bool {
        // With the promotion a sentinel ends all connections.
        let info = self.servers[server].try_command(&["INFO", "replication"]);
        let info = info.and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
        info.is_ok_and(|info| info.contains(line))
    }

    /// A server that may have just been started, or may be busy.
    pub fn replicates(&self, server: usize) -> bool {
        self.replication_has(server, "master_link_status:up")
    }

    /// Waits until the replica is the master, for all sentinels.
    pub fn has_failed_over(&self) {
        eventually_within(PATIENCE, "all know the new master", &mut || {
            self.is_promoted(1) && self.is_master(1)
        });
    }

    /// As an operator does it: the master stays up. Returns when this server is promoted.
    pub fn fail_over(&self, to: usize) {
        let ask = || -> redis::RedisResult<()> {
            let client = redis::Client::open(self.sentinels[0].unix_url())?;
            let mut connection = client.get_connection()?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("FAILOVER").arg(NAME).query(&mut connection)
        };
        // It is refused while there is one, or no good replica, and given up if the replica is slow.
        eventually_within(PATIENCE, "a server is promoted", &mut || {
            self.is_promoted(to) || ask().is_ok() && self.is_promoted(to)
        });
    }

    /// Waits until the replica is promoted.
    pub fn promotes(&self) {
        eventually_within(PATIENCE, "the replica is promoted", &mut || {
            self.is_promoted(1)
        });
    }
}

pub fn client(url: &str, options: Options) -> Redlock {
    Redlock::new(url).unwrap().with_options(options).unwrap()
}

/// All strings of what a sentinel says of the set.
fn told(sentinel: &Server, what: &str) -> Vec<String> {
    fn strings(value: redis::Value, all: &mut Vec<String>) {
        match value {
            redis::Value::Array(items) => items.into_iter().for_each(|item| strings(item, all)),
            redis::Value::Map(pairs) => {
                let items = pairs.into_iter().flat_map(|(key, value)| [key, value]);
                items.for_each(|item| strings(item, all));
            }
            value => all.extend(redis::from_redis_value::<String>(value).ok()),
        }
    }
    let mut all = Vec::new();
    strings(sentinel.command(&["SENTINEL", what, NAME]), &mut all);
    all
}
