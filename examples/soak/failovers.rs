//! Failovers: pairs of servers, of which one replicates the other, each behind a name that moves, or sets with sentinels, or
//! Clusters; and processes that take locks there meanwhile. Afterwards every holder's belief is compared with every other's.
//!
//! ```text
//! cargo run --release --example soak -- failovers --each 2 --restart-guard
//! ```
//!
//! | option | |
//! | --- | --- |
//! | `--each N` | how many failovers of each kind (default 2) |
//! | `--pairs N`, `--sets N`, `--clusters N` | how many pairs, sets or Clusters fail over beside each other (default: 6 pairs) |
//! | `--processes P` | default 8; each has a thread for each pair, set or Cluster |
//! | `--restart-guard` | all clients have the restart guard |
//! | `--calm N`, `--record FILE`, `--row-every S` | as without `failovers` |
//! | `--seed X` | draws the same faults and the same work again; their timing is the machine's |
//!
//! Without the guard there must be overlaps. The exit code is 0 if all is well, 1 if anything is violated, 2 if it was called
//! wrongly.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::check::{self, Findings};
use crate::groups::{Group, Kind, Make};
use crate::journals::Journals;
use crate::record::{Record, Seen};
use crate::support::{ms, watched};
use crate::{HEALING, LONGEST_TTL, now, open_record, process_name, random};

/// Few, so that they are fought over.
pub(crate) const RESOURCES_OF_PAIR: u64 = 3;
/// For how long the guard lets the master before go on.
const MARGIN: Duration = Duration::from_secs(5);
/// With the guard a pair is used again within this time, also on a busy machine.
const LATEST: Duration = Duration::from_secs(30);

/// What the names of the locks of a pair, set or Cluster begin with. In a Cluster they are in one slot.
pub(crate) fn pair_name(pair: impl std::fmt::Display) -> String {
    format!("{{pair-{pair}}}:")
}

struct Plan {
    each: usize,
    make: Make,
    pairs: usize,
    processes: usize,
    restart_guard: bool,
    seed: u64,
    calm: u64,
    record: Option<PathBuf>,
    row_every: Duration,
}

impl Plan {
    fn parse(args: &[String]) -> Result<Plan, String> {
        let mut plan = Plan {
            each: 2,
            make: Make::Pairs,
            pairs: 6,
            processes: 8,
            restart_guard: false,
            seed: u64::from(now().subsec_nanos()),
            calm: 1,
            record: None,
            row_every: Duration::from_secs(60),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = || -> Result<u64, String> {
                let value = args.next().and_then(|value| value.parse().ok());
                value.ok_or(format!("{arg} needs a number"))
            };
            let mut count = || -> Result<usize, String> {
                let value = usize::try_from(number()?).unwrap_or(usize::MAX);
                match value {
                    1..=1000 => Ok(value),
                    _ => Err(format!("{arg} must be from 1 to 1000")),
                }
            };
            match arg.as_str() {
                "--each" => plan.each = count()?,
                "--pairs" => (plan.make, plan.pairs) = (Make::Pairs, count()?),
                "--sets" => (plan.make, plan.pairs) = (Make::Sets, count()?),
                "--clusters" => (plan.make, plan.pairs) = (Make::Clusters, count()?),
                "--processes" => plan.processes = count()?,
                "--restart-guard" => plan.restart_guard = true,
                "--seed" => plan.seed = number()?,
                "--calm" => plan.calm = number()?.clamp(1, 1000),
                "--record" => plan.record = args.next().map(PathBuf::from),
                "--row-every" => plan.row_every = Duration::from_secs(number()?.clamp(1, 1000)),
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        Ok(plan)
    }

    fn describe(&self) -> String {
        format!(
            "seed {}, {} {}, {} processes, {} failovers of each kind{}",
            self.seed,
            self.pairs,
            self.make.name(),
            self.processes,
            self.each,
            match self.restart_guard {
                true => ", restart guard",
                false => "",
            }
        )
    }
}

/// What the pairs' threads share.
struct Shared {
    plan: Plan,
    /// The failovers to come.
    due: Mutex<VecDeque<Kind>>,
    /// When each pair's last lock was acquired, as far as it was read.
    acquired: Mutex<Vec<Duration>>,
    /// How many keys of locks each pair's master had behind the last failover.
    keys: Mutex<Vec<usize>>,
    /// Those that happened, with their pairs, and when.
    happened: Mutex<Vec<(Kind, usize, Duration)>>,
    violations: Mutex<Vec<String>>,
}

impl Shared {
    fn new(plan: Plan) -> Shared {
        let mut due: Vec<Kind> = plan.make.kinds().repeat(plan.each);
        let mut random = random(plan.seed, [1, 0, 0]);
        for at in (1..due.len()).rev() {
            let other = random.below(at as u64 + 1);
            due.swap(at, usize::try_from(other).expect("small"));
        }
        Shared {
            due: Mutex::new(due.into()),
            acquired: Mutex::new(vec![Duration::ZERO; plan.pairs]),
            keys: Mutex::new(vec![0; plan.pairs]),
            happened: Mutex::default(),
            violations: Mutex::default(),
            plan,
        }
    }

    /// Waits until a lock has been acquired since.
    fn works(&self, pair: usize, since: Duration) {
        let end = now() + LATEST;
        while self.acquired.lock().expect("no panic")[pair] <= since {
            if now() > end {
                let text = format!("pair {pair}: nothing was acquired for {LATEST:?}");
                return self.violations.lock().expect("no panic").push(text);
            }
            std::thread::sleep(ms(20));
        }
    }

    fn fail_over(&self, group: &mut Group, number: usize) {
        let mut random = random(self.plan.seed, [2, number as u64, 1]);
        self.works(number, Duration::ZERO);
        let quiet = match self.plan.restart_guard {
            true => LONGEST_TTL + MARGIN,
            false => ms(500),
        };
        loop {
            let next = self.due.lock().expect("no panic").pop_front();
            let Some(kind) = next else {
                return;
            };
            std::thread::sleep(ms((200 + random.below(600)) * self.plan.calm));
            let took = group.fail_over(kind);
            if took > MARGIN {
                let text =
                    format!("pair {number}: two masters for {took:?}, so this shows nothing");
                self.violations.lock().expect("no panic").push(text);
            }
            let mut happened = self.happened.lock().expect("no panic");
            happened.push((kind, number, now()));
            drop(happened);
            std::thread::sleep(quiet);
            self.works(number, now());
            self.keys.lock().expect("no panic")[number] = group.keys();
        }
    }

    fn add_row(&self, record: &mut Record, process: u32, journals: &mut Journals) {
        let live = journals.take_live(&process_name(0, 0));
        let findings = &journals.findings;
        let mut faults = BTreeMap::new();
        for (kind, ..) in &*self.happened.lock().expect("no panic") {
            *faults.entry(format!("{kind:?}")).or_default() += 1;
        }
        let seen = Seen {
            acquired: findings.taken.values().map(Vec::len).sum(),
            live,
            overlaps: check::overlaps(&findings.spans).len(),
            keys: self.keys.lock().expect("no panic").iter().sum(),
            faults,
        };
        let added = record.add(now(), process, seen);
        added.expect("the record can be written");
    }

    fn heard(&self, findings: &Findings) {
        let mut acquired = self.acquired.lock().expect("no panic");
        for (thread, taken) in &findings.taken {
            let pair = thread.rsplit(' ').next().and_then(|last| last.parse().ok());
            let pair: usize = pair.expect("the name of a thread");
            if let Some(last) = taken.last() {
                acquired[pair] = acquired[pair].max(*last);
            }
        }
    }
}

pub(crate) fn run(args: &[String]) -> ExitCode {
    let plan = match Plan::parse(args) {
        Ok(plan) => plan,
        Err(text) => {
            eprintln!("{text}; see the top of examples/soak/failovers.rs");
            return ExitCode::from(2);
        }
    };
    println!("soak: {}", plan.describe());
    let open = |path| open_record(path, plan.row_every, plan.make.name(), &plan.describe());
    let mut record = plan.record.as_deref().map(open);
    let start = |pair| {
        let random = random(plan.seed, [2, pair as u64, 0]);
        Group::start(plan.make, random, pair_name(pair))
    };
    let mut pairs: Vec<Group> = (0..plan.pairs).map(start).collect();
    let mut journals = Journals::new();
    let mut clients: Vec<Child> = (0..plan.processes)
        .map(|slot| client(&plan, &pairs, slot, &journals))
        .collect();
    let shared = Shared::new(plan);
    let (began, mut said) = (now(), now());
    std::thread::scope(|scope| {
        let shared = &shared;
        let each = pairs.iter_mut().enumerate();
        let threads: Vec<_> = each
            .map(|(number, pair)| scope.spawn(move || shared.fail_over(pair, number)))
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            journals.read();
            shared.heard(&journals.findings);
            if let Some(record) = &mut record
                && record.is_due(now())
            {
                shared.add_row(record, clients[0].id(), &mut journals);
            }
            if now() > said + Duration::from_secs(5 * shared.plan.calm) {
                said = now();
                println!(
                    "{:5.0} s {:8} acquired {:5} failovers",
                    (said - began).as_secs_f64(),
                    journals.acquired(),
                    shared.happened.lock().expect("no panic").len()
                );
            }
            std::thread::sleep(ms(50));
        }
    });
    if let Some(record) = &mut record {
        journals.read();
        shared.add_row(record, clients[0].id(), &mut journals);
    }
    for child in &mut clients {
        drop(child.stdin.take());
    }
    for child in &mut clients {
        let status = child.wait().expect("a child of ours");
        if !status.success() {
            let text = format!("a process ended with {status}");
            shared.violations.lock().expect("no panic").push(text);
        }
    }
    let left = || pairs.iter().map(Group::keys).sum::<usize>();
    let end = now() + LONGEST_TTL + HEALING;
    while left() > 0 && now() < end {
        std::thread::sleep(ms(20));
    }
    if left() > 0 {
        let text = format!("{} keys are left", left());
        shared.violations.lock().expect("no panic").push(text);
    }
    conclude(&shared, journals, record)
}

fn client(plan: &Plan, pairs: &[Group], slot: usize, journals: &Journals) -> Child {
    let program = std::env::current_exe().expect("a path to this program");
    watched(&mut Command::new(program))
        .arg("--client")
        .arg(journals.dir())
        .args([slot.to_string(), "0".into(), plan.seed.to_string()])
        .args([
            plan.pairs.to_string(),
            u8::from(plan.restart_guard).to_string(),
        ])
        .args(["0", &plan.calm.to_string(), "alone"])
        .args(pairs.iter().map(Group::url))
        .stdin(Stdio::piped())
        .spawn()
        .expect("this program can be started again")
}

fn conclude(shared: &Shared, mut journals: Journals, record: Option<Record>) -> ExitCode {
    let findings = journals.close();
    let happened = shared.happened.lock().expect("no panic");
    let mut violations = std::mem::take(&mut *shared.violations.lock().expect("no panic"));
    violations.extend(findings.wrong.iter().cloned());
    let overlaps = check::overlaps(&findings.spans);
    let seconds = |time: Duration| time.as_secs_f64();
    for overlap in &overlaps {
        let [a, b] = [&overlap.first, &overlap.second];
        violations.push(format!(
            "{}: {} until {:.6} and {} from {:.6} s",
            a.resource,
            a.holder,
            seconds(a.to),
            b.holder,
            seconds(b.from)
        ));
    }
    let mut kinds: BTreeMap<Kind, [usize; 2]> = BTreeMap::new();
    for (kind, pair, at) in &*happened {
        let name = pair_name(pair);
        let held = findings
            .spans
            .iter()
            .any(|span| span.resource.starts_with(&name) && span.from < *at && *at < span.to);
        let [all, across] = kinds.entry(*kind).or_default();
        (*all, *across) = (*all + 1, *across + usize::from(held));
    }
    let taken: usize = findings.taken.values().map(Vec::len).sum();
    println!("\nacquired     {taken} locks");
    for (kind, [all, held]) in kinds {
        println!("{kind:<12?} {all}, in {held} of them a lock was held when it was over");
    }
    println!("overlaps     {}", overlaps.len());
    if let Some(record) = record {
        let grown = record.end(violations.len());
        violations.extend(grown.expect("the record can be written"));
    }
    if violations.is_empty() {
        println!("no violation");
        return ExitCode::SUCCESS;
    }
    println!("\n{} VIOLATIONS", violations.len());
    for violation in violations.iter().take(20) {
        println!("  {violation}");
    }
    println!(
        "records kept in {}, seed {}",
        journals.dir().display(),
        shared.plan.seed
    );
    journals.keep();
    ExitCode::FAILURE
}
