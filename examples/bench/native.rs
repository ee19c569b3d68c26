//! What it saves to compare and delete by a native command, where the server has one: three users of one server, of whom one
//! may use both, one only scripts, one only native commands.

use redlock_sync::Redlock;

use crate::support::{Server, TTL};
use crate::{Bench, Head, Unit, alone, pair, patient, together};

const THREADS: usize = 64;

pub(crate) fn run(bench: &mut Bench) {
    let server = Server::start();
    let known = |name: &str| {
        let info = server.command(&["COMMAND", "INFO", name]);
        matches!(info, redis::Value::Array(all) if !matches!(all[..], [redis::Value::Nil]))
    };
    let natives = ["delifeq", "delex"].into_iter().filter(|name| known(name));
    let natives: Vec<String> = natives.map(|name| format!("-{name}")).collect();
    if natives.is_empty() {
        return bench.title("native commands: skipped, this server has neither DELIFEQ nor DELEX");
    }
    let user = |name: &str, without: &[String]| {
        let all = ["ACL", "SETUSER", name, "on", ">pw", "~*", "&*", "+@all"];
        let without = without.iter().map(String::as_str);
        server.command(&all.into_iter().chain(without).collect::<Vec<_>>());
        patient(vec![server.url_for(name, "pw")])
    };
    let both = user("both", &[]);
    let scripts = user("scripts", &natives);
    let native = user("native", &["-@scripting".into()]);
    bench.title("release by a native command, against release by a script");
    one(bench, "both", (&both, &scripts));
    one(bench, "no scripts", (&native, &scripts));
    many(bench, "both, own keys", (&both, &scripts), |i| i);
    many(bench, "no scripts, own keys", (&native, &scripts), |i| i);
    many(bench, "both, 8 keys", (&both, &scripts), |i| i % 8);
    many(bench, "no scripts, 8 keys", (&native, &scripts), |i| i % 8);
}

fn one(bench: &mut Bench, case: &str, (this, that): (&Redlock, &Redlock)) {
    let head = Head::new(case, 1, Unit::Pair).against("scripts");
    bench.compare(
        head,
        &mut alone(|| pair(this, "a")),
        &mut alone(|| pair(that, "b")),
    );
}

fn many(
    bench: &mut Bench,
    case: &str,
    (this, that): (&Redlock, &Redlock),
    key: impl Fn(usize) -> usize,
) {
    let users = |side: &str, redlock| {
        let names = (0..THREADS).map(|i| format!("{side}{}", key(i)));
        names.map(|name| (name, redlock)).collect::<Vec<_>>()
    };
    let (mut these, mut those) = (users("a", this), users("b", that));
    let head = Head::new(case, 1, Unit::Rate)
        .threads(THREADS)
        .against("scripts");
    bench.compare(
        head,
        &mut together(&mut these, |(key, redlock)| wait(redlock, key)),
        &mut together(&mut those, |(key, redlock)| wait(redlock, key)),
    );
}

fn wait(redlock: &Redlock, key: &str) {
    redlock.acquire(key, TTL).unwrap().release().unwrap();
}
