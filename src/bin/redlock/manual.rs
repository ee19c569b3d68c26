//! The manual page and the completions: from the same source as --help.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::print::print;
use crate::{CODES, End, NO_PROCESS, report};

const EXAMPLES: &str = include_str!("examples.roff");
const NOTES: &str = include_str!("notes.roff");

/// Prints the text to standard output.
fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> End {
    let mut text = Vec::new();
    match write(&mut text) {
        Ok(()) => print(&text, 0),
        Err(error) => {
            report(format_args!("{error}"));
            End::Code(NO_PROCESS)
        }
    }
}

pub(crate) fn completions(shell: Shell) -> End {
    written(|text| {
        clap_complete::generate(shell, &mut Arguments::command(), "redlock", text);
        Ok(())
    })
}

pub(crate) fn page() -> End {
    written(|text| {
        let mut command = Arguments::command();
        command.build();
        let page = Man::new(command.clone());
        page.render_title(text)?;
        page.render_name_section(text)?;
        let commands = || {
            command
                .get_subcommands()
                .filter(|one| one.get_arguments().count() > 3)
        };
        writeln!(text, ".SH SYNOPSIS\n.nf")?;
        for one in commands() {
            let usage = one.clone().render_usage().to_string();
            writeln!(text, "{}", escaped(usage.trim_start_matches("Usage: ")))?;
        }
        writeln!(text, "redlock man\nredlock completions SHELL\n.fi")?;
        text.write_all(EXAMPLES.as_bytes())?;
        for one in commands() {
            let mut options = Vec::new();
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            writeln!(
                text,
                ".SH \"REDLOCK {}\"\n{about}.",
                one.get_name().to_uppercase()
            )?;
            Man::new(one.clone()).render_options_section(&mut options)?;
            let options = String::from_utf8_lossy(&options)
                .replace(".SH OPTIONS", ".SS Options")
                // The form of --help. Otherwise it looks like one argument.
                .replace(
                    "<\\fINAME COMMAND ARG\\fR>",
                    "<\\fINAME\\fR> [\\fICOMMAND\\fR] [\\fIARG\\fR]...",
                );
            text.write_all(options.as_bytes())?;
        }
        writeln!(text, ".SH \"EXIT STATUS\"")?;
        for (code, when) in CODES {
            writeln!(text, ".TP\n{}\n{}", escaped(code), escaped(when))?;
        }
        text.write_all(NOTES.as_bytes())
    })
}

/// Escapes the text, so that roff takes it literally.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
}
