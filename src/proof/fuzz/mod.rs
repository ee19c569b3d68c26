//! The targets of a fuzzer that is guided by coverage: each takes any bytes, and panics where a promise does not hold.
//!
//! The package in `tests/fuzz` builds them into a fuzzer, with `--cfg fuzzing`. The library's own tests call them with the
//! inputs in `tests/corpus`, without a fuzzer.
//!
//! - `answers`: what servers answer
//! - `given`: where nodes are, as people write it
//! - `client`: a client and a whole server
//!
//! Passwords: `PLANTED` stands for one in the input, and no text may repeat it.

#![cfg_attr(test, allow(dead_code, unreachable_pub))]

mod answers;
mod client;
mod given;

/// A part of the library that reads bytes from elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target and of its folder in the corpus.
    pub name: &'static str,
    /// Reads these bytes.
    pub run: fn(&[u8]),
    /// How many bytes may be allocated at a time, whatever was received: buffers, threads and connections.
    pub base: usize,
}

/// How many bytes may be allocated at a time for each byte that was received.
pub const PER_BYTE: usize = 128;

const fn reads(name: &'static str, run: fn(&[u8])) -> Target {
    let base = 64 << 10;
    Target { name, run, base }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    reads("resp", answers::resp),
    reads("info", answers::info),
    reads("slots", answers::slots),
    reads("sentinels", answers::sentinels),
    reads("messages", answers::messages),
    reads("values", answers::values),
    reads("errors", answers::errors),
    reads("url", given::url),
    reads("list", given::list),
    reads("file", given::file),
    Target {
        name: "client",
        run: client::client,
        base: 8 << 20,
    },
];

/// The password that no text may repeat.
const PASSWORD: &str = "hunter2-S3cret";
/// The byte of the input that is replaced by the password.
const PLANTED: u8 = 1;

/// The bytes with the secret in place of each mark.
fn planted(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = bytes.split(|byte| *byte == PLANTED).collect();
    parts.join(secret)
}

/// Asserts that a text does not repeat the password.
fn hides(text: impl std::fmt::Display) {
    let text = text.to_string();
    assert!(!text.contains(PASSWORD), "a text has the password: {text}");
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    /// The inputs that a fuzzer has found to reach something, and those that once found a fault.
    #[test]
    fn no_input_of_the_corpus_makes_a_reader_panic_or_show_a_password() {
        for target in TARGETS {
            let folder = format!("tests/corpus/{}", target.name);
            let files = std::fs::read_dir(&folder).unwrap();
            let mut count = 0;
            for file in files {
                (target.run)(&std::fs::read(file.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 0, "{folder} is empty");
        }
    }
}
