//! The code in the README and the guide's recipes, with nodes for tests.

use crate::support;

use std::path::Path;
use std::process::Command;

use redlock_sync::testing::Node;
use support::*;

#[test]
fn the_code_in_the_readme_and_the_recipes_runs_on_nodes_for_tests() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let nodes = [(); 3].map(|()| Node::start().unwrap());
    let mut code = String::new();
    for document in ["README.md", "src/guide/recipes.md"] {
        code += &std::fs::read_to_string(top.join(document)).unwrap();
    }
    for (number, node) in nodes.iter().enumerate() {
        code = code.replace(&format!("redis://10.0.0.{}", number + 1), node.url());
    }
    let code = code
        .replace("redis://127.0.0.1\"", &format!("{}\"", nodes[0].url()))
        .replace("```rust,no_run", "```rust");
    let blocks = code.matches("```rust").count();
    let dir = TempDir::new();
    let file = dir.path().join("code.md");
    std::fs::write(&file, code).unwrap();

    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    // As it was built for this test.
    let mut features = vec!["testing"];
    features.extend(cfg!(feature = "capi").then_some("capi"));
    features.extend(cfg!(feature = "cli").then_some("cli"));
    features.extend(cfg!(feature = "tls").then_some("tls"));
    let mut cargo = cargo();
    cargo
        .current_dir(top)
        .args(["build", "--lib", "--features", &features.join(",")])
        .arg("--target-dir")
        .arg(target);
    assert!(cargo.output().unwrap().status.success(), "{cargo:?}");
    let urls = nodes.each_ref().map(Node::url).join(",");
    let mut rustdoc = Command::new("rustdoc");
    rustdoc
        .env("REDLOCK_NODES", urls)
        .args(["--edition", "2024", "--test"])
        .arg(&file)
        .arg("-L")
        .arg(format!(
            "dependency={}",
            target.join("debug/deps").display()
        ))
        .arg("--extern")
        .arg(format!(
            "redlock_sync={}",
            target.join("debug/libredlock_sync.rlib").display()
        ))
        // They use the same names.
        .args(["--test-args", "--test-threads=1"]);
    let output = rustdoc.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(blocks >= 6, "{blocks}");
    let all = format!("{blocks} passed; 0 failed; 0 ignored");
    assert!(said.contains(&all), "not {all}: {said}");
    assert!(nodes[0].requests().acquire > 100);
}
