//! A connection of its own to each node, for some questions beside the locks: it disturbs none of them, and
//! sees what they see.

#[cfg(feature = "cli")]
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::{Cause, Limit};
use crate::net::connection::{Connection, Purpose};
use crate::net::peer::Peer;
use crate::protocol::resp::{self, Reply};
use crate::secret::Secret;
use crate::sync::lock;

/// So much later somebody who has not said that his time is over is not waited for.
const GRACE: Duration = Duration::from_millis(50);

pub(crate) struct Query {
    connection: Connection,
    secret: Secret,
    inbox: Vec<u8>,
    buffer: Vec<u8>,
    /// For all answers, in all and in node timeouts.
    time: (Duration, u32),
    until: Instant,
}

impl Query {
    /// Connects within `timeout`; from then on there is `time` for all questions.
    pub(crate) fn open(
        info: &Peer,
        timeout: Duration,
        time: (Duration, u32),
    ) -> Result<Query, Cause> {
        let (connection, handshake) = Connection::open(info, timeout, Purpose::Messages)?;
        Ok(Query {
            connection,
            secret: handshake.secret,
            inbox: Vec::new(),
            buffer: Vec::new(),
            time,
            until: clock::instant() + time.0,
        })
    }

    /// What no text of the node may repeat.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whom it is connected to; unknown over Unix sockets.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.connection.peer_ip()
    }

    /// Sends commands that are packed already, as many as `N`.
    pub(crate) fn ask<const N: usize>(&mut self, commands: &[u8]) -> Result<[Reply; N], Cause> {
        self.connection
            .send(commands, self.until, clock::instant())?;
        let mut replies = [const { Reply::Other }; N];
        for reply in &mut replies {
            *reply = self.reply()?;
        }
        match self.inbox.is_empty() {
            true => Ok(replies),
            false => Err(Cause::Garbage("more than was asked for".into())),
        }
    }

    fn reply(&mut self) -> Result<Reply, Cause> {
        loop {
            if let Some((reply, length)) = resp::parse(&self.inbox, &self.secret)? {
                self.inbox.drain(..length);
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// Waits until more has come, or the time is over.
    fn fill(&mut self) -> Result<(), Cause> {
        let now = clock::instant();
        if now >= self.until {
            let (time, timeouts) = self.time;
            return Err(Cause::NoAnswer(time, Limit::Node(timeouts)));
        }
        let bytes = self.connection.recv(&mut self.buffer, self.until, now)?;
        self.inbox.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(feature = "cli")]
impl Query {
    /// There is the whole time again.
    pub(crate) fn renew(&mut self) {
        self.until = clock::instant() + self.time.0;
    }

    /// Sends commands that are packed already. Their replies are then read from it.
    pub(crate) fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        let sent = self.connection.send(commands, self.until, clock::instant());
        sent.map_err(|cause| io::Error::other(cause.to_string()))
    }
}

/// What comes, as it is, for replies of any size and form.
#[cfg(feature = "cli")]
impl io::Read for Query {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.inbox.is_empty() {
            self.fill()
                .map_err(|cause| io::Error::other(cause.to_string()))?;
        }
        let read = io::Read::read(&mut self.inbox.as_slice(), buffer)?;
        self.inbox.drain(..read);
        Ok(read)
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        // A forked child may have a copy.
        self.connection.shutdown();
    }
}

/// Visits that nobody waits for any more and that have not ended: whose they are, and what lives as long.
#[derive(Default)]
pub(crate) struct AbandonedThreads(Mutex<Vec<(usize, Weak<()>)>>);

impl AbandonedThreads {
    fn add(&self, node: usize, query: Weak<()>) {
        lock(&self.0).push((node, query));
    }

    fn has(&self, node: usize) -> bool {
        let mut visits = lock(&self.0);
        visits.retain(|(_, query)| query.strong_count() > 0);
        visits.iter().any(|(at, _)| *at == node)
    }
}

/// Visits all nodes at a time. Each has `connect` to be connected, and so many node timeouts for all questions.
///
/// What cannot be bounded (a name that is not resolved, credentials that are not given) is left to its thread,
/// and until that ends no other one is sent to the same node: they would pile up. (In a forked child there is
/// nobody to remember them.)
pub(crate) fn each<T: Send + 'static>(
    infos: &[Peer],
    abandoned_threads: Option<&AbandonedThreads>,
    connect: Duration,
    (node_timeout, timeouts): (Duration, u32),
    ask: impl Fn(&mut Query) -> Result<T, Cause> + Send + Sync + 'static,
) -> Vec<Result<T, Cause>> {
    let time = (node_timeout.saturating_mul(timeouts), timeouts);
    let until = clock::instant() + connect.saturating_add(time.0) + GRACE;
    let ask = Arc::new(ask);
    let start = |(node, info): (usize, &Peer)| {
        if abandoned_threads.is_some_and(|abandoned_threads| abandoned_threads.has(node)) {
            return Err(Cause::Connect(
                "the look before this one has not ended: it waits for a name to be resolved, or for credentials".into(),
            ));
        }
        let (ask, info) = (ask.clone(), info.clone());
        let (sender, receiver) = mpsc::channel();
        let lives = Arc::new(());
        let weak = Arc::downgrade(&lives);
        let query = move || {
            let _lives = lives;
            let answer = Query::open(&info, connect, time).and_then(|mut query| ask(&mut query));
            // Nobody may wait for it any more.
            let _ = sender.send(answer);
        };
        let thread = std::thread::Builder::new().name(format!("redlock-visit-{node}"));
        match thread.spawn(query) {
            Ok(_) => Ok((node, weak, receiver)),
            Err(error) => Err(Cause::NoThread(error.to_string())),
        }
    };
    let visits: Vec<_> = infos.iter().enumerate().map(start).collect();
    let end = |query: Result<(usize, Weak<()>, mpsc::Receiver<_>), Cause>| {
        let (node, weak, answers) = query?;
        let rest = until.saturating_duration_since(clock::instant());
        answers.recv_timeout(rest).unwrap_or_else(|_| {
            if let Some(abandoned_threads) = abandoned_threads {
                abandoned_threads.add(node, weak);
            }
            Err(Cause::NotConnected(connect, connect))
        })
    };
    visits.into_iter().map(end).collect()
}
