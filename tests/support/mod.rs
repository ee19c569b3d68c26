//! Real `redis-server` processes and a relay that can spoil the way to them, for tests, examples
//! and benchmarks. Each user starts its own: private directories, free ports, nothing shared.

// Every test binary uses its own part of this.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_lossless
)]

pub mod certificates;
pub mod clocks;
pub mod clusters;
pub mod fake;
pub mod holders;
pub mod ports;
pub mod processes;
pub mod programs;
pub mod relay;
pub mod sentinels;
pub mod server_program;
pub mod turns;
pub mod watchdog;

pub use ports::{Port, free_port};
pub use programs::*;
pub use server_program::redis_server;
pub use watchdog::{TempDir, watched};

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use certificates::Certificate;
use redlock_sync::{Error, Lock, NodeErrors, Options, Redlock};
use server_program::{cannot_start, is_itself, will_do};

/// Longer than a busy machine stands still, which must not look like a fault.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(1);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A `redis-server` of its own, ended with its value.
pub struct Server {
    child: Option<Child>,
    port: Arc<Port>,
    /// In a cluster it listens to the other nodes on this one.
    bus: Option<Port>,
    /// Its port is one for TLS.
    certificate: Option<Certificate>,
    args: Vec<String>,
    /// It is a sentinel, and begins with this configuration.
    sentinel: Option<String>,
    /// Variables of its environment.
    variables: Vec<(String, PathBuf)>,
    dir: TempDir,
}

/// With `REDLOCK_TEST_SCHEME=rediss` all servers are reached over TLS instead of TCP.
pub fn over_tls() -> bool {
    std::env::var("REDLOCK_TEST_SCHEME").is_ok_and(|scheme| scheme == "rediss")
}

/// The same node, where its locks are in another database.
pub fn in_database(url: &str, number: u32) -> String {
    match url.strip_suffix("/#insecure") {
        Some(url) => format!("{url}/{number}#insecure"),
        None => format!("{url}/{number}"),
    }
}

/// A port of this machine as the URL of a node.
pub fn url_of(port: u16) -> String {
    match over_tls() {
        true => format!("rediss://127.0.0.1:{port}/#insecure"),
        false => format!("redis://127.0.0.1:{port}"),
    }
}

impl Server {
    pub fn start() -> Server {
        Server::with_args(&[])
    }

    pub fn with_args(args: &[&str]) -> Server {
        let certificate = over_tls().then(|| Certificate::any().clone());
        Server::with(certificate, args)
    }

    /// Over TCP, whatever the others are.
    pub fn plain() -> Server {
        Server::with(None, &[])
    }

    /// The only server of a Redis Cluster, over TCP.
    pub fn plain_cluster() -> Server {
        let no_matter = "--cluster-require-full-coverage";
        let server = Server::with(None, &["--cluster-enabled", "yes", no_matter, "no"]);
        server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        eventually("it serves its slots", || {
            let state = server.command(&["CLUSTER", "INFO"]);
            let state: String = redis::from_redis_value(state).unwrap();
            state.contains("cluster_state:ok")
        });
        server
    }

    /// Over TLS, with that certificate.
    pub fn over_tls(certificate: &Certificate, args: &[&str]) -> Server {
        Server::with(Some(certificate.clone()), args)
    }

    fn with(certificate: Option<Certificate>, args: &[&str]) -> Server {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Server::started(certificate, args, None)
    }

    fn started(
        certificate: Option<Certificate>,
        args: Vec<String>,
        sentinel: Option<String>,
    ) -> Server {
        let mut server = Server::new(certificate, args, sentinel);
        server.begin();
        server
    }

    fn new(
        certificate: Option<Certificate>,
        args: Vec<String>,
        sentinel: Option<String>,
    ) -> Server {
        will_do();
        Server {
            child: None,
            port: free_port().into(),
            bus: None,
            certificate,
            args,
            sentinel,
            variables: Vec::new(),
            dir: TempDir::new(),
        }
    }

    /// With these variables in its environment. The libraries of `LD_PRELOAD`, a list in which no path may have a space, are
    /// linked into the directory where the server runs.
    pub fn with_variables(variables: &[(&str, &Path)]) -> Server {
        let certificate = over_tls().then(|| Certificate::any().clone());
        Server::with_args_and_variables(certificate, Vec::new(), variables)
    }

    fn with_args_and_variables(
        certificate: Option<Certificate>,
        args: Vec<String>,
        variables: &[(&str, &Path)],
    ) -> Server {
        let mut server = Server::new(certificate, args, None);
        let value = |name: &str, value: &Path| match name {
            "LD_PRELOAD" => server.linked(value),
            _ => value.to_path_buf(),
        };
        server.variables = variables
            .iter()
            .map(|(name, path)| ((*name).to_owned(), value(name, path)))
            .collect();
        server.begin();
        server
    }

    /// Links to these libraries, whose paths are separated by colons.
    fn linked(&self, libraries: &Path) -> PathBuf {
        let libraries = libraries.to_str().unwrap().split(':').map(Path::new);
        let links = libraries.map(|library| {
            let name = Path::new(library.file_name().unwrap());
            std::os::unix::fs::symlink(library, self.dir().join(name)).unwrap();
            format!("./{}", name.display())
        });
        links.collect::<Vec<_>>().join(":").into()
    }

    /// With the port of another one, at another address.
    fn with_port_of(other: &Server, args: Vec<String>) -> Server {
        let mut server = Server::new(None, args, None);
        server.port = other.port.clone();
        server.begin();
        assert_eq!(server.port(), other.port());
        server
    }

    fn begin(&mut self) {
        for _ in 0..20 {
            match self.try_spawn() {
                Started::Listens => return,
                // Another program may have taken its port.
                Started::Ended => (self.port, self.bus) = (free_port().into(), None),
                Started::Silent => break,
            }
        }
        panic!(
            "{} does not start: {}",
            redis_server().display(),
            self.why()
        );
    }

    pub fn several(count: usize) -> Vec<Server> {
        (0..count).map(|_| Server::start()).collect()
    }

    /// Other arguments from the next start on.
    pub fn set_args(&mut self, args: &[&str]) {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    }

    /// Another certificate from the next start on.
    pub fn set_certificate(&mut self, certificate: &Certificate) {
        self.certificate = Some(certificate.clone());
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its log and its output, or the reason why it has none.
    fn why(&self) -> String {
        let text = |name| std::fs::read_to_string(self.dir().join(name)).unwrap_or_default();
        let log = text("log") + &text("output");
        let page = std::fs::write(self.dir().join("page"), [0; 4096]);
        match page {
            Err(error) if log.is_empty() => format!("{}: {error}", self.dir().display()),
            Ok(()) if log.is_empty() => "it runs, says nothing, and listens nowhere".into(),
            _ => log,
        }
    }

    fn try_spawn(&mut self) -> Started {
        let has_processes = Path::new("/proc/self").exists();
        assert!(has_processes, "no /proc: nothing would end the servers");
        let binary = redis_server();
        let port = match self.certificate {
            Some(_) => "--tls-port",
            None => "--port",
        };
        let tls = self.certificate.as_ref().map(|one| one.args(self.dir()));
        // Its output before it has a log.
        let mut output = std::fs::File::create(self.dir().join("output")).unwrap();
        let mut command = Command::new(&binary);
        match &self.sentinel {
            Some(configuration) => {
                let file = self.dir.path().join("sentinel.conf");
                std::fs::write(&file, configuration).unwrap();
                command.arg(file).arg("--sentinel")
            }
            None => command.args(["--save", "", "--appendonly", "no"]),
        };
        let is_in_cluster = self.args.iter().any(|arg| arg == "--cluster-enabled");
        if is_in_cluster {
            let bus = self.bus.get_or_insert_with(free_port);
            command.args(["--cluster-port", &bus.to_string()]);
        }
        let child = command
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .args(tls.iter().flatten())
            .args([port, &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--unixsocket", "s", "--daemonize", "no"])
            .args(["--dir", ".", "--logfile", "log"])
            .args(&self.args)
            // By which its watchdog finds it.
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output.try_clone().unwrap())
            .spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}", cannot_start(&binary, &error)));
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Some(status) = child.try_wait().unwrap() {
                let _ = writeln!(output, "{status}");
                return Started::Ended;
            }
            if let Ok(stream) = std::os::unix::net::UnixStream::connect(self.socket()) {
                is_itself(child.id(), &stream);
                // A cluster node listens before it finds that its second port is taken, and leaves.
                if is_in_cluster && !answers(stream) {
                    continue;
                }
                // Redis 8 listens for TLS last.
                let listens = || std::net::TcpStream::connect(("127.0.0.1", self.port()));
                if self.certificate.is_some() && listens().is_err() {
                    continue;
                }
                self.child = Some(child);
                return Started::Listens;
            }
            std::thread::sleep(ms(3));
        }
        let _ = child.kill();
        let _ = child.wait();
        Started::Silent
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Over TCP, or over TLS.
    pub fn url(&self) -> String {
        match self.certificate {
            Some(_) => format!("rediss://127.0.0.1:{}/#insecure", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// The same for a user.
    pub fn url_for(&self, user: &str, password: &str) -> String {
        let login = format!("://{user}:{password}@");
        self.url().replace("://", &login)
    }

    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.id() as i32)
    }

    fn signal(&self, signal: i32) {
        let pid = self.pid();
        assert!(pid > 0, "the server was killed before");
        // SAFETY: plain system call on a child of ours that was not waited for.
        unsafe { libc::kill(pid, signal) };
    }

    /// Freezes the process: connections stay up, nothing answers.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        is_stopped(self.pid());
    }

    /// The states of its threads, for a message: `T` is stopped. Nothing, if it was killed.
    pub fn state(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let tasks = tasks.into_iter().flatten().flatten();
        tasks.filter_map(|task| state_of(&task)).collect()
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// `kill -9`; without persistence its data is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// On the same port, empty, or with the data that it was told to keep.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            let _ = std::fs::remove_file(self.socket());
            if let Started::Listens = self.try_spawn() {
                return;
            }
            std::thread::sleep(ms(20));
        }
        panic!("redis-server does not restart: {}", self.why());
    }

    /// A command over a connection of its own.
    pub fn command(&self, args: &[&str]) -> redis::Value {
        self.command_table(&args.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>())
    }

    pub fn command_table(&self, args: &[&[u8]]) -> redis::Value {
        let client = redis::Client::open(self.own_url()).unwrap();
        let mut connection = client
            .get_connection()
            .expect("a connection to the test server");
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(*arg);
        }
        command
            .query(&mut connection)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// Where the server may refuse, or end connections.
    pub fn try_command(&self, args: &[&str]) -> redis::RedisResult<redis::Value> {
        let mut connection = redis::Client::open(self.own_url())?.get_connection()?;
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(*arg);
        }
        command.query(&mut connection)
    }

    /// With the password that it was started with.
    fn own_url(&self) -> String {
        let mut args = self.args.windows(2);
        match args.find(|pair| pair[0] == "--requirepass") {
            Some(pair) => format!("{}?pass={}", self.unix_url(), pair[1]),
            None => self.unix_url(),
        }
    }

    pub fn exists(&self, key: impl AsRef<[u8]>) -> bool {
        self.command_table(&[b"EXISTS", key.as_ref()]) == redis::Value::Int(1)
    }

    /// All but the witnesses of the restart guard.
    pub fn keys(&self) -> Vec<String> {
        let value = self.command(&["KEYS", "*"]);
        let mut keys: Vec<String> = redis::from_redis_value(value).unwrap();
        keys.retain(|key| !key.contains("redlock:witness"));
        keys.sort();
        keys
    }

    pub fn info(&self, section: &str, field: &str) -> String {
        let text: String = redis::from_redis_value(self.command(&["INFO", section])).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.unwrap_or_else(|| panic!("no {field} in INFO {section}"))
            .trim()
            .to_owned()
    }

    /// How often a command was carried out, also by scripts.
    pub fn calls(&self, command: &str) -> u64 {
        let text = self.command(&["INFO", "commandstats"]);
        let text: String = redis::from_redis_value(text).unwrap();
        let stats = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        let calls = stats.and_then(|stats| stats.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }

    /// How many processes are in the queue for a lock.
    pub fn queued(&self, resource: &str) -> u64 {
        let queue = beside(resource, "w");
        redis::from_redis_value(self.command(&["ZCARD", &queue])).unwrap()
    }

    /// Connections of others than this one.
    pub fn clients(&self) -> usize {
        self.info("clients", "connected_clients")
            .parse::<usize>()
            .unwrap()
            - 1
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a server has started.
enum Started {
    Listens,
    Ended,
    /// Runs, and does not listen.
    Silent,
}

fn answers(mut stream: std::os::unix::net::UnixStream) -> bool {
    use std::io::{Read, Write};
    stream.write_all(b"PING\r\n").is_ok() && matches!(stream.read(&mut [0; 64]), Ok(1..))
}

/// The name of a key beside a lock.
pub fn beside(resource: &str, what: &str) -> String {
    match resource.contains('}') {
        true => format!("{resource}::redlock:{what}"),
        false => format!("{{{resource}}}:redlock:{what}"),
    }
}

pub fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

/// The nodes of a list. Those of a set have commas, too.
fn items(list: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for part in list.split(',') {
        match items.last_mut().filter(|_| !part.contains("://")) {
            Some(last) => last.extend([",", part]),
            None => items.push(part.to_owned()),
        }
    }
    items
}

/// For examples: the nodes named in `REDLOCK_NODES=url,url,…`, or as many private servers as asked
/// for. Nodes that were given are not ours to stop or kill, so no `Server` comes with them.
pub fn given_or_private(count: usize) -> (Vec<Server>, Vec<String>) {
    ends_plainly();
    match std::env::var("REDLOCK_NODES") {
        Ok(nodes) => {
            eprintln!(
                "REDLOCK_NODES is set: these are your nodes, and nothing is done to them but locking. \
                 Unset it (env -u REDLOCK_NODES …) for private ones."
            );
            (Vec::new(), items(&nodes))
        }
        Err(_) => {
            let servers = Server::several(count);
            let nodes = urls(&servers);
            (servers, nodes)
        }
    }
}

/// As other programs at a shell: it ends without a word where what reads its output has ended, and with a sentence where it
/// cannot go on. (`RUST_BACKTRACE=1` shows where.)
fn ends_plainly() {
    // SAFETY: a plain system call. Sockets of the standard library raise no signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let default = std::panic::take_hook();
    let is_plain = std::env::var_os("RUST_BACKTRACE").is_none();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        match text.or_else(|| payload.downcast_ref::<&str>().copied()) {
            // (Standard error may be full.)
            Some(text) if is_plain => drop(writeln!(std::io::stderr(), "{text}")),
            _ => default(panic),
        }
        std::process::exit(1);
    }));
}

/// Patient with a busy machine, quick at retrying.
pub fn options() -> Options {
    Options::new()
        .node_timeout(NODE_TIMEOUT)
        .connect_timeout(Duration::from_secs(5))
        .retry_delay(ms(1), ms(10))
        .wait(Duration::from_secs(30))
}

/// Where all nodes are well, none is away, however busy the machine is.
pub fn unhurried() -> Options {
    options().node_timeout(5 * NODE_TIMEOUT)
}

pub fn redlock(servers: &[Server]) -> Redlock {
    Redlock::new(urls(servers))
        .unwrap()
        .with_options(options())
        .unwrap()
}

/// Where all nodes are well.
pub fn unhurried_redlock(servers: &[Server]) -> Redlock {
    redlock(servers).with_options(unhurried()).unwrap()
}

/// A client with a connection to each node.
pub fn unhurried_connected(servers: &[Server]) -> Redlock {
    let redlock = unhurried_redlock(servers);
    all_vote(&redlock, servers);
    redlock
}

/// With a connection to each node: on a busy machine the first operation may not wait for the last.
pub fn connected(servers: &[Server]) -> Redlock {
    let redlock = redlock(servers);
    all_vote(&redlock, servers);
    redlock
}

/// A relay in front of each server, and a client of the relays.
pub fn behind_relays(servers: &[Server]) -> (Vec<relay::Relay>, Redlock) {
    let relay = |server: &Server| relay::Relay::to(server.port());
    let relays: Vec<_> = servers.iter().map(relay).collect();
    let redlock = Redlock::new(relays.iter().map(relay::Relay::url)).unwrap();
    (relays, redlock.with_options(options()).unwrap())
}

/// Waits until the key is on all servers: a call returns when a majority has it.
pub fn wait_everywhere(servers: &[Server], key: &str) {
    eventually(&format!("{key} is everywhere"), || {
        servers.iter().all(|server| server.exists(key))
    });
}

/// Waits until all are used. A connection that a server counts may still be in its handshake.
pub fn all_vote(redlock: &Redlock, servers: &[Server]) {
    eventually("all nodes are connected", || {
        let lock = take(redlock, "connecting");
        let all = servers.iter().all(|server| server.exists("connecting"));
        lock.release().unwrap();
        all
    });
}

pub fn on_all(servers: &[Server], command: &[&str]) -> Vec<redis::Value> {
    servers.iter().map(|one| one.command(command)).collect()
}

/// Waits until this many are in the queue for a resource, on a majority of the nodes: one that grants what most deny, since
/// the lock reaches it later than the waiter does, puts no waiter into its queue.
pub fn in_queue(servers: &[Server], resource: &str, count: u64) {
    eventually("they are in the queue", || {
        let has_all = |server: &&Server| server.queued(resource) == count;
        2 * servers.iter().filter(has_all).count() > servers.len()
    });
}

pub const TTL: Duration = Duration::from_secs(60);

/// One attempt that must succeed.
pub fn take(redlock: &Redlock, resource: &str) -> Lock {
    redlock
        .try_acquire(resource, TTL)
        .unwrap()
        .expect("the lock is free")
}

pub fn unavailable<T>(result: Result<T, Error>) -> NodeErrors {
    match result {
        Err(Error::Unavailable(nodes)) => nodes,
        Err(error) => panic!("expected Unavailable, got {error}"),
        Ok(_) => panic!("expected Unavailable, got Ok"),
    }
}

pub fn config<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Config(error)) => error.to_string(),
        Err(error) => panic!("expected Config, got {error}"),
        Ok(_) => panic!("expected Config, got Ok"),
    }
}

/// The text of the error that the name is in use as another kind of lock.
pub fn other_kind<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::OtherKind(error)) => error.to_string(),
        Err(error) => panic!("expected OtherKind, got {error}"),
        Ok(_) => panic!("expected OtherKind, got Ok"),
    }
}

/// Waits for a condition that must come true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(60), what, &mut condition);
}

pub fn eventually_within(time: Duration, what: &str, condition: &mut dyn FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        let elapsed = began.elapsed();
        assert!(elapsed < time, "not within {time:?}: {what}");
        // Many tests wait beside each other on few cores.
        std::thread::sleep((elapsed / 16).clamp(ms(2), ms(50)));
    }
}

/// Ends what others do until it is set: also by a panic, or the users of a scope would go on for ever.
pub struct OnDrop<'a>(pub &'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads of this process that attend to nodes.
pub fn attendants() -> usize {
    named("redlock-node")
}

/// Waits until the threads have ended that connected nodes, or confirm what was released. One that is being started may not
/// have its name yet.
pub fn wait_for_quiet() {
    let mut quiet_since = Instant::now();
    eventually("no thread connects or confirms", || {
        if attendants() + confirmers() > 0 {
            quiet_since = Instant::now();
        }
        quiet_since.elapsed() > ms(200)
    });
}

/// Threads of this process that listen to nodes.
pub fn ears() -> usize {
    named("redlock-sub")
}

/// Threads of this process that confirm the ends of locks.
pub fn confirmers() -> usize {
    named("redlock-confirm")
}

fn named(start: &str) -> usize {
    threads_named(start).len()
}

/// As directories.
pub fn threads_named(start: &str) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let paths = tasks.map(|task| task.unwrap().path());
    let is_one = |path: &PathBuf| {
        let name = std::fs::read_to_string(path.join("comm"));
        name.is_ok_and(|name| name.starts_with(start))
    };
    paths.filter(is_one).collect()
}

/// Starts a thread that waits for a lock; it does so when this returns.
pub fn waiter<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = scope.spawn(move || {
        // SAFETY: plain system call.
        sender.send(unsafe { libc::gettid() }).unwrap();
        work()
    });
    let call = format!("/proc/self/task/{}/syscall", receiver.recv().unwrap());
    // Parked, and not waiting for a reply. (The file has "running" where the thread is, and may be missing in a kernel.)
    let futex = libc::SYS_futex.to_string();
    let is_parked = || {
        std::thread::sleep(ms(2));
        let text = std::fs::read_to_string(&call).unwrap_or_else(|_| futex.clone());
        text.split(' ').next() == Some(&futex)
    };
    // A mutex that it may wait for before is free within less.
    eventually("it waits", || (0..3).all(|_| is_parked()));
    thread
}

/// The state of a thread, by its directory in /proc.
fn state_of(task: &std::fs::DirEntry) -> Option<char> {
    let text = std::fs::read_to_string(task.path().join("stat")).ok()?;
    text.rsplit(')').next()?.trim_start().chars().next()
}

/// The signal is on its way; waits until it has arrived at all threads.
pub fn is_stopped(process: i32) {
    let stopped = |task: std::fs::DirEntry| state_of(&task) == Some('T');
    eventually("it stands still", || {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        tasks.flatten().all(stopped)
    });
}

pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// xorshift: seeded, so that a failure can be had again.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}
