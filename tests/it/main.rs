//! What the library promises, in one program: tests wait for most of their time, and so they do it side by side. One
//! that concerns a whole process (its threads, files, signals, logger, end) runs in one of its own:
//! `support::in_own_process`.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "capi")]
mod capi;

mod locks {
    mod edges;
    mod ends;
    mod errors;
    mod fencing;
    mod fork;
    mod input;
    mod keep_alive;
    mod label;
    mod leak;
    mod lost;
    mod once;
    mod prefix;
    mod processes;
    mod read_write;
    mod reentrant;
    mod semaphores;
    mod several;
}

mod waiting {
    mod fair;
    mod keys;
    mod kinds;
    mod labels;
    mod threads;
    mod wake;
}

mod connections {
    mod connect;
    mod credentials;
    mod first_use;
    mod names;
    mod sockets;
    mod tls;
}

mod faults {
    mod by_hash;
    mod clocks;
    mod cluster;
    mod cluster_answers;
    mod cluster_changes;
    mod cluster_ends;
    mod cluster_failovers;
    mod cluster_identity;
    mod cluster_lanes;
    mod cluster_many_moves;
    mod cluster_moves;
    mod cluster_newcomers;
    mod cluster_renewals;
    mod cluster_servers;
    mod cluster_silence;
    mod cluster_sizes;
    mod confirm;
    mod demotion;
    mod eviction;
    mod failover;
    mod narrow;
    mod no_threads;
    mod nodes;
    mod orphans;
    mod outage;
    mod refill;
    mod refused;
    mod restart_guard;
    mod sentinel;
    mod sentinel_answers;
    mod sentinel_failovers;
    mod signals;
    mod silence;
    mod table;
}

mod operations {
    mod break_lock;
    mod inspect_and_check;
    mod kinds;
    mod list;
    mod logger;
    mod observer;
    mod secrets;
    mod texts;
}

#[cfg(feature = "testing")]
mod testing {
    #[cfg(feature = "capi")]
    mod c;
    mod documents;
    mod node;
    mod verdicts;
}

mod harness;

mod documents {
    mod api;
    pub(crate) mod examples;
    mod prose;
    mod soak_check;
    mod soak_record;
}

/// Where cargo has put what it built for these tests: `target`, or a directory in it for the target that was named.
#[cfg(any(feature = "capi", feature = "testing"))]
fn built() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().to_owned()
}

/// The directory to give to cargo, so that it puts what it builds there.
#[cfg(any(feature = "capi", feature = "testing"))]
fn target() -> std::path::PathBuf {
    let built = built();
    let top = built.parent().unwrap();
    match top.join(".rustc_info.json").exists() {
        true => top.to_owned(),
        false => built,
    }
}

/// The library of this crate as it was built for these tests.
#[cfg(any(feature = "capi", feature = "testing"))]
fn library() -> std::path::PathBuf {
    let features = [
        ("testing", cfg!(feature = "testing")),
        ("capi", cfg!(feature = "capi")),
        ("cli", cfg!(feature = "cli")),
        ("tls", cfg!(feature = "tls")),
    ];
    let features = features.iter().filter(|one| one.1).map(|one| one.0);
    let features = features.collect::<Vec<_>>().join(",");
    let mut cargo = support::cargo();
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--lib", "--features", &features, "--target-dir"])
        .arg(target());
    let output = cargo.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cargo:?}:\n{said}");
    built().join("debug/libredlock_sync.rlib")
}
