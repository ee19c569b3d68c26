//! The arguments of the command line, and what is wrong with them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, value_parser};
use redlock_sync::command::MAX_PERMITS;

use crate::target::TargetKind;
use crate::time::{Time, max_hold, timeout, within};
use crate::{BUSY, CODES};

#[derive(Parser)]
#[command(
    name = "redlock",
    version,
    about = "One at a time, on all hosts: run commands under distributed locks on Redis",
    after_help = "The nodes: --node URL, --nodes-file FILE, REDLOCK_NODES=URL,URL,URL, or /etc/redlock/nodes with a URL a line.",
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Subcommands,
}

#[derive(Subcommand)]
pub(crate) enum Subcommands {
    /// Run a command while holding a lock
    Run(RunArgs),
    /// Let something happen at most once in a time
    Throttle(Throttle),
    /// Show the holders of a lock, node by node
    Inspect(Inspect),
    /// Show when run --once-per last succeeded
    Last(Last),
    /// Show the locks on the nodes, and what is wrong with them
    List(List),
    /// Free a lock whose holder will not come back
    Release(ReleaseArgs),
    /// Find out whether the nodes are fit for locks
    Doctor(Doctor),
    /// Print the manual page, as roff
    Man,
    /// Print a shell's completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
#[command(
    override_usage = "redlock run [OPTIONS] NAME COMMAND [ARG]...",
    allow_negative_numbers = true,
    after_help = exit_codes()
)]
pub(crate) struct RunArgs {
    /// The lock's name, what to run, and its arguments
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, value_names = ["NAME", "COMMAND", "ARG"])]
    pub(crate) words: Vec<OsString>,
    #[command(flatten)]
    pub(crate) waiting: WaitArgs,
    /// How soon others go on if this host dies, 1s to 1d
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) ttl: Time,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Time between SIGTERM and SIGKILL where redlock ends COMMAND, at most ttl/2 [default: 5s, or ttl/4 if less]. A signal that redlock
    /// gets is passed on, and has no such limit
    #[arg(short = 'k', long, value_name = "TIME")]
    pub(crate) grace: Option<Time>,
    /// Add this run to FILE, in the text format of Prometheus: as *.prom in the textfile directory of node_exporter
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,
    /// The host that has waited longest is next; to be given on all hosts
    #[arg(long)]
    pub(crate) fair: bool,
    /// Give COMMAND the lock's fencing token, in REDLOCK_FENCE
    #[arg(long)]
    pub(crate) fence: bool,
    #[command(flatten)]
    pub(crate) any: AnyKind,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
    #[command(flatten)]
    pub(crate) votes: VoteArgs,
}

#[derive(Args)]
#[command(
    override_usage = "redlock throttle [OPTIONS] --every TIME NAME [COMMAND [ARG]...]",
    allow_negative_numbers = true,
    after_help = format!("{TIMES}\n\nWithout COMMAND exit code 0 means go.")
)]
pub(crate) struct Throttle {
    /// Whose turn it is; what to run, if anything, and its arguments
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, value_names = ["NAME", "COMMAND", "ARG"])]
    pub(crate) words: Vec<OsString>,
    /// Once in this time
    #[arg(long, value_name = "TIME")]
    pub(crate) every: Time,
    /// Exit code if it is too soon
    #[arg(short = 'E', long, value_name = "N", default_value_t = BUSY)]
    pub(crate) conflict_exit_code: u8,
    /// Give COMMAND a fencing token, in REDLOCK_FENCE
    #[arg(long)]
    pub(crate) fence: bool,
    #[command(flatten)]
    pub(crate) count: Count,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
    #[command(flatten)]
    pub(crate) votes: VoteArgs,
}

#[derive(Args)]
#[command(
    override_usage = "redlock inspect [OPTIONS] NAME",
    after_help = format!("{TIMES}\n\nA snapshot for people: never a reason to take or not to take a lock.")
)]
pub(crate) struct Inspect {
    /// The lock's name
    pub(crate) name: OsString,
    /// For programs: one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    override_usage = "redlock last [OPTIONS] NAME",
    after_help = format!("{TIMES}\n\nExit code 1: it has not succeeded within its --once-per.")
)]
pub(crate) struct Last {
    /// The lock's name
    pub(crate) name: OsString,
    /// For programs: one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    override_usage = "redlock release [OPTIONS] --force NAME",
    after_help = format!("{TIMES}\n\n{BREAKING}")
)]
pub(crate) struct ReleaseArgs {
    /// The lock's name
    pub(crate) name: OsString,
    /// Although its holder has not released it
    // Must be written out, so that no line of a history silently breaks a lock.
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Of several slots or readers, the one with this fingerprint: the first word of its line
    #[arg(long, value_name = "FINGERPRINT")]
    pub(crate) holder: Option<String>,
    /// Do not ask; without a terminal, needed
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    override_usage = "redlock list [OPTIONS] [PATTERN]",
    allow_negative_numbers = true,
    after_help = format!("{TIMES}\n\n{PROBLEMS}")
)]
pub(crate) struct List {
    /// Every key that this glob of SCAN matches [default: what looks like a lock of this program]
    pub(crate) pattern: Option<OsString>,
    /// For programs: one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Only what has a problem; then exit code 1 if anything has one
    #[arg(long)]
    pub(crate) stuck: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// How long is too long, for list.
#[derive(Args)]
pub(crate) struct LimitArgs {
    /// A lock that has been held for longer than this is a problem, too
    #[arg(long, value_name = "TIME")]
    pub(crate) older: Option<Time>,
    /// A lock that a process has waited for longer than this is a problem, too
    #[arg(long, value_name = "TIME")]
    pub(crate) waited: Option<Time>,
    /// A lock that is kept for longer than this from now on is a problem, too
    #[arg(long, value_name = "TIME")]
    pub(crate) remaining: Option<Time>,
}

#[derive(Args)]
#[command(
    override_usage = "redlock doctor [OPTIONS]",
    allow_negative_numbers = true,
    after_help = format!("{TIMES}\n\nExit code 1: a fault, or no lock could be tried (--probe).")
)]
pub(crate) struct Doctor {
    /// For programs: one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit code 1 for a warning, too
    #[arg(long)]
    pub(crate) strict: bool,
    /// The longest ttl that any client uses: warn of a node that was started later than that
    #[arg(long, value_name = "TIME")]
    pub(crate) max_ttl: Option<Time>,
    /// The lock that is tried [default: redlock-doctor:RANDOM], as the flags of run say
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<OsString>,
    #[command(flatten)]
    pub(crate) any: AnyKind,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
    #[command(flatten)]
    pub(crate) votes: VoteArgs,
}

#[derive(Args)]
pub(crate) struct NodeArgs {
    /// A node; repeat it: 1, 3 or 5. No password here: ps shows it
    #[arg(long, value_name = "URL")]
    pub(crate) node: Vec<String>,
    /// One URL a line, # comments [env: REDLOCK_NODES_FILE]. Neither: REDLOCK_NODES=URL,URL,URL; else /etc/redlock/nodes
    #[arg(long, value_name = "FILE")]
    pub(crate) nodes_file: Option<PathBuf>,
    /// What stands before each NAME on the nodes, as for other programs of the same team [env: REDLOCK_PREFIX]
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// For rediss://: the CAs that are trusted, in PEM [default: the system's; env: REDLOCK_CACERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,
    /// For rediss://: the certificate to show to the nodes, in PEM [env: REDLOCK_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Its key, in PEM [env: REDLOCK_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// For rediss://: the name in the nodes' certificates [default: each URL's host; env: REDLOCK_SNI]
    #[arg(long, value_name = "NAME")]
    pub(crate) sni: Option<String>,
    /// How long a node may take to answer, with a unit [default: 500ms; env: REDLOCK_NODE_TIMEOUT]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    pub(crate) node_timeout: Option<Time>,
    /// How long connecting may take, with a unit [default: 2s; env: REDLOCK_CONNECT_TIMEOUT]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    pub(crate) connect_timeout: Option<Time>,
    /// Say what happens on standard error; -vv: each attempt, too; -vvv: the votes as well
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The flags that choose the kind of lock on NAME: one of them at most.
const KIND: &str = "as";

/// How many at a time, and of how many names.
#[derive(Args)]
pub(crate) struct Count {
    /// Up to N at a time, instead of one: a semaphore. COMMAND gets its slot, 0 to N-1, in REDLOCK_SLOT
    #[arg(long, value_name = "N", group = KIND, value_parser = value_parser!(u32).range(1..=i64::from(MAX_PERMITS)))]
    pub(crate) slots: Option<u32>,
    /// Lock this name together with NAME, all or none; repeat it
    #[arg(long, value_name = "NAME", group = KIND)]
    pub(crate) also: Vec<OsString>,
}

impl Count {
    pub(crate) fn kind(&self) -> TargetKind {
        match self.slots {
            Some(slots) => TargetKind::Slots(slots),
            None if self.also.is_empty() => TargetKind::Plain,
            None => TargetKind::Also(self.also.clone()),
        }
    }
}

/// For what takes locks of any kind.
#[derive(Args)]
pub(crate) struct AnyKind {
    /// With others that say --shared, but beside no --exclusive: a read lock
    #[arg(long, group = KIND)]
    pub(crate) shared: bool,
    /// Keeps new --shared ones out while it waits: a write lock
    #[arg(long, group = KIND)]
    pub(crate) exclusive: bool,
    #[command(flatten)]
    pub(crate) count: Count,
}

impl AnyKind {
    pub(crate) fn kind(&self) -> TargetKind {
        match (self.shared, self.exclusive) {
            (true, _) => TargetKind::Shared,
            (_, true) => TargetKind::Exclusive,
            _ => self.count.kind(),
        }
    }
}

/// How long run waits for the lock.
#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Do not wait if another has the lock
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait for the lock for at most this time [default: for ever]; 0 is -n
    #[arg(short, long, value_name = "TIME")]
    pub(crate) wait: Option<Time>,
    /// Exit code if another has the lock, or the work is done within --once-per
    #[arg(short = 'E', long, value_name = "N", default_value_t = BUSY)]
    pub(crate) conflict_exit_code: u8,
}

/// How long run has the lock, and how long it counts as done.
#[derive(Args)]
pub(crate) struct HoldArgs {
    /// End COMMAND after this time; or: forever
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = max_hold)]
    pub(crate) max_hold: Time,
    /// Keep the lock for at least this time, even if COMMAND ends sooner
    #[arg(long, value_name = "TIME")]
    pub(crate) at_least: Option<Time>,
    /// Once in this time with success: if COMMAND has succeeded on any host since then, exit as -E says
    #[arg(long, value_name = "TIME", conflicts_with = KIND)]
    pub(crate) once_per: Option<Time>,
}

/// The variable for `--restart-guard`.
pub(crate) const RESTART_GUARD: &str = "REDLOCK_RESTART_GUARD";

/// Not for those that take no lock: they count no votes.
#[derive(Args)]
pub(crate) struct VoteArgs {
    /// A node gives no votes until it has been up for this time: the longest ttl that any client uses. 0: none [default:
    /// 30s for redis+sentinel:// and redis+cluster://, else none; env: REDLOCK_RESTART_GUARD]
    #[arg(long, value_name = "TIME")]
    pub(crate) restart_guard: Option<Time>,
}

impl VoteArgs {
    /// Checks a time for which a lock is left: from `shortest` to the longest ttl, where the guard has one.
    ///
    /// # Errors
    ///
    /// The option, its value, and the flag or variable that has the limit; or a variable that has no time.
    pub(crate) fn permit(
        &self,
        option: &str,
        time: Duration,
        shortest: Duration,
    ) -> Result<(), String> {
        let (name, longest) = match self.restart_guard {
            Some(longest) => ("--restart-guard", longest),
            None => match std::env::var(RESTART_GUARD) {
                Ok(text) if !text.is_empty() => {
                    let longest = text
                        .parse()
                        .map_err(|error| format!("{RESTART_GUARD}: {error}"));
                    (RESTART_GUARD, longest?)
                }
                _ => return Ok(()),
            },
        };
        if longest.0.is_zero() {
            return Ok(());
        }
        within(option, time, shortest, longest.0).map_err(|error| format!("{error} ({name})"))
    }
}

const TIMES: &str = "TIME is a number of seconds, or has a unit: 500ms 30s 5m 1h 1d";

const BREAKING: &str = "It shows the holder, asks, and deletes the lock if it is still this holder's.\n\
    If the holder is still running, two may then run at once: it learns of the loss by its next\nrenewal or release.";

const PROBLEMS: &str = "Problems:\n  no-expiry    It has no ttl, so nothing ends it, and this program did not make it\n  \
    minority     It lay on less than half of the nodes in three looks: a leftover\n  \
    old          It has been held for longer than --older\n  \
    waited       A process has waited for it for longer than --waited\n  \
    long         It is kept for longer than --remaining from now on";

fn exit_codes() -> String {
    let line = |(code, when): &(&str, &str)| format!("  {code:<12} {when}\n");
    let lines: String = CODES.iter().map(line).collect();
    format!("{TIMES}\n\nExit codes:\n{}", lines.trim_end())
}

impl Doctor {
    /// The kind of lock that is tried.
    pub(crate) fn kind(&self) -> TargetKind {
        self.any.kind()
    }
}

impl Throttle {
    pub(crate) fn kind(&self) -> TargetKind {
        self.count.kind()
    }
}
