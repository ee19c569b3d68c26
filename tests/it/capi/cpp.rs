//! The header for C++, src/redlock.hpp.

use std::process::Command;

use super::support::{Server, TempDir, pristine, skipped, urls};
use super::{Language, compile, compile_with, run};

fn passes(compiled: impl FnOnce(&std::path::Path)) {
    let dir = TempDir::for_programs();
    let program = dir.path().join("capi");
    compiled(&program);
    let servers = Server::several(3);
    let mut command = Command::new(program);
    // Where cargo leads, another build may have left a library.
    let left = dir.path().join("left");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("libredlock_sync.so"), "of another build").unwrap();
    command.env("LD_LIBRARY_PATH", left);
    let output = run(pristine(&mut command).args(urls(&servers)), "");
    assert_eq!(output.stdout, b"ok\n");
}

const FLAGS: [&str; 1] = ["-Wconversion"];

#[test]
fn owners_exceptions_and_mutexes_in_cpp17() {
    passes(|to| compile("tests/capi.cpp", Language::Cpp17, true, &FLAGS, to));
}

#[test]
fn the_same_with_clang() {
    if Command::new("clang++").arg("--version").output().is_err() {
        return skipped("the_same_with_clang", "this machine has no clang++");
    }
    let standard = ["-x", "c++", "-std=c++17"];
    passes(|to| {
        compile_with(
            ("clang++", &standard, "clang"),
            "tests/capi.cpp",
            false,
            &FLAGS,
            to,
        )
    });
}

#[test]
fn the_file_for_pkg_config_has_the_version_of_the_crate() {
    let text = include_str!("../../../examples/capi/redlock-sync.pc");
    let version = concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(text.contains(version), "{text}");
}
