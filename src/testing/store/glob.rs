//! Patterns, as SCAN takes them.

/// `*`, `?`, `[abc]`, `[^a-z]`, and a backslash before a character that is taken literally.
pub(super) fn matches(mut glob: &[u8], mut name: &[u8]) -> bool {
    // Where to go on if the last star has to match more.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = glob {
            (star, glob) = (Some((rest, name)), rest);
            continue;
        }
        match (one(glob, name.first().copied()), star) {
            (Some(rest), _) => (glob, name) = (rest, name.get(1..).unwrap_or_default()),
            (None, _) if glob.is_empty() && name.is_empty() => return true,
            (None, Some((after, [_, longer @ ..]))) => {
                (star, glob, name) = (Some((after, longer)), after, longer);
            }
            (None, _) => return false,
        }
    }
}

/// The rest of the pattern behind its first element, if that matches the byte.
fn one(glob: &[u8], byte: Option<u8>) -> Option<&[u8]> {
    let byte = byte?;
    match glob {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => {
            let (class, rest) = match rest.iter().position(|byte| *byte == b']') {
                Some(end) => (rest.get(..end)?, rest.get(end + 1..)?),
                None => (rest, &[][..]),
            };
            let (negated, class) = match class {
                [b'^', class @ ..] => (true, class),
                class => (false, class),
            };
            (is_in(class, byte) != negated).then_some(rest)
        }
        [b'\\', escaped, rest @ ..] => (*escaped == byte).then_some(rest),
        [own, rest @ ..] => (*own == byte).then_some(rest),
    }
}

fn is_in(mut class: &[u8], byte: u8) -> bool {
    loop {
        class = match class {
            [] => return false,
            [low, b'-', high, rest @ ..] => {
                if (low.min(high)..=low.max(high)).contains(&&byte) {
                    return true;
                }
                rest
            }
            [own, ..] if *own == byte => return true,
            [_, rest @ ..] => rest,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_what_a_server_would_find() {
        for (glob, names, others) in [
            ("*", &["", "a", "shop:1"][..], &[][..]),
            (
                "shop:*",
                &["shop:", "shop:1", "shop:*"],
                &["shop", "xshop:1"],
            ),
            ("*:1*", &["a:1", "a:2:1", ":11"], &["a:2", "1"]),
            (
                "a*b*c",
                &["abc", "abbc", "a:bb:c", "abcbc"],
                &["ab", "abcd", "acb"],
            ),
            ("?", &["a"], &["", "ab"]),
            ("[ab]x", &["ax", "bx"], &["cx", "x"]),
            ("[^a-c]x", &["dx"], &["ax", "bx", "cx"]),
            ("\\*", &["*"], &["a", "\\*"]),
            ("", &[""], &["a"]),
        ] {
            for name in names {
                assert!(matches(glob.as_bytes(), name.as_bytes()), "{glob} {name}");
            }
            for name in others {
                assert!(!matches(glob.as_bytes(), name.as_bytes()), "{glob} {name}");
            }
        }
    }
}
