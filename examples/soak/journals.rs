//! The records that the processes write, as far as they were read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::check::{Findings, Thread};
use crate::now;
use crate::support::TempDir;

/// A thread's journal.
struct Journal {
    thread: Thread,
    read: u64,
    heard: Duration,
}

pub(crate) struct Journals {
    dir: TempDir,
    all: BTreeMap<String, Journal>,
    pub(crate) findings: Findings,
}

impl Journals {
    pub(crate) fn new() -> Journals {
        Journals {
            dir: TempDir::new(),
            all: BTreeMap::new(),
            findings: Findings::default(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Reads what is new.
    pub(crate) fn read(&mut self) {
        for entry in std::fs::read_dir(self.dir.path()).expect("a directory of ours") {
            let name = entry.expect("a journal").file_name();
            let name = name.into_string().expect("a name of ours");
            let mut file = File::open(self.dir.path().join(&name)).expect("a journal");
            let journal = self.all.entry(name).or_insert_with_key(|name| Journal {
                thread: Thread::new(name.clone()),
                read: 0,
                heard: now(),
            });
            let mut text = String::new();
            file.seek(SeekFrom::Start(journal.read))
                .and_then(|_| file.read_to_string(&mut text))
                .expect("a journal of text");
            if !text.is_empty() {
                journal.heard = now();
                journal.read += text.len() as u64;
                journal.thread.feed(&text, &mut self.findings);
            }
        }
    }

    /// The threads of a process that have written nothing for this time.
    pub(crate) fn silent(&self, process: &str, time: Duration) -> Vec<String> {
        let of = self.all.iter().filter(|(thread, journal)| {
            thread.starts_with(process) && now() > journal.heard + time
        });
        of.map(|(thread, _)| thread.clone()).collect()
    }

    /// What a process had allocated since this was called last.
    pub(crate) fn take_live(&mut self, process: &str) -> Vec<[u64; 2]> {
        let all = self.findings.live.iter_mut();
        let of = all.filter(|(thread, _)| thread.starts_with(process));
        of.flat_map(|(_, live)| std::mem::take(live)).collect()
    }

    pub(crate) fn acquired(&self) -> usize {
        self.findings.taken.values().map(Vec::len).sum()
    }

    /// What they say together, when all have ended.
    pub(crate) fn close(&mut self) -> Findings {
        self.read();
        for journal in self.all.values_mut() {
            journal.thread.close(&mut self.findings);
        }
        std::mem::take(&mut self.findings)
    }

    /// They are not removed.
    pub(crate) fn keep(self) {
        std::mem::forget(self.dir);
    }
}
