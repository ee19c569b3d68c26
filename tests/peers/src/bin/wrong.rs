//! Contenders that are wrong on purpose, each in one way: what the checker is tested with.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Client, Connection, RedisResult, Value, cmd};
use speak::{Contender, Said};

/// Without a fault of its own: tries once on each node, one after the other, with a timeout.
struct Wrong {
    fault: String,
    nodes: Vec<Client>,
    /// The token and the end, in microseconds of the monotonic clock.
    locks: HashMap<String, (String, u64)>,
    count: u64,
}

const PATIENCE: Duration = Duration::from_millis(100);

impl Wrong {
    fn on_each(&self, command: &redis::Cmd) -> usize {
        let ask = |client: &Client| -> RedisResult<Value> {
            if matches!(self.fault.as_str(), "wrong-hangs" | "wrong-late") {
                return command.query(&mut client.get_connection()?);
            }
            let mut connection: Connection = client.get_connection_with_timeout(PATIENCE)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            command.query(&mut connection)
        };
        let yes = |value: RedisResult<Value>| matches!(value, Ok(Value::Okay | Value::Int(1)));
        self.nodes.iter().filter(|client| yes(ask(client))).count()
    }

    fn script(&self, script: &str, name: &str, ttl: Duration) -> usize {
        let token = self.locks.get(name).map_or("", |(token, _)| token);
        let mut command = cmd("EVAL");
        command
            .arg(script)
            .arg(1)
            .arg(name)
            .arg(token)
            .arg(u64::try_from(ttl.as_millis()).unwrap_or(0));
        self.on_each(&command)
    }

    fn majority(&self) -> usize {
        match self.fault.as_str() {
            "wrong-any-node" => 1,
            _ => self.nodes.len() / 2 + 1,
        }
    }
}

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

impl Contender for Wrong {
    fn acquire(&mut self, name: &str, ttl: Duration, _: Duration) -> Said {
        let begin = speak::now();
        self.count += 1;
        let token = format!("{}-{}", std::process::id(), self.count);
        let mut command = cmd("SET");
        command.arg(name).arg(&token);
        if self.fault != "wrong-keys" {
            command
                .arg("NX")
                .arg("PX")
                .arg(u64::try_from(ttl.as_millis()).unwrap_or(0));
        } else {
            command.arg("NX");
        }
        let votes = match self.fault.as_str() {
            "wrong-no-lock" => self.nodes.len(),
            _ => self.on_each(&command),
        };
        let micros = u64::try_from(ttl.as_micros()).unwrap_or(0);
        self.locks.insert(name.to_owned(), (token, begin + micros));
        let took = speak::now() - begin;
        // Counted from the answer, with no look at how late it is.
        if self.fault == "wrong-late" && votes >= self.majority() {
            return Said::Held(ttl);
        }
        if votes >= self.majority() && took < micros {
            return Said::Held(Duration::from_micros(micros - took));
        }
        if self.fault != "wrong-keys" {
            self.script(RELEASE, name, ttl);
        }
        self.locks.remove(name);
        Said::busy("no majority")
    }

    fn release(&mut self, name: &str) -> Said {
        if self.fault == "wrong-blind-release" {
            self.on_each(cmd("DEL").arg(name));
        } else {
            self.script(RELEASE, name, Duration::ZERO);
        }
        self.locks.remove(name);
        Said::Ok
    }

    fn extend(&mut self, name: &str, ttl: Duration) -> Said {
        let votes = self.script(EXTEND, name, ttl);
        if votes >= self.majority() || self.fault == "wrong-extend" {
            return Said::Held(ttl);
        }
        Said::lost("no majority")
    }

    fn fence(&mut self, _: &str) -> Said {
        match self.fault.as_str() {
            // A number that does not grow from holder to holder.
            "wrong-extend" => Said::Fence(7),
            _ => Said::None,
        }
    }
}

fn main() {
    let nodes = speak::nodes().into_iter().flat_map(Client::open).collect();
    let fault = std::env::var("CONTENDER").unwrap_or_default();
    let ready = format!("library={fault} version=0 wait=0");
    let wrong = Wrong {
        fault,
        nodes,
        locks: HashMap::new(),
        count: 0,
    };
    speak::speak(&ready, wrong);
}
