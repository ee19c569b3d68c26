//! What the command `redlock` needs beside the public interface. It may change in any version.

use redis::ConnectionInfo;

use crate::Token;
use crate::label::Label;
use crate::lock_value;
use crate::secret::Secret;

/// The length of a token.
pub const TOKEN: usize = lock_value::TOKEN;
/// The longest label, in bytes.
pub const MAX_LABEL: usize = Label::MAX;
/// No lock's value is longer.
pub const LONGEST_VALUE: usize = lock_value::LONGEST;

/// The token and the label of a lock. `None`: the value is other data, of which nothing may be shown. If the value is not
/// whole, it must be longer than [`LONGEST_VALUE`].
pub fn token_and_label(value: &[u8]) -> Option<(Token, Option<String>)> {
    let (token, label) = lock_value::parse(value, value.len())?;
    Some((token, label.map(|label| label.as_str().to_owned())))
}

/// A node's text up to where it repeats the node's password.
pub fn without_password(node: &ConnectionInfo, text: &str) -> String {
    Secret::of(node).cut(text)
}
