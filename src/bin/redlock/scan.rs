//! What lies on the nodes, all of them looked at side by side.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use redlock_sync::Redlock;
use redlock_sync::command::{Questions, without_password};
use redlock_sync::redis::{self, ConnectionInfo, RedisError, RedisResult};

use crate::list::{Answer, Key, VALUE};
use crate::say::progress;
use crate::text::human;

/// So many keys are asked for at a time.
const PAGE: usize = 1000;
/// For a page there are so many node timeouts: it is two questions, and more to answer than for a lock.
const PATIENCE: u32 = 4;
/// From this time on, progress is shown.
const LONG: Duration = Duration::from_secs(1);

/// Which keys.
pub(crate) enum What {
    /// Those that a glob matches; without one, those that look like locks.
    Pattern(Option<Vec<u8>>),
    Names(Vec<Vec<u8>>),
}

/// Why a node could not be looked at.
enum Failure {
    Redis(RedisError),
    Connect(String),
    Endless(String),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        Failure::Redis(error)
    }
}

enum Word {
    /// How many keys were looked at, and those that count.
    Page(usize, Vec<Key>),
    End(Result<(), String>),
}

/// What the nodes say that are `asked`; the others say nothing.
///
/// `timeouts`: to connect, and for an answer. Nobody is waited for who has said nothing for longer than it takes to
/// connect and to send a page; what cannot be bounded (a name that is not resolved) is left to its thread.
pub(crate) fn look(
    (redlock, nodes): (&Redlock, &[ConnectionInfo]),
    (connect, answer): (Duration, Duration),
    what: What,
    asked: impl Fn(usize) -> bool,
    progress: &mut Progress,
) -> Vec<Answer> {
    let (sender, words) = channel();
    let for_page = answer.saturating_mul(PATIENCE);
    let what = Arc::new(what);
    let mut heard = BTreeMap::new();
    for (node, info) in nodes.iter().enumerate().filter(|(node, _)| asked(*node)) {
        heard.insert(node, Instant::now());
        let (to_us, info, what) = (sender.clone(), info.clone(), what.clone());
        let redlock = redlock.clone();
        let visit = move || {
            let end = visit(&redlock, node, &what, |seen, page| {
                to_us.send((node, Word::Page(seen, page))).is_ok()
            });
            let end = end.map_err(|failure| match failure {
                Failure::Redis(error) => text(&error, &info),
                Failure::Connect(text) | Failure::Endless(text) => text,
            });
            // Nobody may wait for it any more.
            let _ = to_us.send((node, Word::End(end)));
        };
        let thread = thread::Builder::new().name(format!("redlock-scan-{node}"));
        if let Err(error) = thread.spawn(visit) {
            let error = format!("cannot start a thread to connect: {error}");
            let _ = sender.send((node, Word::End(Err(error))));
        }
    }
    let patience = connect.saturating_add(for_page);
    let mut answers: Vec<Answer> = nodes.iter().map(|_| Ok(Vec::new())).collect();
    collect(&mut answers, heard, &words, patience, progress);
    answers
}

/// `heard`: who has not ended, and when it was last heard.
fn collect(
    answers: &mut [Answer],
    mut heard: BTreeMap<usize, Instant>,
    words: &Receiver<(usize, Word)>,
    patience: Duration,
    progress: &mut Progress,
) {
    while let Some(longest) = heard.values().min() {
        let left = patience.saturating_sub(longest.elapsed());
        let Ok((node, word)) = words.recv_timeout(left) else {
            heard.retain(|node, heard| {
                let is_waited_for = heard.elapsed() < patience;
                if !is_waited_for {
                    answers[*node] = Err(format!("no answer within {}", human(patience)));
                }
                is_waited_for
            });
            continue;
        };
        if let Some(time) = heard.get_mut(&node) {
            *time = Instant::now();
        } else {
            continue;
        }
        match word {
            Word::Page(seen, mut page) => {
                progress.add(seen);
                if let Ok(keys) = &mut answers[node] {
                    keys.append(&mut page);
                }
            }
            Word::End(end) => {
                heard.remove(&node);
                if let Err(error) = end {
                    answers[node] = Err(error);
                }
            }
        }
    }
}

/// Says what a node has, page by page, for as long as somebody listens.
fn visit(
    redlock: &Redlock,
    node: usize,
    what: &What,
    mut listens: impl FnMut(usize, Vec<Key>) -> bool,
) -> Result<(), Failure> {
    let connection = Questions::open(redlock, node, PATIENCE);
    let mut connection = connection.map_err(Failure::Connect)?;
    let pattern = match what {
        What::Names(names) => {
            for names in names.chunks(PAGE) {
                connection.renew();
                if !listens(0, keys(&mut connection, names)?) {
                    break;
                }
            }
            return Ok(());
        }
        What::Pattern(pattern) => pattern,
    };
    let mut cursor = b"0".to_vec();
    let (mut pages, mut seen, mut size) = (0, 0, None);
    loop {
        connection.renew();
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor);
        if let Some(pattern) = pattern {
            scan.arg("MATCH").arg(pattern);
        }
        let names: Vec<Vec<u8>>;
        (cursor, names) = scan.arg("COUNT").arg(PAGE).query(&mut connection)?;
        let mut page = keys(&mut connection, &names)?;
        page.retain(|key| !key.is_beside_a_lock() && (pattern.is_some() || key.is_lock()));
        (pages, seen) = (pages + 1, seen + names.len());
        if !listens(names.len(), page) || cursor == b"0" {
            return Ok(());
        }
        if size.is_none_or(|size| is_endless(pages, seen, size)) {
            // It may have grown.
            let now = redis::cmd("DBSIZE").query(&mut connection)?;
            if is_endless(pages, seen, now) {
                return Err(Failure::Endless(format!(
                    "its SCAN does not end: {seen} keys in {pages} pages, and it says that it has {now}"
                )));
            }
            size = Some(now);
        }
    }
}

/// What they are; those that are gone left out.
fn keys(connection: &mut Questions, names: &[Vec<u8>]) -> RedisResult<Vec<Key>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipe = redis::pipe();
    for name in names {
        pipe.cmd("GETRANGE").arg(name).arg(0).arg(VALUE - 1);
        pipe.cmd("PTTL").arg(name);
    }
    let replies: Vec<RedisResult<redis::Value>> = pipe.ignore_errors().query(connection)?;
    let mut replies = replies.into_iter();
    let mut keys = Vec::new();
    for name in names {
        let (Some(value), Some(left)) = (replies.next(), replies.next()) else {
            break;
        };
        let value = match value {
            Err(error) if error.code() == Some("WRONGTYPE") => None,
            value => Some(redis::from_redis_value(value?)?),
        };
        let left: i64 = redis::from_redis_value(left?)?;
        let left = match left {
            -1 => Duration::MAX,
            left => match u64::try_from(left) {
                Ok(left) => Duration::from_millis(left),
                Err(_) => continue,
            },
        };
        keys.push(Key {
            name: name.clone(),
            value,
            left,
        });
    }
    Ok(keys)
}

/// Whether a SCAN has returned more than a server with `size` keys can. Pages may be empty if the server once had many
/// more keys, and keys may come twice.
fn is_endless(pages: usize, seen: usize, size: usize) -> bool {
    let most = size.saturating_mul(4).saturating_add(10 * PAGE);
    seen > most || pages > most / PAGE + 30_000
}

/// An error's text, without the arguments that some errors repeat: the password may be among them.
fn text(error: &RedisError, info: &ConnectionInfo) -> String {
    let hidden = |text: &str| {
        let (text, _) = text
            .split_once(", with args beginning with")
            .unwrap_or((text, ""));
        without_password(info, text)
    };
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => {
            format!(
                "the server answered: {}",
                hidden(&format!("{code} {detail}"))
            )
        }
        _ => hidden(&error.to_string()),
    }
}

/// How many keys were looked at: shown on a terminal while it lasts.
pub(crate) struct Progress {
    begun: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
    keys: usize,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            begun: Instant::now(),
            shown: None,
            is_terminal: stderr().is_terminal(),
            keys: 0,
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    fn add(&mut self, keys: usize) {
        self.keys += keys;
        let is_due = match self.shown {
            None => self.begun.elapsed() > LONG,
            Some(shown) => shown.elapsed() > LONG / 4,
        };
        if self.is_terminal && is_due {
            self.shown = Some(Instant::now());
            progress(&format!("{} keys looked at so far", self.keys));
        }
    }

    /// Clears the line for what is written next.
    pub(crate) fn end(&self) {
        if self.shown.is_some() {
            progress("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_ends_where_a_server_with_so_many_keys_would() {
        for (pages, seen, size, endless) in [
            (1, 1000, 0, false),
            (12, 11_000, 0, true),
            (1200, 1_200_000, 1_000_000, false),
            (4011, 4_010_001, 1_000_000, true),
            // A server that had 2^28 keys and has none.
            (26_844, 10, 10, false),
            (40_000, 10, 10, true),
            (usize::MAX, usize::MAX, usize::MAX, true),
        ] {
            assert_eq!(
                is_endless(pages, seen, size),
                endless,
                "{pages} {seen} {size}"
            );
        }
    }
}
