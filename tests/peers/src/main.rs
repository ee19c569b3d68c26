//! Builds and runs contenders, keeps their histories, prints what the checker finds. See `README.md`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use redlock_peers::check::Verdict;
use redlock_peers::ensemble::System;
use redlock_peers::history::Event;
use redlock_peers::schedule::Scenario;
use redlock_peers::stage::Contender;
use redlock_peers::{contenders, history, meet, schedule, table};

struct Args {
    contenders: Vec<String>,
    scenarios: Vec<String>,
    histories: PathBuf,
    jobs: usize,
    strict: bool,
    table: bool,
    meet: bool,
}

fn main() -> ExitCode {
    leave_nothing_running();
    match parse().and_then(|args| if args.meet { meet(&args) } else { run(args) }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::from(2)
        }
    }
}

/// A signal that ends the harness ends the servers and contenders, too. (Contenders also end with their input.)
fn leave_nothing_running() {
    // SAFETY: plain system calls on a set of ours. Children start with no signal blocked.
    let signals = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: waits for a signal of the set, which is blocked in all threads.
        unsafe { libc::sigwait(&signals, &mut signal) };
        let tasks = std::fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        let children =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        for child in children.flat_map(|text| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        }) {
            if let Ok(child) = child.parse::<i32>() {
                // SAFETY: a plain system call on a child that was not waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
        }
        std::process::exit(128 + signal);
    });
}

fn parse() -> Result<Args, String> {
    let target = target()?;
    let mut args = Args {
        contenders: contenders::names().into_iter().map(str::to_owned).collect(),
        scenarios: Vec::new(),
        histories: target.join("histories"),
        jobs: 4,
        strict: false,
        table: false,
        meet: false,
    };
    let list = |value: String| value.split(',').map(str::to_owned).collect();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--contenders" => args.contenders = list(value()?),
            "--scenarios" => args.scenarios = list(value()?),
            "--histories" => args.histories = value()?.into(),
            "--jobs" => args.jobs = value()?.parse().map_err(|_| "--jobs needs a number")?,
            "--strict" => args.strict = true,
            "--table" => args.table = true,
            "--meet" => args.meet = true,
            _ => return Err(format!("unknown option {word}; see tests/peers/README.md")),
        }
    }
    let known = |name: &String| schedule::ALL.iter().any(|scenario| scenario.name == name);
    match args.scenarios.iter().find(|name| !known(name)) {
        Some(name) => Err(format!("unknown scenario {name}")),
        None => Ok(args),
    }
}

/// For all that is built and downloaded: beside the harness, which lies in `TARGET/PROFILE`.
fn target() -> Result<PathBuf, String> {
    let harness = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = harness.ancestors().nth(2).ok_or("no target directory")?;
    Ok(target.join("peers"))
}

/// True if all is well, which only `--strict` asks for.
fn run(args: Args) -> Result<bool, String> {
    let mut columns = Vec::new();
    let mut well = true;
    std::fs::create_dir_all(&args.histories).map_err(|error| error.to_string())?;
    for name in &args.contenders {
        let file = args.histories.join(format!("{name}.txt"));
        if !args.table {
            eprintln!("== {name}: building");
            match contenders::prepare(name, &target()?) {
                Ok(contender) => play(&contender, &args, &file)?,
                Err(error) => {
                    eprintln!("{name} cannot be built: {error}");
                    well = false;
                    continue;
                }
            }
        }
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let column = table::column(&history::parse(&text)?);
        if !args.table {
            print!("{}", table::details(&column));
        }
        well &= column.verdicts.values().all(Verdict::is_well);
        columns.push(column);
    }
    if args.table {
        print!(
            "{}\n{}\n{}",
            table::summary(&columns),
            table::times(&columns),
            table::markdown(&columns)
        );
    }
    Ok(well || !args.strict)
}

/// True if all that meet at one key respect each other. (The guard waits for its nodes, and TLS is another port.)
fn meet(args: &Args) -> Result<bool, String> {
    std::fs::create_dir_all(&args.histories).map_err(|error| error.to_string())?;
    let mut contenders = Vec::new();
    for name in &args.contenders {
        if name.starts_with("ours-") || contenders::system(name) != Some(System::Redis) {
            continue;
        }
        eprintln!("== {name}: building");
        match contenders::prepare(name, &target()?) {
            Ok(contender) => contenders.push(contender),
            Err(error) => eprintln!("{name} cannot be built: {error}"),
        }
    }
    let found = meet::all(&contenders)?;
    std::fs::write(args.histories.join("meeting.md"), found.markdown())
        .map_err(|error| format!("{}: {error}", args.histories.display()))?;
    print!("{}\n{}", found.markdown(), found.faults());
    Ok(found.is_well() || !args.strict)
}

/// Several scenarios at a time, each on nodes of its own: most of their time is spent waiting.
fn play(contender: &Contender, args: &Args, file: &Path) -> Result<(), String> {
    let wanted =
        |name: &str| args.scenarios.is_empty() || args.scenarios.iter().any(|one| one == name);
    let scenarios: Vec<&Scenario> = schedule::ALL
        .iter()
        .filter(|scenario| wanted(scenario.name))
        .collect();
    let parts: Vec<Mutex<String>> = scenarios.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.clamp(1, scenarios.len().max(1)) {
            scope.spawn(|| {
                while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let at = scenarios.iter().position(|one| one.name == scenario.name);
                    let text = play_one(scenario, contender);
                    if let Some(Ok(mut part)) = at.and_then(|at| parts.get(at)).map(Mutex::lock) {
                        *part = text;
                    }
                }
            });
        }
    });
    let parts = parts
        .into_iter()
        .map(|part| part.into_inner().unwrap_or_default());
    std::fs::write(file, parts.collect::<String>())
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn play_one(scenario: &Scenario, contender: &Contender) -> String {
    let events = catch_unwind(AssertUnwindSafe(|| schedule::play(scenario, contender)));
    let events = events.unwrap_or_else(|_| {
        let head = Event::new(0, "-", "scenario")
            .with("name", scenario.name)
            .with("contender", &contender.name);
        let why = Event::new(0, "-", "skipped").with("text", "the harness failed");
        Some(vec![head.with("nodes", contender.nodes), why])
    });
    let lines = events
        .into_iter()
        .flatten()
        .map(|event| format!("{event}\n"));
    lines.collect()
}
