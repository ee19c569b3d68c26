//! The version of the crate in this checkout, which Cargo does not tell those that depend on it.

fn main() {
    println!("cargo::rerun-if-changed=../../Cargo.toml");
    let manifest = std::fs::read_to_string("../../Cargo.toml").expect("the crate's manifest");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    let version = version.expect("a version").trim_matches('"');
    println!("cargo::rustc-env=OURS_VERSION={version}");
}
