//! RESP2, as far as it is used here: commands out; lines, bulk strings and arrays in.
//!
//! The redis crate's parser would make a small program a third larger, and it reads from a socket.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;

/// The maximum size of a reply that is kept as a whole: anything larger is not a Redis answer.
const MAX_REPLY: usize = 64 * 1024;
/// The maximum number of bytes around it.
const MAX_AROUND: usize = 1024;
/// The maximum depth of arrays in arrays: HELLO lists modules, and for each its fields, one of which is a list.
const MAX_DEPTH: usize = 4;
/// The maximum length of a number and its line.
const MAX_NUMBER: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Okay,
    Nil,
    Int(i64),
    Error(String),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    Other,
}

impl Reply {
    /// The text of an error, otherwise empty.
    pub(crate) fn error(&self) -> &str {
        match self {
            Reply::Error(text) => text,
            _ => "",
        }
    }

    /// The time of day that an answer to TIME shows.
    pub(crate) fn time_of_day(&self) -> Option<Duration> {
        let Reply::Array(items) = self else {
            return None;
        };
        match items.as_slice() {
            [Reply::Bulk(seconds), Reply::Bulk(micros), ..] => time_of_day(seconds, micros),
            _ => None,
        }
    }

    /// The kind of a reply that arrived in place of another kind. Its content is left out: a server may repeat what it
    /// was sent.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Reply::Okay => "OK",
            Reply::Nil => "a null",
            Reply::Int(_) => "a number",
            Reply::Error(_) => "an error",
            Reply::Bulk(_) => "a string",
            Reply::Array(_) => "an array",
            Reply::Other => "a line",
        }
    }
}

fn time_of_day(seconds: &[u8], micros: &[u8]) -> Option<Duration> {
    let [seconds, micros] = [seconds, micros].map(|text| str::from_utf8(text).ok()?.parse().ok());
    Some(Duration::from_secs(seconds?).saturating_add(Duration::from_micros(micros?)))
}

/// Appends one command: all `args`, and a number as its last argument if there is one. (Saves the two allocations that
/// `redis::Cmd` makes for each.)
pub(crate) fn pack(out: &mut Vec<u8>, args: &[&[&[u8]]], last: Option<u64>) {
    let count = args.iter().map(|args| args.len()).sum::<usize>();
    command(out, count + usize::from(last.is_some()));
    for arg in args.iter().copied().flatten() {
        argument(out, arg);
    }
    if let Some(last) = last {
        number(out, last);
    }
}

/// Begins a command of this many arguments.
pub(crate) fn command(out: &mut Vec<u8>, arguments: usize) {
    header(out, b'*', arguments as u64);
}

/// Appends one argument.
pub(crate) fn argument(out: &mut Vec<u8>, argument: &[u8]) {
    header(out, b'$', argument.len() as u64);
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

/// Appends one argument, which consists of these parts.
pub(crate) fn joined_argument(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    header(out, b'$', length as u64);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a number as an argument.
pub(crate) fn number(out: &mut Vec<u8>, number: u64) {
    match number {
        0..10 => out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', digit(number), b'\r', b'\n']),
        _ => argument(out, digits(number, &mut [0; MAX_DIGITS])),
    }
}

fn header(out: &mut Vec<u8>, mark: u8, number: u64) {
    // Nearly all numbers are this short, and there are a dozen for a lock.
    match number {
        0..10 => out.extend_from_slice(&[mark, digit(number), b'\r', b'\n']),
        10..100 => {
            out.extend_from_slice(&[mark, digit(number / 10), digit(number), b'\r', b'\n']);
        }
        _ => {
            out.push(mark);
            out.extend_from_slice(digits(number, &mut [0; MAX_DIGITS]));
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The maximum number of digits of a `u64`.
const MAX_DIGITS: usize = 20;

/// The digits of a number, at the end of the buffer.
fn digits(mut number: u64, buffer: &mut [u8; MAX_DIGITS]) -> &[u8] {
    let mut start = MAX_DIGITS;
    for place in buffer.iter_mut().rev() {
        (*place, start) = (digit(number), start - 1);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    buffer.get(start..).unwrap_or_default()
}

/// The last digit of a number.
fn digit(number: u64) -> u8 {
    b'0' + (number % 10).to_le_bytes()[0]
}

/// Cuts received bytes into replies. None of their texts repeats the secret.
///
/// Each byte is parsed once, in however many pieces a reply arrives: incomplete arrays are kept, and their elements are
/// not parsed again. Nothing is allocated for announced data that has not arrived.
#[derive(Default)]
pub(crate) struct ReplyReader {
    bytes: Vec<u8>,
    /// The number of bytes that are parsed: they are in replies that were returned, or in `open`.
    read: usize,
    /// The arrays that the next element belongs to, the outermost first.
    open: Vec<Open>,
    /// The size of what is in `open`, in bytes as received.
    kept: usize,
    /// How far behind `read` the end of a line was looked for, and not found.
    scanned: usize,
    secret: Secret,
}

/// An array, and how many elements it still lacks.
struct Open {
    items: Vec<Reply>,
    missing: usize,
}

/// Takes an element of a reply, or refuses it.
type Each<'a> = &'a mut dyn FnMut(&Reply) -> bool;

impl ReplyReader {
    pub(crate) fn new(secret: Secret) -> ReplyReader {
        ReplyReader {
            secret,
            ..ReplyReader::default()
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        #[cfg(test)]
        tests::worked(if self.read > 0 { self.rest().len() } else { 0 });
        if self.read == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.read);
        }
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next reply, once it is complete.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, Cause> {
        // The shortcut for the usual answers.
        if self.open.is_empty()
            && let Some((reply, length)) = usual(self.rest())
        {
            self.advance(length);
            return Ok(Some(reply));
        }
        self.parse(None)
    }

    /// Like [`next`](ReplyReader::next), for a reply of any length. Each element of an array is given to `each` when it
    /// is complete, and dropped then: the array that is returned is empty. An element that `each` refuses is an error.
    pub(crate) fn next_by_element(&mut self, each: Each<'_>) -> Result<Option<Reply>, Cause> {
        self.parse(Some(each))
    }

    fn parse(&mut self, mut each: Option<Each<'_>>) -> Result<Option<Reply>, Cause> {
        loop {
            let rest = self.bytes.get(self.read..).unwrap_or_default();
            let parsed = element(rest, self.open.len(), &mut self.scanned, &self.secret)?;
            let Some((element, length)) = parsed else {
                return match self.kept + rest.len() > MAX_REPLY + MAX_AROUND {
                    true => Err(garbage(rest, &self.secret)),
                    false => Ok(None),
                };
            };
            self.advance(length);
            self.kept += length;
            let reply = match element {
                Element::Whole(reply) => self.put(reply, &mut each)?,
                Element::Array(missing) => {
                    let items = Vec::new();
                    self.open.push(Open { items, missing });
                    None
                }
            };
            if reply.is_some() {
                self.kept = 0;
                return Ok(reply);
            }
        }
    }

    /// Puts an element into its array. Returns the reply if this was its last element.
    fn put(
        &mut self,
        mut reply: Reply,
        each: &mut Option<Each<'_>>,
    ) -> Result<Option<Reply>, Cause> {
        loop {
            let depth = self.open.len();
            let Some(array) = self.open.last_mut() else {
                return Ok(Some(reply));
            };
            array.missing = array.missing.saturating_sub(1);
            match each {
                Some(take) if depth == 1 => {
                    if !take(&reply) {
                        return Err(Cause::Garbage(reply.kind().into()));
                    }
                    self.kept = 0;
                }
                _ => array.items.push(reply),
            }
            if array.missing > 0 {
                return Ok(None);
            }
            reply = Reply::Array(std::mem::take(&mut array.items));
            self.open.pop();
        }
    }

    /// Notes that this many more bytes are parsed. `scanned` counts from there.
    fn advance(&mut self, length: usize) {
        self.read += length;
        self.scanned = 0;
    }

    /// The received bytes that are not parsed yet.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.read..).unwrap_or_default()
    }

    /// The next reply and its length, if it is a bulk and complete.
    pub(crate) fn bulk(&self) -> Option<(&[u8], usize)> {
        let next = if self.open.is_empty() {
            self.rest()
        } else {
            b""
        };
        bulk(next)
    }

    /// The time of day in the next reply and that reply's length, if it is a complete answer to TIME.
    pub(crate) fn time_of_day(&self) -> Option<(Duration, usize)> {
        const ARRAY: &[u8] = b"*2\r\n";
        let rest = self.rest().strip_prefix(ARRAY)?;
        let (seconds, first) = bulk(rest).filter(|_| self.open.is_empty())?;
        let (micros, second) = bulk(rest.get(first..)?)?;
        let time = time_of_day(seconds, micros)?;
        Some((time, ARRAY.len() + first + second))
    }

    /// Whether nothing was received beyond the last reply.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest().is_empty() && self.open.is_empty()
    }

    /// The secret that the texts must not repeat.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Drops a part of the rest, which the caller has parsed.
    pub(crate) fn skip(&mut self, length: usize) {
        self.advance(length.min(self.rest().len()));
    }
}

/// The first reply and its length, if it is a complete bulk.
fn bulk(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let rest = bytes.strip_prefix(b"$")?;
    let header = rest.get(..rest.len().min(MAX_NUMBER))?;
    let line = header.windows(2).position(|pair| pair == b"\r\n")?;
    let size: usize = str::from_utf8(rest.get(..line)?).ok()?.parse().ok()?;
    let rest = rest.get(line + 2..)?;
    let end = rest.get(size..)?;
    let length = bytes.len() - end.len() + 2;
    end.starts_with(b"\r\n")
        .then_some((rest.get(..size)?, length))
}

/// The first reply and its length, if it is one of the usual answers.
#[inline]
fn usual(bytes: &[u8]) -> Option<(Reply, usize)> {
    match bytes.first_chunk::<4>()? {
        b":1\r\n" => Some((Reply::Int(1), 4)),
        b":0\r\n" => Some((Reply::Int(0), 4)),
        b"+OK\r" if bytes.starts_with(b"+OK\r\n") => Some((Reply::Okay, 5)),
        b"$-1\r" if bytes.starts_with(b"$-1\r\n") => Some((Reply::Nil, 5)),
        _ => None,
    }
}

/// Where the first line ends. Bytes that were searched in vain are not searched again.
fn line_end(bytes: &[u8], scanned: &mut usize) -> Option<usize> {
    let unscanned = bytes.get(*scanned..).unwrap_or_default();
    let end = unscanned.windows(2).position(|pair| pair == b"\r\n");
    #[cfg(test)]
    tests::worked(end.unwrap_or(unscanned.len()));
    let end = end.map(|end| *scanned + end);
    if end.is_none() {
        // The first byte of the line's end may be the last one here.
        *scanned = bytes.len().saturating_sub(1);
    }
    end
}

/// A reply, or the beginning of an array of this many elements.
enum Element {
    Whole(Reply),
    Array(usize),
}

/// The first element in `bytes`, in arrays of this depth, and its length, once it is complete. Here the texts of
/// servers enter: none of them repeats the `secret`. `scanned`: no line ends before.
fn element(
    bytes: &[u8],
    depth: usize,
    scanned: &mut usize,
    secret: &Secret,
) -> Result<Option<(Element, usize)>, Cause> {
    let Some(kind) = bytes.first() else {
        return Ok(None);
    };
    let known: &[u8] = if depth < MAX_DEPTH { b"+-:$*" } else { b"+-:$" };
    if !known.contains(kind) {
        return Err(garbage(bytes, secret));
    }
    let Some(line) = line_end(bytes, scanned) else {
        let is_text = matches!(kind, b'+' | b'-');
        return match is_text || bytes.len() <= MAX_NUMBER {
            true => Ok(None),
            false => Err(garbage(bytes, secret)),
        };
    };
    let text = String::from_utf8_lossy(bytes.get(1..line).unwrap_or_default());
    let number = || text.parse::<i64>().map_err(|_| garbage(bytes, secret));
    let size = |number: i64| match usize::try_from(number) {
        Ok(size) if size <= MAX_REPLY => Ok(size),
        _ => Err(garbage(bytes, secret)),
    };
    let mut end = line + 2;
    let reply = match kind {
        b'-' => Reply::Error(secret.cut(&text)),
        b':' => Reply::Int(number()?),
        b'+' if text == "OK" => Reply::Okay,
        b'+' => Reply::Other,
        _ if number()? == -1 => Reply::Nil,
        b'$' => {
            let start = end;
            end += size(number()?)? + 2;
            match bytes.get(start..end) {
                Some([bulk @ .., b'\r', b'\n']) => {
                    #[cfg(test)]
                    tests::worked(bulk.len());
                    Reply::Bulk(bulk.to_vec())
                }
                Some(_) => return Err(garbage(bytes, secret)),
                None => return Ok(None),
            }
        }
        _ => match size(number()?)? {
            0 => Reply::Array(Vec::new()),
            count => return Ok(Some((Element::Array(count), end))),
        },
    };
    Ok(Some((Element::Whole(reply), end)))
}

/// The first reply in these bytes, and its length, once it is complete.
#[cfg(test)]
pub(crate) fn parse(bytes: &[u8], secret: &Secret) -> Result<Option<(Reply, usize)>, Cause> {
    let mut reader = ReplyReader::new(secret.clone());
    reader.push(bytes);
    let reply = reader.next()?;
    Ok(reply.map(|reply| (reply, bytes.len() - reader.rest().len())))
}

/// The cause for bytes that are not a Redis answer; their beginning shows people what they are.
fn garbage(bytes: &[u8], secret: &Secret) -> Cause {
    // The secret is cut before the text is shortened: the rest of a password could not be recognised.
    let start = bytes.get(..bytes.len().min(MAX_AROUND)).unwrap_or_default();
    let start = secret.cut(&String::from_utf8_lossy(start));
    let start: String = start.chars().take(16).collect();
    Cause::Garbage(format!("\"{}\"", start.escape_default()))
}

#[cfg(test)]
mod tests;
