//! Lines to standard error. A thread writes them, so that a reader that does not read delays nothing.

use std::fmt;
use std::io::{Write, stderr};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use nix::sys::signal::{SigSet, Signal};
use redlock_sync::command::printable;

use crate::tables::shortened_line;

/// The maximum of lines that wait to be written. More are dropped.
const WAITING: usize = 4096;
/// How long the end waits for them.
const WITHIN: Duration = Duration::from_secs(1);

enum Line {
    Text(String),
    /// All lines before it are written.
    Flush(SyncSender<()>),
}

/// `None`: no thread could be started.
static WRITER: OnceLock<Option<SyncSender<Line>>> = OnceLock::new();

/// Writes one line, in one write. Texts of servers may be in it, so it is escaped for terminals. A failure is ignored:
/// there is no other place to report it.
pub(crate) fn report(line: fmt::Arguments<'_>) {
    let line = shortened_line(&printable(&line.to_string()));
    put(format!("redlock: {line}\n"));
}

/// Shows the progress, on a terminal; the next output overwrites it.
pub(crate) fn progress(text: &str) {
    put(format!("\r{text:<60}\r"));
}

/// Asks a question, on a terminal. The question is written when this returns, unless the terminal takes longer than a
/// second.
pub(crate) fn question(text: &str) {
    put(text.into());
    flush();
}

fn put(text: String) {
    match WRITER.get_or_init(writer) {
        Some(writer) => {
            let _ = writer.try_send(Line::Text(text));
        }
        None => write(&text),
    }
}

/// Waits until all is written, or for a second.
pub(crate) fn flush() {
    let (done, written) = sync_channel(1);
    if let Some(Some(writer)) = WRITER.get()
        && writer.try_send(Line::Flush(done)).is_ok()
    {
        let _ = written.recv_timeout(WITHIN);
    }
}

fn writer() -> Option<SyncSender<Line>> {
    let (writer, lines) = sync_channel(WAITING);
    let write = move || {
        // A terminal that stops writers in the background would stop the whole process.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        let _ = blocked.thread_block();
        for line in lines {
            match line {
                Line::Text(text) => write(&text),
                Line::Flush(done) => {
                    let _ = done.try_send(());
                }
            }
        }
    };
    let thread = thread::Builder::new().name("redlock-output".into());
    thread.spawn(write).is_ok().then_some(writer)
}

fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Writes the log lines of the library and of this program.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        report(*record.args());
    }

    fn flush(&self) {}
}

/// Logs what the library reports, by the number of `-v`.
pub(crate) fn log(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}
