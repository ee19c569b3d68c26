//! TLS without a crypto provider, which the program is to install. No other test is built with only this feature.

use redlock_sync::{Error, Redlock};

#[test]
fn a_missing_crypto_provider_is_named_in_the_error() {
    let text = match Redlock::new(["rediss://:hunter2@localhost"]) {
        Err(Error::Config(error)) => error.to_string(),
        other => panic!("expected Config, got {other:?}"),
    };
    for expected in [
        "node 0 (localhost:6379)",
        "crypto provider",
        "in Cargo.toml: redlock-sync = { version = \"0.1\", features = [\"tls\"] }",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}
