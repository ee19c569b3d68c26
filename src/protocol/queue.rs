//! Who waits for a lock that another process holds: a queue beside the lock, on each node.
//!
//! A process that was denied *knocks*: one script takes the lock, or puts the name of the process's channel
//! into the queue and tells who has the lock and for how long. A release takes the first name out of the queue
//! and publishes the resource on that channel; where nobody listens, the next name's turn has come.
//!
//! The queue is a hint. It decides no grant; all that concerns it is called so that its failure does no
//! harm, and who waits tries again by itself in any case.

use std::time::Duration;

use crate::protocol::resp::Reply;
use crate::protocol::script::Script;

/// Compare-and-delete, and tell the first who listens: 0 not held, 1 deleted, 2 and somebody was told.
pub(crate) const TELL: Script = Script {
    text: b"if redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end redis.call('DEL',KEYS[1]) \
    local c=redis.pcall for i=1,99 do \
    local w=c('ZPOPMIN',KEYS[1]..':w')[1] if not w then return 1 end \
    local n=c('PUBLISH',w,KEYS[1]) if n~=0 then return type(n)=='number' and 2 or 1 end end return 1",
    hash: b"97a902d38b01d4fd5030a66cad2ada36aa164fe2",
};

/// Acquire, or wait in the queue. Its order is that of arrival: by the waiter's clock, so that all nodes agree,
/// unless that is more than a second off the node's. The last argument is how long the queue is kept; a foreign
/// value in its place, which may be another lock, keeps its time.
pub(crate) const KNOCK: Script = Script {
    text: b"local c,k=redis.pcall,KEYS[1] local q=k..':w' \
    if redis.call('SET',k,ARGV[1],'NX','PX',ARGV[2]) then c('ZREM',q,ARGV[3]) return redis.status_reply('OK') end \
    local s,t=tonumber(ARGV[4]),c('TIME') \
    if t[1] then local n=t[1]*1000+math.floor(t[2]/1000)-ARGV[5] if math.abs(s-n)>1000 then s=n end end \
    local w=' -' if type(c('ZADD',q,string.format('%.0f',s),ARGV[3]))=='number' then c('PEXPIRE',q,ARGV[6]) w=' w' end \
    local v,p=c('GET',k),c('PTTL',k) \
    if type(v)~='string' or type(p)~='number' then return '-1 -'..w end \
    return p..' '..string.sub(redis.sha1hex(v),1,6)..w",
    hash: b"7b76353d885524167782d5f4637dabe748629293",
};

/// Leave the queue; if the lock is free, whoever is first now is told.
pub(crate) const LEAVE: Script = Script {
    text: b"local c,k=redis.pcall,KEYS[1] local q=k..':w' c('ZREM',q,ARGV[1]) \
    if c('EXISTS',k)~=0 then return 0 end for i=1,99 do \
    local w=c('ZPOPMIN',q)[1] if not w then return 1 end \
    local n=c('PUBLISH',w,k) if n~=0 then return type(n)=='number' and 2 or 1 end end return 1",
    hash: b"cfe287f1cc518ce981f6521a1a4f54d4e0847187",
};

/// On which a process is told. One for all its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel([u8; 16]);

impl Channel {
    /// Of random bytes.
    pub(crate) fn new(random: [u8; 16]) -> Channel {
        Channel(random)
    }

    pub(crate) fn name(self) -> String {
        use std::fmt::Write;
        let mut name = String::from("redlock:");
        for byte in self.0 {
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

/// What a knock says of who knocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Knock {
    pub(crate) channel: Channel,
    /// By its wall clock, in milliseconds since 1970.
    pub(crate) arrived: u64,
    /// In milliseconds.
    pub(crate) waited: u64,
    /// In milliseconds: how long the queue is kept after the last knock of anybody.
    pub(crate) lease: u64,
}

/// Whole milliseconds; at most so many that a server can add them to its time of day.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .min(u64::MAX >> 12)
}

impl Knock {
    /// What follows resource, token and ttl.
    pub(crate) fn arguments(&self) -> [String; 4] {
        [
            self.channel.name(),
            self.arrived.to_string(),
            self.waited.to_string(),
            self.lease.to_string(),
        ]
    }
}

/// What a node that denied a knock says of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How long its key still lives. Unknown where that may not be asked, or it has no end.
    pub(crate) left: Option<Duration>,
    /// A part of the token's hash.
    pub(crate) holder: Option<u32>,
    /// This process is in the queue there.
    pub(crate) queued: bool,
}

impl Seen {
    /// `None`: that is no answer to a knock.
    pub(crate) fn parse(reply: &Reply) -> Option<Seen> {
        let Reply::Bulk(bulk) = reply else {
            return None;
        };
        let mut words = str::from_utf8(bulk).ok()?.split(' ');
        let left: i64 = words.next()?.parse().ok()?;
        let (holder, queued) = (words.next()?, words.next()? == "w");
        Some(Seen {
            queued,
            left: u64::try_from(left).ok().map(Duration::from_millis),
            holder: u32::from_str_radix(holder, 16).ok(),
        })
    }
}

/// The resource of a message on the channel.
pub(crate) fn message(reply: Reply) -> Option<Vec<u8>> {
    let Reply::Array(items) = reply else {
        return None;
    };
    match <[Reply; 3]>::try_from(items) {
        Ok([Reply::Bulk(kind), _, Reply::Bulk(resource)]) if kind == b"message" => Some(resource),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::resp;

    #[test]
    fn what_a_denied_knock_says() {
        let seen = |text: &str| Seen::parse(&Reply::Bulk(text.into()));
        let known = |left, holder, queued| {
            Some(Seen {
                left,
                holder,
                queued,
            })
        };
        let ms = Duration::from_millis;
        let holder = Some(0x0000_a1ff);
        assert_eq!(seen("1500 00a1ff w"), known(Some(ms(1500)), holder, true));
        assert_eq!(seen("0 000000 -"), known(Some(ms(0)), Some(0), false));
        assert_eq!(seen("-1 00a1ff w"), known(None, holder, true));
        assert_eq!(seen("-1 - -"), known(None, None, false));
        for bad in ["", "1500", "x 00a1ff w", "1500 00a1ff", "  "] {
            assert_eq!(seen(bad), None, "{bad}");
        }
        assert_eq!(Seen::parse(&Reply::Int(1)), None);
    }

    #[test]
    fn messages_are_told_from_all_else() {
        let of = |bytes: &[u8]| message(resp::parse(bytes).unwrap().unwrap().0);
        let told = b"*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$3\r\na\r\n\r\n";
        assert_eq!(of(told), Some(b"a\r\n".to_vec()));
        assert_eq!(of(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"), None);
        assert_eq!(of(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"), None);
    }

    #[test]
    fn a_channel_has_a_name_of_forty_characters() {
        let name = Channel::new([0xAB; 16]).name();
        assert_eq!(name, format!("redlock:{}", "ab".repeat(16)));
    }
}
