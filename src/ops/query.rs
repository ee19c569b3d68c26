//! A separate connection to each node, for questions beside the locks: it disturbs no lock, and sees what the locks
//! see.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::errors::cause::{Cause, Limit};
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::errors::redirection::{Hint, Redirection};
use crate::errors::secret::Secret;
use crate::errors::server_error::{concerns_name, refuses_scripts};
use crate::lock::redlock::Redlock;
use crate::net::discovery::ask_each::{AskTerms, SendPart, ask_each};
use crate::net::discovery::place::Place;
use crate::net::socket::conversation::Conversation;
use crate::net::socket::set_up::Purpose;
use crate::protocol::cluster::redirect::{QuestionHop, RedirectedQuestion};
use crate::protocol::commands::node_id::imports_nothing;
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{self, LOOKS, Script};
use crate::protocol::commands::slots;
use crate::protocol::node::node::Timeouts;
use crate::values::arithmetic::{Question, Tally, spare};
use crate::values::clock::{self, Point};
use crate::values::node_set::NodeSet;

/// Grace period: a thread that has not reported its own timeout by then is abandoned.
const GRACE: Duration = Duration::from_millis(50);

/// If this many masters of a Redis Cluster, one after the other, do not answer, the rest is not asked.
pub(crate) const MOST_AWAY: usize = 16;

pub(crate) struct Query {
    conversation: Conversation,
    /// The time for all answers.
    time: Duration,
    /// Why reading or writing failed, if only an I/O error could be returned.
    failed: Option<Cause>,
    /// Whether the scripts of looks are called by their hashes: the server has loaded them, and does not take their texts.
    by_hash: bool,
}

impl Query {
    /// Connects within `timeout`; from then on there is `time` for all questions.
    pub(crate) fn open(
        place: &Place,
        timeout: Duration,
        (time, timeouts): (Duration, u32),
    ) -> Result<Query, Cause> {
        let (connection, properties) = place.open(timeout, Purpose::Looks)?;
        let (opened, until) = ((connection, properties.secret), clock::instant() + time);
        let late = Cause::NoAnswer(time, Limit::Node(timeouts));
        Ok(Query {
            conversation: Conversation::new(opened, until, late),
            time,
            failed: None,
            by_hash: false,
        })
    }

    /// The secrets that no text of the node may repeat.
    pub(crate) fn secret(&self) -> &Secret {
        self.conversation.reader.secret()
    }

    /// The address that the query is connected to; unknown over Unix sockets.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.conversation.connection.peer_ip()
    }

    /// Begins the time for answers anew.
    pub(crate) fn renew(&mut self) {
        self.conversation.until = clock::instant() + self.time;
    }

    /// Sends packed commands, `N` of them.
    pub(crate) fn ask<const N: usize>(&mut self, commands: &[u8]) -> Result<[Reply; N], Cause> {
        let replies = self.conversation.ask(commands, N)?;
        Ok(replies.try_into().unwrap_or([const { Reply::Other }; N]))
    }

    /// Sends these commands. `asking`: the slot of their key is migrating to the server.
    pub(crate) fn ask_each<const N: usize>(
        &mut self,
        commands: [&[&[u8]]; N],
        asking: bool,
    ) -> Result<[Reply; N], Cause> {
        let mut bytes = Vec::new();
        if !asking {
            for command in commands {
                resp::pack(&mut bytes, &[command], None);
            }
            return self.ask(&bytes);
        }
        let mut replies = [const { Reply::Other }; N];
        for (reply, command) in replies.iter_mut().zip(commands) {
            bytes.clear();
            resp::pack(&mut bytes, &[&[b"ASKING"]], None);
            resp::pack(&mut bytes, &[command], None);
            let [asked, answered] = self.ask(&bytes)?;
            if imports_nothing(&asked) {
                return Err(Cause::OtherServer);
            }
            *reply = answered;
        }
        Ok(replies)
    }

    /// The first arguments of a call of this script.
    pub(crate) fn call(&self, script: &Script) -> [&'static [u8]; 2] {
        match self.by_hash {
            true => [b"EVALSHA", script.hash],
            false => [b"EVAL", script.text],
        }
    }

    /// Whether a script that was refused with this error can be called in another way, which is then how the query calls them.
    /// Only a server that does not take texts is asked that.
    pub(crate) fn calls_otherwise(&mut self, error: &str) -> Result<bool, Cause> {
        if self.by_hash || !refuses_scripts(error) || concerns_name(error) {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        scripts::load(&LOOKS, &mut bytes);
        let replies = self.ask::<{ LOOKS.len() }>(&bytes)?;
        self.by_hash = scripts::are_loaded(&LOOKS, &replies).is_ok();
        Ok(self.by_hash)
    }

    /// Calls each of these scripts for its keys. The error of one that is refused in both ways is the last one's.
    pub(crate) fn ask_scripts<const N: usize>(
        &mut self,
        calls: [(&Script, &[&[u8]]); N],
        asking: bool,
    ) -> Result<[Reply; N], Cause> {
        let once = |query: &mut Query| {
            let commands = calls.map(|(script, keys)| {
                let count = keys.len().to_string().into_bytes();
                (query.call(script), count, keys)
            });
            let commands = commands.each_ref().map(|(call, count, keys)| {
                let call = call.iter().copied().chain([&count[..]]);
                call.chain(keys.iter().copied()).collect::<Vec<&[u8]>>()
            });
            query.ask_each(commands.each_ref().map(|command| &command[..]), asking)
        };
        let replies = once(self)?;
        match replies.first() {
            Some(Reply::Error(text)) if self.calls_otherwise(text)? => once(self),
            _ => Ok(replies),
        }
    }

    /// Milliseconds that the node's clock is ahead of ours, as far as that can be measured from here. `None`: it may not be
    /// asked for.
    pub(crate) fn clock_offset(&mut self) -> Result<Option<i64>, Cause> {
        let sent = Point::now();
        let [reply] = self.ask_each([&[b"TIME"]], false)?;
        let took = clock::instant().saturating_duration_since(sent.mono);
        let theirs = reply.time_of_day();
        Ok(theirs.map(|theirs| ahead(theirs, sent.wall + took / 2)))
    }

    /// Sends packed commands, whose replies are then read from this query.
    pub(crate) fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        let sent = self.conversation.send(commands);
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
}

fn ahead(theirs: Duration, ours: SystemTime) -> i64 {
    let ours = ours.duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    ms(theirs).saturating_sub(ms(ours))
}

/// The bytes as they arrive, for replies of any size and form.
impl io::Read for Query {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.conversation.reader.is_empty() {
            let filled = self.conversation.fill();
            filled.map_err(|cause| self.io_error(cause))?;
        }
        let reader = &mut self.conversation.reader;
        let read = io::Read::read(&mut reader.rest(), buffer)?;
        reader.skip(read);
        Ok(read)
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        // A forked child may have a copy.
        self.conversation.connection.shutdown();
    }
}

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

    /// Asks all nodes about keys in the slot of this one, each at the server that has them (rule R45). `ask` is given
    /// whether the slot is migrating to the server.
    pub(crate) fn query_key<T: Send + 'static>(
        &self,
        key: &[u8],
        ask: impl Fn(&mut Query, bool) -> Result<T, Cause> + Send + Sync + 'static,
    ) -> Vec<(Place, Result<T, Cause>)> {
        let (slot, ask) = (slots::slot(key), Arc::new(ask));
        let ask_at = |places: &[Place], asking| {
            let ask = ask.clone();
            self.query(places, 1, move |query| ask(query, asking))
        };
        let given = self.places();
        let places: Vec<Place> = given.iter().map(|place| place.of_slot(slot)).collect();
        let answers = ask_at(&places, false);
        let follow_redirect = |((given, place), answer): ((&Place, Place), _)| {
            if given.cluster().is_none() {
                return (place, answer);
            }
            let answer = self.follow_redirect(given, (&place, slot), answer, |place, asking| {
                let mut answers = ask_at(std::slice::from_ref(place), asking);
                answers.pop().unwrap_or(Err(Cause::NotAsked))
            });
            (place, answer)
        };
        let all = given.iter().zip(places).zip(answers);
        all.map(follow_redirect).collect()
    }

    /// The answer about keys of a Cluster, from the server that has them. `answer`: from where the map had their slot.
    fn follow_redirect<T>(
        &self,
        cluster: &Place,
        (place, slot): (&Place, u16),
        mut answer: Result<T, Cause>,
        ask: impl Fn(&Place, bool) -> Result<T, Cause>,
    ) -> Result<T, Cause> {
        let until = clock::instant() + 2 * self.timeouts().node;
        let mut question = RedirectedQuestion::new(slot, until);
        let mut asked = place.clone();
        while let Err(Cause::Refused(text)) = &answer
            && let Some(redirection) = Redirection::of(text, &asked.shown())
            && let Some((hop, pause)) = question.next(&redirection, clock::instant())
        {
            if let Hint::Moved(_, to) = &redirection.hint {
                self.has_moved(slot, cluster.slot_moved(slot, &redirection.from, to));
            }
            let (to, asking) = match hop {
                QuestionHop::Owner(to) => (to, false),
                QuestionHop::Importer(to) => (Some(to), true),
            };
            asked = match to.map(|to| place.server(to)) {
                Some(Some(server)) => server,
                Some(None) if asking => break,
                Some(None) | None => place.clone(),
            };
            thread::sleep(pause);
            answer = ask(&asked, asking);
        }
        answer
    }

    /// Like [`query`](Redlock::query), but the answers arrive in parts: in a Redis Cluster from one master after the
    /// other. The time is for each part, if the query renews it.
    ///
    /// Waits that cannot be bounded (for a name to be resolved, for credentials) are left to their thread, and until
    /// that ends no other thread is started for the server. (A forked child has no record of them.)
    pub(crate) fn query_in_parts<T: Send + 'static, P: Send + 'static>(
        &self,
        nodes: impl Iterator<Item = (usize, Place)>,
        timeouts: u32,
        ask: impl Fn(&mut Query, SendPart<'_, P>) -> Result<T, Cause> + Send + Sync + 'static,
        part: impl FnMut(usize, P),
    ) -> BTreeMap<usize, Result<T, Cause>> {
        let Timeouts {
            connect,
            node: node_timeout,
        } = self.timeouts();
        let time = (node_timeout.saturating_mul(timeouts), timeouts);
        let nodes: Vec<(usize, Place)> = nodes.collect();
        let longest = nodes.iter().map(|(_, place)| place.looks_within(connect));
        let longest = longest.max().unwrap_or(connect);
        let terms = AskTerms {
            name: "redlock-query",
            patience: longest.saturating_add(time.0).saturating_add(GRACE),
            silence: Cause::NotConnected(connect, connect),
            abandoned: self.abandoned_threads().map(|threads| {
                let servers = nodes
                    .iter()
                    .map(|(node, place)| (*node, place.server_asked()));
                (threads, servers.collect())
            }),
        };
        let ask = Arc::new(ask);
        let asks = nodes.into_iter().map(|(node, place)| {
            let ask = ask.clone();
            let ask_masters = move |send: SendPart<'_, P>| {
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
            };
            (node, ask_masters)
        });
        ask_each(asks, terms, part)
    }
}

/// The errors of a look at so many nodes, of which the others have answered.
pub(crate) fn look_errors(errors: Vec<NodeError>, nodes: usize) -> NodeErrors {
    let tally = Tally {
        granted: NodeSet::first(nodes.saturating_sub(errors.len())),
        ..Tally::default()
    };
    let for_good = errors.iter().filter(|error| error.cause.is_final()).count() > spare(nodes);
    let errors = NodeErrors::new(errors, None).with_votes(Question::Answer, tally, nodes);
    match for_good {
        true => errors.for_good(),
        false => errors,
    }
}
