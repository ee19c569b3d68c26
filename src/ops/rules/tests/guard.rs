//! The restart guard, and nodes that have not been up for long.

use super::*;

#[test]
fn with_the_restart_guard_a_young_node_is_named_and_none_need_write_to_disk() {
    let mut nodes = good(3);
    set(&mut nodes[0], "aof_enabled", "0");
    assert_eq!(found(&nodes, GUARDED), []);
    set(&mut nodes[1], "uptime_in_seconds", "29");
    assert_eq!(found(&nodes, GUARDED), [(Warning, Some(1), "uptime")]);
    let text = judge(&nodes, GUARDED)[0].to_string();
    assert!(text.contains("node 1 (10.0.0.1:6379)"), "{text}");
    assert!(text.contains("gives no votes for 2 s more"), "{text}");
    // The node may have been up for nearly a second less than it reports.
    set(&mut nodes[1], "uptime_in_seconds", "30");
    assert_eq!(found(&nodes, GUARDED), [(Warning, Some(1), "uptime")]);
    set(&mut nodes[1], "uptime_in_seconds", "31");
    assert_eq!(found(&nodes, GUARDED), [(Note, Some(1), "uptime")]);
}

/// A longest ttl that the caller gives keeps no node from forgetting.
#[test]
fn without_the_restart_guard_a_node_younger_than_the_longest_ttl_is_named_all_the_same() {
    let told = Rules {
        max_ttl: Some(30 * Duration::from_secs(1)),
        ..RULES
    };
    let mut nodes = good(3);
    set(&mut nodes[0], "aof_enabled", "0");
    set(&mut nodes[1], "uptime_in_seconds", "29");
    let persistence = (Warning, Some(0), "persistence");
    let young = (Warning, Some(1), "uptime");
    assert_eq!(found(&nodes, told), [persistence, young]);
    let text = judge(&nodes, told)[1].to_string();
    assert!(text.contains("for up to 1 s more"), "{text}");
    let note = (Note, Some(1), "uptime");
    assert_eq!(found(&nodes, RULES), [persistence, note]);
    set(&mut nodes[1], "uptime_in_seconds", "30");
    assert_eq!(found(&nodes, told), [persistence, note]);
    // Both are set: the guard lasts as long as configured, and some clients may have locks for longer.
    let both = Rules {
        guard: Some(10 * Duration::from_secs(1)),
        max_ttl: Some(60 * Duration::from_secs(1)),
        ..RULES
    };
    assert_eq!(found(&nodes, both), [young]);
    set(&mut nodes[1], "uptime_in_seconds", "9");
    let text = judge(&nodes, both)[0].to_string();
    assert!(text.contains("gives no votes for 2 s more"), "{text}");
}

#[test]
fn keys_that_were_removed_are_a_fault_until_the_policy_is_mended_and_then_a_statistic() {
    let mut nodes = good(3);
    set(&mut nodes[1], "evicted_keys", "7");
    set(&mut nodes[1], "maxmemory", "100000000");
    set(&mut nodes[1], "maxmemory_policy", "allkeys-lru");
    let fault = (Fault, Some(1), "eviction");
    assert_eq!(found(&nodes, RULES), [fault, fault]);
    set(&mut nodes[1], "maxmemory_policy", "noeviction");
    assert_eq!(found(&nodes, RULES), [(Warning, Some(1), "eviction")]);
    let text = judge(&nodes, RULES)[0].to_string();
    assert!(text.ends_with("CONFIG RESETSTAT"), "{text}");
    assert!(text.contains("7 keys"), "{text}");
    let text = judge(&nodes, GUARDED)[0].to_string();
    assert!(text.ends_with("gives no votes for as long"), "{text}");
}
