use std::fmt;

/// The maximum of bytes of a resource that are shown.
const MOST: usize = 64;

/// A resource as log lines show it: in quotes, escaped, and its beginning if it is long.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Unquoted(self.0))
    }
}

/// A resource as the value of a log line's key.
pub(crate) struct Unquoted<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Unquoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.0.get(..MOST).unwrap_or(self.0);
        let more = if self.0.len() > MOST { "…" } else { "" };
        write!(f, "{}{more}", start.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_shown_in_one_line_of_bounded_length() {
        let shown = |bytes: &[u8]| Shown(bytes).to_string();
        assert_eq!(shown(b"account:17"), "\"account:17\"");
        assert_eq!(shown(b"a\n\"\\\xff\0"), r#""a\n\"\\\xff\x00""#);
        let name = |length| "x".repeat(length);
        assert_eq!(shown(name(64).as_bytes()), format!("\"{}\"", name(64)));
        assert_eq!(shown(name(65).as_bytes()), format!("\"{}…\"", name(64)));
        assert!(shown(&[0xff; 65_536]).len() < 300);
    }
}
