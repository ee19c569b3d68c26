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

    use crate::error::{Cause, Limit};
    use crate::net::plain::keepalive;

    pub(crate) struct Tls(Box<Connection>);

    impl Tls {
        pub(crate) fn connect(info: &ConnectionInfo, timeout: Duration) -> Result<Tls, Cause> {
            let settings = info.tcp_settings().clone().set_nodelay(true);
            let settings = settings.set_keepalive(keepalive(info.tcp_settings()));
            // With RESP3 the answer to INFO would be of another kind. The redis crate would not hand on what the
            // server says to a password or a database: both are sent later.
            let resp2 = redis::RedisConnectionInfo::default();
            let resp2 = resp2.set_protocol(redis::ProtocolVersion::RESP2);
            let info = info.clone().set_tcp_settings(settings);
            let client = redis::Client::open(info.set_redis_settings(resp2));
            let connected =
                caught(|| client.and_then(|client| client.get_connection_with_timeout(timeout)));
            match connected {
                Some(Ok(connection)) => Ok(Tls(Box::new(connection))),
                Some(Err(error)) if error.is_timeout() => {
                    Err(Cause::NotConnected(timeout, timeout))
                }
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

        /// One reply, as the bytes that it was.
        pub(crate) fn recv(&mut self, rest: Duration) -> Result<Vec<u8>, Cause> {
            let received = caught(|| {
                self.0.set_read_timeout(Some(rest))?;
                self.0.recv_response()
            });
            let received = received.ok_or_else(panicked)?;
            let mut bytes = Vec::new();
            pack(&received.map_err(|error| cause(&error, rest))?, &mut bytes);
            Ok(bytes)
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
            Cause::Silent(waited, Limit::Rest)
        } else if error.is_io_error() {
            Cause::Closed(error.to_string())
        } else {
            Cause::Garbage(error.to_string())
        }
    }

    fn pack(value: &Value, out: &mut Vec<u8>) {
        let line = match value {
            Value::Okay => "+OK".to_owned(),
            Value::Nil => "$-1".to_owned(),
            Value::Int(number) => format!(":{number}"),
            Value::BulkString(bytes) => {
                out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                out.extend_from_slice(bytes);
                String::new()
            }
            Value::ServerError(error) => match error.details() {
                Some(details) => format!("-{} {details}", error.code()),
                None => format!("-{}", error.code()),
            },
            Value::Array(items) => {
                out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
                return items.iter().for_each(|item| pack(item, out));
            }
            _ => "+?".to_owned(),
        };
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Without a TLS feature there is none, and nothing of it in the program.
#[cfg(not(any(feature = "tls-rustls", feature = "tls-native-tls")))]
mod missing {
    use std::time::Duration;

    use redis::ConnectionInfo;

    use crate::error::Cause;
    use crate::text::address;

    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) fn connect(info: &ConnectionInfo, _: Duration) -> Result<Tls, Cause> {
            Err(Cause::Connect(format!(
                "{}: TLS needs the feature `tls-rustls` or `tls-native-tls`",
                address(info.addr())
            )))
        }

        pub(crate) fn send(&mut self, _: &[u8], _: Duration) -> Result<(), Cause> {
            match *self {}
        }

        pub(crate) fn recv(&mut self, _: Duration) -> Result<Vec<u8>, Cause> {
            match *self {}
        }
    }
}
