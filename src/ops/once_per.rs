//! Work that is done once in a period, by the mark that `lock/mark_done` writes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::errors::server_error::Meaning;
use crate::lock::kept_lock::KeptLock;
use crate::lock::mark_done::{check_mark, check_scripts};
use crate::lock::redlock::Redlock;
use crate::ops::query::{Query, look_errors};
use crate::protocol::calls::once_mark;
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::resp::Reply;
use crate::values::clock::Point;
use crate::values::last_run::LastRun;

impl Redlock {
    /// Does the work once in a period, on all hosts that call this: the first of them does it under the lock, which is
    /// kept for as long as the work takes (`period` at most), and marks it as done if it returns `Ok`. Calls that come
    /// meanwhile wait, as [`acquire`](Redlock::acquire) does: set [`Options::wait`](crate::Options::wait) to longer than the
    /// work takes. If the work fails, or its process dies, a call that waits does it, or the next one. `Ok(None)`: it
    /// was done within the period, which begins when the work does.
    ///
    /// The mark is a key beside the lock, `{<resource>}:redlock:done`, on a majority of the nodes; it ends with the
    /// period. It is written while the lock is held, and not by a holder that comes too late: if nodes do not answer,
    /// or refuse it for now, that is tried again for as long as the lock was still valid behind the work, and for ten
    /// seconds at least. A node that is away then does not get the mark later, and one that loses its data loses the
    /// mark. As long as a majority has it, it is found. If fewer have it, and none of these is among the nodes that
    /// answer the next call, the work is done again: at least once, not at most once. Work that took `period` or
    /// longer leaves no mark, as its period is over. `redlock run --once-per` does the same, also where its period is
    /// shorter than the ttl.
    ///
    /// # Errors
    ///
    /// The error of the work. The errors of [`acquire`](Redlock::acquire), [`Lock::keep_alive`](crate::Lock::keep_alive), and
    /// [`last_run`](Redlock::last_run), which is tried for 10 seconds if nodes are away for a moment: then it did not run.
    /// [`Error::Unavailable`] also where so many nodes [run no
    /// scripts](crate::guide::operations#services-that-lack-commands) that it could not be marked: it did not run, either.
    /// [`Error::Config`], before anything is done, also for a name that [cannot be marked](KeptLock::mark_done), and if
    /// `period` is shorter than `ttl`.
    ///
    /// [`Error::Lost`] or [`Error::Unavailable`] whose [`after_work`](Error::after_work) is true: the work has succeeded, and
    /// could not be marked as done, so the next call may do it again. What it returned is dropped. A release that fails after
    /// that is not an error; it is logged.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use redlock_sync::{Error, Redlock};
    ///
    /// # use redlock_sync::KeptLock;
    /// # fn import(_: &KeptLock) -> Result<u32, Error> { Ok(1) }
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let redlock = redlock.adjust(|options| options.wait(Duration::from_secs(2 * 3600)))?;
    /// let (ttl, period) = (Duration::from_secs(30), Duration::from_secs(20 * 3600));
    /// match redlock.once_per("shop:nightly", ttl, period, |lock| import(lock)) {
    ///     Ok(Some(records)) => println!("{records} imported"),
    ///     Ok(None) => println!("another host has done it"),
    ///     Err(Error::Busy(busy)) => println!("still under way: {busy}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn once_per<T, E: From<Error>>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        period: Duration,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let resource = &*self.checked(resource)?;
        if period < ttl {
            let text = format!(
                "the period of {period:?} is shorter than the ttl of {ttl:?}: the work is done once in a period, and a host \
                 that dies keeps the lock for its ttl"
            );
            return Err(Error::config(text).into());
        }
        check_mark(self.executor(), resource)?;
        let kept = self.acquire(resource, ttl)?.keep_alive(period)?;
        let sleeps = |pause| {
            thread::sleep(pause);
            true
        };
        let last = patiently(PATIENCE, (sleeps, may_pass_soon), |_| last_run(self, &kept))?;
        let begun = Point::now();
        let done = match last {
            Some(_) => None,
            None => {
                let result = work(&kept)?;
                let took = begun.elapsed_at(Point::now());
                let marked = match kept.lost() {
                    _ if took < period => mark_patiently(&kept, period, took, sleeps),
                    // Nothing is left of the period: no later holder would see a mark.
                    None => Ok(()),
                    Some(reason) => Err(Error::lost(&kept.lock().key.resource, reason)),
                };
                marked.map_err(Error::done_before)?;
                Some(result)
            }
        };
        // The work is done and marked, by this call or before. A release that fails does not change that; it is logged.
        let _ = kept.stop().release_after(Ok::<(), Error>(()));
        Ok(done)
    }

    /// The last run of this work that was [marked as done](KeptLock::mark_done), if its period is not over. To be asked
    /// by a holder of the lock before it does the work, and by people at any time. Asks all nodes over separate
    /// connections, as [`inspect`](Redlock::inspect) does.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty or too long resource, the name of a key [beside a
    /// lock](crate::guide::operations#names-of-keys), and one that [cannot be marked](KeptLock::mark_done);
    /// [`Error::Unavailable`] if no majority of the nodes answered.
    pub fn last_run(&self, resource: impl AsRef<[u8]>) -> Result<Option<LastRun>, Error> {
        let resource = self.checked(resource)?;
        check_mark(self.executor(), &resource)?;
        let key = self.options().prefix.key(&resource);
        let mark = Companion::Done.key(&key).concat();
        let answers = self.query_key(&key, move |query, asking| look(query, &mark, asking));
        let nodes = answers.len();
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for (node, (place, answer)) in answers.into_iter().enumerate() {
            found.push(answer.as_ref().ok().cloned());
            errors.extend(answer.err().map(|cause| NodeError {
                node,
                address: place.shown(),
                cause: Arc::new(cause),
            }));
        }
        once_mark::last(found).map_err(|()| Error::Unavailable(look_errors(errors, nodes)))
    }
}

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a holder whose lock is renewed tries at least: its ttl may be shorter than a server is busy.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the nodes do not refuse for good.
pub fn may_pass_soon(nodes: &NodeErrors) -> bool {
    !nodes.is_permanent()
}

/// Tries again, for this long, while the failures of the nodes may pass. `pause` returns whether to go on. A try is given the
/// time since the first one began.
///
/// # Errors
///
/// The error of the last try.
pub fn patiently<T>(
    longest: Duration,
    (pause, may_pass): (impl Fn(Duration) -> bool, fn(&NodeErrors) -> bool),
    mut ask: impl FnMut(Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Point::now();
    loop {
        match ask(began.elapsed_at(Point::now())) {
            Err(Error::Unavailable(nodes)) if may_pass(&nodes) => {
                if began.elapsed_at(Point::now()) >= longest || !pause(PAUSE) {
                    return Err(Error::Unavailable(nodes));
                }
            }
            result => return result,
        }
    }
}

/// The last run of the work of this lock, to be asked before it runs.
///
/// # Errors
///
/// The errors of [`Redlock::last_run`]; [`Error::Lost`]; and [`Error::Unavailable`] if the work has to be done now, and could not be marked.
pub fn last_run(redlock: &Redlock, kept: &KeptLock) -> Result<Option<LastRun>, Error> {
    if let Some(last) = redlock.last_run(kept.resource())? {
        return Ok(Some(last));
    }
    // Another holder may do the work by now.
    if let Some(reason) = kept.lost() {
        return Err(Error::lost(&kept.lock().key.resource, reason));
    }
    check_scripts(kept.lock().route.first_lane().driver.executor()).map(|()| None)
}

/// Marks work that has succeeded as done. Without the mark the work is done twice, so nodes that are away for a moment, or
/// refuse it for now or for want of a right, are tried again: for as long as the lock was still valid when the work
/// ended. No other program can do the work meanwhile. The mark ends with the period, however late it is written.
/// `pause` returns whether to go on.
///
/// # Errors
///
/// The errors of [`KeptLock::mark_done`].
pub fn mark_patiently(
    kept: &KeptLock,
    period: Duration,
    took: Duration,
    pause: impl Fn(Duration) -> bool,
) -> Result<(), Error> {
    let longest = kept.remaining().max(PATIENCE);
    patiently(longest, (pause, NodeErrors::may_pass), |ago| {
        kept.lock().mark_ended(period, took, ago)
    })
}

/// The mark on one node. `asking`: the slot of the key is migrating to the node.
fn look(query: &mut Query, mark: &[u8], asking: bool) -> Result<Option<LastRun>, Cause> {
    let [value, left] = query.ask_each([&[b"GET", mark], &[b"PTTL", mark]], asking)?;
    let value = match value {
        Reply::Nil => return Ok(None),
        Reply::Bulk(value) => value,
        Reply::Error(text) if Meaning::of(&text) == Meaning::WrongType => return Err(OTHER_DATA),
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    let run = LastRun::parse(&value).ok_or(OTHER_DATA)?;
    Ok(match left {
        // The mark ended between the two commands.
        Reply::Int(-2) => None,
        Reply::Int(left) => {
            let left = u64::try_from(left).map_or(Duration::MAX, Duration::from_millis);
            Some(run.kept_for(left))
        }
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    })
}

const OTHER_DATA: Cause = Cause::NoMark("the key of the mark has other data");
