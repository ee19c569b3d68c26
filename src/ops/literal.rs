//! Foreign text, which may contain anything, as text that can be shown.

use std::fmt::Write;

/// A name as text that a terminal takes literally, different for each name: bytes that are not printable, and the
/// backslash, are written as `\xNN`.
pub fn escaped(bytes: &[u8]) -> String {
    literal(bytes, false)
}

/// Any other foreign text, such as a server's error. Backslashes stay, so text that is escaped already is not escaped
/// again.
pub fn printable(text: &str) -> String {
    literal(text.as_bytes(), true)
}

fn literal(bytes: &[u8], backslash: bool) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "\\x{byte:02x}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // `escape_debug` leaves printable characters as they are, except these.
            let is_printable =
                "'\"".contains(c) || c == '\\' && backslash || c.escape_debug().len() == 1;
            match is_printable {
                true => text.push(c),
                false => escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_so_that_a_terminal_takes_them_literally() {
        for (name, shown) in [
            (&b"account:17"[..], "account:17"),
            ("für 'x' \"y\"".as_bytes(), "für 'x' \"y\""),
            (b"a\nb\x1b[2J\x7f", r"a\x0ab\x1b[2J\x7f"),
            (b"\xff\xc3", r"\xff\xc3"),
            (br"a\b", r"a\x5cb"),
            // This character would turn round what follows.
            ("\u{202e}a".as_bytes(), r"\xe2\x80\xaea"),
            (b"", ""),
        ] {
            assert_eq!(escaped(name), shown);
        }
    }

    #[test]
    fn no_text_of_a_server_reaches_a_terminal_as_a_command() {
        let text = "ERR \u{1b}]0;x\u{7}\u{9b}2J\r\n\u{202e}\\x1b 'é'";
        let shown = r"ERR \x1b]0;x\x07\xc2\x9b2J\x0d\x0a\xe2\x80\xae\x1b 'é'";
        assert_eq!(printable(text), shown);
        assert_eq!(printable(shown), shown);
    }
}
