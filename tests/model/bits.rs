//! Small sets and small numbers in one word each. Worlds have millions of states, so each byte counts.

/// A set of attempts, waiters or nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Bits(pub(crate) u8);

impl Bits {
    pub(crate) fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }
    pub(crate) fn add(&mut self, at: usize) {
        self.0 |= 1 << at;
    }
    pub(crate) fn remove(&mut self, at: usize) {
        self.0 &= !(1 << at);
    }
    /// Removes it, and says whether it was there.
    pub(crate) fn take(&mut self, at: usize) -> bool {
        let had = self.has(at);
        self.remove(at);
        had
    }
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    pub(crate) fn first(count: usize) -> Bits {
        (0..count).collect()
    }
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |at| self.has(*at))
    }
    /// Of two clients with `half` attempts each: with their names exchanged.
    pub(crate) fn halves_exchanged(self, half: usize) -> Bits {
        let mask = Bits::first(half).0;
        Bits((self.0 & mask) << half | self.0 >> half & mask)
    }
    /// All sets of at least `least` of the first `count`.
    pub(crate) fn choices(count: usize, least: usize) -> impl Iterator<Item = Bits> {
        (1..=Bits::first(count).0)
            .map(Bits)
            .filter(move |set| set.len() >= least)
    }
}

impl FromIterator<usize> for Bits {
    fn from_iter<I: IntoIterator<Item = usize>>(members: I) -> Bits {
        let mut set = Bits::default();
        members.into_iter().for_each(|at| set.add(at));
        set
    }
}

/// A number from 0 to 3 for each of 16: how far a message has got.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Pairs(u32);

impl Pairs {
    pub(crate) fn get(self, at: usize) -> u8 {
        (self.0 >> (2 * at) & 3) as u8
    }
    pub(crate) fn put(&mut self, at: usize, value: u8) {
        self.0 = self.0 & !(3 << (2 * at)) | u32::from(value) << (2 * at);
    }
    pub(crate) fn halves_exchanged(self, half: usize) -> Pairs {
        let mask = (1 << (2 * half)) - 1;
        Pairs((self.0 & mask) << (2 * half) | self.0 >> (2 * half) & mask)
    }
}

/// A, B, C …
pub(crate) fn letter(at: usize) -> char {
    (b'A' + at as u8) as char
}
