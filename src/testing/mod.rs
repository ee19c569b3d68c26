//! A model of a Redis server, for tests.

pub(crate) mod store;
