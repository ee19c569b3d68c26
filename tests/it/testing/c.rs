//! Nodes for tests through C. (Through Python: examples/python/tests.)

use crate::{capi, support};

use std::process::Command;

use support::*;

const HEADER: &str = include_str!("../../../src/redlock_testing.h");

#[test]
fn a_c_program_that_uses_every_function_for_tests_passes_as_c_and_as_cpp() {
    let dir = TempDir::for_programs();
    for (language, shared) in [(capi::Language::C99, false), (capi::Language::Cpp17, true)] {
        let program = dir.path().join("capi_testing");
        capi::compile("tests/capi_testing.c", language, shared, &[], &program);
        let output = capi::run(pristine(&mut Command::new(&program)), "");
        assert_eq!(output.stdout, b"ok\n");
    }
}

#[test]
fn every_function_and_constant_for_tests_is_used_by_the_c_program() {
    let program = include_str!("../../capi_testing.c");
    let declared = capi::declared(HEADER);
    assert_eq!(declared.len(), 20, "{declared:?}");
    for name in declared {
        assert!(program.contains(&format!("{name}(")), "{name}");
    }
    let defines = HEADER.lines();
    let defines = defines.filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    for (name, _) in defines {
        assert!(program.contains(name), "{name}");
    }
}
