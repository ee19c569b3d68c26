//! Bad input: a clear error that names the value and the limit, before anything is sent.

use crate::support;

use std::time::Duration;

use redlock_sync::{Error, IntoNode, Lockable, Options, Redlock, Token};
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
        ("redis://a,b:6379", "give each node as an item of its own"),
        ("redis://:hunter2@a,b", "with %2C, %3B or %20"),
        ("redis://::1:6379", "write redis://[::1]:6379"),
        ("::1", "write redis://[::1]"),
        ("redis://host/x", "write redis://host:port/database"),
        ("redis://:hunt#er2@host", "write %23 for #"),
        ("redis+sentinel://host", "it has no name of a master"),
        (
            "redis+sentinel://u:hunter2@a,,b/m",
            "a comma without a host",
        ),
        (
            "redis://a,b",
            "a Redis Cluster is redis+cluster://host,host",
        ),
        (
            "redis+cluster://",
            "it has no host: write redis+cluster://host:6379",
        ),
        ("redis+cluster://u:hunter2@a,", "a comma without a host"),
        ("redis+cluster://a/x", "write redis+cluster://host:6379/0"),
        (
            "redis+cluster+sentinel://a",
            "it names sentinels and a cluster",
        ),
        // Otherwise the locks would lie elsewhere than the URL says.
        (
            "redis://:hunter2@host/?db=3",
            "its parameter db is not known: write redis://host:port/3",
        ),
        ("redis://host#db=3", "the db behind its # is not known"),
        ("redis://host/3#hunter2", "write %23 for #"),
        (
            "unix:///s?database=3&pass=hunter2",
            "write unix:///path?db=3",
        ),
        ("unix://u:hunter2@localhost/s", "before its path"),
        (
            "redis+sentinel://host/m?db=3",
            "write redis+sentinel://host:26379/NAME/3",
        ),
        (
            "redis+cluster://host?database=3",
            "write redis+cluster://host:6379/3",
        ),
        (
            "redis://host?ssl_cert_reqs=none",
            "the scheme is rediss, and #insecure at the end",
        ),
        (
            "unix+cluster:///a",
            "a Redis Cluster is named so: write redis+cluster://",
        ),
    ] {
        let text = config(Redlock::new(["redis://good", bad]));
        assert!(
            text.starts_with("node 1: ") && text.contains(form) && !text.contains("hunter2"),
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
    let text = config(Redlock::new([
        "redis+cluster://:hunter2@a:1,b",
        "redis-cluster://b,a:1",
    ]));
    assert!(
        text.contains("nodes 0 and 1") && text.contains("cluster of b:6379,a:1"),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_bad_resource_or_ttl_is_named_and_nothing_is_sent() {
    let servers = Server::several(1);
    let redlock = unhurried_redlock(&servers);
    let long = vec![0; 64 * 1024 + 1];
    for (resource, expected) in [(&[][..], "0 bytes"), (&long, "65537 bytes")] {
        for text in [
            config(redlock.try_acquire(resource, TTL)),
            config(redlock.acquire(resource, TTL)),
            config(redlock.acquire_within(resource, TTL, Duration::MAX)),
            config(redlock.acquire_while(resource, TTL, || true)),
            config(redlock.with_lock(resource, TTL, |_| Ok(()))),
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
fn names_of_keys_beside_locks_are_refused() {
    let server = Server::several(1);
    let redlock = unhurried_redlock(&server);
    let with = |prefix| {
        let options = unhurried().prefix(prefix);
        redlock.clone().with_options(options).unwrap()
    };
    let in_it = with("{shop}:redlock:");
    for (redlock, name, key) in [
        (&redlock, "{shop}:redlock:w", "{shop}:redlock:w"),
        (&redlock, "{shop}:redlock:wt", "{shop}:redlock:wt"),
        (&redlock, "{shop}:redlock:ww", "{shop}:redlock:ww"),
        (&redlock, "{shop}:redlock:fence", "{shop}:redlock:fence"),
        (&redlock, "{shop}:redlock:done", "{shop}:redlock:done"),
        (&redlock, "{shop}::redlock:w", "{shop}::redlock:w"),
        (&redlock, "redlock:witness", "redlock:witness"),
        (&redlock, "redlock:witness:{17}", "redlock:witness:{17}"),
        (&in_it, "w", "{shop}:redlock:w"),
    ] {
        let token = Token::from_bytes([7; 20]);
        for text in [
            config(redlock.try_acquire(name, TTL)),
            config(redlock.acquire(name, TTL)),
            config(redlock.reentrant().acquire(name, TTL)),
            config(redlock.resume(name, token, TTL)),
            config(redlock.semaphore(name, 2)),
            config(redlock.read_lock(name)),
            config(redlock.write_lock(name)),
            config(redlock.several(["a", name])),
            config(redlock.once_per(name, TTL, TTL, |_| Ok::<_, Error>(()))),
        ] {
            let is_named = text.contains(&format!("the name \"{name}\": its key \"{key}\""));
            assert!(is_named && text.contains("another ending"), "{text}");
        }
    }
    assert!(server[0].keys().is_empty());
    // Names that people choose, and those whose keys are no such ones behind a prefix.
    let team = with("team:");
    for (redlock, name) in [
        (&redlock, "{shop}:w"),
        (&redlock, "{shop}:done"),
        (&redlock, "shop:redlock:w"),
        (&redlock, "redlock:fence"),
        (&team, "{shop}:redlock:w"),
        (&in_it, "x"),
    ] {
        take(redlock, name).release().unwrap();
    }
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
    let redlock = unhurried_redlock(&servers)
        .clone()
        .with_options(Options::new())
        .unwrap();
    assert_eq!(received(), before + 1, "only the looking itself");
    drop(redlock);
}

/// One of each kind. `b` of several names is second.
fn kinds(redlock: &Redlock) -> [Lockable; 4] {
    [
        redlock.several(["a", "b"]),
        redlock.semaphore("b", 2),
        redlock.read_lock("b"),
        redlock.write_lock("b"),
    ]
    .map(Result::unwrap)
}

#[test]
fn every_kind_of_lock_refuses_a_bad_ttl_and_names_the_limit() {
    let redlock = Redlock::new("redis://127.0.0.1:1").unwrap();
    let options = options().restart_guard(TTL);
    let guarded = redlock.clone().with_options(options).unwrap();
    for lockable in kinds(&guarded) {
        for (ttl, limit) in [
            (ms(0), "3 ms"),
            (ms(2), "3 ms"),
            (Duration::MAX, "100 years"),
            (2 * TTL, "restart guard"),
        ] {
            for text in [
                config(lockable.try_acquire(ttl)),
                config(lockable.acquire(ttl)),
                config(lockable.acquire_within(ttl, TTL)),
                config(lockable.acquire_while(ttl, || true)),
            ] {
                assert!(text.contains(limit), "{lockable:?} for {ttl:?}: {text}");
            }
        }
        config(lockable.resume(Token::from_bytes([7; 20]), Duration::MAX));
    }
    for name in [vec![], vec![b'a'; 65_537]] {
        config(redlock.read_lock(&name));
        config(redlock.write_lock(&name));
        let text = config(redlock.several([b"b", &name[..]]));
        assert!(text.starts_with("resource 1: "), "{text}");
    }
}

#[test]
fn other_data_under_a_name_is_an_error_of_every_kind_of_lock_and_is_never_changed() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let dump = || on_all(&servers, &["DUMP", "b"]);
    for make in [
        &["RPUSH", "b", "x"][..],
        &["SADD", "b", "x"],
        &["HSET", "b", "x", "y"],
        &["ZADD", "b", "1", "x"],
        &["ZADD", "b", "1", "redlock:x"],
        &["XADD", "b", "1-1", "x", "y"],
    ] {
        on_all(&servers, &["DEL", "b"]);
        on_all(&servers, make);
        let before = dump();
        for lockable in kinds(&redlock) {
            let text = other_kind(lockable.acquire(TTL));
            assert!(
                text.contains("holds data that is no lock"),
                "{lockable:?} beside {make:?}: {text}"
            );
            // Not its own, whatever it does.
            let mut lost = lockable.resume(Token::from_bytes([7; 20]), TTL).unwrap();
            assert!(matches!(lost.extend(TTL), Err(Error::Lost(_))));
            drop(lost);
        }
        assert!(redlock.try_acquire("b", TTL).unwrap().is_none());
        assert_eq!(dump(), before, "{make:?}");
    }
    // A string is a lock, with or without a ttl.
    for text in ["x", ""] {
        on_all(&servers, &["SET", "b", text]);
        let [several, semaphore, reads, writes] = kinds(&redlock);
        let text = other_kind(semaphore.acquire(TTL));
        assert!(text.contains("is in use as a lock"), "{text}");
        for lockable in [several, reads, writes] {
            let busy = lockable.acquire_within(TTL, NODE_TIMEOUT);
            assert!(matches!(busy, Err(Error::Busy(_))), "{lockable:?}");
        }
        assert!(servers.iter().all(|server| server.exists("b")));
        on_all(&servers, &["DEL", "b"]);
    }
}

#[test]
fn all_holders_of_a_name_that_is_deleted_have_lost_it() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    for lockable in kinds(&redlock) {
        let first = lockable.try_acquire(TTL).unwrap().unwrap();
        let mut held = vec![first];
        held.extend(lockable.try_acquire(TTL).unwrap());
        on_all(&servers, &["DEL", "b"]);
        for mut lock in held {
            assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
            drop(lock);
        }
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

#[test]
fn one_text_names_as_many_nodes_as_it_has_urls() {
    let shown = |redlock: Redlock| format!("{redlock:?}");
    for text in [
        "redis://a,redis://b,redis+sentinel://c,d/m",
        " redis://a\r\nredis://b\nredis+sentinel://c,d/m,\n",
        "\u{feff}redis://a, redis://b redis+sentinel://c,d/m",
    ] {
        let one = shown(Redlock::new(text).unwrap());
        let listed = ["redis://a", "redis://b", "redis+sentinel://c,d/m"];
        assert_eq!(one, shown(Redlock::new(listed).unwrap()), "{text}");
        assert_eq!(one, shown(Redlock::new([text.to_owned()]).unwrap()));
    }
    // A mark before the first of two is none of its scheme.
    for text in [
        "\u{feff}redis://a,redis://b",
        "redis://a\n\u{feff}redis://b",
    ] {
        let two = shown(Redlock::new(["redis://a", "redis://b"]).unwrap());
        assert_eq!(shown(Redlock::new(text).unwrap()), two, "{text:?}");
    }
    for (text, expected) in [
        ("redis://a,redis://a", "nodes 0 and 1 have the same address"),
        ("redis://a,redis://:hunter2@b:x", "node 1: its port"),
        (
            "redis://a redis://:hunter2 3@b",
            "node 2: it has no scheme (redis://); if there is a comma in a password",
        ),
    ] {
        let error = config(Redlock::new(text));
        assert!(
            error.starts_with(expected) && !error.contains("hunter"),
            "{error}"
        );
    }
    // Where one node is expected.
    let error = "redis://a,redis://b".into_node().unwrap_err().to_string();
    assert!(
        error.contains("give each node as an item of its own"),
        "{error}"
    );
}

/// As files, documents and secret stores have them.
#[test]
fn what_stands_around_a_url_is_taken_or_named() {
    for text in [
        "redis://h\n",
        "redis://h\r\n",
        " redis://h\t",
        "\u{feff}redis://h",
        // From documents: spaces that do not break, or have no width.
        "\u{a0}redis://h\u{a0}",
        "\u{200b}redis://h\u{200b}",
    ] {
        Redlock::new(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    }
    let marks = "it stands in quotation marks or brackets: leave them out";
    let named = "a name stands before it: give the URL alone";
    for (text, expected) in [
        ("\"redis://:hunter2@h\"", marks),
        ("'redis://h'", marks),
        ("<redis://h>", marks),
        ("[\"redis://h\"]", marks),
        ("“redis://h”", marks),
        ("REDLOCK_NODES=redis://:hunter2@h", named),
        ("export REDLOCK_NODES=redis://h", named),
        ("REDIS_URL: redis://:hunter2@h", named),
    ] {
        let error = config(Redlock::new(text));
        assert!(
            error.starts_with(&format!("node 0: {expected}")),
            "{text}: {error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// The variables and files of the command.
#[test]
fn a_program_is_configured_by_the_environment_of_the_command() {
    let name = "a_program_is_configured_by_the_environment_of_the_command";
    let servers = Server::several(3);
    match told().as_deref() {
        None => {}
        Some("locks") => {
            let redlock = Redlock::from_env().unwrap();
            return redlock.acquire("a", TTL).unwrap().leak();
        }
        Some(expected) => {
            let error = config(Redlock::from_env());
            return assert!(error.starts_with(expected), "{error}");
        }
    }
    let urls = urls(&servers).join(",");
    let run = |word: &str, variables: &[(&str, &str)]| {
        let mut program = own_process(name, word);
        let output = pristine(&mut program)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(
        "locks",
        &[
            ("REDLOCK_NODES", &urls),
            ("REDLOCK_PREFIX", "team:"),
            ("REDLOCK_LABEL", "web-3"),
        ],
    );
    // One may be too late: with the timeouts that are usual, a lock is on two of three.
    let having = |key: &str| {
        let having = servers.iter().filter(|server| server.exists(key));
        having.collect::<Vec<&Server>>()
    };
    assert!(having("team:a").len() > 1);
    let value = having("team:a")[0].command(&["GET", "team:a"]);
    let value: Vec<u8> = redis::from_redis_value(value).unwrap();
    assert!(value.ends_with(b"web-3"));
    let dir = TempDir::new();
    let path = dir.path().join("nodes");
    std::fs::write(&path, urls.replace(',', "\n")).unwrap();
    let path = path.to_str().unwrap();
    run(
        "locks",
        &[("REDLOCK_NODES_FILE", path), ("REDLOCK_PREFIX", "b:")],
    );
    assert!(having("b:a").len() > 1);
    for (expected, variables) in [
        (
            "REDLOCK_NODES, URL 2: it has no scheme",
            ["REDLOCK_NODES", "redis://a x"],
        ),
        (
            "REDLOCK_NODES: nodes 0 and 1",
            ["REDLOCK_NODES", "redis://a redis://a"],
        ),
        (
            "REDLOCK_NODES_FILE /no/such: ",
            ["REDLOCK_NODES_FILE", "/no/such"],
        ),
    ] {
        run(expected, &[(variables[0], variables[1])]);
    }
    run(
        "REDLOCK_NODE_TIMEOUT: its unit must be",
        &[
            ("REDLOCK_NODES", "redis://a"),
            ("REDLOCK_NODE_TIMEOUT", "5w"),
        ],
    );
    run(
        "REDLOCK_NODE_TIMEOUT: 500 has no unit: write 500ms or 500s",
        &[
            ("REDLOCK_NODES", "redis://a"),
            ("REDLOCK_NODE_TIMEOUT", "500"),
        ],
    );
}
