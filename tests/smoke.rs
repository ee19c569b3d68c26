//! smoke
mod support;
use support::*;
#[test]
fn smoke() {
    for n in [1usize, 3, 5] {
        let servers = Server::several(n);
        let redlock = redlock(&servers);
        let lock = take(&redlock, "a");
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        lock.release().unwrap();
        let mut lock = take(&redlock, "a");
        lock.extend(TTL * 2).unwrap();
        println!("{:?} {:?}", lock, lock.remaining());
        drop(lock);
        take(&redlock, "a").release().unwrap();
        drop(redlock);
        eventually("closed", || servers.iter().all(|s| s.clients() == 0));
        for s in &servers {
            assert!(s.keys().is_empty());
        }
    }
}
