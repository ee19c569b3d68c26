//! The checks of arguments that concern several of them, and the work of a command after all checks.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use crate::arguments::{NodeArgs, RunArgs, Throttle};
use crate::target::TargetKind;
use crate::time::{DAY, LONGEST, SHORTEST, Time, within};

/// The work of `redlock run`, after all checks.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: OsString,
    /// The program, and its arguments.
    pub(crate) command: (OsString, Vec<OsString>),
    /// `None`: for ever. Zero: one attempt.
    pub(crate) wait: Option<Duration>,
    pub(crate) conflict: u8,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) at_least: Duration,
    pub(crate) once_per: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) fair: bool,
    pub(crate) fence: bool,
    pub(crate) kind: TargetKind,
}

impl NodeArgs {
    /// # Errors
    ///
    /// The flag, its value and its limits.
    pub(crate) fn check_timeouts(&self) -> Result<(), String> {
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(3600));
        let check = |flag, time: Option<Time>| {
            time.map_or(Ok(()), |time| within(flag, time.0, shortest, longest))
        };
        check("--node-timeout", self.node_timeout)?;
        check("--connect-timeout", self.connect_timeout)
    }
}

impl RunArgs {
    /// # Errors
    ///
    /// The option, its value and its limits.
    pub(crate) fn job(&self) -> Result<Job, String> {
        let (name, command) = words(&self.words)?;
        let [program, arguments @ ..] = command else {
            return Err("no COMMAND: redlock run [OPTIONS] NAME COMMAND [ARG]...".into());
        };
        let (ttl, max_hold) = (self.ttl.0, self.hold.max_hold.0);
        let second = Duration::from_secs(1);
        within("--ttl", ttl, second, Duration::from_secs(DAY))?;
        within("--max-hold", max_hold, second, Duration::MAX)?;
        let at_least = self.hold.at_least.map_or(Duration::ZERO, |time| time.0);
        within(
            "--at-least",
            at_least,
            Duration::ZERO,
            max_hold.min(LONGEST),
        )
        .map_err(|error| format!("{error} (--max-hold)"))?;
        // The key is left with this ttl.
        self.votes.permit("--at-least", at_least, Duration::ZERO)?;
        if let Some(once_per) = self.hold.once_per {
            within("--once-per", once_per.0, second, LONGEST)?;
        }
        let grace = self
            .grace
            .map_or(Duration::from_secs(5).min(ttl / 4), |time| time.0);
        within("--grace", grace, Duration::ZERO, ttl / 2)
            .map_err(|error| format!("{error} (half of --ttl)"))?;
        Ok(Job {
            name: name.to_owned(),
            command: (program.clone(), arguments.to_vec()),
            wait: match self.waiting.nonblock {
                true => Some(Duration::ZERO),
                false => self.waiting.wait.map(|time| time.0),
            },
            conflict: self.waiting.conflict_exit_code,
            ttl,
            max_hold,
            at_least,
            once_per: self.hold.once_per.map(|time| time.0),
            grace,
            fair: self.fair,
            fence: self.fence,
            kind: self.any.kind(),
        })
    }
}

impl Throttle {
    /// NAME, COMMAND and its arguments.
    ///
    /// # Errors
    ///
    /// The mistake in the words.
    pub(crate) fn words(&self) -> Result<(&OsStr, &[OsString]), String> {
        let (name, command) = words(&self.words)?;
        if self.fence && command.is_empty() {
            return Err("--fence is for COMMAND, and there is none".into());
        }
        within("--every", self.every.0, SHORTEST, LONGEST)?;
        self.votes.permit("--every", self.every.0, SHORTEST)?;
        Ok((name, command))
    }
}

/// NAME, and COMMAND with its arguments. `--` may be written before either.
fn words(words: &[OsString]) -> Result<(&OsStr, &[OsString]), String> {
    let [name, command @ ..] = words else {
        return Err("no NAME".into());
    };
    let command = match command {
        [dashes, command @ ..] if dashes == "--" => command,
        command => command,
    };
    let starts_with_dash = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    if let Some(program) = command.first().filter(|program| starts_with_dash(program)) {
        return Err(format!(
            "COMMAND is {program:?}: it cannot begin with \"-\". Options go before NAME"
        ));
    }
    Ok((name, command))
}
