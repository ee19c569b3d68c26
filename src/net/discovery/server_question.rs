//! One question to one server of a directory.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::{Cause, Limit};
use crate::net::socket::connection::Connection;
use crate::net::socket::conversation::Conversation;
use crate::net::socket::open::Begins;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::protocol::discovery::opinions;
use crate::protocol::node::server_properties::ServerProperties;
use crate::settings::credentials::Credentials;
use crate::values::clock;

/// The longest reply: for a Cluster whose 16384 slots are scattered over its servers one by one, each with three
/// servers of long names.
const MAX_REPLY: usize = 16 << 20;
/// The time in which a caller hears that its question has ended.
const HEARD: Duration = Duration::from_millis(150);

/// The answers of servers that name masters by their addresses.
pub(crate) type Opinions = opinions::Opinions<ConnectionAddr>;
pub(crate) type NamedAddress = opinions::NamedAddress<ConnectionAddr>;

/// How much of a caller's time a question has: it ends before the caller's time does.
pub(crate) fn share(time: Duration) -> Duration {
    time - (time / 4).min(HEARD)
}

/// The time for a question to one server: when it ends, and how long it lasts.
pub(crate) struct QuestionTime<'a> {
    pub(crate) until: Instant,
    pub(crate) timeout: Duration,
    /// Called when only the server is left to wait for: its name is resolved, and the credentials are there. A thread
    /// for which that comes too late does not wait long enough to call the server silent.
    pub(crate) begins: &'a Begins<'a>,
}

/// Takes a reply out of the reader, once it is complete. The flag: whether nothing of the reply was read before.
type Read<'a> = &'a mut dyn FnMut(&mut ReplyReader, bool) -> Result<Option<Reply>, Cause>;

/// The replies to these commands, over a separate connection to the server at this address of the name, with these credentials,
/// by that time. Without a first reply there is none; a server that does not answer the second command may end the connection.
pub(crate) fn ask_address(
    peer: &Peer,
    at: (Option<&SocketAddr>, Option<&Credentials>),
    commands: [&[&[u8]]; 2],
    time: (Instant, Duration),
) -> Result<(Reply, Option<Reply>), Cause> {
    let opened = Connection::open_address(peer, at, time)?;
    let mut conversation = send(opened, &commands, time)?;
    let first = reply(&mut conversation, &mut |reader, _| reader.next())?;
    let second = reply(&mut conversation, &mut |reader, _| reader.next());
    Ok((first, second.ok()))
}

/// The reply to one command, over a separate connection.
pub(crate) fn ask(peer: &Peer, command: &[&[u8]], turn: &QuestionTime<'_>) -> Result<Reply, Cause> {
    ask_and_read(peer, command, turn, &mut |reader, _| reader.next())
}

/// Asks like [`ask`], with `read` for the reply. If the server has several addresses, and one refuses to answer, the
/// next one is asked.
pub(crate) fn ask_and_read(
    peer: &Peer,
    command: &[&[u8]],
    turn: &QuestionTime<'_>,
    read: Read<'_>,
) -> Result<Reply, Cause> {
    let mut refused = None;
    let left = turn.until.saturating_duration_since(clock::instant());
    let time = turn.timeout;
    let mut then = |opened, until| match reply(&mut send(opened, &[command], (until, time))?, read)?
    {
        Reply::Error(text) => {
            let cause = Cause::refused(&text);
            refused.get_or_insert(Reply::Error(text));
            Err(cause)
        }
        reply => Ok(reply),
    };
    let answered = Connection::open_and(peer, left, Purpose::Questions, (turn.begins, &mut then));
    answered.or_else(|cause| refused.ok_or(cause))
}

/// Sends commands.
fn send(
    (connection, properties): (Connection, ServerProperties),
    commands: &[&[&[u8]]],
    (until, timeout): (Instant, Duration),
) -> Result<Conversation, Cause> {
    let mut bytes = Vec::new();
    for command in commands {
        resp::pack(&mut bytes, &[command], None);
    }
    // A server that answers nothing has answered before, so it is there.
    let late = Cause::NoAnswer(timeout, Limit::Own);
    let mut conversation = Conversation::new((connection, properties.secret), until, late);
    conversation.send(&bytes)?;
    Ok(conversation)
}

/// The next reply, which has a bound.
fn reply(conversation: &mut Conversation, read: Read<'_>) -> Result<Reply, Cause> {
    conversation.reply_by(|reader, received| {
        if received > MAX_REPLY {
            let most = MAX_REPLY >> 20;
            let text = format!("its answer is longer than {most} MiB");
            return Err(Cause::Endless(text));
        }
        read(reader, received == 0)
    })
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::net::socket::trust::Trust;
    use crate::settings::tls::Tls;

    const TIME: Duration = Duration::from_millis(700);

    fn peers() -> [Peer; 3] {
        [1, 2, 3].map(|port| {
            let info = ("127.0.0.1", port).into_connection_info().unwrap();
            let trust = Trust::new(&Tls::default(), [&info]);
            Peer::new(info, &trust, None)
        })
    }

    #[test]
    fn a_server_that_is_asked_too_late_is_not_asked() {
        // No server listens there.
        let [peer, ..] = peers();
        let ask = |begins: &Begins<'_>| {
            let turn = QuestionTime {
                until: crate::values::clock::instant() + TIME,
                timeout: TIME,
                begins,
            };
            ask(&peer, &[b"PING"], &turn)
        };
        assert!(matches!(
            ask(&|| Err(Cause::NotAsked)),
            Err(Cause::NotAsked)
        ));
        assert!(ask(&|| Ok(())).is_err_and(|cause| cause.is_silence()));
    }

    #[test]
    fn a_question_is_over_before_its_caller() {
        for (time, expected) in [(850, 700), (5000, 4850), (400, 300), (0, 0)] {
            let [time, expected] = [time, expected].map(Duration::from_millis);
            assert_eq!(share(time), expected);
        }
    }
}
