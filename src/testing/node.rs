//! A node for tests, and what a test can do to it.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::server::{Held, Replies, Requests};
use super::sockets::{NodeData, NodeMood, NodeShared, WRITE_TIMEOUT, spawn};
use crate::errors::error::Error;
use crate::lock::checks;
use crate::values::clock::millis;
use crate::values::label::Label;
use crate::values::prefix::Prefix;
use crate::values::sync::{MutexGuard, lock};
use crate::values::token::Token;

/// The longest time, such as that of a lock that is held until it is released.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A node in the test's own process, ended when it is dropped. See the [module](crate::testing).
/// In a forked child it goes on in the parent: its drop does nothing to it there.
///
/// Each change that a test makes to it lasts until the test makes another one. All methods take effect before they
/// return, and none of them waits for the code under test.
pub struct Node {
    shared: Arc<NodeShared>,
    address: SocketAddr,
    url: String,
    threads: Vec<JoinHandle<()>>,
    process: u32,
}

impl Node {
    /// Starts a node without locks.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if this machine has no port or thread for it.
    pub fn start() -> Result<Node, Error> {
        let failed = |error: std::io::Error| Error::config(format!("a testing::Node: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let number = getrandom::u64().map_err(Error::random)?;
        let shared = Arc::new(NodeShared::new(number));
        // From here on the node is ended by its drop.
        let mut node = Node {
            shared: shared.clone(),
            address,
            url: format!("redis://{address}"),
            threads: Vec::new(),
            process: std::process::id(),
        };
        let writer = shared.clone();
        let writer = spawn("redlock-test-writer", move || writer.write());
        node.threads.push(writer.map_err(failed)?);
        let acceptor = spawn("redlock-test-accept", move || shared.accept(&listener));
        node.threads.push(acceptor.map_err(failed)?);
        Ok(node)
    }

    /// The URL for [`Redlock::new`](crate::Redlock::new).
    pub fn url(&self) -> &str {
        &self.url
    }

    // ---- locks

    /// The holder of a lock on this node; of several permits or readers the one that lasts longest. `None`: it is free.
    pub fn holder(&self, resource: impl AsRef<[u8]>) -> Option<Held> {
        let state = self.state();
        state.server.holder(resource.as_ref(), state.time())
    }

    /// The names of all locks on this node, sorted.
    ///
    /// # Example
    ///
    /// The code under test has left no lock behind:
    ///
    /// ```
    /// # use redlock_sync::testing::Node;
    /// # use redlock_sync::Redlock;
    /// # use std::time::Duration;
    /// let node = Node::start()?;
    /// let redlock = Redlock::new([node.url()])?;
    /// redlock.with_lock("shop:account:17", Duration::from_secs(10), |_lock| {
    ///     assert_eq!(node.locks(), [b"shop:account:17"]);
    ///     Ok::<_, redlock_sync::Error>(())
    /// })?;
    /// assert!(node.locks().is_empty());
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn locks(&self) -> Vec<Vec<u8>> {
        let state = self.state();
        let locks = state.server.locks(state.time());
        locks.into_iter().map(|(name, _)| name).collect()
    }

    /// How many processes are in this node's queue for a lock. A [`Redlock`](crate::Redlock) that is made anew counts
    /// as a process; its threads and clones count once.
    pub fn waiting(&self, resource: impl AsRef<[u8]>) -> usize {
        let state = self.state();
        state.server.waiting(resource.as_ref(), state.time())
    }

    /// Another process holds the lock on this node from now on, for `ttl`, or until it is [released](Node::release)
    /// ([`Duration::MAX`]). The label may be empty. If the code under test holds the lock, it loses it.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty or too long resource, the name of a key [beside a
    /// lock](crate::guide::operations#names-of-keys), a label that is too long or not printable, and a ttl below a
    /// millisecond; [`Error::Random`].
    ///
    /// # Example
    ///
    /// Test what the code does if another process has the lock, and if that takes it away:
    ///
    /// ```
    /// # use redlock_sync::testing::Node;
    /// # use redlock_sync::{Error, Redlock};
    /// # use std::time::Duration;
    /// let node = Node::start()?;
    /// let redlock = Redlock::new([node.url()])?;
    /// let (ttl, wait) = (Duration::from_secs(10), Duration::from_millis(20));
    ///
    /// node.hold("shop:account:17", "web-3:4711", Duration::MAX)?;
    /// assert!(matches!(redlock.acquire_within("shop:account:17", ttl, wait), Err(Error::Busy(_))));
    ///
    /// node.release("shop:account:17");
    /// let mut lock = redlock.acquire_within("shop:account:17", ttl, wait)?;
    /// node.hold("shop:account:17", "web-3:4711", ttl)?;
    /// assert!(matches!(lock.extend(ttl), Err(Error::Lost(_))));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hold(
        &self,
        resource: impl AsRef<[u8]>,
        label: &str,
        ttl: Duration,
    ) -> Result<(), Error> {
        let name = checks::name(resource.as_ref(), &Prefix::default())?;
        let label = Label::new(label);
        label.as_ref().map_or(Ok(()), Label::validate)?;
        let token = Token::random().map_err(Error::Random)?;
        let ttl = millis(ttl.min(CENTURY));
        if ttl == 0 {
            return Err(Error::config(
                "the ttl is below 1 ms: a lock cannot be held for that",
            ));
        }
        let mut state = self.state();
        let time = state.time();
        let holder = (&token, label.as_ref());
        state.server.hold(&name, holder, ttl, time);
        Ok(())
    }

    /// The holder releases the lock on this node, or all permits or readers do, and the first process that waits is notified.
    /// False: it was free.
    pub fn release(&self, resource: impl AsRef<[u8]>) -> bool {
        self.change(|state, replies| {
            let time = state.time();
            state.server.release(resource.as_ref(), time, replies)
        })
    }

    /// Denies everything but permits: from now on each lock that is free when it is asked for is held by another process.
    /// Locks that are held stay with their holders.
    ///
    /// # Errors
    ///
    /// [`Error::Random`].
    pub fn hold_all(&self) -> Result<(), Error> {
        let token = Token::random().map_err(Error::Random)?;
        self.state().server.hold_all(token);
        Ok(())
    }

    /// Ends [`hold_all`](Node::hold_all): that process releases all that it holds.
    pub fn release_all(&self) {
        self.change(|state, replies| {
            let time = state.time();
            state.server.release_all(time, replies);
        });
    }

    // ---- time

    /// Moves the clock of this node forward: locks end without a wait.
    ///
    /// Only this node's clock is moved. The code under test relies on its own clock: there a lock remains valid until
    /// its own deadline, and a call that asks the nodes fails with [`Error::Lost`].
    ///
    /// # Example
    ///
    /// ```
    /// # use redlock_sync::testing::Node;
    /// # use redlock_sync::{Error, Redlock};
    /// # use std::time::Duration;
    /// let node = Node::start()?;
    /// let redlock = Redlock::new([node.url()])?;
    /// let lock = redlock.acquire("shop:account:17", Duration::from_secs(10))?;
    /// node.advance(Duration::from_secs(11));
    /// assert!(node.holder("shop:account:17").is_none());
    /// assert!(matches!(lock.release(), Err(Error::Lost(_))));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn advance(&self, time: Duration) {
        self.change(|state, _| state.moved = state.moved.saturating_add(time).min(CENTURY));
    }

    // ---- faults

    /// Answers everything that concerns locks with an error, such as `"LOADING Redis is loading the dataset in memory"`
    /// or `"NOPERM this user has no permissions"`.
    pub fn refuse(&self, error: &str) {
        self.change(|state, _| {
            state.mood = NodeMood::Normal;
            state.server.refuse(Some(error));
        });
    }

    /// Carries out every command at once, and answers this much later.
    ///
    /// # Example
    ///
    /// A node that is slow beyond [`node_timeout`](crate::Options::node_timeout) does not count:
    ///
    /// ```
    /// # use redlock_sync::testing::Node;
    /// # use redlock_sync::{Error, Redlock};
    /// # use std::time::Duration;
    /// let nodes = [Node::start()?, Node::start()?, Node::start()?];
    /// let redlock = Redlock::new(nodes.iter().map(Node::url))?;
    /// nodes[2].answer_late(Duration::from_millis(500));
    /// redlock.acquire("shop:account:17", Duration::from_secs(10))?.release()?;
    ///
    /// nodes[1].answer_late(Duration::from_millis(500));
    /// let (ttl, wait) = (Duration::from_secs(10), Duration::from_millis(20));
    /// let failed = redlock.acquire_within("shop:account:17", ttl, wait);
    /// assert!(matches!(failed, Err(Error::Unavailable(_))));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn answer_late(&self, by: Duration) {
        self.be(NodeMood::Late(by.min(CENTURY)));
    }

    /// Accepts connections, and does and answers nothing, like a process that has been stopped. Commands that are sent
    /// meanwhile are carried out when the node [recovers](Node::recover).
    pub fn be_silent(&self) {
        self.be(NodeMood::Silent);
    }

    /// Closes all connections, and accepts no more. The locks remain.
    pub fn go_down(&self) {
        self.be(NodeMood::Down);
        self.close_connections();
    }

    /// Closes all connections, once.
    pub fn close_connections(&self) {
        self.change(|state, _| state.close_all());
    }

    /// A restart without data: closes all connections, and forgets all locks. Clients with the [restart
    /// guard](crate::Options::restart_guard) then do not count the votes of this node for a time, by their own clocks.
    /// (A client that is made after the clock of the node was [moved](Node::advance) by this time does.)
    pub fn forget(&self) {
        self.change(|state, _| {
            state.close_all();
            let time = state.time();
            state.server.restart(time);
        });
    }

    /// Ends [`refuse`](Node::refuse), [`answer_late`](Node::answer_late), [`be_silent`](Node::be_silent) and
    /// [`go_down`](Node::go_down), of which the last one counts.
    pub fn recover(&self) {
        self.be(NodeMood::Normal);
    }

    /// The numbers of requests that this node has received.
    pub fn requests(&self) -> Requests {
        self.state().server.requests
    }

    fn state(&self) -> MutexGuard<'_, NodeData> {
        lock(&self.shared.state)
    }

    fn be(&self, mood: NodeMood) {
        self.change(|state, _| {
            state.mood = mood;
            state.server.refuse(None);
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut NodeData, &mut Replies) -> T) -> T {
        let mut state = self.state();
        let mut replies = Replies::new();
        let changed = change(&mut state, &mut replies);
        state.post(replies);
        drop(state);
        self.shared.changed.notify_all();
        changed
    }
}

/// A panic of the test leaves no node half changed.
impl UnwindSafe for Node {}
impl RefUnwindSafe for Node {}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("url", &self.url).finish()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The node is the parent's, as the connections are. This process has none of its threads, one of which may
            // have had the mutex at the fork.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        let readers = self.change(|state, _| {
            state.ended = true;
            state.close_all();
            std::mem::take(&mut state.readers)
        });
        // The accepting thread looks up when there is something to accept. If that fails, it ends with the process.
        let acceptor = self.threads.split_off(self.threads.len().min(1));
        if TcpStream::connect_timeout(&self.address, WRITE_TIMEOUT).is_ok() {
            acceptor.into_iter().for_each(join);
        }
        self.threads.drain(..).chain(readers).for_each(join);
    }
}

fn join(thread: JoinHandle<()>) {
    // The thread does not panic; if it did, there would be nothing else to do.
    let _ = thread.join();
}
