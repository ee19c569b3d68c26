//! Whether the user may lock on the replicas that may take a master's place: users are not replicated.

use crate::errors::cause::Cause;
use crate::lock::redlock::Redlock;
use crate::net::discovery::place::Place;
use crate::ops::query::Query;
use crate::ops::rules::codes::Code;
use crate::ops::rules::finding::{Remark, Severity};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::TRIAL;
use crate::protocol::commands::server_info::ServerInfo;
use crate::values::endpoint::Endpoint;

/// The maximum of replicas that are asked for each master.
const MOST: usize = 8;
/// How many servers are asked at a time: each has a thread.
const AT_A_TIME: usize = 64;
/// The time for all questions, in node timeouts.
const QUESTIONS: u32 = 2;

impl Redlock {
    /// For each of these masters with their replicas, a remark for each replica on which the user may not lock `key`. All of
    /// them are asked side by side, since those that cannot be reached from here take their time; they are left out.
    pub(crate) fn rights_on_replicas(
        &self,
        masters: &[(&Place, Vec<Endpoint>)],
        key: &[u8],
    ) -> Vec<Vec<Remark>> {
        let set = |(master, replicas): &(&Place, Vec<Endpoint>)| -> Vec<Place> {
            let replicas = replicas.iter().filter_map(|replica| master.server(replica));
            let replicas: Vec<Place> = replicas.collect();
            let master = (!replicas.is_empty()).then(|| (*master).clone());
            master.into_iter().chain(replicas).collect()
        };
        let sets: Vec<Vec<Place>> = masters.iter().map(set).collect();
        let all: Vec<Place> = sets.iter().flatten().cloned().collect();
        let mut answers = Vec::new();
        for places in all.chunks(AT_A_TIME) {
            let key = key.to_vec();
            answers.extend(self.query(places, QUESTIONS, move |query| refusals(query, &key)));
        }
        let mut answers = answers.into_iter();
        let remarks = |set: Vec<Place>| remarks(&set, answers.by_ref().take(set.len()));
        sets.into_iter().map(remarks).collect()
    }
}

/// The remarks about a set, of which the master comes first.
fn remarks(set: &[Place], answers: impl Iterator<Item = Result<Refused, Cause>>) -> Vec<Remark> {
    let mut answers = set.iter().zip(answers);
    let Some((_, by_master)) = answers.next() else {
        return Vec::new();
    };
    let refused = answers.filter_map(|(replica, answer)| match (answer, &by_master) {
        (_, Err(_)) => None,
        (Ok(refused), Ok(by_master)) => Some((replica, refused_only_here(refused, by_master)?)),
        (Err(cause), _) => cause.meaning().concerns_user().then_some((replica, cause)),
    });
    let remark = |(replica, cause): (&Place, Cause)| {
        let text = format!(
            "users are not replicated, so create this one on each server: the replica {} would give no locks if it took over: {}",
            replica.shown(),
            cause.without_advice()
        );
        (Severity::Warning, Code::Rights, text)
    };
    refused.map(remark).collect()
}

/// The commands that a user lacks the right to, by their order.
type Refused = [Option<Cause>; 4];

/// A right that the master gives, and this server does not. What both refuse, locks do without.
fn refused_only_here(refused: Refused, by_master: &Refused) -> Option<Cause> {
    let only_here = refused.into_iter().zip(by_master);
    let only_here = only_here.filter(|(_, by_master)| by_master.is_none());
    only_here.filter_map(|(refused, _)| refused).next()
}

/// Which commands of a lock the server does not permit. Rights are checked before all else: on a replica each of these commands is refused for
/// another reason then, and on a master it does nothing.
fn refusals(query: &mut Query, key: &[u8]) -> Result<Refused, Cause> {
    let mut bytes = Vec::new();
    let set: &[&[u8]] = &[b"SET", key, b"-", b"NX", b"XX"];
    resp::pack(&mut bytes, &[set], None);
    resp::pack(&mut bytes, &[&[b"GET", key]], None);
    resp::pack(&mut bytes, &[&[b"PTTL", key]], None);
    let [set, get, left] = query.ask(&bytes)?;
    // By its hash where texts are refused, as locks call theirs.
    let [script] = query.ask_scripts([(&TRIAL, &[key])], false)?;
    Ok([set, get, left, script].map(|reply| match reply {
        Reply::Error(text) => {
            Some(Cause::refused(&text)).filter(|cause| cause.meaning().concerns_user())
        }
        _ => None,
    }))
}

/// The replicas that are connected to a master, as its INFO names them.
pub(crate) fn of(info: &ServerInfo) -> Vec<Endpoint> {
    let endpoint = |number: usize| {
        let replica = info.get(&format!("slave{number}"))?;
        let field = |name: &str| replica.split(',').find_map(|part| part.strip_prefix(name));
        Some((field("ip=")?.to_owned(), field("port=")?.parse().ok()?))
    };
    (0..MOST).filter_map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_that_the_master_gives_no_more_than_the_replica_is_not_missed() {
        let refused = |which: &[usize]| {
            let mut all: Refused = Default::default();
            for at in which {
                all[*at] = Some(Cause::refused(&format!("NOPERM {at}")));
            }
            all
        };
        for (here, by_master, expected) in [
            (&[][..], &[][..], None),
            (&[3], &[3], None),
            (&[3], &[], Some("NOPERM 3")),
            (&[1, 3], &[1], Some("NOPERM 3")),
        ] {
            let found = refused_only_here(refused(here), &refused(by_master));
            let text = found.map(|cause| cause.to_string());
            let is_it = match (&text, expected) {
                (Some(text), Some(expected)) => text.contains(expected),
                (text, expected) => text.is_none() && expected.is_none(),
            };
            assert!(is_it, "{here:?} {by_master:?}: {text:?}");
        }
    }

    #[test]
    fn replicas_are_those_of_info() {
        let info = ServerInfo::of(
            "role:master\nslave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=0\nslave1:ip=::1,port=7001,state=online\nslave2:port=1\n\
             slave3:ip=a,port=x\n",
        );
        let expected = [("10.0.0.2".to_owned(), 6379), ("::1".to_owned(), 7001)];
        assert_eq!(of(&info), expected);
    }
}
