//! TLS without a crypto provider, which the program is to install.

use crate::support;

use redlock_sync::Redlock;
use support::*;

#[test]
fn a_missing_crypto_provider_is_an_error_that_says_so() {
    let text = config(Redlock::new(["rediss://:hunter2@localhost"]));
    for expected in [
        "node 0 (localhost:6379)",
        "crypto provider",
        "in Cargo.toml: redlock-sync = { version = \"0.1\", features = [\"tls\"] }",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}
