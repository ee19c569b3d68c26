//! How each refused URL is checked, and the wrong forms that all URLs with several hosts have in common.

/// Asserts that each URL is refused by a short text that has the right form, and no part of a password. In a URL, MANY
/// are too many hosts, and LONG is too long for anything.
pub(in crate::settings) fn are_named(refused: impl Fn(&str) -> String, forms: &[(&str, &str)]) {
    let (many, long) = (["h"; 65].join(","), "h".repeat(70 * 1024));
    for (url, expected) in forms {
        let url = url.replace("MANY", &many).replace("LONG", &long);
        let (text, start) = (refused(&url), url.chars().take(80).collect::<String>());
        assert!(text.contains(expected), "{start}: {text}");
        assert!(text.len() < 300, "{text}");
        for secret in ["hun", "ter2", "hhh"] {
            assert!(!text.contains(secret), "{start}: {text}");
        }
    }
}

/// Asserts that for URLs with this scheme, and with this behind the hosts.
pub(in crate::settings) fn of_several_hosts(
    refused: impl Fn(&str) -> String,
    scheme: &str,
    path: &str,
) {
    let (comma, port) = ("a comma without a host", "not a number up to 65535");
    let several = "give each node as an item of its own";
    for (form, expected) in [
        ("SCHEME://PATH", "it has no host"),
        ("SCHEME://u:hunter2@PATH", "it has no host"),
        ("SCHEME://h,,h2PATH", comma),
        ("SCHEME://h,PATH", comma),
        ("SCHEME://,hPATH", comma),
        ("SCHEME://h:99999PATH", port),
        ("SCHEME://h:0PATH", port),
        ("SCHEME://u:hunter2PATH", port),
        ("SCHEME://[::1PATH", port),
        ("SCHEME://::1PATH", "an IPv6 address has brackets"),
        ("SCHEME://h1 h2PATH", "a semicolon or a space"),
        ("SCHEME://h=hunter2PATH", "no host's name has"),
        ("SCHEME://hPATH,SCHEME://h2PATH", several),
        ("SCHEME://u:hunter2@h1,redis://u:hunter2@h2PATH", several),
        (
            "SCHEME://u:hunter2@h1,u:hunter2@h2PATH",
            "user:password@host,host",
        ),
        ("SCHEME://u:hun@ter2@hPATH", "%40 for @"),
        ("SCHEME://u:hun/ter2@hPATH", "%2F for /"),
        ("SCHEME://u:hun#ter2@hPATH", "%23 for #"),
        ("SCHEME://u:hunter2%@hPATH", "%25 for %"),
        ("SCHEME://MANYPATH", "65 "),
        ("SCHEME://MANYPATH", ": at most 64"),
        ("SCHEME://u:LONG@hPATH", "bytes long: at most 16384"),
    ] {
        let url = form.replace("SCHEME", scheme).replace("PATH", path);
        are_named(&refused, &[(&url, expected)]);
    }
}
