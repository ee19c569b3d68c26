//! The table: what the checker found, contender by contender and scenario by scenario.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::check::{Kind, Verdict, judge};
use crate::figures::{self, Figures, figures};
use crate::history::{Event, scenarios};

/// What was found in one contender's history.
pub struct Column {
    pub contender: String,
    pub library: String,
    pub nodes: u64,
    pub verdicts: BTreeMap<String, Verdict>,
    pub figures: Figures,
}

pub fn column(history: &[Event]) -> Column {
    let mut column = Column {
        contender: String::new(),
        library: String::new(),
        nodes: 0,
        verdicts: BTreeMap::new(),
        figures: figures(history),
    };
    for part in scenarios(history) {
        let head = &part[0];
        column.contender = head.get("contender").to_owned();
        column.nodes = head.number("nodes").unwrap_or(0);
        if let Some(ready) = part.iter().find(|event| event.what == "ready") {
            column.library = format!("{} {}", ready.get("library"), ready.get("version"));
        }
        column
            .verdicts
            .insert(head.get("name").to_owned(), judge(part));
    }
    column
}

/// A short word for each kind of finding, the worst first.
const WORDS: [(Kind, &str); 12] = [
    (Kind::Overlap, "two holders"),
    (Kind::GrantedLate, "granted after its ttl"),
    (Kind::LostUpdateFenced, "update lost in spite of the token"),
    (Kind::LostUpdate, "update lost"),
    (Kind::Vouched, "vouched for a lost lock"),
    (Kind::Hung, "no answer in 12 s"),
    (Kind::Died, "process ends"),
    (Kind::NotGranted, "free lock refused"),
    (Kind::Late, "waits too long"),
    (Kind::LostEarly, "said lost too early"),
    (Kind::KeyForever, "keys without end"),
    (Kind::KeyLeft, "keys left"),
];

pub fn cell(verdict: &Verdict) -> String {
    if let Some(why) = &verdict.skipped {
        return format!("not run: {why}");
    }
    let mut words = Vec::new();
    for (kind, word) in WORDS {
        let found: Vec<_> = verdict
            .findings
            .iter()
            .filter(|finding| finding.kind == kind)
            .collect();
        let Some(size) = found.iter().map(|finding| finding.size).max() else {
            continue;
        };
        // With a token the store refuses what would have been lost.
        if kind == Kind::LostUpdate && verdict.refused > 0 {
            words.push("late write refused by its token".to_owned());
            continue;
        }
        let seconds = size as f64 / 1e6;
        words.push(match kind {
            Kind::Overlap if size > 1_000_000_000 => format!("**{word}** (no end)"),
            Kind::Overlap => format!("**{word}** ({seconds:.1} s)"),
            Kind::GrantedLate | Kind::Late => format!("{word} ({seconds:.1} s)"),
            Kind::KeyForever | Kind::KeyLeft | Kind::NotGranted => {
                format!("{word}: {}", found.len())
            }
            _ => word.to_owned(),
        });
    }
    let (granted, asked) = verdict.granted;
    let longest = verdict.longest as f64 / 1e3;
    let facts = format!("{granted} of {asked}, {longest:.0} ms");
    match words.is_empty() {
        true => format!("ok; {facts}"),
        false => format!("{}; {facts}", words.join(", ")),
    }
}

/// The columns of the summary: findings that belong together.
const GROUPS: [(&str, &[Kind]); 7] = [
    ("two holders", &[Kind::Overlap, Kind::Vouched]),
    ("granted after its ttl", &[Kind::GrantedLate]),
    ("no answer in 12 s", &[Kind::Hung, Kind::Died]),
    ("free lock refused", &[Kind::NotGranted]),
    ("waits 2 s too long", &[Kind::Late]),
    ("keys left", &[Kind::KeyLeft, Kind::KeyForever]),
    ("said lost too early", &[Kind::LostEarly]),
];

/// A row for each contender: in which scenarios what was found.
pub fn summary(columns: &[Column]) -> String {
    let heads: Vec<&str> = GROUPS.iter().map(|(head, _)| *head).collect();
    let rule = "| --- ".repeat(heads.len() + 3);
    let mut text = format!(
        "| contender | nodes | {} | late write |\n{rule}|\n",
        heads.join(" | ")
    );
    for column in columns {
        let _ = write!(
            text,
            "| {} | {} ",
            column.library_and_variant(),
            column.nodes
        );
        for (_, kinds) in GROUPS {
            let _ = write!(text, "| {} ", column.scenarios_with(kinds));
        }
        let _ = writeln!(text, "| {} |", column.late_write());
    }
    text
}

/// How long what takes.
pub fn times(columns: &[Column]) -> String {
    figures::markdown(
        columns
            .iter()
            .map(|column| (column.library_and_variant(), &column.figures)),
    )
}

impl Column {
    fn library_and_variant(&self) -> String {
        match self.contender.strip_prefix("ours-") {
            Some(variant) => format!("{} ({variant})", self.library),
            None => self.library.clone(),
        }
    }

    /// In the order of the schedule.
    fn scenarios_with(&self, kinds: &[Kind]) -> String {
        let found = |name: &str| {
            let verdict = self.verdicts.get(name);
            verdict.is_some_and(|verdict| kinds.iter().any(|kind| verdict.has(*kind)))
        };
        let names = crate::schedule::ALL.iter().map(|scenario| scenario.name);
        let names: Vec<&str> = names.filter(|name| found(name)).collect();
        match names.is_empty() {
            true => "–".to_owned(),
            false => names.join(", "),
        }
    }

    /// What became of the write of a holder that was stopped between its check and its write.
    fn late_write(&self) -> &'static str {
        match self.verdicts.get("stopped-after-check") {
            Some(verdict) if verdict.skipped.is_some() => "not run",
            Some(verdict) if verdict.refused > 0 => "refused by its token",
            Some(verdict) if verdict.has(Kind::LostUpdate) => "overwrites another's",
            Some(_) => "none",
            None => "not run",
        }
    }
}

/// A block for each scenario, a row for each contender.
pub fn markdown(columns: &[Column]) -> String {
    let mut text = String::new();
    for scenario in &crate::schedule::ALL {
        let _ = writeln!(
            text,
            "### {}\n\n{}.\n",
            scenario.name,
            capital(scenario.what)
        );
        let _ = writeln!(
            text,
            "| contender | found; granted of asked, longest call |\n| --- | --- |"
        );
        for column in columns {
            if let Some(verdict) = column.verdicts.get(scenario.name) {
                let _ = writeln!(
                    text,
                    "| {} | {} |",
                    column.library_and_variant(),
                    cell(verdict)
                );
            }
        }
        text.push('\n');
    }
    text
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

/// All findings, and what the library said when it could not.
pub fn details(column: &Column) -> String {
    let mut text = String::new();
    for (name, verdict) in &column.verdicts {
        let _ = writeln!(text, "{}: {name}: {}", column.contender, cell(verdict));
        for finding in &verdict.findings {
            let _ = writeln!(text, "    {finding}");
        }
        for said in &verdict.said {
            let _ = writeln!(text, "    said: {said}");
        }
    }
    text
}
