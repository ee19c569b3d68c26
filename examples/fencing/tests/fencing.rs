//! The example with fencing tokens does what it says.

use std::process::Command;

#[test]
fn fencing_makes_the_store_refuse_a_late_holder() {
    let output = Command::new(env!("CARGO_BIN_EXE_fencing"))
        .output()
        .unwrap();
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("refused\nthe balance is 150\n"), "{out}");
    assert!(out.contains("written\nthe balance is 110\n"), "{out}");
}
