//! Nodes over TLS: the files that are given, and the errors without them.

use crate::support;

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use redlock_sync::{Options, Redlock, Tls};
use serde_json::Value;
use support::certificates::{Authority, Certificate, HERE};
use support::*;

use crate::operations::{command, run};

const NAME: &str = "redis.example";

/// Three servers that have another name than in their URLs, and that want a certificate of their clients.
struct Fleet {
    dir: TempDir,
    authority: Authority,
    client: Certificate,
    servers: Vec<Server>,
}

impl Fleet {
    fn new() -> Fleet {
        let (dir, authority) = (TempDir::new(), Authority::new());
        let client = authority.signs(&["extendedKeyUsage=clientAuth"]);
        let fleet = Fleet {
            servers: Vec::new(),
            dir,
            authority,
            client,
        };
        let ca = fleet.file("ca.crt", &fleet.authority.certificate);
        fleet.file("client.crt", &fleet.client.certificate);
        fleet.file("client.key", &fleet.client.key);
        let server = |_| {
            let own = fleet.authority.signs(&["subjectAltName=DNS:redis.example"]);
            Server::over_tls(
                &own,
                &["--tls-auth-clients", "yes", "--tls-ca-cert-file", &ca],
            )
        };
        let servers = (0..3).map(server).collect();
        Fleet { servers, ..fleet }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// One that no other user may read.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        write(&path, text).unwrap();
        let private = Permissions::from_mode(0o600);
        set_permissions(Path::new(&path), private).unwrap();
        path
    }

    fn nodes(&self) -> String {
        let url = |server: &Server| server.url().replace("/#insecure", "");
        self.servers.iter().map(url).collect::<Vec<_>>().join(",")
    }

    /// All that is needed.
    fn flags(&self) -> Vec<(&'static str, String)> {
        vec![
            ("--cacert", self.path("ca.crt")),
            ("--cert", self.path("client.crt")),
            ("--key", self.path("client.key")),
            ("--sni", NAME.to_owned()),
        ]
    }

    /// A command with these flags, or with them as variables.
    fn says(
        &self,
        flags: &[(&str, String)],
        as_variables: bool,
        arguments: &str,
    ) -> (i32, String, String) {
        let (first, rest) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let mut command = command(&self.nodes(), &[first, "--node-timeout", "2s"]);
        for (flag, value) in flags {
            match as_variables {
                true => {
                    let name = flag.trim_start_matches('-').to_uppercase();
                    command.env(format!("REDLOCK_{name}"), value)
                }
                false => command.args([flag, &**value]),
            };
        }
        run(command.args(rest.split_whitespace()))
    }
}

#[test]
fn every_command_reaches_nodes_with_their_own_ca_certificate_and_name() {
    let fleet = Fleet::new();
    let tls = Tls::new()
        .root_certificates(&fleet.authority.certificate)
        .client_certificate(&fleet.client.certificate, &fleet.client.key)
        .server_name(NAME);
    let redlock = Redlock::new(fleet.nodes().split(',')).unwrap();
    let redlock = redlock.with_options(Options::new().node_timeout(ms(2000)).tls(tls));
    let redlock = redlock.unwrap();
    redlock.connect().unwrap();
    let lock = take(&redlock, "held");
    let on_all = || fleet.servers.iter().all(|server| server.exists("held"));
    eventually("it is on all nodes", on_all);
    for as_variables in [false, true] {
        let says = |arguments: &str| fleet.says(&fleet.flags(), as_variables, arguments);
        let json = |arguments: &str| {
            let (code, out, err) = says(arguments);
            let json: Value = serde_json::from_str(&out).unwrap();
            (code, json, err)
        };
        let (code, out, err) = says("run -n mine echo done");
        assert_eq!((code, &*out, &*err), (0, "done\n", ""));
        let (code, _, err) = says("run -n held echo done");
        assert_eq!(code, 75, "{err}");
        let turn = format!("throttle --every 1h turn{as_variables}");
        assert_eq!(says(&turn).0, 0);
        assert_eq!(says(&turn).0, 75);
        let (code, seen, err) = json("inspect --json held");
        assert_eq!((code, &seen["state"]), (0, &"held".into()), "{seen}{err}");
        let (code, list, err) = json("list --json held");
        assert_eq!(code, 0, "{err}");
        assert_eq!(list["locks"][0]["name"], "held", "{list}{err}");
        assert_eq!(list["locks"][0]["on"], 3, "{list}{err}");
        let (code, report, err) = json("doctor --json");
        assert_eq!((code, &report["fit"]), (0, &true.into()), "{report}{err}");
        assert!(!report.to_string().contains("insecure"), "{report}");
    }
    // An answer of many records.
    let long = "n".repeat(200_000);
    for server in &fleet.servers {
        server.command(&["SET", &long, "x", "PX", "60000"]);
    }
    let (code, out, err) = fleet.says(&fleet.flags(), false, "list --json n*");
    assert!(code == 0 && out.contains(&long), "{err}");
    // A variable that is empty is none, and a flag goes before one.
    let flags = fleet.flags();
    let mut command = command(&fleet.nodes(), &["inspect", "held"]);
    command
        .env("REDLOCK_CACERT", "")
        .env("REDLOCK_KEY", "/no/such");
    let (code, _, err) = run(command.args(flags.iter().flat_map(|(flag, value)| [*flag, value])));
    assert_eq!(code, 0, "{err}");
    lock.release().unwrap();
}

#[test]
fn what_is_missing_is_named_with_its_flag() {
    let fleet = Fleet::new();
    let flags = fleet.flags();
    for (given, text) in [
        (
            &flags[1..],
            "UnknownIssuer (give its CA with Tls::root_certificates or --cacert)",
        ),
        (&flags[..3], "--sni gives another name)"),
        (
            &[flags[0].clone(), flags[3].clone()][..],
            "CertificateRequired (give one with Tls::client_certificate or --cert)",
        ),
    ] {
        for (arguments, expected) in [
            ("run -n x true", 69),
            ("throttle --every 1h x", 69),
            ("inspect x", 69),
            ("list", 69),
            ("doctor", 1),
        ] {
            let (code, out, err) = fleet.says(given, false, arguments);
            assert_eq!(code, expected, "{arguments}: {out}{err}");
            assert!((out + &err).contains(text), "{arguments}, {text}: {err}");
        }
    }
}

#[test]
fn files_that_cannot_work_are_usage_errors_that_name_them() {
    let fleet = Fleet::new();
    let [cacert, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|name| fleet.path(name));
    let text = fleet.file("text", "hunter2");
    let open = fleet.file("open.key", &fleet.client.key);
    set_permissions(&open, Permissions::from_mode(0o604)).unwrap();
    let missing = fleet.path("missing");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (&[("--cert", &cert)], &[&cert, "needs its key: --key"]),
        (&[("--key", &key)], &[&key, "needs its certificate: --cert"]),
        (
            &[("--cacert", &missing)],
            &["CACERT", &missing, "No such file"],
        ),
        (
            &[("--cert", &missing), ("--key", &key)],
            &["CERT", &missing, "No such file"],
        ),
        (
            &[("--cert", &cert), ("--key", &missing)],
            &["KEY", &missing, "No such file"],
        ),
        (
            &[("--cert", &cert), ("--key", &open)],
            &["KEY", &open, "mode 604", "chmod o-r"],
        ),
        (
            &[("--cacert", &text)],
            &["root certificates: no certificates in PEM"],
        ),
        (
            &[("--cert", &text), ("--key", &key)],
            &["client certificate: no certificates in PEM"],
        ),
        (
            &[("--cert", &cert), ("--key", &text)],
            &["key: it is no key in PEM"],
        ),
        (
            &[("--cert", &cacert), ("--key", &key)],
            &["it is not that of the client certificate"],
        ),
        (&[("--sni", "a b")], &["server name: it is no name"]),
    ];
    for (flags, texts) in cases {
        let flags: Vec<_> = flags
            .iter()
            .map(|(flag, value)| (*flag, (*value).to_owned()))
            .collect();
        for as_variables in [false, true] {
            for arguments in ["run -n x true", "list"] {
                let (code, out, err) = fleet.says(&flags, as_variables, arguments);
                assert_eq!((code, &*out), (64, ""), "{flags:?}: {err}");
                for text in *texts {
                    // --cacert or REDLOCK_CACERT.
                    let (text, err) = (text.to_lowercase(), err.to_lowercase());
                    assert!(err.contains(&text), "{flags:?}: no {text} in: {err}");
                }
                assert!(!err.contains("hunter2"), "{err}");
            }
        }
    }
}

#[test]
fn flags_of_tls_do_not_go_with_nodes_that_have_none() {
    let mut command = command(
        "redis://127.0.0.1:1",
        &["run", "-n", "--sni", NAME, "x", "true"],
    );
    let (code, _, err) = run(&mut command);
    assert_eq!(code, 64, "{err}");
    assert!(
        err.contains("rediss://, and REDLOCK_NODES names none"),
        "{err}"
    );
}

#[test]
fn a_node_that_is_not_checked_is_reached_and_warned_of() {
    let server = Server::over_tls(&Authority::new().signs(&[HERE]), &[]);
    let url = server.url();
    assert!(url.ends_with("/#insecure"));
    let (code, out, err) = run(&mut command(&url, &["list"]));
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = run(&mut command(&url, &["doctor"]));
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("warning: insecure: node 0 "), "{out}");
    assert!(out.contains("its certificate is not checked"), "{out}");
}
