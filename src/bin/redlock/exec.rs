//! The environment of COMMAND, and how this program becomes it.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::output::{flush, report};
use crate::{CANNOT_RUN, NOT_FOUND};

/// Adds the variables that COMMAND finds in its environment beside our own.
pub(crate) fn environment(
    command: &mut Command,
    name: &OsStr,
    fence: Option<u64>,
    slot: Option<u32>,
) {
    command.env("REDLOCK_NAME", name);
    let numbers = [
        ("REDLOCK_FENCE", fence),
        ("REDLOCK_SLOT", slot.map(u64::from)),
    ];
    for (variable, number) in numbers {
        match number {
            Some(number) => command.env(variable, number.to_string()),
            // An outer lock's number would be taken for this one's.
            None => command.env_remove(variable),
        };
    }
}

/// Becomes the command; otherwise reports why not.
pub(crate) fn exec(command: &mut Command) -> u8 {
    flush();
    let error = command.exec();
    let program = command.get_program().to_string_lossy();
    let is_shells = program.contains([' ', '|', '&', ';', '<', '>', '$', '`', '*']);
    let advice = match error.kind() {
        ErrorKind::NotFound if is_shells => "; for a line of shell, give a shell: sh -c '…'",
        _ => "",
    };
    report(format_args!("cannot run {program:?}: {error}{advice}"));
    match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    }
}
