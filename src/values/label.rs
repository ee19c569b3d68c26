//! A text that shows people which program holds a lock, stored after the token in the key's value.

use std::fmt;
use std::sync::Arc;

use crate::values::config_error::ConfigError;

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
        if !is_printable(text) {
            return Err(ConfigError::new(format!(
                "the label {text:?} has control characters or invisible ones: it must be printable text"
            )));
        }
        Ok(())
    }

    /// The label in the bytes after a token. `None`: they are not a label.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Label> {
        let label = Label::new(str::from_utf8(bytes).ok()?)?;
        label.validate().is_ok().then_some(label)
    }

    /// The label at the start of these bytes, which ends at the first `\0`: later versions may have more fields behind that.
    /// `Some(None)`: there is no label. `None`: other data.
    pub(crate) fn before_fields(bytes: &[u8]) -> Option<Option<Label>> {
        match bytes.split(|byte| *byte == 0).next() {
            None | Some([]) => Some(None),
            Some(label) => Label::parse(label).map(Some),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the text has nothing that `Debug` escapes, except quotes and the backslash: nothing invisible, and nothing
/// that changes the order of the text shown behind it.
pub(crate) fn is_printable(text: &str) -> bool {
    let plain = text.replace(['"', '\'', '\\'], "");
    plain.escape_debug().eq(plain.chars())
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
        for good in [
            "web-3:4711",
            " ",
            &long,
            r#"a"b'c\d"#,
            "cafe\u{301}",
            "дом 雪 🦀",
        ] {
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
        // Right to left, end of line, invisible, and an accent for the character before it.
        for odd in [
            '\u{202e}', '\u{2028}', '\u{200b}', '\u{feff}', '\u{2066}', '\u{85}',
        ] {
            let text = error(&format!("a{odd}b"));
            assert!(text.contains("it must be printable text"), "{text}");
            assert!(!text.contains(odd), "{text}");
        }
        error("\u{301}a");
        assert_eq!(Label::parse(b""), None);
        assert_eq!(Label::parse(b"\xff"), None);
    }

    #[test]
    fn a_label_ends_where_fields_of_later_versions_begin() {
        let label = Label::new("web-3");
        for (bytes, expected) in [
            (&b""[..], Some(None)),
            (b"\0", Some(None)),
            (b"\0x=1\n\0", Some(None)),
            (b"web-3", Some(label.clone())),
            (b"web-3\0", Some(label.clone())),
            (b"web-3\0x=\xff\0y", Some(label)),
            (b"web\n3\0x=1", None),
            (&[&[b'x'; 65][..], b"\0"].concat(), None),
        ] {
            assert_eq!(Label::before_fields(bytes), expected, "{bytes:?}");
        }
    }
}
