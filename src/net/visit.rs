//! A connection of its own to each node, for some questions beside the locks: it disturbs none of them, and
//! sees what they see.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use crate::clock;
use crate::error::Cause;
use crate::net::connection::{Connection, Purpose};
use crate::protocol::resp::{self, Reply};

pub(crate) struct Visit {
    connection: Connection,
    inbox: Vec<u8>,
    buffer: Vec<u8>,
    /// For all answers.
    time: Duration,
    until: Instant,
}

impl Visit {
    /// Connects within `timeout`; from then on there is `time` for all questions.
    fn open(info: &ConnectionInfo, timeout: Duration, time: Duration) -> Result<Visit, Cause> {
        let (connection, _) = Connection::open(info, timeout, Purpose::Messages)?;
        Ok(Visit {
            connection,
            inbox: Vec::new(),
            buffer: Vec::new(),
            time,
            until: clock::instant() + time,
        })
    }

    /// Whom it is connected to; unknown over TLS and Unix sockets.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.connection.peer_ip()
    }

    /// Sends commands that are packed already, as many as `N`.
    pub(crate) fn ask<const N: usize>(&mut self, commands: &[u8]) -> Result<[Reply; N], Cause> {
        self.connection
            .send(commands, self.until, clock::instant())?;
        let mut replies = [const { Reply::Other }; N];
        for reply in &mut replies {
            *reply = self.reply()?;
        }
        match self.inbox.is_empty() {
            true => Ok(replies),
            false => Err(Cause::Garbage("more than was asked for".into())),
        }
    }

    fn reply(&mut self) -> Result<Reply, Cause> {
        loop {
            if let Some((reply, length)) = resp::parse(&self.inbox)? {
                self.inbox.drain(..length);
                return Ok(reply);
            }
            let now = clock::instant();
            if now >= self.until {
                return Err(Cause::Silent(self.time));
            }
            let bytes = self.connection.recv(&mut self.buffer, self.until, now)?;
            self.inbox.extend_from_slice(bytes);
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // A forked child may have a copy.
        self.connection.shutdown();
    }
}

/// Visits all nodes at a time, each within `timeouts`: to connect, and for all questions.
pub(crate) fn each<T: Send>(
    infos: &[ConnectionInfo],
    (connect, time): (Duration, Duration),
    ask: impl Fn(&mut Visit) -> Result<T, Cause> + Sync,
) -> Vec<Result<T, Cause>> {
    let visit = |info| ask(&mut Visit::open(info, connect, time)?);
    std::thread::scope(|scope| {
        let start = |(node, info)| {
            let visit = &visit;
            let thread = std::thread::Builder::new().name(format!("redlock-visit-{node}"));
            thread.spawn_scoped(scope, move || visit(info))
        };
        let threads: Vec<_> = infos.iter().enumerate().map(start).collect();
        let end = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
            // Only a bug can make it panic.
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| Err(Cause::Closed("by a panic".into()))),
            Err(error) => Err(Cause::NoThread(error.to_string())),
        };
        threads.into_iter().map(end).collect()
    })
}
