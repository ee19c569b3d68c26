//! A set of nodes.

/// More nodes than any deployment has; votes are kept in the bits of a `u64`.
pub(crate) const MAX_NODES: usize = 64;

/// A set of nodes, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u64);

impl NodeSet {
    pub(crate) const EMPTY: NodeSet = NodeSet(0);
    pub(crate) const ALL: NodeSet = NodeSet(u64::MAX);

    /// The nodes with the first `count` indices.
    pub(crate) fn first(count: usize) -> NodeSet {
        match count {
            0..MAX_NODES => NodeSet(bit(count) - 1),
            _ => NodeSet::ALL,
        }
    }

    pub(crate) fn has(self, node: usize) -> bool {
        self.0 & bit(node) != 0
    }

    pub(crate) fn add(&mut self, node: usize) {
        self.0 |= bit(node);
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !bit(node);
    }

    pub(crate) fn and(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }

    pub(crate) fn or(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    pub(crate) fn without(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            next
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        nodes.into_iter().for_each(|node| set.add(node));
        set
    }
}

fn bit(node: usize) -> u64 {
    1 << (node % MAX_NODES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_added_and_nothing_else() {
        for count in 0..=MAX_NODES {
            let set = NodeSet::first(count);
            assert_eq!(set.len(), count);
            assert_eq!(
                set.iter().collect::<Vec<_>>(),
                (0..count).collect::<Vec<_>>()
            );
            assert_eq!(set.without(set), NodeSet::EMPTY);
        }
        let mut set: NodeSet = [0, 7, 63].into_iter().collect();
        set.remove(7);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63]);
        assert_eq!(set.and(NodeSet::first(9)).or(NodeSet::EMPTY).len(), 1);
    }
}
