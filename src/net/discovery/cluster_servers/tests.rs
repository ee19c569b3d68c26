//! Servers of a Redis Cluster, of which some answer.

use std::net::TcpListener;

use super::*;
use crate::net::discovery::place::Place;
use crate::net::socket::trust::Trust;
use crate::settings::credentials::{AskCredentials, Credentials};
use crate::settings::into_node::IntoNode;
use crate::settings::tls::Tls;

/// The Cluster of these servers.
pub(in crate::net::discovery) fn cluster(
    given: &str,
    credentials: Option<AskCredentials>,
) -> Arc<ClusterServers> {
    let given = given.into_node().unwrap();
    let trust = Trust::new(&Tls::default(), [given.info()]);
    let place = Place::new(given, &trust, credentials);
    place.cluster().unwrap().clone()
}

/// Less is left than makes a server silent.
#[test]
fn a_server_whose_credentials_took_most_of_the_time_is_not_silent() {
    // A server that accepts connections, and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (slow, silent) in [(false, true), (true, false)] {
        let ask = AskCredentials::new(move |_| {
            std::thread::sleep(Duration::from_millis(if slow { 450 } else { 0 }));
            Ok::<_, std::io::Error>(Credentials::new("p"))
        });
        let cluster = cluster(&format!("redis+cluster://127.0.0.1:{port}"), Some(ask));
        let said = cluster.ask_all(0, None, Duration::from_millis(850));
        assert_eq!(said.opinions.is_silence(), silent, "{slow}");
        assert!(said.opinions.believed().is_none());
    }
}

/// The map of two shards, as a server reports it whose slots from this one on have moved to the second.
pub(in crate::net::discovery) fn map(from: u16) -> Arc<SlotMap> {
    let mut map = SlotMap::default();
    (0..from).for_each(|slot| map.set_owner(slot, ("a".into(), 1)));
    (from..20).for_each(|slot| map.set_owner(slot, ("b".into(), 1)));
    map.into()
}

pub(in crate::net::discovery) fn knows(cluster: &ClusterServers, map: Arc<SlotMap>) {
    lock(&cluster.cluster_map).learn(map, clock::instant());
}

/// Learns the map of a server, with its names.
pub(in crate::net::discovery) fn learns(cluster: &ClusterServers, map: SlotMap) {
    let now = clock::instant();
    let map = lock(&cluster.cluster_map).names.unify(map, now);
    knows(cluster, map.into());
}

/// The error advises where an address may lead to another server, and not where the whole Cluster may be down.
#[test]
fn where_another_server_answers_at_each_address_the_error_names_one_and_advises() {
    let cluster = cluster("redis+cluster://seed:1", None);
    let (now, time) = (clock::instant(), Duration::from_secs(1));
    let away = || Err(Cause::Connect("refused".into()));
    for (told, at) in [
        ([away(), Err(Cause::OtherServer)], Some("b:1")),
        ([Err(Cause::OtherServer), away()], None),
        ([away(), away()], None),
    ] {
        let told: [MapAnswer; 2] = told;
        let heard = told
            .each_ref()
            .map(|told| ReceivedAnswer::Answer(told, now));
        let servers = ["seed:1", "b:1"].map(str::to_owned).to_vec();
        let read = |_: &Arc<SlotMap>, _| Err(Unknown::Name);
        let said = Opinions::of((servers, 0), (now, time), &heard, read);
        let text = cluster.no_master(&said).to_string();
        let advice = at.map(|at| format!("(at {at}: {ANNOUNCE})"));
        assert_eq!(text.contains(ANNOUNCE), at.is_some(), "{text}");
        assert!(advice.is_none_or(|advice| text.contains(&advice)), "{text}");
    }
}

/// Its name may lead to one of those that the map names.
#[test]
fn a_seed_is_spare_once_others_are_known() {
    let cluster = cluster("redis+cluster://seed", None);
    let count = |cluster: &ClusterServers| {
        let address = "a:1";
        let lately = true;
        let asked = cluster.to_ask(Some(About { address, lately }));
        let first = asked.first_part(Duration::ZERO).servers;
        (asked.servers.len(), first, asked.all(Duration::ZERO).spare)
    };
    assert_eq!(count(&cluster), (1, 1, 0));
    knows(&cluster, map(10));
    assert_eq!(count(&cluster), (2, 1, 1));
}
