//! The threads that ask the servers of a directory, and the callers that wait for their answers.

use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::discovery::server_question::QuestionTime;
use crate::net::socket::peer::Peer;
use crate::protocol::discovery::directory_questions::{
    DirectoryQuestion, DirectoryQuestions, QuestionEnd, QuestionTerms, ReceivedAnswer,
};
use crate::protocol::discovery::found_master::DirectoryTimes;
use crate::values::clock;
use crate::values::sync::{Condvar, Mutex, lock, start_thread, wait_until};

/// A server's answer, or why there is none.
pub(crate) type ServerAnswer<T> = Result<T, Cause>;

/// The questions to the servers of one directory, by their addresses. Their answers are for all threads that can wait for
/// them.
pub(crate) struct Asker<T> {
    questions: Mutex<DirectoryQuestions<String, ServerAnswer<T>>>,
    /// Notified when a question has ended.
    news: Condvar,
}

/// How a caller asks: how long it waits, how long its questions last, and how many may be under way.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) time: Duration,
    pub(crate) lasts: Duration,
    pub(crate) most: usize,
}

impl<T: Clone + Send + Sync + 'static> Asker<T> {
    pub(crate) fn new() -> Arc<Asker<T>> {
        Arc::new(Asker {
            questions: Mutex::new(DirectoryQuestions::new(DirectoryTimes::REAL)),
            news: Condvar::new(),
        })
    }

    /// Asks all these servers at once, each in a separate thread, or waits for the answers to questions under way.
    /// Returns what `weigh` makes of all answers, once that is enough, or the time is over.
    pub(crate) fn ask_all<R>(
        self: &Arc<Self>,
        servers: &[Peer],
        patience: Patience,
        ask: impl Fn(&Peer, &QuestionTime<'_>) -> ServerAnswer<T> + Clone + Send + 'static,
        weigh: impl Fn(&[ReceivedAnswer<'_, ServerAnswer<T>>]) -> R,
        is_enough: impl Fn(&R) -> bool,
    ) -> R {
        let now = clock::instant();
        let until = now + patience.time;
        let terms = QuestionTerms {
            now,
            time: patience.time,
            lasts: patience.lasts,
            most: patience.most,
        };
        let addresses = servers.iter().map(|peer| text::address(peer.addr()));
        let (call, questions) = lock(&self.questions).begin(addresses, terms);
        let mut peers = servers.iter();
        for question in questions {
            // They are in the order of the servers.
            if let Some(peer) = peers.find(|peer| text::address(peer.addr()) == question.server) {
                self.start(question, peer.clone(), ask.clone());
            }
        }
        let mut questions = lock(&self.questions);
        let result = loop {
            let now = clock::instant();
            if questions.has_news(call, now) {
                let (heard, is_over) = questions.heard(call, now);
                let result = weigh(&heard);
                if is_over || is_enough(&result) {
                    break result;
                }
            }
            questions = wait_until(&self.news, questions, until);
        };
        questions.leave(call);
        result
    }

    fn start(
        self: &Arc<Self>,
        question: DirectoryQuestion<String>,
        peer: Peer,
        ask: impl Fn(&Peer, &QuestionTime<'_>) -> ServerAnswer<T> + Send + 'static,
    ) {
        let asking = Asking {
            asker: self.clone(),
            question,
            answer: Err(Cause::NoThread("there are too many".into())),
        };
        let run = move || {
            let mut asking = asking;
            asking.answer = Err(Cause::NotAsked);
            let (asker, question) = (&asking.asker, &asking.question);
            let turns = || match lock(&asker.questions).turns_to(question, clock::instant()) {
                true => Ok(()),
                false => Err(Cause::NotAsked),
            };
            let turn = QuestionTime {
                until: question.asked + question.lasts,
                timeout: question.lasts,
                begins: &turns,
            };
            asking.answer = ask(&peer, &turn);
        };
        // If no thread starts, the question ends with the closure.
        let _ = start_thread("redlock-find", run);
    }
}

/// A server that is being asked. If its thread does not start, or ends without an answer, it was not asked.
struct Asking<T: Clone> {
    asker: Arc<Asker<T>>,
    question: DirectoryQuestion<String>,
    answer: ServerAnswer<T>,
}

impl<T: Clone> Drop for Asking<T> {
    fn drop(&mut self) {
        let ending = match &self.answer {
            Ok(_) => QuestionEnd::Answered,
            Err(cause) if cause.is_silence() => QuestionEnd::Silent,
            Err(cause) if cause.is_of_this_process() => QuestionEnd::NotAsked,
            Err(_) => QuestionEnd::Answered,
        };
        let now = clock::instant();
        lock(&self.asker.questions).end(&self.question, &self.answer, ending, now);
        self.asker.news.notify_all();
    }
}
