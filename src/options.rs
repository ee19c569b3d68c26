use std::time::Duration;

use crate::error::ConfigError;
use crate::label::Label;
use crate::protocol::quorum::Ttl;

/// The longest timeout: nothing here blocks without a bound that a person would wait for.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// How a [`Redlock`](crate::Redlock) waits, retries and gives up. The defaults suit nodes in one
/// data centre and locks of seconds.
///
/// ```
/// use std::time::Duration;
/// use redlock_sync::{Options, Redlock};
///
/// let options = Options::new()
///     .wait(Duration::from_secs(30))
///     .node_timeout(Duration::from_millis(20));
/// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
///     .with_options(options)?;
/// # Ok::<(), redlock_sync::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) wait: Duration,
    pub(crate) retry_delay: (Duration, Duration),
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_extensions: u32,
    pub(crate) restart_guard: Option<Duration>,
    pub(crate) fair: bool,
    pub(crate) label: Option<Label>,
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
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// How long [`Redlock::acquire`](crate::Redlock::acquire) may try in all. Zero means one
    /// attempt, [`Duration::MAX`] for ever. It also bounds what is built on `acquire`, such as
    /// [`with_lock`](crate::Redlock::with_lock), but not
    /// [`acquire_while`](crate::Redlock::acquire_while), which waits until it is told to stop.
    ///
    /// Defaults to 10 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Options {
        self.wait = wait;
        self
    }

    /// The bounds of the pause between two attempts where nothing wakes sooner, drawn at random each time so
    /// that contenders that collided once do not collide again. `min` must not be larger than `max`.
    ///
    /// A release wakes whoever waits for the lock in the same process, and one that waits in another; and all
    /// try when the lock's ttl ends. So these pauses matter for locks of other libraries, for nodes that are
    /// away or do not permit messages, and for a message that was lost, or went to a process that hangs. Where a
    /// majority of the nodes tells its waiters, the pause doubles while the same holder is met, up to 8 × `max` and
    /// 1 s at least: long pauses are noticed then.
    ///
    /// Defaults to 50 ms and 250 ms.
    #[must_use]
    pub fn retry_delay(mut self, min: Duration, max: Duration) -> Options {
        self.retry_delay = (min, max);
        self
    }

    /// How long one command may take: to be written to all nodes, and answered by as many as are needed.
    /// Without a majority each operation takes so long before it fails. A minority that does not answer
    /// costs less: some milliseconds, once, and from then on nothing until it is back. The Redlock
    /// specification asks for a time that is small against the ttl: 5–50 ms for locks of 10 s. From
    /// above 0 to 1 hour.
    ///
    /// A release takes this long at most; an attempt to acquire, or an extension, twice as long, with
    /// all that is tried again within it. The first operation also waits this long for the nodes that are
    /// still being connected when a majority is.
    ///
    /// Defaults to 50 ms.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Options {
        self.node_timeout = timeout;
        self
    }

    /// How long connecting a node may take, with name resolution, TLS and authentication. An
    /// operation waits that long for connections only as long as no majority has ever been connected.
    /// From above 0 to 1 hour.
    ///
    /// Defaults to 500 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = timeout;
        self
    }

    /// How often one lock can be [extended](crate::Lock::extend) by hand. Without a bound a hung
    /// holder could keep a lock for ever, says the Redlock specification.
    ///
    /// Defaults to 10.
    #[must_use]
    pub fn max_extensions(mut self, limit: u32) -> Options {
        self.max_extensions = limit;
        self
    }

    /// Protects against nodes that were restarted without their data, and would grant what is still held:
    /// a node gives no votes until its server has been up for `max_ttl`. The Redlock specification asks for
    /// such a "delayed restart"; here it needs nothing of the nodes but that `INFO server` is permitted.
    ///
    /// `max_ttl` is the longest ttl that *any* client uses on the same resources, extensions and renewals
    /// included, and all of them need this option with the same value. Longer ttls are refused here
    /// ([`Error::Config`](crate::Error::Config)). From 3 ms to 100 years; zero: no guard.
    ///
    /// What it costs: a restarted node does not vote for `max_ttl` (1 s at least) and up to two seconds; without a
    /// majority that does, operations fail with [`Error::Unavailable`](crate::Error::Unavailable), and
    /// [`NodeErrors::retry_after`](crate::NodeErrors::retry_after) says for how long. So keep `max_ttl`
    /// short, and restart nodes one by one. Nodes that write every command to a disk that survives
    /// (`appendfsync always`) do not need it. It does not see `FLUSHALL`, evicted keys, or a virtual machine
    /// that was set back.
    ///
    /// Defaults to no guard: a node of a new deployment cannot be told from one that has forgotten
    /// everything.
    ///
    /// ```
    /// use std::time::Duration;
    /// use redlock_sync::{Options, Redlock};
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .with_options(Options::new().restart_guard(Duration::from_secs(30)))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn restart_guard(mut self, max_ttl: Duration) -> Options {
        self.restart_guard = Some(max_ttl).filter(|max_ttl| !max_ttl.is_zero());
        self
    }

    /// Whether a lock goes to whoever has waited longest, across processes. All who use the same resources should say
    /// the same: acquirers that are not fair go before fair ones.
    ///
    /// Among fair acquirers, who has waited longer gets a lock first, if it is alive and takes its turn. How long
    /// that is: with one node by that node's clock, to a round trip; with several nodes by the hosts' clocks, where at
    /// most one second of their difference counts; not at all where nodes do not tell (TLS, a user without
    /// channels). A turn lasts for 4 × [`node_timeout`](Options::node_timeout), at
    /// least 250 ms and at most 1 s. A waiter that was killed is skipped. One that hangs costs the others its turn
    /// and a pause that is no longer. Nobody leaves a free lock to others for more than four turns. Exclusion never
    /// depends on any of this.
    ///
    /// Strict first come, first served is impossible over several independent nodes. Each of them sees arrivals in
    /// an order of its own, and cannot ask the others. Two waiters of which each is first on some nodes would both
    /// wait for a majority for ever; so turns must end.
    ///
    /// What it costs: each acquire is a script of 5–7 µs of a node's time in place of a `SET` of less than one. A
    /// thread never hands a lock over to another of the same process; each release sends a message to one waiter,
    /// which takes a round trip more. So leave it off where throughput counts, or where nobody waits long.
    /// [`try_acquire`](crate::Redlock::try_acquire) also says `None` where a free lock is kept for another. Needs
    /// Redis 5.
    ///
    /// Defaults to false.
    ///
    /// ```
    /// use redlock_sync::{Options, Redlock};
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .with_options(Options::new().fair(true))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn fair(mut self, fair: bool) -> Options {
        self.fair = fair;
        self
    }

    /// Who has a lock, for the people who ask: [`Redlock::inspect`](crate::Redlock::inspect) and `redlock list` show it
    /// as [`Holder::label`](crate::Holder::label). A host and a process, as `web-3:4711`, say enough. Everybody who may
    /// read the keys can read it: no secrets.
    ///
    /// It stands behind the token in the value of the lock's key. Nothing is decided by it: clients with labels,
    /// with others and without one exclude each other as always.
    ///
    /// At most 64 bytes of printable text: no control characters, and no invisible ones. Defaults to the empty text: no label.
    ///
    /// ```
    /// use redlock_sync::{Options, Redlock};
    ///
    /// let label = format!("import:{}", std::process::id());
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
    ///     .with_options(Options::new().label(label))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> Options {
        self.label = Label::new(label.as_ref());
        self
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
        if let Some(max_ttl) = self.restart_guard {
            Ttl::new(max_ttl)
                .map_err(|error| ConfigError::new(format!("restart_guard: {error}")))?;
        }
        if let Some(label) = &self.label {
            label.validate()?;
        }
        let (min, max) = self.retry_delay;
        if min > max {
            return Err(ConfigError::new(format!(
                "retry_delay's min {min:?} is larger than its max {max:?}"
            )));
        }
        Ok(())
    }

    /// Whether connections made under `other` serve as they are.
    pub(crate) fn same_connections(&self, other: &Options) -> bool {
        self.node_timeout == other.node_timeout
            && self.connect_timeout == other.connect_timeout
            && self.restart_guard == other.restart_guard
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
        ];
        for (options, expected) in bad {
            let text = options.validate().unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}
