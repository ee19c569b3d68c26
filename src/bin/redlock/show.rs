//! What is found, shown to people and to programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

/// How wide a column is at most, and the last one, in which errors stand.
const WIDEST: usize = 80;
const LAST: usize = 400;

/// A name as text that a terminal takes literally, and that is another text for each name: what is not printable, and
/// the backslash, as `\xNN`.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    literal(bytes, false)
}

/// Any other foreign text, such as a server's error. Backslashes stay, so what is escaped already is not escaped again.
pub(crate) fn printable(text: &str) -> String {
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
            // It leaves what is printable as it is, but for these.
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

/// For people: if it is long, the number of the characters left out stands in place of its middle.
pub(crate) fn shortened(text: &str) -> String {
    within(text, WIDEST)
}

fn within(text: &str, widest: usize) -> String {
    let length = text.chars().count();
    if length <= widest {
        return text.to_owned();
    }
    let kept = (widest / 2).saturating_sub(12);
    let start: String = text.chars().take(kept).collect();
    let end: String = text.chars().skip(length - kept).collect();
    format!("{start}…({} more)…{end}", length - 2 * kept)
}

/// Columns, as wide as what stands in them.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let limit = |column| if column + 1 == N { LAST } else { WIDEST };
    let cell = |(column, text): (usize, &String)| within(text, limit(column));
    let mut widths = [0; N];
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        for (widest, cell) in widths.iter_mut().zip(&cells) {
            *widest = cell.chars().count().max(*widest);
        }
        lines.push(cells);
    }
    let mut text = String::new();
    for cells in lines {
        let mut line = String::new();
        for (widest, cell) in widths.iter().zip(&cells) {
            let blanks = widest.saturating_sub(cell.chars().count()) + 2;
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', blanks));
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

    /// Rust's own padding panics beyond 65,535.
    #[test]
    fn what_is_long_loses_its_middle_and_no_row_is_as_wide_as_the_longest_name() {
        let long = escaped(&[0xff; 65_536]);
        let row = |name: &str, error: &str| [name.to_owned(), "1/1".to_owned(), error.to_owned()];
        let text = table(&[
            row("NAME", "ERROR"),
            row("a", "b"),
            row(&long, &"é".repeat(70_000)),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        let widths = [0, 1, 2].map(|line: usize| lines[line].chars().count());
        assert!(
            widths[0] <= WIDEST + 20 && widths[1] <= WIDEST + 20,
            "{widths:?}"
        );
        assert!(widths[2] <= WIDEST + LAST + 20, "{widths:?}");
        let said = format!("…({} more)…", 4 * 65_536 - 2 * 28);
        assert!(
            lines[2].starts_with(r"\xff\xff") && lines[2].contains(&said),
            "{text}"
        );
        assert_eq!(shortened("x"), "x");
        let border = "x".repeat(WIDEST);
        assert_eq!(shortened(&border), border);
        assert!(shortened(&format!("{border}x")).chars().count() <= WIDEST);
    }

    #[test]
    fn what_a_server_says_reaches_no_terminal_as_a_command() {
        let text = "ERR \u{1b}]0;x\u{7}\u{9b}2J\r\n\u{202e}\\x1b 'é'";
        let shown = r"ERR \x1b]0;x\x07\xc2\x9b2J\x0d\x0a\xe2\x80\xae\x1b 'é'";
        assert_eq!(printable(text), shown);
        assert_eq!(printable(shown), shown);
    }
}
