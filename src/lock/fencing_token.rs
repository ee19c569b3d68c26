use crate::errors::error::Error;
use crate::errors::shown::{Shown, Unquoted};
use crate::lock::kept_lock::KeptLock;
use crate::lock::lock::Lock;
use crate::protocol::calls::fencing::{Fenced, Fencing};
use crate::values::clock::Point;

impl Lock {
    /// A number for this lock that grows from holder to holder, for stores that refuse smaller numbers: the
    /// only protection against a holder that was paused until its validity was over and then writes. The first
    /// call asks the nodes; later calls return the same number and ask no node.
    ///
    /// The store keeps the largest number that it has seen with the data, and refuses a write with a smaller
    /// one, in the same transaction: `UPDATE account SET balance = $1, fence = $2 WHERE name = $3 AND
    /// fence <= $2`; zero rows: stop. **Get the number before you read** what you are going to change.
    ///
    /// The number is from 1 to 2<sup>53</sup> − 1 (which is the year 2255), with gaps, per resource, and not secret.
    /// Each node counts in a key `{<resource>}:redlock:fence`, which ends a day after its last use; the node's user needs the
    /// command `TIME`, and a key pattern that includes that key. The numbers grow as long as the nodes' clocks agree
    /// within a day and are not set back by a day or more. If nodes are restarted without their data, this needs the
    /// [restart guard](crate::Options::restart_guard) and clocks within 0.4 s of each other. A lock that was
    /// [resumed](crate::Redlock::resume) gets a larger number than its giver's, whose late writes are then refused.
    ///
    /// Blocks like [`extend`](Lock::extend); at most until the validity ends.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the validity is over, even if an earlier call returned the number; or too few nodes hold the
    ///   lock for a majority.
    /// - [`Error::Unavailable`]: too few nodes answered. The deadline stays in force; try again.
    /// - [`Error::Config`]: the nodes are a Redis Cluster, and the name has a `}` and no
    ///   [tag](crate::guide::deployments#what-to-set-in-a-cluster). No node is asked.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// # fn read() -> i64 { 0 }
    /// # fn update(_: i64, _: u64) -> usize { 1 }
    /// let lock = redlock.acquire("shop:account:17", Duration::from_secs(10))?;
    /// let fence = lock.fencing_token()?;
    /// let balance = read();
    /// if update(balance + 100, fence) == 0 {
    ///     println!("another holder has the account by now");
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn fencing_token(&self) -> Result<u64, Error> {
        let token = self.fence();
        if let Err(Error::Lost(lost)) = &token
            && self.is_valid()
        {
            self.gone(lost.reason());
            let (name, why) = (self.shown(), lost.reason().text());
            say!(
                warn,
                lock:% = Unquoted(self.resource()), reason = why;
                "lock {name} was found lost when its fencing token was asked for: {why}"
            );
        }
        token
    }

    /// Fails if too few nodes are left without the Redis Clusters, which have the counter of this name in another slot.
    fn check_counter(&self) -> Result<(), Error> {
        let executor = self.route.first_lane().driver.executor();
        let Some(name) =
            (self.resources()).find(|name| executor.has_companions_in_another_slot(name))
        else {
            return Ok(());
        };
        Err(Error::config(format!(
            "the lock {} has no fencing tokens in a Redis Cluster, which has their counter in another slot: give the \
             name a {{tag}}, as in {{shop}}:a, or no }}",
            Shown(name)
        )))
    }

    fn fence(&self) -> Result<u64, Error> {
        if !self.is_valid() {
            return Err(self.lost());
        }
        self.check_counter()?;
        if let Some(token) = self.fencing_token.get() {
            return Ok(*token);
        }
        let mut fencing = Fencing::new();
        let mut fenced = fencing.next(&self.lease(), Point::now());
        loop {
            fenced = match fenced {
                Fenced::Ask(op) => {
                    let answer = self.route.run(op);
                    fencing.answered(answer, &self.lease(), Point::now())
                }
                // Another thread may have been first: one lock has one number.
                Fenced::Token(token) => return Ok(*self.fencing_token.get_or_init(|| token)),
                Fenced::Lost(reason) => return Err(Error::lost(&self.key.resource, reason)),
                Fenced::Unavailable(nodes) => return Err(Error::Unavailable(nodes)),
            }
        }
    }
}

impl KeptLock {
    /// The fencing token of the lock: see [`Lock::fencing_token`]. Renewals do not change the number.
    ///
    /// # Errors
    ///
    /// The errors of [`Lock::fencing_token`]. If too few nodes hold the lock for a majority, it is lost for all its
    /// functions and callbacks.
    pub fn fencing_token(&self) -> Result<u64, Error> {
        let token = self.lock().fence();
        if let Err(Error::Lost(lost)) = &token
            && self.is_valid()
        {
            self.lock().gone(lost.reason());
        }
        token
    }
}
