//! User and password, from a closure of the program.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::RedisConnectionInfo;

use crate::errors::secret::Secret;

/// An error of the program is shown up to this length.
const MAX_ERROR: usize = 300;
/// The most passwords that are remembered: one of each node.
const MAX_GIVEN: usize = 64;
/// How often a thread looks whether another one has let go of them, which takes microseconds.
const TRIES: u32 = 1000;

/// The password, and perhaps the name, with which a connection to a node logs in. For
/// [`Options::credentials`](crate::Options::credentials).
///
/// ```
/// use redlock_sync::Credentials;
///
/// let credentials = Credentials::new("a token of today").user("locks");
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone)]
pub struct Credentials {
    pub(crate) user: Option<Arc<str>>,
    pub(crate) password: Arc<str>,
}

impl Credentials {
    /// Credentials of the user `default`.
    pub fn new(password: impl Into<String>) -> Credentials {
        Credentials {
            user: None,
            password: password.into().into(),
        }
    }

    /// Credentials of another user, from Redis 6 on.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>) -> Credentials {
        self.user = Some(name.into().into());
        self
    }

    /// The credentials in a URL, if it has any. A user alone is one that needs no password, and takes any.
    pub(crate) fn of(settings: &RedisConnectionInfo) -> Option<Credentials> {
        let user = settings.username().filter(|user| !user.is_empty());
        let alone = user.filter(|user| *user != "default").map(|_| "");
        Some(Credentials {
            user: user.map(Arc::from),
            password: settings.password().or(alone)?.into(),
        })
    }
}

/// Shows neither the user nor the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

type Callback = dyn Fn(&str) -> Result<Credentials, String> + Send + Sync;

/// The closure that is asked for the credentials.
#[derive(Clone)]
pub(crate) struct AskCredentials(Arc<Closure>);

struct Closure {
    call: AssertUnwindSafe<Box<Callback>>,
    /// The passwords that it returned last, which no text may repeat.
    given: Mutex<Vec<Secret>>,
}

impl AskCredentials {
    pub(crate) fn new<E: fmt::Display>(
        ask: impl Fn(&str) -> Result<Credentials, E> + Send + Sync + 'static,
    ) -> AskCredentials {
        let call = move |node: &str| ask(node).map_err(|error| error.to_string());
        AskCredentials(Arc::new(Closure {
            call: AssertUnwindSafe(Box::new(call)),
            given: Mutex::default(),
        }))
    }

    /// Do not call this while a mutex is held, nor in the thread of an operation: it may take any time, and take locks.
    pub(crate) fn call(&self, node: &str) -> Result<Credentials, String> {
        // State that a panic leaves half changed belongs to the program.
        let given = catch_unwind(AssertUnwindSafe(|| (self.0.call)(node)));
        let given = given.unwrap_or_else(|_| Err("the closure panicked".into()));
        if let Ok(credentials) = &given {
            self.remember(&credentials.password);
        }
        given.map_err(|error| {
            let line = error.chars().take(MAX_ERROR);
            line.map(|c| if c.is_control() { ' ' } else { c }).collect()
        })
    }

    /// The passwords that were given. `None` in a forked child, if the mutex is held by a thread that does not exist
    /// there.
    fn given(&self) -> Option<MutexGuard<'_, Vec<Secret>>> {
        let mut tries = (0..TRIES).map(|_| self.0.given.try_lock());
        tries.find_map(|given| given.map_err(|_| std::thread::yield_now()).ok())
    }

    fn remember(&self, password: &str) {
        if let Some(mut given) = self.given() {
            given.retain(|one| !one.is(password));
            given.push(Secret::of(Some(password)));
            let more = given.len().saturating_sub(MAX_GIVEN);
            given.drain(..more);
        }
    }

    /// The passwords that the closure has returned.
    pub(crate) fn secret(&self) -> Secret {
        let given = self.given();
        Secret::of_all(given.iter().flat_map(|given| given.iter().cloned()))
    }
}

/// Closures cannot be compared: equal means the same closure.
impl PartialEq for AskCredentials {
    fn eq(&self, other: &AskCredentials) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AskCredentials {}

impl fmt::Debug for AskCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_repeats_a_password_that_was_given_is_recognized() {
        let ask =
            AskCredentials::new(|node| Ok::<_, String>(Credentials::new(format!("pw-of-{node}"))));
        assert!(!ask.secret().is_in_host("db-pw-of-a"));
        for node in ["a", "b", "a"] {
            ask.call(node).unwrap();
        }
        let given = ask.clone().secret();
        assert!(given.is_in_host("db-pw-of-a") && given.is_in_host("pw-of-b"));
        assert!(!given.is_in_host("db"));
        for node in 0..MAX_GIVEN {
            ask.call(&format!("node-{node:02}")).unwrap();
        }
        let given = ask.secret();
        assert!(given.is_in_host("pw-of-node-00") && !given.is_in_host("pw-of-b"));
    }

    #[test]
    fn an_error_is_one_short_line() {
        let ask = AskCredentials::new(|node| Err(format!("{node}:\r\n{}", "x".repeat(1000))));
        let error = ask.call("here").unwrap_err();
        assert!(error.starts_with("here:  xxx"), "{error}");
        assert_eq!(error.len(), MAX_ERROR);
    }

    #[test]
    fn a_panic_is_an_error_also_where_the_error_is_written() {
        struct Bad;
        impl fmt::Display for Bad {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("as it should")
            }
        }
        let ask = AskCredentials::new(|_| Err(Bad));
        assert_eq!(ask.call("here").unwrap_err(), "the closure panicked");
    }
}
