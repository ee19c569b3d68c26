//! The guide: everything that concerns more than one type or function. These modules are documentation only.
//!
//! | chapter | what it answers |
//! | --- | --- |
//! | [`guarantees`] | What may I rely on, and what not? How is the validity of a lock computed? |
//! | [`recipes`] | A pool of devices, one importer per shard, a writer beside readers, a transfer, handing a lock over, entering a lock again, and other short programs |
//! | [`semaphores`] | At most k holders at a time, and which of the k each is |
//! | [`read_write_locks`] | Many readers or one writer |
//! | [`several_names`] | One lock on several names, or on none of them |
//! | [`long_jobs`] | What if my work takes longer than the ttl? |
//! | [`fencing`] | How does my database refuse a holder that comes too late? |
//! | [`waiting`] | Who gets a lock that several want, and when? How do I get it in the order of arrival? |
//! | [`operations`] | How do I set up, watch and restart the nodes? |
//! | [`deployments`] | Sentinel, Redis Cluster, and services that fail over |
//! | [`tls`] | How do I reach nodes over TLS, with which certificates? |
//! | [`shell`] | The command `redlock`, for cron, systemd and scripts |
//! | [`c`] | C, C++ and other languages |
//! | [`python`] | Python |
//! | [`testing`] | How do I test my code without Redis? |
//! | [`faq`] | Short answers |
//! | [`performance`] | What does a lock cost, and how do I measure it? |
//! | [`how_we_know`] | What has been simulated, searched, soaked and compared, and what has not? |
//! | [`faults_found`] | Which faults has this project had, and what found them? |
//! | [`comparison`] | How do other libraries behave, in Rust and other languages? |
//! | [`coming_from`] | I know Redisson, redsync, ShedLock, flock, …: what is it called here? |
//! | [`contributing`] | How is the code laid out and tested, and by which rules? |
//!
//! To begin with, three chapters are enough: [`guarantees`], [`operations`] and [`recipes`] (from a shell: [`shell`]).
//!
//! Terms that are used throughout:
//!
//! - A *node* is one Redis server, the master of a set that sentinels watch, or a Redis Cluster. Its *vote* is its
//!   answer to a request for a lock. A *majority* is more than half of the nodes that were given to
//!   [`Redlock::new`](crate::Redlock::new), whether they run or not: 1 of 1, 2 of 3, 3 of 5.
//! - A *resource*, or the *name* of a lock, is the name of a Redis key. The lock is held by its *holder*, which
//!   acquired it.
//! - The *ttl* (time to live) is how long the nodes keep the key. The holder relies on a little less, the *validity*,
//!   which ends at the *deadline*.
//! - The *token* is the random value of the key. It proves to the nodes that a release, or an extension, comes from the
//!   holder.

#[doc = include_str!("guide/c.md")]
pub mod c {}
#[doc = include_str!("guide/coming_from.md")]
pub mod coming_from {}
#[doc = include_str!("guide/comparison.md")]
pub mod comparison {}
#[doc = include_str!("guide/contributing.md")]
pub mod contributing {}
#[doc = include_str!("guide/deployments.md")]
pub mod deployments {}
#[doc = include_str!("guide/faq.md")]
pub mod faq {}
#[doc = include_str!("guide/faults_found.md")]
pub mod faults_found {}
#[doc = include_str!("guide/fencing.md")]
pub mod fencing {}
#[doc = include_str!("guide/guarantees.md")]
pub mod guarantees {}
#[doc = include_str!("guide/how_we_know.md")]
pub mod how_we_know {}
#[doc = include_str!("guide/long_jobs.md")]
pub mod long_jobs {}
#[doc = include_str!("guide/operations.md")]
pub mod operations {}
#[doc = include_str!("guide/performance.md")]
pub mod performance {}
#[doc = include_str!("guide/python.md")]
pub mod python {}
#[doc = include_str!("guide/read_write_locks.md")]
pub mod read_write_locks {}
#[doc = include_str!("guide/recipes.md")]
pub mod recipes {}
#[doc = include_str!("guide/semaphores.md")]
pub mod semaphores {}
#[doc = include_str!("guide/several_names.md")]
pub mod several_names {}
#[doc = include_str!("guide/shell.md")]
pub mod shell {}
// The code in this chapter needs the feature.
#[cfg(any(not(doctest), feature = "testing"))]
#[doc = include_str!("guide/testing.md")]
pub mod testing {}
#[doc = include_str!("guide/tls.md")]
pub mod tls {}
#[doc = include_str!("guide/waiting.md")]
pub mod waiting {}
