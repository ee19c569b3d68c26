//! Metrics of locks for Prometheus, made by an observer and served over HTTP.
//!
//! ```sh
//! cargo run --package example-metrics                          # eight seconds of work, then what was counted
//! cargo run --package example-metrics -- --stay --port 9464    # until Ctrl-C, for Prometheus to fetch
//! ```
//!
//! The nodes are those in `REDLOCK_NODES=redis://…,redis://…`. With none given it starts three private
//! `redis-server`s, kills one for a while, and deletes a lock behind its holder's back, so that there is
//! something to see. It needs the crates `oxhttp` and `signal-hook`; the metrics themselves need nothing.
//!
//! # What to copy
//!
//! `lock_metrics.rs`, as it is, which names the other file that it needs; and `serve`, or what serves HTTP in your program. A batch job writes a
//! file instead: `-- --batch /var/lib/node_exporter/import.prom` shows that. Its own series are the counts of all its runs.
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
//! rule_files: [alerts.yml]
//! ```
//!
//! In Grafana add Prometheus (`http://127.0.0.1:9090`) under *Connections, Data sources*; then *Dashboards, New,
//! Import*, and give it the file `examples/metrics.json`.
//!
//! # Alerts
//!
//! `examples/system/alerts.yml`, for Prometheus' `rule_files`. What was left of the validity when a lock was extended is counted as a part of the
//! ttl, so one alert fits all classes. A renewal that is on time finds two thirds left.

#[path = "../tests/support/mod.rs"]
mod support;

#[path = "lock_metrics.rs"]
mod lock_metrics;
#[path = "../src/bin/redlock/series.rs"]
mod series;

use std::error::Error;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lock_metrics::{Class, LockMetrics};
use oxhttp::model::{Body, Response, StatusCode};
use redlock_sync::{ConfigError, IntoNode, Options, Redlock};
use support::{Random, Server};

/// The locks of this program, by the beginning of their names, and their ttls.
const CLASSES: &[Class] = &[
    ("shop:account", Duration::from_secs(10)),
    ("shop:import", Duration::from_secs(1)),
    ("shop:report", Duration::from_secs(10)),
];
const TTL: Duration = Duration::from_secs(10);

/// The addresses of nodes, as events have them.
fn addresses(nodes: &[String]) -> Result<Vec<String>, ConfigError> {
    let address = |node: &String| Ok(node.into_node()?.to_string());
    nodes.iter().map(address).collect()
}

fn serve(metrics: LockMetrics, port: u16) -> Result<(), Box<dyn Error>> {
    let server = oxhttp::Server::new(move |request| {
        let (status, text) = match request.uri().path() {
            "/metrics" => (StatusCode::OK, metrics.text()),
            _ => (StatusCode::NOT_FOUND, String::new()),
        };
        let response = Response::builder().status(status);
        let response = response.header("content-type", "text/plain; version=0.0.4; charset=utf-8");
        response.body(Body::from(text)).expect("a valid header")
    });
    let server = server.with_global_timeout(Duration::from_secs(10));
    let server = server.with_max_concurrent_connections(16);
    // It goes on for as long as the program does.
    server.bind((Ipv4Addr::LOCALHOST, port)).spawn()?;
    Ok(())
}

/// One run of a batch job, which is over before Prometheus could fetch anything.
fn batch((redlock, metrics): Locks<'_>, file: &Path) -> Result<(), Box<dyn Error>> {
    redlock.with_lock("shop:import", TTL, |_| {
        thread::sleep(Duration::from_millis(20));
        Ok::<_, redlock_sync::Error>(())
    })?;
    Ok(metrics.add_to(file)?)
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
    let metrics = LockMetrics::new(CLASSES, env!("CARGO_PKG_VERSION"));
    metrics.nodes(&addresses(&nodes)?);
    let options = Options::new().wait(Duration::from_secs(1));
    let observed = metrics.clone();
    let redlock = Redlock::new(nodes)?
        .with_observer(move |event| observed.observe(event))
        .with_options(options)?;
    if let Some(at) = args.iter().position(|arg| arg == "--batch") {
        let file = args.get(at + 1).ok_or("--batch FILE")?;
        return batch((&redlock, &metrics), Path::new(file));
    }
    serve(metrics.clone(), port)?;
    println!("metrics: http://127.0.0.1:{port}/metrics");

    let time = Duration::from_secs(if stay { u64::MAX / 2 } else { 8 });
    work((&redlock, &metrics), &mut private, time, &stop);

    for line in metrics
        .text()
        .lines()
        .filter(|line| !line.contains("_bucket"))
    {
        println!("{line}");
    }
    Ok(())
}

type Locks<'a> = (&'a Redlock, &'a LockMetrics);

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
    let _ = redlock.with_lock(resource, TTL, |_| {
        drop(waiting);
        thread::sleep(work);
        Ok::<_, redlock_sync::Error>(())
    });
}

/// One of a thousand accounts; and now and then something that all want.
fn transfer(locks: Locks<'_>, random: &mut Random) {
    let ms = Duration::from_millis;
    locked(
        locks,
        &format!("shop:account:{}", 1 + random.below(1000)),
        ms(2),
    );
    match random.below(10) {
        0 => locked(locks, "shop:report", ms(20)),
        1 => {
            let once = locks.0.try_acquire("shop:mail:ann", ms(500));
            once.into_iter().flatten().for_each(|lock| lock.leak());
        }
        _ => {}
    }
}

/// Work of unknown length.
fn import((redlock, metrics): Locks<'_>, goes_on: &impl Fn() -> bool) {
    let waiting = metrics.waiting(b"shop:import");
    let _ = redlock.with_kept_lock(
        "shop:import",
        Duration::from_secs(1),
        Duration::from_secs(3600),
        |lock| {
            drop(waiting);
            while goes_on() && lock.is_valid() {
                thread::sleep(Duration::from_millis(50));
            }
            Ok::<_, redlock_sync::Error>(())
        },
    );
}

/// Behind its holder's back.
fn delete(nodes: &[Server], key: &str) {
    for node in nodes {
        node.command(&["DEL", key]);
    }
}
