//! Two libraries, one key: does each respect a lock of the other one, and get it once it is released?
//!
//! All contenders have one and the same server, with which each of them works. Some put a prefix before a lock's name, which is
//! found by looking; such a pair is given names that make the same key.

use std::fmt::Write;
use std::time::Duration;

use redis::Value;

use crate::client::{Client, Silence};
use crate::stage::Contender;
use crate::support::Server;

const NAME: &str = "meet";
/// Longer than the slowest refusal takes.
const TTL: &str = "15000";
const WAIT: &str = "300";
const ANSWER: Duration = Duration::from_secs(12);

/// A library, with a process that holds and one that comes while it does.
struct Peer {
    library: String,
    prefix: String,
    holds: Client,
    comes: Client,
}

/// How a pair got on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Met {
    /// Held was respected, and released was free.
    Well,
    /// No names of the two make the same key.
    Apart,
    Badly(String),
}

/// What was found: each library with the prefix of its keys, and a row for each holder.
pub struct Meeting {
    pub libraries: Vec<(String, String)>,
    pub rows: Vec<Vec<Met>>,
}

impl Meeting {
    pub fn is_well(&self) -> bool {
        let bad = |met: &Met| matches!(met, Met::Badly(_));
        !self.rows.iter().flatten().any(bad)
    }

    /// The table of the guide.
    pub fn markdown(&self) -> String {
        let names = self.libraries.iter().map(|(name, _)| name.as_str());
        let mut text = format!(
            "| holder | key | {} |\n",
            names.collect::<Vec<_>>().join(" | ")
        );
        let _ = writeln!(
            text,
            "| --- | --- {}|",
            "| --- ".repeat(self.libraries.len())
        );
        for ((name, prefix), row) in self.libraries.iter().zip(&self.rows) {
            let cells: Vec<&str> = row.iter().map(cell).collect();
            let _ = writeln!(text, "| {name} | `{prefix}NAME` | {} |", cells.join(" | "));
        }
        text
    }

    /// What went wrong, a line each.
    pub fn faults(&self) -> String {
        let mut text = String::new();
        for ((holder, _), row) in self.libraries.iter().zip(&self.rows) {
            for ((comer, _), met) in self.libraries.iter().zip(row) {
                if let Met::Badly(why) = met {
                    let _ = writeln!(text, "{holder} holds, {comer} comes: {why}");
                }
            }
        }
        text
    }
}

fn cell(met: &Met) -> &str {
    match met {
        Met::Well => "yes",
        Met::Apart => "–",
        Met::Badly(_) => "**no**",
    }
}

/// Has each of them meet each other one, and itself. All those that come ask at the same time, since some ask for long.
pub fn all(contenders: &[Contender]) -> Result<Meeting, String> {
    let server = Server::plain();
    let mut peers = Vec::new();
    for contender in contenders {
        peers.push(peer(contender, &server)?);
    }
    let mut rows = Vec::new();
    for holder in 0..peers.len() {
        eprintln!("== a lock of {}", peers[holder].library);
        rows.push(row(&mut peers, holder, &server));
        // The next one begins with nothing.
        server.command(&["FLUSHALL"]);
    }
    let libraries = peers.into_iter().map(|peer| (peer.library, peer.prefix));
    Ok(Meeting {
        libraries: libraries.collect(),
        rows,
    })
}

fn peer(contender: &Contender, server: &Server) -> Result<Peer, String> {
    let mut variables = contender.variables.clone();
    variables.push(("NODES".into(), server.url()));
    let start = || {
        let client = Client::start(&contender.command, &variables)?;
        let ready = client.line(ANSWER);
        let (_, line) = ready.map_err(|_| format!("{} does not begin", contender.name))?;
        Ok::<_, String>((client, line))
    };
    let ((mut holds, ready), (comes, _)) = (start()?, start()?);
    let word = |mark: &str| {
        let mut words = ready.split(' ');
        words
            .find_map(|word| word.strip_prefix(mark))
            .unwrap_or("?")
            .to_owned()
    };
    let library = format!("{} {}", word("library="), word("version="));
    expect(&mut holds, &format!("acquire {NAME} {TTL} {WAIT}"), true)?;
    let locks = keys(server, NAME);
    let found = locks.iter().find_map(|key| key.strip_suffix(NAME));
    let prefix = found.map(str::to_owned);
    expect(&mut holds, &format!("release {NAME}"), true)?;
    gone(server, NAME)?;
    Ok(Peer {
        // One that sets no key meets nobody, which the first pair shows.
        prefix: prefix.unwrap_or_default(),
        library,
        holds,
        comes,
    })
}

/// The keys with this text at their end. What lies beside a lock has other names.
fn keys(server: &Server, end: &str) -> Vec<String> {
    let mut keys = server.keys();
    keys.retain(|key| key.ends_with(end));
    keys
}

/// Waits until no key ends so: some libraries go on in the background.
fn gone(server: &Server, end: &str) -> Result<(), String> {
    for _ in 0..200 {
        if keys(server, end).is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(format!(
        "released, and there is still {:?}",
        keys(server, end)
    ))
}

/// Sends a request, and expects that it succeeds, or that it does not.
fn expect(client: &mut Client, request: &str, succeeds: bool) -> Result<(), String> {
    client.send(request);
    answered(client, request, succeeds)
}

fn answered(client: &Client, request: &str, succeeds: bool) -> Result<(), String> {
    match client.line(ANSWER) {
        Ok((_, line)) if line.starts_with("ok ") == succeeds => Ok(()),
        Ok((_, line)) => Err(format!("{request}: {line}")),
        Err(Silence::NothingYet) => Err(format!("{request}: no answer")),
        Err(Silence::Ended) => Err(format!("{request}: it has ended")),
    }
}

/// The names by which two libraries make the same key.
fn names(holder: &str, comer: &str) -> Option<(String, String)> {
    match (holder, comer) {
        (one, other) if one == other => Some((NAME.into(), NAME.into())),
        ("", prefix) => Some((format!("{prefix}{NAME}"), NAME.into())),
        (prefix, "") => Some((NAME.into(), format!("{prefix}{NAME}"))),
        _ => None,
    }
}

fn take(name: &str) -> String {
    format!("acquire {name} {TTL} {WAIT}")
}

fn give(name: &str) -> String {
    format!("release {name}")
}

/// How each fares that comes while this one holds its lock, and then when it has released it.
fn row(peers: &mut [Peer], holder: usize, server: &Server) -> Vec<Met> {
    let prefix = peers[holder].prefix.clone();
    let pairs = peers.iter().map(|comer| names(&prefix, &comer.prefix));
    let pairs: Vec<Option<(String, String)>> = pairs.collect();
    let mut held: Vec<String> = pairs
        .iter()
        .flatten()
        .map(|(held, _)| held.clone())
        .collect();
    held.sort();
    held.dedup();
    let key = |name: &str| format!("{prefix}{name}");
    let stored = |names: &[String]| -> Vec<Value> {
        names
            .iter()
            .map(|name| server.command(&["DUMP", &key(name)]))
            .collect()
    };
    let all = |client: &mut Client, request: fn(&str) -> String| {
        held.iter()
            .try_for_each(|name| expect(client, &request(name), true))
    };
    if let Err(why) = all(&mut peers[holder].holds, take) {
        return vec![Met::Badly(why); peers.len()];
    }
    let before = stored(&held);
    for (peer, pair) in peers.iter_mut().zip(&pairs) {
        if let Some((_, wanted)) = pair {
            peer.comes.send(&take(wanted));
        }
    }
    let refused = |(peer, pair): (&Peer, &Option<(String, String)>)| {
        let answer = |(_, wanted): &(String, String)| answered(&peer.comes, &take(wanted), false);
        pair.as_ref().map_or(Ok(()), answer)
    };
    let mut results: Vec<Result<(), String>> = peers.iter().zip(&pairs).map(refused).collect();
    let unchanged = match before == stored(&held) {
        true => Ok(()),
        false => Err("the holder's key was changed".to_owned()),
    };
    let freed = unchanged.and_then(|()| all(&mut peers[holder].holds, give));
    let freed = freed.and_then(|()| held.iter().try_for_each(|name| gone(server, &key(name))));
    for ((peer, pair), result) in peers.iter_mut().zip(&pairs).zip(&mut results) {
        if let (Some((held, wanted)), true) = (pair, result.is_ok()) {
            *result = freed
                .clone()
                .and_then(|()| takes(peer, wanted, &key(held), server));
        }
    }
    let met = |(result, pair): (Result<(), String>, &Option<_>)| match (result, pair) {
        (_, None) => Met::Apart,
        (Ok(()), _) => Met::Well,
        (Err(why), _) => Met::Badly(why),
    };
    results.into_iter().zip(&pairs).map(met).collect()
}

/// It gets the free lock, under the key that the other one had.
fn takes(peer: &mut Peer, wanted: &str, key: &str, server: &Server) -> Result<(), String> {
    expect(&mut peer.comes, &take(wanted), true)?;
    if keys(server, key).is_empty() {
        return Err("the lock has another key".into());
    }
    expect(&mut peer.comes, &give(wanted), true)?;
    gone(server, key)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_has_the_table_that_was_found() {
        let guide = include_str!("../../../src/guide/comparison.md");
        let found = include_str!("../histories/meeting.md");
        assert!(guide.contains(found), "{found}");
    }
}
