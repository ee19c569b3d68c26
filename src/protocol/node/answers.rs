//! Which server is the master, by the answers of those that were asked (rule R43).
//!
//! Sentinels, or servers of a Redis Cluster, are asked at once. This file weighs their answers; it does not ask.

use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};

/// How long a thread waits for the answer to another thread's question.
const FRESH: Duration = Duration::from_millis(700);
/// How long a question lasts: a later answer is too old to be used.
pub(crate) const LASTS: Duration = Duration::from_secs(2);
/// A question that outlasts its end by this long hangs in the resolution of a name.
const HANGS: Duration = Duration::from_secs(1);
/// The maximum number of threads that ask one server at the same time. Only a thread that hangs keeps its place.
const MAX_QUESTIONS: usize = 4;
/// A server that answered within this time before a question, but does not answer that question, is slow.
const LATELY: Duration = Duration::from_millis(850);

/// One server's answer. `A`: an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word<A> {
    Names(A),
    /// The server answered that it has no master of that name, so it takes no part in a failover.
    NamesNone,
    /// The server was asked and could not be reached.
    Silent,
    /// The server was not asked, has not answered yet, or refuses to answer: it may have chosen any master.
    Unknown,
}

/// The answers of all servers, each with the time at which that server was asked.
#[derive(Debug)]
pub(crate) struct Answers<A>(Vec<(Word<A>, Instant)>);

/// The verdict of all answers. `at`: when the servers that it relies on were asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Belief<'a, A> {
    Named { master: &'a A, at: Instant },
    Silence { at: Instant },
    Unknown,
}

impl<A: PartialEq> Answers<A> {
    /// Answers of this many servers, none of which has answered yet.
    pub(crate) fn of(servers: usize, now: Instant) -> Answers<A> {
        let none = || match mutant(Mutant::UnaskedIsSilent) {
            true => Word::Silent,
            false => Word::Unknown,
        };
        Answers((0..servers).map(|_| (none(), now)).collect())
    }

    /// Notes a server's answer to a question of that time. The answer counts from its question on, however late it
    /// arrived.
    pub(crate) fn hear(&mut self, server: usize, word: Word<A>, asked: Instant) {
        if let Some(place) = self.0.get_mut(server) {
            *place = (word, asked);
        }
    }

    /// Each server that names a master, with the address of that master.
    pub(crate) fn named(&self) -> impl Iterator<Item = (usize, &A)> {
        let words = self.0.iter().enumerate();
        words.filter_map(|(server, (word, _))| match word {
            Word::Names(master) => Some((server, master)),
            _ => None,
        })
    }

    /// The master, if more than half of the servers that name one, or might, name it. Silence, if each server was
    /// asked, and none could be reached: another master needs a majority of them. A verdict other than `Unknown` does
    /// not change with pending answers.
    pub(crate) fn verdict(&self) -> Belief<'_, A> {
        let is = |which: fn(&Word<A>) -> bool| self.0.iter().filter(move |(word, _)| which(word));
        if is(|word| *word != Word::Silent).next().is_none() {
            let oldest = self.0.iter().map(|(_, asked)| *asked).min();
            return oldest.map_or(Belief::Unknown, |at| Belief::Silence { at });
        }
        let named = is(|word| matches!(word, Word::Names(_))).count();
        let unknown = match mutant(Mutant::RefusalIsNoAnswer) {
            true => 0,
            false => is(|word| *word == Word::Unknown).count(),
        };
        for (_, master) in self.named() {
            let names_it = |word: &Word<A>| matches!(word, Word::Names(named) if named == master);
            let asked = self.0.iter().filter(|(word, _)| names_it(word));
            let times = asked.map(|(_, asked)| *asked);
            let count = times.clone().count();
            if 2 * count > named + unknown || mutant(Mutant::MinorityNames) {
                let at = match mutant(Mutant::AnswerIsNew) {
                    true => times.max(),
                    false => times.min(),
                };
                return at.map_or(Belief::Unknown, |at| Belief::Named { master, at });
            }
        }
        Belief::Unknown
    }
}

/// The questions to one server that are under way, each with its start and the way to its answer; and the last answer.
#[derive(Debug)]
pub(crate) struct Questions<T> {
    under_way: Vec<(Instant, T)>,
    /// When the server was asked, when it answered, and the way to that answer.
    heard: Option<(Instant, Instant, T)>,
    /// Whether the question that ended last could not reach the server.
    silent: bool,
}

/// The next step of a thread that needs a server's answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextQuestion<T> {
    /// Wait for the answer to a question that began then.
    Wait(Instant, T),
    /// Ask the server, in a separate thread.
    Begin(T),
    /// Do not ask: too many questions are under way.
    Full,
}

impl<T> Default for Questions<T> {
    fn default() -> Questions<T> {
        Questions {
            under_way: Vec::new(),
            heard: None,
            silent: false,
        }
    }
}

impl<T: Clone> Questions<T> {
    pub(crate) fn ask(&mut self, now: Instant, new: impl FnOnce() -> T) -> NextQuestion<T> {
        let latest = self.under_way.iter().max_by_key(|(asked, _)| *asked);
        if let Some((asked, answer)) = latest.filter(|(asked, _)| now < *asked + FRESH) {
            return NextQuestion::Wait(*asked, answer.clone());
        }
        if self.under_way.len() >= MAX_QUESTIONS {
            return NextQuestion::Full;
        }
        let answer = new();
        self.under_way.push((now, answer.clone()));
        NextQuestion::Begin(answer)
    }

    /// Ends a question that is over, or whose thread could not be started. `answered`: whether the server is there.
    pub(crate) fn end(&mut self, is_it: impl Fn(&T) -> bool, answered: bool, now: Instant) {
        for (asked, answer) in self.under_way.extract_if(.., |(_, answer)| is_it(answer)) {
            self.silent = !answered;
            if answered {
                self.heard = Some((asked, now, answer));
            }
        }
    }

    /// A slow server's answer to a question before the one of this time, and when that earlier question began.
    pub(crate) fn lately(&self, begun: Instant) -> Option<(Instant, &T)> {
        let heard = self.heard.as_ref();
        let lately = heard.filter(|(_, heard, _)| *heard + LATELY >= begun);
        lately.map(|(asked, _, answer)| (*asked, answer))
    }

    /// Whether the server could not be reached by the question that ended last. Without that, a server that has not answered
    /// yet is slow, and may have chosen any master (rule R43).
    pub(crate) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Whether the server's name has been unresolved for longer than any question takes.
    pub(crate) fn hang(&self, now: Instant) -> bool {
        let hangs = |(asked, _): &(Instant, T)| now > *asked + LASTS + HANGS;
        self.under_way.iter().any(hangs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::mutants::set_mutant;

    const MS: Duration = Duration::from_millis(1);

    /// Each server is asked a millisecond after the previous one. `.`: the server was not asked.
    fn answers(words: &str, zero: Instant) -> Answers<char> {
        let mut answers = Answers::of(words.len(), zero);
        for (at, word) in words.chars().enumerate() {
            let word = match word {
                '.' => continue,
                '?' => Word::NamesNone,
                '-' => Word::Silent,
                '!' => Word::Unknown,
                name => Word::Names(name),
            };
            answers.hear(at, word, zero + u32::try_from(at).unwrap() * MS);
        }
        answers
    }

    /// The answers, the expected verdict, and the server whose time counts.
    const TABLE: &[(&str, char, u32)] = &[
        // A majority of those that name one, or might.
        ("aab", 'a', 0),
        ("baa", 'a', 1),
        ("aa.", 'a', 0),
        ("aa!", 'a', 0),
        ("abc", '.', 0),
        ("ab-", '.', 0),
        ("ab?", '.', 0),
        ("ab", '.', 0),
        ("aabb", '.', 0),
        ("a", 'a', 0),
        // One alone: the others are dead, or have no master of that name.
        ("a--", 'a', 0),
        ("-a?", 'a', 1),
        ("??a", 'a', 2),
        // The others may have a better answer: they were not asked, or refuse to answer.
        ("a..", '.', 0),
        ("a.-", '.', 0),
        ("a!-", '.', 0),
        ("a!!", '.', 0),
        ("aab..", '.', 0),
        ("aab.-", '.', 0),
        ("aaab.", 'a', 0),
        // Silence: each was asked.
        ("---", '-', 0),
        ("-", '-', 0),
        ("--.", '.', 0),
        ("...", '.', 0),
        (".", '.', 0),
        ("--!", '.', 0),
        ("--?", '.', 0),
        ("???", '.', 0),
        ("", '.', 0),
    ];

    fn wrong() -> Vec<&'static str> {
        let zero = crate::values::clock::instant();
        let is_wrong = |row: &&(&str, char, u32)| {
            let (words, expected, server) = **row;
            let (answers, at) = (answers(words, zero), zero + server * MS);
            let expected = match &expected {
                '.' => Belief::Unknown,
                '-' => Belief::Silence { at },
                master => Belief::Named { master, at },
            };
            answers.verdict() != expected
        };
        TABLE.iter().filter(is_wrong).map(|row| row.0).collect()
    }

    #[test]
    fn a_master_is_believed_that_most_name_of_those_that_name_one_or_might() {
        assert_eq!(wrong(), Vec::<&str>::new());
    }

    /// The simulation has no directory.
    #[test]
    fn each_mutant_of_it_is_found() {
        for mutant in [
            Mutant::UnaskedIsSilent,
            Mutant::RefusalIsNoAnswer,
            Mutant::MinorityNames,
            Mutant::AnswerIsNew,
        ] {
            set_mutant(Some(mutant));
            let wrong = wrong();
            set_mutant(None);
            assert_ne!(wrong, Vec::<&str>::new(), "{mutant:?}");
        }
    }

    /// Whatever the order, and whatever the other servers answer.
    #[test]
    fn a_verdict_stays_when_more_answers_come() {
        let zero = crate::values::clock::instant();
        let words = ['.', 'a', 'b', '?', '-', '!'];
        for number in 0..6_usize.pow(4) {
            let of = |at: u32| words[number / 6_usize.pow(at) % 6];
            let all: String = (0..4).map(of).collect();
            let before = answers(&all, zero);
            let (Belief::Named { .. } | Belief::Silence { .. }) = before.verdict() else {
                continue;
            };
            for other in &words[1..] {
                let more = all.replace('.', &other.to_string());
                let after = answers(&more, zero);
                match (before.verdict(), after.verdict()) {
                    (Belief::Named { master: before, .. }, Belief::Named { master, .. }) => {
                        assert_eq!(before, master, "{all}, {more}");
                    }
                    (before, after) => assert_eq!(before, after, "{all}, {more}"),
                }
            }
        }
    }

    #[test]
    fn a_server_is_asked_by_one_thread_for_all_that_come_while_its_question_is_fresh() {
        let zero = crate::values::clock::instant();
        let mut questions = Questions::default();
        let ask = |questions: &mut Questions<i32>, at: u32, number: i32| {
            let now = zero + at * MS;
            match questions.ask(now, || number) {
                NextQuestion::Wait(asked, number) => {
                    assert!(asked <= now);
                    number
                }
                NextQuestion::Begin(number) => -number,
                NextQuestion::Full => 0,
            }
        };
        for (at, number, expected) in [
            (0, 1, -1),
            (699, 2, 1),
            (700, 2, -2),
            (1399, 3, 2),
            (1400, 3, -3),
            (2100, 4, -4),
            (2800, 5, 0),
        ] {
            assert_eq!(ask(&mut questions, at, number), expected, "{at}");
        }
        questions.end(|number| *number == 2, false, zero + 2800 * MS);
        assert_eq!(ask(&mut questions, 2800, 5), -5);
    }

    #[test]
    fn a_server_that_has_answered_lately_is_slow_and_not_silent() {
        let zero = crate::values::clock::instant();
        let mut questions = Questions::default();
        questions.ask(zero, || 1);
        questions.ask(zero + 900 * MS, || 2);
        assert_eq!(questions.lately(zero), None);
        questions.end(|number| *number == 1, true, zero + 1000 * MS);
        assert_eq!(questions.lately(zero + 900 * MS), Some((zero, &1)));
        assert_eq!(questions.lately(zero + 1850 * MS), Some((zero, &1)));
        assert_eq!(questions.lately(zero + 1851 * MS), None);
        assert!(!questions.is_silent());
        questions.end(|number| *number == 2, false, zero + 2900 * MS);
        assert_eq!(questions.lately(zero + 2900 * MS), None);
        // Until it answers again.
        assert!(questions.is_silent());
        questions.ask(zero + 3000 * MS, || 3);
        assert!(questions.is_silent());
        questions.end(|number| *number == 3, true, zero + 3900 * MS);
        assert!(!questions.is_silent());
    }

    #[test]
    fn a_server_whose_name_is_not_resolved_for_long_is_silent() {
        let zero = crate::values::clock::instant();
        let mut questions = Questions::default();
        assert!(!questions.hang(zero));
        questions.ask(zero, || ());
        assert!(!questions.hang(zero + 3000 * MS) && questions.hang(zero + 3001 * MS));
        questions.end(|()| true, false, zero + 3001 * MS);
        assert!(!questions.hang(zero + 3001 * MS));
    }
}
