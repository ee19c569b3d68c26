//! `redlock`: flock(1) for a fleet. Runs commands under distributed locks.
//!
//! To be read in this order: main, arguments, nodes, plan, run (whose helpers are acquire, child, processes,
//! terminal and give_up), throttle, show, inspect, list (which has scan), doctor, manual, say. (text and url are the
//! library's: what they say is not public.)
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;
use log::{LevelFilter, Log, Metadata, Record};
use redlock_sync::Error;
use signal_hook::low_level::emulate_default_handler;

use arguments::Arguments;
use say::{said, say};

#[cfg(target_os = "linux")]
mod acquire;
mod arguments;
#[cfg(target_os = "linux")]
mod child;
mod doctor;
#[cfg(target_os = "linux")]
mod give_up;
mod inspect;
mod label;
mod list;
mod manual;
mod nodes;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod run;
mod say;
mod scan;
mod show;
#[cfg(target_os = "linux")]
mod terminal;
#[path = "../../text.rs"]
mod text;
mod throttle;
#[path = "../../url.rs"]
mod url;

const FOUND: u8 = 1;
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;
const NO_PROCESS: u8 = 71;
const BUSY: u8 = 75;
const LOST: u8 = 76;
const TIMED_OUT: u8 = 124;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The exit codes, as the manual page says them.
const CODES: [(&str, &str); 11] = [
    ("COMMAND's", "It ran to its end under the lock."),
    (
        "by a signal",
        "COMMAND was ended by INT, TERM or HUP, or redlock was while it waited: redlock ends by the same signal.",
    ),
    ("128+n", "COMMAND was ended by any other signal n."),
    ("75, or -E", "Another has the lock, or it is too soon."),
    (
        "76",
        "The lock was lost: COMMAND was ended for it, or ended unprotected.",
    ),
    ("124", "--max-hold was used up, so COMMAND was ended."),
    (
        "69",
        "Too few nodes answered (at once, without waiting, where they refuse for good: a wrong password, a right \
         that is missing); or this system is not Linux, which run needs.",
    ),
    (
        "64",
        "Something in the command line, the environment or the nodes file cannot work.",
    ),
    (
        "71",
        "The system gave no process, no /proc, or no random bytes.",
    ),
    ("126, 127", "COMMAND cannot be run; is not found."),
    (
        "1",
        "doctor: a fault was found (with --strict: or a warning). list --leaked: there is something.",
    ),
];

/// How COMMAND, or this program, ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Code(u8),
    Signal(i32),
}

fn main() -> ExitCode {
    let end = start();
    said();
    match end {
        End::Code(code) => ExitCode::from(code),
        End::Signal(signal) => {
            // Process 1 is not ended by its own signals.
            if std::process::id() != 1 {
                let _ = emulate_default_handler(signal);
            }
            ExitCode::from(128 | u8::try_from(signal).unwrap_or(127))
        }
    }
}

fn start() -> End {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        #[cfg(target_os = "linux")]
        Some(word) if word == child::COMMAND => return End::Code(child::become_command(words)),
        #[cfg(target_os = "linux")]
        Some(word) if word == child::GUARD => return End::Code(child::guard(words)),
        _ => {}
    }
    match Arguments::try_parse() {
        Ok(arguments) => dispatch(&arguments.command).unwrap_or_else(|error| {
            say(format_args!("{error}"));
            End::Code(USAGE)
        }),
        Err(error) => {
            let _ = error.print();
            End::Code(if error.use_stderr() { USAGE } else { 0 })
        }
    }
}

fn dispatch(command: &arguments::Command) -> Result<End, String> {
    match command {
        arguments::Command::Run(given) => {
            let job = given.job()?;
            log_to_stderr(given.nodes.verbose);
            let (redlock, options) = nodes::open(&given.nodes)?;
            #[cfg(target_os = "linux")]
            return Ok(run::run(&job, &redlock, &options));
            #[cfg(not(target_os = "linux"))]
            {
                let _ = (job, redlock, options);
                say(format_args!(
                    "run needs Linux: nowhere else can COMMAND be ended in time for certain"
                ));
                Ok(End::Code(UNAVAILABLE))
            }
        }
        arguments::Command::Throttle(given) => {
            let words = given.words()?;
            log_to_stderr(given.nodes.verbose);
            let (redlock, _) = nodes::open(&given.nodes)?;
            Ok(throttle::throttle(given, words, &redlock))
        }
        arguments::Command::Inspect(given) => {
            log_to_stderr(given.nodes.verbose);
            let (redlock, _) = nodes::open(&given.nodes)?;
            Ok(inspect::inspect(given, &redlock))
        }
        arguments::Command::List(given) => {
            let pattern = given.pattern()?;
            log_to_stderr(given.nodes.verbose);
            let nodes = nodes::named(&given.nodes)?;
            Ok(list::list(given, pattern, &nodes))
        }
        arguments::Command::Doctor(given) => {
            log_to_stderr(given.nodes.verbose);
            let (redlock, _) = nodes::open(&given.nodes)?;
            Ok(doctor::doctor(given, &redlock))
        }
        arguments::Command::Man => Ok(manual::page()),
        arguments::Command::Completions { shell } => Ok(manual::completions(*shell)),
    }
}

/// What COMMAND finds in its environment beside our own.
fn environment(command: &mut Command, name: &OsStr, fence: Option<u64>) {
    command.env("REDLOCK_NAME", name);
    match fence {
        Some(fence) => command.env("REDLOCK_FENCE", fence.to_string()),
        // An outer lock's number would be taken for this one's.
        None => command.env_remove("REDLOCK_FENCE"),
    };
}

/// Becomes the command; otherwise says why not.
fn exec(command: &mut Command) -> u8 {
    said();
    let error = command.exec();
    let program = command.get_program().to_string_lossy();
    say(format_args!("cannot run {program:?}: {error}"));
    match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    }
}

/// Says why there is no lock, and with which code that ends.
fn failed(error: &Error) -> End {
    say(format_args!("{error}"));
    End::Code(match error {
        Error::Config(_) => USAGE,
        Error::Random(_) => NO_PROCESS,
        _ => UNAVAILABLE,
    })
}

/// What the library logs, and what we do.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        say(*record.args());
    }

    fn flush(&self) {}
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => LevelFilter::Info,
        _ => LevelFilter::Trace,
    };
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}
