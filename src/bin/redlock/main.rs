//! `redlock`: flock(1) for a fleet. Runs commands under distributed locks.
//!
//! To be read in this order: main, arguments (with time and checked_arguments), exit, nodes (with files and explain),
//! run_plan (with signals), run (whose helpers are acquire, busy, label, once_per, child, exec, processes, terminal,
//! end_lock, and metrics with series), target, throttle, last, tables, output, print, inspect, release, list, doctor, manual.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use signal_hook::low_level::emulate_default_handler;

use arguments::Arguments;
use exec::{environment, exec};
use exit::*;
use output::{flush, report};

#[cfg(target_os = "linux")]
mod acquire;
mod arguments;
mod busy;
mod checked_arguments;
#[cfg(target_os = "linux")]
mod child;
mod doctor;
#[cfg(target_os = "linux")]
mod end_lock;
mod exec;
mod exit;
mod explain;
mod files;
mod inspect;
mod label;
mod last;
mod list;
mod manual;
#[cfg(target_os = "linux")]
mod metrics;
mod nodes;
#[cfg(target_os = "linux")]
mod once_per;
mod output;
mod print;
#[cfg(target_os = "linux")]
mod processes;
mod release;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod run_plan;
#[cfg(target_os = "linux")]
mod series;
#[cfg(target_os = "linux")]
mod signals;
mod tables;
mod target;
#[cfg(target_os = "linux")]
mod terminal;
mod throttle;
mod time;

fn main() -> ExitCode {
    let end = start();
    flush();
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
            report(format_args!("{error}"));
            End::Code(USAGE)
        }),
        Err(error) => {
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            let error = explain::explained(error, &words);
            let _ = error.print();
            End::Code(if error.use_stderr() { USAGE } else { 0 })
        }
    }
}

fn dispatch(command: &arguments::Subcommands) -> Result<End, String> {
    match command {
        arguments::Subcommands::Run(args) => {
            let job = args.job()?;
            output::log(args.nodes.verbose);
            let (redlock, options) = nodes::open(&args.nodes, &args.votes)?;
            let times = [("--ttl", job.ttl), ("--at-least", job.at_least)];
            nodes::warn_of_long(&redlock, &times);
            Ok(run(&job, &redlock, &options, args.metrics_file.as_deref()))
        }
        arguments::Subcommands::Throttle(args) => {
            let words = args.words()?;
            output::log(args.nodes.verbose);
            let (redlock, _) = nodes::open(&args.nodes, &args.votes)?;
            nodes::warn_of_long(&redlock, &[("--every", args.every.0)]);
            Ok(throttle::throttle(args, words, &redlock))
        }
        arguments::Subcommands::Inspect(args) => {
            output::log(args.nodes.verbose);
            Ok(inspect::inspect(args, &nodes::look(&args.nodes)?))
        }
        arguments::Subcommands::Release(args) => {
            let answer = release::ReleaseAnswer::expected(args.yes)?;
            output::log(args.nodes.verbose);
            let (redlock, options) = nodes::open(&args.nodes, &nodes::ALL)?;
            // Keeps the order of arrival where there is one, and makes no difference elsewhere.
            let redlock = redlock.with_options(options.fair(true));
            let redlock = redlock.map_err(|error| error.to_string())?;
            Ok(release::release(args, &answer, &redlock))
        }
        arguments::Subcommands::Last(args) => {
            output::log(args.nodes.verbose);
            Ok(last::last(args, &nodes::look(&args.nodes)?))
        }
        arguments::Subcommands::List(args) => {
            output::log(args.nodes.verbose);
            Ok(list::list(args, &nodes::look(&args.nodes)?))
        }
        arguments::Subcommands::Doctor(args) => {
            output::log(args.nodes.verbose);
            let (redlock, _) = nodes::open(&args.nodes, &args.votes)?;
            Ok(doctor::doctor(args, &redlock))
        }
        arguments::Subcommands::Man => Ok(manual::page()),
        arguments::Subcommands::Completions { shell } => Ok(manual::completions(*shell)),
    }
}

#[cfg(target_os = "linux")]
use run::run;

#[cfg(not(target_os = "linux"))]
fn run(
    _: &checked_arguments::Job,
    _: &redlock_sync::Redlock,
    _: &redlock_sync::Options,
    _: Option<&std::path::Path>,
) -> End {
    report(format_args!(
        "run needs Linux: nowhere else can COMMAND be ended in time for certain"
    ));
    End::Code(UNAVAILABLE)
}
