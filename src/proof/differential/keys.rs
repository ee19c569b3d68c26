//! The keys of the server and those of the model, in one form.

use super::server::Line;
use super::{Pair, packed, text, words};
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::resp::Reply;
use crate::testing::store::StoredValue;

/// The keys that locks on two resources consist of.
pub(super) const NAMES: [&str; 10] = [
    "a",
    "{a}:redlock:w",
    "{a}:redlock:wt",
    "{a}:redlock:fence",
    "{a}:redlock:ww",
    "b}",
    "b}::redlock:w",
    "b}::redlock:wt",
    "b}::redlock:fence",
    "b}::redlock:ww",
];
/// The user that may not use the keys of queues, and all users' password.
const NARROW: &[u8] = b"narrow";
const PASSWORD: &[u8] = b"password";
/// All of these keys: type, ttl, and content, with the number of items before it.
const DUMP: &str = "
    local all = {}
    for _, name in ipairs(KEYS) do
      local kind, items = redis.call('TYPE', name).ok, {}
      if kind == 'string' then items = {redis.call('GET', name)} end
      if kind == 'zset' then items = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') end
      table.insert(all, kind)
      table.insert(all, string.format('%.0f', redis.call('PTTL', name)))
      table.insert(all, tostring(#items))
      for _, item in ipairs(items) do table.insert(all, item) end
    end
    return all";

pub(super) fn add_narrow_user(line: &mut Line) {
    let password = [b">", PASSWORD].concat();
    let mut user: Vec<&[u8]> = vec![b"ACL", b"SETUSER", NARROW, b"on", &password, b"+@all"];
    let names = NAMES.iter().map(|name| name.as_bytes());
    let names = names.filter(|name| !Companion::Queue.is_key(name));
    let names: Vec<Vec<u8>> = names.map(|name| [b"~", name].concat()).collect();
    user.extend([b"&*".as_slice(), b"resetkeys", b"~*:redlock:done"]);
    user.extend(names.iter().map(|name| &name[..]));
    assert_eq!(line.ask(&user).1, Reply::Okay);
}

impl Pair {
    /// The server's time, its reply if it is asked anything, its keys; and its time again.
    pub(super) fn ask_server(&mut self, command: &[u8]) -> (u64, Option<Vec<u8>>, Vec<Vec<u8>>) {
        let mut dump: Vec<&[u8]> = vec![b"EVAL", DUMP.as_bytes(), b"10"];
        dump.extend(NAMES.iter().map(|name| name.as_bytes()));
        let time = packed(&[b"TIME"]);
        let narrow = self.model.store.mood.no_queue && !command.is_empty();
        let [login, logout] = [NARROW, b"default"].map(|user| match narrow {
            true => packed(&[b"AUTH", user, PASSWORD]),
            false => Vec::new(),
        });
        let dump = packed(&dump);
        let all: [&[u8]; 6] = [&time, &login, command, &logout, &dump, &time];
        self.line.send(&all.concat());
        let before = self.line.time();
        let logged = |line: &mut Line| assert!(!narrow || line.reply().1 == Reply::Okay);
        logged(&mut self.line);
        let said = (!command.is_empty()).then(|| self.line.reply().0);
        logged(&mut self.line);
        let keys = words(self.line.reply().1);
        self.time = self.line.time();
        (before, said, keys)
    }

    /// The model's keys, in the form of the server's.
    pub(super) fn keys(&self, time: u64) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for name in NAMES {
            let mut keys = self.model.store.keys(time);
            let found = keys.find(|key| key.0 == name.as_bytes());
            let (kind, items) = match found.as_ref().map(|key| key.1) {
                None => ("none", Vec::new()),
                Some(StoredValue::Text(text)) => ("string", vec![text.clone()]),
                Some(StoredValue::Hash) => ("hash", Vec::new()),
                Some(StoredValue::Queue(members)) => {
                    let pair = |(score, member): &(i64, Vec<u8>)| {
                        [member.clone(), score.to_string().into_bytes()]
                    };
                    ("zset", members.iter().flat_map(pair).collect())
                }
            };
            let left = match found {
                None => "-2".into(),
                Some((.., None)) => "-1".into(),
                Some((.., Some(left))) => left.to_string(),
            };
            all.extend([kind.into(), left.into(), items.len().to_string().into()]);
            all.extend(items);
        }
        all
    }

    /// The server's keys become the model's.
    pub(super) fn take_over(&mut self) {
        let keys = loop {
            let (before, _, keys) = self.ask_server(b"");
            // The rest of a ttl is counted from a known millisecond.
            if before / 1000 == self.time / 1000 {
                break keys;
            }
        };
        self.model.store.clear();
        let mut words = keys.iter();
        let mut next = || words.next().unwrap();
        for name in NAMES {
            let (kind, left) = (text(next()), text(next()));
            let items: usize = text(next()).parse().unwrap();
            let items: Vec<&Vec<u8>> = (0..items).map(|_| next()).collect();
            let value = match kind {
                "none" => continue,
                "string" => StoredValue::Text(items[0].clone()),
                "hash" => StoredValue::Hash,
                _ => {
                    let pair =
                        |pair: &[&Vec<u8>]| (text(pair[1]).parse().unwrap(), pair[0].clone());
                    StoredValue::Queue(items.chunks(2).map(pair).collect())
                }
            };
            let last = left.parse().ok().map(|left: u64| self.time / 1000 + left);
            self.model.store.insert(name.as_bytes(), value, last);
        }
    }
}
