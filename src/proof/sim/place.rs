//! A client's knowledge of a set: its questions to the sentinels, and the protocol's own questions and answers.

use super::sentinels::{SENTINELS, TIMES};
use crate::protocol::discovery::directory_questions::{
    DirectoryQuestion, DirectoryQuestions, ReceivedAnswer,
};
use crate::protocol::discovery::found_master::FoundMaster;
use crate::protocol::discovery::master_answers::{Belief, MasterAnswer, MasterAnswers};

/// A client's knowledge of a set.
pub(super) struct Place {
    pub(super) questions: DirectoryQuestions<usize, MasterAnswer<usize>>,
    pub(super) callers: Vec<(u64, Purpose)>,
    /// All questions that were asked.
    pub(super) asked: Vec<Asked>,
    /// Whatever hampers the client's questions, and until when.
    pub(super) hampered: Option<(Hampered, u64)>,
    /// The process stops before it reads the next answer.
    pub(super) stops: bool,
    /// The server that is connected to.
    pub(super) found: Option<(usize, FoundMaster)>,
}

/// Troubles of a client that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hampered {
    /// No thread can be started.
    NoThreads,
    /// Threads, names or credentials are so late that hardly any time is left.
    Late,
    /// The sentinels are so far away that their answers come after the callers have gone.
    Far,
}

/// The purpose of a caller.
#[derive(Clone)]
pub(super) enum Purpose {
    Connects,
    Confirms(FoundMaster),
}

/// A question to a sentinel.
pub(super) struct Asked {
    pub(super) question: DirectoryQuestion<usize>,
    /// The sentinel's answer, once the question has arrived there.
    pub(super) word: Option<MasterAnswer<usize>>,
    pub(super) is_over: bool,
}

/// An event of a question, or of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asks {
    /// The question's thread turns to the sentinel.
    Turns(usize),
    Arrives(usize),
    /// The answer, or a refused connection, is there.
    Answered(usize),
    /// The question's time is over.
    Ends(usize),
    /// A caller's time is over.
    Over,
}

impl Place {
    pub(super) fn new() -> Place {
        Place {
            questions: DirectoryQuestions::new(TIMES),
            callers: Vec::new(),
            asked: Vec::new(),
            hampered: None,
            stops: false,
            found: None,
        }
    }

    /// The answers that a caller has heard, if they are enough.
    pub(super) fn heard(&self, call: u64, now: std::time::Instant) -> Option<MasterAnswers<usize>> {
        let (heard, is_over) = self.questions.heard(call, now);
        let mut answers = MasterAnswers::of(SENTINELS, 0, now);
        let mut pending = 0;
        for (sentinel, heard) in heard.into_iter().enumerate() {
            match heard {
                ReceivedAnswer::Answer(word, asked) => answers.hear(sentinel, word.clone(), asked),
                ReceivedAnswer::Silence(asked) => {
                    answers.hear(sentinel, MasterAnswer::Silent, asked)
                }
                ReceivedAnswer::NotAsked => answers.hear(sentinel, MasterAnswer::Unknown, now),
                ReceivedAnswer::Pending => pending += 1,
            }
        }
        let is_certain = pending == 0 || answers.verdict() != Belief::Unknown;
        (is_over || is_certain).then_some(answers)
    }
}
