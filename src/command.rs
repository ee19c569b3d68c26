//! What the command `redlock` needs beside the public interface. It may change in any version.

use redis::{ConnectionInfo, ConnectionLike, Parser, RedisResult, Value};

use crate::label::Label;
use crate::lock_value;
use crate::ops::query::Query;
use crate::secret::Secret;
use crate::{Redlock, Token};

/// The length of a token.
pub const TOKEN: usize = lock_value::TOKEN;
/// The longest label, in bytes.
pub const MAX_LABEL: usize = Label::MAX;
/// No lock's value is longer.
pub const LONGEST_VALUE: usize = lock_value::LONGEST;

/// The token and the label of a lock. `None`: the value is other data, of which nothing may be shown. If the value is not
/// whole, it must be longer than [`LONGEST_VALUE`].
pub fn token_and_label(value: &[u8]) -> Option<(Token, Option<String>)> {
    let (token, label) = lock_value::parse(value, value.len())?;
    Some((token, label.map(|label| label.as_str().to_owned())))
}

/// A node's text up to where it repeats the node's password.
pub fn without_password(node: &ConnectionInfo, text: &str) -> String {
    Secret::of(node.redis_settings().password()).cut(text)
}

/// A connection of its own to a node, made as those for locks are, for the redis crate's commands.
pub struct Questions {
    query: Query,
    parser: Parser,
}

impl Questions {
    /// Connects within `connect_timeout`. From then on, and from each [`renew`](Questions::renew) on, there are
    /// `timeouts` times `node_timeout` for all answers.
    ///
    /// # Errors
    ///
    /// Why it is not connected.
    pub fn open(redlock: &Redlock, node: usize, timeouts: u32) -> Result<Questions, String> {
        let peer = redlock.peers().get(node).ok_or("there is no such node")?;
        let (connect, node_timeout) = redlock.timeouts();
        let time = (node_timeout.saturating_mul(timeouts), timeouts);
        let query = Query::open(peer, connect, time).map_err(|cause| cause.to_string())?;
        let parser = Parser::new();
        Ok(Questions { query, parser })
    }

    /// The time begins anew.
    pub fn renew(&mut self) {
        self.query.renew();
    }
}

impl std::fmt::Debug for Questions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Questions(..)")
    }
}

impl ConnectionLike for Questions {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.query.send(command)?;
        self.parser.parse_value(&mut self.query)
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.query.send(commands)?;
        let mut replies = Vec::new();
        for number in 0..offset.saturating_add(count) {
            let reply = self.parser.parse_value(&mut self.query)?;
            if number >= offset {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}
