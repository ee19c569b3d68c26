//! Times, as variables and flags name them.

use std::time::Duration;

/// The longest time that can be given.
pub const LONGEST_TIME: Duration = Duration::from_secs(36_500 * 86_400);

/// A number of seconds, or with a unit: 500ms 30s 5m 1h 1d.
///
/// # Errors
///
/// How times are written.
pub fn parse_time(text: &str) -> Result<Duration, &'static str> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(number.len()..).unwrap_or_default() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err("its unit must be ms, s, m, h or d"),
    };
    let digits = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = digits.then(|| number.parse().ok()).flatten();
    let time = number.and_then(|number| Duration::try_from_secs_f64(number * unit).ok());
    time.filter(|time| *time <= LONGEST_TIME)
        .ok_or("it must be a number of seconds, or have a unit: 500ms 30s 5m 1h 1d; up to 36500d")
}

/// A time with a unit: 500ms 2s. A timeout without one is meant in milliseconds by some, and in seconds by others.
///
/// # Errors
///
/// How times are written.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    match text.ends_with(|c: char| c.is_ascii_alphabetic()) {
        true => Ok(time),
        false => Err(format!("{text} has no unit: write {text}ms or {text}s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_unit() {
        let ms = Duration::from_millis;
        for (text, time) in [("500ms", ms(500)), ("2s", ms(2000)), ("0.5s", ms(500))] {
            assert_eq!(parse_timeout(text), Ok(time));
        }
        for text in ["500", "2", "0", "0.5"] {
            assert!(parse_time(text).is_ok(), "{text}");
            let error = format!("{text} has no unit: write {text}ms or {text}s");
            assert_eq!(parse_timeout(text), Err(error));
        }
        assert!(
            parse_timeout("5w")
                .unwrap_err()
                .contains("its unit must be")
        );
        assert!(parse_timeout("").unwrap_err().contains("a number"));
    }
}
