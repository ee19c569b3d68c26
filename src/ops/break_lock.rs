use crate::errors::error::Error;
use crate::lock::redlock::Redlock;
use crate::ops::holder::Holder;
use crate::ops::state::NodeState;
use crate::protocol::calls::release::Release;
use crate::protocol::commands::action::Key;
use crate::protocol::commands::kind::{Kind, MAX_PERMITS};
use crate::protocol::quorum::answer::Outcome;
use crate::values::lock_value::ValueRole;
use crate::values::node_set::NodeSet;

impl Redlock {
    /// Releases a lock that another process holds, for people who know that its `holder` will not come back. Returns
    /// true if it was released, and false if a majority of the nodes no longer has it for this holder: it has ended, or
    /// another holder has it, whose lock stays as it is.
    ///
    /// Breaking a lock gives up mutual exclusion: if its holder is still running, two programs may then do what the
    /// lock protects. The holder is not stopped. Its next extension, renewal or release fails with [`Error::Lost`];
    /// until then it relies on the lock, for at most the validity that it has left. Only a [fencing
    /// token](crate::guide::fencing) keeps out what it still writes.
    ///
    /// If the lock is a permit or a read lock, only that of this holder is released; the others stay. If it is a lock
    /// on several names, only this name is released, and its holder then loses all of them.
    ///
    /// `holder` is from [`inspect`](Redlock::inspect). Each node compares the lock's value with it and deletes the lock
    /// in one step. Waiting processes are notified, as by [`Lock::release`](crate::Lock::release); give this `Redlock`
    /// [`Options::fair`](crate::Options::fair) if they wait in the order of their arrival. On a node that is away the
    /// lock ends with its ttl, unless the node is back before the last clone of this `Redlock` is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if too few nodes answered; those that did have deleted it. [`Error::Config`] for an empty
    /// or too long resource, the name of a key [beside a lock](crate::guide::operations#names-of-keys), and if the key has no
    /// ttl on some node: then this crate did not make it, and nothing is deleted.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use redlock_sync::{LockState, Redlock};
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// if let LockState::Held { holder, .. } = redlock.inspect("shop:deploy")?.state() {
    ///     println!("{holder} has it"); // … ask a person whether that process is gone …
    ///     let broken = redlock.break_lock("shop:deploy", &holder)?;
    ///     println!("{}", if broken { "released" } else { "it has changed hands" });
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn break_lock(&self, resource: impl AsRef<[u8]>, holder: &Holder) -> Result<bool, Error> {
        let resource = self.checked(resource)?;
        self.has_ttl(&resource, holder)?;
        let route = self.route(&resource);
        // Otherwise the release may end before it is written to the nodes that are connected last. A node that fails to
        // connect now fails below.
        drop(route.first_lane().driver.connect());
        let kind = match holder.role() {
            ValueRole::Lock => Kind::Plain,
            ValueRole::Reader => Kind::Read { waited: 0 },
            ValueRole::Permit(slot) => Kind::Permit {
                permits: MAX_PERMITS,
                slot: Some(slot),
            },
        };
        let key = Key::new(resource, *holder.token(), holder.own_label().cloned()).of_kind(kind);
        let key = key.sent_to(NodeSet::ALL);
        let release = Release {
            key,
            notified_elsewhere: false,
            fair: self.options().fair,
            only_write: false,
            node_timeout: route.first_lane().driver.executor().timeouts.node,
        };
        // While the lock is being released it counts as held here. The release of a plain lock takes that back.
        if release.key.kind.is_plain() {
            route
                .first_lane()
                .waiting_threads
                .held_here
                .add(&release.key.resource);
        }
        match route.release(&release).outcome {
            Outcome::Yes(_) => Ok(true),
            Outcome::No => Ok(false),
            Outcome::Unavailable { errors, .. } => Err(Error::Unavailable(*errors)),
        }
    }

    /// Fails if the key has no ttl on some node: 20 bytes of other data can look like a token, but locks have a ttl.
    fn has_ttl(&self, resource: &[u8], holder: &Holder) -> Result<(), Error> {
        for (node, address, state) in self.inspect(resource)?.nodes() {
            if matches!(state, NodeState::Held { holder: other, remaining: None } if other == holder)
            {
                return Err(Error::config(format!(
                    "the key has no ttl on node {node} ({address}), so this crate did not make it: nothing was deleted"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::Node;

    const TTL: Duration = Duration::from_secs(60);

    /// Otherwise each waiter of this process would pause for a holder here, for as long as the process lives.
    #[test]
    fn what_was_broken_does_not_count_as_held_here() {
        let node = Node::start().unwrap();
        // Patient with a busy machine.
        let options = crate::Options::new().node_timeout(Duration::from_secs(2));
        let client = || {
            Redlock::new(node.url())
                .unwrap()
                .with_options(options.clone())
        };
        let (redlock, other) = (client().unwrap(), client().unwrap());
        for lockable in [
            other.write_lock("plain").unwrap(),
            other.semaphore("permit", 2).unwrap(),
            other.read_lock("reader").unwrap(),
        ] {
            let lock = lockable.acquire(TTL).unwrap();
            let name = lockable.resources().next().unwrap().to_vec();
            let state = redlock.inspect(&name).unwrap().state();
            let (holder, _) = state.holders().next().unwrap();
            assert!(redlock.break_lock(&name, holder).unwrap());
            assert!(!redlock.break_lock(&name, holder).unwrap());
            let held = redlock
                .route(&name)
                .first_lane()
                .waiting_threads
                .held_here
                .counted(&name);
            assert_eq!(held, 0, "{lockable:?}");
            drop(lock);
        }
    }
}
