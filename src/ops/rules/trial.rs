//! Findings about a node that cannot be asked, or refuses what locks need.

use crate::errors::cause::{Cause, PERMIT_SCRIPTS};
use crate::errors::server_error::Meaning;
use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::{Facts, NodeReport, TrialLock};
use crate::ops::rules::finding::{Finding, Severity};
use crate::ops::rules::findings::Findings;
use crate::protocol::commands::companions::Companion;

const START: &str = "start it, or look at its address and the network";

/// The code of a cause, and what to do about it.
pub(super) fn advice(cause: &Cause) -> (Code, &'static str) {
    let meaning = cause.meaning();
    let code = match meaning {
        _ if meaning.concerns_login() => Code::Auth,
        _ if meaning.concerns_rights() => Code::Rights,
        _ => Code::Reach,
    };
    let what = match cause.answered() {
        Cause::Refused(_)
        | Cause::OtherSlots(_)
        | Cause::Redirected(_)
        | Cause::LoggedOut(_)
        | Cause::Demoted(_) => meaning.advice().unwrap_or("look at its log"),
        Cause::NeedsScripts(..) => PERMIT_SCRIPTS,
        Cause::NoCredentials(_) => return (Code::Auth, "the program's closure must give them"),
        Cause::NoAnswer(..) | Cause::Unanswered(..) => {
            "look at its load and the network: it may stand still"
        }
        Cause::Garbage(_) | Cause::NotRedis(_) => {
            "look at its address: is a Redis server there, and without TLS?"
        }
        Cause::OtherServer => "look at its address",
        Cause::Announced(announced) => match announced.cause {
            Cause::Connect(_) | Cause::NotConnected(..) | Cause::Mute(_) => START,
            _ => "look at its address",
        },
        Cause::Tls(_) => "look at its certificate, and at what this program trusts and shows",
        Cause::NoThread(_) | Cause::NoSocket(_) => "raise the limits of this process",
        Cause::NoMaster(..) => "look at the servers that are asked for it",
        _ => START,
    };
    (code, what)
}

impl<'a> Findings<'a> {
    /// Whether another finding explains a failed probe, so that the probe has nothing to add.
    pub(super) fn is_explained(&self, node: usize) -> bool {
        let elsewhere = self.nodes.get(node).and_then(Facts::role_elsewhere);
        let twin = |finding: &Finding| {
            finding.code == Code::SameServer
                && self.run_id(finding.node) == self.run_id(Some(self.number(node)))
        };
        elsewhere.is_some() || self.all.iter().any(twin)
    }

    pub(super) fn run_id(&self, number: Option<usize>) -> Option<&'a str> {
        let (_, info) = self
            .infos()
            .find(|(at, _)| Some(self.number(*at)) == number)?;
        info.get("run_id")
    }

    pub(super) fn probe(&mut self) {
        for (node, node_report) in self.node_reports() {
            match &node_report.probe {
                _ if self.is_explained(node) => {}
                TrialLock::Passed => {}
                TrialLock::Held => {
                    let text = "another holder has the lock that was tried: try another name";
                    self.add(Severity::Note, node, Code::Probe, text.into());
                }
                TrialLock::Refused(_, cause) if cause.concerns_name() => {
                    let text = format!(
                        "this user may not use the name \"{}\" ({}), so no lock was tried: choose a name \
                         that its key patterns permit",
                        self.rules.probe.escape_ascii(),
                        cause.without_advice()
                    );
                    self.add(Severity::Warning, node, Code::Probe, text);
                }
                TrialLock::Refused(what, cause) => {
                    let (_, advice) = advice(cause);
                    let text = format!(
                        "{what} is refused ({}), so no lock can be had from it: {advice}",
                        cause.without_advice()
                    );
                    self.add(self.no_vote, node, Code::Probe, text);
                }
                TrialLock::Gone(what) => {
                    let text = format!(
                        "{what} did not find what SET had just written, so no lock can be had from it: look at its log"
                    );
                    self.add(self.no_vote, node, Code::Probe, text);
                }
            }
        }
    }

    pub(super) fn keys_beside(&mut self, node: usize, refused: &Cause) {
        let probe = self.rules.probe;
        let beside = Companion::Queue.key(probe);
        let [open, name, ..] = beside;
        let prefix = match self.rules.prefix {
            "" => name.split_inclusive(|byte| *byte == b':').next(),
            prefix => Some(prefix.as_bytes()),
        };
        let prefix = prefix.filter(|prefix| prefix.len() < name.len());
        let advice = match refused {
            Cause::Refused(text) if Meaning::of(text) == Meaning::OtherSlot => {
                "give the name a {tag}, as in {shop}:a, or no }".to_owned()
            }
            _ => format!(
                "permit them, with the key pattern ~{}{}*",
                open.escape_ascii(),
                prefix.unwrap_or_default().escape_ascii(),
            ),
        };
        let text = format!(
            "the keys beside a lock, such as \"{}\", are refused ({}), so releases notify no waiter there, and it counts no \
             fencing tokens: {advice}",
            beside.concat().escape_ascii(),
            refused.without_advice(),
        );
        self.add(Severity::Note, node, Code::Rights, text);
    }

    pub(super) fn witness(&mut self, node: usize, refused: &Cause) {
        let text = match (refused, self.rules.prefix) {
            (Cause::NoWitness(text), _) if Meaning::of(text) == Meaning::WrongType => {
                refused.to_string()
            }
            (_, prefix) => format!(
                "{refused}: permit it, with the key pattern ~{}*",
                if prefix.is_empty() {
                    "redlock:"
                } else {
                    prefix
                }
            ),
        };
        self.add(self.no_vote, node, Code::Rights, text);
    }

    /// Warns if the guard that is on by default lacks something. It does without that, unless the program asked for a
    /// guard.
    pub(super) fn default_guard(&mut self, node: usize, node_report: &NodeReport) {
        let is_on = self.has_default_guard(node) && self.rules.guard.is_none();
        let refused = node_report
            .info
            .as_ref()
            .err()
            .or(node_report.witness.as_ref());
        if let Some(refused) = refused.filter(|_| is_on) {
            let text = format!(
                "a failover may give a lock to two holders: the restart guard needs INFO and the key redlock:witness, and one \
                 is refused ({}): permit both",
                refused.without_advice()
            );
            self.add(Severity::Warning, node, Code::Guard, text);
        }
    }
}
