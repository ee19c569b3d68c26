use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::values::random::Rng;

/// At least this many bytes of a token are not printable ASCII. (About one random value in 1000 has fewer, and is not
/// used as a token.)
const BINARY: usize = 6;

/// The value that identifies one acquisition on the nodes: 20 bytes from the operating system's generator.
///
/// With the token of a held lock, any process can extend or release it, so hand it only to a process
/// that takes over the lock (see [`Redlock::resume`](crate::Redlock::resume)). `Debug` shows
/// none of its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; 20]);

impl Token {
    pub(crate) const LENGTH: usize = 20;

    /// Fresh for every attempt: a value used twice breaks mutual exclusion through a late release
    /// of its first use (rule R2).
    pub(crate) fn random() -> Result<Token, RandomError> {
        let mut bytes = [0; 20];
        // Seldom more than once.
        loop {
            getrandom::fill(&mut bytes).map_err(RandomError)?;
            if !is_data(&bytes) {
                return Ok(Token(bytes));
            }
        }
    }

    /// The token's bytes, to hand the lock to another process.
    pub fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    /// The token of a lock that another process handed over. Never invent one.
    pub fn from_bytes(bytes: [u8; 20]) -> Token {
        Token(bytes)
    }
}

impl Token {
    /// The first 4 of the 20 bytes: enough to distinguish this token from others, and not a secret.
    /// [`Redlock::inspect`](crate::Redlock::inspect) names a lock's holder by it.
    pub fn fingerprint(&self) -> Fingerprint {
        let [a, b, c, d, ..] = self.0;
        Fingerprint([a, b, c, d])
    }
}

/// The part of a [`Token`] that may be shown. `Display` writes 8 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 4]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why the operating system supplied no random bytes.
#[derive(Clone, Debug)]
pub struct RandomError(pub(crate) getrandom::Error);

impl fmt::Display for RandomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for RandomError {}

/// Whether 20 bytes are not random but text, or have much text in them: then they are another program's data, and never
/// used as a token.
pub(crate) fn is_data(token: &[u8; Token::LENGTH]) -> bool {
    let is_printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r');
    let mut binary = token.iter().filter(|byte| !is_printable(byte));
    if binary.nth(BINARY - 1).is_none() {
        return true;
    }
    let text = match str::from_utf8(token) {
        Ok(text) => Some(text),
        // The bytes end within a character.
        Err(error) if error.error_len().is_none() => token
            .get(..error.valid_up_to())
            .and_then(|whole| str::from_utf8(whole).ok()),
        Err(_) => None,
    };
    // NUL occurs in UTF-16, and before private members in PHP's serialised data.
    let is_text = |c: char| !c.is_control() || "\0\t\n\r".contains(c);
    text.is_some_and(|text| text.chars().all(is_text))
}

/// A random time from `min` to `max`, to desynchronise contenders. Without randomness it is `max`:
/// then a pause is too long, and a token fails anyway.
pub(crate) fn jitter(min: Duration, max: Duration) -> Duration {
    getrandom::u64().map_or(max, |seed| Rng::new(seed).between((min, max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The spread is tested with the generator (`values/random.rs`).
    #[test]
    fn jitter_differs_from_one_to_the_next_and_bears_all_bounds() {
        let (min, max) = (Duration::from_millis(50), Duration::from_millis(250));
        let drawn: Vec<Duration> = (0..100).map(|_| jitter(min, max)).collect();
        assert!(drawn.iter().all(|pause| (min..=max).contains(pause)));
        assert!(drawn.iter().any(|pause| *pause != drawn[0]));
        assert_eq!(jitter(max, max), max);
        assert_eq!(jitter(Duration::ZERO, Duration::ZERO), Duration::ZERO);
        assert!(jitter(Duration::ZERO, Duration::MAX) <= Duration::MAX);
    }

    #[test]
    fn no_token_is_taken_for_data() {
        for _ in 0..10_000 {
            assert!(!is_data(Token::random().unwrap().as_bytes()));
        }
    }

    #[test]
    fn tokens_differ_and_debug_shows_nothing() {
        let tokens: Vec<Token> = (0..1000).map(|_| Token::random().unwrap()).collect();
        for (i, token) in tokens.iter().enumerate() {
            assert!(!tokens.iter().skip(i + 1).any(|other| other == token));
        }
        assert_eq!(format!("{:?}", tokens.first().unwrap()), "Token(..)");
        // No byte is the same in all of them, so each is random.
        for byte in 0..Token::LENGTH {
            let mut values: Vec<u8> = tokens.iter().map(|token| token.0[byte]).collect();
            values.sort_unstable();
            values.dedup();
            assert!(
                values.len() > 200,
                "byte {byte} has {} values",
                values.len()
            );
        }
    }
}
