//! What is found, shown to people and to programs.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _, stdout};
use std::time::Duration;

use serde_json::Value;

use crate::{End, NO_PROCESS, say};

/// To standard output, and then ends so. A reader that has gone (`| head`) is no error.
pub(crate) fn print(text: &[u8], code: u8) -> End {
    let mut out = stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(format_args!("{error}"));
            End::Code(NO_PROCESS)
        }
        _ => End::Code(code),
    }
}

pub(crate) fn print_json(value: &Value, code: u8) -> End {
    print(format!("{value}\n").as_bytes(), code)
}

/// Bytes as text that a terminal takes literally: what is not printable, and the backslash, as `\xNN`.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "\\x{byte:02x}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // It leaves what is printable as it is, but for these two.
            let is_printable = c == '\'' || c == '"' || c.escape_debug().len() == 1;
            match is_printable {
                true => text.push(c),
                false => escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// Columns, as wide as what stands in them.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |text: &String| text.chars().count();
    let mut widths = [0; N];
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (widest, cell) in widths.iter().zip(row) {
            let _ = write!(line, "{cell:<widest$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// How long a key is kept.
pub(crate) fn time(time: Option<Duration>) -> String {
    time.map_or("for ever".into(), |time| format!("{time:?}"))
}

pub(crate) fn milliseconds(time: Option<Duration>) -> Value {
    let whole = time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    whole.into()
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
            // It would turn round what follows.
            ("\u{202e}a".as_bytes(), r"\xe2\x80\xaea"),
            (b"", ""),
        ] {
            assert_eq!(escaped(name), shown);
        }
    }

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["NAME", "A", "B"]), row(["é", "long", ""])];
        assert_eq!(table(&rows), "NAME  A     B\né     long\n");
        assert_eq!(table::<3>(&[]), "");
    }
}
