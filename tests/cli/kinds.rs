//! Slots, readers and writers, and several names, through `redlock` as processes against real servers.

use crate::children::{Program, output_of, shell, start};
use crate::operations::{command, run};
use crate::run::{Fleet, Job, signal};
use crate::support;

use std::fs::read_to_string;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::*;

/// Says its process id, as [`Fleet::start`] wants it, and stays.
const STAY: [&str; 3] = ["sh", "-c", "echo $$; exec sleep 1000"];

fn stays(fleet: &Fleet, flags: &[&str], name: &str) -> Job {
    fleet.start(&[&["run"], flags, &[name], &STAY].concat())
}

/// What `redlock run -n` with these flags ends with.
fn at_once(fleet: &Fleet, flags: &[&str], name: &str) -> i32 {
    fleet.code(&[&["run", "-n"], flags, &[name, "true"]].concat())
}

fn end(mut job: Job) {
    signal(job.pid(), Signal::SIGTERM);
    job.wait();
}

/// What the COMMAND finds in REDLOCK_NAME and REDLOCK_SLOT.
fn environment(fleet: &Fleet, arguments: &[&str]) -> String {
    let say = ["sh", "-c", "echo $REDLOCK_NAME ${REDLOCK_SLOT-none}"];
    let mut command = fleet.command(&[arguments, &say].concat());
    // An outer lock's.
    let output = output_of(command.env("REDLOCK_SLOT", "7"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Eight shells run these words four times each, at the same time. What they have noted in the file `seen`.
fn eight_times_four(fleet: &Fleet, dir: &TempDir, words: &str) -> Vec<String> {
    let script = format!("for i in 1 2 3 4; do redlock run {words} || exit 1; done");
    let host = |number: i32| {
        let mut shell = shell("sh", &fleet.nodes, &script);
        shell.args(["sh", &number.to_string()]);
        start(shell.current_dir(dir.path()))
    };
    let hosts: Vec<Program> = (0..8).map(host).collect();
    for mut host in hosts {
        let status = host.wait();
        assert!(status.success(), "{status}");
    }
    fleet.nothing_is_left();
    let seen = read_to_string(dir.path().join("seen")).unwrap();
    seen.lines().map(|line| line.trim().to_owned()).collect()
}

/// Each run has the directory of its slot for itself, and notes how many there are.
#[test]
fn eight_processes_never_run_more_than_the_slots_and_each_has_another() {
    let fleet = Fleet::new(3);
    let dir = TempDir::new();
    let script = "mkdir slot$REDLOCK_SLOT || exit 1; echo slot* | wc -w >>seen; \
                  sleep 0.05; rmdir slot$REDLOCK_SLOT";
    let seen = eight_times_four(&fleet, &dir, &format!("--slots 3 pool sh -c '{script}'"));
    assert_eq!(seen.len(), 32);
    assert!(
        seen.iter().all(|count| ["1", "2", "3"].contains(&&**count)),
        "{seen:?}"
    );
}

/// A writer has the directory for itself; readers leave theirs in it.
#[test]
fn eight_processes_never_run_a_reader_beside_a_writer() {
    let fleet = Fleet::new(3);
    let dir = TempDir::new();
    let write = "mkdir alone || exit 1; ls -d reads* 2>>seen && exit 1; sleep 0.05; rmdir alone";
    let read = "mkdir reads$$ || exit 1; ls -d alone 2>>seen && exit 1; sleep 0.05; rmdir reads$$";
    let words = format!(
        "$(test $1 -lt 2 && echo --exclusive || echo --shared) prices sh -c \
         \"$(test $1 -lt 2 && echo '{write}' || echo '{read}')\""
    );
    let seen = eight_times_four(&fleet, &dir, &words);
    assert_eq!(seen.len(), 32);
}

/// Each run counts in the files of two of three names.
#[test]
fn eight_processes_count_exactly_under_several_names() {
    let fleet = Fleet::new(3);
    let dir = TempDir::new();
    for name in ["n0", "n1", "n2"] {
        std::fs::write(dir.path().join(name), "0\n").unwrap();
    }
    let script =
        "for n in $0 $1; do read c <$n; echo $((c + 1)) >$n; done; echo $REDLOCK_NAME >>seen";
    let words = format!(
        "--also n$((($1 + 1) % 3)) n$(($1 % 3)) sh -c '{script}' n$(($1 % 3)) n$((($1 + 1) % 3))"
    );
    let seen = eight_times_four(&fleet, &dir, &words);
    let named = |name: &str| seen.iter().filter(|seen| *seen == name).count();
    let counts = ["n0", "n1", "n2"].map(named);
    assert_eq!(counts, [12, 12, 8]);
    let counted = ["n0", "n1", "n2"].map(|name| read_to_string(dir.path().join(name)).unwrap());
    assert_eq!(counted, ["20\n", "24\n", "20\n"]);
}

#[test]
fn the_command_finds_its_slot_and_those_without_one_find_none() {
    let fleet = Fleet::new(3);
    let first = stays(&fleet, &["--slots", "2"], "pool");
    let second = environment(&fleet, &["run", "--slots", "2", "pool"]);
    let third = stays(&fleet, &["--slots", "2"], "pool");
    assert_eq!(at_once(&fleet, &["--slots", "2"], "pool"), 75);
    // Its number is above those that the others know of.
    assert_eq!(
        environment(&fleet, &["run", "-n", "--slots", "3", "pool"]),
        "pool 2"
    );
    end(first);
    let freed = environment(&fleet, &["run", "--slots", "2", "pool"]);
    assert!(["pool 0", "pool 1"].contains(&&*freed), "{freed}");
    assert_ne!(freed, second, "the slot that the first one had");
    end(third);
    for flags in [&[][..], &["--shared"], &["--exclusive"], &["--also", "a"]] {
        let arguments = [&["run"], flags, &["x"]].concat();
        assert_eq!(environment(&fleet, &arguments), "x none", "{flags:?}");
    }
    fleet.nothing_is_left();
}

#[test]
fn a_throttle_with_slots_lets_it_happen_so_often_in_a_time() {
    let fleet = Fleet::new(3);
    let throttle = ["throttle", "--every", "60s", "--slots", "2", "mail"];
    let mut slots = [
        environment(&fleet, &throttle),
        environment(&fleet, &throttle),
    ];
    slots.sort();
    assert_eq!(slots, ["mail 0", "mail 1"]);
    assert_eq!(fleet.code(&throttle), 75);
    let both = ["throttle", "--every", "60s", "--also", "b", "a"];
    assert_eq!(environment(&fleet, &both), "a none");
    assert_eq!(fleet.code(&["throttle", "--every", "60s", "b"]), 75);
}

#[test]
fn readers_run_together_and_a_writer_that_waits_is_next() {
    let fleet = Fleet::new(3);
    let readers = [(); 2].map(|()| stays(&fleet, &["--shared"], "prices"));
    assert_eq!(at_once(&fleet, &["--exclusive"], "prices"), 75);
    assert_eq!(at_once(&fleet, &[], "prices"), 75);
    let words = ["run", "--exclusive", "prices", "echo", "written"];
    let mut writer = fleet.command(&words);
    let writer = start(writer.stdout(Stdio::piped()));
    eventually("readers that come later are kept out", || {
        at_once(&fleet, &["--shared"], "prices") == 75
    });
    readers.into_iter().for_each(end);
    let written = writer.output();
    assert!(written.status.success());
    assert_eq!(written.stdout, b"written\n");
    let writer = stays(&fleet, &["--exclusive"], "prices");
    for flags in [&["--shared"][..], &["--exclusive"], &[]] {
        assert_eq!(at_once(&fleet, flags, "prices"), 75, "{flags:?}");
    }
    end(writer);
    fleet.nothing_is_left();
}

#[test]
fn several_names_are_locked_together_or_not_at_all() {
    let fleet = Fleet::new(3);
    let both = stays(&fleet, &["--also", "a"], "b");
    assert_eq!(at_once(&fleet, &[], "a"), 75);
    assert_eq!(at_once(&fleet, &[], "b"), 75);
    assert_eq!(at_once(&fleet, &["--also", "b"], "c"), 75);
    assert_eq!(at_once(&fleet, &[], "c"), 0, "nothing of it is left");
    end(both);
    assert_eq!(at_once(&fleet, &["--also", "a", "--also", "b"], "c"), 0);
    fleet.nothing_is_left();
}

#[test]
fn a_name_of_another_kind_has_its_exit_code_at_once_and_the_error_names_the_kind() {
    let fleet = Fleet::new(3);
    let refused = |flags: &[&str], name: &str, kind: &str| {
        // A code for a lock that is taken is not used.
        let arguments = [&["run", "-E", "0"], flags, &[name, "true"]].concat();
        let (status, out, err) = fleet.output(&arguments);
        assert_eq!((status.code(), &*out), (Some(78), ""), "{err}");
        assert!(err.contains(kind) && err.contains(name), "{err}");
    };
    let permit = stays(&fleet, &["--slots", "2"], "pool");
    for flags in [&["--shared"][..], &["--exclusive"], &["--also", "x"]] {
        refused(flags, "pool", "is in use as a semaphore");
    }
    // It cannot tell, and waits.
    assert_eq!(at_once(&fleet, &[], "pool"), 75);
    end(permit);
    let reader = stays(&fleet, &["--shared"], "prices");
    refused(
        &["--slots", "2"],
        "prices",
        "is in use as a read-write lock",
    );
    end(reader);
    let lock = stays(&fleet, &[], "lock");
    refused(&["--slots", "2"], "lock", "is in use as a lock");
    end(lock);
    fleet.nothing_is_left();
}

/// As with a plain lock, for each kind.
#[test]
fn a_killed_wrappers_command_ends_before_others_can_have_its_place() {
    let fleet = Fleet::new(3);
    let kinds: [(&[&str], &str, &[&str]); 3] = [
        (&["--slots", "1"], "pool", &["--slots", "1"]),
        (&["--shared"], "read", &["--exclusive"]),
        (&["--also", "other"], "several", &["--also", "other"]),
    ];
    let start = |(flags, name, _): (&[&str], _, _)| {
        stays(&fleet, &[flags, &["--ttl", "8s"]].concat(), name)
    };
    let mut jobs = kinds.map(start);
    for job in &jobs {
        signal(job.pid(), Signal::SIGKILL);
    }
    for (job, (_, name, next)) in jobs.iter_mut().zip(kinds) {
        job.ends_protected(&fleet, name);
        job.wait();
        let next = [&["run", "-w", "20s"], next, &[name, "true"]].concat();
        assert_eq!(fleet.code(&next), 0, "free after its ttl: {name}");
    }
}

#[test]
fn at_least_keeps_a_slot_taken() {
    let fleet = Fleet::new(3);
    let short = ["run", "--slots", "1", "--at-least", "60s", "pool", "true"];
    assert_eq!(fleet.code(&short), 0);
    assert_eq!(at_once(&fleet, &["--slots", "1"], "pool"), 75);
    assert_eq!(at_once(&fleet, &["--slots", "2"], "pool"), 0);
}

#[test]
fn fencing_tokens_of_slots_grow() {
    let fleet = Fleet::new(3);
    let number = || -> u64 {
        let words = [
            "run",
            "--fence",
            "--slots",
            "2",
            "pool",
            "sh",
            "-c",
            "echo $REDLOCK_FENCE",
        ];
        let (_, out, err) = fleet.output(&words);
        out.trim().parse().unwrap_or_else(|_| panic!("{out} {err}"))
    };
    assert!(number() < number());
}

/// What a command prints, in JSON.
fn json_of(fleet: &Fleet, arguments: &[&str]) -> Value {
    let (status, out, err) = run(&mut command(&fleet.nodes, arguments));
    assert_eq!(status, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn inspect_and_list_show_slots_and_readers_with_their_hosts() {
    let fleet = Fleet::new(3);
    let slots = [(); 2].map(|()| stays(&fleet, &["--slots", "3"], "pool"));
    let readers = [(); 2].map(|()| stays(&fleet, &["--shared"], "prices"));
    let settled = |name: &str| {
        fleet
            .servers
            .iter()
            .all(|server| server.command(&["ZCARD", name]) == redis::Value::Int(2))
    };
    eventually("on all nodes", || settled("pool") && settled("prices"));
    let (_, out, _) = run(&mut command(&fleet.nodes, &["inspect", "pool"]));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("pool: held, 2 slots, for "), "{out}");
    assert!(
        lines[1].starts_with("  ") && lines[1].contains(") in slot "),
        "{out}"
    );
    assert_eq!(lines[4].split_whitespace().next(), Some("NODE"), "{out}");
    assert_eq!(lines.len(), 11, "two for each node: {out}");
    for job in &slots {
        let label = format!(":{}) in slot ", job.pid());
        assert_eq!(out.matches(&label).count(), 4, "{out}");
    }
    let (_, out, _) = run(&mut command(&fleet.nodes, &["inspect", "prices"]));
    assert!(out.starts_with("prices: held by 2 readers, for "), "{out}");
    for job in &readers {
        let label = format!(":{}) reading", job.pid());
        assert_eq!(out.matches(&label).count(), 4, "{out}");
    }

    for (name, kind) in [("pool", "permits"), ("prices", "readers")] {
        let seen = json_of(&fleet, &["inspect", "--json", name]);
        assert_eq!(
            (&seen["state"], &seen["kind"]),
            (&json!("held"), &json!(kind))
        );
        assert_eq!(
            (&seen["fingerprint"], &seen["label"]),
            (&Value::Null, &Value::Null)
        );
        let nodes = seen["nodes"].as_array().unwrap();
        for one in nodes.iter().chain([&seen]) {
            let holders = one["holders"].as_array().unwrap();
            assert_eq!(holders.len(), 2, "{one}");
            for holder in holders {
                assert_eq!(holder["slot"].is_u64(), kind == "permits", "{one}");
                assert!(holder["label"].is_string() && holder["remaining_ms"].is_u64());
            }
        }
    }
    let list = json_of(&fleet, &["list", "--json"]);
    let row = |lock: &Value| format!("{} {} {}", lock["name"], lock["kind"], lock["problems"]);
    let rows: Vec<String> = list["locks"].as_array().unwrap().iter().map(row).collect();
    let [pool, prices] = [r#""pool" "permits" []"#, r#""prices" "readers" []"#];
    assert_eq!(rows, [pool, pool, prices, prices]);
    let (_, out, _) = run(&mut command(&fleet.nodes, &["list"]));
    assert!(
        out.contains(") in slot ") && out.contains(") reading"),
        "{out}"
    );

    // Who is in the way.
    let said = |flags: &[&str], name: &str| {
        let arguments = [&["run", "-v", "-n"], flags, &[name, "true"]].concat();
        let (status, _, err) = fleet.output(&arguments);
        assert_eq!(status.code(), Some(75), "{err}");
        err
    };
    let writer = said(&["--exclusive"], "prices");
    assert!(
        writer.contains("others have the lock \"prices\": "),
        "{writer}"
    );
    for job in &readers {
        assert!(writer.contains(&format!(":{}", job.pid())), "{writer}");
    }
    let third = stays(&fleet, &["--slots", "3"], "pool");
    let full = said(&["--slots", "3"], "pool");
    assert!(full.contains("others have the lock \"pool\": "), "{full}");
    for job in slots.iter().chain([&third]) {
        assert!(full.contains(&format!(":{}", job.pid())), "{full}");
    }
}

#[test]
fn release_frees_the_slot_that_is_chosen() {
    let fleet = Fleet::new(3);
    let mut slots = [(); 2].map(|()| stays(&fleet, &["--slots", "2", "--ttl", "6s"], "pool"));
    let release = |more: &[&str]| {
        let arguments = [&["release", "--force", "--yes"], more, &["pool"]].concat();
        run(&mut command(&fleet.nodes, &arguments))
    };
    let (code, out, err) = release(&[]);
    assert_eq!(code, 64, "{out}");
    assert!(err.contains("2 have it: give --holder"), "{err}");
    let (code, _, err) = release(&["--holder", "00000000"]);
    assert!(
        code == 75 && err.contains("00000000 does not have it"),
        "{err}"
    );
    let label = format!(":{}) in slot ", slots[0].pid());
    let line = out.lines().find(|line| line.contains(&label)).unwrap();
    let fingerprint = line.split_whitespace().next().unwrap();
    let (code, out, err) = release(&["--holder", fingerprint]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.ends_with("\npool: released\n"), "{out}");
    // Its command is ended; the other one goes on.
    assert_eq!(slots[0].wait().code(), Some(76));
    assert_eq!(at_once(&fleet, &["--slots", "2"], "pool"), 0);
    let (code, out, err) = release(&[]);
    assert_eq!((code, &*err), (0, ""), "the only one: {out}");
    assert_eq!(slots[1].wait().code(), Some(76));
    fleet.nothing_is_left();
}

#[test]
fn doctor_tries_a_slot_where_that_is_asked_for() {
    let fleet = Fleet::new(1);
    fleet.servers[0].command(&["ACL", "SETUSER", "default", "-pexpireat"]);
    let doctor = |more: &[&str]| {
        let arguments = [&["doctor"], more].concat();
        run(&mut command(&fleet.nodes, &arguments))
    };
    assert_eq!(doctor(&[]).0, 0);
    for flags in [&["--slots", "2"][..], &["--shared"]] {
        let (code, out, _) = doctor(flags);
        assert!(code == 1 && out.contains("the lock is refused"), "{out}");
    }
    for flags in [&["--exclusive"][..], &["--also", "redlock-doctor-2"]] {
        assert_eq!(doctor(flags).0, 0, "{flags:?}");
    }
    fleet.servers[0].command(&["ACL", "SETUSER", "default", "+pexpireat"]);
    assert_eq!(doctor(&["--slots", "2"]).0, 0);
    assert_eq!(doctor(&["--slots", "2", "--shared"]).0, 64);
}
