//! The protocol, pure: values that do no I/O and read no clock. Bytes, results and times come in as
//! arguments; what to do next goes out. `net` drives them.
//!
//! In reading order:
//!
//! - [the rules](#the-rules-of-the-protocol), below
//! - `quorum`: majority, validity, votes and verdicts
//! - `resp`: commands and replies as bytes
//! - `server_error`: what servers answer when they refuse, and what it means
//! - `server_info`: what a server reports in INFO
//! - `scripts`: the scripts that run on a server (`sha1`: their names)
//! - `companions`: the keys beside a lock's
//! - `slots`: which server of a Redis Cluster has a key
//! - `kind`: as what a name is locked (`vote`: what a node's answer is worth)
//! - `script`: the commands of a lock (`means`: how a server takes them)
//! - `queue`: the processes that wait for a lock which another one holds, on the nodes
//! - `backoff`, `random`: pauses
//! - `wire`: one connection, and the replies that are to come
//! - `answers`: which server is the master, by the answers of those that were asked
//! - `address`: whether a connection still leads to the node's master
//! - `outbox`: what a node is still to be sent of locks that were given up, each a `debt`
//! - `guard`: whether a server may have forgotten locks (`witness`: what it shows of that; `proof`: which answers count)
//! - `node`: one node, over all its connections, and what its worker does
//! - `order`: which node is read first
//! - `operation`: one operation on all nodes (`votes`: what they have answered; `operations`: those under way)
//! - `notice`: what is logged once (`event`: what is logged)
//! - `next`: what a thread is to do that carries out what the core decides
//! - `confirm`: the releases that no operation waits for (`notified`: those that notified another process)
//! - `core`: all nodes and all operations under way
//! - `fence`: numbers that grow with every holder
//! - `lease`: what the holder of a lock may believe
//! - `attempt`: the tries that make one attempt to acquire
//! - `subscriptions`: over which the nodes notify this process
//! - `poller`: what the one thread does that asks the nodes for a lock on behalf of its process
//! - `waiter`: a thread that waits for a lock
//! - `wait_queue`: the threads of a process that wait for a lock, and which of them is next
//! - `held_here`: the locks that this process seems to hold
//! - `process`: what a call needs of its process
//! - `acquire`, `release`: one call each, from its beginning to its end
//! - `claims`: a call for several names, which claims one by one
//! - `mutants`: how each rule can be broken, for tests
//! - `oracle`: whether the code does what the model of the rules does, on its schedules
//! - `sim`: all of that among virtual servers, connections and clocks
#![doc = ""]
#![doc = include_str!("rules.md")]

pub(crate) mod calls;
pub(crate) mod commands;
pub(crate) mod mutants;
pub(crate) mod node;
pub(crate) mod quorum;
pub(crate) mod waiting;
