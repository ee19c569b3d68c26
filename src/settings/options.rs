use std::fmt;
use std::time::Duration;

use crate::settings::credentials::{AskCredentials, Credentials};
use crate::settings::tls::Tls;
use crate::values::arithmetic::Ttl;
use crate::values::config_error::ConfigError;
use crate::values::label::Label;
use crate::values::prefix::Prefix;

/// The longest timeout: no call blocks for longer than a person would wait.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// How a [`Redlock`](crate::Redlock) waits, retries and gives up. The defaults suit nodes in one
/// data centre and locks of seconds.
///
/// ```
/// use std::time::Duration;
/// use redlock_sync::Redlock;
///
/// let (wait, node_timeout) = (Duration::from_secs(30), Duration::from_millis(20));
/// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
///     .adjust(|options| options.wait(wait).node_timeout(node_timeout))?;
/// assert_eq!(redlock.options().get_wait(), wait);
/// # Ok::<(), redlock_sync::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) wait: Duration,
    pub(crate) retry_delay: (Duration, Duration),
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_extensions: u32,
    /// Zero: no guard, even if there would be one by default.
    pub(crate) restart_guard: Option<Duration>,
    pub(crate) fair: bool,
    pub(crate) label: Option<Label>,
    pub(crate) prefix: Prefix,
    pub(crate) tls: Tls,
    pub(crate) credentials: Option<AskCredentials>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            wait: Duration::from_secs(10),
            retry_delay: (Duration::from_millis(50), Duration::from_millis(250)),
            node_timeout: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(500),
            max_extensions: 10,
            restart_guard: None,
            fair: false,
            label: None,
            prefix: Prefix::default(),
            tls: Tls::new(),
            credentials: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// How long [`Redlock::acquire`](crate::Redlock::acquire) may try in all. Zero means one attempt, [`Duration::MAX`]
    /// for ever. This also bounds everything built on `acquire`, such as [`with_lock`](crate::Redlock::with_lock), but
    /// not [`acquire_while`](crate::Redlock::acquire_while), which waits until its closure returns false.
    ///
    /// Defaults to 10 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Options {
        self.wait = wait;
        self
    }

    /// The bounds of the pause between two attempts, if nothing wakes the waiter sooner. The pause is drawn at random
    /// each time, so that contenders that collided once do not collide again. `min` must not be larger than `max`.
    ///
    /// A release wakes the next waiter of the same process, or sends a message to one waiter of another process; and
    /// waiters try again when the lock's ttl ends. So these pauses matter for locks of other libraries, for nodes that
    /// are away or do not permit messages, and if a message was lost or went to a process that hangs. If a majority of
    /// the nodes can send the waiter messages, the pause doubles as long as the same holder has the lock, up to 8 ×
    /// `max` or 1 s, whichever is longer.
    ///
    /// Defaults to 50 ms and 250 ms.
    #[must_use]
    pub fn retry_delay(mut self, min: Duration, max: Duration) -> Options {
        self.retry_delay = (min, max);
        self
    }

    /// How long one command may take: to be written to all nodes, and answered by as many as are needed.
    /// If no majority answers, each operation takes this long before it fails. A minority that does not answer
    /// costs less: some milliseconds, once, and then nothing until it is back. The Redlock
    /// specification asks for a time that is small compared with the ttl: 5–50 ms for locks of 10 s. More
    /// than 0, and at most 1 hour.
    ///
    /// A release takes at most this long; an attempt to acquire, or an extension, at most twice as long, with
    /// everything that is retried in it. While the lock's slot of a Redis Cluster moves, each takes up to six times as
    /// long. Once a majority is connected, the first operation also waits up to this
    /// long for the nodes that are still connecting.
    ///
    /// Defaults to 50 ms.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Options {
        self.node_timeout = timeout;
        self
    }

    /// How long connecting to a node may take, including name resolution, TLS and authentication. An
    /// operation waits this long for connections only if no majority has ever been connected.
    /// More than 0, and at most 1 hour.
    ///
    /// Defaults to 500 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = timeout;
        self
    }

    /// How often one lock can be [extended](crate::Lock::extend) by hand. Without a bound, a holder that hangs in a
    /// loop could keep a lock for ever; the Redlock specification asks for one. Zero: never. Automatic renewal
    /// ([`Lock::keep_alive`](crate::Lock::keep_alive)) has its own bound.
    ///
    /// Defaults to 10.
    #[must_use]
    pub fn max_extensions(mut self, limit: u32) -> Options {
        self.max_extensions = limit;
        self
    }

    /// Protects against nodes that were restarted without their data, and would grant locks that are still held: a node
    /// gives no votes until its server has been up for `max_ttl`. The Redlock specification asks for such a "delayed
    /// restart". Here the clients see to it; the nodes only have to permit `INFO`, and the key `redlock:witness`. The
    /// guard also protects against [failovers](crate::guide::operations#failovers), `FLUSHALL`, and nodes that evict
    /// keys.
    ///
    /// `max_ttl` is the longest ttl that *any* client uses on the same resources, extensions and renewals
    /// included, and all clients need this option with the same value. This client refuses longer ttls
    /// ([`Error::Config`](crate::Error::Config)). From 3 ms to 100 years; zero: no guard for any node.
    ///
    /// The cost: a restarted node does not vote for `max_ttl` (at least 1 s) plus up to two seconds. While no majority
    /// votes, operations fail with [`Error::Unavailable`](crate::Error::Unavailable), and
    /// [`NodeErrors::retry_after`](crate::NodeErrors::retry_after) returns for how long. So keep `max_ttl` short, and
    /// restart nodes one by one. Nodes that write every command to a disk that survives (`appendfsync always`) do not
    /// need the guard against restarts. The guard does not notice a virtual machine that was reset to a snapshot.
    ///
    /// If [sentinels](crate::guide::deployments) name the master, and in a Redis Cluster, the default is a guard for
    /// ttls of up to 30 s, with which longer ones are allowed; zero switches it off. For a single server the default is
    /// no guard, because a node of a new deployment cannot be distinguished from one that has forgotten everything:
    /// with the guard, the first start of a deployment has to wait as well.
    ///
    /// ```
    /// use std::time::Duration;
    /// use redlock_sync::Redlock;
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .adjust(|options| options.restart_guard(Duration::from_secs(30)))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn restart_guard(mut self, max_ttl: Duration) -> Options {
        self.restart_guard = Some(max_ttl);
        self
    }

    /// Whether a lock goes to the waiter that has waited longest, across processes. All clients that use the same
    /// resources should set the same value: clients without the option go before those with it.
    ///
    /// Among fair waiters, the one that has waited longest gets the lock, if it is alive and takes its turn. Its
    /// arrival is measured, with one node, by that node's clock, to a round trip; with several nodes, by the hosts'
    /// clocks, whose difference counts up to one second. There is no order if nodes cannot send messages to the waiters
    /// (to a user without channels). A turn is the time for which a free lock is reserved for one waiter: 4 ×
    /// [`node_timeout`](Options::node_timeout), at least 250 ms and at most 1 s. A waiter that was killed is skipped.
    /// One that hangs costs the others its turn and a pause of at most the same length. No waiter leaves a free lock to
    /// others for more than four turns. Mutual exclusion never depends on any of this.
    ///
    /// Strict first come, first served is impossible over several independent nodes. Each node sees arrivals in
    /// its own order, and cannot ask the others. Two waiters that are each first on some of the nodes would both
    /// wait for a majority for ever; so turns must end.
    ///
    /// The cost: each acquisition runs a script that takes 5–7 µs of a node's time, in place of a `SET` that takes less
    /// than one. A thread never hands a lock directly to another thread of the same process: each release sends a
    /// message to one waiter, which takes one more round trip. So leave this option off if throughput matters, or if
    /// waits are short. [`try_acquire`](crate::Redlock::try_acquire) also returns `None` for a free lock that is
    /// reserved for a waiter. Needs Redis 5.
    ///
    /// Defaults to false.
    ///
    /// ```
    /// use redlock_sync::Redlock;
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .adjust(|options| options.fair(true))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn fair(mut self, fair: bool) -> Options {
        self.fair = fair;
        self
    }

    /// A text that shows people which program holds a lock: `redlock list` and
    /// [`Redlock::inspect`](crate::Redlock::inspect) show it ([`Holder::label`](crate::Holder::label)). A host and a
    /// process id, such as `web-3:4711`, are enough. All users of the nodes that may read the keys can read it, so it
    /// must not be a secret.
    ///
    /// While the client waits for a lock, they show the label among those that wait
    /// ([`Inspection::waiting_labels`](crate::Inspection::waiting_labels)).
    ///
    /// The label is stored after the token in the value of the lock's key, and in the queue of those that wait. It has no
    /// effect on locking: clients with the same label, different labels or none exclude each other as always.
    ///
    /// At most 64 bytes of printable text: no control characters, and no invisible ones. Defaults to the empty text: no
    /// label.
    ///
    /// ```
    /// use redlock_sync::Redlock;
    ///
    /// let label = format!("import:{}", std::process::id());
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .adjust(|options| options.label(label))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> Options {
        self.label = Label::new(label.as_ref());
        self
    }

    /// How nodes at `rediss://` are reached: see [`Tls`]. Other settings than before mean new connections, so set
    /// them before the first lock. Defaults to the root certificates of the operating system.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Options {
        self.tls = tls;
        self
    }

    /// The prefix of the name of each lock on the nodes, in its keys and in the names of channels: so that all programs
    /// of a team keep to the patterns that its user is permitted, and teams that share nodes do not meet. Programs that
    /// use the same locks need the same prefix.
    ///
    /// Every name that is given to this crate, and every name that it gives, is without the prefix: resources, errors,
    /// log lines, events, and what [`list`](crate::Redlock::list) shows, which looks at no other keys. The key is the
    /// prefix and the name, and the [keys beside it](crate::guide::operations#names-of-keys) follow from that, so
    /// another program reaches the lock `nightly` of the prefix `team:` as `team:nightly`. For that prefix a user needs
    /// the patterns `~team:*`, `~{team:*` and `&team:*`; for a prefix in braces, `{team}:`, only `~{team}:*` and
    /// `&{team}:*`.
    ///
    /// At most 64 bytes of printable text without spaces. Another prefix means new connections. Empty by default.
    ///
    /// ```
    /// use redlock_sync::Redlock;
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .adjust(|options| options.prefix("team:"))?;
    /// // redlock.acquire("nightly", …) uses the key team:nightly.
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Options {
        self.prefix = Prefix::new(prefix.as_ref());
        self
    }

    /// A closure that returns the user and the password of each new connection, in place of those in the nodes' URLs:
    /// for passwords that change while the program runs, and for tokens that expire. The closure is called with the
    /// node's host and port, as in `10.0.0.1:6379` (or with the path of its Unix socket).
    ///
    /// A connection that is up is not logged in again; when it has ended, the next one asks the closure. A password
    /// that a node refuses is not [permanent](crate::NodeErrors::is_permanent): operations wait for a better one.
    /// Neither is an error or a panic of the closure. The error's text is shown in errors and in log lines, up to its
    /// 300th character, so it must not contain a secret.
    ///
    /// The closure is called in threads of this crate, for several nodes at a time, before each try to connect: for
    /// locks, for messages about releases, for [`inspect`](crate::Redlock::inspect) and
    /// [`check`](crate::Redlock::check). A node that is away is tried again and again, so keep a token that is
    /// expensive to get until it expires. The time that the closure takes is part of
    /// [`connect_timeout`](Options::connect_timeout): credentials that it returns later are not used, and no operation
    /// waits for it longer. The closure itself cannot be interrupted, and until it returns the node is not connected. A
    /// forked child calls its own copy, so the closure should not depend on a thread of the parent, or on a mutex that
    /// one may hold.
    ///
    /// Options with a closure are equal only to their clones. Another closure means new connections. See [passwords
    /// that change](crate::guide::operations#passwords-that-change). Defaults to the credentials in the URLs.
    ///
    /// ```
    /// use redlock_sync::{Credentials, Redlock};
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// // A file in which another program keeps the current token.
    /// let redlock = redlock.adjust(|options| {
    ///     options.credentials(|_node| {
    ///         let token = std::fs::read_to_string("/run/secrets/redis-token")?;
    ///         Ok::<_, std::io::Error>(Credentials::new(token.trim_end()).user("locks"))
    ///     })
    /// })?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn credentials<F, E>(mut self, ask: F) -> Options
    where
        F: Fn(&str) -> Result<Credentials, E> + Send + Sync + 'static,
        E: fmt::Display,
    {
        self.credentials = Some(AskCredentials::new(ask));
        self
    }

    // The builder has the names without `get_`, as that of `std::process::Command` has.

    /// The time that [`wait`](Options::wait) sets.
    pub fn get_wait(&self) -> Duration {
        self.wait
    }

    /// The bounds that [`retry_delay`](Options::retry_delay) sets.
    pub fn get_retry_delay(&self) -> (Duration, Duration) {
        self.retry_delay
    }

    /// The time that [`node_timeout`](Options::node_timeout) sets.
    pub fn get_node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// The time that [`connect_timeout`](Options::connect_timeout) sets.
    pub fn get_connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The number that [`max_extensions`](Options::max_extensions) sets.
    pub fn get_max_extensions(&self) -> u32 {
        self.max_extensions
    }

    /// The time that [`restart_guard`](Options::restart_guard) sets; zero: no guard for any node. `None`: it is not set, and
    /// the default depends on the node.
    pub fn get_restart_guard(&self) -> Option<Duration> {
        self.restart_guard
    }

    /// The value that [`fair`](Options::fair) sets.
    pub fn get_fair(&self) -> bool {
        self.fair
    }

    /// The text that [`label`](Options::label) sets. `None`: no label.
    pub fn get_label(&self) -> Option<&str> {
        self.label.as_ref().map(Label::as_str)
    }

    /// The text that [`prefix`](Options::prefix) sets, which may be empty.
    pub fn get_prefix(&self) -> &str {
        self.prefix.as_str()
    }

    /// The longest ttl given to the restart guard, if any.
    pub(crate) fn max_ttl(&self) -> Option<Duration> {
        self.restart_guard.filter(|max_ttl| !max_ttl.is_zero())
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let timeouts = [
            ("node_timeout", self.node_timeout),
            ("connect_timeout", self.connect_timeout),
        ];
        for (name, value) in timeouts {
            if value.is_zero() || value > MAX_TIMEOUT {
                return Err(ConfigError::new(format!(
                    "{name} is {value:?}: it must be above zero and at most 1 hour"
                )));
            }
        }
        if let Some(max_ttl) = self.max_ttl() {
            Ttl::new(max_ttl)
                .map_err(|error| ConfigError::new(format!("restart_guard: {error}")))?;
        }
        if let Some(label) = &self.label {
            label.validate()?;
        }
        self.prefix.validate()?;
        let (min, max) = self.retry_delay;
        if min > max {
            return Err(ConfigError::new(format!(
                "retry_delay's min {min:?} is larger than its max {max:?}"
            )));
        }
        Ok(())
    }

    /// Whether connections made under `other` can be used unchanged.
    pub(crate) fn same_connections(&self, other: &Options) -> bool {
        self.node_timeout == other.node_timeout
            && self.connect_timeout == other.connect_timeout
            && self.restart_guard == other.restart_guard
            && self.prefix == other.prefix
            && self.tls == other.tls
            && self.credentials == other.credentials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        Options::new().validate().unwrap();
    }

    #[test]
    fn what_is_set_can_be_read() {
        let ms = Duration::from_millis;
        let options = Options::new()
            .wait(ms(1))
            .retry_delay(ms(2), ms(3))
            .node_timeout(ms(4))
            .connect_timeout(ms(5))
            .max_extensions(6)
            .restart_guard(ms(7))
            .fair(true)
            .label("web-3")
            .prefix("team:");
        assert_eq!(
            (options.get_wait(), options.get_retry_delay()),
            (ms(1), (ms(2), ms(3)))
        );
        let timeouts = (options.get_node_timeout(), options.get_connect_timeout());
        assert_eq!(timeouts, (ms(4), ms(5)));
        let guard = (options.get_max_extensions(), options.get_restart_guard());
        assert_eq!(guard, (6, Some(ms(7))));
        let texts = (options.get_label(), options.get_prefix());
        assert_eq!(
            (options.get_fair(), texts),
            (true, (Some("web-3"), "team:"))
        );
        let default = Options::new();
        assert_eq!((default.get_label(), default.get_prefix()), (None, ""));
        assert_eq!(default.get_restart_guard(), None);
        assert_eq!(default.label("").get_label(), None);
    }

    #[test]
    fn bad_values_are_named_with_their_limit() {
        let bad = [
            (
                Options::new().node_timeout(Duration::ZERO),
                "node_timeout is 0ns",
            ),
            (Options::new().node_timeout(Duration::MAX), "at most 1 hour"),
            (
                Options::new().connect_timeout(Duration::ZERO),
                "connect_timeout is 0ns",
            ),
            (
                Options::new().connect_timeout(Duration::MAX),
                "at most 1 hour",
            ),
            (
                Options::new().restart_guard(Duration::from_millis(2)),
                "restart_guard: the ttl is 2ms",
            ),
            (Options::new().restart_guard(Duration::MAX), "100 years"),
            (
                Options::new().retry_delay(Duration::from_millis(2), Duration::from_millis(1)),
                "min 2ms is larger than its max 1ms",
            ),
            (Options::new().label("x".repeat(65)), "65 bytes long"),
            (Options::new().label("a\0"), "control characters"),
            (
                Options::new().prefix("x".repeat(65)),
                "the prefix is 65 bytes long",
            ),
            (Options::new().prefix("team 1:"), "without spaces"),
        ];
        for (options, expected) in bad {
            let text = options.validate().unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}
