//! How clients find and confirm the masters of sets: the threads that ask the sentinels, around the protocol's own
//! questions, answers and conclusions.

use super::basics::CONNECT_TIMEOUT;
use super::counts::trace;
use super::place::{Asked, Asks, Hampered, Purpose};
use super::sentinels::{Reaction, SENTINELS, TIMES};
use super::world::{Count, Event, World};
use crate::errors::cause::Cause;
use crate::protocol::discovery::directory_questions::{QuestionEnd, QuestionTerms};
use crate::protocol::discovery::found_master::{DirectoryAnswer, FoundMaster};
use crate::protocol::discovery::master_answers::{Belief, MasterAnswer};
use crate::protocol::quorum::core::Input;

fn shown(instance: usize) -> String {
    format!("m at {instance}")
}

impl World {
    /// A client looks for the master of a set, to connect to it.
    pub(super) fn find(&mut self, c: usize, node: usize) {
        self.look_up(c, node, Purpose::Connects);
    }

    /// A client asks whether the master still is where it found it.
    pub(super) fn confirm(&mut self, c: usize, node: usize, found: FoundMaster) {
        self.look_up(c, node, Purpose::Confirms(found));
    }

    fn asks(&mut self, at: u64, c: usize, node: usize, asks: Asks) {
        self.at(at, Event::Asks(c, node, asks));
    }

    fn look_up(&mut self, c: usize, node: usize, purpose: Purpose) {
        let now = self.now(c);
        let time = match &purpose {
            Purpose::Connects => std::time::Duration::from_micros(CONNECT_TIMEOUT / 2),
            Purpose::Confirms(_) => TIMES.confirm,
        };
        let terms = QuestionTerms {
            now,
            time,
            lasts: TIMES.lasts,
            most: usize::MAX,
        };
        self.counts[Count::Looks] += 1;
        let place = &mut self.clients[c].driver.places[node];
        let (call, questions) = place.questions.begin(0..SENTINELS, terms);
        place.callers.push((call, purpose));
        let hampered = self.hampered(c, node);
        for question in questions {
            let lasts = u64::try_from(question.lasts.as_micros()).unwrap();
            let late = match self.random.below(100) {
                _ if hampered == Some(Hampered::Late) => lasts - self.random.below(120),
                0..4 if !self.quiet => self.random.below(lasts * 11 / 10),
                _ => 10 + self.random.below(100),
            };
            let place = &mut self.clients[c].driver.places[node];
            let number = place.asked.len();
            let ends = self.clients[c].clocks.time(question.asked + question.lasts);
            self.clients[c].driver.places[node].asked.push(Asked {
                question,
                word: None,
                is_over: false,
            });
            let none = hampered == Some(Hampered::NoThreads);
            if none || !self.quiet && self.random.chance(2) {
                self.ended(
                    c,
                    node,
                    number,
                    &MasterAnswer::Unknown,
                    QuestionEnd::NotAsked,
                );
                continue;
            }
            self.asks(self.t + late, c, node, Asks::Turns(number));
            self.asks(ends, c, node, Asks::Ends(number));
        }
        let over = self.clients[c].clocks.time(now + time);
        self.asks(over, c, node, Asks::Over);
        self.weigh(c, node);
    }

    /// Something hampers a client's questions for a while.
    pub(super) fn hamper(&mut self, c: usize, node: usize) {
        let how = [Hampered::NoThreads, Hampered::Late, Hampered::Far][self.random.pick(3)];
        let until = self.t + self.random.below(400_000);
        trace!(self, "client {c}, node {node}: {how:?} until {until}");
        self.clients[c].driver.places[node].hampered = Some((how, until));
    }

    /// The client's process stops before it reads the next answer.
    pub(super) fn stops_soon(&mut self, c: usize, node: usize) {
        self.clients[c].driver.places[node].stops = true;
    }

    fn hampered(&self, c: usize, node: usize) -> Option<Hampered> {
        let hampered = self.clients[c].driver.places[node].hampered;
        let hampered = hampered.filter(|(_, until)| *until > self.t && !self.quiet);
        hampered.map(|(how, _)| how)
    }

    /// How far away the sentinels are.
    fn sentinel_delay(&mut self, c: usize, node: usize) -> u64 {
        match self.random.below(20) {
            _ if self.quiet => 50,
            _ if self.hampered(c, node) == Some(Hampered::Far) => 2_500 + self.random.below(4_000),
            0 => self.random.below(12_000),
            1..4 => self.random.below(2_000),
            _ => 20 + self.random.below(150),
        }
    }

    /// A question, or a call, goes on.
    pub(super) fn asked(&mut self, c: usize, node: usize, asks: Asks) {
        if self.clients[c].dead {
            return;
        }
        let stops = &mut self.clients[c].driver.places[node].stops;
        if matches!(asks, Asks::Answered(_)) && std::mem::take(stops) && !self.quiet {
            let until = self.t + self.random.below(400_000);
            self.clients[c].clocks.freeze(until);
        }
        let stands = self.clients[c].clocks.stands_until;
        if stands > self.t && !matches!(asks, Asks::Arrives(_)) {
            return self.asks(stands, c, node, asks);
        }
        let now = self.now(c);
        let place = &mut self.clients[c].driver.places[node];
        match asks {
            Asks::Over => self.weigh(c, node),
            Asks::Turns(number) => {
                let asked = &place.asked[number];
                if asked.is_over {
                    return;
                }
                if !place.questions.turns_to(&asked.question, now) {
                    let unknown = MasterAnswer::Unknown;
                    return self.ended(c, node, number, &unknown, QuestionEnd::NotAsked);
                }
                let at = self.t + self.sentinel_delay(c, node);
                self.asks(at, c, node, Asks::Arrives(number));
            }
            Asks::Arrives(number) => {
                let sentinel = place.asked[number].question.server;
                let reaction = self.servers[node].sentinels.ask(self.t, c, sentinel);
                let word = match reaction {
                    Reaction::Answers(word) => word,
                    Reaction::Refuses => MasterAnswer::Silent,
                    Reaction::Nothing => return,
                };
                self.clients[c].driver.places[node].asked[number].word = Some(word);
                let at = self.t + self.sentinel_delay(c, node);
                self.asks(at, c, node, Asks::Answered(number));
            }
            Asks::Answered(number) => {
                let word = place.asked[number].word.clone();
                let word = word.unwrap_or(MasterAnswer::Unknown);
                let ending = match word {
                    MasterAnswer::Silent => QuestionEnd::Silent,
                    _ => QuestionEnd::Answered,
                };
                self.ended(c, node, number, &word, ending);
            }
            Asks::Ends(number) => {
                // A sentinel that was connected, and has not answered in time, is there.
                let (word, ending) = match place.asked[number].word {
                    Some(_) => (MasterAnswer::Unknown, QuestionEnd::Answered),
                    None => (MasterAnswer::Silent, QuestionEnd::Silent),
                };
                self.ended(c, node, number, &word, ending);
            }
        }
    }

    fn ended(
        &mut self,
        c: usize,
        node: usize,
        number: usize,
        word: &MasterAnswer<usize>,
        ending: QuestionEnd,
    ) {
        let now = self.now(c);
        let place = &mut self.clients[c].driver.places[node];
        let asked = &mut place.asked[number];
        if std::mem::replace(&mut asked.is_over, true) {
            return;
        }
        place.questions.end(&asked.question, word, ending, now);
        self.weigh(c, node);
    }

    /// The callers that have heard enough go on.
    fn weigh(&mut self, c: usize, node: usize) {
        let now = self.now(c);
        let mut at = 0;
        while let Some((call, purpose)) = self.clients[c].driver.places[node].callers.get(at) {
            let (call, purpose) = (*call, purpose.clone());
            let place = &mut self.clients[c].driver.places[node];
            let Some(answers) = place.heard(call, now) else {
                at += 1;
                continue;
            };
            place.callers.remove(at);
            place.questions.leave(call);
            let belief = answers.verdict();
            trace!(self, "client {c}, node {node}: {answers:?}, {belief:?}");
            match purpose {
                Purpose::Connects => self.has_found(c, node, &belief),
                Purpose::Confirms(found) => self.has_confirmed(c, node, &found, &belief),
            }
        }
    }

    fn has_found(&mut self, c: usize, node: usize, belief: &Belief<'_, usize>) {
        let Belief::Named {
            master,
            at,
            by_most,
        } = *belief
        else {
            let none = Cause::NoMaster("no majority".into(), false);
            return self.has_connected(c, node, None, Err(none));
        };
        let found = FoundMaster::new(shown(*master).into(), at, by_most, TIMES);
        self.clients[c].driver.places[node].found = Some((*master, found));
        self.connect_to(c, node);
    }

    fn has_confirmed(
        &mut self,
        c: usize,
        node: usize,
        found: &FoundMaster,
        belief: &Belief<'_, usize>,
    ) {
        let asked = found.at;
        let answer = DirectoryAnswer::of(belief, asked, |master| {
            match shown(*master) == *found.address {
                true => Ok(()),
                false => Err(Cause::MasterReplaced(shown(*master))),
            }
        });
        let count = match &answer {
            Some(DirectoryAnswer { result: Ok(()), .. }) => Count::Confirmed,
            Some(_) => Count::MovedOn,
            None => Count::Unconfirmed,
        };
        self.counts[count] += 1;
        let now = self.now(c);
        let answer = answer.ok_or_else(|| Some(undecided()));
        let input = Input::MasterConfirmed { asked, answer };
        self.clients[c].core.input(node, input, now);
        self.announce(c);
        self.wake(c, self.t);
    }
}

/// Why the answers do not decide where the master is.
pub(super) fn undecided() -> Cause {
    Cause::NoMaster("no majority names one".into(), false)
}
