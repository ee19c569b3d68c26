//! SHA-1, by which Redis names scripts. The compiler computes the names: none of this code is in a program.

/// The SHA-1 of `text` in hexadecimal digits.
// The compiler runs this: an index out of bounds does not compile.
#[allow(clippy::indexing_slicing)]
pub(crate) const fn sha1(text: &[u8]) -> [u8; 40] {
    let mut state = [
        0x6745_2301,
        0xEFCD_AB89,
        0x98BA_DCFE,
        0x1032_5476,
        0xC3D2_E1F0,
    ];
    // The text is followed by 0x80, zeros, and its length in bits, in eight bytes.
    let mut block = 0;
    while block < text.len() + 9 {
        let mut words = [0_u32; 80];
        let mut at = 0;
        while at < 64 {
            let place = block + at;
            let byte = if place < text.len() {
                text[place]
            } else if place == text.len() {
                0x80
            } else if at >= 56 && block + 64 >= text.len() + 9 {
                (8 * text.len() as u64).to_be_bytes()[at - 56]
            } else {
                0
            };
            words[at / 4] = words[at / 4] << 8 | byte as u32;
            at += 1;
        }
        state = mix(state, words);
        block += 64;
    }
    let mut digits = [0; 40];
    let mut at = 0;
    while at < 40 {
        let digit = state[at / 8] >> (28 - at % 8 * 4) & 15;
        digits[at] = b"0123456789abcdef"[digit as usize];
        at += 1;
    }
    digits
}

/// The state after one more block.
#[allow(clippy::indexing_slicing)]
const fn mix(state: [u32; 5], mut words: [u32; 80]) -> [u32; 5] {
    let [mut a, mut b, mut c, mut d, mut e] = state;
    let mut round = 0;
    while round < 80 {
        if round >= 16 {
            let mixed = words[round - 3] ^ words[round - 8] ^ words[round - 14] ^ words[round - 16];
            words[round] = mixed.rotate_left(1);
        }
        let (function, constant) = match round {
            0..20 => ((b & c) | (!b & d), 0x5A82_7999_u32),
            20..40 => (b ^ c ^ d, 0x6ED9_EBA1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8F1B_BCDC),
            _ => (b ^ c ^ d, 0xCA62_C1D6),
        };
        let next = a
            .rotate_left(5)
            .wrapping_add(function)
            .wrapping_add(e)
            .wrapping_add(constant)
            .wrapping_add(words[round]);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
        round += 1;
    }
    [
        state[0].wrapping_add(a),
        state[1].wrapping_add(b),
        state[2].wrapping_add(c),
        state[3].wrapping_add(d),
        state[4].wrapping_add(e),
    ]
}

#[cfg(test)]
mod tests {
    use super::sha1;

    #[test]
    fn published_examples_are_reproduced() {
        for (text, digits) in [
            ("", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            ("abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
            ),
        ] {
            assert_eq!(sha1(text.as_bytes()), digits.as_bytes(), "{text:?}");
        }
        let million = vec![b'a'; 1_000_000];
        assert_eq!(&sha1(&million), b"34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    }
}
