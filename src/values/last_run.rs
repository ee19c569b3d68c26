//! The mark of a run that succeeded, which is kept beside its lock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::values::label::Label;

/// How the value begins.
pub(crate) const HEAD: &[u8] = b"redlock:done ";
/// The maximum length of a value. Later versions may have more fields behind the label, from the first `\0` on.
pub(crate) const MOST: usize = 256;

/// The last run that succeeded, as [`Redlock::last_run`](crate::Redlock::last_run) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    ended: SystemTime,
    took: Duration,
    label: Option<Label>,
    /// How long the mark is still kept.
    left: Duration,
}

impl LastRun {
    pub(crate) fn new(ended: SystemTime, took: Duration, label: Option<Label>) -> LastRun {
        LastRun {
            ended,
            took,
            label,
            left: Duration::ZERO,
        }
    }

    /// When it ended, by the clock of the machine that it ran on, to the millisecond.
    pub fn ended(&self) -> SystemTime {
        self.ended
    }

    /// How long it took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The [label](crate::Options::label) of the process that ran it.
    pub fn label(&self) -> Option<&str> {
        self.label.as_ref().map(Label::as_str)
    }

    /// When the period is over, and the next run may begin.
    pub fn again_in(&self) -> Duration {
        self.left
    }

    /// The run with the time for which a node still keeps its mark.
    pub(crate) fn kept_for(self, left: Duration) -> LastRun {
        LastRun { left, ..self }
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        let ended = self.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
        let label = self.label.as_ref().map_or("", Label::as_str);
        let (ended, took) = (ended.as_millis(), self.took.as_millis());
        [HEAD, format!("{ended} {took} {label}").as_bytes()].concat()
    }

    /// Reads a value. `None`: it is other data, no part of which may be shown.
    pub(crate) fn parse(value: &[u8]) -> Option<LastRun> {
        let rest = value.strip_prefix(HEAD).filter(|_| value.len() <= MOST)?;
        let mut parts = rest.splitn(3, |byte| *byte == b' ');
        let mut time = || {
            let text = str::from_utf8(parts.next()?).ok()?;
            Some(Duration::from_millis(text.parse().ok()?))
        };
        let (ended, took) = (time()?, time()?);
        let label = Label::before_fields(parts.next()?)?;
        Some(LastRun::new(UNIX_EPOCH.checked_add(ended)?, took, label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read_and_other_data_is_not() {
        for label in [None, Label::new("web-3:4711 a")] {
            let ended = UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
            let run = LastRun::new(ended, Duration::from_millis(4500), label);
            let packed = run.pack();
            assert_eq!(LastRun::parse(&packed), Some(run.clone()));
            // Fields of later versions are ignored, up to a length.
            let mut more = [&packed[..], b"\0x=1 \xff"].concat();
            assert_eq!(LastRun::parse(&more), Some(run.clone()));
            more.resize(MOST, b'x');
            assert_eq!(LastRun::parse(&more), Some(run));
            more.push(b'x');
            assert_eq!(LastRun::parse(&more), None);
        }
        for other in [
            &b""[..],
            b"redlock:done",
            b"redlock:done 1",
            b"redlock:done 1 2",
            b"redlock:done 1 -2 ",
            b"redlock:done x 2 a",
            b"redlock:done 1 2 a\n",
            b"redlock:done 1 2 \xff",
            b"redlock:done 1 2\0x=1",
            b"redlock:done 1\0 2 a",
            b"done 1 2 a",
        ] {
            assert_eq!(LastRun::parse(other), None, "{other:?}");
        }
    }
}
