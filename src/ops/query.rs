//! A separate connection to each node, for questions beside the locks: it disturbs no lock, and sees what the locks
//! see.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::errors::cause::{Cause, Limit};
use crate::errors::secret::Secret;
use crate::lock::redlock::Redlock;
use crate::net::driver::abandoned::AbandonedThreads;
use crate::net::place::directory::Place;
use crate::net::socket::connection::Connection;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::resp::{Reply, ReplyReader};
use crate::protocol::commands::slots;
use crate::values::clock;

/// Grace period: a thread that has not reported its own timeout by then is abandoned.
const GRACE: Duration = Duration::from_millis(50);

/// If this many masters of a Redis Cluster, one after the other, do not answer, the rest is not asked.
pub(crate) const MOST_AWAY: usize = 16;

pub(crate) struct Query {
    connection: Connection,
    reader: ReplyReader,
    buffer: Vec<u8>,
    /// The time for all answers: in all, and in node timeouts.
    time: (Duration, u32),
    until: Instant,
    /// Why reading or writing failed, if only an I/O error could be returned.
    failed: Option<Cause>,
}

impl Query {
    /// Connects within `timeout`; from then on there is `time` for all questions.
    pub(crate) fn open(
        place: &Place,
        timeout: Duration,
        time: (Duration, u32),
    ) -> Result<Query, Cause> {
        let (connection, handshake) = place.open(timeout, Purpose::Looks)?;
        Ok(Query {
            connection,
            reader: ReplyReader::new(handshake.secret),
            buffer: Vec::new(),
            time,
            until: clock::instant() + time.0,
            failed: None,
        })
    }

    /// The secrets that no text of the node may repeat.
    pub(crate) fn secret(&self) -> &Secret {
        self.reader.secret()
    }

    /// The address that the query is connected to; unknown over Unix sockets.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.connection.peer_ip()
    }

    /// Begins the time for answers anew.
    pub(crate) fn renew(&mut self) {
        self.until = clock::instant() + self.time.0;
    }

    /// Sends packed commands, `N` of them.
    pub(crate) fn ask<const N: usize>(&mut self, commands: &[u8]) -> Result<[Reply; N], Cause> {
        self.connection
            .send(commands, self.until, clock::instant())?;
        let mut replies = [const { Reply::Other }; N];
        for reply in &mut replies {
            *reply = self.reply()?;
        }
        match self.reader.is_empty() {
            true => Ok(replies),
            false => Err(Cause::Garbage("more than was asked for".into())),
        }
    }

    /// Sends packed commands, whose replies are then read from this query.
    pub(crate) fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        let sent = self.connection.send(commands, self.until, clock::instant());
        sent.map_err(|cause| self.io_error(cause))
    }

    /// The cause behind the last I/O error that was returned.
    pub(crate) fn failure(&mut self) -> Option<Cause> {
        self.failed.take()
    }

    fn io_error(&mut self, cause: Cause) -> io::Error {
        let error = io::Error::other(cause.to_string());
        self.failed = Some(cause);
        error
    }

    fn reply(&mut self) -> Result<Reply, Cause> {
        loop {
            if let Some(reply) = self.reader.next()? {
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// Waits for more bytes, until the time is over.
    fn fill(&mut self) -> Result<(), Cause> {
        let now = clock::instant();
        if now >= self.until {
            let (time, timeouts) = self.time;
            return Err(Cause::NoAnswer(time, Limit::Node(timeouts)));
        }
        let bytes = self.connection.recv(&mut self.buffer, self.until, now)?;
        self.reader.push(bytes);
        Ok(())
    }
}

/// The bytes as they arrive, for replies of any size and form.
impl io::Read for Query {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.reader.is_empty() {
            self.fill().map_err(|cause| self.io_error(cause))?;
        }
        let read = io::Read::read(&mut self.reader.rest(), buffer)?;
        self.reader.skip(read);
        Ok(read)
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        // A forked child may have a copy.
        self.connection.shutdown();
    }
}

/// A thread's report about its node.
enum QueryReport<T, P> {
    Part(P),
    End(Result<T, Cause>),
}

/// Reports a part of an answer. False: nothing waits for the answer.
pub(crate) type SendPart<'a, P> = &'a mut dyn FnMut(P) -> bool;

impl Redlock {
    /// Asks nodes over new connections, in parallel. `timeouts`: the time for all questions to a node, in node
    /// timeouts.
    pub(crate) fn query<T: Send + 'static>(
        &self,
        places: &[Place],
        timeouts: u32,
        ask: impl Fn(&mut Query) -> Result<T, Cause> + Send + Sync + 'static,
    ) -> Vec<Result<T, Cause>> {
        let ask = move |query: &mut Query, _: SendPart<'_, ()>| ask(query);
        let nodes = places.iter().cloned().enumerate();
        let answers = self.query_in_parts(nodes, timeouts, ask, |_, ()| {});
        answers.into_values().collect()
    }

    /// The places at which the nodes have this resource.
    pub(crate) fn places_of(&self, resource: &[u8]) -> Vec<Place> {
        let slot = slots::slot(&self.options().prefix.key(resource));
        let places = self.places().into_iter();
        places.map(|place| place.of_slot(slot)).collect()
    }

    /// Like [`query`](Redlock::query), but the answers arrive in parts: in a Redis Cluster from one master after the
    /// other. The time is for each part, if the query renews it.
    ///
    /// Waits that cannot be bounded (for a name to be resolved, for credentials) are left to their thread, and until
    /// that ends no other thread is started for the node: they would pile up. (A forked child has no record of them.)
    pub(crate) fn query_in_parts<T: Send + 'static, P: Send + 'static>(
        &self,
        nodes: impl Iterator<Item = (usize, Place)>,
        timeouts: u32,
        ask: impl Fn(&mut Query, SendPart<'_, P>) -> Result<T, Cause> + Send + Sync + 'static,
        part: impl FnMut(usize, P),
    ) -> BTreeMap<usize, Result<T, Cause>> {
        let (connect, node_timeout) = self.timeouts();
        let time = (node_timeout.saturating_mul(timeouts), timeouts);
        let mut threads = Threads {
            abandoned: self.abandoned_threads(),
            connect,
            patience: connect.saturating_add(time.0).saturating_add(GRACE),
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        let (ask, (sender, reports)) = (Arc::new(ask), channel());
        for (node, place) in nodes {
            let ask = ask.clone();
            threads.start(node, sender.clone(), move |send| {
                let masters = place.masters(connect);
                let mut away = 0;
                let answers = masters.iter().map(|master| {
                    if away >= MOST_AWAY {
                        return Err(Cause::NotAsked);
                    }
                    let query = Query::open(master, connect, time);
                    let answer = query.and_then(|mut query| ask(&mut query, send));
                    away += usize::from(answer.is_err());
                    answer
                });
                let last = answers.reduce(|one, other| one.and(other));
                last.unwrap_or(Err(Cause::NotAsked))
            });
        }
        threads.collect(&reports, part);
        threads.answers
    }
}

/// The threads that ask, one for each node.
struct Threads<'a, T> {
    abandoned: Option<&'a AbandonedThreads>,
    connect: Duration,
    /// How long to wait for a thread that reports nothing.
    patience: Duration,
    /// When each thread last reported, and what lives as long as the thread does.
    waiting: BTreeMap<usize, (Instant, Weak<()>)>,
    answers: BTreeMap<usize, Result<T, Cause>>,
}

impl<T: Send + 'static> Threads<'_, T> {
    fn start<P: Send + 'static>(
        &mut self,
        node: usize,
        sender: Sender<(usize, QueryReport<T, P>)>,
        ask: impl FnOnce(SendPart<'_, P>) -> Result<T, Cause> + Send + 'static,
    ) {
        if self.abandoned.is_some_and(|threads| threads.has(node)) {
            let text = "the query before this one has not ended: it waits for a name to be resolved, or for credentials";
            let cause = Cause::Connect(text.into());
            self.answers.insert(node, Err(cause));
            return;
        }
        let lives = Arc::new(());
        let thread = Arc::downgrade(&lives);
        let run = move || {
            let _lives = lives;
            let answer = ask(&mut |part| sender.send((node, QueryReport::Part(part))).is_ok());
            // Nothing may be waiting for the answer.
            let _ = sender.send((node, QueryReport::End(answer)));
        };
        let builder = std::thread::Builder::new().name(format!("redlock-query-{node}"));
        match builder.spawn(run) {
            Ok(_) => drop(self.waiting.insert(node, (clock::instant(), thread))),
            Err(error) => {
                let cause = Cause::NoThread(error.to_string());
                self.answers.insert(node, Err(cause));
            }
        }
    }

    fn collect<P>(
        &mut self,
        reports: &Receiver<(usize, QueryReport<T, P>)>,
        mut part: impl FnMut(usize, P),
    ) {
        while let Some(longest) = self.waiting.values().map(|(last, _)| *last).min() {
            let silent = clock::instant().saturating_duration_since(longest);
            let left = self.patience.saturating_sub(silent);
            let Ok((node, report)) = reports.recv_timeout(left) else {
                self.abandon();
                continue;
            };
            let Some((last, _)) = self.waiting.get_mut(&node) else {
                continue;
            };
            *last = clock::instant();
            match report {
                QueryReport::Part(one) => part(node, one),
                QueryReport::End(answer) => {
                    self.waiting.remove(&node);
                    self.answers.insert(node, answer);
                }
            }
        }
    }

    /// Stops waiting for threads that have reported nothing for too long.
    fn abandon(&mut self) {
        let now = clock::instant();
        let is_late = |last: Instant| now.saturating_duration_since(last) >= self.patience;
        for (node, (last, thread)) in std::mem::take(&mut self.waiting) {
            if !is_late(last) {
                self.waiting.insert(node, (last, thread));
                continue;
            }
            if let Some(abandoned) = self.abandoned {
                abandoned.add(node, thread);
            }
            let cause = Cause::NotConnected(self.connect, self.connect);
            self.answers.insert(node, Err(cause));
        }
    }
}
