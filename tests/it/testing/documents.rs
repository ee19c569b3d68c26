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
    let dir = TempDir::for_programs();
    let file = dir.path().join("code.md");
    std::fs::write(&file, code).unwrap();

    let library = crate::library();
    let urls = nodes.each_ref().map(Node::url).join(",");
    let mut rustdoc = Command::new("rustdoc");
    pristine(&mut rustdoc)
        .env("REDLOCK_NODES", urls)
        // There it runs what it has compiled.
        .env("TMPDIR", dir.path())
        .args(["--edition", "2024", "--test"])
        .arg(&file)
        .arg("-L")
        .arg(format!(
            "dependency={}",
            library.with_file_name("deps").display()
        ))
        .arg("--extern")
        .arg(format!("redlock_sync={}", library.display()))
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
