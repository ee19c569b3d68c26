//! Which server is the master, by the answers of those that were asked (rule R43).
//!
//! Sentinels, or servers of a Redis Cluster, are asked at once. This file weighs their answers; it does not ask.

use std::time::Instant;

use crate::protocol::mutants::{Mutant, mutant};

/// One server's answer. `A`: an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MasterAnswer<A> {
    Names(A),
    /// The server answered that it has no master of that name, so it takes no part in a failover.
    NamesNone,
    /// The server was asked and could not be reached.
    Silent,
    /// The server was not asked, has not answered yet, or refuses to answer: it may have chosen any master.
    Unknown,
}

/// The answers of all servers, each with the time at which that server was asked.
#[derive(Clone, Debug)]
pub(crate) struct MasterAnswers<A> {
    answers: Vec<(MasterAnswer<A>, Instant)>,
    /// How many of the servers, the last ones, count only if none of the others can be reached. One may be another name
    /// of a server among the others, which must not have two votes.
    spare: usize,
}

/// The verdict of all answers. `at`: when the servers that it relies on were asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Belief<'a, A> {
    /// `by_most`: more than half of all servers name it, and not only of those that answered.
    Named {
        master: &'a A,
        at: Instant,
        by_most: bool,
    },
    Silence {
        at: Instant,
    },
    Unknown,
}

impl<A: PartialEq> MasterAnswers<A> {
    /// Answers of this many servers, none of which has answered yet.
    pub(crate) fn of(servers: usize, spare: usize, now: Instant) -> MasterAnswers<A> {
        let none = || match mutant(Mutant::UnaskedIsSilent) {
            true => MasterAnswer::Silent,
            false => MasterAnswer::Unknown,
        };
        MasterAnswers {
            answers: (0..servers).map(|_| (none(), now)).collect(),
            spare: spare.min(servers),
        }
    }

    /// Notes a server's answer to a question of that time. The answer counts from its question on, however late it
    /// arrived.
    pub(crate) fn hear(&mut self, server: usize, answer: MasterAnswer<A>, asked: Instant) {
        if mutant(Mutant::UnaskedIsSilent) && answer == MasterAnswer::Unknown {
            return;
        }
        if let Some(last) = self.answers.get_mut(server) {
            *last = (answer, asked);
        }
    }

    /// Each server that names a master, with the address of that master.
    pub(crate) fn named(&self) -> impl Iterator<Item = (usize, &A)> {
        let answers = self.answers.iter().enumerate();
        answers.filter_map(|(server, (answer, _))| match answer {
            MasterAnswer::Names(master) => Some((server, master)),
            _ => None,
        })
    }

    /// The master, if more than half of the servers that name one, or might, name it. Silence, if each server was
    /// asked, and none could be reached: another master needs a majority of them. A verdict other than `Unknown` does
    /// not change with pending answers.
    pub(crate) fn verdict(&self) -> Belief<'_, A> {
        let (first, spare) = self
            .answers
            .split_at(self.answers.len().saturating_sub(self.spare));
        let is_silent = |(answer, _): &(MasterAnswer<A>, Instant)| *answer == MasterAnswer::Silent;
        if self.answers.iter().all(is_silent) {
            let oldest = self.answers.iter().map(|(_, asked)| *asked).min();
            return oldest.map_or(Belief::Unknown, |at| Belief::Silence { at });
        }
        match first.iter().all(is_silent) {
            true => weigh(spare, self.answers.len()),
            false => weigh(first, first.len()),
        }
    }
}

/// The answer of a name behind which there may be several servers, by the answers of its addresses, in the order of the
/// resolver; `Unknown` where one was not asked yet. The flag is the address's family: addresses of one family are different
/// servers, of which most must name the master; those of the other family are the same servers once more, and count if none of
/// the first one's names any. The second flag: more than half of the addresses of that family agree, and not only of those that
/// answered.
pub(crate) fn answer_of_name<A: PartialEq + Clone>(
    answers: &[(bool, MasterAnswer<A>)],
    now: Instant,
) -> (MasterAnswer<A>, bool) {
    let first = answers.first().is_some_and(|(family, _)| *family);
    for family in [first, !first] {
        let of = answers.iter().filter(|(of, _)| *of == family);
        let of: Vec<_> = of.map(|(_, answer)| (answer.clone(), now)).collect();
        let mut named = of
            .iter()
            .filter(|(answer, _)| matches!(answer, MasterAnswer::Names(_)));
        let Some((first, _)) = named.next() else {
            continue;
        };
        return match weigh(&of, of.len()) {
            _ if mutant(Mutant::FirstAddressSpeaks) => (first.clone(), true),
            Belief::Named {
                master, by_most, ..
            } => (
                MasterAnswer::Names(master.clone()),
                by_most || mutant(Mutant::FewAddressesAreMost),
            ),
            Belief::Silence { .. } | Belief::Unknown => (MasterAnswer::Unknown, false),
        };
    }
    let any = |which| answers.iter().any(|(_, answer)| *answer == which);
    let answer = match (any(MasterAnswer::Unknown), any(MasterAnswer::NamesNone)) {
        (true, _) => MasterAnswer::Unknown,
        (false, true) => MasterAnswer::NamesNone,
        (false, false) => MasterAnswer::Silent,
    };
    (answer, false)
}

/// The master that these servers name, of this many in all.
fn weigh<A: PartialEq>(answers: &[(MasterAnswer<A>, Instant)], all: usize) -> Belief<'_, A> {
    let is = |which: fn(&MasterAnswer<A>) -> bool| {
        answers.iter().filter(move |(answer, _)| which(answer))
    };
    let named = is(|answer| matches!(answer, MasterAnswer::Names(_))).count();
    let unknown = match mutant(Mutant::RefusalIsNoAnswer) {
        true => 0,
        false => is(|answer| *answer == MasterAnswer::Unknown).count(),
    };
    for (answer, _) in answers {
        let MasterAnswer::Names(master) = answer else {
            continue;
        };
        let names_it = |answer: &MasterAnswer<A>| matches!(answer, MasterAnswer::Names(named) if named == master);
        let asked = answers.iter().filter(|(answer, _)| names_it(answer));
        let times = asked.map(|(_, asked)| *asked);
        let count = times.clone().count();
        if 2 * count > named + unknown || mutant(Mutant::MinorityNames) {
            let at = match mutant(Mutant::NewestCounts) {
                true => times.max(),
                false => times.min(),
            };
            let by_most = 2 * count > all;
            return at.map_or(Belief::Unknown, |at| Belief::Named {
                master,
                at,
                by_most,
            });
        }
    }
    Belief::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::protocol::mutants::set_mutant;

    const MS: std::time::Duration = std::time::Duration::from_millis(1);

    /// Each server is asked a millisecond after the previous one. `.`: the server was not asked.
    fn answers(words: &str, spare: usize, zero: Instant) -> MasterAnswers<char> {
        let mut answers = MasterAnswers::of(words.len(), spare, zero);
        for (at, word) in words.chars().enumerate() {
            let word = match word {
                '.' => continue,
                '?' => MasterAnswer::NamesNone,
                '-' => MasterAnswer::Silent,
                '!' => MasterAnswer::Unknown,
                name => MasterAnswer::Names(name),
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
            let (answers, at) = (answers(words, 0, zero), zero + server * MS);
            match answers.verdict() {
                Belief::Unknown => expected != '.',
                Belief::Silence { at: since } => (expected, since) != ('-', at),
                Belief::Named {
                    master, at: since, ..
                } => (expected, since) != (*master, at),
            }
        };
        TABLE.iter().filter(is_wrong).map(|row| row.0).collect()
    }

    #[test]
    fn a_master_is_believed_that_most_name_of_those_that_name_one_or_might() {
        assert_eq!(wrong(), Vec::<&str>::new());
    }

    /// Each address of a name, with `4` or `6` before it; and the word of the name, with `~` behind that of few.
    #[test]
    fn behind_one_name_most_servers_name_the_master() {
        let now = crate::values::clock::instant();
        let wrong = || {
            let table = [
                ("4a", "a"),
                ("4-", "-"),
                ("4?", "?"),
                ("4!", "!"),
                ("4a4b4b", "b"),
                ("4a4.4.", "."),
                ("4a4a4.", "a"),
                ("4a4-4-", "a~"),
                ("4a4-", "a~"),
                ("4a4?4?", "a~"),
                ("4a4a4-", "a"),
                ("4a4b", "."),
                ("4a4!", "."),
                ("4-4?", "?"),
                ("4-4!", "!"),
                // One server with two addresses.
                ("6a4.", "a"),
                ("6-4a", "a"),
                ("6-6-4a4-", "a~"),
                ("6!4a", "a"),
                ("6-4-", "-"),
                // Three servers with two each.
                ("6a6b6b4.4.4.", "b"),
                ("6a6b6-4a4a4a", "."),
                ("6-6-6-4a4b4b", "b"),
            ];
            let is_wrong = |(words, expected): &(&str, &str)| {
                let each = words.as_bytes().chunks(2).map(|pair| {
                    let word = match char::from(pair[1]) {
                        '?' => MasterAnswer::NamesNone,
                        '-' => MasterAnswer::Silent,
                        '!' | '.' => MasterAnswer::Unknown,
                        name => MasterAnswer::Names(name),
                    };
                    (pair[0] == b'6', word)
                });
                let expected = match *expected {
                    "?" => (MasterAnswer::NamesNone, false),
                    "-" => (MasterAnswer::Silent, false),
                    "!" | "." => (MasterAnswer::Unknown, false),
                    name => (
                        MasterAnswer::Names(name.chars().next().unwrap()),
                        !name.ends_with('~'),
                    ),
                };
                answer_of_name(&each.collect::<Vec<_>>(), now) != expected
            };
            table.into_iter().filter(is_wrong).collect::<Vec<_>>()
        };
        assert_eq!(wrong(), []);
        for mutant in [Mutant::FirstAddressSpeaks, Mutant::FewAddressesAreMost] {
            set_mutant(Some(mutant));
            let found = wrong();
            set_mutant(None);
            assert_ne!(found, [], "{mutant:?}");
        }
    }

    #[test]
    fn each_mutant_of_it_is_found() {
        each_is_found(
            &[
                Mutant::UnaskedIsSilent,
                Mutant::RefusalIsNoAnswer,
                Mutant::MinorityNames,
                Mutant::NewestCounts,
            ],
            wrong,
        );
    }

    /// Whatever the order, and whatever the other servers answer.
    #[test]
    fn a_verdict_stays_when_more_answers_come() {
        let zero = crate::values::clock::instant();
        let words = ['.', 'a', 'b', '?', '-', '!'];
        for number in 0..6_usize.pow(4) {
            let of = |at: u32| words[number / 6_usize.pow(at) % 6];
            let all: String = (0..4).map(of).collect();
            let spare = number % 2;
            let before = answers(&all, spare, zero);
            let (Belief::Named { .. } | Belief::Silence { .. }) = before.verdict() else {
                continue;
            };
            for other in &words[1..] {
                let more = all.replace('.', &other.to_string());
                let after = answers(&more, spare, zero);
                match (before.verdict(), after.verdict()) {
                    (Belief::Named { master: before, .. }, Belief::Named { master, .. }) => {
                        assert_eq!(before, master, "{all}, {more}");
                    }
                    (before, after) => assert_eq!(before, after, "{all}, {more}"),
                }
            }
        }
    }

    /// In a Cluster the server that was given by a name may be one of those that the map names by address.
    #[test]
    fn a_spare_server_counts_only_if_none_of_the_others_can_be_reached() {
        let zero = crate::values::clock::instant();
        for (words, expected) in [
            ("abb", None),
            ("a-b", Some(('a', false))),
            ("aab", Some(('a', true))),
            ("a.a", None),
            ("--b", Some(('b', false))),
            ("--.", None),
            ("-?b", None),
        ] {
            let answers = answers(words, 1, zero);
            let named = match answers.verdict() {
                Belief::Named {
                    master, by_most, ..
                } => Some((*master, by_most)),
                _ => None,
            };
            assert_eq!(named, expected, "{words}");
        }
        let silent = answers("---", 1, zero);
        assert!(matches!(silent.verdict(), Belief::Silence { .. }));
    }
}
