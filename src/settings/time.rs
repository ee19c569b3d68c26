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
