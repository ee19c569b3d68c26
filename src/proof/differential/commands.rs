//! The commands that are sent: the crate's, and foreign ones.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::faults::Fault;
use super::keys::NAMES;
use super::server::Server;
use super::{CHANNELS, Pair, channel, packed, text};
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::commands::dialect::{Beside, Dialect, Scripts};
use crate::protocol::commands::kind::{Kind, Mark};
use crate::protocol::commands::node_queue::{Channel, QueueEntry, QueueTurn};
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::scripts::{INSPECT, LATER};
use crate::testing::store::request::parse;
use crate::testing::store::{StoredValue, members};
use crate::values::arithmetic::Ttl;
use crate::values::label::Label;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

/// How often a command is drawn until it calls the script that is aimed at.
const DRAWS: u32 = 20;

impl Pair {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.pick(choices.len())]
    }

    fn token(&mut self) -> Token {
        // Not every byte is a character.
        Token::from_bytes([self.one_of(&[1, 1, 1, 250]); 20])
    }

    /// A token, most often the one that holds the resource.
    pub(super) fn token_of(&mut self, resource: &[u8]) -> Token {
        let (chosen, holds) = (self.token(), self.random.chance(70));
        let mut keys = self.model.store.keys(self.time);
        let token = keys.find_map(|(name, value, _)| match value {
            StoredValue::Text(text) if name == resource => text.first_chunk().copied(),
            StoredValue::Queue(all) if name == resource => {
                members::token(&all.first()?.1)?.first_chunk().copied()
            }
            _ => None,
        });
        token.filter(|_| holds).map_or(chosen, Token::from_bytes)
    }

    fn some_channel(&mut self) -> Channel {
        channel(self.random.below(CHANNELS))
    }

    fn turn(&mut self) -> QueueTurn {
        QueueTurn::new(Duration::from_millis(self.one_of(&[50, 100, 500])))
    }

    /// One of the crate's commands. The search may aim at a script.
    pub(super) fn next_command(&mut self) -> Vec<u8> {
        let mut bytes = self.command();
        if self.aims_at().is_none() || self.random.chance(40) {
            return bytes;
        }
        for _ in 0..DRAWS {
            let (args, _) = parse(&bytes).unwrap();
            if self.aims_at().is_some_and(|fault| fault.is_called(&args)) {
                break;
            }
            bytes = self.command();
        }
        bytes
    }

    fn command(&mut self) -> Vec<u8> {
        let resource = self.one_of(&[&b"a"[..], b"a", b"a", b"b}"]);
        let label = Label::parse(b"web-3:4711").filter(|_| self.random.chance(30));
        let key = Key::new(Arc::from(resource), self.token_of(resource), label);
        let key = match self.random.chance(70) {
            true => key.since(SystemTime::UNIX_EPOCH + Duration::from_micros(self.time)),
            false => key,
        };
        let ttl = self.one_of(&[3, 4, 10, 50, 1000, 30_000, 3_000_000_000_000]);
        let ttl = Ttl::new(Duration::from_millis(ttl)).unwrap();
        if let Some(bytes) = self.without_script(resource, ttl) {
            return bytes;
        }
        if self.random.chance(if self.shared { 70 } else { 5 }) {
            return self.command_of_others_than_plain(key, ttl);
        }
        let action = match self.random.below(100) {
            0..10 => Action::Acquire(ttl),
            10..32 => Action::AcquireOrEnqueue(ttl, Arc::new(self.knock(false))),
            32..54 => Action::AcquireOrEnqueue(ttl, Arc::new(self.knock(true))),
            54..59 => Action::Extend(ttl, ttl),
            59..62 => Action::Shorten(ttl),
            62..63 => Action::Leak(ttl),
            63..67 => Action::Release(Notify::None),
            67..72 => Action::Release(Notify::First),
            72..76 => Action::Release(Notify::FirstBut(self.some_channel())),
            76..82 => Action::Release(Notify::FirstAndReserve(self.turn())),
            82..86 => Action::Fence(self.at_least()),
            86..88 => Action::Done(ttl.millis(), b"redlock:done 1 2 a".as_slice().into()),
            88..95 => {
                let (channel, turn) = (self.some_channel(), self.turn());
                Action::Dequeue(Arc::new(channel), turn, self.random.chance(50))
            }
            95 => Action::Ping,
            96 => return packed(&[b"PTTL", resource]),
            97 => return packed(&[b"GETRANGE", resource, b"0", b"256"]),
            _ => return packed(&[b"EVAL", INSPECT.text, b"1", resource]),
        };
        let mut bytes = Vec::new();
        let means = Dialect {
            scripts: self.scripts(&action),
            beside: self.one_of(&[Beside::All, Beside::All, Beside::InSlot, Beside::None]),
        };
        action.pack(&key, &Prefix::default(), means, &mut bytes);
        bytes
    }

    fn command_of_others_than_plain(&mut self, key: Key, ttl: Ttl) -> Vec<u8> {
        if self.random.chance(5) {
            let resource = &key.resource;
            return match self.random.chance(80) {
                true => packed(&[b"EVAL", INSPECT.text, b"1", resource]),
                false => packed(&[b"ZRANGE", resource, b"0", b"0"]),
            };
        }
        let (permits, slot) = (self.one_of(&[1, 2, 3]), self.one_of(&[0, 1, 2]));
        let slot = Some(slot).filter(|_| self.random.chance(75));
        let waited = self.one_of(&[0, 0, 700, 5000]);
        let writer = self.random.below(2);
        let life = self.one_of(&[0, 4, 60_000]);
        let kinds = self.aims_at().and_then(Fault::kinds);
        let kinds = kinds.filter(|_| self.random.chance(80)).unwrap_or(0..100);
        let kind = match kinds.start + self.random.below(kinds.end - kinds.start) {
            0..45 => Kind::Permit { permits, slot },
            45..65 => Kind::Read { waited },
            65..85 => Kind::Write(Mark {
                writer,
                life,
                waited,
            }),
            _ => {
                let names = [&b"a"[..], b"b}"].map(Arc::from).into();
                let claims = self.random.chance(40);
                let mut claim = || self.random.chance(60).then(|| self.token());
                let claims = claims.then(|| Arc::new(vec![claim(), claim()]));
                Kind::Several { names, claims }
            }
        };
        let action = match self.random.below(100) {
            0..25 => Action::Acquire(ttl),
            25..42 => Action::AcquireOrEnqueue(ttl, Arc::new(self.knock(false))),
            42..45 => {
                let (channel, turn) = (self.some_channel(), self.turn());
                Action::Dequeue(Arc::new(channel), turn, false)
            }
            45..54 => Action::Extend(ttl, ttl),
            54..59 => Action::Shorten(ttl),
            59..60 => Action::Leak(ttl),
            60..64 => Action::Release(Notify::None),
            64..68 => Action::Release(Notify::First),
            68..72 => Action::Release(Notify::FirstBut(self.some_channel())),
            // A permit is refilled in its slot.
            72..90 if slot.is_some() => Action::Repair(ttl),
            _ => Action::Fence(self.at_least()),
        };
        let mut bytes = Vec::new();
        let means = Dialect {
            scripts: Scripts::by_hash_if(self.random.chance(50)),
            beside: self.one_of(&[Beside::All, Beside::All, Beside::None]),
        };
        action.pack(&key.of_kind(kind), &Prefix::default(), means, &mut bytes);
        bytes
    }

    fn knock(&mut self, in_turn: bool) -> QueueEntry {
        let off = [
            -10_000, -501, -500, -499, -1, 0, 1, 300, 499, 500, 501, 10_000,
        ];
        let waited = self.one_of(&[0, 1, 700, 5000]);
        // Most often within the same millisecond.
        let now = self.time / 1000;
        QueueEntry {
            channel: self.some_channel(),
            arrived: now.saturating_add_signed(self.one_of(&off)) - waited.min(now),
            waited,
            lease: self.one_of(&[3, 20, 8000, u64::MAX >> 12]),
            turn: in_turn.then(|| self.turn()),
        }
    }

    fn at_least(&mut self) -> u64 {
        let now = self.time;
        let largest = (1 << 53) - 1;
        self.one_of(&[
            0,
            0,
            0,
            now,
            now + 50_000,
            now + 500_000,
            largest - 1,
            largest,
            largest + 2,
        ])
    }

    /// Data in the places of locks, queues, reservations and counters, and what others may do with it.
    pub(super) fn foreign(&mut self) -> Vec<u8> {
        let name = self.one_of(&NAMES).as_bytes();
        let channel = self.some_channel().bytes();
        let labelled = [&channel[..], b" web-3:4711"].concat();
        let token = self.token();
        let member = [b"redlock:s001", &token.as_bytes()[..]].concat();
        let reader = [b"redlock:r000", &token.as_bytes()[..]].concat();
        let mark = format!(
            "{} 0000000000000001 {}",
            self.time / 1000 - 100,
            String::from_utf8_lossy(&self.some_channel().bytes())
        );
        let mark = mark.into_bytes();
        let values: [&[u8]; 17] = [
            &member,
            &reader,
            &mark,
            b"redlock:s1",
            b"",
            b"x",
            b"postgres://admin:hunter2@db.example",
            &[b'y'; 300],
            token.as_bytes(),
            &channel,
            &labelled,
            b" x",
            b"7",
            b"",
            b"9007199254740989",
            b"nan",
            b"inf",
        ];
        let value = self.one_of(&values);
        let ttl: &[u8] = self.one_of(&[b"1", b"7", b"60000", b"2000000000000000"]);
        match self.random.below(15) {
            // The lock is reserved for this process or another one, or the reservation is other data.
            12 => {
                let reserved = self.one_of(&[&channel[..], value]);
                packed(&[b"SET", b"{a}:redlock:wt", reserved, b"PX", b"60000"])
            }
            // A writer that waits elsewhere, or has died; and data that is no holder.
            10 => packed(&[b"SET", b"{a}:redlock:ww", &mark, b"PX", b"60000"]),
            11 => packed(&[b"SET", self.one_of(&[&b"a"[..], b"b}"]), b""]),
            0 => packed(&[b"SET", name, value]),
            1 => packed(&[b"SET", name, value, b"PX", ttl]),
            2 => packed(&[b"HSET", name, b"field", b"value"]),
            3 => packed(&[b"ZADD", name, self.one_of(&[b"-5", b"17"]), value]),
            4 => packed(&[b"PEXPIRE", name, self.one_of(&[b"0", b"1", b"5", b"60000"])]),
            5 => packed(&[b"PERSIST", name]),
            13 | 14 => self.with_fields(&token),
            _ => packed(&[b"DEL", name]),
        }
    }

    /// A lock or a permit with fields of a later version, which may be longer than what is shown.
    fn with_fields(&mut self, token: &Token) -> Vec<u8> {
        let rest = [&b"\0redlock:\0\x6b\x49\xd2\0web-3:4711\0"[..], &[b'x'; 240]].concat();
        let length = self.one_of(&[14, 25, 236, 237, rest.len()]);
        let value = [token.as_bytes(), &rest[..length]].concat();
        if self.random.chance(50) {
            return packed(&[b"SET", b"a", &value]);
        }
        let end = (self.time / 1000 + 60_000).to_string();
        let member = [b"redlock:s001", &value[..]].concat();
        packed(&[b"ZADD", b"a", end.as_bytes(), &member])
    }
}

/// A caller that waits for the name learns that the readers have changed.
#[test]
fn a_waiter_can_tell_readers_apart_also_where_it_waits_for_several_names() {
    let server = Server::start();
    let mut line = server.connect();
    for script in LATER {
        line.ask(&[b"SCRIPT", b"LOAD", script.text]);
    }
    let mut ask = |action: Action, kind: &Kind, token: u8| {
        let token = Token::from_bytes([token; 20]);
        let key = Key::new(Arc::from(&b"a"[..]), token, None).of_kind(kind.clone());
        let mut bytes = Vec::new();
        action.pack(&key, &Prefix::default(), Dialect::ALL, &mut bytes);
        line.send(&bytes);
        line.reply().1
    };
    let names: [Arc<[u8]>; 2] = [Arc::from(&b"a"[..]), Arc::from(&b"b"[..])];
    let writes = Kind::Write(Mark {
        writer: 1,
        life: 0,
        waited: 0,
    });
    let acquire = || Action::Acquire(Ttl::new(Duration::from_secs(60)).unwrap());
    let reads = Kind::Read { waited: 0 };
    for kind in [writes, Kind::several(names.into())] {
        let mut seen = Vec::new();
        for token in [1, 2, 3] {
            ask(acquire(), &reads, token);
            let denied = match ask(acquire(), &kind, 9) {
                Reply::Bulk(denied) => denied,
                other => panic!("readers have it: {other:?}"),
            };
            let digits = text(&denied).split(' ').nth(1).unwrap().to_owned();
            assert!(digits.len() == 6 && !seen.contains(&digits), "{digits}");
            seen.push(digits);
        }
        for token in [1, 2, 3] {
            ask(Action::Release(Notify::None), &reads, token);
        }
    }
}
