//! The value of a lock's key: the token, then a mark, the time of the acquisition and the label, as far as these are
//! known. The only place that distinguishes locks from other data, for the library and the command.

use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::values::label::Label;
use crate::values::token::{Token, is_data};

/// The length of a token.
pub(crate) const TOKEN: usize = Token::LENGTH;
/// The mark between the token and the rest. Without it, any other program's data after 20 bytes (a signature, an id
/// and a length) could be taken for a label, and shown.
pub(crate) const MARK: &[u8] = b"\0redlock:";
/// The maximum length of a lock's value that this version writes.
const LONGEST: usize = TOKEN + MARK.len() + Since::LENGTH + Label::MAX;
/// The maximum length of a lock's value. Later versions may have more fields behind the label, from the first `\0` on.
pub(crate) const MOST: usize = 256;

/// When a lock was acquired, by the wall clock of its holder, for people: no decision depends on it. In whole seconds
/// since 1970; zeros if the time is not known. Servers set the first bit once the holder has given the lock up, and left
/// it for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since([u8; Since::LENGTH]);

impl Since {
    pub(crate) const LENGTH: usize = 5;
    pub(crate) const UNKNOWN: Since = Since([0; Since::LENGTH]);
    /// The year 2025. An earlier time is that of a clock that was never set.
    const EARLIEST: u64 = 1_735_689_600;
    const GIVEN_UP: u8 = 1 << 7;

    pub(crate) fn of(wall: SystemTime) -> Since {
        let seconds = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let [_, _, _, bytes @ ..] = seconds.as_secs().to_be_bytes();
        Since(bytes)
    }

    pub(crate) fn time(self) -> Option<SystemTime> {
        let [a, b, c, d, e] = self.0;
        let seconds = u64::from_be_bytes([0, 0, 0, a & !Since::GIVEN_UP, b, c, d, e]);
        let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        time.filter(|_| seconds >= Since::EARLIEST)
    }

    /// Whether the holder has given the lock up, and left it for a time.
    pub(crate) fn is_given_up(self) -> bool {
        self.0
            .first()
            .is_some_and(|first| first & Since::GIVEN_UP != 0)
    }

    /// The time that two nodes have for one holder, taken together: either may lack a part of it.
    pub(crate) fn and(self, other: Since) -> Since {
        let mut both = if self.time().is_some() { self } else { other };
        if let Some(first) = both.0.first_mut()
            && (self.is_given_up() || other.is_given_up())
        {
            *first |= Since::GIVEN_UP;
        }
        both
    }
}

/// The value of a lock, which most often is packed for each node: without an allocation.
pub(crate) struct LockValue {
    bytes: [u8; LONGEST],
    length: usize,
}

impl LockValue {
    fn push(&mut self, part: &[u8]) {
        let end = self.length + part.len();
        if let Some(free) = self.bytes.get_mut(self.length..end) {
            free.copy_from_slice(part);
            self.length = end;
        }
    }
}

impl Deref for LockValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

/// Returns the value of a lock.
pub(crate) fn pack(token: &Token, since: Since, label: Option<&Label>) -> LockValue {
    let (bytes, length) = ([0; LONGEST], 0);
    let mut value = LockValue { bytes, length };
    value.push(token.as_bytes());
    if since != Since::UNKNOWN || label.is_some() {
        value.push(MARK);
        value.push(&since.0);
        value.push(label.map_or("", Label::as_str).as_bytes());
    }
    value
}

/// The parts of a lock's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueParts {
    pub(crate) token: Token,
    pub(crate) since: Since,
    pub(crate) label: Option<Label>,
}

/// The parts of a lock's value, or of its first bytes, if it has `length`. `None`: it is other data, no part of which
/// may be shown. Other libraries' locks are bare tokens.
pub(crate) fn parse(value: &[u8], length: usize) -> Option<ValueParts> {
    let (token, rest) = value.split_first_chunk::<TOKEN>()?;
    if length != value.len() || length > MOST || is_data(token) {
        return None;
    }
    let (since, label) = match rest {
        [] => (Since::UNKNOWN, None),
        _ => {
            let (since, label) = rest.strip_prefix(MARK)?.split_first_chunk()?;
            (Since(*since), Label::before_fields(label)?)
        }
    };
    Some(ValueParts {
        token: Token::from_bytes(*token),
        since,
        label,
    })
}

/// The value of a lock that its holder leaves for a time, or goes on with, as the scripts change it.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn marked(value: &[u8], is_given_up: bool) -> Vec<u8> {
    let mut value = value.to_vec();
    let rest = value.get_mut(TOKEN..).unwrap_or_default();
    if let Some((MARK, behind)) = rest
        .split_at_mut_checked(MARK.len())
        .map(|(mark, behind)| (&*mark, behind))
        && behind.len() >= Since::LENGTH
        && let Some(first) = behind.first_mut()
    {
        let mark = if is_given_up { Since::GIVEN_UP } else { 0 };
        *first = *first & !Since::GIVEN_UP | mark;
    }
    value
}

/// The bytes of the label in a value, which may be any string.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn label_of(value: &[u8]) -> Option<&[u8]> {
    let (_, rest) = value.split_at_checked(TOKEN)?;
    let label = rest.strip_prefix(MARK)?.get(Since::LENGTH..)?;
    (!label.is_empty()).then_some(label)
}

/// The role of a holder, which its entry on the nodes names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ValueRole {
    /// The only holder: of a plain lock, a write lock, one of several names.
    Lock,
    Reader,
    /// The holder of this permit of a semaphore.
    Permit(u16),
}

/// The maximum length of a member.
pub(crate) const MOST_OF_MEMBER: usize = HEAD.len() + 4 + MOST;
const HEAD: &[u8] = b"redlock:";

/// The role of a permit's or a reader's member in its sorted set, and the parts of its value.
pub(crate) fn parse_member(member: &[u8]) -> Option<(ValueRole, ValueParts)> {
    let ([kind, digits @ ..], value) = member.strip_prefix(HEAD)?.split_first_chunk::<4>()?;
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(digits).ok()?.parse().ok();
    let role = match kind {
        b'r' => ValueRole::Reader,
        b's' => ValueRole::Permit(number.filter(|_| is_number)?),
        _ => return None,
    };
    Some((role, parse(value, value.len())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(value: &[u8]) -> &[u8; TOKEN] {
        value.first_chunk().unwrap()
    }

    const TODAY: u64 = 1_800_000_000;

    fn at(seconds: u64) -> Since {
        Since::of(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn a_lock_is_its_token_and_behind_the_mark_its_time_and_its_label() {
        let token = Token::from_bytes([0xA7; TOKEN]);
        let label = Label::parse("web-3:4711 é".as_bytes()).unwrap();
        for since in [at(TODAY), Since::UNKNOWN] {
            for label in [Some(label.clone()), None] {
                let packed = pack(&token, since, label.as_ref());
                let parts = ValueParts {
                    token,
                    since,
                    label,
                };
                assert_eq!(parse(&packed, packed.len()), Some(parts));
                // The first bytes of a longer value.
                assert_eq!(parse(&packed, packed.len() + 1), None);
            }
        }
        // In a process that goes on with a lock, and in other libraries.
        let bare = pack(&token, Since::UNKNOWN, None);
        assert_eq!(bare[..], token.as_bytes()[..]);
        let packed = pack(&token, at(TODAY), Some(&label));
        let expected = b"\0redlock:\0\x6b\x49\xd2\0web-3:4711 \xC3\xA9";
        assert_eq!(packed[TOKEN..], expected[..]);
        assert_eq!(label_of(&packed), Some(label.as_str().as_bytes()));
        for unlabelled in [bare, pack(&token, at(TODAY), None)] {
            assert_eq!(label_of(&unlabelled), None);
        }
        let longest = Label::parse("é".repeat(32).as_bytes()).unwrap();
        assert_eq!(pack(&token, at(TODAY), Some(&longest)).len(), LONGEST);
    }

    #[test]
    fn fields_of_later_versions_are_ignored_up_to_a_length() {
        let token = Token::from_bytes([0xA7; TOKEN]);
        let label = Label::parse(b"web-3:4711");
        for label in [label.as_ref(), None] {
            let packed = pack(&token, at(TODAY), label);
            let expected = parse(&packed, packed.len());
            assert!(expected.is_some());
            for fields in [&b"\0"[..], b"\0x=1", b"\0\xff\0redlock:\0"] {
                let mut value = [&packed[..], fields].concat();
                assert_eq!(parse(&value, value.len()), expected, "{fields:?}");
                assert_eq!(
                    parse(&marked(&value, true), value.len()).unwrap().label,
                    label.cloned()
                );
                value.resize(MOST, b'x');
                assert_eq!(parse(&value, MOST), expected);
                assert_eq!(parse(&value, MOST + 1), None);
                value.push(b'x');
                assert_eq!(parse(&value, MOST + 1), None);
            }
        }
        // The fields are behind a time.
        let bare = [&token.as_bytes()[..], b"\0x=1"].concat();
        assert_eq!(parse(&bare, bare.len()), None);
    }

    #[test]
    fn what_is_not_the_mark_a_time_and_a_label_is_other_data() {
        let token = [0xA7; TOKEN];
        for rest in [
            &b"web-3"[..],
            b"redlock:12345web-3",
            b"\0redlock:",
            b"\0redlock:1234",
            b"\0redlock:12345a\nb",
            b"\0redlock:12345\xff",
            "\0redlock:12345\u{202e}3-bew".as_bytes(),
            b"\0redlock",
            &[&b"\0redlock:12345"[..], &[b'x'; 65]].concat(),
        ] {
            let value = [&token[..], rest].concat();
            assert_eq!(parse(&value, value.len()), None, "{rest:?}");
        }
    }

    #[test]
    fn the_time_of_a_clock_that_was_never_set_is_not_shown() {
        let time = |seconds| at(seconds).time();
        let shown = UNIX_EPOCH + Duration::from_secs(TODAY);
        assert_eq!(time(TODAY), Some(shown));
        // A part of a second counts for nothing.
        let part = Since::of(shown + Duration::from_millis(999));
        assert_eq!(part.time(), Some(shown));
        for never_set in [0, 1_000_000_000] {
            assert_eq!(time(never_set), None);
        }
        assert_eq!(Since::of(UNIX_EPOCH - Duration::from_secs(1)), at(0));
        assert_eq!(Since::UNKNOWN, at(0));
    }

    #[test]
    fn a_value_has_a_bit_for_a_holder_that_has_given_its_lock_up() {
        let token = Token::from_bytes([0xA7; TOKEN]);
        let label = Label::parse(b"web-3:4711");
        for label in [label.as_ref(), None] {
            let held = pack(&token, at(TODAY), label);
            let left = marked(&held, true);
            assert_eq!(marked(&left, true), left);
            assert_eq!(marked(&left, false)[..], held[..]);
            let [held, left] = [&held[..], &left].map(|value| parse(value, value.len()).unwrap());
            assert!(!held.since.is_given_up() && left.since.is_given_up());
            assert_eq!(left.since.time(), held.since.time());
            assert_eq!((left.token, left.label), (held.token, held.label));
            // Nodes that were away, and those on which a process set it that does not know the time.
            let unknown = Since::UNKNOWN;
            for (one, other, both) in [
                (held.since, left.since, left.since),
                (left.since, held.since, left.since),
                (unknown, left.since, left.since),
                (left.since, unknown, left.since),
                (held.since, unknown, held.since),
                (unknown, unknown, unknown),
            ] {
                assert_eq!(one.and(other), both);
            }
        }
        // A bare token has no place for it, nor has other data.
        for value in [&[0xA7; TOKEN][..], b"", &[0xA7; 40], &[0xA7; 19]] {
            assert_eq!(marked(value, true), value);
        }
    }

    #[test]
    fn a_member_is_its_role_and_a_value() {
        let token = Token::from_bytes([0xA7; TOKEN]);
        let label = Label::parse(b"web-3:4711").unwrap();
        let packed = pack(&token, at(TODAY), Some(&label));
        let parts = parse(&packed, packed.len()).unwrap();
        let member = |head: &str| [head.as_bytes(), &packed].concat();
        for (head, role) in [
            ("redlock:r000", ValueRole::Reader),
            ("redlock:s000", ValueRole::Permit(0)),
            ("redlock:s999", ValueRole::Permit(999)),
        ] {
            let parsed = parse_member(&member(head));
            assert_eq!(parsed, Some((role, parts.clone())));
        }
        for head in ["redlock:s+12", "redlock:t000", "redlock:s12", "s000", ""] {
            assert_eq!(parse_member(&member(head)), None, "{head}");
        }
        assert_eq!(parse_member(b"redlock:s000"), None);
        // Fields of later versions are ignored, up to a length.
        let more = [&member("redlock:s007")[..], b"\0x=1"].concat();
        assert_eq!(
            parse_member(&more),
            Some((ValueRole::Permit(7), parts.clone()))
        );
        let mut longest = more.clone();
        longest.resize(MOST_OF_MEMBER, b'x');
        assert_eq!(parse_member(&longest), parse_member(&more));
        longest.push(b'x');
        assert_eq!(parse_member(&longest), None);
    }

    /// JSON, PHP sessions, UTF-8, UTF-16, MessagePack, Java, signed cookies, and other libraries' tokens.
    #[test]
    fn what_other_programs_keep_is_no_lock() {
        let utf16: Vec<u8> = "{\"password\":\"hunter2\"}"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let signed = [&[0xA7; 20][..], b"user=7;password=hunter2"].concat();
        let record = [&[0xA7; 16][..], &[0, 0, 0, 7], b"hunter2"].concat();
        for value in [
            "{\"name\":\"Jürgen\",\"password\":\"hunter2\"}".as_bytes(),
            b"{\n  \"password\": \"hunter2\"\n}",
            b"a:1:{s:8:\"password\";s:7:\"hunter2\";}",
            b"O:1:\"U\":1:{s:4:\"\0U\0p\";s:7:\"hunter2\";}",
            b"user|s:6:\"J\xfcrgen\";password|s:7:\"hunter2\";",
            "пароль для базы: hunter2".as_bytes(),
            "xпароль длябазы".as_bytes(),
            "密码是什么呢hunter2hunter2".as_bytes(),
            b"postgres://admin:hunter2@db.internal/shop",
            b"postgres://\nadmin:hunter2",
            b"\x82\xa4name\xa6J\xc3\xbcrgen\xa8password\xa7hunter2",
            b"\x81\xa8password\xaahunter2hunter2",
            b"\xac\xed\x00\x05t\x00\x17password=hunter2hunter2",
            &utf16,
            &signed,
            &record,
            b"6f1c0c6e-94f5-4f0a-b1a5-0c2ff1fd4a51",
            b"3c5ad2f1b07e4c5fa6d1e6c1a04d8f77",
            b"hF3+QmdKJ1rY0p9XcSrBzQ==",
            b"XkQv0aZl7Tq2Wm9sYb4Rcd",
            b"locked",
            b"1",
            b"",
        ] {
            assert!(parse(value, value.len()).is_none(), "{value:?}");
        }
        assert!(is_data(first(&utf16)));
        // 40 random bytes.
        for _ in 0..1000 {
            let [a, b] = [(); 2].map(|()| Token::random().unwrap());
            let value = [&a.as_bytes()[..], b.as_bytes()].concat();
            assert!(parse(&value, value.len()).is_none());
        }
    }
}
