//! TLS where it was not built in. No other test is built without features.

use redlock_sync::{Error, Redlock};

fn error(node: &str) -> String {
    match Redlock::new([node]) {
        Err(Error::Config(error)) => error.to_string(),
        other => panic!("expected Config, got {other:?}"),
    }
}

#[test]
fn tls_without_its_feature_is_refused_with_the_feature_s_name() {
    let expected = "node 0: TLS needs the feature `tls` of redlock-sync, in \
                    Cargo.toml: redlock-sync = { version = \"0.1\", features = [\"tls\"] }";
    assert_eq!(error("rediss://:hunter2@host"), expected);
}
