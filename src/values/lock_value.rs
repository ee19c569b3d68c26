//! The value of a lock's key: the token, then a mark and the label, if there is one. The only place that distinguishes
//! locks from other data, for the library and the command.

use crate::values::label::Label;
use crate::values::token::{Token, is_data};

/// The length of a token.
pub(crate) const TOKEN: usize = Token::LENGTH;
/// The mark between the token and the label. Without it, any other program's data after 20 bytes (a signature, an id
/// and a length) could be taken for a label, and shown.
pub(crate) const MARK: &[u8] = b"\0redlock:";
/// The maximum length of a lock's value.
pub(crate) const LONGEST: usize = TOKEN + MARK.len() + Label::MAX;

/// Returns the value of a lock.
pub(crate) fn pack(token: &Token, label: &Label) -> Vec<u8> {
    [token.as_bytes(), MARK, label.as_str().as_bytes()].concat()
}

/// The token and the label of a lock's value, or of its first bytes, if it has `length`. `None`: it is other data, no
/// part of which may be shown.
pub(crate) fn parse(value: &[u8], length: usize) -> Option<(Token, Option<Label>)> {
    let (token, rest) = value.split_first_chunk::<TOKEN>()?;
    if length != value.len() || is_data(token) {
        return None;
    }
    let label = match rest {
        [] => None,
        _ => Some(Label::parse(rest.strip_prefix(MARK)?)?),
    };
    Some((Token::from_bytes(*token), label))
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
pub(crate) const LONGEST_MEMBER: usize = HEAD.len() + 4 + LONGEST;
const HEAD: &[u8] = b"redlock:";

/// The role, token and label of a permit's or a reader's member in its sorted set.
pub(crate) fn parse_member(member: &[u8]) -> Option<(ValueRole, Token, Option<Label>)> {
    let ([kind, digits @ ..], value) = member.strip_prefix(HEAD)?.split_first_chunk::<4>()?;
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(digits).ok()?.parse().ok();
    let role = match kind {
        b'r' => ValueRole::Reader,
        b's' => ValueRole::Permit(number.filter(|_| is_number)?),
        _ => return None,
    };
    let (token, label) = parse(value, value.len())?;
    Some((role, token, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(value: &[u8]) -> &[u8; TOKEN] {
        value.first_chunk().unwrap()
    }

    #[test]
    fn a_lock_is_its_token_and_perhaps_a_label_behind_the_mark() {
        let token = Token::from_bytes([0xA7; TOKEN]);
        let label = Label::parse("web-3:4711 é".as_bytes()).unwrap();
        let packed = pack(&token, &label);
        assert!(packed.len() <= LONGEST);
        assert_eq!(
            parse(&packed, packed.len()),
            Some((token, Some(label.clone())))
        );
        assert_eq!(parse(token.as_bytes(), TOKEN), Some((token, None)));
        // The first bytes of a longer value.
        assert_eq!(parse(&packed, packed.len() + 1), None);
        let longest = Label::parse("é".repeat(32).as_bytes()).unwrap();
        assert_eq!(pack(&token, &longest).len(), LONGEST);
        for rest in [
            &b"web-3"[..],
            b"redlock:web-3",
            b"\0redlock:",
            b"\0redlock:a\nb",
            b"\0redlock:\xff",
            "\0redlock:\u{202e}3-bew".as_bytes(),
            b"\0redlock",
        ] {
            let value = [&token.as_bytes()[..], rest].concat();
            assert_eq!(parse(&value, value.len()), None, "{rest:?}");
        }
        let long = [packed.as_slice(), &[b'x'; 64]].concat();
        assert_eq!(parse(&long, long.len()), None);
    }

    #[test]
    fn a_member_is_its_role_and_a_value() {
        let token = Token::from_bytes([0xA7; TOKEN]);
        let label = Label::parse(b"web-3:4711").unwrap();
        let member = |head: &str| [head.as_bytes(), &pack(&token, &label)].concat();
        for (head, role) in [
            ("redlock:r000", ValueRole::Reader),
            ("redlock:s000", ValueRole::Permit(0)),
            ("redlock:s999", ValueRole::Permit(999)),
        ] {
            let parsed = parse_member(&member(head));
            assert_eq!(parsed, Some((role, token, Some(label.clone()))));
        }
        for head in ["redlock:s+12", "redlock:t000", "redlock:s12", "s000", ""] {
            assert_eq!(parse_member(&member(head)), None, "{head}");
        }
        assert_eq!(parse_member(b"redlock:s000"), None);
        let longest = Label::parse("é".repeat(32).as_bytes()).unwrap();
        let longest = [&b"redlock:s000"[..], &pack(&token, &longest)].concat();
        assert_eq!(longest.len(), LONGEST_MEMBER);
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
