//! The questions of a check to one node.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::server_error::{refuses_companions, refuses_scripts};
use crate::ops::query::Query;
use crate::ops::rules::facts::{Coverage, Location, Needs, NodeReport, TrialLock};
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::dialect::{self, Beside, Dialect};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{self, LATER, SCRIPTS, TRIAL};
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::commands::vote::Vote;
use crate::protocol::node::witness;
use crate::protocol::node::witness_look::{self, WitnessLook};
use crate::values::arithmetic::Ttl;
use crate::values::clock;
use crate::values::prefix::Prefix;

/// How many round trips are measured for each node.
const PINGS: usize = 10;

/// Asks a node for everything that the rules need.
pub(crate) fn ask(
    query: &mut Query,
    (witness, in_cluster): (Option<&[u8]>, bool),
    (key, prefix): (&Key, &Prefix),
    ttl: Ttl,
) -> Result<NodeReport, Cause> {
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[&[b"INFO"]], None);
    resp::pack(&mut bytes, &[&[b"CONFIG", b"GET", b"appendfsync"]], None);
    for name in [
        &b"min-replicas-to-write"[..],
        b"min-replicas-max-lag",
        // Before Redis 5 the setting is slave-read-only.
        b"*-read-only",
    ] {
        resp::pack(&mut bytes, &[&[b"CONFIG", b"GET", name]], None);
    }
    let [info, config, replicas, lag, read_only] = query.ask(&bytes)?;
    let coverage = match in_cluster {
        true => coverage_of(query)?,
        false => Coverage::default(),
    };
    // Nothing else needs the witness.
    let (witness, look) = match witness {
        Some(witness) => try_witness(query, &prefix.key(witness))?,
        None => (None, None),
    };
    let probe = try_lock(query, key, prefix, ttl)?;
    let beside = try_keys_beside(query, &prefix.key(&key.resource))?;
    let clock = query.clock_offset()?;
    Ok(NodeReport {
        location: query.ip().map_or(Location::Unknown, Location::Ip),
        info: match info {
            Reply::Bulk(text) => Ok(ServerInfo::new(&text, query.secret())),
            other => Err(refusal(other)),
        },
        appendfsync: match config {
            Reply::Array(items) => match items.into_iter().next_back() {
                Some(Reply::Bulk(value)) => {
                    Ok(query.secret().cut_value(&String::from_utf8_lossy(&value)))
                }
                _ => Err(Cause::Refused("no appendfsync".into())),
            },
            other => Err(refusal(other)),
        },
        needs: Needs {
            replicas: number(replicas),
            lag: number(lag).map(Duration::from_secs),
        },
        coverage,
        writable_replica: value(read_only).is_some_and(|value| value == "no"),
        witness,
        look,
        beside: beside.filter(|_| matches!(probe, TrialLock::Passed | TrialLock::Held)),
        probe,
        round_trips: pings(query)?,
        clock,
    })
}

/// The number in a reply to CONFIG GET.
fn number(setting: Reply) -> Option<u64> {
    value(setting)?.parse().ok()
}

fn value(setting: Reply) -> Option<String> {
    match setting {
        Reply::Array(items) => match items.into_iter().next_back()? {
            Reply::Bulk(value) => String::from_utf8(value).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn coverage_of(query: &mut Query) -> Result<Coverage, Cause> {
    let mut bytes = Vec::new();
    for name in [
        &b"cluster-require-full-coverage"[..],
        b"cluster-node-timeout",
    ] {
        resp::pack(&mut bytes, &[&[b"CONFIG", b"GET", name]], None);
    }
    let [is_full, node_timeout] = query.ask(&bytes)?;
    Ok(Coverage {
        is_full: value(is_full).map(|value| value != "no"),
        node_timeout: number(node_timeout).map(Duration::from_millis),
    })
}

/// Why the restart guard could not use its key, and how a new connection would see the server otherwise.
fn try_witness(
    query: &mut Query,
    key: &[u8],
) -> Result<(Option<Cause>, Option<WitnessLook>), Cause> {
    let mut bytes = Vec::new();
    // No server executes a command that contradicts itself. If it is permitted, the reply is a syntax error.
    let set: &[&[u8]] = &[b"SET", key, b"-", b"NX", b"XX"];
    for command in witness_look::look(key).iter() {
        resp::pack(&mut bytes, &[command], None);
    }
    resp::pack(&mut bytes, &[set], None);
    let [server, replication, stats, value, left, commands, set] = query.ask(&bytes)?;
    let refused = [&value, &left, &set]
        .into_iter()
        .find_map(|reply| match reply {
            Reply::Error(text) => {
                let cause = witness::refused(text);
                matches!(cause, Cause::NoWitness(_)).then_some(cause)
            }
            _ => None,
        });
    let look = WitnessLook::of(
        vec![server, replication, stats, value, left, commands],
        query.secret(),
    );
    Ok((refused, look.ok()))
}

fn refusal(reply: Reply) -> Cause {
    match reply {
        Reply::Error(text) => Cause::refused(&text),
        other => Cause::Refused(other.kind().into()),
    }
}

/// Takes, extends and releases a lock on one node.
fn try_lock(query: &mut Query, key: &Key, prefix: &Prefix, ttl: Ttl) -> Result<TrialLock, Cause> {
    // A shorter ttl, so that there is something to extend.
    let shorter = ttl.duration().saturating_sub(Duration::from_millis(1));
    let shorter = Ttl::new(shorter).unwrap_or(ttl);
    let dialect = find_means(query)?;
    let steps = [
        (
            if key.kind.is_plain() {
                "SET"
            } else {
                "the lock"
            },
            Action::Acquire(shorter),
        ),
        ("the extension", Action::Extend(ttl, ttl)),
        ("the release", Action::Release(Notify::None)),
    ];
    let ask = |query: &mut Query, dialect: Dialect| {
        let mut bytes = Vec::new();
        for (_, action) in &steps {
            action.pack(key, prefix, dialect, &mut bytes);
        }
        query.ask::<3>(&bytes)
    };
    let mut replies = ask(query, dialect)?;
    if let Some(Reply::Error(text)) = replies.first()
        && refuses_companions(text)
        && !key.kind.is_plain()
    {
        // The lock is as good without the keys beside it, as an acquire finds, too.
        let dialect = Dialect {
            beside: Beside::None,
            ..dialect
        };
        replies = ask(query, dialect)?;
    }
    // A refusal whatever the name is takes precedence over a refusal of the name.
    let mut name = None;
    for ((what, action), reply) in steps.iter().zip(replies) {
        match action.vote(key, reply) {
            Vote::Granted(_) => {}
            Vote::Denied(_) | Vote::OtherUse(_) if matches!(action, Action::Acquire(_)) => {
                return Ok(TrialLock::Held);
            }
            Vote::Denied(_) | Vote::OtherUse(_) if name.is_some() => {}
            Vote::Denied(_) | Vote::OtherUse(_) => return Ok(TrialLock::Gone(what)),
            Vote::Failed { cause, .. } if cause.concerns_name() => {
                name.get_or_insert(TrialLock::Refused(what, cause));
            }
            Vote::Failed { cause, .. } => return Ok(TrialLock::Refused(what, cause)),
            Vote::Sever(cause @ Cause::Demoted(_)) => return Ok(TrialLock::Refused(what, cause)),
            Vote::Sever(cause) => return Err(cause),
        }
    }
    Ok(name.unwrap_or(TrialLock::Passed))
}

/// The commands a lock would use on this server.
fn find_means(query: &mut Query) -> Result<Dialect, Cause> {
    // Not by a script's hash, unless there is no other way: no script was loaded.
    let mut trials = Vec::new();
    for (call, text) in [("EVAL", TRIAL.text), ("EVALSHA", TRIAL.hash)] {
        resp::pack(&mut trials, &[&[call.as_bytes(), text, b"0"]], None);
    }
    let trials = query.ask::<2>(&trials)?.map(|reply| match reply {
        Reply::Error(text) => Some(text),
        _ => None,
    });
    let all = || SCRIPTS.iter().chain(&LATER);
    let mut loaded = false;
    if trials[0].as_deref().is_some_and(refuses_scripts) {
        let mut bytes = Vec::new();
        scripts::load([&TRIAL], &mut bytes);
        let first = query.ask::<1>(&bytes)?;
        // A server that loads none is not asked that for each of them.
        if scripts::are_loaded([&TRIAL], &first).is_ok() {
            bytes.clear();
            scripts::load(all(), &mut bytes);
            let replies = query.ask::<{ SCRIPTS.len() + LATER.len() }>(&bytes)?;
            loaded = scripts::are_loaded(all(), &replies).is_ok();
        }
    }
    match Dialect::with_scripts(loaded, trials) {
        Ok(dialect) => Ok(dialect),
        Err(refused) => {
            let replies = query.ask::<2>(&dialect::native_trials())?;
            Ok(Dialect::without_scripts(&refused, &replies).unwrap_or_default())
        }
    }
}

/// Why scripts may not use the keys beside the lock. The lock that is tried uses none of them.
fn try_keys_beside(query: &mut Query, key: &[u8]) -> Result<Option<Cause>, Cause> {
    let beside = [Companion::Queue, Companion::Turn, Companion::Counter];
    let [queue, turn, counter] = beside.map(|one| one.key(key).concat());
    let keys: &[&[u8]] = &[key, &queue, &turn, &counter];
    let [reply] = query.ask_scripts([(&TRIAL, keys)], false)?;
    Ok(match reply {
        Reply::Error(text) if refuses_companions(&text) => Some(Cause::refused(&text)),
        _ => None,
    })
}

fn pings(query: &mut Query) -> Result<Vec<Duration>, Cause> {
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[&[b"PING"]], None);
    let mut trips = Vec::new();
    for _ in 0..PINGS {
        let sent = clock::instant();
        let answer = query.ask::<1>(&bytes);
        trips.push(clock::instant().saturating_duration_since(sent));
        match answer {
            Ok(_) => {}
            // The node is so slow that no time is left for more.
            Err(Cause::NoAnswer(..)) if trips.len() > 1 => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(trips)
}
