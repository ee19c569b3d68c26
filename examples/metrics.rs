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
//! `Metrics` and `class`. The label `lock` is a *class* of locks, never the resource itself: `account:17` is
//! counted under `account`, and what is not in the list under `other`. Each value of a label is a time series
//! that Prometheus keeps for ever; a million accounts would be a million of each.
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
//! As `redlock.yml`. The last one is for the class `import`, as if its ttl were 30 s: a third of it. Make one for
//! each ttl that you use, and name its classes: one for all would fire for ever where a ttl is shorter.
//!
//! ```yaml
//! groups:
//!   - name: redlock
//!     rules:
//!       - alert: LockLost                 # work may have run unprotected
//!         expr: increase(redlock_lost_total[5m]) > 0
//!       - alert: LocksWithoutMajority     # nobody gets or keeps a lock
//!         expr: sum by (instance) (redlock_node_up) <= count by (instance) (redlock_node_up) / 2
//!         for: 10s
//!       - alert: LocksSlow
//!         expr: histogram_quantile(0.99, sum by (le, lock) (rate(redlock_acquire_duration_seconds_bucket[5m]))) > 1
//!         for: 5m
//!       - alert: RenewalsLate             # a loss is near
//!         expr: histogram_quantile(0.01, sum by (le, lock) (rate(redlock_extension_slack_seconds_bucket{lock=~"import"}[15m]))) < 10
//! ```

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::hash::Hash;
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
use prometheus_client::registry::Registry;
use redlock_sync::{Ending, Event, LostReason, Options, Redlock};
use support::{Random, Server};

/// The locks of this program, by the part of their name before the first colon.
const CLASSES: [&str; 3] = ["account", "import", "report"];

fn class(resource: &[u8]) -> &'static str {
    let name = resource.split(|byte| *byte == b':').next();
    let known = |class: &&&str| name == Some(class.as_bytes());
    CLASSES.iter().find(known).copied().unwrap_or("other")
}

type Labels<const N: usize> = [(&'static str, &'static str); N];
type OfNode = [(&'static str, usize); 1];

/// What an observer counts.
#[derive(Clone)]
struct Metrics {
    acquire_duration: Family<Labels<2>, Histogram, fn() -> Histogram>,
    acquire_attempts: Family<Labels<1>, Counter>,
    hold_duration: Family<Labels<1>, Histogram, fn() -> Histogram>,
    held: Family<Labels<1>, Gauge>,
    lost: Family<Labels<2>, Counter>,
    extensions: Family<Labels<2>, Counter>,
    extension_slack: Family<Labels<1>, Histogram, fn() -> Histogram>,
    endings: Family<Labels<2>, Counter>,
    node_up: Family<OfNode, Gauge>,
    node_outages: Family<OfNode, Counter>,
}

/// From a round trip to a long wait, in seconds.
fn histogram() -> Histogram {
    let buckets = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
        60.0, 300.0, 3600.0,
    ];
    Histogram::new(buckets)
}

fn histograms<L: Clone + Eq + Hash>() -> Family<L, Histogram, fn() -> Histogram> {
    Family::new_with_constructor(histogram)
}

impl Metrics {
    /// Registers all metrics, for so many nodes, which are thought to be well until something else is said.
    fn new(registry: &mut Registry, nodes: usize) -> Metrics {
        let metrics = Metrics {
            acquire_duration: histograms(),
            acquire_attempts: Family::default(),
            hold_duration: histograms(),
            held: Family::default(),
            lost: Family::default(),
            extensions: Family::default(),
            extension_slack: histograms(),
            endings: Family::default(),
            node_up: Family::default(),
            node_outages: Family::default(),
        };
        let Metrics {
            acquire_duration,
            acquire_attempts,
            hold_duration,
            held,
            lost,
            extensions,
            extension_slack,
            endings,
            node_up,
            node_outages,
        } = metrics.clone();
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
            "redlock_hold_duration_seconds",
            "How long locks were held",
            hold_duration,
        );
        registry.register("redlock_held", "Locks held now", held);
        registry.register("redlock_lost", "Locks found lost", lost);
        registry.register("redlock_extensions", "Extensions and renewals", extensions);
        registry.register(
            "redlock_extension_slack_seconds",
            "What was left of the validity when a lock was extended",
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
        for lock in CLASSES.into_iter().chain(["other"]) {
            for reason in ["taken", "expired", "hold_limit"] {
                let labels = [("lock", lock), ("reason", reason)];
                metrics.lost.get_or_create(&labels).inc_by(0);
            }
        }
        for node in 0..nodes {
            metrics.node_up.get_or_create(&[("node", node)]).set(1);
        }
        metrics
    }

    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Acquired {
                resource,
                wait,
                attempts,
                ..
            } => {
                self.acquisition(class(resource), "acquired", *wait, *attempts);
                self.held.get_or_create(&[("lock", class(resource))]).inc();
            }
            Event::NotAcquired {
                resource,
                wait,
                attempts,
                error,
                ..
            } => {
                let result = match error {
                    redlock_sync::Error::Busy => "busy",
                    redlock_sync::Error::TooSlow => "too_slow",
                    redlock_sync::Error::Unavailable(_) => "unavailable",
                    redlock_sync::Error::Cancelled => "cancelled",
                    _ => "other",
                };
                self.acquisition(class(resource), result, *wait, *attempts);
            }
            Event::Extended { resource, left, .. } => {
                self.extension(class(resource), "extended", *left);
            }
            Event::NotExtended { resource, left, .. } => {
                self.extension(class(resource), "failed", *left);
            }
            Event::Lost {
                resource, reason, ..
            } => {
                let reason = match reason {
                    LostReason::Taken => "taken",
                    LostReason::Expired => "expired",
                    LostReason::HoldLimit => "hold_limit",
                    _ => "other",
                };
                let labels = [("lock", class(resource)), ("reason", reason)];
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
                let lock = ("lock", class(resource));
                self.held.get_or_create(&[lock]).dec();
                let hold = self.hold_duration.get_or_create(&[lock]);
                hold.observe(held.as_secs_f64());
                self.endings.get_or_create(&[lock, ("how", how)]).inc();
            }
            Event::NodeAway { node, .. } => {
                self.node_up.get_or_create(&[("node", *node)]).set(0);
                self.node_outages.get_or_create(&[("node", *node)]).inc();
            }
            Event::NodeBack { node, .. } => {
                self.node_up.get_or_create(&[("node", *node)]).set(1);
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

    fn extension(&self, lock: &'static str, result: &'static str, left: Duration) {
        let labels = [("lock", lock), ("result", result)];
        self.extensions.get_or_create(&labels).inc();
        let slack = self.extension_slack.get_or_create(&[("lock", lock)]);
        slack.observe(left.as_secs_f64());
    }
}

fn serve(registry: Arc<Registry>, port: u16) -> Result<(), Box<dyn Error>> {
    let server = oxhttp::Server::new(move |request| {
        let mut text = String::new();
        let status = match request.uri().path() {
            "/metrics" if encode(&mut text, &registry).is_ok() => StatusCode::OK,
            "/metrics" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::NOT_FOUND,
        };
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
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
    let port = args.iter().position(|arg| arg == "--port");
    let port = match port.and_then(|at| args.get(at + 1)) {
        Some(port) => port.parse()?,
        None => support::free_port(),
    };
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone())?;

    let (mut private, nodes) = support::given_or_private(3);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry, nodes.len());
    let registry = Arc::new(registry);
    let options = Options::new().wait(Duration::from_secs(1));
    let redlock = Redlock::new(nodes)?
        .with_observer(move |event| metrics.observe(event))
        .with_options(options)?;
    serve(registry.clone(), port)?;
    println!("metrics: http://127.0.0.1:{port}/metrics");

    let time = Duration::from_secs(if stay { u64::MAX / 2 } else { 8 });
    work(&redlock, &mut private, time, &stop);

    let mut text = String::new();
    encode(&mut text, &registry)?;
    for line in text.lines().filter(|line| !line.contains("_bucket")) {
        println!("{line}");
    }
    Ok(())
}

/// What a program may do with locks. In the middle a private node is away for a second and a half.
fn work(redlock: &Redlock, private: &mut [Server], time: Duration, stop: &AtomicBool) {
    let begun = Instant::now();
    let goes_on = || begun.elapsed() < time && !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        for user in 0..4 {
            scope.spawn(move || {
                let mut random = Random(user + 1);
                while goes_on() {
                    transfer(redlock, &mut random);
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                import(redlock, &goes_on);
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
                    delete(private, "import");
                } else {
                    server.kill();
                }
                harm.next();
            }
        }
    });
}

/// One of a thousand accounts; and now and then something that all want.
fn transfer(redlock: &Redlock, random: &mut Random) {
    let pause = |ms| thread::sleep(Duration::from_millis(ms));
    let ttl = Duration::from_secs(10);
    let account = format!("account:{}", 1 + random.below(1000));
    // What fails is counted.
    let _ = redlock.with_lock(account, ttl, |_| pause(2));
    match random.below(10) {
        0 => drop(redlock.with_lock("report", ttl, |_| pause(20))),
        1 => {
            let once = redlock.try_acquire("mail:ann", Duration::from_millis(500));
            once.into_iter().flatten().for_each(|lock| lock.leak());
        }
        _ => {}
    }
}

/// Work of unknown length.
fn import(redlock: &Redlock, goes_on: &impl Fn() -> bool) {
    let ttl = Duration::from_secs(1);
    let _ = redlock.with_kept_lock("import", ttl, Duration::from_secs(3600), |lock| {
        while goes_on() && lock.is_valid() {
            thread::sleep(Duration::from_millis(50));
        }
    });
}

/// Behind its holder's back.
fn delete(nodes: &[Server], key: &str) {
    for node in nodes {
        node.command(&["DEL", key]);
    }
}
