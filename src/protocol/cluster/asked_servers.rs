//! The servers of a Redis Cluster that one question goes to: some at once, and the others if those do not decide it (rule R43).

use std::time::{Duration, Instant};

use crate::protocol::discovery::directory_questions::ReceivedAnswer;
use crate::protocol::discovery::found_master::DirectoryTimes;

/// How long the first answer waits for those of the other servers that were given.
const OTHERS: Duration = Duration::from_millis(250);

/// Servers that are asked where a slot is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AskedServers<S> {
    pub(crate) servers: Vec<S>,
    /// So many are asked first, and the others if those do not decide it.
    first: usize,
    /// How many of them, the last ones, count only if none of the others can be reached.
    spare: usize,
    /// Whether they are those that were given: there is no map yet.
    pub(crate) are_given: bool,
}

/// A part of a question: the servers that it goes to, and its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AskedPart {
    /// How many servers there are, and how many of them, the last ones, are spare.
    pub(crate) servers: usize,
    pub(crate) spare: usize,
    /// How long the part waits for answers, and how long these are of use to the caller.
    pub(crate) waits: Duration,
    pub(crate) lasts: Duration,
    /// Whether others are left to be asked.
    pub(crate) has_more: bool,
}

impl<S: PartialEq> AskedServers<S> {
    /// The servers that were given, of which all are asked at once: no others are known yet.
    pub(crate) fn given(servers: Vec<S>) -> AskedServers<S> {
        let first = servers.len();
        AskedServers {
            servers,
            first,
            spare: 0,
            are_given: true,
        }
    }

    /// Servers that are known, of which so many are asked first. Behind them `seed`, one of those that were given, if it is none
    /// of them: they may all be gone, and its name may lead to others.
    pub(crate) fn known(mut servers: Vec<S>, first: usize, seed: Option<S>) -> AskedServers<S> {
        let seed = seed.filter(|seed| !servers.contains(seed));
        let spare = usize::from(seed.is_some());
        servers.extend(seed);
        AskedServers {
            servers,
            first,
            spare,
            are_given: false,
        }
    }

    /// The part that is asked first. If that may not be all, the others need some of the time, too.
    pub(crate) fn first_part(&self, time: Duration) -> AskedPart {
        let has_more = self.first < self.servers.len();
        AskedPart {
            servers: self.first.min(self.servers.len()),
            spare: 0,
            waits: if has_more { time / 2 } else { time },
            lasts: time,
            has_more,
        }
    }

    /// All servers, once one has answered: those that are about to do so are waited for. A host that is away does not keep a
    /// program waiting.
    pub(crate) fn others(&self, left: Duration) -> AskedPart {
        AskedPart {
            waits: left.min(OTHERS),
            ..self.all(left)
        }
    }

    /// All servers, for the time that is left.
    pub(crate) fn all(&self, left: Duration) -> AskedPart {
        AskedPart {
            servers: self.servers.len(),
            spare: self.spare,
            waits: left,
            lasts: left,
            has_more: false,
        }
    }
}

impl AskedPart {
    /// The answers of all servers of this part: those to the part before, and new ones. The answer of before of a server that
    /// is slow now counts only where no others are left that may decide it.
    pub(crate) fn answers<'a, T>(
        &self,
        before: &'a [Option<(T, Instant)>],
        new: &[ReceivedAnswer<'a, T>],
        now: Instant,
    ) -> Vec<ReceivedAnswer<'a, T>>
    where
        ReceivedAnswer<'a, T>: Clone,
    {
        let is_old = |asked| self.has_more && asked + DirectoryTimes::REAL.fresh < now;
        let mut new = new.iter().map(|heard| match heard {
            ReceivedAnswer::Answer(_, asked) if is_old(*asked) => ReceivedAnswer::Pending,
            heard => heard.clone(),
        });
        let mut next = || new.next().unwrap_or(ReceivedAnswer::Pending);
        let all = before.iter().take(self.servers).map(|before| match before {
            Some((told, asked)) => ReceivedAnswer::Answer(told, *asked),
            None => next(),
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::MS;
    use crate::values::clock;

    #[test]
    fn the_first_servers_are_asked_for_half_of_the_time_and_all_for_the_rest() {
        let asked = AskedServers::known(vec!['a', 'b', 'c', 'd'], 3, Some('s'));
        let first = asked.first_part(100 * MS);
        assert_eq!((first.servers, first.spare), (3, 0));
        assert_eq!((first.waits, first.lasts), (50 * MS, 100 * MS));
        let all = asked.all(60 * MS);
        assert_eq!((all.servers, all.spare), (5, 1));
        assert_eq!((all.waits, all.lasts), (60 * MS, 60 * MS));
        // Servers that were given and are about to answer are waited for, and no others.
        assert_eq!(asked.others(60 * MS), all);
        let others = asked.others(8 * OTHERS);
        assert_eq!((others.waits, others.lasts), (OTHERS, 8 * OTHERS));
        // No other is left.
        for asked in [
            AskedServers::given(vec!['a', 'b', 'c', 'd']),
            AskedServers::known(vec!['a', 'b', 'c', 'd'], 4, Some('d')),
        ] {
            assert_eq!(asked.first_part(100 * MS), asked.all(100 * MS));
        }
    }

    #[test]
    fn an_old_answer_of_a_slow_server_counts_once_no_other_is_left() {
        let asked = AskedServers::known(vec![1, 2], 1, None);
        let before = clock::instant();
        let now = before + DirectoryTimes::REAL.fresh + MS;
        let [first, all] = [asked.first_part(100 * MS), asked.all(100 * MS)];
        let old = [ReceivedAnswer::Answer(&'o', before)];
        assert_eq!(
            first.answers(&[None, None], &old, now),
            [ReceivedAnswer::Pending]
        );
        assert_eq!(first.answers(&[None, None], &old, now - 2 * MS), old);
        let told = [Some(('t', now)), None];
        let expected = [ReceivedAnswer::Answer(&'t', now), old[0].clone()];
        assert_eq!(all.answers(&told, &old, now), expected);
    }
}
