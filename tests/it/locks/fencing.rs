//! Fencing tokens: distinct, and each larger than all that were given out before it was asked for, whatever
//! becomes of locks and nodes.

use crate::support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, LostReason, Redlock};
use support::*;

/// 2^53 - 1: what a Lua number, and JavaScript's, can count up to.
const LAST: u64 = 9_007_199_254_740_991;

fn counter(server: &Server, resource: &str) -> Option<u64> {
    let key = beside(resource, "fence");
    let value: Option<String> = redis::from_redis_value(server.command(&["GET", &key])).unwrap();
    value.map(|value| value.parse().unwrap())
}

/// A number that was given out: when it was asked for and given, and to which holder.
struct Number {
    asked: Instant,
    given: Instant,
    number: u64,
    token: [u8; 20],
}

#[derive(Default)]
struct Given(Mutex<Vec<Number>>);

impl Given {
    fn add(&self, asked: Instant, number: u64, lock: &Lock) {
        let (given, token) = (Instant::now(), *lock.token().as_bytes());
        self.0.lock().unwrap().push(Number {
            asked,
            given,
            number,
            token,
        });
    }

    /// How many are there, and how many of them should not be.
    fn count(&self) -> (usize, usize) {
        let all = self.0.lock().unwrap();
        let wrong = |one: &&Number| {
            all.iter().any(|other| {
                let earlier = other.given < one.asked;
                let same = other.number == one.number;
                other.token != one.token && (same || earlier && other.number > one.number)
            })
        };
        (all.len(), all.iter().filter(wrong).count())
    }
}

/// Six clients take one lock, ask for numbers by `ask`, and give it up in all ways, while its key
/// is deleted here and there.
fn sabotaged(
    servers: &[Server],
    ask: impl Fn(&Lock, u64) -> Option<u64> + Sync,
    is_enough: impl Fn(&Given) -> bool,
) -> (usize, usize) {
    let (given, over) = (&Given::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = OnDrop(&over);
        for client in 0..6 {
            let (over, ask) = (&over, &ask);
            let redlock = connected(servers);
            scope.spawn(move || {
                let mut random = Random(client + 1);
                while !over.load(Ordering::Relaxed) {
                    let Ok(Some(lock)) = redlock.try_acquire("a", ms(400)) else {
                        std::thread::sleep(ms(random.below(3)));
                        continue;
                    };
                    let asked = Instant::now();
                    if let Some(number) = ask(&lock, random.below(1 << 20)) {
                        given.add(asked, number, &lock);
                    }
                    match random.below(4) {
                        0 => lock.leak(),
                        1 => drop(lock.release()),
                        _ => drop(lock),
                    }
                }
            });
        }
        let mut random = Random(99);
        let end = Instant::now() + ms(60_000);
        while !is_enough(given) && Instant::now() < end {
            let node = usize::try_from(random.below(servers.len() as u64)).unwrap();
            servers[node].command(&["DEL", "a"]);
            std::thread::sleep(ms(random.below(3)));
        }
    });
    given.count()
}

#[test]
fn numbers_are_distinct_and_grow_though_the_locks_keys_are_deleted() {
    std::thread::scope(|scope| {
        for nodes in [1, 3, 5] {
            scope.spawn(move || {
                let servers = Server::several(nodes);
                let began = Instant::now();
                let are_many = |given: &Given| began.elapsed() > ms(2500) && given.count().0 > 50;
                let ask = |lock: &Lock, _| lock.fencing_token().ok();
                let (count, wrong) = sabotaged(&servers, ask, are_many);
                println!("{nodes} nodes: {count} numbers");
                assert!(count > 50, "{nodes} nodes: only {count}");
                assert_eq!(wrong, 0, "{nodes} nodes, of {count}");
            });
        }
    });
}

/// The tempting variant: any quorum is asked, and its largest number taken.
#[test]
fn the_largest_number_of_any_quorum_would_neither_be_distinct_nor_grow() {
    // As the library's, but for the time of day, which hides it where clocks agree.
    const SCRIPT: &str = "if string.sub(redis.call('GET',KEYS[1]) or '',1,20)~=ARGV[1] then return 0 end \
        local n=(redis.call('GET',KEYS[2]) or 0)+1 redis.call('SET',KEYS[2],n) return n";
    for nodes in [3, 5] {
        let servers = Server::several(nodes);
        let tempting = |lock: &Lock, random: u64| {
            let first = usize::try_from(random).unwrap() % nodes;
            let quorum = (first..=first + nodes / 2).map(|at| &servers[at % nodes]);
            let mut numbers = Vec::new();
            for server in quorum {
                let eval = [b"EVAL", SCRIPT.as_bytes(), b"2", b"a", b"a:tempting"];
                let args = [&eval[..], &[lock.token().as_bytes()]].concat();
                let number: u64 = redis::from_redis_value(server.command_table(&args)).unwrap();
                numbers.push(number);
            }
            let held = numbers.iter().all(|number| *number > 0);
            numbers.into_iter().max().filter(|_| held)
        };
        let is_wrong = |given: &Given| given.count().1 > 0;
        let (count, wrong) = sabotaged(&servers, tempting, is_wrong);
        println!("{nodes} nodes: {wrong} of {count}");
        assert!(wrong > 0, "{nodes} nodes: nothing is wrong");
    }
}

#[test]
fn numbers_grow_over_every_way_that_a_lock_ends_or_goes_on() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let mut last = 0;
    let mut grows = |what: &str, number: u64| {
        assert!(
            number > last && number <= LAST,
            "{what}: {number} after {last}"
        );
        last = number;
    };
    let mut lock = take(&redlock, "a");
    let number = lock.fencing_token().unwrap();
    grows("the first", number);
    lock.extend(2 * TTL).unwrap();
    assert_eq!(lock.fencing_token().unwrap(), number, "extended");
    let kept = lock.keep_alive(10 * TTL).unwrap();
    assert_eq!(kept.fencing_token().unwrap(), number, "kept alive");
    let lock = kept.stop();
    assert_eq!(lock.fencing_token().unwrap(), number, "stopped");
    let (token, validity) = (*lock.token(), lock.remaining());
    lock.leak();
    let lock = redlock.resume("a", token, validity).unwrap();
    grows("resumed", lock.fencing_token().unwrap());
    lock.release().unwrap();
    let lock = redlock.acquire("a", ms(300)).unwrap();
    grows("released before", lock.fencing_token().unwrap());
    lock.leak();
    let lock = redlock.acquire("a", TTL).unwrap();
    grows("expired before", lock.fencing_token().unwrap());
    drop(lock);
    let kept = take(&redlock, "a").keep_alive(10 * TTL).unwrap();
    grows("asked while kept alive", kept.fencing_token().unwrap());
    // Other resources have their own numbers.
    assert!(take(&redlock, "b").fencing_token().is_ok());
}

#[test]
fn a_number_is_asked_for_once_and_counted_in_a_key_that_lives_for_a_day() {
    let server = Server::start();
    let redlock = unhurried_connected(std::slice::from_ref(&server));
    let lock = take(&redlock, "a");
    let number = lock.fencing_token().unwrap();
    let calls = || {
        let stats = server.command(&["INFO", "commandstats"]);
        let stats: String = redis::from_redis_value(stats).unwrap();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_time:"));
        line.unwrap().to_owned()
    };
    let before = calls();
    assert_eq!(lock.fencing_token().unwrap(), number);
    assert_eq!(calls(), before, "no node was asked");
    assert_eq!(counter(&server, "a"), Some(number));
    let left =
        || redis::from_redis_value::<u64>(server.command(&["PTTL", "{a}:redlock:fence"])).unwrap();
    let day = 24 * 3600 * 1000;
    assert!((day - 60_000..=day).contains(&left()), "{}", left());
    drop(lock);
    server.command(&["PEXPIRE", "{a}:redlock:fence", "60000"]);
    assert!(take(&redlock, "a").fencing_token().is_ok());
    assert!(left() > day - 60_000, "its life is renewed");
}

#[test]
fn a_holder_that_lost_the_lock_gets_no_number_and_raises_none() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    let kept = take(&redlock, "kept").keep_alive(TTL).unwrap();
    for server in &servers[..2] {
        server.command(&["SET", "a", "another's"]);
        server.command(&["SET", "kept", "another's"]);
    }
    assert!(matches!(lock.fencing_token(), Err(Error::Lost(_))));
    assert!(!lock.is_valid(), "and it knows");
    assert!(matches!(kept.fencing_token(), Err(Error::Lost(_))));
    assert_eq!(kept.lost(), Some(LostReason::Taken));
    let raised = servers[..2]
        .iter()
        .any(|server| counter(server, "a").is_some());
    assert!(!raised, "nothing was counted where another has it");
    // Also where the number is known.
    let lock = redlock.try_acquire("b", ms(500)).unwrap().unwrap();
    lock.fencing_token().unwrap();
    std::thread::sleep(ms(510));
    assert!(matches!(lock.fencing_token(), Err(Error::Lost(_))));
}

#[test]
fn a_node_that_is_ahead_makes_one_more_round() {
    let mut servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    let ahead = LAST - 1_000_000_000;
    servers[0].command(&["SET", "{a}:redlock:fence", &ahead.to_string()]);
    // Both that are left are needed.
    servers[2].kill();
    let number = lock.fencing_token().unwrap();
    assert!(number > ahead + 1, "{number}");
    for server in &servers[..2] {
        assert_eq!(counter(server, "a"), Some(number));
        let calls = server.info("commandstats", "cmdstat_time");
        assert!(calls.starts_with("calls=2,"), "{calls}");
    }
    drop(lock);
    assert!(take(&redlock, "a").fencing_token().unwrap() > number);
}

#[test]
fn counters_that_cannot_count_are_named() {
    let server = Server::start();
    let redlock = connected(std::slice::from_ref(&server));
    let lock = take(&redlock, "a");
    for (value, expected) in [
        (LAST.to_string(), "out of range"),
        ("nan".to_owned(), "out of range"),
        ("inf".to_owned(), "out of range"),
        ("abc".to_owned(), ""),
    ] {
        server.command(&["SET", "{a}:redlock:fence", &value]);
        let text = unavailable(lock.fencing_token()).to_string();
        assert!(text.contains("the server answered: "), "{value}: {text}");
        assert!(text.contains(expected), "{value}: {text}");
        let stays: String =
            redis::from_redis_value(server.command(&["GET", "{a}:redlock:fence"])).unwrap();
        assert_eq!(stays, value);
    }
    server.command(&["DEL", "{a}:redlock:fence"]);
    server.command(&["RPUSH", "{a}:redlock:fence", "x"]);
    let text = unavailable(lock.fencing_token()).to_string();
    assert!(text.contains("WRONGTYPE"), "{text}");
    server.command(&["DEL", "{a}:redlock:fence"]);
    server.command(&["SET", "{a}:redlock:fence", &(LAST - 1).to_string()]);
    assert_eq!(lock.fencing_token().unwrap(), LAST);
    assert_eq!(counter(&server, "a"), Some(LAST));
    lock.release().unwrap();
    // Each counter of several names counts, wherever it stands.
    server.command(&["SET", "{a}:redlock:fence", "nan"]);
    for names in [["a", "b"], ["0", "a"]] {
        let several = redlock.several(names).unwrap();
        let lock = several.try_acquire(TTL).unwrap().unwrap();
        let text = unavailable(lock.fencing_token()).to_string();
        assert!(text.contains("out of range"), "{names:?}: {text}");
    }
}

#[test]
fn a_majority_suffices_and_a_minority_is_an_error() {
    let mut servers = Server::several(5);
    let redlock = connected(&servers);
    let [lock, other, third] = ["a", "b", "c"].map(|resource| take(&redlock, resource));
    servers[0].kill();
    servers[1].stop();
    let first = lock.fencing_token().unwrap();
    servers[2].kill();
    let text = unavailable(other.fencing_token()).to_string();
    assert!(text.contains("node 0") && text.contains("node 2"), "{text}");
    assert!(other.is_valid());
    assert_eq!(lock.fencing_token().unwrap(), first, "that is known");
    servers[1].resume();
    eventually("enough vote again", || third.fencing_token().is_ok());
    assert!(other.fencing_token().is_ok());
}

#[test]
fn two_threads_that_ask_at_once_get_one_number() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    for round in 0..50 {
        let lock = take(&redlock, "a");
        let numbers = std::thread::scope(|scope| {
            let asks = [(); 4].map(|()| scope.spawn(|| lock.fencing_token().unwrap()));
            asks.map(|ask| ask.join().unwrap())
        });
        assert!(
            numbers.iter().all(|number| *number == numbers[0]),
            "round {round}: {numbers:?}"
        );
    }
}

/// Counters and locks are gone, and numbers still grow: the node has waited, and the time of day went on.
#[test]
fn numbers_grow_over_restarts_with_the_restart_guard() {
    let max_ttl = ms(1000);
    std::thread::scope(|scope| {
        for nodes in [1, 3] {
            scope.spawn(move || {
                let mut servers = Server::several(nodes);
                let guarded = options().restart_guard(max_ttl);
                let redlock = Redlock::new(urls(&servers)).unwrap();
                let redlock = redlock.with_options(guarded).unwrap();
                let mut last = 0;
                for round in 0..2 {
                    let lock = redlock.acquire("a", max_ttl).unwrap();
                    let number = lock.fencing_token().unwrap();
                    let name = format!("{nodes} nodes, round {round}");
                    assert!(number > last, "{name}: {number} after {last}");
                    last = number;
                    servers.iter_mut().for_each(Server::kill);
                    servers.iter_mut().for_each(Server::restart);
                    drop(lock);
                }
                let lock = redlock.acquire("a", max_ttl).unwrap();
                assert!(lock.fencing_token().unwrap() > last);
            });
        }
    });
}

/// The deadline comes while the nodes are asked.
#[test]
fn asking_ends_with_the_validity() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = redlock.try_acquire("a", NODE_TIMEOUT * 2).unwrap().unwrap();
    servers[..2].iter().for_each(Server::stop);
    std::thread::sleep(NODE_TIMEOUT * 3 / 2);
    let started = Instant::now();
    let asked = lock.fencing_token();
    let took = started.elapsed();
    servers[..2].iter().for_each(Server::resume);
    assert!(
        matches!(asked, Err(Error::Lost(_) | Error::Unavailable(_))),
        "{asked:?}"
    );
    assert!(took < NODE_TIMEOUT + Duration::from_secs(1), "{took:?}");
    std::thread::sleep(NODE_TIMEOUT / 2);
    assert!(matches!(lock.fencing_token(), Err(Error::Lost(_))));
}

/// Nodes differ where the time of day makes a step between their answers.
#[test]
fn hardly_any_number_takes_a_second_round() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let started = Instant::now();
    for _ in 0..1000 {
        take(&redlock, "a").fencing_token().unwrap();
    }
    // A step each tenth of a second, and each is met by one number at most.
    let steps = started.elapsed().as_millis() / 100 + 1;
    let most = 1000 + u32::try_from(steps).unwrap();
    eventually("all have answered", || {
        let calls = |server: &Server| {
            let calls = server.info("commandstats", "cmdstat_time");
            let calls = calls.strip_prefix("calls=").unwrap();
            calls.split(',').next().unwrap().parse::<u32>().unwrap()
        };
        servers
            .iter()
            .map(calls)
            .all(|calls| (1000..=most).contains(&calls))
    });
}

#[test]
fn a_user_that_may_not_ask_for_the_time_gets_no_number() {
    let server = Server::start();
    let user = "ACL SETUSER u on >pw ~* +@all -time";
    server.command(&user.split(' ').collect::<Vec<_>>());
    let url = server.url().replace("://", "://u:pw@");
    let redlock = Redlock::new([url])
        .unwrap()
        .with_options(options())
        .unwrap();
    let lock = take(&redlock, "a");
    let text = unavailable(lock.fencing_token()).to_string();
    assert!(text.contains("the server answered: "), "{text}");
    assert!(lock.is_valid());
    lock.release().unwrap();
}

/// It was asked for and not answered: it is asked for once more, at once.
#[test]
fn connections_that_turn_out_closed_cost_no_number() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let mut last = 0;
    for _ in 0..5 {
        let lock = take(&redlock, "a");
        for server in &servers {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        let number = lock.fencing_token().unwrap();
        assert!(number > last);
        last = number;
    }
}

/// The counter that it comes back with is that of an earlier holder, and so is the key.
#[test]
fn numbers_grow_over_a_restart_with_old_data() {
    let max_ttl = ms(1000);
    let mut server = Server::with_args(&["--dbfilename", "old.rdb"]);
    let redlock = redlock(std::slice::from_ref(&server))
        .with_options(options().restart_guard(max_ttl))
        .unwrap();
    let old = redlock.acquire("a", max_ttl).unwrap();
    let saved = old.fencing_token().unwrap();
    server.command(&["SAVE"]);
    old.release().unwrap();
    let mut last = saved;
    for _ in 0..100 {
        let lock = redlock.acquire("a", max_ttl).unwrap();
        last = lock.fencing_token().unwrap();
    }
    assert!(last > saved);
    server.kill();
    server.restart();
    assert_eq!(
        counter(&server, "a"),
        Some(saved),
        "it has forgotten the others"
    );
    let lock = redlock.acquire("a", max_ttl).unwrap();
    let number = lock.fencing_token().unwrap();
    assert!(number > last, "{number} after {last}");
}

/// One holder is stopped past its end, and its node restarted empty: the next one's number is larger, and the
/// late one gets none.
#[test]
fn the_next_holder_after_a_restart_has_a_larger_number() {
    let max_ttl = ms(2000);
    for nodes in [1, 3] {
        let mut servers = Server::several(nodes);
        let [first, second] = [0, 1].map(|_| {
            let options = options().restart_guard(max_ttl);
            redlock(&servers).with_options(options).unwrap()
        });
        let held = first.acquire("a", max_ttl).unwrap();
        let number = held.fencing_token().unwrap();
        servers[nodes - 1].kill();
        servers[nodes - 1].restart();
        let taken = second.acquire("a", max_ttl).unwrap();
        assert!(!held.is_valid(), "{nodes} nodes: two holders");
        assert!(taken.fencing_token().unwrap() > number, "{nodes} nodes");
        assert!(matches!(held.fencing_token(), Err(Error::Lost(_))));
    }
}
