//! The model of a server (`testing::server`), and a real one: random sequences of the crate's commands and of foreign
//! ones, for which both must give the same replies, publish the same messages and keep the same keys, byte for byte.
//!
//! ```text
//! cargo test --lib differential                                          a short run, and the mutated scripts
//! cargo test --release --lib differential -- --include-ignored           they are found without aiming at them, too
//! DIFF_SECONDS=600 REDIS_SERVER=valkey-server cargo test --lib differential
//! ```
//!
//! This test needs Redis 7 or later, or Valkey. (On a replica, scripts of Redis 6 read keys that have expired.)
//!
//! Time passes in real time: ttls of a few milliseconds end between two commands or in the middle of one. The model
//! gets the server's time, which is asked for before and after each command. If both are in the same millisecond, all
//! times are exact, and so is every reply. Otherwise the command is not judged, and the model takes over the server's
//! keys. The same happens in the last millisecond of a key: Redis 8 may delete it at the beginning of that or at its
//! end.
//!
//! A seed gives the same commands again, at other times; a failure prints the commands that led to it.

mod commands;
mod faults;
mod keys;
mod native;
mod server;

use std::fmt::Write as _;
use std::time::Duration;

use faults::Fault;
use native::Native;
use server::{Line, Server};

use crate::proof::sim::basics::Random;
use crate::protocol::commands::node_queue::Channel;
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{INSPECT, LATER, SCRIPTS};
use crate::testing::server::{self as model, Replies};
use crate::testing::store::Mood;
use crate::testing::store::request::parse;
use crate::values::clock;

/// The model's connections.
const LINE: u64 = 0;
const SUBSCRIPTION: u64 = 1;
const CHANNELS: u64 = 3;
fn packed(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[args], None);
    bytes
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn words(reply: Reply) -> Vec<Vec<u8>> {
    let Reply::Array(items) = reply else {
        panic!("{reply:?}");
    };
    let word = |item: Reply| match item {
        Reply::Bulk(bulk) => bulk,
        other => panic!("{other:?}"),
    };
    items.into_iter().map(word).collect()
}

/// A reply without the parts that differ between versions: the place of an error in a script, and how it is introduced;
/// and the text after the code if a command is not permitted, or a script is missing.
fn comparable(reply: &[u8]) -> Vec<u8> {
    let said = String::from_utf8_lossy(reply);
    if !said.starts_with('-') {
        return reply.to_vec();
    }
    let not_permitted = [
        "-NOPERM",
        "-ERR ACL failure in script",
        "The user executing the script can't run this command",
    ];
    let code = if not_permitted.iter().any(|part| said.contains(part)) {
        "-NOPERM".into()
    } else if said.starts_with("-NOSCRIPT") {
        "-NOSCRIPT".into()
    } else {
        // "-CODE … script: HASH, on @user_script:LINE."; before Redis 7 "-ERR … @user_script: LINE: -CODE …".
        let said = said.split(" script: ").next().unwrap().trim_end();
        match said.rsplit_once("user_script:") {
            None => said.to_owned(),
            Some((_, place)) => {
                let said = place.split_once(": ").unwrap().1.trim_start_matches('-');
                let code = said.split(' ').next().unwrap_or_default();
                match code.bytes().all(|byte| byte.is_ascii_uppercase()) {
                    true => format!("-{said}"),
                    false => format!("-ERR {said}"),
                }
            }
        }
    };
    format!("{code}\r\n").into_bytes()
}

/// The model and the server, side by side.
struct Pair {
    server: Server,
    line: Line,
    subscription: Line,
    native: Native,
    /// The fault in the server's scripts.
    fault: Option<Fault>,
    model: model::Server,
    /// The channels to which the subscription has subscribed.
    heard: Vec<u64>,
    random: Random,
    /// The server's time, last seen.
    time: u64,
    /// Most commands are for permits.
    shared: bool,
    history: Vec<String>,
    counts: Counts,
}

/// The numbers of commands.
#[derive(Clone, Copy, Default)]
struct Counts {
    judged: u64,
    not_judged: u64,
}

fn new_model() -> model::Server {
    let mut model = model::Server::new(0, 0);
    model.connect(LINE);
    model.connect(SUBSCRIPTION);
    model
}

fn channel(number: u64) -> Channel {
    Channel::new([u8::try_from(number).unwrap(); 16])
}

impl Pair {
    fn new() -> Pair {
        let server = Server::start();
        let mut line = server.connect();
        keys::add_narrow_user(&mut line);
        let native = Native::of(&mut line);
        let mut pair = Pair {
            line,
            native,
            subscription: server.connect(),
            server,
            fault: None,
            model: new_model(),
            heard: Vec::new(),
            random: Random(0),
            time: 0,
            shared: false,
            history: Vec::new(),
            counts: Counts::default(),
        };
        // Its time, which even the first command may need.
        pair.ask_server(&[]);
        pair
    }

    fn aims_at(&self) -> Option<&Fault> {
        self.fault.as_ref().filter(|fault| fault.is_aimed_at)
    }

    /// Runs a sequence, from empty servers.
    fn sequence(&mut self, seed: u64) -> Result<(), String> {
        self.random = Random(seed);
        self.shared = match self.aims_at() {
            Some(fault) => fault.kinds().is_some(),
            None => self.random.chance(50),
        };
        self.history.clear();
        self.be_in(Mood::default());
        self.line.ask(&[b"FLUSHALL"]);
        self.line.ask(&[b"SCRIPT", b"FLUSH"]);
        self.subscription = self.server.connect();
        self.heard.clear();
        self.model = new_model();
        self.load();
        for _ in 0..200 {
            self.step()?;
        }
        self.hears(&[])
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(100) {
            0..3 => {
                // Mostly the server refuses nothing. (Of two reasons versions name different ones.)
                let which = self.random.below(10);
                let mood = Mood {
                    read_only: which == 0,
                    out_of_memory: which == 1,
                    no_set: which == 2,
                    too_few_replicas: which == 3,
                    no_queue: which == 4,
                };
                self.be_in(mood);
                Ok(())
            }
            3..8 => self.subscribe(),
            8 => {
                self.history.push("SCRIPT FLUSH".into());
                self.judge(&packed(&[b"SCRIPT", b"FLUSH"]))
            }
            9..11 => {
                self.load();
                Ok(())
            }
            11..13 => {
                std::thread::sleep(Duration::from_millis(1 + self.random.below(5)));
                Ok(())
            }
            // (Whether a command that is not ours may use a key, the model leaves to servers.)
            13..23 if !self.model.store.mood.no_queue => {
                let bytes = self.foreign();
                self.judge(&bytes)
            }
            _ => {
                let bytes = self.next_command();
                self.judge(&bytes)
            }
        }
    }

    fn load(&mut self) {
        self.history.push("SCRIPT LOAD, all".into());
        let (mut all, mut hashes) = (Vec::new(), Vec::new());
        for script in SCRIPTS {
            let mut args: [&[u8]; 3] = [b"SCRIPT", b"LOAD", script.text];
            let mut hash = script.hash;
            if let Some(fault) = &self.fault {
                fault.put_into(&mut args);
                fault.put_into(std::slice::from_mut(&mut hash));
            }
            resp::pack(&mut all, &[&args], None);
            hashes.push(hash.to_vec());
        }
        self.line.send(&all);
        for (script, hash) in SCRIPTS.iter().zip(hashes) {
            let (_, reply) = self.line.reply();
            assert_eq!(reply, Reply::Bulk(hash), "{}", text(script.text));
        }
        self.model.store.load_scripts();
    }

    fn be_in(&mut self, mood: Mood) {
        self.history.push(format!("{mood:?}"));
        let memory: &[u8] = if mood.out_of_memory { b"1" } else { b"0" };
        let replicas: &[u8] = if mood.too_few_replicas { b"1" } else { b"0" };
        let set: &[u8] = if mood.no_set { b"-set" } else { b"+set" };
        let primary: [&[u8]; 2] = match mood.read_only {
            true => [b"127.0.0.1", b"1"],
            false => [b"NO", b"ONE"],
        };
        let was = self.model.store.mood;
        for (changes, command) in [
            (
                was.read_only != mood.read_only,
                &[b"REPLICAOF", primary[0], primary[1]][..],
            ),
            (
                was.out_of_memory != mood.out_of_memory,
                &[b"CONFIG", b"SET", b"maxmemory", memory],
            ),
            (
                was.too_few_replicas != mood.too_few_replicas,
                &[b"CONFIG", b"SET", b"min-replicas-to-write", replicas],
            ),
            (
                was.no_set != mood.no_set,
                &[b"ACL", b"SETUSER", b"default", set],
            ),
        ] {
            if changes {
                let (said, reply) = self.line.ask(command);
                let done = matches!(reply, Reply::Okay | Reply::Other);
                assert!(done, "{}", said.escape_ascii());
            }
        }
        self.model.store.mood = mood;
    }

    fn subscribe(&mut self) -> Result<(), String> {
        let which = self.random.below(CHANNELS);
        let name = channel(which).bytes();
        let kind: &[u8] = match self.heard.iter().position(|heard| *heard == which) {
            Some(at) => {
                self.heard.remove(at);
                b"UNSUBSCRIBE"
            }
            None => {
                self.heard.push(which);
                b"SUBSCRIBE"
            }
        };
        self.history.push(format!("{} {which}", text(kind)));
        let command = packed(&[kind, &name]);
        self.subscription.send(&command);
        let [_, expected] = self.ask_model(SUBSCRIPTION, &command, self.time);
        self.hears(&expected)
    }

    /// Checks that these messages have arrived at the subscription, and nothing else.
    fn hears(&mut self, expected: &[u8]) -> Result<(), String> {
        let heard = self.drain();
        match heard == expected {
            true => Ok(()),
            false => Err(self.differ(expected, &heard)),
        }
    }

    /// The messages that have arrived at the subscription.
    fn drain(&mut self) -> Vec<u8> {
        self.subscription.send(&packed(&[b"PING", b"end"]));
        let mut heard = Vec::new();
        loop {
            let (bytes, reply) = self.subscription.reply();
            // The form of the reply to PING depends on whether there are subscriptions.
            let end = || Reply::Bulk(b"end".to_vec());
            if reply == end()
                || matches!(reply, Reply::Array(items) if items.last() == Some(&end()))
            {
                return heard;
            }
            heard.extend_from_slice(&bytes);
        }
    }

    /// Sends one command to both, and compares.
    fn judge(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (args, _) = parse(bytes).unwrap();
        let sent = match &self.fault {
            Some(fault) => fault.sent(&args),
            None => bytes.to_vec(),
        };
        let (before, said, keys) = self.ask_server(&sent);
        let said = said.unwrap();
        let ends = self
            .model
            .store
            .keys(before)
            .any(|(.., left)| left == Some(0));
        let exact = before / 1000 == self.time / 1000 && !ends;

        let [reply, messages] = self.ask_model(LINE, bytes, before);
        self.remember(&args, before, &said);
        if !exact {
            self.counts.not_judged += 1;
            self.drain();
            self.take_over();
            return Ok(());
        }
        self.counts.judged += 1;
        self.native.count(&args, &said);
        let (reply, said) = (comparable(&reply), comparable(&said));
        if reply != said {
            return Err(self.differ(&reply, &said));
        }
        let expected = self.keys(before);
        if expected != keys {
            return Err(self.differ(&expected.join(&b' '), &keys.join(&b' ')));
        }
        if messages.is_empty() {
            return Ok(());
        }
        self.hears(&messages)
    }

    /// The bytes that the model writes to its two connections.
    fn ask_model(&mut self, connection: u64, bytes: &[u8], time: u64) -> [Vec<u8>; 2] {
        let mut replies = Replies::new();
        assert!(self.model.receive(connection, bytes, time, &mut replies));
        let written = |to: u64| {
            let own = replies.iter().filter(|reply| reply.0 == to);
            own.flat_map(|reply| reply.1.clone()).collect()
        };
        [LINE, SUBSCRIPTION].map(written)
    }

    fn remember(&mut self, args: &[&[u8]], time: u64, said: &[u8]) {
        let mut line = format!("{}.{:03} ms", time / 1000 % 100_000, time % 1000);
        for (at, arg) in args.iter().enumerate() {
            let script = SCRIPTS.iter().chain([&INSPECT]).chain(&LATER);
            let known = [
                "RELEASE_AND_NOTIFY",
                "RELEASE",
                "EXTEND",
                "FENCE",
                "ACQUIRE_OR_ENQUEUE",
                "DEQUEUE",
                "ACQUIRE_IN_ORDER",
                "INSPECT",
                "ACQUIRE_PERMIT",
                "EXTEND_MEMBER",
                "RELEASE_MEMBER",
                "REFILL_MEMBER",
                "FENCE_MEMBER",
                "ACQUIRE_READ",
                "ACQUIRE_WRITE",
                "ACQUIRE_NAMES",
                "EXTEND_NAMES",
                "RELEASE_NAMES",
                "REFILL_NAMES",
                "FENCE_NAMES",
            ];
            let mut named = script.zip(known);
            let name = named.find(|(script, _)| [script.text, script.hash].contains(arg));
            match name {
                Some((_, name)) if at == 1 => write!(line, " {name}"),
                _ => write!(line, " {}", arg.escape_ascii()),
            }
            .unwrap();
        }
        write!(line, " -> {}", said.escape_ascii()).unwrap();
        self.history.push(line);
    }

    fn differ(&self, expected: &[u8], found: &[u8]) -> String {
        let history = self.history.iter().rev().take(40).rev();
        let history: String = history.map(|line| format!("  {line}\n")).collect();
        format!(
            "\n{history}\nthe model:  {}\nthe server: {}\n",
            expected.escape_ascii(),
            found.escape_ascii()
        )
    }
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

impl Pair {
    /// The first difference that is found within `time`, and its seed.
    fn search(&mut self, time: Duration) -> Option<String> {
        let end = clock::instant() + time;
        let mut seed = number("DIFF_SEED", 0);
        let mut found = None;
        while found.is_none() && clock::instant() < end {
            let differs = self.sequence(seed).err();
            found = differs.map(|what| format!("DIFF_SEED={seed}: {what}"));
            seed += 1;
        }
        found
    }
}

#[test]
fn a_server_names_scripts_by_the_hashes_that_are_computed_here() {
    Pair::new().load();
}

#[test]
fn differential_model_and_server_do_the_same() {
    let time = Duration::from_secs(number("DIFF_SECONDS", 3));
    let mut pair = Pair::new();
    let found = pair.search(time);
    let Counts { judged, not_judged } = pair.counts;
    println!("{judged} commands judged, {not_judged} not judged");
    if let Some(what) = found {
        panic!("{what}");
    }
    pair.native.report();
    // Otherwise the machine is too slow to show anything.
    assert!(
        judged > 100 && judged > not_judged,
        "{judged}, {not_judged}"
    );
}
