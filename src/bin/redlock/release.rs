//! `redlock release --force`: frees a lock whose holder will not come back.

use std::io::{BufRead, IsTerminal, stderr, stdin};
use std::time::Duration;

use redlock_sync::command::{escaped, is_cut};
use redlock_sync::{Holder, LockState, Redlock};

use crate::arguments::ReleaseArgs;
use crate::inspect::{report_failures, report_url, shown};
use crate::output::question;
use crate::print::print;
use crate::tables::shortened;
use crate::{BUSY, End, FOUND, UNAVAILABLE, USAGE, failed, report};

/// Where the answer to the question comes from.
pub(crate) enum ReleaseAnswer {
    Yes,
    Terminal,
}

impl ReleaseAnswer {
    /// # Errors
    ///
    /// There is no way to get an answer.
    pub(crate) fn expected(yes: bool) -> Result<ReleaseAnswer, String> {
        match yes {
            true => Ok(ReleaseAnswer::Yes),
            false if stdin().is_terminal() && stderr().is_terminal() => Ok(ReleaseAnswer::Terminal),
            false => {
                Err("no terminal to ask on: give --yes to release the lock all the same".into())
            }
        }
    }

    fn is_yes(&self) -> bool {
        if let ReleaseAnswer::Yes = self {
            return true;
        }
        question("If this holder is still running, two may then run at once. Release it? [y/N] ");
        let mut line = String::new();
        let answered = stdin().lock().read_line(&mut line);
        answered.is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
    }
}

pub(crate) fn release(arguments: &ReleaseArgs, answer: &ReleaseAnswer, redlock: &Redlock) -> End {
    let name = arguments.name.as_encoded_bytes();
    let inspection = match redlock.inspect(name) {
        Ok(inspection) => inspection,
        Err(error) => return failed(&error),
    };
    let shown = print(shown(name, &inspection).as_bytes(), 0);
    if shown != End::Code(0) {
        return shown;
    }
    let state = inspection.state();
    match (chosen(arguments, &state, is_cut(&inspection)), &state) {
        (Ok(Some((_, None))), _) => refuse("it has no ttl, so it is no lock of this program"),
        (Ok(Some((holder, _))), _) => match answer.is_yes() {
            true => break_lock(name, holder, redlock),
            false => {
                report(format_args!("not released"));
                End::Code(FOUND)
            }
        },
        (Ok(None), LockState::Free) => {
            report_url(&arguments.name, &inspection);
            End::Code(0)
        }
        (Ok(None), LockState::Unknown) => {
            report_failures(&inspection);
            End::Code(UNAVAILABLE)
        }
        (Ok(None), _) => {
            refuse("no holder has it on a majority of the nodes, or it is no lock of this program")
        }
        (Err(end), _) => end,
    }
}

/// Whose lock is meant, and how long it remains; or how this program ends if that is not certain.
/// `is_cut`: not all holders may be shown.
fn chosen<'a>(
    arguments: &ReleaseArgs,
    state: &'a LockState,
    is_cut: bool,
) -> Result<Option<(&'a Holder, Option<Duration>)>, End> {
    let holders: Vec<_> = state.holders().collect();
    let Some(wanted) = &arguments.holder else {
        if holders.len() < 2 {
            return Ok(holders.first().copied());
        }
        report(format_args!(
            "{} have it: give --holder and the first word of a line above: nothing was deleted",
            holders.len()
        ));
        return Err(End::Code(USAGE));
    };
    let is_wanted = |holder: &Holder| holder.fingerprint().to_string() == *wanted;
    let count = holders.len();
    let found = holders.into_iter().find(|(holder, _)| is_wanted(holder));
    match found {
        None if is_cut => Err(refuse(&format!(
            "{wanted} is not among the {count} that are shown, those that last longest: there may be more"
        ))),
        None if !matches!(state, LockState::Free | LockState::Unknown) => {
            Err(refuse(&format!("{wanted} does not have it")))
        }
        found => Ok(found),
    }
}

fn refuse(why: &str) -> End {
    report(format_args!("{why}: nothing was deleted"));
    End::Code(BUSY)
}

/// Deletes only the lock of this holder, whatever has happened since it was shown.
fn break_lock(name: &[u8], holder: &Holder, redlock: &Redlock) -> End {
    match redlock.break_lock(name, holder) {
        Ok(true) => {
            let text = format!("{}: released\n", shortened(&escaped(name)));
            print(text.as_bytes(), 0)
        }
        Ok(false) => {
            report(format_args!(
                "{holder} no longer has it: nothing was deleted"
            ));
            changed(name, redlock)
        }
        Err(error) => failed(&error),
    }
}

/// Reports the new state of the lock.
fn changed(name: &[u8], redlock: &Redlock) -> End {
    match redlock.inspect(name) {
        Ok(inspection) => {
            let code = match inspection.state() {
                LockState::Free => 0,
                LockState::Unknown => UNAVAILABLE,
                _ => BUSY,
            };
            if code == UNAVAILABLE {
                report_failures(&inspection);
            }
            print(shown(name, &inspection).as_bytes(), code)
        }
        Err(error) => failed(&error),
    }
}
