//! Metrics of locks for Prometheus, made by an observer and served over HTTP.
//!
//! ```sh
//! cargo run --package example-metrics                          # eight seconds of work, then what was counted
//! cargo run --package example-metrics -- --stay --port 9464    # until Ctrl-C, for Prometheus to fetch
//! ```
//!
//! The nodes are those in `REDLOCK_NODES=redis://…,redis://…`. With none given it starts three private
//! `redis-server`s, kills one for a while, and deletes a lock behind its holder's back, so that there is
//! something to see. It needs the crates `oxhttp`, `prometheus-client` and `signal-hook`.
//!
//! # What to copy
//!
//! `Metrics`, `CLASSES` and `serve`. The label `lock` is a *class* of locks, never the resource itself: `account:17` is
//! counted under `account`, and what is not in the list under `other`. (The prefix of all locks is no part of the names that
//! events have.) Each value of a label is a time series that Prometheus keeps for ever; a million accounts would be a million
//! of each. The label `node` is the node's address.
//!
//! What an observer cannot report is how many threads wait at this moment: `Metrics::waiting` counts them around the calls.
//!
//! # To see it in Grafana
//!
//! Start the example with `--stay --port 9464`, and Prometheus with this `prometheus.yml`:
//!
//! ```yaml
//! scrape_configs:
//!   - job_name: redlock
//!     scrape_interval: 5s
//!     static_configs:
//!       - targets: ["127.0.0.1:9464"]
//! rule_files: [redlock.yml]
//! ```
//!
//! In Grafana add Prometheus (`http://127.0.0.1:9090`) under *Connections, Data sources*; then *Dashboards, New,
//! Import*, and give it the file `examples/metrics.json`.
//!
//! # Alerts
//!
//! As `redlock.yml`. What was left of the validity when a lock was extended is counted as a part of the ttl, so one alert fits
//! all classes. A renewal that is on time finds two thirds left.
//!
//! ```yaml
//! groups:
//!   - name: redlock
//!     rules:
//!       - alert: LockLost                 # work may have run unprotected
//!         expr: increase(redlock_lost_total[5m]) > 0
//!       - alert: LocksWithoutMajority     # no lock can be acquired or extended
//!         expr: sum by (instance) (redlock_node_up) <= count by (instance) (redlock_node_up) / 2
//!         for: 10s
//!       - alert: LocksSlow
//!         expr: histogram_quantile(0.99, sum by (le, lock) (rate(redlock_acquire_duration_seconds_bucket[5m]))) > 1
//!         for: 5m
//!       - alert: RenewalsLate             # a loss is near
//!         expr: histogram_quantile(0.01, sum by (le, lock) (rate(redlock_extension_slack_ratio_bucket[15m]))) < 0.33
//! ```

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oxhttp::model::{Body, Response, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use redlock_sync::redis::IntoConnectionInfo;
use redlock_sync::{Ending, Event, LostReason, Options, Redlock};
use support::{Random, Server};

/// The locks of this program, by the part of their name before the first colon, and their ttls.
const CLASSES: [(&str, Duration); 3] = [
    ("account", Duration::from_secs(10)),
    ("import", Duration::from_secs(1)),
    ("report", Duration::from_secs(10)),
];

/// A lock's class, and the ttl of that if it is known.
fn class(resource: &[u8]) -> (&'static str, Option<Duration>) {
    let name = resource.split(|byte| *byte == b':').next();
    let known = |(class, _): &&(&str, Duration)| name == Some(class.as_bytes());
    let class = CLASSES.iter().find(known);
    class.map_or(("other", None), |(class, ttl)| (class, Some(*ttl)))
}

type Labels<const N: usize> = [(&'static str, &'static str); N];
type OfNode = [(&'static str, String); 1];

/// What an observer counts.
#[derive(Clone)]
struct Metrics {
    acquire_duration: Family<Labels<2>, Histogram, fn() -> Histogram>,
    acquire_attempts: Family<Labels<1>, Counter>,
    waiting: Family<Labels<1>, Gauge>,
    hold_duration: Family<Labels<1>, Histogram, fn() -> Histogram>,
    held: Family<Labels<1>, Gauge>,
    lost: Family<Labels<2>, Counter>,
    extensions: Family<Labels<2>, Counter>,
    extension_slack: Family<Labels<1>, Histogram, fn() -> Histogram>,
    endings: Family<Labels<2>, Counter>,
    node_up: Family<OfNode, Gauge>,
    node_outages: Family<OfNode, Counter>,
}

/// From a round trip on one machine to a long wait, in seconds.
fn seconds() -> Histogram {
    Histogram::new([
        0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
        1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
    ])
}

/// Parts of a ttl.
fn parts() -> Histogram {
    Histogram::new([0.05, 0.1, 0.2, 0.33, 0.5, 0.6, 0.67, 0.8, 0.9, 1.0])
}

/// One more thread waits for a lock, until this is dropped.
struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Registers all metrics, with the addresses of the nodes, which count as up until an event says otherwise.
    fn new(registry: &mut Registry, nodes: Vec<String>) -> Metrics {
        let metrics = Metrics {
            acquire_duration: Family::new_with_constructor(seconds),
            acquire_attempts: Family::default(),
            waiting: Family::default(),
            hold_duration: Family::new_with_constructor(seconds),
            held: Family::default(),
            lost: Family::default(),
            extensions: Family::default(),
            extension_slack: Family::new_with_constructor(parts),
            endings: Family::default(),
            node_up: Family::default(),
            node_outages: Family::default(),
        };
        let Metrics {
            acquire_duration,
            acquire_attempts,
            waiting,
            hold_duration,
            held,
            lost,
            extensions,
            extension_slack,
            endings,
            node_up,
            node_outages,
        } = metrics.clone();
        // This package has the version of the crate. A program of your own writes its own.
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("redlock_build", "The version of this program", version);
        // To the names of counters `_total` is added.
        registry.register(
            "redlock_acquire_duration_seconds",
            "How long calls that acquire took",
            acquire_duration,
        );
        registry.register(
            "redlock_acquire_attempts",
            "Attempts of calls that acquire",
            acquire_attempts,
        );
        registry.register(
            "redlock_waiting",
            "Threads that wait for a lock now",
            waiting,
        );
        registry.register(
            "redlock_hold_duration_seconds",
            "How long locks were held",
            hold_duration,
        );
        registry.register("redlock_held", "Locks held now", held);
        registry.register("redlock_lost", "Locks found lost", lost);
        registry.register("redlock_extensions", "Extensions and renewals", extensions);
        registry.register(
            "redlock_extension_slack_ratio",
            "What was left of the validity when a lock was extended, as a part of the ttl",
            extension_slack,
        );
        registry.register("redlock_endings", "How locks ended", endings);
        registry.register("redlock_node_up", "Whether a node gives votes", node_up);
        registry.register(
            "redlock_node_outages",
            "How often a node gave no votes",
            node_outages,
        );
        // An alert sees the first loss only if there was a zero before.
        for lock in CLASSES.map(|(class, _)| class).into_iter().chain(["other"]) {
            for reason in ["taken", "deleted", "expired", "hold_limit"] {
                let labels = [("lock", lock), ("reason", reason)];
                metrics.lost.get_or_create(&labels).inc_by(0);
            }
        }
        for node in nodes {
            metrics.node_up.get_or_create(&[("node", node)]).set(1);
        }
        metrics
    }

    /// Call it before a call that waits, and drop the result when the lock is there.
    fn waiting(&self, resource: &[u8]) -> Waiting {
        let gauge = self
            .waiting
            .get_or_create_owned(&[("lock", class(resource).0)]);
        gauge.inc();
        Waiting(gauge)
    }

    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Acquired {
                resource,
                wait,
                attempts,
                ..
            } => {
                self.acquisition(class(resource).0, "acquired", *wait, *attempts);
                self.held
                    .get_or_create(&[("lock", class(resource).0)])
                    .inc();
            }
            Event::NotAcquired {
                resource,
                wait,
                attempts,
                error,
                ..
            } => {
                let result = match error {
                    redlock_sync::Error::Busy(_) => "busy",
                    redlock_sync::Error::TooSlow(_) => "too_slow",
                    redlock_sync::Error::Unavailable(_) => "unavailable",
                    redlock_sync::Error::Cancelled(_) => "cancelled",
                    _ => "other",
                };
                self.acquisition(class(resource).0, result, *wait, *attempts);
            }
            Event::Extended { resource, left, .. } => {
                self.extension(resource, "extended", *left);
            }
            Event::NotExtended { resource, left, .. } => {
                self.extension(resource, "failed", *left);
            }
            Event::Lost {
                resource, reason, ..
            } => {
                let reason = match reason {
                    LostReason::Taken => "taken",
                    LostReason::Deleted => "deleted",
                    LostReason::Expired => "expired",
                    LostReason::HoldLimit => "hold_limit",
                    _ => "other",
                };
                let labels = [("lock", class(resource).0), ("reason", reason)];
                self.lost.get_or_create(&labels).inc();
            }
            Event::Ended {
                resource,
                held,
                how,
                ..
            } => {
                let how = match how {
                    Ending::Released => "released",
                    Ending::NotConfirmed => "not_confirmed",
                    Ending::Dropped => "dropped",
                    Ending::Leaked => "leaked",
                    Ending::WasLost => "was_lost",
                    _ => "other",
                };
                let lock = ("lock", class(resource).0);
                self.held.get_or_create(&[lock]).dec();
                let hold = self.hold_duration.get_or_create(&[lock]);
                hold.observe(held.as_secs_f64());
                self.endings.get_or_create(&[lock, ("how", how)]).inc();
            }
            Event::NodeAway { address, .. } => {
                let node = [("node", (*address).to_owned())];
                self.node_up.get_or_create(&node).set(0);
                self.node_outages.get_or_create(&node).inc();
            }
            Event::NodeBack { address, .. } => {
                let node = [("node", (*address).to_owned())];
                self.node_up.get_or_create(&node).set(1);
            }
            _ => {}
        }
    }

    fn acquisition(&self, lock: &'static str, result: &'static str, wait: Duration, attempts: u32) {
        let labels = [("lock", lock), ("result", result)];
        let duration = self.acquire_duration.get_or_create(&labels);
        duration.observe(wait.as_secs_f64());
        let total = self.acquire_attempts.get_or_create(&[("lock", lock)]);
        total.inc_by(attempts.into());
    }

    fn extension(&self, resource: &[u8], result: &'static str, left: Duration) {
        let (lock, ttl) = class(resource);
        let labels = [("lock", lock), ("result", result)];
        self.extensions.get_or_create(&labels).inc();
        if let Some(ttl) = ttl {
            let slack = self.extension_slack.get_or_create(&[("lock", lock)]);
            slack.observe(left.as_secs_f64() / ttl.as_secs_f64());
        }
    }
}

/// The addresses of nodes, as events have them.
fn addresses(nodes: &[String]) -> Result<Vec<String>, Box<dyn Error>> {
    let address = |node: &String| Ok(node.as_str().into_connection_info()?.addr().to_string());
    nodes.iter().map(address).collect()
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// OpenMetrics in Prometheus' older text format, for clients that do not ask for the new one: there, the names of counters
/// have their `_total` everywhere, information is a gauge, and no last line is needed.
fn older(openmetrics: &str) -> String {
    let mut kinds = HashMap::new();
    for line in openmetrics.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
        {
            kinds.insert(name, kind);
        }
    }
    let mut text = String::new();
    for line in openmetrics.lines() {
        let line = match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => continue,
            ["#", what, name, rest] => match (kinds.get(name), what) {
                (Some(&"counter"), _) => format!("# {what} {name}_total {rest}"),
                (Some(&"info"), "TYPE") => format!("# TYPE {name}_info gauge"),
                (Some(&"info"), _) => format!("# {what} {name}_info {rest}"),
                _ => line.to_owned(),
            },
            _ => line.to_owned(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn serve(registry: Arc<Registry>, port: u16) -> Result<(), Box<dyn Error>> {
    let server = oxhttp::Server::new(move |request| {
        let accept = request.headers().get("accept");
        let accept = accept.and_then(|accept| accept.to_str().ok());
        let kind = match accept {
            Some(kinds) if kinds.contains("application/openmetrics-text") => OPENMETRICS,
            _ => TEXT,
        };
        let mut text = String::new();
        let status = match request.uri().path() {
            "/metrics" if encode(&mut text, &registry).is_ok() => StatusCode::OK,
            "/metrics" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::NOT_FOUND,
        };
        if kind == TEXT {
            text = older(&text);
        }
        let response = Response::builder().status(status);
        let response = response.header("content-type", kind);
        response.body(Body::from(text)).expect("a valid header")
    });
    let server = server.with_global_timeout(Duration::from_secs(10));
    let server = server.with_max_concurrent_connections(16);
    // It goes on for as long as the program does.
    server.bind((Ipv4Addr::LOCALHOST, port)).spawn()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let stay = args.iter().any(|arg| arg == "--stay");
    let free = support::free_port();
    let port = args.iter().position(|arg| arg == "--port");
    let port = match port.and_then(|at| args.get(at + 1)) {
        Some(port) => port.parse()?,
        None => free.number(),
    };
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone())?;

    let (mut private, nodes) = support::given_or_private(3);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry, addresses(&nodes)?);
    let registry = Arc::new(registry);
    let options = Options::new().wait(Duration::from_secs(1)).prefix("shop:");
    let observed = metrics.clone();
    let redlock = Redlock::new(nodes)?
        .with_observer(move |event| observed.observe(event))
        .with_options(options)?;
    serve(registry.clone(), port)?;
    println!("metrics: http://127.0.0.1:{port}/metrics");

    let time = Duration::from_secs(if stay { u64::MAX / 2 } else { 8 });
    work((&redlock, &metrics), &mut private, time, &stop);

    let mut text = String::new();
    encode(&mut text, &registry)?;
    for line in text.lines().filter(|line| !line.contains("_bucket")) {
        println!("{line}");
    }
    Ok(())
}

type Locks<'a> = (&'a Redlock, &'a Metrics);

/// What a program may do with locks. In the middle a private node is away for a second and a half.
fn work(locks: Locks<'_>, private: &mut [Server], time: Duration, stop: &AtomicBool) {
    let begun = Instant::now();
    let goes_on = || begun.elapsed() < time && !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        for user in 0..4 {
            scope.spawn(move || {
                let mut random = Random(user + 1);
                while goes_on() {
                    transfer(locks, &mut random);
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                import(locks, &goes_on);
            }
        });
        let mut harm = [(1500, false), (3000, true)].into_iter().peekable();
        while goes_on() {
            thread::sleep(Duration::from_millis(100));
            if let Some((at, well)) = harm.peek()
                && begun.elapsed() > Duration::from_millis(*at)
                && let Some(server) = private.get_mut(1)
            {
                if *well {
                    server.restart();
                    delete(private, "shop:import");
                } else {
                    server.kill();
                }
                harm.next();
            }
        }
    });
}

/// One lock, and the work under it. What fails is counted.
fn locked((redlock, metrics): Locks<'_>, resource: &str, work: Duration) {
    let waiting = metrics.waiting(resource.as_bytes());
    let ttl = class(resource.as_bytes())
        .1
        .unwrap_or(Duration::from_secs(10));
    let _ = redlock.with_lock(resource, ttl, |_| {
        drop(waiting);
        thread::sleep(work);
        Ok::<_, redlock_sync::Error>(())
    });
}

/// One of a thousand accounts; and now and then something that all want.
fn transfer(locks: Locks<'_>, random: &mut Random) {
    let ms = Duration::from_millis;
    locked(locks, &format!("account:{}", 1 + random.below(1000)), ms(2));
    match random.below(10) {
        0 => locked(locks, "report", ms(20)),
        1 => {
            let once = locks.0.try_acquire("mail:ann", ms(500));
            once.into_iter().flatten().for_each(|lock| lock.leak());
        }
        _ => {}
    }
}

/// Work of unknown length.
fn import((redlock, metrics): Locks<'_>, goes_on: &impl Fn() -> bool) {
    let waiting = metrics.waiting(b"import");
    let ttl = class(b"import").1.unwrap_or(Duration::from_secs(1));
    let _ = redlock.with_kept_lock("import", ttl, Duration::from_secs(3600), |lock| {
        drop(waiting);
        while goes_on() && lock.is_valid() {
            thread::sleep(Duration::from_millis(50));
        }
        Ok::<_, redlock_sync::Error>(())
    });
}

/// Behind its holder's back.
fn delete(nodes: &[Server], key: &str) {
    for node in nodes {
        node.command(&["DEL", key]);
    }
}
