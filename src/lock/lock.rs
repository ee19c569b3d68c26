use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::errors::error::Error;
use crate::errors::lock_error::LostReason;
use crate::errors::shown::{Shown, Unquoted};
use crate::net::cluster::route::Route;
use crate::net::driver::observe::{Ending, Event};
use crate::net::driver::renewal::{DetectedBy, Renewal};
use crate::protocol::calls::lease::{Extended, Lease, Loss};
use crate::protocol::calls::release::Release;
use crate::protocol::commands::action::SharedKey;
use crate::protocol::commands::kind::Kind;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::settings::options::Options;
use crate::values::arithmetic::{Deadline, Ttl};
use crate::values::clock::Point;
use crate::values::sync;
use crate::values::sync::{Mutex, MutexGuard};
use crate::values::token::Token;

/// All names that are locked.
pub(crate) fn names_to_lock<'a>(
    resource: &'a [u8],
    kind: &'a Kind,
) -> impl Iterator<Item = &'a [u8]> {
    let several = kind.names().unwrap_or_default();
    let one = several.is_empty().then_some(resource);
    one.into_iter().chain(several.iter().map(|name| &**name))
}

/// A held lock. Dropping it releases it.
///
/// A lock is valid until its deadline: for the ttl, less the time that acquiring took, less an allowance for clocks
/// that run at different rates. After the deadline it reports itself lost, without asking a node; others may hold the
/// lock then. It can be sent to and used from any thread.
///
/// Dropping writes the release to the nodes and does not wait for their answers; [`release`](Lock::release) reports
/// whether the lock was still held. Whatever the nodes do, either takes at most one
/// [`node_timeout`](crate::Options::node_timeout); up to six while the lock's slot of a Redis Cluster moves. (After
/// [`resume`](crate::Redlock::resume), the release may be the first operation of the program, and has to connect.)
///
/// A release returns when a majority of the nodes has answered, a drop at once. The other answers are read by the next
/// operation, or, after one `node_timeout`, by a thread. A release that was not carried out, because the connection was
/// closed or the node had forgotten the scripts, is sent again. So is one that a node refuses for now (it is busy, or
/// cannot write to its disk), until the node carries it out or the key has ended; once the last handle and the last lock
/// are dropped, for one `node_timeout`.
#[must_use = "a lock is released when it is dropped"]
pub struct Lock {
    pub(crate) route: Route,
    /// The immutable part. The slot and `sent_to`, which can change, are in the lease.
    pub(crate) key: Arc<SharedKey>,
    pub(crate) home: Home,
    limits: ExtensionLimits,
    /// The fencing token, once it has been asked for.
    pub(crate) fencing_token: OnceLock<u64>,
    /// Whether the observer was notified of the acquisition.
    announced: bool,
    /// Whether waiters get the lock in the order of their arrival.
    fair: bool,
    /// Whether the lock was released, leaked, or dropped: nothing is left to do in `Drop`.
    ended: bool,
}

/// The bounds on the extensions of a lock.
struct ExtensionLimits {
    extensions_left: u32,
    max_extensions: u32,
    restart_guard: Option<Duration>,
}

/// Where a lock's lease is.
pub(crate) enum Home {
    /// In the lock itself, which costs no allocation.
    Own(Mutex<Lease>),
    /// Shared with the threads that renew the lock. Stays here when renewal ends.
    Shared(Arc<Renewal>),
}

impl Home {
    fn mutex(&self) -> &Mutex<Lease> {
        match self {
            Home::Own(lease) => lease,
            Home::Shared(renewal) => &renewal.lease,
        }
    }
}

impl Lock {
    /// Makes a lock from a lease that counts as held here already.
    pub(crate) fn new(route: Route, lease: Lease, options: &Options) -> Lock {
        Lock {
            route,
            key: lease.key.shared.clone(),
            home: Home::Own(Mutex::new(lease)),
            limits: ExtensionLimits {
                extensions_left: options.max_extensions,
                max_extensions: options.max_extensions,
                restart_guard: options.max_ttl(),
            },
            fencing_token: OnceLock::new(),
            announced: false,
            fair: options.fair,
            ended: false,
        }
    }

    /// The locked resource.
    pub fn resource(&self) -> &[u8] {
        &self.key.resource
    }

    /// All locked names: the one name, or several in the order of their bytes. (Then [`resource`](Lock::resource) is
    /// the first of them.)
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        names_to_lock(&self.key.resource, &self.key.kind)
    }

    /// Which of a semaphore's permits this is: from 0 to one less than there are. No two valid holders have the same,
    /// so it can represent one of several equal things: a port, a licence, a device.
    ///
    /// `None` for other locks, and after [`Lockable::resume`](crate::Lockable::resume) until the lock is extended.
    pub fn slot(&self) -> Option<u32> {
        let slot = self
            .route
            .first_lane()
            .is_ours()
            .then(|| self.lease().key.kind.slot());
        slot.flatten().map(u32::from)
    }

    /// The random value that identifies this acquisition on the nodes. With it another process can take over the
    /// lock: [`Redlock::resume`](crate::Redlock::resume).
    pub fn token(&self) -> &Token {
        &self.key.token
    }

    /// How long the lock is still valid. Zero once its validity is over, or the lock was found lost. Local: asks no
    /// node.
    pub fn remaining(&self) -> Duration {
        if self.route.first_lane().is_ours() {
            self.validity().unwrap_or_default()
        } else {
            Duration::ZERO
        }
    }

    /// Whether the lock is still valid. Local: asks no node.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Checks that the lock stays valid for at least `at_least`. Call it before each critical write,
    /// with the time that the write may take. Local: asks no node.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is lost or its validity is over, [`Error::TooSlow`] if less is left than asked
    /// for (still held: extend it, or stop. If nothing extends it, this comes before `Lost`).
    pub fn ensure(&self, at_least: Duration) -> Result<(), Error> {
        let remaining = self.left()?;
        if remaining < at_least {
            Err(Error::too_slow(&self.key.resource, remaining, at_least))
        } else {
            Ok(())
        }
    }

    /// The rest of the validity. The error of a lost lock if nothing is left.
    pub(crate) fn left(&self) -> Result<Duration, Error> {
        let left = self.remaining();
        match left.is_zero() {
            true => Err(self.lost()),
            false => Ok(left),
        }
    }

    /// How often [`extend`](Lock::extend) can still succeed.
    pub fn extensions_left(&self) -> u32 {
        self.limits.extensions_left
    }

    /// Makes the lock valid for `ttl` from now, less the allowance for clocks, if it would end earlier. An extension
    /// never shortens a lock: with a ttl shorter than the time that remains it succeeds and changes nothing.
    ///
    /// The number of extensions is bounded by [`Options::max_extensions`](crate::Options::max_extensions);
    /// only successful ones count.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the validity is over (perhaps it ended before the answers came), or so
    ///   many nodes no longer hold the lock that no majority is left. Stop what it protects.
    /// - [`Error::Unavailable`]: too few nodes answered. The old deadline stays in force, so
    ///   it is worth trying again until then.
    /// - [`Error::ExtensionLimit`]: the bound is used up. The old deadline stays in force.
    /// - [`Error::Config`]: `ttl` out of range.
    ///
    /// A failed extension deletes nothing, creates nothing and shortens nothing. A successful one sets the
    /// lock again on nodes that do not hold it, because they were restarted or connected late.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), Error> {
        let ttl = Ttl::within(ttl, self.limits.restart_guard)?;
        if !self.route.first_lane().is_ours() {
            return Err(self.lost());
        }
        let old = self.lease().deadline;
        let extended = if self.validity().is_err() {
            Err(self.lost())
        } else if self.limits.extensions_left == 0 {
            let max = self.limits.max_extensions;
            Err(Error::extension_limit(&self.key.resource, max))
        } else {
            self.renew(ttl)
        };
        if extended.is_ok() {
            self.limits.extensions_left -= 1;
        }
        self.notify_extended(extended, old, false)
    }

    /// An extension that does not count towards `max_extensions`.
    pub(crate) fn renew(&mut self, ttl: Ttl) -> Result<(), Error> {
        let (extension, op) = self.lease().extension(ttl, Point::now());
        let answer = self.route.run(op);
        let extended = self.lease().extended(extension, answer, Point::now());
        match extended {
            Extended::Yes(None) => Ok(()),
            Extended::Yes(Some(repair)) => {
                drop(self.route.run(repair));
                // The repair may have taken its time.
                self.validity().map(drop).map_err(|_| self.lost())
            }
            Extended::Lost(loss) => {
                self.report(loss);
                let name = self.shown();
                say!(
                    warn,
                    lock:% = Unquoted(&self.key.resource);
                    "lock {name} was found lost when it was extended"
                );
                Err(self.lost())
            }
            Extended::Unavailable(nodes) => Err(Error::Unavailable(nodes)),
        }
    }

    // ---- its lease. Not to be used in a forked child: a thread of the parent may have locked the mutex.

    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        sync::lock(self.home.mutex())
    }

    /// The rest of the validity, or why nothing is left.
    pub(crate) fn validity(&self) -> Result<Duration, LostReason> {
        let validity = self.lease().validity(Point::now());
        validity.map_err(|loss| self.report(loss))
    }

    /// Records that the nodes no longer hold the lock.
    pub(crate) fn gone(&self, reason: LostReason) {
        let loss = self.lease().gone(reason, Point::now());
        self.report(loss);
    }

    /// The error of a lock that is no longer held.
    pub(crate) fn lost(&self) -> Error {
        let reason = match self.route.first_lane().is_ours() {
            true => self.validity().err().unwrap_or(LostReason::Expired),
            false => LostReason::OtherProcess,
        };
        Error::lost(&self.key.resource, reason)
    }

    /// Notifies the program of a loss that was detected just now.
    fn report(&self, loss: Loss) -> LostReason {
        match &self.home {
            Home::Shared(renewal) if renewal.is_active() => {
                renewal.report(loss, DetectedBy::Holder);
            }
            home if loss.is_new && self.announced => {
                self.route
                    .first_lane()
                    .observer()
                    .lost(home.mutex(), loss.reason);
            }
            _ => {}
        }
        loss.reason
    }

    /// The lock's name in a log line.
    pub(crate) fn shown(&self) -> Shown<'_> {
        Shown(&self.key.resource)
    }

    // ---- its events

    /// Notifies the observer that the lock is held, before the caller relies on it.
    pub(crate) fn notify_acquired(&mut self, wait: Duration, attempts: u32) {
        let observer = self.route.first_lane().observer();
        self.announced = !observer.is_none();
        observer.notify(|| Event::Acquired {
            resource: &self.key.resource,
            wait,
            attempts,
        });
    }

    /// Notifies the observer of the result of an extension, or a renewal, of the validity `old`.
    pub(crate) fn notify_extended(
        &self,
        extended: Result<(), Error>,
        old: Deadline,
        renewal: bool,
    ) -> Result<(), Error> {
        if !self.announced {
            return extended;
        }
        let (resource, left) = (&self.key.resource, old.remaining(Point::now()));
        self.route
            .first_lane()
            .observer()
            .notify(|| Event::extension(resource, left, renewal, &extended));
        // The observer may have taken its time.
        if extended.is_ok() && !self.is_valid() {
            return Err(self.lost());
        }
        extended
    }

    /// How the lock ends: `how`, unless it turns out to be lost.
    pub(crate) fn ending(&self, how: Ending) -> Ending {
        match self.announced && self.validity().is_err() {
            true => Ending::WasLost,
            false => how,
        }
    }

    pub(crate) fn notify_ended(&self, how: Ending) {
        if self.announced {
            self.route
                .first_lane()
                .observer()
                .notify_ended(self.home.mutex(), how);
        }
    }

    // ---- its end

    /// Releases the lock and waits for a majority to confirm it.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lock had already been lost: its validity was over, or a majority no longer held
    ///   it. Others may have touched what it protected. The release is written all the same.
    /// - [`Error::Unavailable`]: too few nodes confirmed. The lock is free on those that did. The others are sent the
    ///   release again as long as the program runs; at the latest it ends there with its ttl.
    pub fn release(mut self) -> Result<(), Error> {
        if !self.end() {
            return Err(self.lost());
        }
        if let Err(reason) = self.validity() {
            self.write_release();
            return self.found_lost(reason);
        }
        let answer = self.run_release(false);
        self.conclude(answer, (Ending::Released, Ending::NotConfirmed))
    }

    /// Notifies the observer that the lock ended as `confirmed`, or as `unconfirmed` if too few nodes have answered.
    /// Returns the result.
    pub(crate) fn conclude(
        &self,
        answer: Answer,
        (confirmed, unconfirmed): (Ending, Ending),
    ) -> Result<(), Error> {
        let reason = answer.lost_reason();
        match answer.outcome {
            Outcome::Yes(_) => {
                self.notify_ended(confirmed);
                Ok(())
            }
            Outcome::No => self.found_lost(reason),
            Outcome::Unavailable { errors, .. } => {
                self.notify_ended(unconfirmed);
                Err(Error::Unavailable(*errors))
            }
        }
    }

    /// Reports that the lock was lost when its holder ended it.
    pub(crate) fn found_lost(&self, reason: LostReason) -> Result<(), Error> {
        let (name, why) = (self.shown(), reason.text());
        say!(
            warn,
            lock:% = Unquoted(&self.key.resource), reason = why;
            "lock {name} was found lost when it was released: {why}"
        );
        let loss = self.lease().lose(reason);
        self.report(loss);
        self.notify_ended(Ending::WasLost);
        Err(Error::lost(&self.key.resource, reason))
    }

    /// Releases the lock after the work that it protected, and returns the result of both. If too few nodes confirm
    /// the release, the work was done all the same, and the lock ends with its ttl.
    pub(crate) fn release_after<T, E: From<Error>>(self, result: Result<T, E>) -> Result<T, E> {
        let resource = self.key.resource.clone();
        let released = self.release();
        if let Err(Error::Unavailable(nodes)) = &released {
            let name = Shown(&resource);
            say!(
                warn,
                lock:% = Unquoted(&resource);
                "lock {name}: too few nodes confirmed its release, so it ends with its ttl: {nodes}"
            );
        }
        with_work_done(result, released)
    }

    /// Marks the lock as ended: the program no longer relies on it. Returns whether it belonged to this process and had
    /// not ended.
    pub(crate) fn end(&mut self) -> bool {
        let ends = !std::mem::replace(&mut self.ended, true) && self.route.first_lane().is_ours();
        if ends {
            self.end_renewal();
        }
        ends
    }

    pub(crate) fn end_renewal(&self) {
        if let Home::Shared(renewal) = &self.home {
            self.route.first_lane().renewals.end(renewal);
        }
    }

    fn run_release(&self, only_write: bool) -> Answer {
        let lease = self.lease();
        let release = Release {
            key: lease.key.clone(),
            notified_elsewhere: lease.notified_elsewhere,
            fair: self.fair,
            only_write,
            node_timeout: self.route.first_lane().driver.executor().timeouts.node,
        };
        drop(lease);
        self.route.release(&release)
    }

    /// Writes the release and does not wait for the answers.
    fn write_release(&self) {
        if !matches!(self.run_release(true).outcome, Outcome::Yes(_)) {
            say!(
                warn,
                lock:% = Unquoted(&self.key.resource);
                "lock {} could not be released on a majority of the nodes now; it ends with its ttl at the \
                 latest",
                self.shown()
            );
        }
    }
}

/// The result of work that was done under a lock. An error of the work goes before the loss of the lock, which the
/// release has logged; and only a loss makes an error of work that is done.
pub(crate) fn with_work_done<T, E: From<Error>>(
    result: Result<T, E>,
    released: Result<(), Error>,
) -> Result<T, E> {
    let value = result?;
    match released {
        Ok(()) | Err(Error::Unavailable(_)) => Ok(value),
        Err(error) => Err(error.done_before().into()),
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.end() {
            let how = self.ending(Ending::Dropped);
            self.write_release();
            self.notify_ended(how);
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock(\"{}\")", self.key.resource.escape_ascii())
    }
}
