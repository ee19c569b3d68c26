//! The questions to the servers that name a master: which are asked, by which thread, and which answer counts for whom
//! (rule R43).
//!
//! A caller asks many servers at once, and shares the questions that others have begun a short time before: however many
//! callers there are, each server is asked seldom. This file decides what is asked; it does not ask.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::protocol::discovery::found_master::DirectoryTimes;
use crate::protocol::mutants::{Mutant, mutant};

/// The maximum number of threads that ask one server at the same time. Only a thread that hangs keeps its place.
const MAX_QUESTIONS: usize = 4;
/// How long a server is remembered that is no longer asked.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The questions to servers `S` that are under way, the last answers `T`, and the callers that wait for answers.
#[derive(Debug)]
pub(crate) struct DirectoryQuestions<S, T> {
    times: DirectoryTimes,
    servers: BTreeMap<S, AskedServer<T>>,
    calls: BTreeMap<u64, QuestionCall<S, T>>,
    /// The last number that was given to a question or a call.
    number: u64,
}

/// One of the servers.
#[derive(Debug)]
struct AskedServer<T> {
    under_way: Vec<UnderWay>,
    /// The last answer: when the server was asked, when it answered, and what.
    heard: Option<(Instant, Instant, T)>,
    /// Whether the question that ended last could not reach the server.
    silent: bool,
    /// When it was asked last.
    asked: Instant,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    asked: Instant,
    lasts: Duration,
    /// When its thread had everything that it needs, and turned to the server.
    begun: Option<Instant>,
}

/// A question to ask now, in a separate thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryQuestion<S> {
    number: u64,
    pub(crate) server: S,
    pub(crate) asked: Instant,
    /// A later answer is too old to be used.
    pub(crate) lasts: Duration,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuestionEnd {
    Answered,
    /// The server was asked, and could not be reached.
    Silent,
    /// The server was not asked: there was no thread or no time for it, or its address is not known.
    NotAsked,
}

/// How a caller's questions are asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuestionTerms {
    pub(crate) now: Instant,
    /// How long the caller waits.
    pub(crate) time: Duration,
    /// How long a question lasts that is begun for it.
    pub(crate) lasts: Duration,
    /// If this many questions are under way, none is begun.
    pub(crate) most: usize,
}

/// A caller that waits for answers.
#[derive(Debug)]
struct QuestionCall<S, T> {
    begun: Instant,
    time: Duration,
    servers: Vec<(S, QuestionState<T>)>,
    /// Whether a question of it has ended since it looked last.
    has_news: bool,
}

#[derive(Clone, Debug)]
enum QuestionState<T> {
    /// For the question of this number, which began then.
    For(u64, Instant),
    Heard(Instant, T),
    NotAsked,
}

/// One server's answer, as a caller receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReceivedAnswer<'a, T> {
    /// The answer to a question of that time.
    Answer(&'a T, Instant),
    /// The server was asked then, has not answered, and did not before.
    Silence(Instant),
    NotAsked,
    /// Nothing yet.
    Pending,
}

impl<S: Ord + Clone, T: Clone> DirectoryQuestions<S, T> {
    pub(crate) fn new(times: DirectoryTimes) -> DirectoryQuestions<S, T> {
        DirectoryQuestions {
            times,
            servers: BTreeMap::new(),
            calls: BTreeMap::new(),
            number: 0,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Begins a call: returns its number, and the questions to ask.
    pub(crate) fn begin(
        &mut self,
        servers: impl IntoIterator<Item = S>,
        terms: QuestionTerms,
    ) -> (u64, Vec<DirectoryQuestion<S>>) {
        self.forget(terms.now);
        let mut questions = Vec::new();
        let mut waits = Vec::new();
        for server in servers {
            let one = self.ask(&server, terms, &mut questions);
            waits.push((server, one));
        }
        let number = self.next_number();
        let call = QuestionCall {
            begun: terms.now,
            time: terms.time,
            servers: waits,
            has_news: true,
        };
        self.calls.insert(number, call);
        (number, questions)
    }

    /// Joins a question to the server, or begins one.
    fn ask(
        &mut self,
        server: &S,
        terms: QuestionTerms,
        questions: &mut Vec<DirectoryQuestion<S>>,
    ) -> QuestionState<T> {
        let QuestionTerms { now, lasts, .. } = terms;
        let all = self.servers.values();
        let under_way: usize = all.map(|server| server.under_way.len()).sum();
        let number = self.next_number();
        let new = || AskedServer {
            under_way: Vec::new(),
            heard: None,
            silent: false,
            asked: now,
        };
        let asked = self.servers.entry(server.clone()).or_insert_with(new);
        // A question that soon ends may end before a server that is slow has answered.
        let fresh = self.times.fresh;
        let joins = |one: &&UnderWay| now < one.asked + fresh && 2 * one.lasts >= lasts;
        let latest = asked.under_way.iter().filter(joins);
        if let Some(one) = latest.max_by_key(|one| one.asked) {
            let since = match mutant(Mutant::JoinedIsNew) {
                true => now,
                false => one.asked,
            };
            return QuestionState::For(one.number, since);
        }
        if asked.under_way.len() >= MAX_QUESTIONS || under_way >= terms.most {
            return QuestionState::NotAsked;
        }
        asked.asked = now;
        asked.under_way.push(UnderWay {
            number,
            asked: now,
            lasts,
            begun: None,
        });
        questions.push(DirectoryQuestion {
            number,
            server: server.clone(),
            asked: now,
            lasts,
        });
        QuestionState::For(number, now)
    }

    /// Notes that a question's thread turns to the server now, and returns whether it may: one that begins late does not
    /// wait long enough to call the server silent.
    pub(crate) fn turns_to(&mut self, question: &DirectoryQuestion<S>, now: Instant) -> bool {
        let in_time = now <= question.asked + question.lasts / 2;
        if let Some(server) = self.servers.get_mut(&question.server) {
            let mut all = server.under_way.iter_mut();
            if let Some(one) = all.find(|one| one.number == question.number) {
                one.begun = Some(now);
            }
        }
        in_time || mutant(Mutant::LateIsAsked)
    }

    /// Ends a question. The answer counts from its question on, for all callers that wait for it.
    pub(crate) fn end(
        &mut self,
        question: &DirectoryQuestion<S>,
        answer: &T,
        ending: QuestionEnd,
        now: Instant,
    ) {
        let DirectoryQuestion {
            number, ref server, ..
        } = *question;
        let Some(server) = self.servers.get_mut(server) else {
            return;
        };
        let is_it = |one: &mut UnderWay| one.number == number;
        let Some(one) = server.under_way.extract_if(.., is_it).next() else {
            return;
        };
        match ending {
            QuestionEnd::Answered => {
                server.silent = false;
                let is_newer = |(asked, ..): &(Instant, _, _)| one.asked >= *asked;
                if server.heard.as_ref().is_none_or(is_newer) {
                    server.heard = Some((one.asked, now, answer.clone()));
                }
            }
            QuestionEnd::Silent => server.silent = true,
            QuestionEnd::NotAsked => {}
        }
        for call in self.calls.values_mut() {
            for (_, waits) in &mut call.servers {
                let asked = match *waits {
                    QuestionState::For(which, _) if which != number => continue,
                    QuestionState::For(..) if mutant(Mutant::AnswerIsNew) => now,
                    QuestionState::For(_, asked) => asked,
                    QuestionState::Heard(..) | QuestionState::NotAsked => continue,
                };
                *waits = QuestionState::Heard(asked, answer.clone());
                call.has_news = true;
            }
        }
    }

    /// Whether there is something new for a call, or its time is over. Where thousands wait, few of them have news.
    pub(crate) fn has_news(&mut self, call: u64, now: Instant) -> bool {
        self.calls
            .get_mut(&call)
            .is_none_or(|call| std::mem::take(&mut call.has_news) || now >= call.begun + call.time)
    }

    /// The answers that a call has received, server by server; and whether its time is over.
    pub(crate) fn heard(&self, call: u64, now: Instant) -> (Vec<ReceivedAnswer<'_, T>>, bool) {
        let Some(call) = self.calls.get(&call) else {
            return (Vec::new(), true);
        };
        let is_over = now >= call.begun + call.time;
        let heard = call.servers.iter().map(|(server, waits)| match waits {
            QuestionState::Heard(asked, answer) => ReceivedAnswer::Answer(answer, *asked),
            QuestionState::NotAsked => ReceivedAnswer::NotAsked,
            QuestionState::For(..) if !is_over => ReceivedAnswer::Pending,
            QuestionState::For(number, asked) => {
                self.unanswered(server, (*number, *asked), call, now)
            }
        });
        (heard.collect(), is_over)
    }

    /// The word that counts of a server that has not answered in time: an answer of a short time before, if it is slow; or that it
    /// is silent, if it was silent before. Otherwise it is slow, and may have chosen any master.
    fn unanswered(
        &self,
        server: &S,
        (number, asked): (u64, Instant),
        call: &QuestionCall<S, T>,
        now: Instant,
    ) -> ReceivedAnswer<'_, T> {
        let Some(server) = self.servers.get(server) else {
            return ReceivedAnswer::Pending;
        };
        let lately = |heard: &&(Instant, Instant, T)| heard.1 + self.times.lately >= call.begun;
        if let Some((asked, _, answer)) = server.heard.as_ref().filter(lately) {
            return ReceivedAnswer::Answer(answer, *asked);
        }
        let question = server.under_way.iter().find(|one| one.number == number);
        let begun = question.and_then(|question| question.begun);
        // The thread may have turned to it just now.
        let has_waited = begun.is_some_and(|begun| now >= begun + call.time / 2);
        if (server.silent || mutant(Mutant::SlowIsSilent))
            && (has_waited || mutant(Mutant::LateIsAsked))
        {
            return ReceivedAnswer::Silence(asked);
        }
        ReceivedAnswer::Pending
    }

    /// Ends a call.
    pub(crate) fn leave(&mut self, call: u64) {
        self.calls.remove(&call);
    }

    /// Forgets answers that no caller can use, and servers that are no longer asked.
    fn forget(&mut self, now: Instant) {
        let begun = self.calls.values().map(|call| call.begun);
        let earliest = begun.min().unwrap_or(now);
        for server in self.servers.values_mut() {
            let is_old = |heard: &mut (Instant, Instant, T)| heard.1 + self.times.lately < earliest;
            server.heard.take_if(is_old);
        }
        self.servers
            .retain(|_, one| !one.under_way.is_empty() || now < one.asked + REMEMBERED);
    }
}

#[cfg(test)]
mod tests;
