//! What errors say: how the votes stood, which option a cause hangs on, addresses as they are written.

use crate::support;

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use redlock_sync::{Error, NodeError, NodeErrors, NodeState, Redlock};
use support::*;

fn text(errors: NodeErrors) -> String {
    Error::Unavailable(errors).to_string()
}

#[test]
fn unavailable_counts_the_votes_and_names_only_the_nodes_that_failed() {
    let servers = Server::several(5);
    let redlock = connected(&servers);
    let again = || {
        servers[2..].iter().for_each(Server::resume);
        eventually("all nodes are connected", || {
            let lock = take(&redlock, "connecting");
            let all = servers.iter().all(|server| server.exists("connecting"));
            lock.release().unwrap();
            all
        });
    };
    let failed = |votes: &str, failed: &[usize], errors: NodeErrors| {
        let nodes: Vec<usize> = errors.iter().map(NodeError::node).collect();
        assert_eq!(nodes, failed, "{errors}");
        let cause = |node: usize| {
            let port = servers[node].port();
            format!("node {node} (127.0.0.1:{port}): no answer within 1 s (node_timeout)")
        };
        let causes: Vec<String> = nodes.into_iter().map(cause).collect();
        let expected = format!("no majority: {votes}; {}", causes.join("; "));
        assert_eq!(text(errors), expected);
    };

    // One has it from another, one grants it, three are silent.
    servers[0].command(&["SET", "a", "another's"]);
    servers[2..].iter().for_each(Server::stop);
    let errors = unavailable(redlock.try_acquire("a", TTL));
    failed(
        "2 of 5 answered (granted by 1, denied by 1)",
        &[2, 3, 4],
        errors,
    );
    again();

    let mut lock = take(&redlock, "b");
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("b"))
    });
    servers[0].command(&["DEL", "b"]);
    servers[3..].iter().for_each(Server::stop);
    let errors = unavailable(lock.extend(2 * TTL));
    failed(
        "3 of 5 answered (held by 2, not held by 1)",
        &[3, 4],
        errors,
    );
    let errors = unavailable(lock.fencing_token());
    failed(
        "3 of 5 answered (held by 2, not held by 1)",
        &[3, 4],
        errors,
    );
    let errors = unavailable(lock.release());
    failed(
        "3 of 5 answered (held by 2, not held by 1)",
        &[3, 4],
        errors,
    );
}

#[test]
fn where_too_few_are_there_to_ask_no_node_votes_and_that_is_shown() {
    let mut servers = Server::several(3);
    servers[..2].iter_mut().for_each(Server::kill);
    let redlock = redlock(&servers);
    let text = text(unavailable(redlock.try_acquire("a", TTL)));
    let start = "no majority: 0 of 3 answered (granted by 0, denied by 0), 1 not waited for; node 0 (127.0.0.1:";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn a_late_connection_names_connect_timeout() {
    let servers = Server::several(1);
    servers[0].stop();
    let brief = options().connect_timeout(NODE_TIMEOUT);
    let redlock = redlock(&servers).with_options(brief).unwrap();
    let errors = unavailable(redlock.try_acquire("a", TTL));
    let cause = errors.iter().next().unwrap();
    let expected = "not connected within 1 s (connect_timeout)";
    assert!(cause.to_string().ends_with(expected), "{cause}");
}

/// Nothing accepts there, so the kernel drops what would be one connection more.
#[test]
fn a_connection_that_is_not_accepted_names_connect_timeout() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    // SAFETY: plain system call on a socket of ours.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, ms(200)) {
        queue.push(stream);
        assert!(queue.len() < 100);
    }
    let redlock = Redlock::new([format!("redis://{address}")]).unwrap();
    let redlock = redlock.with_options(options().connect_timeout(ms(500)));
    let inspection = redlock.unwrap().inspect("a").unwrap();
    let (_, _, state) = inspection.nodes().next().unwrap();
    let NodeState::Failed(errors) = state else {
        panic!("{state:?}");
    };
    let text = errors.to_string();
    let expected = format!("node 0 ({address}): not connected within 500 ms (connect_timeout)");
    assert_eq!(text, expected);
}

#[test]
fn a_look_that_is_not_answered_names_the_options_that_bound_it() {
    let servers = Server::several(1);
    let brief = options().node_timeout(ms(25));
    let redlock = redlock(&servers).with_options(brief).unwrap();
    // It answers what does not write.
    servers[0].command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let inspection = redlock.inspect("a").unwrap();
    let (_, _, state) = inspection.nodes().next().unwrap();
    let NodeState::Failed(errors) = state else {
        panic!("{state:?}");
    };
    let text = errors.to_string();
    assert!(
        text.ends_with("): no answer within 25 ms (node_timeout)"),
        "{text}"
    );
    let text = redlock.check("a").unwrap().to_string();
    let expected = "no answer within 500 ms (20 × node_timeout)";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn an_ipv6_address_has_brackets_wherever_it_is_shown() {
    let port = free_port();
    let url = format!("redis://[::1]:{port}");
    let address = format!("[::1]:{port}");
    let redlock = Redlock::new([&*url]).unwrap();
    let brief = options().connect_timeout(Duration::from_millis(500));
    let redlock = redlock.with_options(brief).unwrap();
    let shown = [
        format!("{redlock:?}"),
        text(unavailable(redlock.try_acquire("a", TTL))),
        redlock.check("a").unwrap().to_string(),
        redlock
            .inspect("a")
            .unwrap()
            .nodes()
            .next()
            .unwrap()
            .1
            .into(),
        config(Redlock::new([&*url, &*url])),
    ];
    for text in shown {
        assert!(text.contains(&address), "{text}");
    }
}

/// A server before which a proxy stands that ends connections at all commands but these.
fn behind_a_proxy(known: &'static [&'static str]) -> String {
    let server = fake::Fake::ending(move |words| {
        let is_known = known.iter().any(|name| name.as_bytes() == words[0]);
        is_known.then(|| b"+OK\r\n".to_vec())
    });
    server.url("hunter2")
}

#[test]
fn where_a_connection_ends_the_command_that_was_not_answered_is_named() {
    for (known, unanswered) in [
        (&[][..], "AUTH"),
        (&["AUTH"], "HELLO"),
        (&["AUTH", "HELLO"], "INFO"),
        (&["AUTH", "HELLO", "INFO"], "SCRIPT"),
    ] {
        let redlock = Redlock::new([behind_a_proxy(known)]).unwrap();
        let redlock = redlock.with_options(options()).unwrap();
        let expected =
            format!("connection closed: by the other side, before it answered {unanswered} (");
        let proxy = "(is it a proxy? it may not know that command: give the address of the server behind it)";
        let error = unavailable(redlock.try_acquire("a", TTL)).to_string();
        assert!(
            error.contains(&expected) && error.contains(proxy),
            "{error}"
        );
        let tls = error.contains("(does it speak TLS? write rediss://)");
        assert_eq!(tls, known.is_empty(), "{error}");
        let report = redlock.check("probe").unwrap().to_string();
        let said = report.contains(proxy) || report.contains("by the other side");
        assert!(said && !report.contains("hunter2"), "{report}");
    }
    let redlock = Redlock::new([behind_a_proxy(&["AUTH", "HELLO", "INFO"])]).unwrap();
    let found = format!("{:?}", redlock.inspect("a").unwrap());
    let expected = "by the other side, before it answered EVAL";
    assert!(found.contains(expected), "{found}");
    let redlock = Redlock::new([behind_a_proxy(&["AUTH"])]).unwrap();
    let report = redlock.check("probe").unwrap().to_string();
    assert!(
        report.contains("before it answered HELLO (is it a proxy?"),
        "{report}"
    );
}

#[test]
fn a_command_that_is_swallowed_when_a_connection_is_set_up_is_named() {
    for (known, swallowed) in [
        (&["AUTH"][..], "HELLO"),
        (&["AUTH", "HELLO"], "INFO"),
        (&["AUTH", "HELLO", "INFO"], "SCRIPT"),
    ] {
        let server = fake::Fake::new(move |words| {
            let is_known = known.iter().any(|name| name.as_bytes() == words[0]);
            if is_known { &b"+OK\r\n"[..] } else { b"" }.to_vec()
        });
        let redlock = Redlock::new([server.url("hunter2")]).unwrap();
        let soon = options().connect_timeout(ms(500));
        let redlock = redlock.with_options(soon).unwrap();
        let expected = format!(
            "connected, but no answer to {swallowed} within 500 ms (connect_timeout) (is it a proxy?"
        );
        // An attempt may end before the connection does that it waits for.
        eventually(swallowed, || {
            let error = unavailable(redlock.try_acquire("a", TTL)).to_string();
            error.contains(&expected)
        });
    }
}

#[test]
fn protected_mode_is_reported_in_one_line_with_what_to_do() {
    let long = "it has a long advice of its own. ".repeat(30);
    let text = format!(
        "-DENIED Redis is running in protected mode because protected mode is enabled and {long}\r\n"
    );
    let server = fake::Fake::new(move |_| text.clone().into_bytes());
    let redlock = Redlock::new([server.url("hunter2")]).unwrap();
    let error = unavailable(redlock.acquire_within("a", TTL, TTL)).to_string();
    let expected = "the server answered: DENIED Redis is running in protected mode (it is in protected mode: give it a \
                    password, or bind it to private addresses and set protected-mode no)";
    assert!(error.ends_with(expected), "{error}");
    let report = redlock.check("probe").unwrap().to_string();
    assert!(
        report.contains(
            "DENIED Redis is running in protected mode; it is in protected mode: give it"
        ),
        "{report}"
    );
    assert!(!report.contains("advice of its own"), "{report}");
}
