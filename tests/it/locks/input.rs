//! Bad input: a clear error that names the value and the limit, before anything is sent.

use crate::support;

use std::time::Duration;

use redlock_sync::{Options, Redlock};
use support::*;

#[test]
fn bad_nodes_are_named_and_no_password_is_shown() {
    let none: [&str; 0] = [];
    let text = config(Redlock::new(none));
    assert!(text.contains("at least 1"), "{text}");

    let text = config(Redlock::new((0..65).map(|i| format!("redis://node-{i}"))));
    assert!(text.contains("65") && text.contains("64"), "{text}");

    for bad in [
        "",
        "nonsense",
        "http://:hunter2@host",
        "redis://:hunter2@",
        "redis://:hunter2@host:99999",
        "redis://:hunter2@host/notanumber",
        "redis://:hunter2@host?protocol=9",
        "redis://:hunter2@0.0.0.0",
        "unix:",
        // The redis crate takes these for hosts and paths.
        "redis://user%3Ahunter2%40host%3A6379",
        "redis://user%3ahunter2%40host:6379",
        "redis://user：hunter2＠host",
        "redis://%3Ahunter2@hunter2%40host",
        "redis://name,password=hunter2",
        "redis://name;password=hunter2:6379",
        "redis://password=hunter2",
        "unix:///run/x,password=hunter2",
        "unix:///run/x;password=hunter2,ssl=True",
        "unix:///run/x%3Fpass=hunter2",
        "unix:///run/x password=hunter2",
    ] {
        let text = config(Redlock::new(["redis://good", bad]));
        assert!(text.contains("node 1"), "{bad}: {text}");
        assert!(!text.contains("hunter2"), "{bad}: {text}");
    }
}

#[test]
fn what_is_no_url_of_a_node_is_named_by_its_index_with_the_right_form() {
    for (bad, form) in [
        ("127.0.0.1", "it has no scheme: write redis://127.0.0.1"),
        ("http://host", "write redis://host:port"),
        (
            "redis://a,redis://b",
            "give each node as an item of its own",
        ),
        (
            "redis://a redis://b",
            "give each node as an item of its own",
        ),
        ("redis://a,b:6379", "give each node as an item of its own"),
        ("redis://:hunter2@a,b", "with %2C, %3B or %20"),
        ("redis://::1:6379", "write redis://[::1]:6379"),
        ("::1", "write redis://[::1]"),
        ("redis://host/x", "write redis://host:port/database"),
        ("redis://:hunt#er2@host", "write %23 for #"),
        ("redis+sentinel://host/name", "Sentinel is not supported"),
        ("redis+cluster://host", "Cluster is not supported"),
    ] {
        let text = config(Redlock::new(["redis://good", bad]));
        assert!(
            text.starts_with("node 1: ") && text.contains(form),
            "{text}"
        );
        let alone = config(Redlock::new(bad));
        assert_eq!(alone, text.replacen("node 1", "node 0", 1));
    }
    let text = config(Redlock::new(("a, b", 6379)));
    assert!(text.starts_with("node 0: it has a comma"), "{text}");
}

/// What is taken is shown wherever the node is named.
#[test]
fn a_host_has_the_characters_of_hosts_only() {
    for host in [
        "user:hunter2@host",
        "host:hunter2",
        "host%hunter2",
        "host\nhunter2",
        "：hunter2＠host",
        "::1%eth0:hunter2@host",
        "host password=hunter2",
    ] {
        let text = config(Redlock::new([(host, 6379)]));
        assert!(!text.contains("hunter2"), "{text}");
        assert!(
            text.starts_with("node 0: its host has") || text.starts_with("node 0: it has a comma"),
            "{text}"
        );
        assert!(text.contains("redis://user:password@host:port"), "{text}");
    }
    let text = config(Redlock::new(["redis://bücher.example"]));
    assert!(text.contains("punycode (xn--…)"), "{text}");
    for host in ["fe80::1%eth0.100", "::1", "10.0.0.1", "a_b.c-d."] {
        let redlock = Redlock::new([(host, 6379)]).unwrap();
        assert!(format!("{redlock:?}").contains(host), "{redlock:?}");
    }
    Redlock::new(["redis://xn--bcher-kva.example"]).unwrap();
}

#[test]
fn the_same_address_twice_is_refused() {
    let text = config(Redlock::new([
        "redis://:hunter2@a:1",
        "redis://b:1",
        "redis://u:x@a:1/2",
    ]));
    assert!(
        text.contains("nodes 0 and 2") && text.contains("a:1"),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
    config(Redlock::new(["unix:///s", "unix:///s"]));
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn tls_without_its_feature_is_refused_with_the_feature_s_name() {
    let text = config(Redlock::new(["rediss://:hunter2@host"]));
    let expected = "node 0: TLS needs the feature `tls` of redlock-sync, in \
                    Cargo.toml: redlock-sync = { version = \"0.1\", features = [\"tls\"] }";
    assert_eq!(text, expected);
    let tls = redis::ConnectionAddr::TcpTls {
        host: "host".into(),
        port: 1,
        insecure: false,
        tls_params: None,
    };
    let text = config(Redlock::new([tls]));
    assert!(text.contains("feature `tls`"), "{text}");
}

#[test]
fn a_bad_resource_or_ttl_is_named_and_nothing_is_sent() {
    let servers = Server::several(1);
    let redlock = redlock(&servers);
    let long = vec![0; 64 * 1024 + 1];
    for (resource, expected) in [(&[][..], "0 bytes"), (&long, "65537 bytes")] {
        for text in [
            config(redlock.try_acquire(resource, TTL)),
            config(redlock.acquire(resource, TTL)),
            config(redlock.acquire_within(resource, TTL, Duration::MAX)),
            config(redlock.acquire_while(resource, TTL, || true)),
            config(redlock.with_lock(resource, TTL, |_| ())),
        ] {
            assert!(text.contains(expected) && text.contains("65536"), "{text}");
        }
    }
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    for (ttl, expected) in [
        (Duration::ZERO, "3 ms"),
        (Duration::from_nanos(1), "3 ms"),
        (ms(2), "3 ms"),
        (century + ms(1), "100 years"),
        (Duration::MAX, "100 years"),
    ] {
        let text = config(redlock.try_acquire("a", ttl));
        assert!(text.contains(expected), "{text}");
        config(redlock.acquire_within("a", ttl, Duration::MAX));
        let mut lock = take(&redlock, "b");
        let text = config(lock.extend(ttl));
        assert!(text.contains(expected), "{text}");
        assert!(lock.is_valid());
        lock.release().unwrap();
    }
    assert!(servers[0].keys().is_empty());
}

#[test]
fn bad_options_are_named_and_the_redlock_is_not_harmed() {
    let redlock = Redlock::new(["redis://a"]).unwrap();
    for (options, expected) in [
        (Options::new().node_timeout(Duration::ZERO), "node_timeout"),
        (Options::new().node_timeout(Duration::MAX), "1 hour"),
        (
            Options::new().connect_timeout(Duration::ZERO),
            "connect_timeout",
        ),
        (Options::new().connect_timeout(Duration::MAX), "1 hour"),
        (Options::new().retry_delay(ms(2), ms(1)), "retry_delay"),
    ] {
        let text = config(redlock.clone().with_options(options));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn nothing_connects_before_the_first_operation() {
    let servers = Server::several(1);
    let received = || {
        servers[0]
            .info("stats", "total_connections_received")
            .parse::<u32>()
            .unwrap()
    };
    let before = received();
    let redlock = redlock(&servers)
        .clone()
        .with_options(Options::new())
        .unwrap();
    assert_eq!(received(), before + 1, "only the looking itself");
    drop(redlock);
}
