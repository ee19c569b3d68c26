//! The label of this process beside its locks.

use nix::unistd::gethostname;
use redlock_sync::command::MAX_LABEL as MAX;

/// `web-3:4711`: the host and the process.
pub(crate) fn label() -> String {
    let host = gethostname().unwrap_or_default();
    of(&host.to_string_lossy(), std::process::id())
}

/// The host's name as far as there is room, and the process.
fn of(host: &str, process: u32) -> String {
    let process = format!(":{process}");
    let mut label = String::new();
    // A letter that `Debug` escapes is not printable, as a label must be. (Host names have no quotes.)
    let is_printable = |letter: &char| letter.escape_debug().len() == 1;
    for letter in host.chars().filter(is_printable) {
        if label.len() + letter.len_utf8() + process.len() > MAX {
            break;
        }
        label.push(letter);
    }
    label + &process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_never_too_long_and_keeps_the_process() {
        assert_eq!(of("web-3", 4711), "web-3:4711");
        assert_eq!(of("", 1), ":1");
        assert_eq!(of("a\n\u{202e}b\u{200b}", 1), "ab:1");
        let long = of(&"é".repeat(100), u32::MAX);
        assert!(
            long.len() <= MAX && long.ends_with("é:4294967295"),
            "{long}"
        );
    }
}
