//! The answer of one name of sentinels, behind which there may be several (rule R43).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::net::place::asker::Told;
use crate::net::place::server_question::Unknown;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::master_answers::{MasterAnswer, word_of_name};
use crate::values::clock;

/// The answer of a sentinel, or of several behind one name.
#[derive(Clone)]
pub(super) struct SentinelAnswer {
    /// The master's address. `None`: the sentinel has no master of that name.
    pub(super) master: Option<ConnectionAddr>,
    /// More than half of the addresses of its name report that, and not only of those that answered.
    pub(super) by_most: bool,
    /// The addresses that have answered, each with its answer.
    pub(super) by: Vec<AddressAnswer>,
}

/// The answer of the sentinel at one address: the master's address, if it has one of that name.
pub(super) type AddressAnswer = (SocketAddr, Option<ConnectionAddr>);

/// The opinion of a sentinel. One that was heard before, under another name, has none. If the answers from one address
/// differ, there may be several sentinels behind it, which TLS tells apart by their names, or one has changed its mind.
pub(super) fn read(
    named: &SentinelAnswer,
    seen: &mut Vec<AddressAnswer>,
) -> Result<ConnectionAddr, Unknown> {
    let before = |(address, _): &AddressAnswer| seen.iter().find(|(at, _)| at == address);
    let again: Vec<_> = named
        .by
        .iter()
        .filter_map(|one| Some((one, before(one)?)))
        .collect();
    let (is_again, differs) = (
        !again.is_empty(),
        again.iter().any(|(one, before)| one != before),
    );
    seen.extend(named.by.iter().cloned());
    match (is_again && !mutant(Mutant::NamesCountTwice), differs) {
        (true, true) => Err(Unknown::Failed(Cause::Garbage(
            "answers differently under another name".into(),
        ))),
        (true, false) => Err(Unknown::Again),
        (false, _) => named.master.clone().ok_or(Unknown::Name),
    }
}

pub(super) fn is_v6(address: &Option<SocketAddr>) -> bool {
    address.is_some_and(|one| one.is_ipv6())
}

/// The answers of the sentinels behind a name, by the numbers of their addresses.
pub(super) type ToldByAddress = BTreeMap<usize, Told<Option<ConnectionAddr>>>;

/// The word of the name with these addresses, by the answers so far.
pub(super) fn word(
    addresses: &[Option<SocketAddr>],
    told: &ToldByAddress,
) -> (MasterAnswer<ConnectionAddr>, bool) {
    let words = addresses.iter().enumerate().map(|(at, address)| {
        let word = match told.get(&at) {
            Some(Ok(master)) => master
                .clone()
                .map_or(MasterAnswer::NamesNone, MasterAnswer::Names),
            Some(Err(cause)) if cause.is_silence() => MasterAnswer::Silent,
            Some(Err(_)) | None => MasterAnswer::Unknown,
        };
        (is_v6(address), word)
    });
    word_of_name(&words.collect::<Vec<_>>(), clock::instant())
}

/// The answer of the sentinels at these addresses of a name together, or why there is none.
pub(super) fn of_name(
    addresses: &[Option<SocketAddr>],
    mut told: ToldByAddress,
) -> Told<SentinelAnswer> {
    let (word, by_most) = word(addresses, &told);
    let master = match word {
        MasterAnswer::Names(master) => Some(master),
        MasterAnswer::NamesNone => None,
        MasterAnswer::Silent | MasterAnswer::Unknown => {
            let mut named = told.values().filter_map(|one| one.as_ref().ok()?.as_ref());
            let first = named.next();
            if named.any(|other| Some(other) != first) {
                let text = "different masters at the addresses of its name";
                return Err(Cause::Garbage(text.into()));
            }
            let failed = addresses.iter().enumerate().filter_map(|(at, address)| {
                let told = told.remove(&at).unwrap_or(Err(Cause::NotAsked));
                Some((*address, told.err()?))
            });
            return Err(of_addresses(failed.collect()));
        }
    };
    let answered = told.into_iter().filter_map(|(at, one)| {
        let address = addresses.get(at).copied().flatten()?;
        Some((address, one.ok()?))
    });
    Ok(SentinelAnswer {
        master,
        by_most,
        by: answered.collect(),
    })
}

/// Why the sentinels behind one name do not answer, by what failed at each of its addresses.
fn of_addresses(mut failed: Vec<(Option<SocketAddr>, Cause)>) -> Cause {
    match failed.pop() {
        Some((_, cause)) if failed.is_empty() => cause,
        last => {
            let all = failed.into_iter().chain(last);
            Cause::of_addresses(all.filter_map(|(at, cause)| Some((at?, cause))).collect())
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::mutants::set_mutant;

    fn at(port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    fn master(name: &str) -> ConnectionAddr {
        ConnectionAddr::Tcp(name.into(), 1)
    }

    /// The answer of a name whose addresses, of the ports 1, 2, …, answer this.
    pub(in crate::net::place) fn behind_a_name(words: &str) -> Told<SentinelAnswer> {
        let told = words.chars().map(|word| match word {
            '-' => Err(Cause::NotConnected(Duration::ZERO, Duration::ZERO)),
            '!' => Err(Cause::Refused("NOAUTH".into())),
            '?' => Ok(None),
            name => Ok(Some(master(&name.to_string()))),
        });
        let told: ToldByAddress = told
            .enumerate()
            .filter(|(at, _)| words.as_bytes()[*at] != b'.')
            .collect();
        let addresses: Vec<_> = (1..).map(at).take(words.len()).collect();
        of_name(&addresses, told)
    }

    #[test]
    fn a_sentinel_that_answers_under_two_names_counts_once() {
        let opinions = || {
            let mut seen = Vec::new();
            [(1, "m"), (1, "m"), (2, "m"), (1, "n")].map(|(port, name)| {
                let named = SentinelAnswer {
                    master: Some(master(name)),
                    by_most: true,
                    by: vec![(at(port).unwrap(), Some(master(name)))],
                };
                match read(&named, &mut seen) {
                    Ok(_) => "names",
                    Err(Unknown::Again) => "again",
                    Err(Unknown::Failed(Cause::Garbage(_))) => "differs",
                    Err(_) => "none",
                }
            })
        };
        assert_eq!(opinions(), ["names", "again", "names", "differs"]);
        set_mutant(Some(Mutant::NamesCountTwice));
        let found = opinions();
        set_mutant(None);
        assert_eq!(found, ["names"; 4]);
    }

    #[test]
    fn a_name_without_a_word_reports_why() {
        for (words, expected) in [
            ("ab", "different masters"),
            ("ab!", "different masters"),
            ("a!", "NOAUTH"),
            ("aa!!", "NOAUTH"),
            ("?!", "NOAUTH"),
            ("a.", &Cause::NotAsked.to_string()),
        ] {
            let text = behind_a_name(words).err().unwrap().to_string();
            assert!(text.contains(expected), "{words}: {text}");
        }
        assert!(behind_a_name("--").is_err_and(|cause| cause.is_silence()));
        assert!(behind_a_name("-.").is_err_and(|cause| !cause.is_silence()));
    }
}
