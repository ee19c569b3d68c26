//! `redlock release --force`: frees a lock whose holder will not come back.

use std::io::{BufRead, IsTerminal, stderr, stdin};

use redlock_sync::{Holder, LockState, Redlock};

use crate::arguments::Release;
use crate::inspect::{report_failures, shown};
use crate::output::question;
use crate::print::print;
use crate::show::{escaped, shortened};
use crate::{BUSY, End, FOUND, UNAVAILABLE, failed, report};

/// Where the answer to the question comes from.
pub(crate) enum Answer {
    Yes,
    Terminal,
}

impl Answer {
    /// # Errors
    ///
    /// There is no answer to be had.
    pub(crate) fn expected(yes: bool) -> Result<Answer, String> {
        match yes {
            true => Ok(Answer::Yes),
            false if stdin().is_terminal() && stderr().is_terminal() => Ok(Answer::Terminal),
            false => {
                Err("no terminal to ask on: give --yes to release the lock all the same".into())
            }
        }
    }

    fn is_yes(&self) -> bool {
        if let Answer::Yes = self {
            return true;
        }
        question("If this holder is still running, two may then run at once. Release it? [y/N] ");
        let mut line = String::new();
        let answered = stdin().lock().read_line(&mut line);
        answered.is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
    }
}

pub(crate) fn release(given: &Release, answer: &Answer, redlock: &Redlock) -> End {
    let name = given.name.as_encoded_bytes();
    let inspection = match redlock.inspect(name) {
        Ok(inspection) => inspection,
        Err(error) => return failed(&error),
    };
    let shown = print(shown(name, &inspection).as_bytes(), 0);
    if shown != End::Code(0) {
        return shown;
    }
    match inspection.state() {
        LockState::Held {
            holder,
            remaining: Some(_),
            ..
        } => match answer.is_yes() {
            true => break_lock(name, &holder, redlock),
            false => {
                report(format_args!("not released"));
                End::Code(FOUND)
            }
        },
        LockState::Free => End::Code(0),
        LockState::Unknown => {
            report_failures(&inspection);
            End::Code(UNAVAILABLE)
        }
        LockState::Held { .. } => refuse("it has no ttl, so it is no lock of this program"),
        _ => {
            refuse("no holder has it on a majority of the nodes, or it is no lock of this program")
        }
    }
}

fn refuse(why: &str) -> End {
    report(format_args!("{why}: nothing was deleted"));
    End::Code(BUSY)
}

/// Whatever has happened since it was shown: only the lock of this holder is deleted.
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

/// What has become of it.
fn changed(name: &[u8], redlock: &Redlock) -> End {
    match redlock.inspect(name) {
        Ok(inspection) => {
            let free = inspection.state() == LockState::Free;
            print(
                shown(name, &inspection).as_bytes(),
                if free { 0 } else { BUSY },
            )
        }
        Err(error) => failed(&error),
    }
}
