//! `redlock doctor`: whether the nodes are fit for locks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use redlock_sync::command::{for_ttls_up_to, printable, report_json};
use redlock_sync::{Finding, NodeFacts, Redlock, Report, Severity};

use crate::arguments::Doctor;
use crate::print::{print, print_json};
use crate::tables::{shortened_line, table};
use crate::target::Target;
use crate::{End, FOUND, NO_PROCESS, failed, report};

pub(crate) fn doctor(arguments: &Doctor, redlock: &Redlock) -> End {
    let probe = match &arguments.probe {
        Some(name) => name.as_encoded_bytes().to_vec(),
        None => match getrandom::u32() {
            Ok(random) => format!("redlock-doctor:{random:08x}").into_bytes(),
            Err(error) => {
                report(format_args!("no random bytes: {error}"));
                return End::Code(NO_PROCESS);
            }
        },
    };
    let probe = OsStr::from_bytes(&probe);
    let target = Target::new(redlock.clone(), probe, &arguments.kind());
    let report = match target.and_then(|target| target.check()) {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    let report = match arguments.max_ttl {
        Some(max_ttl) => for_ttls_up_to(report, max_ttl.0),
        None => report,
    };
    let warned = || {
        let mut findings = report.findings();
        findings.any(|finding| finding.severity() == Severity::Warning)
    };
    let code = match report.is_fit() && !(arguments.strict && warned()) {
        true => 0,
        false => FOUND,
    };
    match arguments.json {
        true => print_json(report_json(&report, text_of), code),
        false => print(to_text(&report).as_bytes(), code),
    }
}

fn to_text(report: &Report) -> String {
    let head = [
        "NODE",
        "ADDRESS",
        "VERSION",
        "ROLE",
        "UPTIME",
        "ROUND TRIP",
        "CLOCK",
    ];
    let unknown = || "?".to_owned();
    let row = |(node, facts): (usize, &NodeFacts)| {
        let text = |value: Option<&str>| value.map_or_else(unknown, printable);
        let uptime = facts.uptime().map(|time| format!("{time:?}"));
        let round_trip = facts.round_trip().map(|time| format!("{time:.1?}"));
        let clock = facts
            .clock_offset_ms()
            .map(|offset| format!("{offset:+} ms"));
        [
            node.to_string(),
            printable(facts.address()),
            text(facts.version()),
            text(facts.role()),
            uptime.unwrap_or_else(unknown),
            round_trip.unwrap_or_else(unknown),
            clock.unwrap_or_else(unknown),
        ]
    };
    let rows = report.nodes().enumerate().map(row);
    let rows: Vec<_> = [head.map(str::to_owned)].into_iter().chain(rows).collect();
    let mut text = table(&rows);
    text.push('\n');
    for finding in report.findings() {
        let (severity, code) = (finding.severity(), finding.code());
        let what = shortened_line(&text_of(finding));
        text.push_str(&format!("{severity}: {code}: {what}\n"));
    }
    let has_fault = report
        .findings()
        .any(|finding| finding.severity() == Severity::Fault);
    text.push_str(match (report.is_fit(), has_fault) {
        (true, _) => "The nodes are fit for locks.\n",
        (false, true) => "The nodes are not fit for locks.\n",
        (false, false) => {
            "The nodes could not be checked: give --probe NAME, the name of a lock that this user may take.\n"
        }
    });
    text
}

/// The text of a finding, with the names that options have in a shell.
fn text_of(finding: &Finding) -> String {
    let text = finding.to_string();
    printable(&text.replace("Options::restart_guard", "--restart-guard"))
}
