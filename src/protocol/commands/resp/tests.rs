//! Replies, in whatever pieces they arrive.

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

#[test]
fn a_time_of_day_is_read_in_place_once_it_is_complete() {
    let answer = b"*2\r\n$10\r\n1800000000\r\n$6\r\n250000\r\n";
    let time = Duration::from_millis(1_800_000_000_250);
    for length in 0..=answer.len() {
        let mut reader = ReplyReader::default();
        reader.push(&answer[..length]);
        let complete = length == answer.len();
        assert_eq!(reader.time_of_day(), complete.then_some((time, length)));
        let reply = reader.next().unwrap();
        assert_eq!(reply.is_some(), complete);
        assert!(reply.is_none_or(|reply| reply.time_of_day() == Some(time)));
    }
    for other in [
        "+OK\r\n",
        "*2\r\n$1\r\nx\r\n$1\r\n0\r\n",
        "*1\r\n$1\r\n7\r\n",
    ] {
        let mut reader = ReplyReader::default();
        reader.push(other.as_bytes());
        assert_eq!(reader.time_of_day(), None, "{other}");
    }
}
