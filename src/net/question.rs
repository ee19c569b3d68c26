//! What a directory is asked: many servers at once, one question each, and what their answers mean together.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::clock;
use crate::error::Cause;
use crate::net::connection::{Connection, Purpose};
use crate::net::peer::Peer;
use crate::protocol::resp::{self, Reply, ReplyReader};
use crate::protocol::slots::Map;

/// No reply is larger: of a Cluster whose 16384 slots are scattered over its servers one by one.
const MAX_REPLY: usize = 4 << 20;

/// Where a master is; and what else the server has said that was asked.
pub(crate) type Answer = Result<(ConnectionAddr, Option<Map>), Unknown>;

/// Why a server that was asked names no master.
pub(crate) enum Unknown {
    /// It knows of none.
    Name,
    Failed(Cause),
}

impl Unknown {
    fn is_silence(&self) -> bool {
        let silence = |cause: &Cause| matches!(cause, Cause::Connect(_) | Cause::NotConnected(..));
        matches!(self, Unknown::Failed(cause) if silence(cause))
    }
}

/// A master's address, how many servers name it, and what the first of them has said besides.
pub(crate) struct Named {
    pub(crate) addr: ConnectionAddr,
    pub(crate) count: usize,
    pub(crate) map: Option<Map>,
}

/// What the servers say together.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) named: Vec<Named>,
    /// Why others name none. Those that did not answer in time are missing.
    pub(crate) unknown: Vec<(usize, Unknown)>,
}

impl Said {
    /// Waits until more than half of `enough` servers agree, but not for longer than until then. `count`: how many are asked.
    pub(crate) fn gather(
        answers: &Receiver<(usize, Answer)>,
        (count, enough): (usize, usize),
        (until, time): (Instant, Duration),
    ) -> Said {
        let mut said = Said::default();
        let left = || until.saturating_duration_since(clock::instant());
        while !said.is_certain(enough)
            && let Ok((at, answer)) = answers.recv_timeout(left())
        {
            said.add(at, answer);
        }
        let heard = |at: usize| said.unknown.iter().any(|(heard, _)| *heard == at);
        let silent: Vec<usize> = match said.named.is_empty() {
            true => (0..count).filter(|at| !heard(*at)).collect(),
            false => Vec::new(),
        };
        for at in silent {
            said.add(at, Err(Unknown::Failed(Cause::NotConnected(time, time))));
        }
        said
    }

    fn add(&mut self, at: usize, said: Answer) {
        match said {
            Err(why) => self.unknown.push((at, why)),
            Ok((addr, map)) => match self.named.iter_mut().find(|named| named.addr == addr) {
                Some(named) => named.count += 1,
                None => self.named.push(Named {
                    addr,
                    count: 1,
                    map,
                }),
            },
        }
    }

    /// Whether more than half of `count` servers name the same address: the rest cannot change that.
    fn is_certain(&self, count: usize) -> bool {
        self.named.iter().any(|named| named.count > count / 2)
    }

    /// What most of those name that name any.
    pub(crate) fn majority(&self) -> Option<&Named> {
        let count = self.named.iter().map(|named| named.count).sum::<usize>();
        let mut named = self.named.iter();
        named.find(|named| named.count > count / 2)
    }

    /// Whether none of them has answered anything.
    pub(crate) fn is_silence(&self) -> bool {
        self.named.is_empty() && self.unknown.iter().all(|(_, why)| why.is_silence())
    }
}

/// The reply to one command, over a connection of its own.
pub(crate) fn ask(
    peer: &Peer,
    command: &[&[u8]],
    (until, timeout): (Instant, Duration),
) -> Result<Reply, Cause> {
    let (mut connection, handshake) = Connection::open(peer, timeout, Purpose::Questions)?;
    let (mut bytes, mut buffer) = (Vec::new(), Vec::new());
    resp::pack(&mut bytes, &[command], None);
    connection.send(&bytes, until, clock::instant())?;
    let mut reader = ReplyReader::new(handshake.secret).up_to(MAX_REPLY);
    loop {
        if let Some(reply) = reader.next()? {
            return Ok(reply);
        }
        match connection.recv(&mut buffer, until, clock::instant())? {
            [] => return Err(Cause::NotConnected(timeout, timeout)),
            bytes => reader.push(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    const TIME: Duration = Duration::from_millis(700);

    fn named(name: &str) -> Answer {
        match name {
            "-" => Err(Unknown::Failed(Cause::NotConnected(TIME, TIME))),
            "x" => Err(Unknown::Failed(Cause::Connect("refused".into()))),
            "?" => Err(Unknown::Name),
            "!" => Err(Unknown::Failed(Cause::Refused("NOAUTH".into()))),
            host => Ok((ConnectionAddr::Tcp(host.into(), 1), None)),
        }
    }

    #[test]
    fn most_of_those_that_name_a_master_are_believed() {
        for (said, certain, believed, silence) in [
            (&["a", "a", "b"][..], true, Some("a"), false),
            (&["a", "a"], true, Some("a"), false),
            (&["a", "b", "b"], true, Some("b"), false),
            (&["a"], false, Some("a"), false),
            (&["a", "-", "x"], false, Some("a"), false),
            (&["a", "!", "?"], false, Some("a"), false),
            (&["a", "b"], false, None, false),
            (&["a", "b", "c"], false, None, false),
            (&["-", "x", "x"], false, None, true),
            (&["-", "x", "!"], false, None, false),
            (&["?", "?", "?"], false, None, false),
        ] {
            let mut all = Said::default();
            for (at, name) in said.iter().enumerate() {
                all.add(at, named(name));
            }
            let host = |named: &Named| text::address(&named.addr).replace(":1", "");
            assert_eq!(all.is_certain(3), certain, "{said:?}");
            assert_eq!(all.majority().map(host).as_deref(), believed, "{said:?}");
            assert_eq!(all.is_silence(), silence, "{said:?}");
        }
    }
}
