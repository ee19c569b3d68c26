//! The requests of clients, parsed as they arrive.

use std::ops::Range;

/// The first command in `bytes` and its length, once it is complete.
#[cfg(test)]
pub(crate) fn parse(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut begun = Begun::default();
    let is_whole = begun.go_on(bytes, usize::MAX) == Some(true);
    is_whole.then(|| (begun.args(bytes), begun.at))
}

/// The part of a command that has arrived. When more arrives, its beginning is not parsed again.
#[derive(Default)]
pub(crate) struct Begun {
    /// The command's length so far.
    pub(crate) at: usize,
    /// The number of arguments, and where those are that have arrived.
    count: Option<usize>,
    args: Vec<Range<usize>>,
}

impl Begun {
    /// Whether the command is complete, by all its bytes so far. `None`: no command begins so, or it is longer than
    /// this.
    pub(crate) fn go_on(&mut self, bytes: &[u8], longest: usize) -> Option<bool> {
        let line = |at: usize, mark: u8| {
            let rest = bytes.get(at..).unwrap_or_default();
            if rest.first().is_some_and(|first| *first != mark) {
                return None;
            }
            let head = rest.get(..rest.len().min(LONGEST_LINE)).unwrap_or_default();
            match head.windows(2).position(|pair| pair == b"\r\n") {
                Some(end) => {
                    let number: usize = number(head.get(1..end)?)?;
                    Some(Some((number, at + end + 2)))
                }
                None => (rest.len() < LONGEST_LINE).then_some(None),
            }
        };
        let count = match self.count {
            Some(count) => count,
            None => match line(0, b'*')? {
                Some((count, at)) => {
                    (self.count, self.at) = (Some(count), at);
                    count
                }
                None => return Some(false),
            },
        };
        while self.args.len() < count {
            let Some((length, start)) = line(self.at, b'$')? else {
                return Some(false);
            };
            let end = start.checked_add(length)?.checked_add(2)?;
            if end > longest {
                return None;
            }
            if bytes.len() < end {
                return Some(false);
            }
            self.args.push(start..end - 2);
            self.at = end;
        }
        Some(true)
    }

    pub(crate) fn args<'a>(&self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let args = self.args.iter();
        args.map(|arg| bytes.get(arg.clone()).unwrap_or_default())
            .collect()
    }
}

/// The longest line of a number, with the bytes around it.
const LONGEST_LINE: usize = 32;

pub(super) fn number<T: std::str::FromStr>(arg: &[u8]) -> Option<T> {
    str::from_utf8(arg).ok()?.parse().ok()
}
