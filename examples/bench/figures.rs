//! The pairs that `.ci/figures` counts the instructions of: `bench figures NODES THREADS PAIRS`.

use redlock_sync::Redlock;

use super::{Server, TTL, patient, support, urls};

/// Returns whether this process was started for these pairs.
pub(crate) fn run() -> bool {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ["figures", numbers @ ..] = &args.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return false;
    };
    let numbers: Vec<u32> = numbers.iter().map(|text| text.parse().unwrap()).collect();
    let [nodes, threads, pairs] = numbers[..] else {
        panic!("usage: bench figures NODES THREADS PAIRS");
    };
    let servers = Server::several(nodes as usize);
    let redlock = patient(urls(&servers));
    support::all_vote(&redlock, &servers);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (redlock, key) = (&redlock, format!("a{thread}"));
            scope.spawn(move || {
                counted_pairs(redlock, &key, pairs);
            });
        }
    });
    true
}

/// The counting begins and ends with this function.
#[inline(never)]
fn counted_pairs(redlock: &Redlock, key: &str, pairs: u32) {
    for _ in 0..pairs {
        let lock = redlock.try_acquire(key, TTL).unwrap().unwrap();
        lock.release().unwrap();
    }
}
