//! RESP2, as far as it is used here: commands out; lines, bulk strings and arrays in.
//!
//! The redis crate's parser would make a small program a third larger, and it reads from a socket.

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
    argument(out, digits(number, &mut [0; MAX_DIGITS]));
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
        self.bytes.drain(..self.read);
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

    /// Whether nothing was received beyond the last reply.
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
mod tests {
    use std::cell::Cell;

    use super::*;

    fn whole(bytes: &[u8]) -> Reply {
        let (reply, length) = parse(bytes, &Secret::default()).unwrap().unwrap();
        assert_eq!(length, bytes.len(), "{bytes:?}");
        reply
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        for number in [0, 1, 9, 10, 99, 100, 12_345_678_900, u64::MAX] {
            let mut out = Vec::new();
            pack(&mut out, &[&[b"A"]], Some(number));
            let text = number.to_string();
            let expected = format!("*2\r\n$1\r\nA\r\n${}\r\n{text}\r\n", text.len());
            assert_eq!(out, expected.as_bytes());
        }
    }

    #[test]
    fn a_reply_is_found_only_when_it_is_complete() {
        for reply in [
            "+OK\r\n",
            "$-1\r\n",
            ":12\r\n",
            "-ERR no\r\n",
            "$3\r\na\r\n\r\n",
            "$0\r\n\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n:1\r\n$2\r\nhi\r\n$-1\r\n",
            "*2\r\n*1\r\n*2\r\n:1\r\n*1\r\n:2\r\n:3\r\n",
        ] {
            let bytes = [reply.as_bytes(), b"+next\r\n"].concat();
            for cut in 0..reply.len() {
                assert_eq!(
                    parse(&bytes[..cut], &Secret::default()).unwrap(),
                    None,
                    "{reply:?} at {cut}"
                );
            }
            for cut in reply.len()..bytes.len() {
                let (_, length) = parse(&bytes[..cut], &Secret::default()).unwrap().unwrap();
                assert_eq!(length, reply.len(), "{reply:?}");
            }
        }
    }

    #[test]
    fn a_bulk_is_read_where_it_is() {
        let bytes = b"$3\r\na\r\n\r\n+next\r\n";
        for cut in 0..bytes.len() {
            let found = (cut >= 9).then_some((&b"a\r\n"[..], 9));
            assert_eq!(bulk(&bytes[..cut]), found, "at {cut}");
        }
        for other in [
            "$-1\r\n",
            ":1\r\n",
            "$x\r\n\r\n",
            "$1\r\nabc",
            "$99999999999999999999\r\n",
        ] {
            assert_eq!(bulk(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_not_resp_is_an_error_at_the_first_certain_byte() {
        for bytes in [
            "HTTP/1.1 400",
            "\0",
            "*1\r\n*1\r\n*1\r\n*1\r\n*0\r\n",
            "*x\r\n",
            "$-2\r\n",
            "$x\r\n",
            "$99999999\r\n",
            "$1\r\nab\r\n",
            "_\r\n",
            ":x\r\n",
        ] {
            let found = parse(bytes.as_bytes(), &Secret::default());
            assert!(matches!(found, Err(Cause::Garbage(_))), "{bytes:?}");
        }
        let endless = vec![b'+'; MAX_REPLY + MAX_AROUND + 1];
        assert!(matches!(
            parse(&endless, &Secret::default()),
            Err(Cause::Garbage(_))
        ));
    }

    #[test]
    fn replies_are_understood() {
        assert_eq!(whole(b"+OK\r\n"), Reply::Okay);
        assert_eq!(whole(b"$-1\r\n"), Reply::Nil);
        assert_eq!(whole(b":1\r\n"), Reply::Int(1));
        assert_eq!(whole(b":-7\r\n"), Reply::Int(-7));
        assert_eq!(whole(b"$2\r\nhi\r\n"), Reply::Bulk(b"hi".to_vec()));
        assert_eq!(whole(b"+QUEUED\r\n"), Reply::Other);
        let error = Reply::Error("READONLY You can't write".into());
        assert_eq!(whole(b"-READONLY You can't write\r\n"), error);
        assert_eq!(whole(b"-\xff\r\n"), Reply::Error("\u{fffd}".into()));
        let items = vec![Reply::Int(0), Reply::Bulk(b"a".to_vec()), Reply::Okay];
        assert_eq!(
            whole(b"*3\r\n:0\r\n$1\r\na\r\n+OK\r\n"),
            Reply::Array(items)
        );
    }

    thread_local! {
        /// The bytes that were looked at, copied or moved.
        static WORK: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn worked(bytes: usize) {
        WORK.set(WORK.get() + bytes + 1);
    }

    /// The reply of a Redis Cluster server if slots are scattered.
    fn ranges(count: usize) -> Vec<u8> {
        let mut bytes = format!("*{count}\r\n").into_bytes();
        let server = "*4\r\n$9\r\n127.0.0.1\r\n:7000\r\n$40\r\n0123456789012345678901234567890123456789\r\n*0\r\n";
        for slot in 0..count {
            let range = format!("*4\r\n:{slot}\r\n:{slot}\r\n{server}{server}");
            bytes.extend_from_slice(range.as_bytes());
        }
        bytes
    }

    /// All replies in these bytes, which arrive in pieces of this size.
    fn in_pieces(bytes: &[u8], size: usize) -> Vec<Reply> {
        let (mut reader, mut replies) = (ReplyReader::default(), Vec::new());
        for piece in bytes.chunks(size) {
            reader.push(piece);
            while let Some(reply) = reader.next().unwrap() {
                replies.push(reply);
            }
        }
        assert!(reader.is_empty());
        replies
    }

    #[test]
    fn a_reply_is_the_same_in_whatever_pieces_it_comes() {
        let bulk = [&b"$60000\r\n"[..], &[b'\r'; 60_000], b"\r\n"].concat();
        let all = [
            &b"-ERR no\r\n*2\r\n*0\r\n*1\r\n*2\r\n*-1\r\n+OK\r\n$-1\r\n"[..],
            &ranges(100),
            &bulk,
            b"*3\r\n*1\r\n:1\r\n-\xff\r\n$0\r\n\r\n:0\r\n",
        ]
        .concat();
        let whole = in_pieces(&all, all.len());
        assert_eq!(whole.len(), 7);
        for size in [1, 2, 3, 7, 100, 16 * 1024] {
            assert!(in_pieces(&all, size) == whole, "{size}");
        }
    }

    /// Wherever the first piece ends: the end of a line that was looked for in vain belongs to that line alone.
    #[test]
    fn any_reply_is_read_behind_any_other_in_two_pieces() {
        let all = [
            &b":1\r\n"[..],
            b"+OK\r\n",
            b"$-1\r\n",
            b"*0\r\n",
            b"*1\r\n:12345\r\n",
            b"$3\r\nabc\r\n",
            b"-ERR a longer line\r\n",
        ];
        for (one, two) in all.iter().flat_map(|one| all.map(|two| (*one, two))) {
            let bytes = [one, two].concat();
            let whole = in_pieces(&bytes, bytes.len());
            for end in 1..bytes.len() {
                let (mut reader, mut replies) = (ReplyReader::default(), Vec::new());
                for piece in [&bytes[..end], &bytes[end..]] {
                    reader.push(piece);
                    while let Some(reply) = reader.next().unwrap() {
                        replies.push(reply);
                    }
                }
                assert!(replies == whole, "{} at {end}", bytes.escape_ascii());
            }
        }
    }

    /// The work is counted, not the time.
    #[test]
    fn what_comes_in_pieces_is_not_parsed_again_from_its_start() {
        let line = [&[b'+'; 60_000][..], b"\r\n"].concat();
        let bulk = [&b"$60000\r\n"[..], &[b'b'; 60_000], b"\r\n"].concat();
        let small = [b"*16000\r\n".to_vec(), b":1\r\n".repeat(16_000)].concat();
        for bytes in [line, bulk, small, ranges(300)] {
            for size in [1, 2, 100, 16 * 1024] {
                WORK.set(0);
                assert_eq!(in_pieces(&bytes, size).len(), 1);
                let (work, length) = (WORK.get(), bytes.len());
                assert!(work < 12 * length, "{work} for {length} by {size}");
            }
        }
    }

    #[test]
    fn of_a_long_array_no_more_than_one_element_is_kept() {
        let bytes = ranges(16_384);
        assert!(bytes.len() > 40 * MAX_REPLY);
        for size in [1000, 16 * 1024] {
            let (mut reader, mut count) = (ReplyReader::default(), 0);
            let mut reply = None;
            WORK.set(0);
            for piece in bytes.chunks(size) {
                assert!(reply.is_none());
                reader.push(piece);
                let each: Each<'_> = &mut |range| {
                    count += 1;
                    matches!(range, Reply::Array(range) if range.len() == 4)
                };
                reply = reader.next_by_element(each).unwrap();
                assert!(reader.rest().len() < 1000);
            }
            assert_eq!((reply, count), (Some(Reply::Array(Vec::new())), 16_384));
            assert!(reader.is_empty() && WORK.get() < 3 * bytes.len());
        }
        // A reply that is not an array is like any other, and an element may be refused.
        let mut reader = ReplyReader::default();
        reader.push(b"-ERR no\r\n*1\r\n:1\r\n");
        let error = reader.next_by_element(&mut |_| false).unwrap().unwrap();
        assert_eq!(error.error(), "ERR no");
        assert!(reader.next_by_element(&mut |_| false).is_err());
    }

    #[test]
    fn what_is_announced_takes_no_memory_and_what_comes_takes_little() {
        let mut reader = ReplyReader::default();
        reader.push(b"*65536\r\n*65536\r\n*65536\r\n*65536\r\n:1\r\n$65536\r\n");
        assert_eq!(reader.next().unwrap(), None);
        let kept = reader.open.iter().map(|array| array.items.capacity());
        assert!(kept.sum::<usize>() < 16 && reader.bytes.capacity() < 1024);
        // Arrays, lines and bulks that do not end.
        for piece in [
            &b"*65536\r\n*1\r\n"[..],
            b"*1000\r\n:1\r\n",
            b"+x",
            b"$65536\r\nx",
        ] {
            let (mut reader, mut received) = (ReplyReader::default(), 0);
            let begins = piece.starts_with(b"*");
            reader.push(if begins { b"*65536\r\n" } else { piece });
            let failed = loop {
                reader.push(match begins {
                    true => b"*0\r\n:1\r\n$1\r\na\r\n",
                    false => b"xxxxxxxxxxx",
                });
                received += 16;
                assert!(received < 2 * MAX_REPLY, "{}", piece.escape_ascii());
                if let Err(cause) = reader.next() {
                    break cause;
                }
            };
            assert!(matches!(failed, Cause::Garbage(_)), "{failed}");
        }
        for announced in [
            "*65537\r\n",
            "$65537\r\n",
            "*99999999999999999999\r\n",
            &"*".repeat(40),
            ":0000000000000000000000000000000000",
        ] {
            assert!(
                parse(announced.as_bytes(), &Secret::default()).is_err(),
                "{announced}"
            );
        }
    }

    /// Between the parts of an array nothing else is read.
    #[test]
    fn an_element_is_not_taken_for_a_reply() {
        let mut reader = ReplyReader::default();
        reader.push(b"*2\r\n:1\r\n");
        assert_eq!(reader.next().unwrap(), None);
        assert!(reader.rest().is_empty() && !reader.is_empty());
        reader.push(b"$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(reader.bulk(), None);
        let array = vec![Reply::Int(1), Reply::Bulk(b"a".to_vec())];
        assert_eq!(reader.next().unwrap(), Some(Reply::Array(array)));
        assert_eq!(reader.bulk(), Some((&b"b"[..], 7)));
    }

    /// Random bytes, cut anywhere: a reply or an error, never a panic.
    #[test]
    fn no_bytes_make_the_parser_panic() {
        let mut seed = 1_u64;
        let alphabet = b"+-:$*_\r\n0123456789OKab\xff";
        for _ in 0..100_000 {
            let mut bytes = Vec::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = usize::try_from(seed >> 40).unwrap() % alphabet.len();
                bytes.push(alphabet[index]);
            }
            if let Ok(Some((_, length))) = parse(&bytes, &Secret::default()) {
                assert!(length <= bytes.len());
            }
        }
    }
}
