//! The results, shown to people and to programs.

use std::time::Duration;

use redlock_sync::Holder;
use redlock_sync::command::{held_for, printable};
use serde_json::Value;

/// The maximum width of a column, and of the last one, which has the errors.
const WIDEST: usize = 80;
const LAST: usize = 400;
/// That of a line about several nodes, each with its error.
const LINE: usize = 2000;
/// How many labels of processes that wait are shown.
const LABELS: usize = 3;

/// The text for people: if it is long, the number of characters left out replaces its middle.
pub(crate) fn shortened(text: &str) -> String {
    within(text, WIDEST)
}

/// A line with texts of servers, as [`shortened`] does it.
pub(crate) fn shortened_line(text: &str) -> String {
    within(text, LINE)
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

/// Columns, as wide as their contents.
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

/// The first labels of so many processes that wait, and how many more there are. Empty without labels.
pub(crate) fn labels<'a>(count: usize, labels: impl Iterator<Item = &'a str>) -> String {
    let mut shown: Vec<String> = labels.take(LABELS).map(printable).collect();
    let more = count.saturating_sub(shown.len());
    if more > 0 && !shown.is_empty() {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}

/// How long a key is kept.
pub(crate) fn time(time: Option<Duration>) -> String {
    time.map_or("for ever".into(), |time| format!("{time:?}"))
}

/// How long a lock has been held.
pub(crate) fn held(holder: &Holder) -> String {
    match held_for(holder) {
        Some(held) => format!("{}s", held.as_secs()),
        None if holder.has_left() => "left".into(),
        None => "-".into(),
    }
}

pub(crate) fn milliseconds(time: Option<Duration>) -> Value {
    let whole = time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    whole.into()
}

#[cfg(test)]
mod tests {
    use redlock_sync::command::escaped;

    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["NAME", "A", "B"]), row(["é", "long", ""])];
        assert_eq!(table(&rows), "NAME  A     B\né     long\n");
        assert_eq!(table::<3>(&[]), "");
    }

    #[test]
    fn the_first_labels_are_shown_and_how_many_more_processes_wait() {
        let all = ["a", "b c", "d", "e"];
        for (count, labels, expected) in [
            (0, 0, ""),
            (2, 0, ""),
            (1, 1, "a"),
            (3, 3, "a, b c, d"),
            (3, 1, "a, and 2 more"),
            (300, 4, "a, b c, d, and 297 more"),
        ] {
            let given = all.into_iter().take(labels);
            assert_eq!(super::labels(count, given), expected);
        }
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
}
