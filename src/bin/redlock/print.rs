//! Results, on standard output.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};

use crate::{End, NO_PROCESS, report};

/// Prints the text, and ends with this code. A reader that has gone (`| head`) is no error.
pub(crate) fn print(text: &[u8], code: u8) -> End {
    let mut out = stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            report(format_args!("{error}"));
            End::Code(NO_PROCESS)
        }
        _ => End::Code(code),
    }
}

pub(crate) fn print_json(value: impl Display, code: u8) -> End {
    print(format!("{value}\n").as_bytes(), code)
}
