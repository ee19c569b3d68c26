//! The keys beside a lock's: the queue, the reservation, the fencing counter, the marks.
//!
//! | resource | its queue |
//! | --- | --- |
//! | without a `}`: `shop:17`, `a{b` | `{shop:17}:redlock:w`, `{a{b}:redlock:w` |
//! | with one: `{u1}:x`, `a{b}c`, `a}b` | `{u1}:x::redlock:w`, `a{b}c::redlock:w`, `a}b::redlock:w` |
//!
//! A Redis Cluster stores keys with the same *tag* on the same server, and a script may use no others. The tag is the
//! text between the first `{` and the first `}` behind it, if there is any, else the whole key. So these keys are where
//! the lock is, except for names with a `}` and no tag.
//!
//! No two resources share such a key: `:redlock:` follows a brace in the first form, and a colon in the second. No lock
//! has such a name itself: the release of another lock would take members out of its set (rule R53).

/// The witness's key in the database of the locks, behind their prefix: a user with rights for that prefix may have it.
/// The key is never deleted. Several witnesses show as much as one.
pub(crate) const WITNESS: &[u8] = b"redlock:witness";

/// The purpose of a key beside a lock's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Companion {
    /// A sorted set of the processes that wait.
    Queue,
    /// The waiting process that the lock is reserved for.
    Turn,
    /// The counter of fencing tokens.
    Counter,
    /// The writer that has waited longest.
    Mark,
    /// The mark that the work of the lock is done for a time.
    Done,
}

impl Companion {
    pub(crate) const ALL: [Companion; 5] = [
        Companion::Queue,
        Companion::Turn,
        Companion::Counter,
        Companion::Mark,
        Companion::Done,
    ];

    /// The end of the companion's key: behind a name in braces, and behind another name and a colon.
    const fn ending(self) -> &'static [u8] {
        match self {
            Companion::Queue => b":redlock:w",
            Companion::Turn => b":redlock:wt",
            Companion::Counter => b":redlock:fence",
            Companion::Mark => b":redlock:ww",
            Companion::Done => b":redlock:done",
        }
    }

    /// The parts of the companion's key.
    pub(crate) fn key(self, resource: &[u8]) -> [&[u8]; 4] {
        match resource.contains(&b'}') {
            false => [b"{", resource, b"}", self.ending()],
            true => [b"", resource, b":", self.ending()],
        }
    }

    /// Whether these bytes may be a key of this companion.
    #[inline]
    pub(crate) fn is_key(self, key: &[u8]) -> bool {
        match key.strip_suffix(self.ending()) {
            Some([b'{', name @ .., b'}']) if !name.contains(&b'}') => true,
            Some([name @ .., b':']) => name.contains(&b'}'),
            _ => false,
        }
    }
}

/// Whether a Redis Cluster stores the keys beside this lock in another slot.
pub(crate) fn are_in_another_slot(resource: &[u8]) -> bool {
    resource.is_empty() || resource.contains(&b'}') && tag(resource).is_none()
}

pub(crate) fn tag(key: &[u8]) -> Option<&[u8]> {
    let (_, behind) = key.split_at_checked(key.iter().position(|byte| *byte == b'{')? + 1)?;
    let end = behind.iter().position(|byte| *byte == b'}')?;
    behind.get(..end).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// All names of up to five of these bytes.
    fn names() -> Vec<Vec<u8>> {
        let mut names = vec![Vec::new()];
        let mut last = names.clone();
        for _ in 0..5 {
            let longer = |name: &Vec<u8>| b"{}:wa".map(|byte| [&name[..], &[byte]].concat());
            last = last.iter().flat_map(longer).collect();
            names.extend_from_slice(&last);
        }
        names
    }

    #[test]
    fn the_keys_beside_a_lock_are_named_after_it() {
        for (name, queue) in [
            ("a", "{a}:redlock:w"),
            ("a{b", "{a{b}:redlock:w"),
            ("shop:17", "{shop:17}:redlock:w"),
            ("{u1}:x", "{u1}:x::redlock:w"),
            ("a{b}c", "a{b}c::redlock:w"),
            ("}{x}", "}{x}::redlock:w"),
            ("a}b", "a}b::redlock:w"),
            ("a{}b", "a{}b::redlock:w"),
        ] {
            assert_eq!(
                Companion::Queue.key(name.as_bytes()).concat(),
                queue.as_bytes()
            );
        }
        assert_eq!(Companion::Turn.key(b"a").concat(), b"{a}:redlock:wt");
        assert_eq!(
            Companion::Counter.key(b"{a}").concat(),
            b"{a}::redlock:fence"
        );
        assert_eq!(Companion::Done.key(b"a").concat(), b"{a}:redlock:done");
    }

    #[test]
    fn they_are_in_the_slot_of_the_lock_but_for_a_brace_without_a_tag() {
        let slot = |key: &[u8]| tag(key).unwrap_or(key).to_vec();
        for name in names() {
            for companion in Companion::ALL {
                let same = slot(&companion.key(&name).concat()) == slot(&name);
                assert_eq!(same, !are_in_another_slot(&name), "{}", name.escape_ascii());
            }
        }
    }

    #[test]
    fn no_two_of_them_have_the_same_key_and_each_is_recognized() {
        let mut keys = HashMap::new();
        for name in names() {
            for companion in Companion::ALL {
                let key = companion.key(&name).concat();
                assert!(companion.is_key(&key), "{}", key.escape_ascii());
                let before = keys.insert(key, name.clone());
                assert_eq!(before, None, "{}", name.escape_ascii());
            }
        }
        for key in [
            &b"a:redlock:w"[..],
            b"{a:redlock:w",
            b"{a}:w",
            b"a}:redlock:w",
            b"a::redlock:w",
            b"{a}b}:redlock:w",
            b"{a}:redlock:wt",
        ] {
            assert!(!Companion::Queue.is_key(key), "{}", key.escape_ascii());
        }
    }
}
