//! The questions to the servers that name a master: which are asked, by which thread, and which answer counts for whom
//! (rule R43).
//!
//! A caller asks many servers at once, and shares the questions that others have begun a short time before: however many
//! callers there are, each server is asked seldom. This file decides what is asked; it does not ask.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::directory::Times;

/// The maximum number of threads that ask one server at the same time. Only a thread that hangs keeps its place.
const MAX_QUESTIONS: usize = 4;
/// How long a server is remembered that is no longer asked.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The questions to servers `S` that are under way, the last answers `T`, and the callers that wait for answers.
#[derive(Debug)]
pub(crate) struct Questions<S, T> {
    times: Times,
    servers: BTreeMap<S, Server<T>>,
    calls: BTreeMap<u64, Call<S, T>>,
    /// The last number that was given to a question or a call.
    number: u64,
}

/// One of the servers.
#[derive(Debug)]
struct Server<T> {
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
pub(crate) struct Question<S> {
    number: u64,
    pub(crate) server: S,
    pub(crate) asked: Instant,
    /// A later answer is too old to be used.
    pub(crate) lasts: Duration,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Answered,
    /// The server was asked, and could not be reached.
    Silent,
    /// The server was not asked: there was no thread or no time for it, or its address is not known.
    NotAsked,
}

/// How a caller's questions are asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
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
struct Call<S, T> {
    begun: Instant,
    time: Duration,
    servers: Vec<(S, Waits<T>)>,
    /// Whether it has heard something since it looked last.
    has_news: bool,
}

#[derive(Clone, Debug)]
enum Waits<T> {
    /// For the question of this number, which began then.
    For(u64, Instant),
    Heard(Instant, T),
    NotAsked,
}

/// One server's answer, as a caller has heard it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a, T> {
    /// The answer to a question of that time.
    Answer(&'a T, Instant),
    /// The server was asked then, has not answered, and did not before.
    Silence(Instant),
    NotAsked,
    /// Nothing yet.
    Pending,
}

impl<S: Ord + Clone, T: Clone> Questions<S, T> {
    pub(crate) fn new(times: Times) -> Questions<S, T> {
        Questions {
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
        terms: Terms,
    ) -> (u64, Vec<Question<S>>) {
        self.forget(terms.now);
        let mut questions = Vec::new();
        let mut waits = Vec::new();
        for server in servers {
            let one = self.ask(&server, terms, &mut questions);
            waits.push((server, one));
        }
        let number = self.next_number();
        let call = Call {
            begun: terms.now,
            time: terms.time,
            servers: waits,
            has_news: true,
        };
        self.calls.insert(number, call);
        (number, questions)
    }

    /// Joins a question to the server, or begins one.
    fn ask(&mut self, server: &S, terms: Terms, questions: &mut Vec<Question<S>>) -> Waits<T> {
        let Terms { now, lasts, .. } = terms;
        let all = self.servers.values();
        let under_way: usize = all.map(|server| server.under_way.len()).sum();
        let number = self.next_number();
        let new = || Server {
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
            return Waits::For(one.number, since);
        }
        if asked.under_way.len() >= MAX_QUESTIONS || under_way >= terms.most {
            return Waits::NotAsked;
        }
        asked.asked = now;
        asked.under_way.push(UnderWay {
            number,
            asked: now,
            lasts,
            begun: None,
        });
        questions.push(Question {
            number,
            server: server.clone(),
            asked: now,
            lasts,
        });
        Waits::For(number, now)
    }

    /// Notes that a question's thread turns to the server now, and returns whether it may: one that begins late does not
    /// wait long enough to call the server silent.
    pub(crate) fn turns_to(&mut self, question: &Question<S>, now: Instant) -> bool {
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
    pub(crate) fn end(&mut self, question: &Question<S>, answer: &T, ending: Ending, now: Instant) {
        let Question {
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
            Ending::Answered => {
                server.silent = false;
                let is_newer = |(asked, ..): &(Instant, _, _)| one.asked >= *asked;
                if server.heard.as_ref().is_none_or(is_newer) {
                    server.heard = Some((one.asked, now, answer.clone()));
                }
            }
            Ending::Silent => server.silent = true,
            Ending::NotAsked => {}
        }
        for call in self.calls.values_mut() {
            for (_, waits) in &mut call.servers {
                let asked = match *waits {
                    Waits::For(which, _) if which != number => continue,
                    Waits::For(..) if mutant(Mutant::AnswerIsNew) => now,
                    Waits::For(_, asked) => asked,
                    Waits::Heard(..) | Waits::NotAsked => continue,
                };
                *waits = Waits::Heard(asked, answer.clone());
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

    /// The answers that a call has heard, server by server; and whether its time is over.
    pub(crate) fn heard(&self, call: u64, now: Instant) -> (Vec<Heard<'_, T>>, bool) {
        let Some(call) = self.calls.get(&call) else {
            return (Vec::new(), true);
        };
        let is_over = now >= call.begun + call.time;
        let heard = call.servers.iter().map(|(server, waits)| match waits {
            Waits::Heard(asked, answer) => Heard::Answer(answer, *asked),
            Waits::NotAsked => Heard::NotAsked,
            Waits::For(..) if !is_over => Heard::Pending,
            Waits::For(number, asked) => self.unanswered(server, (*number, *asked), call, now),
        });
        (heard.collect(), is_over)
    }

    /// The word that counts of a server that has not answered in time: an answer of a short time before, if it is slow; or that it
    /// is silent, if it was silent before. Otherwise it is slow, and may have chosen any master.
    fn unanswered(
        &self,
        server: &S,
        (number, asked): (u64, Instant),
        call: &Call<S, T>,
        now: Instant,
    ) -> Heard<'_, T> {
        let Some(server) = self.servers.get(server) else {
            return Heard::Pending;
        };
        let lately = |heard: &&(Instant, Instant, T)| heard.1 + self.times.lately >= call.begun;
        if let Some((asked, _, answer)) = server.heard.as_ref().filter(lately) {
            return Heard::Answer(answer, *asked);
        }
        let question = server.under_way.iter().find(|one| one.number == number);
        let begun = question.and_then(|question| question.begun);
        // The thread may have turned to it just now.
        let has_waited = begun.is_some_and(|begun| now >= begun + call.time / 2);
        if (server.silent || mutant(Mutant::SlowIsSilent))
            && (has_waited || mutant(Mutant::LateIsAsked))
        {
            return Heard::Silence(asked);
        }
        Heard::Pending
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
mod tests {
    use super::*;
    use crate::protocol::mutants::set_mutant;

    const MS: Duration = Duration::from_millis(1);
    const TIME: Duration = Duration::from_millis(850);
    const LASTS: Duration = Duration::from_secs(2);

    struct Asked {
        questions: Questions<char, u32>,
        zero: Instant,
        /// All that were begun.
        all: Vec<Question<char>>,
    }

    impl Asked {
        fn new() -> Asked {
            Asked {
                questions: Questions::new(Times::REAL),
                zero: crate::values::clock::instant(),
                all: Vec::new(),
            }
        }

        fn at(&self, at: u32) -> Instant {
            self.zero + at * MS
        }

        /// Asks the server. Returns the call, and how many questions it has begun.
        fn ask_for(&mut self, at: u32, lasts: Duration) -> (u64, usize) {
            let terms = Terms {
                now: self.at(at),
                time: TIME,
                lasts,
                most: usize::MAX,
            };
            let (call, new) = self.questions.begin(['s'], terms);
            let count = new.len();
            self.all.extend(new);
            (call, count)
        }

        fn ask(&mut self, at: u32) -> (u64, usize) {
            self.ask_for(at, LASTS)
        }

        fn end(&mut self, question: usize, answer: u32, ending: Ending, at: u32) {
            let now = self.at(at);
            self.questions
                .end(&self.all[question].clone(), &answer, ending, now);
        }

        fn turns_to(&mut self, question: usize, at: u32) -> bool {
            let now = self.at(at);
            self.questions.turns_to(&self.all[question].clone(), now)
        }

        fn heard(&self, call: u64, at: u32) -> Heard<'_, u32> {
            let (mut heard, _) = self.questions.heard(call, self.at(at));
            heard.remove(0)
        }
    }

    #[test]
    fn a_server_is_asked_by_one_thread_for_all_that_come_while_its_question_is_fresh() {
        let mut asked = Asked::new();
        let mut calls = Vec::new();
        for (at, begins) in [
            (0, 1),
            (699, 0),
            (700, 1),
            (1399, 0),
            (1400, 1),
            (2100, 1),
            (2800, 0),
        ] {
            let (call, begun) = asked.ask(at);
            calls.push(call);
            assert_eq!(begun, begins, "{at}");
        }
        assert_eq!(asked.heard(calls[6], 2800), Heard::NotAsked, "too many");
        for (call, news) in [(2, true), (2, false), (3, true)] {
            assert_eq!(asked.questions.has_news(calls[call], asked.at(1399)), news);
        }
        asked.end(1, 7, Ending::Answered, 2800);
        for (call, news) in [(2, true), (2, true), (4, true), (6, true), (6, false)] {
            let now = asked.at(if call == 2 { 2800 } else { 2101 });
            assert_eq!(asked.questions.has_news(calls[call], now), news, "{call}");
        }
        let at = asked.at(700);
        assert_eq!(asked.heard(calls[2], 2800), Heard::Answer(&7, at));
        assert_eq!(asked.heard(calls[3], 2800), Heard::Answer(&7, at));
        set_mutant(Some(Mutant::JoinedIsNew));
        let (call, begun) = asked.ask(2799);
        set_mutant(None);
        asked.end(3, 8, Ending::Answered, 2800);
        assert_eq!(begun, 0);
        let at = asked.at(2100);
        assert_ne!(asked.heard(call, 2800), Heard::Answer(&8, at), "a mutant");
        assert_eq!(asked.ask(2800).1, 1, "there is room");
    }

    /// A server may be silent for a thread with little time, and answer one that waits for longer.
    #[test]
    fn a_question_that_soon_ends_is_not_joined_by_a_caller_with_much_time() {
        let mut asked = Asked::new();
        assert_eq!(asked.ask_for(0, 400 * MS).1, 1);
        assert_eq!(asked.ask_for(1, 800 * MS).1, 0);
        assert_eq!(asked.ask_for(2, 801 * MS).1, 1);
    }

    #[test]
    fn no_more_questions_are_under_way_than_there_may_be() {
        let mut questions: Questions<u32, ()> = Questions::new(Times::REAL);
        let terms = Terms {
            now: crate::values::clock::instant(),
            time: TIME,
            lasts: LASTS,
            most: 3,
        };
        assert_eq!(questions.begin(0..2, terms).1.len(), 2);
        let (call, new) = questions.begin(1..5, terms);
        assert_eq!(new.len(), 1, "the first is joined, and one begun");
        let (heard, is_over) = questions.heard(call, terms.now);
        assert_eq!(heard[2..], [Heard::NotAsked, Heard::NotAsked]);
        assert!(!is_over);
    }

    #[test]
    fn a_server_that_has_answered_lately_is_slow_and_not_silent() {
        let mut asked = Asked::new();
        asked.ask(0);
        asked.end(0, 1, Ending::Answered, 1000);
        for (at, lately) in [(1000, true), (1850, true), (1851, false)] {
            let (call, _) = asked.ask(at);
            let last = asked.all.len() - 1;
            assert!(asked.turns_to(last, at));
            assert_eq!(asked.heard(call, at + 849), Heard::Pending);
            let expected = match lately {
                true => Heard::Answer(&1, asked.zero),
                false => Heard::Pending,
            };
            assert_eq!(asked.heard(call, at + 850), expected, "{at}");
            asked.end(last, 0, Ending::NotAsked, at + 850);
            asked.questions.leave(call);
        }
    }

    #[test]
    fn a_server_that_was_silent_is_silent_until_it_answers_again() {
        let mut asked = Asked::new();
        asked.ask(0);
        asked.end(0, 0, Ending::Silent, 2000);
        let (call, _) = asked.ask(3000);
        assert!(asked.turns_to(1, 3426));
        assert_eq!(asked.heard(call, 3849), Heard::Pending);
        assert_eq!(
            asked.heard(call, 3850),
            Heard::Pending,
            "it has hardly waited"
        );
        assert_eq!(asked.heard(call, 3851), Heard::Silence(asked.at(3000)));
        // No thread has turned to it.
        let (call, _) = asked.ask(4000);
        assert_eq!(asked.heard(call, 4850), Heard::Pending);
        asked.end(1, 1, Ending::Answered, 4850);
        let (call, _) = asked.ask(5900);
        assert!(asked.turns_to(3, 5900));
        assert_eq!(asked.heard(call, 6750), Heard::Pending);
    }

    #[test]
    fn a_server_that_is_turned_to_too_late_is_not_asked() {
        let mut asked = Asked::new();
        asked.ask(0);
        assert!(asked.turns_to(0, 1000));
        assert!(!asked.turns_to(0, 1001));
    }

    #[test]
    fn a_server_that_is_no_longer_asked_is_forgotten() {
        let mut asked = Asked::new();
        for (number, at) in (0..100).map(|at| (at, at * 61_000)) {
            let terms = Terms {
                now: asked.at(at),
                time: TIME,
                lasts: LASTS,
                most: usize::MAX,
            };
            let server = char::from_u32(65 + number).unwrap();
            let (call, new) = asked.questions.begin([server], terms);
            asked.questions.end(&new[0], &0, Ending::Silent, terms.now);
            asked.questions.leave(call);
        }
        assert_eq!(asked.questions.servers.len(), 1);
    }
}
