//! Whether the user may lock on the replicas that may take a master's place: users are not replicated.

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::lock::redlock::Redlock;
use crate::net::place::directory::Place;
use crate::ops::query::Query;
use crate::ops::rules::codes::Code;
use crate::ops::rules::finding::{Remark, Severity};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::commands::slots::Endpoint;

/// The maximum of replicas that are asked for each master.
const MOST: usize = 8;
/// The time for all questions, in node timeouts.
const QUESTIONS: u32 = 2;

impl Redlock {
    /// A remark for each replica of this master on which the user may not lock `key`. Replicas that cannot be reached from here are left out.
    pub(crate) fn rights_on_replicas(
        &self,
        master: &Place,
        info: &ServerInfo,
        key: &[u8],
    ) -> Vec<Remark> {
        let endpoints = endpoints(info).into_iter();
        let replicas = endpoints.filter_map(|endpoint| master.replica(&endpoint));
        let replicas: Vec<Place> = replicas.collect();
        let key = key.to_vec();
        let answers = self.query(&replicas, QUESTIONS, move |query| refusal(query, &key));
        let refused = replicas.iter().zip(answers);
        let refused = refused.filter_map(|(replica, answer)| match answer {
            Ok(refused) => Some((replica, refused?)),
            Err(cause) => concerns_user(&cause).then_some((replica, cause)),
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
}

fn concerns_user(cause: &Cause) -> bool {
    let meaning = cause.meaning();
    meaning.concerns_rights() || matches!(meaning, Meaning::NoLogin | Meaning::WrongLogin)
}

/// Why the server does not permit a lock. Rights are checked before all else, so each of these commands is refused on a replica for another
/// reason, or does nothing.
fn refusal(query: &mut Query, key: &[u8]) -> Result<Option<Cause>, Cause> {
    let mut bytes = Vec::new();
    let set: &[&[u8]] = &[b"SET", key, b"-", b"NX", b"XX"];
    resp::pack(&mut bytes, &[set], None);
    resp::pack(&mut bytes, &[&[b"GET", key]], None);
    resp::pack(&mut bytes, &[&[b"PTTL", key]], None);
    let script: &[&[u8]] = &[b"EVAL", b"return 1", b"1", key];
    resp::pack(&mut bytes, &[script], None);
    let replies = query.ask::<4>(&bytes)?;
    let refused = replies.iter().filter_map(|reply| match reply {
        Reply::Error(text) => Some(Cause::refused(text)),
        _ => None,
    });
    Ok(refused.into_iter().find(concerns_user))
}

/// The replicas that are connected to a master, as its INFO names them.
fn endpoints(info: &ServerInfo) -> Vec<Endpoint> {
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
    fn replicas_are_those_of_info() {
        let info = ServerInfo::of(
            "role:master\nslave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=0\nslave1:ip=::1,port=7001,state=online\nslave2:port=1\n\
             slave3:ip=a,port=x\n",
        );
        let expected = [("10.0.0.2".to_owned(), 6379), ("::1".to_owned(), 7001)];
        assert_eq!(endpoints(&info), expected);
    }
}
