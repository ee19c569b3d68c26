//! The prefix of the name of each lock, used on the nodes alone: in its key, and in the names of channels.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::values::config_error::ConfigError;
use crate::values::label;

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Prefix(Arc<str>);

impl Prefix {
    pub(crate) const MAX: usize = 64;

    pub(crate) fn new(text: &str) -> Prefix {
        Prefix(text.into())
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let (text, length, max) = (&*self.0, self.0.len(), Prefix::MAX);
        if length > max {
            return Err(ConfigError::new(format!(
                "the prefix is {length} bytes long: it must be {max} at most"
            )));
        }
        if text.contains(' ') || !label::is_printable(text) {
            return Err(ConfigError::new(format!(
                "the prefix {text:?} has spaces, control characters or invisible ones: it must be printable text without \
                 spaces"
            )));
        }
        Ok(())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of this name.
    pub(crate) fn key<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        match self.0.is_empty() {
            true => name.into(),
            false => [self.0.as_bytes(), name].concat().into(),
        }
    }

    /// The name of this key. `None`: the key does not have the prefix.
    pub(crate) fn name<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        key.strip_prefix(self.0.as_bytes())
    }

    /// A glob of the server for keys whose names match the glob `names`.
    pub(crate) fn glob(&self, names: &[u8]) -> Vec<u8> {
        let mut glob = Vec::new();
        for byte in self.0.bytes() {
            if b"*?[]\\^-".contains(&byte) {
                glob.push(b'\\');
            }
            glob.push(byte);
        }
        glob.extend_from_slice(names);
        glob
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_prefix_is_named_with_its_limit() {
        for good in ["", "team:", "{team}:", "équipe/*?", &"x".repeat(64)] {
            Prefix::new(good).validate().unwrap();
        }
        let error = |text: &str| Prefix::new(text).validate().unwrap_err().to_string();
        assert!(error(&"x".repeat(65)).contains("65 bytes long: it must be 64 at most"));
        for bad in ["team :", "a\n", "a\0", "a\u{202e}"] {
            assert!(
                error(bad).contains("printable text without spaces"),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_key_is_the_prefix_and_the_name() {
        let (none, team) = (Prefix::default(), Prefix::new("team:"));
        assert_eq!(&*none.key(b"a"), b"a");
        assert_eq!(&*team.key(b"a"), b"team:a");
        assert_eq!(none.name(b"team:a"), Some(&b"team:a"[..]));
        assert_eq!(team.name(b"team:a"), Some(&b"a"[..]));
        assert_eq!(team.name(b"shop:a"), None);
        assert_eq!(none.glob(b"shop:*"), b"shop:*");
        assert_eq!(Prefix::new("[a*]:").glob(b"*"), b"\\[a\\*\\]:*");
    }
}
