//! Who has a lock, for people: a text behind the token in the key's value.

use std::fmt;
use std::sync::Arc;

use crate::error::ConfigError;

/// Text of at least one byte.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Label(Arc<str>);

impl Label {
    pub(crate) const MAX: usize = 64;

    /// `None`: no label.
    pub(crate) fn new(text: &str) -> Option<Label> {
        (!text.is_empty()).then(|| Label(text.into()))
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let (text, length, max) = (self.as_str(), self.0.len(), Label::MAX);
        if length > max {
            return Err(ConfigError::new(format!(
                "the label is {length} bytes long: it must be {max} at most"
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(ConfigError::new(format!(
                "the label {text:?} has control characters: it must be printable text"
            )));
        }
        Ok(())
    }

    /// What stands behind a token. `None`: that is no label.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Label> {
        let label = Label::new(str::from_utf8(bytes).ok()?)?;
        label.validate().is_ok().then_some(label)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_label_is_named_with_its_limit() {
        let long = "é".repeat(32);
        for good in ["web-3:4711", " ", &long] {
            Label::new(good).unwrap().validate().unwrap();
            assert_eq!(Label::parse(good.as_bytes()).unwrap().as_str(), good);
        }
        let error = |text: &str| {
            assert_eq!(Label::parse(text.as_bytes()), None);
            Label::new(text)
                .unwrap()
                .validate()
                .unwrap_err()
                .to_string()
        };
        assert!(error(&format!("{long}x")).contains("65 bytes long: it must be 64 at most"));
        assert!(error("a\nb").contains(r#""a\nb" has control characters"#));
        assert_eq!(Label::parse(b""), None);
        assert_eq!(Label::parse(b"\xff"), None);
    }
}
