//! The ID by which the servers of a Redis Cluster name each other (rule R43).

use crate::errors::server_error::{Meaning, NO_CLUSTER};
use crate::protocol::commands::resp::Reply;
use crate::protocol::mutants::{Mutant, mutant};

/// The length of a server's ID, in hexadecimal digits.
const LENGTH: usize = 40;

/// The ID of a server of a Redis Cluster. It stays through restarts and changes of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId([u8; LENGTH]);

/// Whether the server at an address may be the one that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recognized {
    /// The server has this ID: the one that is meant, or any, since the ID of that one is not known.
    It(NodeId),
    Another,
    /// The server does not report an ID: a proxy, a service without that command, a user who may not ask for it.
    NoId,
    /// The server does not answer that now.
    NotNow,
}

/// Whether a server that answers CLUSTER MYID like this never reports its ID. A proxy whose server is away has any words.
pub(crate) fn refuses_for_good(error: &str) -> bool {
    let lower = error.to_ascii_lowercase();
    Meaning::of(error).concerns_rights() || lower.contains("unknown subcommand")
}

impl NodeId {
    pub(crate) fn of(text: &[u8]) -> Option<NodeId> {
        let is_id = text.iter().all(u8::is_ascii_hexdigit);
        let id: [u8; LENGTH] = text.try_into().ok().filter(|_| is_id)?;
        Some(NodeId(id.map(|digit| digit.to_ascii_lowercase())))
    }

    /// The ID in a server's entry of CLUSTER SLOTS: from Redis 4 on it is the third item.
    pub(crate) fn of_entry(entry: &Reply) -> Option<NodeId> {
        match entry {
            Reply::Array(items) => match &items[..] {
                [_, _, Reply::Bulk(id), ..] => NodeId::of(id),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Recognized {
    /// The meaning of the reply to CLUSTER MYID. `meant`: the ID of the server that is meant, where a map has it.
    pub(crate) fn by(reply: &Reply, meant: Option<NodeId>) -> Recognized {
        let any = mutant(Mutant::AnyServerIsMeant);
        match reply {
            Reply::Bulk(id) => match NodeId::of(id) {
                Some(id) if any || meant.is_none_or(|meant| meant == id) => Recognized::It(id),
                Some(_) => Recognized::Another,
                None => Recognized::NoId,
            },
            Reply::Error(text) if is_no_cluster(text) => match meant {
                _ if any => Recognized::NoId,
                None if mutant(Mutant::NewcomerIsAnyServer) => Recognized::NoId,
                _ => Recognized::Another,
            },
            Reply::Error(text) => match Meaning::of(text) {
                Meaning::NoLogin => Recognized::NotNow,
                meaning if meaning.is_not_now() => Recognized::NotNow,
                _ => Recognized::NoId,
            },
            _ => Recognized::NoId,
        }
    }
}

/// Whether the server that refuses with this error is in no Cluster.
fn is_no_cluster(error: &str) -> bool {
    error.contains(NO_CLUSTER)
}

/// Whether the reply to ASKING is that of a server in no Cluster, to which no slot can migrate.
pub(crate) fn imports_nothing(asking: &Reply) -> bool {
    match asking {
        Reply::Error(text) => is_no_cluster(text) && !mutant(Mutant::AnyServerImports),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::protocol::commands::slots::SlotMap;

    const ID: &str = "07c37dfeb235213a872192d90877d0cd55635b91";
    const OTHER: &str = "67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1";

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    fn id(text: &str) -> NodeId {
        NodeId::of(text.as_bytes()).unwrap()
    }

    fn error(text: &str) -> Reply {
        Reply::Error(text.into())
    }

    const PLAIN: &str = "ERR This instance has cluster support disabled";

    fn wrong() -> Vec<String> {
        let known = [
            (bulk(ID), Recognized::It(id(ID))),
            (bulk(&ID.to_uppercase()), Recognized::It(id(ID))),
            (bulk(OTHER), Recognized::Another),
        ];
        let unknown = [ID, OTHER].map(|text| (bulk(text), Recognized::It(id(text))));
        let both = [
            (error(PLAIN), Recognized::Another),
            (
                error("NOPERM this user has no permissions to run the 'cluster|myid' command"),
                Recognized::NoId,
            ),
            (error("ERR unknown command 'CLUSTER'"), Recognized::NoId),
            (error("ERR Unknown subcommand"), Recognized::NoId),
            (bulk("proxy-1"), Recognized::NoId),
            (bulk(&ID[1..]), Recognized::NoId),
            (Reply::Nil, Recognized::NoId),
            (error("LOADING Redis is loading"), Recognized::NotNow),
            (error("BUSY Redis is busy"), Recognized::NotNow),
            (error("NOAUTH Authentication required."), Recognized::NotNow),
        ];
        let mut wrong = Vec::new();
        for (meant, rows) in [(Some(id(ID)), &known[..]), (None, &unknown)] {
            for (reply, expected) in rows.iter().chain(&both) {
                let found = Recognized::by(reply, meant);
                if found != *expected {
                    wrong.push(format!("{meant:?}, {reply:?}: {found:?}"));
                }
            }
        }
        wrong
    }

    #[test]
    fn a_server_is_the_one_that_is_meant_if_both_ids_are_known_and_alike() {
        assert_eq!(wrong(), Vec::<String>::new());
        each_is_found(
            &[Mutant::AnyServerIsMeant, Mutant::NewcomerIsAnyServer],
            wrong,
        );
    }

    #[test]
    fn a_slot_migrates_to_no_server_that_is_in_no_cluster() {
        let wrong = || {
            let rows = [
                (error(PLAIN), true),
                // MOVED is the answer to what follows.
                (
                    error("NOPERM this user has no permissions to run the 'asking' command"),
                    false,
                ),
                (error("ERR unknown command 'ASKING'"), false),
                (Reply::Okay, false),
            ];
            let wrong = rows.into_iter();
            let wrong = wrong.filter(|(reply, expected)| imports_nothing(reply) != *expected);
            wrong.collect::<Vec<_>>()
        };
        assert_eq!(wrong(), []);
        each_is_found(&[Mutant::AnyServerImports], wrong);
    }

    #[test]
    fn an_entry_has_its_id_behind_host_and_port() {
        let entry = |id: &[&str]| {
            let items = [bulk("10.0.0.1"), Reply::Int(7000)];
            Reply::Array(
                items
                    .into_iter()
                    .chain(id.iter().map(|id| bulk(id)))
                    .collect(),
            )
        };
        assert_eq!(NodeId::of_entry(&entry(&[ID])), NodeId::of(ID.as_bytes()));
        for without in [&[][..], &["id"], &[&ID[1..]]] {
            assert_eq!(NodeId::of_entry(&entry(without)), None);
        }
        assert_eq!(NodeId::of_entry(&Reply::Nil), None);
    }

    /// A map that shows a server with two IDs has none for it.
    #[test]
    fn a_map_has_the_id_of_a_server_under_the_name_that_it_is_known_by() {
        let entry = |host: &str, id: &str| Reply::Array(vec![bulk(host), Reply::Int(1), bulk(id)]);
        let range = |slot: i64, servers: Vec<Reply>| {
            let slots = [Reply::Int(slot), Reply::Int(slot)];
            Reply::Array(slots.into_iter().chain(servers).collect())
        };
        let reply = Reply::Array(vec![
            range(0, vec![entry("a", ID), entry("r", OTHER)]),
            range(1, vec![entry("a", ID), entry("b", "id")]),
            range(2, vec![entry("two", ID)]),
            range(3, vec![entry("two", OTHER)]),
        ]);
        let mut map = SlotMap::of(&reply, "asked").unwrap();
        let name = |host: &str| (host.to_owned(), 1);
        map.rename(&BTreeMap::from([(name("a"), name("c"))]));
        for (host, expected) in [
            ("a", None),
            ("c", Some(ID)),
            ("r", Some(OTHER)),
            ("b", None),
            ("two", None),
        ] {
            let expected = expected.and_then(|id| NodeId::of(id.as_bytes()));
            assert_eq!(map.id(&name(host)), expected, "{host}");
        }
    }

    /// During a failover they share the others, and a server that was taken out has no slots.
    #[test]
    fn maps_of_two_clusters_share_no_server_and_have_slots_in_common() {
        let map = |ranges: &[(i64, i64, &str)]| {
            let range = |(first, last, id): &(i64, i64, &str)| {
                let id = id.repeat(LENGTH / id.len().max(1));
                let server = Reply::Array(vec![bulk("h"), Reply::Int(*first + 1), bulk(&id)]);
                Reply::Array(vec![Reply::Int(*first), Reply::Int(*last), server])
            };
            SlotMap::of(&Reply::Array(ranges.iter().map(range).collect()), "").unwrap()
        };
        let one = map(&[(0, 9, "a"), (10, 19, "b")]);
        for (other, expected) in [
            (map(&[(0, 19, "c")]), true),
            (map(&[(15, 15, "c")]), true),
            (map(&[(0, 9, "c"), (10, 19, "b")]), false),
            (map(&[(0, 19, "b")]), false),
            (map(&[(20, 29, "c")]), false),
            (map(&[]), false),
            // Without an ID.
            (map(&[(0, 19, "")]), false),
        ] {
            assert_eq!(one.is_of_another(&other), expected, "{other:?}");
            assert_eq!(other.is_of_another(&one), expected, "{other:?}");
        }
    }

    #[test]
    fn a_refusal_that_may_pass_is_not_remembered() {
        for (error, lasts) in [
            (
                "NOPERM this user has no permissions to run the 'cluster|myid' command",
                true,
            ),
            ("ERR unknown subcommand 'MYID'. Try CLUSTER HELP.", true),
            (
                "ERR Unknown subcommand or wrong number of arguments for 'MYID'",
                true,
            ),
            ("ERR unknown command 'CLUSTER'", true),
            ("ERR upstream failure", false),
            ("LOADING Redis is loading the dataset in memory", false),
        ] {
            assert_eq!(refuses_for_good(error), lasts, "{error}");
        }
    }
}
