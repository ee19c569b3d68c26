//! The network fails for seconds: every packet is dropped, and what the kernels still hold is delivered
//! afterwards. Needs network namespaces, which need root; elsewhere it says so and does nothing.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::Redlock;
use support::*;

/// Longer than the test: a key that is not released is there at the end.
const HOUR: Duration = Duration::from_secs(3600);
const HERE: &str = "10.9.0.1";
const THERE: &str = "10.9.0.2";
/// An address without a host: what is sent to it is lost, without an error.
const NOBODY: &str = "02:00:00:00:00:99";

fn ip(args: &str) -> Result<String, String> {
    let output = Command::new("ip").args(args.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Two namespaces with a cable between them.
struct Network {
    client: String,
    server: String,
    /// Of the two ends of the cable.
    addresses: [String; 2],
}

impl Network {
    fn new() -> Result<Network, String> {
        let [client, server] = ["c", "s"].map(|end| format!("{}-{end}", watchdog::name()));
        let mut network = Network {
            client,
            server,
            addresses: Default::default(),
        };
        let Network { client, server, .. } = &network;
        ip(&format!("netns add {client}"))?;
        ip(&format!("netns add {server}"))?;
        ip(&format!(
            "-n {client} link add v0 type veth peer name v1 netns {server}"
        ))?;
        ip(&format!("-n {client} addr add {HERE}/24 dev v0"))?;
        ip(&format!("-n {server} addr add {THERE}/24 dev v1"))?;
        for (space, device) in [
            (client, "lo"),
            (client, "v0"),
            (server, "lo"),
            (server, "v1"),
        ] {
            ip(&format!("-n {space} link set {device} up"))?;
        }
        // Segments are sent again as they were: each command by itself.
        let exec = format!("netns exec {client} tee /proc/sys/net/ipv4/tcp_retrans_collapse");
        let mut tee = Command::new("ip")
            .args(exec.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let written = writeln!(tee.stdin.take().unwrap(), "0");
        written
            .and_then(|()| tee.wait())
            .map_err(|error| error.to_string())
            .and_then(|status| status.success().then_some(()).ok_or(exec))?;
        let mac = |space: &str, device: &str| -> Result<String, String> {
            let text = ip(&format!("-n {space} link show {device}"))?;
            let mut words = text
                .split_whitespace()
                .skip_while(|word| *word != "link/ether");
            words.nth(1).map(str::to_owned).ok_or(text)
        };
        let addresses = [mac(client, "v0")?, mac(server, "v1")?];
        network.addresses = addresses;
        network.restore();
        Ok(network)
    }

    fn point(&self, to_client: &str, to_server: &str) {
        let Network { client, server, .. } = self;
        ip(&format!(
            "-n {client} neigh replace {THERE} lladdr {to_server} dev v0 nud permanent"
        ))
        .unwrap();
        ip(&format!(
            "-n {server} neigh replace {HERE} lladdr {to_client} dev v1 nud permanent"
        ))
        .unwrap();
    }

    fn fail(&self) {
        self.point(NOBODY, NOBODY);
    }

    fn restore(&self) {
        self.point(&self.addresses[0], &self.addresses[1]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.client));
        let _ = ip(&format!("netns del {}", self.server));
    }
}

/// A server in the other namespace, which is asked over its Unix socket.
struct Far {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Far {
    fn start(network: &Network, port: u16) -> Far {
        let dir = TempDir::new();
        let child = Command::new("ip")
            .args(["netns", "exec", &network.server])
            .arg(redis_server())
            .current_dir(dir.path())
            .args([
                "--bind",
                THERE,
                "--protected-mode",
                "no",
                "--port",
                &port.to_string(),
            ])
            .args([
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                ".",
                "--logfile",
                "log",
            ])
            .args(["--unixsocket", "s"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let far = Far { child, dir, port };
        eventually("the server is up", || {
            std::os::unix::net::UnixStream::connect(far.dir.path().join("s")).is_ok()
        });
        far
    }

    fn keys(&self) -> Vec<String> {
        let url = format!("unix://{}", self.dir.path().join("s").display());
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("KEYS").arg("*").query(&mut connection).unwrap()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The client, in its namespace: many threads take names that are never taken twice, and end when told.
fn client() {
    let nodes = std::env::var("NODES").unwrap();
    let redlock = Redlock::new(nodes.split(',')).unwrap();
    redlock.acquire("warm", HOUR).unwrap().release().unwrap();
    println!("ready");
    let over = AtomicBool::new(false);
    // When the last lock was taken, and the longest time in which none was.
    let taken = Mutex::new((Instant::now(), Duration::ZERO));
    let takes = || {
        let (last, longest) = &mut *taken.lock().unwrap();
        *longest = last.elapsed().max(*longest);
        *last = Instant::now();
    };
    std::thread::scope(|scope| {
        for user in 0..48 {
            let (redlock, over, takes) = (&redlock, &over, &takes);
            scope.spawn(move || {
                for round in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("{user} {round} {}", "x".repeat(round % 64));
                    if let Ok(Some(lock)) = redlock.try_acquire(name, HOUR) {
                        takes();
                        match round % 2 {
                            0 => drop(lock),
                            _ => drop(lock.release()),
                        }
                    }
                    std::thread::sleep(ms(1));
                }
            });
        }
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        over.store(true, Ordering::Relaxed);
    });
    println!("done: {}", taken.lock().unwrap().1.as_millis());
    // It lives on, and is used.
    let mut line = String::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (redlock, over) = (&redlock, &over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                drop(redlock.try_acquire("probe", Duration::from_secs(1)));
                std::thread::sleep(ms(20));
            }
        });
        std::io::stdin().read_line(&mut line).unwrap();
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_outage_of_the_network_leaves_no_key() {
    if role().is_some() {
        return client();
    }
    let network = match Network::new() {
        Ok(network) => network,
        Err(error) => return skipped("an_outage_of_the_network", &error),
    };
    let servers: Vec<Far> = (0..3).map(|i| Far::start(&network, 7001 + i)).collect();
    let urls: Vec<String> = servers
        .iter()
        .map(|far| format!("redis://{THERE}:{}", far.port))
        .collect();
    for round in 1..2 {
        let mut child = watched(&mut Command::new("ip"))
            .args(["netns", "exec", &network.client])
            .arg(std::env::current_exe().unwrap())
            .args([
                &*full_name("an_outage_of_the_network_leaves_no_key"),
                "--exact",
                "--nocapture",
            ])
            .env("ROLE", "client")
            .env("NODES", urls.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        std::thread::sleep(ms(1500));
        network.fail();
        std::thread::sleep(ms(5500 + 500 * round));
        network.restore();
        std::thread::sleep(ms(1500));
        writeln!(stdin, "stop").unwrap();
        let none_for = lines.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix("done: ")?.parse::<u64>().ok()
        });
        // The outage was noticed, and then locks were taken again.
        let none_for = none_for.expect("it ends");
        assert!(none_for > 4000, "{none_for} ms");
        let left = |far: &Far| far.keys().into_iter().filter(|key| key != "probe").count();
        let end = Instant::now() + Duration::from_secs(10);
        let mut counts = vec![1];
        while counts.iter().any(|count| *count > 0) && Instant::now() < end {
            std::thread::sleep(ms(100));
            counts = servers.iter().map(left).collect();
        }
        drop(stdin);
        child.wait().unwrap();
        println!("round {round}: {counts:?} keys are left");
        assert_eq!(counts, [0, 0, 0], "round {round}");
    }
}
