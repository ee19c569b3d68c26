//! Who waits for a lock that another process holds: a queue beside the lock, on each node.
//!
//! A process that was denied *knocks*: one script takes the lock, or puts the name of the process's channel
//! into the queue and tells who has the lock and for how long. A release takes the first name out of the queue
//! and publishes the resource on that channel; where nobody listens, the next name's turn has come.
//!
//! The queue is a hint. It gives nobody a lock; all that concerns it is called so that its failure does no
//! harm, and who waits tries again by itself in any case.
//!
//! *Fair* waiters leave a free lock to whoever has waited longest. A release keeps it for the one that it told:
//! that one's [turn](Turn). Turns end by themselves, so that no one who has gone or hangs, and no two nodes that
//! see different waiters first, keep a lock from all others.

use std::time::Duration;

use crate::protocol::resp::Reply;
use crate::protocol::script::Script;

/// Compare-and-delete, and tell the first who listens: 0 not held, 1 deleted, 2 and somebody was told. A fair
/// holder says for how long the lock is kept for that one then; or one who is not, who is not to be told.
pub(crate) const TELL: Script = Script {
    text: b"if string.sub(redis.call('GET',KEYS[1]) or '',1,20)~=ARGV[1] then return 0 end redis.call('DEL',KEYS[1]) \
    local c,a=redis.pcall,ARGV[2] for i=1,99 do \
    local w=c('ZPOPMIN',KEYS[1]..':w')[1] if not w then return 1 end \
    local n=w==a and 0 or c('PUBLISH',w,KEYS[1]) if n~=0 then if type(n)~='number' then return 1 end \
    if tonumber(a) then local u=KEYS[1]..':wt' local o=c('GET',u) \
    if type(o)=='string' and string.sub(o,1,8)=='redlock:' then c('DEL',u) end c('SET',u,w,'NX','PX',a) end \
    return 2 end end return 1",
    hash: b"56e4597538266f041150e118d2a752cce4e8cefc",
};

/// Into the queue. Its order is that of arrival: by the waiter's clock, so that all nodes agree, unless that is
/// more than half a second off the node's. One of the arguments is how long the queue is kept; a foreign value in its
/// place, which may be another lock, keeps its time.
macro_rules! join {
    () => {
        "local s,t=tonumber(ARGV[4]),c('TIME') \
        if t[1] then local n=t[1]*1000+math.floor(t[2]/1000)-ARGV[5] if math.abs(s-n)>500 then s=n end end \
        local w=' -' if type(c('ZADD',q,string.format('%.0f',s),ARGV[3]))=='number' then c('PEXPIRE',q,ARGV[6]) w=' w' end "
    };
}

/// What is seen of the lock: how long its key lives, and part of a hash of what is in it. Without an end that is -1;
/// it is no lock then. Neither is what holds data of another type: -2. What may not be asked is unknown.
macro_rules! see {
    () => {
        "local v,p=c('GET',k),c('PTTL',k) \
        if type(v)=='table' and string.sub(v.err,1,9)=='WRONGTYPE' then return '-2 -'..w end \
        if type(v)~='string' or type(p)~='number' then return '-1 -'..w end \
        return p..' '..string.sub(redis.sha1hex(string.sub(v,1,20)),1,6)..w"
    };
}

/// Acquire, or wait in the queue. It may have been this one's turn, if the one before was fair.
pub(crate) const KNOCK: Script = Script {
    text: concat!(
        "local c,k=redis.pcall,KEYS[1] local q=k..':w' \
        if redis.call('SET',k,ARGV[1],'NX','PX',ARGV[2]) then c('ZREM',q,ARGV[3]) \
        if c('GET',q..'t')==ARGV[3] then c('DEL',q..'t') end return redis.status_reply('OK') end ",
        join!(),
        see!()
    )
    .as_bytes(),
    hash: b"66928d4b445231fd1ff96204971cd9da39a37f97",
};

/// Wait in the queue, and acquire only in turn: who was told last has the turn, for so long (the last argument).
/// If that is over, or nobody was told, it is the first in the queue. Who finds it to be another one tells that
/// one, and what is seen is how long the lock is kept for it.
///
/// Where the queue cannot be used, or nobody can be told, it is everybody's turn. A foreign value in place of the turn, which may be
/// another lock, is neither believed nor touched.
pub(crate) const WAIT_IN_TURN: Script = Script {
    text: concat!(
        "local c,k,me=redis.pcall,KEYS[1],ARGV[3] local q,u=k..':w',k..':wt' ",
        join!(),
        "if c('GET',k)==false then local o=me if w==' w' then o=c('GET',u) \
        if type(o)~='string' or string.sub(o,1,8)~='redlock:' then for i=1,99 do \
        o=c('ZRANGE',q,0,0)[1] or me if o==me then break end \
        c('ZREM',q,o) local n=c('PUBLISH',o,k) if type(n)~='number' then o=me break end \
        if n~=0 then c('SET',u,o,'NX','PX',ARGV[7]) break end end end end \
        if o~=me then local p=c('PTTL',u) return (type(p)=='number' and math.max(p,0) or 0)..' -'..w end \
        if c('GET',u)==me then c('DEL',u) end c('ZREM',q,me) \
        if redis.call('SET',k,ARGV[1],'NX','PX',ARGV[2]) then return redis.status_reply('OK') end end ",
        see!()
    )
    .as_bytes(),
    hash: b"cf613cd6c8ab56b366698fd4da91a2ad121f3af7",
};

/// Leave the queue; if the lock is free, whoever is first now is told. The lock is kept for that one if it was this
/// one's turn, or this one is fair.
pub(crate) const LEAVE: Script = Script {
    text: b"local c,k,me=redis.pcall,KEYS[1],ARGV[1] local q,u=k..':w',k..':wt' c('ZREM',q,me) \
    local o=c('GET',u) if o==me then c('DEL',u) \
    elseif type(o)=='string' and string.sub(o,1,8)=='redlock:' then return 0 end \
    if c('EXISTS',k)~=0 then return 0 end for i=1,99 do \
    local w=c('ZPOPMIN',q)[1] if not w then return 1 end \
    local n=c('PUBLISH',w,k) if n~=0 then if type(n)~='number' then return 1 end \
    if o==me or ARGV[2]=='1' then c('SET',u,w,'NX','PX',ARGV[3]) end return 2 end end return 1",
    hash: b"802f113f7c64b28b237421c0240a8d8bb358de24",
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
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Of the name.
    pub(crate) fn bytes(self) -> [u8; 40] {
        let mut name = *b"redlock:00000000000000000000000000000000";
        let digit = |half: u8| half + if half < 10 { b'0' } else { b'a' - 10 };
        let digits = self.0.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        for (place, half) in name.iter_mut().skip(8).zip(digits) {
            *place = digit(half);
        }
        name
    }
}

/// How long a node keeps a free lock for the one that it has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(Duration);

impl Turn {
    /// Long enough to be woken, and to knock on all nodes.
    pub(crate) fn new(node_timeout: Duration) -> Turn {
        let (shortest, longest) = (Duration::from_millis(250), Duration::from_secs(1));
        Turn(node_timeout.saturating_mul(4).clamp(shortest, longest))
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    /// Who has found the lock free for so long, and always kept for others, takes it out of turn: nodes may
    /// never agree whose turn it is.
    pub(crate) fn patience(self) -> Duration {
        self.0 * 4
    }

    pub(crate) fn millis(self) -> u64 {
        millis(self.0)
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
    /// It takes the lock only in turn; the one whose turn it is instead has so long.
    pub(crate) turn: Option<Turn>,
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

/// What is in the place of a lock and is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    OtherType,
    /// It never ends.
    NoTtl,
}

/// What a node that denied a knock says of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How long its key still lives, or how long it is kept for another. Unknown where that may not be asked, or
    /// it has no end.
    pub(crate) left: Option<Duration>,
    /// A part of the token's hash. Unknown where that may not be asked, or nobody has the lock.
    pub(crate) holder: Option<u32>,
    /// This process is in the queue there.
    pub(crate) queued: bool,
    /// The key holds data of another type.
    pub(crate) other_type: bool,
}

impl Seen {
    /// Nobody has the lock: it is kept for another who waits.
    pub(crate) fn is_kept(&self) -> bool {
        self.holder.is_none() && self.left.is_some()
    }

    /// The key is no lock. (The time of one is unknown only if nothing else is known.)
    pub(crate) fn foreign(&self) -> Option<Foreign> {
        match (self.other_type, self.left, self.holder) {
            (true, ..) => Some(Foreign::OtherType),
            (_, None, Some(_)) => Some(Foreign::NoTtl),
            _ => None,
        }
    }

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
            other_type: left == -2 && holder == "-",
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
    use crate::secret::Secret;

    #[test]
    fn what_a_denied_knock_says() {
        let seen = |text: &str| Seen::parse(&Reply::Bulk(text.into()));
        let known = |left, holder, queued| {
            Some(Seen {
                left,
                holder,
                queued,
                ..Seen::default()
            })
        };
        let ms = Duration::from_millis;
        let holder = Some(0x0000_a1ff);
        assert_eq!(seen("1500 00a1ff w"), known(Some(ms(1500)), holder, true));
        assert_eq!(seen("0 000000 -"), known(Some(ms(0)), Some(0), false));
        assert_eq!(seen("-1 00a1ff w"), known(None, holder, true));
        assert_eq!(seen("-1 - -"), known(None, None, false));
        assert_eq!(seen("250 - w"), known(Some(ms(250)), None, true));
        let foreign = |text| seen(text).unwrap().foreign();
        assert_eq!(foreign("-1 00a1ff w"), Some(Foreign::NoTtl));
        assert_eq!(foreign("-2 - -"), Some(Foreign::OtherType));
        for lock in ["1500 00a1ff w", "0 000000 -", "250 - w", "-1 - -"] {
            assert_eq!(foreign(lock), None, "{lock}");
        }
        let kept = |text| seen(text).unwrap().is_kept();
        assert!(kept("250 - w") && !kept("-1 - -") && !kept("250 00a1ff w"));
        for bad in ["", "1500", "x 00a1ff w", "1500 00a1ff", "  "] {
            assert_eq!(seen(bad), None, "{bad}");
        }
        assert_eq!(Seen::parse(&Reply::Int(1)), None);
    }

    #[test]
    fn messages_are_told_from_all_else() {
        let of = |bytes: &[u8]| message(resp::parse(bytes, &Secret::default()).unwrap().unwrap().0);
        let told = b"*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$3\r\na\r\n\r\n";
        assert_eq!(of(told), Some(b"a\r\n".to_vec()));
        assert_eq!(of(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"), None);
        assert_eq!(of(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"), None);
    }

    #[test]
    fn a_turn_is_four_node_timeouts_and_neither_very_short_nor_very_long() {
        let ms = Duration::from_millis;
        let turn = |timeout| Turn::new(timeout).millis();
        assert_eq!(
            [1, 100, 250, 9000].map(|t| turn(ms(t))),
            [250, 400, 1000, 1000]
        );
        assert_eq!(turn(Duration::MAX), 1000);
        assert_eq!(Turn::new(ms(50)).patience(), ms(1000));
    }

    #[test]
    fn a_channel_has_a_name_of_forty_characters() {
        let name = Channel::new([0xA9; 16]).name();
        assert_eq!(name, format!("redlock:{}", "a9".repeat(16)));
    }
}
