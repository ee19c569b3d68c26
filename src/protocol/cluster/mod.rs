//! Redis Cluster: its map, which of its servers is believed, and how operations follow their keys from server to server.
//! (`net/discovery` asks the servers, and `net/cluster` has the connections.)
//!
//! In reading order:
//!
//! - `cluster_votes`: which servers of a Redis Cluster are asked about a master, and when their answers confirm it
//! - `asked_servers`: which of them are asked first, and for how long
//! - `cluster_answers`: what their answers about a slot's master mean
//! - `cluster_map`: the map of a Redis Cluster
//! - `server_names`: one name for each server of a Redis Cluster
//! - `map_refreshes`: when the map is asked for again
//! - `redirect`: the next hop of an operation that a server of a Redis Cluster redirected (MOVED, ASK, TRYAGAIN)
//! - `redirected_releases`: redirected releases that no call waits for
//! - `lane_choice`: the lane (the connections to one shard) that an operation takes
//! - `refilled_locks`: the lanes over which locks were set again

pub(crate) mod asked_servers;
pub(crate) mod cluster_answers;
pub(crate) mod cluster_map;
pub(crate) mod cluster_votes;
pub(crate) mod lane_choice;
pub(crate) mod map_refreshes;
pub(crate) mod redirect;
pub(crate) mod redirected_releases;
pub(crate) mod refilled_locks;
pub(crate) mod server_names;
