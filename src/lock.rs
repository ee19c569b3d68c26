use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::Point;
use crate::error::Error;
use crate::keeper::{Keeper, Kept, LostReason};
use crate::net::drive::Nodes;
use crate::net::lane::Lane;
use crate::observe::{Ending, Event, Observer};
use crate::options::Options;
use crate::protocol::attempt::{Extended, Extension, refill};
use crate::protocol::entry::Outcome;
use crate::protocol::quorum::{Deadline, Ttl};
use crate::protocol::script::Key;
use crate::shown::Shown;
use crate::token::Token;
use crate::waiting::Waiting;

/// What a [`Redlock`](crate::Redlock), its clones and its locks share: the connections, closed when
/// the last of them is gone, and the kept locks.
pub(crate) struct Shared {
    pub(crate) lane: Arc<Lane>,
    pub(crate) keeper: Keeper,
    pub(crate) waiting: Arc<Waiting>,
}

impl Shared {
    pub(crate) fn new(nodes: Nodes) -> Shared {
        Shared {
            waiting: Arc::new(Waiting::new(&nodes)),
            lane: Arc::new(Lane::new(nodes)),
            keeper: Keeper::new(),
        }
    }

    /// Whether this is the process that made it, not a forked child. To be asked before anything
    /// else is touched.
    pub(crate) fn is_ours(&self) -> bool {
        self.lane.is_ours()
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.lane.nodes().observer
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_ours() {
            self.lane.close();
        }
    }
}

/// A held lock. Dropping it releases it.
///
/// It is valid until its deadline: for the ttl, less the time that acquiring took, less an allowance
/// for clocks that run at different rates. After the deadline it reports itself lost, without asking
/// a node; others may hold the lock then. It can be sent to and used from any thread.
///
/// Dropping writes the release to the nodes and does not wait for their answers;
/// [`release`](Lock::release) tells whether the lock was still held. Whatever the nodes do, either takes at
/// most one [`node_timeout`](crate::Options::node_timeout). (After [`resume`](crate::Redlock::resume), the release
/// may be the first operation of the program, and has to connect.)
///
/// The answers to a dropped lock's release are read by the next operation, or, after one `node_timeout`, by a thread. A
/// release that was not carried out, because the connection was closed or the node had forgotten the scripts, is sent
/// again.
#[must_use = "a lock is released when it is dropped"]
pub struct Lock {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Key,
    /// When its acquisition began.
    pub(crate) since: Point,
    /// What was last granted.
    pub(crate) ttl: Duration,
    pub(crate) deadline: Deadline,
    extensions_left: u32,
    max_extensions: u32,
    restart_guard: Option<Duration>,
    /// Once it was asked for.
    pub(crate) fencing_token: OnceLock<u64>,
    /// Once lost, always lost: also if a clock is set back.
    lost: AtomicBool,
    /// While it is kept alive.
    pub(crate) kept: Option<Arc<Kept>>,
    /// Set if it was found lost while it was kept alive. The observer may not have been told yet.
    found_lost: Option<Arc<Kept>>,
    /// An observer was told of it.
    announced: bool,
    /// When it was acquired, another process had been sent the message that it is free.
    pub(crate) passed: bool,
    /// Those who wait for it get it in the order in which they came.
    fair: bool,
    /// Released, leaked, or handed on: nothing is left to do in `Drop`.
    ended: bool,
}

impl Lock {
    pub(crate) fn new(
        shared: Arc<Shared>,
        key: Key,
        ttl: Duration,
        deadline: Deadline,
        options: &Options,
    ) -> Lock {
        shared.waiting.holds(&key.resource);
        Lock {
            shared,
            key,
            since: deadline.from,
            ttl,
            deadline,
            extensions_left: options.max_extensions,
            max_extensions: options.max_extensions,
            restart_guard: options.restart_guard,
            fencing_token: OnceLock::new(),
            lost: AtomicBool::new(false),
            kept: None,
            found_lost: None,
            announced: false,
            passed: false,
            fair: options.fair,
            ended: false,
        }
    }

    /// What is locked.
    pub fn resource(&self) -> &[u8] {
        &self.key.resource
    }

    /// The random value that identifies this acquisition on the nodes. With it another process can take over the
    /// lock: [`Redlock::resume`](crate::Redlock::resume).
    pub fn token(&self) -> &Token {
        &self.key.token
    }

    /// How long the lock is still valid. Zero once its validity is over, or it is known to be lost. Local: asks
    /// no node.
    pub fn remaining(&self) -> Duration {
        if self.shared.is_ours() {
            self.left()
        } else {
            Duration::ZERO
        }
    }

    /// [`remaining`](Lock::remaining) where it is known that this is not a forked child.
    pub(crate) fn left(&self) -> Duration {
        if self.lost.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let remaining = self.deadline.remaining(Point::now());
        if remaining.is_zero() {
            self.lose(LostReason::Expired);
        }
        remaining
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
    /// for (the lock is still held: extend it, or stop).
    pub fn ensure(&self, at_least: Duration) -> Result<(), Error> {
        let remaining = self.remaining();
        if remaining.is_zero() {
            Err(Error::Lost)
        } else if remaining < at_least {
            Err(Error::TooSlow)
        } else {
            Ok(())
        }
    }

    /// How often [`extend`](Lock::extend) can still succeed.
    pub fn extensions_left(&self) -> u32 {
        self.extensions_left
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
        let ttl = Ttl::within(ttl, self.restart_guard)?;
        let old = self.deadline;
        let extended = if !self.is_valid() {
            Err(Error::Lost)
        } else if self.extensions_left == 0 {
            Err(Error::ExtensionLimit(self.max_extensions))
        } else {
            self.renew(ttl)
        };
        if extended.is_ok() {
            self.extensions_left -= 1;
        }
        self.came_to(extended, old, false)
    }

    /// An extension that does not count towards `max_extensions`.
    pub(crate) fn renew(&mut self, ttl: Ttl) -> Result<(), Error> {
        let extension = Extension::new(ttl, self.deadline, Point::now());
        let op = extension.op(self.key.clone());
        let answer = self.shared.lane.run(op);
        match extension.answered(answer, Point::now()) {
            Extended::Yes(longer, missing) => {
                if let Some(deadline) = longer {
                    self.deadline = deadline;
                    self.ttl = ttl.duration();
                }
                self.key.asked = self.key.asked.or(missing);
                let (key, now) = (self.key.clone(), Point::now());
                let refill = refill(ttl, key, missing, self.deadline, now);
                if let Some(op) = refill {
                    drop(self.shared.lane.run(op));
                    // That may have taken its time.
                    if self.left().is_zero() {
                        return Err(Error::Lost);
                    }
                }
                Ok(())
            }
            Extended::Lost => {
                // Not if the reason is only that its validity is over.
                if !self.left().is_zero() {
                    self.lose(LostReason::Taken);
                }
                say!(
                    warn,
                    "lock {} was found lost when it was extended",
                    self.shown()
                );
                Err(Error::Lost)
            }
            Extended::Unavailable(nodes) => Err(Error::Unavailable(nodes)),
        }
    }

    /// Whoever finds out first tells the observer.
    pub(crate) fn lose(&self, reason: LostReason) {
        if !self.lost.swap(true, Ordering::Relaxed) && self.announced {
            self.shared.observer().tell(|| Event::Lost {
                resource: &self.key.resource,
                held: self.held(),
                reason,
            });
        }
    }

    /// Its name in a log line.
    pub(crate) fn shown(&self) -> Shown<'_> {
        Shown(&self.key.resource)
    }

    fn held(&self) -> Duration {
        self.since.elapsed_at(Point::now())
    }

    // ---- what the observer is told

    /// Tells the observer that the lock is held, before the caller relies on it.
    pub(crate) fn announce(&mut self, wait: Duration, attempts: u32) {
        let observer = self.shared.observer();
        self.announced = !observer.is_none();
        observer.tell(|| Event::Acquired {
            resource: &self.key.resource,
            wait,
            attempts,
        });
    }

    /// Tells the observer the result of an extension, or a renewal, of the validity `old`.
    pub(crate) fn came_to(
        &self,
        extended: Result<(), Error>,
        old: Deadline,
        renewal: bool,
    ) -> Result<(), Error> {
        if !self.announced {
            return extended;
        }
        let (resource, left) = (&self.key.resource, old.remaining(Point::now()));
        self.shared
            .observer()
            .tell(|| Event::extension(resource, left, renewal, &extended));
        // That may have taken its time.
        if extended.is_ok() && !self.is_valid() {
            return Err(Error::Lost);
        }
        extended
    }

    /// How it ends, unless it turns out to be over.
    fn or_lost(&self, how: Ending) -> Ending {
        match self.announced && self.left().is_zero() {
            true => Ending::WasLost,
            false => how,
        }
    }

    fn ended(&self, how: Ending) {
        if !self.announced {
            return;
        }
        let held = self.held();
        match &self.found_lost {
            Some(kept) => kept.tell_end(held, how),
            None => self.shared.observer().tell(|| Event::Ended {
                resource: &self.key.resource,
                held,
                how,
            }),
        }
    }

    // ---- its end

    /// Releases the lock and waits for a majority to confirm it.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lock had already been lost: its validity was over, or a majority no longer held
    ///   it. Others may have touched what it protected. The release is written all the same.
    /// - [`Error::Unavailable`]: too few nodes confirmed. The lock is free on those that did, and
    ///   ends with its ttl on the others.
    pub fn release(mut self) -> Result<(), Error> {
        if !self.end() {
            return Err(Error::Lost);
        }
        let outcome = if self.left().is_zero() {
            self.write_release();
            Outcome::No
        } else {
            self.run_release(false)
        };
        match outcome {
            Outcome::Yes(_) => {
                self.ended(Ending::Released);
                Ok(())
            }
            Outcome::No => {
                say!(
                    warn,
                    "lock {} was found lost when it was released",
                    self.shown()
                );
                self.lose(LostReason::Taken);
                self.ended(Ending::WasLost);
                Err(Error::Lost)
            }
            Outcome::Unavailable { errors, .. } => {
                self.ended(Ending::NotConfirmed);
                Err(Error::Unavailable(errors))
            }
        }
    }

    /// Releases the lock after the work that it protected. A release that too few nodes confirmed
    /// does not spoil the work: the ttl ends the lock.
    pub(crate) fn release_after<T>(self, result: T) -> Result<T, Error> {
        let resource = self.key.resource.clone();
        match self.release() {
            Ok(()) => Ok(result),
            Err(Error::Unavailable(nodes)) => {
                say!(
                    warn,
                    "lock {}: too few nodes confirmed its release, so it ends with its ttl: {nodes}",
                    Shown(&resource)
                );
                Ok(result)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives up the lock without releasing it: nobody can take it until its ttl ends. Use it for a
    /// throttle ("at most once in 5 seconds"), and after the lock was handed to another process.
    pub fn leak(mut self) {
        if self.end() {
            let how = self.or_lost(Ending::Left);
            self.shared.waiting.ends(&self.key.resource);
            self.ended(how);
        }
    }

    /// From now on nobody relies on it. Returns whether it belonged to this process and had not ended.
    fn end(&mut self) -> bool {
        let ends = !std::mem::replace(&mut self.ended, true) && self.shared.is_ours();
        if ends {
            self.unkeep();
        }
        ends
    }

    /// Ends its renewal.
    pub(crate) fn unkeep(&mut self) {
        let Some(kept) = self.kept.take() else {
            return;
        };
        let (deadline, lost) = self.shared.keeper.end(&kept);
        self.deadline = deadline;
        if lost {
            *self.lost.get_mut() = true;
            self.found_lost = Some(kept);
        }
    }

    fn run_release(&self, only_write: bool) -> Outcome {
        let shared = &self.shared;
        let how = (self.passed, self.fair);
        shared
            .waiting
            .release(&shared.lane, &self.key, how, only_write)
    }

    /// Writes the release and does not wait for the answers.
    fn write_release(&self) {
        if !matches!(self.run_release(true), Outcome::Yes(_)) {
            say!(
                warn,
                "lock {} could not be released on a majority of the nodes now; it ends with its ttl at the \
                 latest",
                self.shown()
            );
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.end() {
            let how = self.or_lost(Ending::Dropped);
            self.write_release();
            self.ended(how);
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock(\"{}\")", self.key.resource.escape_ascii())
    }
}
