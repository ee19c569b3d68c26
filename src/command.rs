//! What the command `redlock` needs beside the public interface. It may change in any version.

use std::time::Duration;

use crate::label::Label;
use crate::ops::list;
use crate::protocol::kind;
use crate::text;
use crate::{Error, Listing, Redlock};

/// The longest label, in bytes.
pub const MAX_LABEL: usize = Label::MAX;

/// The most permits of a semaphore.
pub const MAX_PERMITS: u16 = kind::MAX_PERMITS;

/// As [`Redlock::list`]. `progress` is called with the number of keys looked at so far.
///
/// # Errors
///
/// As [`Redlock::list`].
pub fn list(
    redlock: &Redlock,
    pattern: Option<&[u8]>,
    mut progress: impl FnMut(usize),
) -> Result<Listing, Error> {
    list::list(redlock, pattern, &mut progress)
}

/// A time, rounded for people.
pub fn human(time: Duration) -> String {
    text::human(time)
}
