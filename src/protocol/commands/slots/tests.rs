//! Maps of a Redis Cluster, as servers give them.

use super::*;

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

fn server(host: Reply, port: i64) -> Reply {
    let more = Reply::Array(vec![bulk("hostname"), bulk("h")]);
    Reply::Array(vec![host, Reply::Int(port), bulk("id"), more])
}

fn range(first: i64, last: i64, servers: Vec<Reply>) -> Reply {
    let slots = [Reply::Int(first), Reply::Int(last)];
    Reply::Array(slots.into_iter().chain(servers).collect())
}

pub(in crate::protocol::commands) fn map() -> SlotMap {
    let reply = Reply::Array(vec![
        range(0, 99, vec![server(bulk("a"), 1), server(bulk("r"), 7)]),
        range(
            200,
            16383,
            vec![server(Reply::Nil, 2), server(bulk("?"), 3)],
        ),
        range(100, 150, vec![server(bulk("a"), 1)]),
    ]);
    SlotMap::of(&reply, "asked").unwrap()
}

fn master(map: &SlotMap, slot: u16) -> String {
    let master = map.master(slot);
    master.map_or_else(|| "-".into(), |(host, port)| format!("{host}:{port}"))
}

#[test]
fn a_server_without_a_host_name_is_at_its_ip_address_where_host_names_are_announced() {
    let id = "0123456789012345678901234567890123456789";
    let fields = |names: &[&str]| Reply::Array(names.iter().map(|name| bulk(name)).collect());
    let entry = |host, more| Reply::Array(vec![host, Reply::Int(3), bulk(id), more]);
    for (host, more, expected) in [
        (bulk("?"), fields(&["ip", "10.0.0.4"]), "10.0.0.4:3"),
        (bulk("?"), fields(&["shard", "1"]), "asked:3"),
        (bulk(""), fields(&["ip", "10.0.0.4"]), "asked:3"),
        (Reply::Nil, fields(&["ip", "10.0.0.4"]), "asked:3"),
    ] {
        let reply = Reply::Array(vec![range(0, 9, vec![entry(host, more)])]);
        let map = SlotMap::of(&reply, "asked").unwrap();
        assert_eq!(master(&map, 5), expected);
    }
}

/// The expected slots follow the specification of Redis Cluster, and CLUSTER KEYSLOT.
#[test]
fn a_key_is_in_the_slot_of_its_tag() {
    for (key, expected) in [
        ("", 0),
        ("123456789", 0x31C3),
        ("foo", 12182),
        ("{foo}bar", 12182),
        ("a{foo}{bar}", 12182),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("redlock:witness:{0}", 13907),
    ] {
        assert_eq!(slot(key.as_bytes()), expected, "{key}");
    }
}

#[test]
fn a_map_names_the_master_of_each_slot() {
    let map = map();
    for (slot, expected) in [
        (0, "a:1"),
        (99, "a:1"),
        (100, "a:1"),
        (150, "a:1"),
        (151, "-"),
        (199, "-"),
        (200, "asked:2"),
        (16383, "asked:2"),
    ] {
        assert_eq!(master(&map, slot), expected, "{slot}");
    }
    assert_eq!(map.missing(), 49);
    let shards: Vec<u16> = map.shards().collect();
    assert_eq!(shards, [0, 200]);
    let servers: Vec<String> = map
        .servers()
        .map(|(host, port)| format!("{host}:{port}"))
        .collect();
    assert_eq!(servers, ["a:1", "asked:2", "r:7", "asked:3"]);
}

#[test]
fn each_combination_of_masters_is_found_once() {
    let of = |ranges: &[(i64, i64, &str)]| {
        let range = |(first, last, host): &(i64, i64, &str)| {
            range(*first, *last, vec![server(bulk(host), 1)])
        };
        let ranges = ranges.iter().map(range).collect();
        Arc::new(SlotMap::of(&Reply::Array(ranges), "h").unwrap())
    };
    let one = of(&[(0, 99, "a"), (100, 199, "b"), (200, 16383, "a")]);
    let two = of(&[(0, 149, "x"), (150, 16383, "y")]);
    assert_eq!(combinations(&[]), [0]);
    assert_eq!(combinations(std::slice::from_ref(&one)), [0, 100]);
    // a and x, b and x, b and y, a and y.
    assert_eq!(combinations(&[one.clone(), two]), [0, 100, 150, 200]);
    // The other Cluster has no server for most of them.
    let some = of(&[(50, 149, "x")]);
    assert_eq!(combinations(std::slice::from_ref(&some)), [0, 50]);
    assert_eq!(combinations(&[one, some]), [0, 50, 100, 150]);
}

#[test]
fn what_is_no_map_is_none() {
    let bad = |reply: Reply| assert_eq!(SlotMap::of(&reply, "h"), None, "{reply:?}");
    bad(Reply::Nil);
    bad(Reply::Array(vec![Reply::Int(1)]));
    bad(Reply::Array(vec![range(
        0,
        16384,
        vec![server(bulk("a"), 1)],
    )]));
    bad(Reply::Array(vec![range(-1, 3, vec![server(bulk("a"), 1)])]));
    bad(Reply::Array(vec![range(0, 1, vec![])]));
    bad(Reply::Array(vec![range(
        0,
        1,
        vec![server(bulk("a"), 65536)],
    )]));
    bad(Reply::Array(vec![range(
        0,
        1,
        vec![server(Reply::Int(1), 1)],
    )]));
    // A server that has just joined reports no slots.
    let empty = SlotMap::of(&Reply::Array(vec![]), "h").unwrap();
    assert_eq!((empty.missing(), empty.master(3)), (16384, None));
    // A reversed range is not a range, and nothing panics.
    let reversed = Reply::Array(vec![range(9, 3, vec![server(bulk("a"), 1)])]);
    let reversed = SlotMap::of(&reversed, "h").unwrap();
    assert_eq!((reversed.missing(), reversed.master(5)), (16384, None));
}

#[test]
fn a_map_names_no_more_servers_than_a_cluster_can_have() {
    let of = |first: i64, count: i64| {
        let mut ranges = SlotRanges::new("h");
        let replica = |port| server(bulk("r"), port);
        let masters = (0..count).all(|port| {
            ranges.add(&range(
                port % 16384,
                port % 16384,
                vec![server(bulk("m"), first + port)],
            ))
        });
        let mut last = vec![server(bulk("m"), first)];
        last.extend((0..count).map(replica));
        (masters, ranges.add(&range(0, 0, last)), ranges.map())
    };
    let (masters, replicas, map) = of(0, 8192);
    assert!(masters && replicas);
    assert_eq!((map.servers().count(), map.shards().count()), (16384, 8192));
    assert!(!of(0, 8193).1 && !of(0, 16385).0);
}

#[test]
fn a_slot_that_has_moved_is_at_its_new_server_and_the_others_stay() {
    for (slot, around) in [
        (0, [(1, "a:1"), (99, "a:1")]),
        (50, [(49, "a:1"), (51, "a:1")]),
        (99, [(98, "a:1"), (100, "a:1")]),
        (170, [(169, "-"), (171, "-")]),
        (16383, [(16382, "asked:2"), (200, "asked:2")]),
    ] {
        let mut map = map();
        map.set_owner(slot, ("new".into(), 9));
        assert_eq!(master(&map, slot), "new:9");
        for (other, expected) in around {
            assert_eq!(master(&map, other), expected, "{slot}, {other}");
        }
        map.set_owner(slot, ("a".into(), 1));
        assert_eq!(master(&map, slot), "a:1");
    }
}
