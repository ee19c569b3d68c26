//! A TLS connection: that of the redis crate, with its weaker bounds of time. It is closed on any
//! error or timeout.

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(crate) use enabled::Tls;
#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
pub(crate) use missing::Tls;

#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
mod enabled {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use redis::{Connection, ConnectionInfo, RedisError, Value};

    use crate::error::Cause;
    use crate::plain::keepalive;
    use crate::script::Reply;

    pub(crate) struct Tls(Box<Connection>);

    impl Tls {
        pub(crate) fn connect(info: &ConnectionInfo, timeout: Duration) -> Result<Tls, Cause> {
            let settings = info.tcp_settings().clone().set_nodelay(true);
            let settings = settings.set_keepalive(keepalive(info.tcp_settings()));
            // With RESP3 the answer to INFO would be of another kind.
            let resp2 = info.redis_settings().clone();
            let resp2 = resp2.set_protocol(redis::ProtocolVersion::RESP2);
            let info = info.clone().set_tcp_settings(settings);
            let client = redis::Client::open(info.set_redis_settings(resp2));
            let connected =
                caught(|| client.and_then(|client| client.get_connection_with_timeout(timeout)));
            match connected {
                Some(Ok(connection)) => Ok(Tls(Box::new(connection))),
                Some(Err(error)) => Err(Cause::Connect(error.to_string())),
                None => Err(Cause::Connect(
                    "the TLS library panicked: rustls needs a crypto provider, which the program \
                     chooses"
                        .into(),
                )),
            }
        }

        pub(crate) fn send(&mut self, bytes: &[u8], rest: Duration) -> Result<(), Cause> {
            let sent = caught(|| {
                self.0.set_write_timeout(Some(rest))?;
                self.0.send_packed_command(bytes)
            });
            sent.ok_or_else(panicked)?
                .map_err(|error| cause(&error, rest))
        }

        pub(crate) fn recv(&mut self, rest: Duration) -> Result<Reply, Cause> {
            let received = caught(|| {
                self.0.set_read_timeout(Some(rest))?;
                self.0.recv_response()
            });
            let received = received.ok_or_else(panicked)?;
            received.map(reply).map_err(|error| cause(&error, rest))
        }
    }

    /// `None`: the TLS library panicked. rustls does where the program has chosen no crypto provider; and it
    /// logs by itself, to a logger that may panic.
    fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(work)).ok()
    }

    fn panicked() -> Cause {
        Cause::Closed("the TLS library panicked".into())
    }

    fn cause(error: &RedisError, waited: Duration) -> Cause {
        if error.is_timeout() {
            Cause::Silent(waited)
        } else if error.is_io_error() {
            Cause::Closed(error.to_string())
        } else {
            Cause::Garbage(error.to_string())
        }
    }

    fn reply(value: Value) -> Reply {
        match value {
            Value::Okay => Reply::Okay,
            Value::Nil => Reply::Nil,
            Value::Int(number) => Reply::Int(number),
            Value::BulkString(bytes) => Reply::Bulk(bytes),
            Value::ServerError(error) => Reply::Error(match error.details() {
                Some(details) => format!("{} {details}", error.code()),
                None => error.code().to_owned(),
            }),
            _ => Reply::Other,
        }
    }
}

/// Without a TLS feature there is none, and nothing of it in the program.
#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
mod missing {
    use std::time::Duration;

    use redis::ConnectionInfo;

    use crate::error::Cause;
    use crate::script::Reply;

    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) fn connect(info: &ConnectionInfo, _: Duration) -> Result<Tls, Cause> {
            Err(Cause::Connect(format!(
                "{}: TLS needs a feature",
                info.addr()
            )))
        }

        pub(crate) fn send(&mut self, _: &[u8], _: Duration) -> Result<(), Cause> {
            match *self {}
        }

        pub(crate) fn recv(&mut self, _: Duration) -> Result<Reply, Cause> {
            match *self {}
        }
    }
}
