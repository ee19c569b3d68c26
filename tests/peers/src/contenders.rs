//! The contenders, and how each is built. What is downloaded comes from the ordinary clients of the package
//! registries, in the versions that lock files and requirements name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::ensemble::System;
use crate::stage::Contender;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    /// A program of this package.
    Own(&'static str),
    /// A package in `contenders/`.
    Cargo(&'static str),
    /// `contenders/python/on_NAME.py`, with a virtual environment for `NAME.txt`.
    Python(&'static str),
    /// The same with nothing but Python.
    Script(&'static str),
    /// `contenders/node/NAME.js`.
    Node(&'static str),
    /// `contenders/c/main.c`.
    C,
}

struct Row {
    name: &'static str,
    system: System,
    /// How many nodes it locks on.
    nodes: usize,
    build: Build,
    variables: &'static [(&'static str, &'static str)],
    /// The only scenarios that it is for; all if there are none.
    only: &'static [&'static str],
    /// Nodes have to be up for this long before they vote.
    settling: Duration,
}

const fn row(name: &'static str, nodes: usize, build: Build) -> Row {
    Row {
        name,
        system: System::Redis,
        nodes,
        build,
        variables: &[],
        only: &[],
        settling: Duration::ZERO,
    }
}

const fn of(system: System, row: Row) -> Row {
    Row { system, ..row }
}

const ROWS: [Row; 27] = [
    row("ours", 5, Build::Own("ours")),
    row("ours-one", 1, Build::Own("ours")),
    Row {
        // The longest ttl in the schedule, and when a node votes with that.
        variables: &[("RESTART_GUARD_MS", "20000")],
        settling: Duration::from_secs(23),
        only: &[
            "restarted-with-data",
            "restarted-empty",
            "one-restarted-empty",
            "server-clock-forward",
            "server-clock-forward-in-use",
            "server-clock-back",
        ],
        ..row("ours-guard", 5, Build::Own("ours"))
    },
    row("ours-tls", 5, Build::Own("ours")),
    row("ours-c", 5, Build::C),
    row("redlock", 5, Build::Cargo("redlock")),
    row("rslock", 5, Build::Cargo("rslock")),
    row("redsync", 5, Build::Cargo("redsync")),
    row("redis-lock", 5, Build::Cargo("redis-lock")),
    row("redlock-py", 5, Build::Python("redlock_py")),
    row("pottery", 5, Build::Python("pottery")),
    row("redis-py", 1, Build::Python("redis_py")),
    row("python-redis-lock", 1, Build::Python("python_redis_lock")),
    row("node-redlock-4", 5, Build::Node("redlock4")),
    row("node-redlock-5", 5, Build::Node("redlock5")),
    row("sesamecare-redlock", 5, Build::Node("sesamecare")),
    row("redis-semaphore", 5, Build::Node("semaphore")),
    of(System::Etcd, row("etcdctl", 3, Build::Script("etcdctl"))),
    of(System::Etcd, row("etcd3", 3, Build::Node("etcd3"))),
    of(System::ZooKeeper, row("kazoo", 3, Build::Python("kazoo"))),
    row("wrong-no-lock", 5, Build::Own("wrong")),
    row("wrong-any-node", 5, Build::Own("wrong")),
    row("wrong-late", 5, Build::Own("wrong")),
    row("wrong-blind-release", 5, Build::Own("wrong")),
    row("wrong-extend", 5, Build::Own("wrong")),
    row("wrong-keys", 5, Build::Own("wrong")),
    row("wrong-hangs", 5, Build::Own("wrong")),
];

/// All but those that are wrong on purpose, and the one that needs the feature `tls` if that is missing.
pub fn names() -> Vec<&'static str> {
    let names = ROWS.iter().map(|row| row.name);
    let wanted =
        |name: &&str| !name.starts_with("wrong-") && (*name != "ours-tls" || cfg!(feature = "tls"));
    names.filter(wanted).collect()
}

/// What it locks on.
pub fn system(name: &str) -> Option<System> {
    ROWS.iter()
        .find(|row| row.name == name)
        .map(|row| row.system)
}

/// Builds it. `target`: a directory for what is built and downloaded.
pub fn prepare(name: &str, target: &Path) -> Result<Contender, String> {
    let row = ROWS.iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| format!("unknown contender {name}"))?;
    let tls = name == "ours-tls";
    if tls && !cfg!(feature = "tls") {
        return Err("it needs --features tls".to_owned());
    }
    if let Some(why) = row.system.missing() {
        return Err(why.to_owned());
    }
    let command = match row.build {
        Build::Own(program) => vec![own(program)?],
        Build::Cargo(package) => vec![cargo(package, target)?],
        Build::Python(module) => python(module, target)?,
        Build::Script(module) => vec!["python3".into(), text(&on(module))],
        Build::Node(script) => node(script, target)?,
        Build::C => vec![c(target)?],
    };
    let variables = row
        .variables
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    let mut variables: Vec<(String, String)> = variables.collect();
    variables.push(("CONTENDER".into(), name.into()));
    variables.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
    variables.push(("NODE_PATH".into(), text(&target.join("node/node_modules"))));
    Ok(Contender {
        name: name.to_owned(),
        system: row.system,
        nodes: row.nodes,
        command,
        variables,
        clock: preloaded("clock", target).ok(),
        disk: preloaded("disk", target).ok(),
        tls,
        only: row.only,
        settling: row.settling,
    })
}

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// It lies beside the harness, and is built as that was. For its tests, which lie one directory deeper, Cargo has built it.
fn own(program: &str) -> Result<String, String> {
    let harness = std::env::current_exe().map_err(|error| error.to_string())?;
    let no_place = || format!("{}: it lies in no directory", harness.display());
    let beside = harness.parent().ok_or_else(no_place)?;
    if beside.ends_with("deps") {
        return Ok(text(&beside.with_file_name(program)));
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "--bin", program, "--manifest-path"]);
    command.arg(here().join("Cargo.toml"));
    command
        .arg("--target-dir")
        .arg(beside.parent().unwrap_or(beside));
    if beside.ends_with("release") {
        command.arg("--release");
    }
    if cfg!(feature = "tls") {
        command.args(["--features", "tls"]);
    }
    run(&mut command)?;
    Ok(text(&beside.join(program)))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy().into_owned();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last: Vec<&str> = said.lines().rev().take(4).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(format!(
        "{program}: {}: {}",
        output.status,
        last.join(" | ")
    ))
}

/// As their users build them: in release builds arithmetic wraps.
fn cargo(package: &str, target: &Path) -> Result<String, String> {
    let target = target.join("rust");
    let manifest = here().join("contenders").join(package).join("Cargo.toml");
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(manifest);
    run(command.arg("--target-dir").arg(&target))?;
    Ok(text(
        &target.join("release").join(format!("contender-{package}")),
    ))
}

fn python(module: &str, target: &Path) -> Result<Vec<String>, String> {
    let from = here().join("contenders/python");
    let requirements = from.join(format!("{module}.txt"));
    let wanted = std::fs::read_to_string(&requirements).map_err(|error| error.to_string())?;
    let environment = target.join("python").join(module);
    let stamp = environment.join("installed.txt");
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/pip"));
        run(pip
            .args(["install", "--quiet", "--no-deps", "-r"])
            .arg(&requirements))?;
        std::fs::write(&stamp, wanted).map_err(|error| error.to_string())?;
    }
    Ok(vec![
        text(&environment.join("bin/python")),
        text(&on(module)),
    ])
}

fn on(module: &str) -> PathBuf {
    here().join(format!("contenders/python/on_{module}.py"))
}

fn node(script: &str, target: &Path) -> Result<Vec<String>, String> {
    let from = here().join("contenders/node");
    let to = target.join("node");
    let lock = "package-lock.json";
    let wanted = std::fs::read_to_string(from.join(lock)).map_err(|error| error.to_string())?;
    let stamp = to.join("installed.json");
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        std::fs::create_dir_all(&to).map_err(|error| error.to_string())?;
        for file in ["package.json", lock] {
            std::fs::copy(from.join(file), to.join(file)).map_err(|error| error.to_string())?;
        }
        let mut npm = Command::new("npm");
        run(npm
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&to))?;
        std::fs::write(&stamp, wanted).map_err(|error| error.to_string())?;
    }
    Ok(vec![
        "node".into(),
        text(&from.join(format!("{script}.js"))),
    ])
}

/// The C library of this checkout, and a program that is linked to it.
fn c(target: &Path) -> Result<String, String> {
    let root = here().join("../..");
    let target = target.join("c");
    let mut library = Command::new("cargo");
    library.args([
        "rustc",
        "--release",
        "--features",
        "capi",
        "--crate-type",
        "cdylib",
        "--target-dir",
    ]);
    run(library.arg(&target).current_dir(&root))?;
    let program = target.join("contender-c");
    let release = target.join("release");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program);
    compiler
        .arg(here().join("contenders/c/main.c"))
        .arg("-I")
        .arg(root.join("src"));
    compiler.arg("-L").arg(&release).arg("-lredlock_sync");
    run(compiler.arg(format!("-Wl,-rpath,{}", release.display())))?;
    Ok(text(&program))
}

fn preloaded(name: &str, target: &Path) -> Result<String, String> {
    let library = target.join(format!("{name}.so"));
    std::fs::create_dir_all(target).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .arg(&library);
    run(compiler.arg(here().join(format!("src/{name}.c"))))?;
    Ok(text(&library))
}
