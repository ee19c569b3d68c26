//! Asks several at once, each in a separate thread, for a call that waits for all of them.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::values::clock;
use crate::values::sync::{Mutex, lock, start_thread};

/// Threads of calls that have not ended and that nothing waits for: the server that each asks, and a reference that lives
/// as long as the thread does.
#[derive(Default)]
pub(crate) struct AbandonedThreads(Mutex<Vec<(String, Weak<()>)>>);

impl AbandonedThreads {
    fn add(&self, server: &str, thread: Weak<()>) {
        lock(&self.0).push((server.to_owned(), thread));
    }

    fn has(&self, server: &str) -> bool {
        let mut threads = lock(&self.0);
        threads.retain(|(_, thread)| thread.strong_count() > 0);
        threads.iter().any(|(at, _)| *at == server)
    }
}

/// How the call waits.
pub(crate) struct AskTerms<'a> {
    /// How the threads are named, before their numbers.
    pub(crate) name: &'static str,
    /// How long to wait for a thread that reports nothing, and why it has no answer then.
    pub(crate) patience: Duration,
    pub(crate) silence: Cause,
    /// The threads that earlier calls have left behind, and the server of each node of this call. (A node's number may be
    /// another server's in the next call.) No other thread is started for a server that has one: they would pile up.
    pub(crate) abandoned: Option<(&'a AbandonedThreads, BTreeMap<usize, String>)>,
}

impl AskTerms<'_> {
    fn has_abandoned(&self, node: usize) -> bool {
        let threads = self.abandoned.as_ref();
        threads.is_some_and(|(threads, servers)| {
            servers.get(&node).is_some_and(|server| threads.has(server))
        })
    }

    fn abandon(&self, node: usize, thread: Weak<()>) {
        if let Some((threads, servers)) = &self.abandoned
            && let Some(server) = servers.get(&node)
        {
            threads.add(server, thread);
        }
    }
}

/// A thread's report about its node.
enum NodeReply<T, P> {
    Part(P),
    End(Result<T, Cause>),
}

/// Reports a part of an answer. False: nothing waits for the answer.
pub(crate) type SendPart<'a, P> = &'a mut dyn FnMut(P) -> bool;

/// Calls each closure in a separate thread, and waits for all answers. An answer may arrive in parts, each of which
/// begins the time anew.
pub(crate) fn ask_each<T: Send + 'static, P: Send + 'static, Ask>(
    asks: impl Iterator<Item = (usize, Ask)>,
    terms: AskTerms<'_>,
    part: impl FnMut(usize, P),
) -> BTreeMap<usize, Result<T, Cause>>
where
    Ask: FnOnce(SendPart<'_, P>) -> Result<T, Cause> + Send + 'static,
{
    ask_until(asks, terms, part, |_| false)
}

/// Like [`ask_each`], but waits only until the answers are enough. The other threads end by themselves.
pub(crate) fn ask_until<T: Send + 'static, P: Send + 'static, Ask>(
    asks: impl Iterator<Item = (usize, Ask)>,
    terms: AskTerms<'_>,
    part: impl FnMut(usize, P),
    is_enough: impl Fn(&BTreeMap<usize, Result<T, Cause>>) -> bool,
) -> BTreeMap<usize, Result<T, Cause>>
where
    Ask: FnOnce(SendPart<'_, P>) -> Result<T, Cause> + Send + 'static,
{
    let mut threads = Threads {
        terms,
        waiting: BTreeMap::new(),
        answers: BTreeMap::new(),
    };
    let (sender, reports) = channel();
    for (node, ask) in asks {
        threads.start(node, sender.clone(), ask);
    }
    threads.collect(&reports, part, is_enough);
    threads.answers
}

struct Threads<'a, T> {
    terms: AskTerms<'a>,
    /// When each thread last reported, and what lives as long as the thread does.
    waiting: BTreeMap<usize, (Instant, Weak<()>)>,
    answers: BTreeMap<usize, Result<T, Cause>>,
}

impl<T: Send + 'static> Threads<'_, T> {
    fn start<P: Send + 'static>(
        &mut self,
        node: usize,
        sender: Sender<(usize, NodeReply<T, P>)>,
        ask: impl FnOnce(SendPart<'_, P>) -> Result<T, Cause> + Send + 'static,
    ) {
        if self.terms.has_abandoned(node) {
            let text = "the query before this one has not ended: it waits for a name to be resolved, or for credentials";
            let cause = Cause::Connect(text.into());
            self.answers.insert(node, Err(cause));
            return;
        }
        let lives = Arc::new(());
        let thread = Arc::downgrade(&lives);
        let run = move || {
            let _lives = lives;
            let answer = ask(&mut |part| sender.send((node, NodeReply::Part(part))).is_ok());
            // Nothing may be waiting for the answer.
            let _ = sender.send((node, NodeReply::End(answer)));
        };
        match start_thread(format!("{}-{node}", self.terms.name), run) {
            Ok(()) => drop(self.waiting.insert(node, (clock::instant(), thread))),
            Err(error) => {
                let cause = Cause::NoThread(error.to_string());
                self.answers.insert(node, Err(cause));
            }
        }
    }

    fn collect<P>(
        &mut self,
        reports: &Receiver<(usize, NodeReply<T, P>)>,
        mut part: impl FnMut(usize, P),
        is_enough: impl Fn(&BTreeMap<usize, Result<T, Cause>>) -> bool,
    ) {
        while let Some(longest) = self.waiting.values().map(|(last, _)| *last).min() {
            let silent = clock::instant().saturating_duration_since(longest);
            let left = self.terms.patience.saturating_sub(silent);
            let Ok((node, report)) = reports.recv_timeout(left) else {
                self.abandon();
                continue;
            };
            let Some((last, _)) = self.waiting.get_mut(&node) else {
                continue;
            };
            *last = clock::instant();
            match report {
                NodeReply::Part(one) => part(node, one),
                NodeReply::End(answer) => {
                    self.waiting.remove(&node);
                    self.answers.insert(node, answer);
                    if is_enough(&self.answers) {
                        return;
                    }
                }
            }
        }
    }

    /// Stops waiting for threads that have reported nothing for too long.
    fn abandon(&mut self) {
        let now = clock::instant();
        let is_late = |last: Instant| now.saturating_duration_since(last) >= self.terms.patience;
        for (node, (last, thread)) in std::mem::take(&mut self.waiting) {
            if !is_late(last) {
                self.waiting.insert(node, (last, thread));
                continue;
            }
            self.terms.abandon(node, thread);
            self.answers.insert(node, Err(self.terms.silence.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first one answers once the second one has been asked, too; the second one never does.
    #[test]
    fn all_are_asked_at_once_and_waited_for_until_the_answers_are_enough() {
        let (asked, is_asked) = channel::<()>();
        let (_ended, ends) = channel::<()>();
        type Ask = Box<dyn FnOnce(SendPart<'_, ()>) -> Result<u8, Cause> + Send>;
        let first: Ask = Box::new(move |_| {
            is_asked.recv().unwrap();
            Ok(1)
        });
        let second: Ask = Box::new(move |_| {
            asked.send(()).unwrap();
            let _ = ends.recv();
            Ok(2)
        });
        let terms = AskTerms {
            name: "test",
            patience: Duration::from_secs(60),
            silence: Cause::NotAsked,
            abandoned: None,
        };
        let asks = [first, second].into_iter().enumerate();
        let answers = ask_until(asks, terms, |_, ()| {}, |answers| !answers.is_empty());
        assert!(matches!(answers.get(&0), Some(Ok(1))) && answers.len() == 1);
    }
}
