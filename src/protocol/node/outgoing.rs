//! Commands that are being sent: to one node, and to several together.

use std::time::Instant;

use crate::values::node_set::NodeSet;

/// The commands sent to several nodes together.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// Each node, and where its bytes end.
    pub(crate) parts: Vec<(usize, usize)>,
    /// The slot of each operation among them, and the nodes that it is sent to.
    pub(crate) operations: Vec<(usize, NodeSet)>,
}

impl Outgoing {
    /// Each node, in the order of writing, with its bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut start = 0;
        self.parts.iter().map(move |(node, end)| {
            let bytes = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            (*node, bytes)
        })
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.operations.clear();
    }
}

/// The commands being sent to a node.
pub(crate) struct Output<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    /// Where in `bytes` they begin.
    pub(crate) start: usize,
    pub(crate) now: Instant,
}
