//! Times as they are given on the command line.

use std::fmt;
use std::time::Duration;

use redlock_sync::command::{LONGEST_TIME, parse_time, parse_timeout};

/// The longest ttl that the command takes.
pub(crate) const LONGEST: Duration = LONGEST_TIME;
pub(crate) const DAY: u64 = 86_400;
/// The shortest ttl that the command takes.
pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

pub(crate) fn within(
    what: &str,
    time: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), String> {
    if time >= min && time <= max {
        return Ok(());
    }
    let to = match max {
        Duration::MAX => "more".into(),
        max => Time(max).to_string(),
    };
    let (time, min) = (Time(time), Time(min));
    Err(format!("{what} is {time}: it must be {min} to {to}"))
}

/// A number of seconds, or with a unit: 500ms 30s 5m 1h 1d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// The form in which it can be given; less than a millisecond is not shown.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        if millis > 0 {
            return match seconds {
                0 => write!(f, "{millis}ms"),
                _ => write!(f, "{}s", self.0.as_millis() as f64 / 1000.0),
            };
        }
        let units = [(DAY, "d"), (3600, "h"), (60, "m")];
        match units
            .iter()
            .find(|(unit, _)| seconds > 0 && seconds % unit == 0)
        {
            Some((unit, name)) => write!(f, "{}{name}", seconds / unit),
            None => write!(f, "{seconds}s"),
        }
    }
}

impl std::str::FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        parse_time(text).map(Time).map_err(str::to_owned)
    }
}

pub(crate) fn timeout(text: &str) -> Result<Time, String> {
    parse_timeout(text).map(Time)
}

pub(crate) fn max_hold(text: &str) -> Result<Time, String> {
    match text {
        "forever" => Ok(Time(Duration::MAX)),
        text => text.parse(),
    }
}
