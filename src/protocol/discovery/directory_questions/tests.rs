use super::*;
use crate::protocol::mutants::set_mutant;

const MS: Duration = Duration::from_millis(1);
const TIME: Duration = Duration::from_millis(850);
const LASTS: Duration = Duration::from_secs(2);

struct Asked {
    questions: DirectoryQuestions<char, u32>,
    zero: Instant,
    /// All that were begun.
    all: Vec<DirectoryQuestion<char>>,
}

impl Asked {
    fn new() -> Asked {
        Asked {
            questions: DirectoryQuestions::new(DirectoryTimes::REAL),
            zero: crate::values::clock::instant(),
            all: Vec::new(),
        }
    }

    fn at(&self, at: u32) -> Instant {
        self.zero + at * MS
    }

    /// Asks the server. Returns the call, and how many questions it has begun.
    fn ask_for(&mut self, at: u32, lasts: Duration) -> (u64, usize) {
        let terms = QuestionTerms {
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

    fn end(&mut self, question: usize, answer: u32, ending: QuestionEnd, at: u32) {
        let now = self.at(at);
        self.questions
            .end(&self.all[question].clone(), &answer, ending, now);
    }

    fn turns_to(&mut self, question: usize, at: u32) -> bool {
        let now = self.at(at);
        self.questions.turns_to(&self.all[question].clone(), now)
    }

    fn heard(&self, call: u64, at: u32) -> ReceivedAnswer<'_, u32> {
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
    assert_eq!(
        asked.heard(calls[6], 2800),
        ReceivedAnswer::NotAsked,
        "too many"
    );
    for (call, news) in [(2, true), (2, false), (3, true)] {
        assert_eq!(asked.questions.has_news(calls[call], asked.at(1399)), news);
    }
    asked.end(1, 7, QuestionEnd::Answered, 2800);
    for (call, news) in [(2, true), (2, true), (4, true), (6, true), (6, false)] {
        let now = asked.at(if call == 2 { 2800 } else { 2101 });
        assert_eq!(asked.questions.has_news(calls[call], now), news, "{call}");
    }
    let at = asked.at(700);
    assert_eq!(asked.heard(calls[2], 2800), ReceivedAnswer::Answer(&7, at));
    assert_eq!(asked.heard(calls[3], 2800), ReceivedAnswer::Answer(&7, at));
    set_mutant(Some(Mutant::JoinedIsNew));
    let (call, begun) = asked.ask(2799);
    set_mutant(None);
    asked.end(3, 8, QuestionEnd::Answered, 2800);
    assert_eq!(begun, 0);
    let at = asked.at(2100);
    assert_ne!(
        asked.heard(call, 2800),
        ReceivedAnswer::Answer(&8, at),
        "a mutant"
    );
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
    let mut questions: DirectoryQuestions<u32, ()> = DirectoryQuestions::new(DirectoryTimes::REAL);
    let terms = QuestionTerms {
        now: crate::values::clock::instant(),
        time: TIME,
        lasts: LASTS,
        most: 3,
    };
    assert_eq!(questions.begin(0..2, terms).1.len(), 2);
    let (call, new) = questions.begin(1..5, terms);
    assert_eq!(new.len(), 1, "the first is joined, and one begun");
    let (heard, is_over) = questions.heard(call, terms.now);
    assert_eq!(
        heard[2..],
        [ReceivedAnswer::NotAsked, ReceivedAnswer::NotAsked]
    );
    assert!(!is_over);
}

#[test]
fn a_server_that_has_answered_lately_is_slow_and_not_silent() {
    let mut asked = Asked::new();
    asked.ask(0);
    asked.end(0, 1, QuestionEnd::Answered, 1000);
    for (at, lately) in [(1000, true), (1850, true), (1851, false)] {
        let (call, _) = asked.ask(at);
        let last = asked.all.len() - 1;
        assert!(asked.turns_to(last, at));
        assert_eq!(asked.heard(call, at + 849), ReceivedAnswer::Pending);
        let expected = match lately {
            true => ReceivedAnswer::Answer(&1, asked.zero),
            false => ReceivedAnswer::Pending,
        };
        assert_eq!(asked.heard(call, at + 850), expected, "{at}");
        asked.end(last, 0, QuestionEnd::NotAsked, at + 850);
        asked.questions.leave(call);
    }
}

#[test]
fn a_server_that_was_silent_is_silent_until_it_answers_again() {
    let mut asked = Asked::new();
    asked.ask(0);
    asked.end(0, 0, QuestionEnd::Silent, 2000);
    let (call, _) = asked.ask(3000);
    assert!(asked.turns_to(1, 3426));
    assert_eq!(asked.heard(call, 3849), ReceivedAnswer::Pending);
    assert_eq!(
        asked.heard(call, 3850),
        ReceivedAnswer::Pending,
        "it has hardly waited"
    );
    assert_eq!(
        asked.heard(call, 3851),
        ReceivedAnswer::Silence(asked.at(3000))
    );
    // No thread has turned to it.
    let (call, _) = asked.ask(4000);
    assert_eq!(asked.heard(call, 4850), ReceivedAnswer::Pending);
    asked.end(1, 1, QuestionEnd::Answered, 4850);
    let (call, _) = asked.ask(5900);
    assert!(asked.turns_to(3, 5900));
    assert_eq!(asked.heard(call, 6750), ReceivedAnswer::Pending);
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
        let terms = QuestionTerms {
            now: asked.at(at),
            time: TIME,
            lasts: LASTS,
            most: usize::MAX,
        };
        let server = char::from_u32(65 + number).unwrap();
        let (call, new) = asked.questions.begin([server], terms);
        asked
            .questions
            .end(&new[0], &0, QuestionEnd::Silent, terms.now);
        asked.questions.leave(call);
    }
    assert_eq!(asked.questions.servers.len(), 1);
}
