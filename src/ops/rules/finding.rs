//! Findings, as they are reported.

use std::cmp::Reverse;
use std::fmt;

use crate::ops::rules::codes::Code;

/// How bad a [`Finding`] is. A worse severity is greater: `severity() >= Severity::Warning` selects warnings and
/// faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// Locks work and can be relied on now, but are likely to fail soon, or are less reliable than they should be.
    Warning,
    /// Locks cannot be relied on, or cannot be acquired.
    Fault,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Fault => "fault",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// A flaw of the nodes. `Display` describes it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub(super) severity: Severity,
    pub(super) node: Option<usize>,
    pub(super) code: Code,
    pub(super) text: String,
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// The index of the node that it concerns, among [`Report::nodes`](crate::Report::nodes). `None`: it concerns several
    /// nodes, or all.
    pub fn node(&self) -> Option<usize> {
        self.node
    }

    /// The subject of the finding, as one word for programs: the codes are in the table of
    /// [`Redlock::check`](crate::Redlock::check).
    pub fn code(&self) -> &'static str {
        self.code.as_str()
    }
}

impl Finding {
    /// The worst first, then nodes in their order. Codes do not count.
    pub(crate) fn order(&self) -> (Reverse<Severity>, Option<usize>) {
        (Reverse(self.severity), self.node)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A finding's severity, code and text.
pub(crate) type Remark = (Severity, Code, String);
