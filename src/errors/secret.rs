//! Passwords and tokens: secrets that a node is sent, and that no text from it may repeat. Something that is not a
//! Redis server, a proxy or a server of another version may repeat in an error what it does not understand.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::errors::own_words::own_words;
use crate::values::token::Token;

/// Shown in place of the hidden text.
const HIDDEN: &str = "***";
/// Secrets shorter than this may be part of any word by chance: they are recognized only as whole words. If a longer
/// one is cut off, at least this many characters less one must be there.
const SHORT: usize = 4;

/// A node's password, if it has one, and those of servers that another one knows; or a lock's token.
#[derive(Clone, Default)]
pub(crate) struct Secret(Vec<Arc<str>>);

impl Secret {
    pub(crate) fn of(password: Option<&str>) -> Secret {
        let password = password.filter(|text| !text.is_empty());
        Secret(password.map(Arc::from).into_iter().collect())
    }

    /// All of these secrets as one: no text may repeat any of them.
    pub(crate) fn of_all(all: impl IntoIterator<Item = Secret>) -> Secret {
        Secret(all.into_iter().flat_map(|one| one.0).collect())
    }

    pub(crate) fn is(&self, password: &str) -> bool {
        self.0.iter().any(|one| **one == *password)
    }

    pub(crate) fn of_token(token: &Token) -> Secret {
        let text: String = token.as_bytes().iter().copied().map(char::from).collect();
        Secret(vec![text.into()])
    }

    /// A server's text up to where it repeats a secret: unchanged, escaped, percent-encoded, or its beginning at the
    /// end of the text. The text after that is not shown: it may repeat the secret in another form.
    ///
    /// Redis' own words are always shown: with a password like "user" or "a", a gap in a well-known text would
    /// show the password.
    pub(crate) fn cut(&self, text: &str) -> String {
        if self.0.is_empty() {
            return text.to_owned();
        }
        let own = own_words(text);
        let rest = text.get(own..).unwrap_or_default();
        let words_end = text.rfind(is_word).map_or(0, |last| last + 1);
        let is_any = |at: &usize| {
            let mut all = self.0.iter();
            all.any(|secret| is_repeated((text, words_end), *at, secret))
        };
        let found = rest.char_indices().map(|(at, _)| own + at).find(is_any);
        let shown = found.and_then(|at| text.get(..at));
        shown.map_or_else(|| text.to_owned(), |shown| format!("{shown}{HIDDEN}"))
    }

    /// Whether a host is a secret or has it in its name. No server is looked for at such a host, and no text names
    /// it. By chance an address may have any digits, and a name the words of `HOST_WORDS`.
    pub(crate) fn is_in_host(&self, host: &str) -> bool {
        let (host, is_ip) = (host.to_ascii_lowercase(), host.parse::<IpAddr>().is_ok());
        self.0.iter().any(|secret| {
            let secret = secret.to_ascii_lowercase();
            let by_chance = is_ip || secret.chars().count() < SHORT;
            let is_in = host == secret || !by_chance && host.contains(&secret);
            is_in && !HOST_WORDS.contains(&&*secret)
        })
    }

    /// Like [`cut`](Secret::cut), for a value from INFO or CONFIG.
    pub(crate) fn cut_value(&self, value: &str) -> String {
        let is_number = value.chars().all(|c| c.is_ascii_digit() || c == '.');
        match is_number || VALUES.contains(&value) {
            true => value.to_owned(),
            false => self.cut(value),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric()
}

/// Whether `text`, whose last word ends before `words_end`, has the secret from `at` on.
fn is_repeated((text, words_end): (&str, usize), at: usize, secret: &str) -> bool {
    let (before, mut ends) = (text.get(..at).unwrap_or_default(), vec![at]);
    let (mut length, mut reached) = (0, at);
    for c in secret.chars() {
        let mut next: Vec<usize> = ends.iter().flat_map(|end| after(text, *end, c)).collect();
        next.sort_unstable();
        next.dedup();
        let Some(last) = next.last() else {
            break;
        };
        (length, reached) = (length + 1, *last);
        ends = next;
    }
    let whole = secret.chars().count();
    let begins = !before.ends_with(is_word);
    let rest = text.get(reached..).unwrap_or_default();
    if length == whole {
        return whole >= SHORT || begins && !rest.starts_with(is_word);
    }
    // The text was cut off there.
    let enough = length + 1 >= SHORT || 2 * length >= whole;
    enough && length > 0 && begins && reached >= words_end
}

/// The ends of a character that may be written at `at`: unchanged, or in one of the ways in which servers, URLs, JSON
/// and shells write it.
fn after(text: &str, at: usize, c: char) -> Vec<usize> {
    let Some(rest) = text.get(at..) else {
        return Vec::new();
    };
    let Some(first) = rest.chars().next() else {
        return Vec::new();
    };
    let mut ends = Vec::new();
    if first.eq_ignore_ascii_case(&c) {
        ends.push(at + first.len_utf8());
    }
    if !['\\', '%', '+'].contains(&first) {
        return ends;
    }
    let mut bytes = [0; 4];
    let bytes = c.encode_utf8(&mut bytes).as_bytes();
    let each = |mark: &str| -> String { bytes.iter().map(|b| format!("{mark}{b:02x}")).collect() };
    let mut units = [0; 2];
    let units = c.encode_utf16(&mut units).iter();
    let forms = [
        each("%"),
        each("\\x"),
        units.map(|unit| format!("\\u{unit:04x}")).collect(),
        c.escape_unicode().to_string(),
        c.escape_default().to_string(),
        format!("\\{c}"),
        (if c == ' ' { "+" } else { "" }).to_owned(),
        // A single byte, as the bytes of a token are written.
        single("\\x", c),
        single("%", c),
    ];
    for form in forms.iter().filter(|form| !form.is_empty()) {
        let start = rest.get(..form.len());
        if start.is_some_and(|start| start.eq_ignore_ascii_case(form)) {
            ends.push(at + form.len());
        }
    }
    ends
}

fn single(mark: &str, c: char) -> String {
    u8::try_from(c).map_or_else(|_| String::new(), |byte| format!("{mark}{byte:02x}"))
}

/// Passwords that cannot be distinguished from the names of servers.
const HOST_WORDS: [&str; 10] = [
    "cluster",
    "host",
    "localhost",
    "master",
    "node",
    "redis",
    "replica",
    "sentinel",
    "server",
    "valkey",
];

/// The words in the values that are shown.
const VALUES: [&str; 11] = [
    "allkeys-lfu",
    "allkeys-lru",
    "allkeys-random",
    "always",
    "everysec",
    "no",
    "noeviction",
    "volatile-lfu",
    "volatile-lru",
    "volatile-random",
    "volatile-ttl",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::own_words::all_own_words;

    fn secret(password: &str) -> Secret {
        Secret(vec![password.into()])
    }

    /// Asserts how each text is shown, by the password in front of it.
    fn are_shown(texts: &[(&str, &str, &str)]) {
        for (password, text, shown) in texts {
            assert_eq!(secret(password).cut(text), *shown, "{password}: {text}");
        }
    }

    #[test]
    fn a_long_text_is_looked_through_once() {
        // Each place could be the beginning of the password, cut off behind three signs; but a word follows.
        let secret = Secret::of(Some("---abc"));
        let text = format!("{}x", "-".repeat(64 << 10));
        let begun = std::time::Instant::now();
        assert_eq!(secret.cut(&text), text);
        // It takes a tenth of that on a busy machine, and took more when each place was compared with all that follows.
        let took = begun.elapsed();
        assert!(took.as_secs() < 30, "{took:?}");
    }

    #[test]
    fn a_text_ends_where_it_repeats_the_password() {
        are_shown(&[
            (
                "hunter2",
                "ERR bad line: AUTH u hunter2",
                "ERR bad line: AUTH u ***",
            ),
            (
                "hunter2",
                "ERR 'AUTH' 'hunter2' and hunter2",
                "ERR 'AUTH' '***",
            ),
            ("hunter2", "hunter2", "***"),
            ("hunter2", "ERR HUNTER2 is wrong", "ERR ***"),
            ("hunter2", "ERR xhunter2x", "ERR x***"),
            // Escaped, as text, in JSON, by Redis, in a URL.
            ("hun\"ter\\2", r#"ERR "hun\"ter\\2""#, "ERR \"***"),
            ("hun\"ter\\2", r#"ERR hun"ter\2"#, "ERR ***"),
            ("hün ter2", "ERR h\\xc3\\xBCn ter2", "ERR ***"),
            ("hün ter2", "ERR h\\u00fcn\\x20ter2", "ERR ***"),
            ("hün ter2", "ERR h\\u{fc}n ter2", "ERR ***"),
            ("hün ter2", "redis://u:h%C3%bcn+ter2@host", "redis://u:***"),
            ("hun\nter2", "ERR hun\\nter2", "ERR ***"),
            ("a%b\\c", "ERR a%25b%5Cc", "ERR ***"),
            ("🦀hunter", "ERR \\ud83e\\udd80hunter", "ERR ***"),
            // Cut off.
            (
                "hunter2",
                "ERR bad line: AUTH u hunt",
                "ERR bad line: AUTH u ***",
            ),
            (
                "hunter2",
                "ERR bad line: 'AUTH u hun…'",
                "ERR bad line: 'AUTH u ***",
            ),
            ("hunter2", "ERR they hunt", "ERR they ***"),
            ("hunter2", "ERR hunt for it", "ERR hunt for it"),
            ("hunter2", "ERR how", "ERR how"),
        ]);
        assert_eq!(Secret::default().cut("ERR hunter2"), "ERR hunter2");
        let both = Secret::of_all([secret("hunter2"), Secret::default(), secret("horse")]);
        for text in ["ERR u horse hunter2", "ERR u hunter2 horse", "ERR u hor"] {
            assert_eq!(both.cut(text), "ERR u ***");
        }
        assert!(both.is_in_host("db-horse") && both.is_in_host("db-hunter2"));
    }

    #[test]
    fn a_host_that_has_the_password_in_it_is_recognized() {
        for (password, host, expected) in [
            ("hunter2", "hunter2", true),
            ("Hunter2", "db-hunter2.example.com", true),
            ("hunter2", "hunter", false),
            ("x1", "x1", true),
            ("x1", "x1.example.com", false),
            // A host that has the secret's text by chance.
            ("2001", "2001:db8::1", false),
            ("10.0", "10.0.0.1", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("redis", "redis-0", false),
            ("", "h", false),
        ] {
            let secret = Secret::of(Some(password));
            assert_eq!(secret.is_in_host(host), expected, "{password}, {host}");
        }
    }

    #[test]
    fn a_text_ends_where_it_repeats_a_token() {
        let token = [
            0, 10, 13, 34, 92, 127, 128, 195, 169, 255, 65, 66, 67, 32, 37, 39, 226, 130, 172, 7,
        ];
        let secret = Secret::of_token(&Token::from_bytes(token));
        for shown in [
            token.escape_ascii().to_string(),
            token.iter().map(|byte| format!("\\x{byte:02X}")).collect(),
            token.iter().map(|byte| format!("%{byte:02x}")).collect(),
        ] {
            let text = format!("ERR bad line: SET x {shown} NX");
            assert_eq!(secret.cut(&text), "ERR bad line: SET x ***", "{text}");
        }
    }

    /// A gap within a word would reveal the password.
    #[test]
    fn a_short_password_is_recognized_only_as_a_whole_word() {
        are_shown(&[
            ("a", "ERR bad line: AUTH u a", "ERR bad line: AUTH u ***"),
            ("a", "ERR bad line: 'a' and a", "ERR bad line: '***"),
            ("a", "ERR a bad day", "ERR ***"),
            ("x1", "ERR 'AUTH' 'x1'", "ERR 'AUTH' '***"),
            ("x1", "ERR x12 x", "ERR x12 ***"),
            ("1", "ERR 12 at 21", "ERR 12 at 21"),
        ]);
    }

    /// Redis' own words reveal nothing of the password, and errors are distinguished by them.
    #[test]
    fn the_usual_texts_of_redis_are_shown_whatever_the_password() {
        for text in all_own_words() {
            for password in text.split_whitespace().chain(["a", "e", text]) {
                assert_eq!(secret(password).cut(text), text, "{password}");
            }
        }
        let wrong = "NOPERM this user has no permissions to run the 'hunter2' command";
        let shown = "NOPERM this user has no permissions to run the '***";
        assert_eq!(secret("hunter2").cut(wrong), shown);
        assert_eq!(secret("BUSYbee").cut("BUSYbee"), HIDDEN);
        for value in VALUES.iter().chain(&["7.0.15", "1"]) {
            assert_eq!(secret(value).cut_value(value), *value);
        }
        assert_eq!(secret("hunter2").cut_value("7.0-hunter2"), "7.0-***");
    }

    #[test]
    fn no_text_makes_it_panic() {
        let mut seed = 1_u64;
        let letters: Vec<char> = "a%\\u{41}x+é🦀 \0'\"".chars().collect();
        let mut word = || -> String {
            let mut letter = |_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                letters[usize::try_from(seed >> 40).unwrap() % letters.len()]
            };
            (0..9).map(&mut letter).collect()
        };
        for _ in 0..20_000 {
            let (password, before) = (word(), word());
            let text = format!("{before}{password}");
            assert!(
                !secret(&password).cut(&text).ends_with(&password),
                "{text:?}"
            );
        }
    }
}
