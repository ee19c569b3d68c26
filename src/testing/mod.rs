//! A node for unit tests, in the test's own process. It is no server: nothing but this crate may talk to it, and only
//! tests should.
//!
//! With it, tests of code that uses locks need no Redis, take milliseconds, and decide what happens: which locks are
//! taken, when a lock ends, which node is silent. (Feature `testing`; for a program's tests, the dev-dependency
//! `redlock-sync = { version = "0.1", features = ["testing"] }`.)
//!
//! A [`Node`] listens on a port of this machine, and understands what this crate sends: everything that is done with a
//! [`Redlock`](crate::Redlock), and the command `redlock`. Three nodes make a majority of two.
//!
//! ```
//! use redlock_sync::testing::Node;
//! use redlock_sync::{Error, Redlock};
//! use std::time::Duration;
//!
//! /// The code to be tested.
//! fn report(redlock: &Redlock) -> Result<&'static str, Error> {
//!     match redlock.try_acquire("shop:nightly-report", Duration::from_secs(60))? {
//!         Some(lock) => {
//!             lock.leak();
//!             Ok("sent")
//!         }
//!         None => Ok("left to the other host"),
//!     }
//! }
//!
//! let nodes = [Node::start()?, Node::start()?, Node::start()?];
//! let redlock = Redlock::new(nodes.iter().map(Node::url))?;
//! assert_eq!(report(&redlock)?, "sent");
//! assert_eq!(report(&redlock)?, "left to the other host");
//! // A minute later, as the nodes see it.
//! nodes.iter().for_each(|node| node.advance(Duration::from_secs(61)));
//! assert_eq!(report(&redlock)?, "sent");
//! # Ok::<(), Error>(())
//! ```
//!
//! The guide has [more](crate::guide::testing).

// Files: `store` has the data and carries out commands, `server` is a server with its clock and connections, `sockets`
// has its sockets and threads, and `node` is what a test does to it.

pub(crate) mod server;
pub(crate) mod store;

mod node;
mod sockets;

pub use node::Node;
pub use server::{Held, Requests};
