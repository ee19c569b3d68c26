//! The arguments of the command line, and what is wrong with them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, value_parser};
use redlock_sync::command::MAX_PERMITS;

use crate::target::Kind;
use crate::{BUSY, CODES};

/// The longest ttl of a lock.
const LONGEST: Duration = Duration::from_secs(100 * 365 * DAY);
const DAY: u64 = 86_400;
/// The shortest ttl of a lock.
const SHORTEST: Duration = Duration::from_millis(10);

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
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Run),
    /// Let something happen at most once in a time
    Throttle(Throttle),
    /// Show the holders of a lock, node by node
    Inspect(Inspect),
    /// Show the locks on the nodes, and what is wrong with them
    List(List),
    /// Free a lock whose holder will not come back
    Release(Release),
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
pub(crate) struct Run {
    /// The lock's name, what to run, and its arguments
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, value_names = ["NAME", "COMMAND", "ARG"])]
    pub(crate) words: Vec<OsString>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// How soon others go on if this host dies, 1s to 1d
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) ttl: Time,
    /// End COMMAND after this time; or: forever
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = max_hold)]
    pub(crate) max_hold: Time,
    /// Keep the lock for at least this time, even if COMMAND ends sooner
    #[arg(long, value_name = "TIME")]
    pub(crate) at_least: Option<Time>,
    /// Between SIGTERM and SIGKILL, at most ttl/2 [default: 5s, or ttl/4 if less]
    #[arg(short = 'k', long, value_name = "TIME")]
    pub(crate) grace: Option<Time>,
    /// The host that has waited longest is next; to be given on all hosts
    #[arg(long)]
    pub(crate) fair: bool,
    /// Give COMMAND the lock's fencing token, in REDLOCK_FENCE
    #[arg(long)]
    pub(crate) fence: bool,
    #[command(flatten)]
    pub(crate) any: AnyKind,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) votes: Votes,
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
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) votes: Votes,
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
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
#[command(
    override_usage = "redlock release [OPTIONS] --force NAME",
    after_help = format!("{TIMES}\n\n{BREAKING}")
)]
pub(crate) struct Release {
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
    pub(crate) nodes: Nodes,
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
    /// Only what has a problem; then exit code 1 if there is something
    #[arg(long)]
    pub(crate) leaked: bool,
    /// What stays for longer than this is a problem, too
    #[arg(long, value_name = "TIME")]
    pub(crate) older: Option<Time>,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
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
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    pub(crate) votes: Votes,
}

#[derive(Args)]
pub(crate) struct Nodes {
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
    /// How long a node may take to answer
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub(crate) node_timeout: Time,
    /// How long connecting may take
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) connect_timeout: Time,
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
    fn kind(&self) -> Kind {
        match self.slots {
            Some(slots) => Kind::Slots(slots),
            None if self.also.is_empty() => Kind::Plain,
            None => Kind::Also(self.also.clone()),
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
    fn kind(&self) -> Kind {
        match (self.shared, self.exclusive) {
            (true, _) => Kind::Shared,
            (_, true) => Kind::Exclusive,
            _ => self.count.kind(),
        }
    }
}

/// How long run waits for the lock.
#[derive(Args)]
pub(crate) struct Waiting {
    /// Do not wait if another has the lock
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait for the lock for at most this time [default: for ever]; 0 is -n
    #[arg(short, long, value_name = "TIME")]
    pub(crate) wait: Option<Time>,
    /// Exit code if another kept it
    #[arg(short = 'E', long, value_name = "N", default_value_t = BUSY)]
    pub(crate) conflict_exit_code: u8,
}

/// Not for those that take no lock: they count no votes.
#[derive(Args)]
pub(crate) struct Votes {
    /// A node gives no votes until it has been up for this time: the longest ttl that any client uses. 0: none [default:
    /// 30s for redis+sentinel:// and redis+cluster://, else none]
    #[arg(long, value_name = "TIME")]
    pub(crate) restart_guard: Option<Time>,
}

impl Votes {
    /// The longest ttl, if there is a limit.
    fn longest(&self) -> Option<Duration> {
        let longest = self.restart_guard.as_ref().map(|time| time.0);
        longest.filter(|longest| !longest.is_zero())
    }
}

const TIMES: &str = "TIME is a number of seconds, or has a unit: 500ms 30s 5m 1h 1d";

const BREAKING: &str = "It shows the holder, asks, and deletes the lock if it is still this holder's.\n\
    If the holder is still running, two may then run at once: it learns of the loss by its next\nrenewal or release.";

const PROBLEMS: &str = "Problems:\n  no-expiry    It has no ttl, so nothing ends it, and this program did not make it\n  \
    minority     It lay on less than half of the nodes in three looks: a leftover\n  \
    long         It stays for longer than --older";

fn exit_codes() -> String {
    let line = |(code, when): &(&str, &str)| format!("  {code:<12} {when}\n");
    let lines: String = CODES.iter().map(line).collect();
    format!("{TIMES}\n\nExit codes:\n{}", lines.trim_end())
}

/// The work of `redlock run`, after all checks.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: OsString,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// `None`: for ever. Zero: one attempt.
    pub(crate) wait: Option<Duration>,
    pub(crate) conflict: u8,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) at_least: Duration,
    pub(crate) grace: Duration,
    pub(crate) fair: bool,
    pub(crate) fence: bool,
    pub(crate) kind: Kind,
}

impl Run {
    /// # Errors
    ///
    /// The option, its value and its limits.
    pub(crate) fn job(&self) -> Result<Job, String> {
        let (name, command) = words(&self.words)?;
        let [program, arguments @ ..] = command else {
            return Err("no COMMAND: redlock run [OPTIONS] NAME COMMAND [ARG]...".into());
        };
        let (ttl, max_hold) = (self.ttl.0, self.max_hold.0);
        let second = Duration::from_secs(1);
        within("--ttl", ttl, second, Duration::from_secs(DAY))?;
        within("--max-hold", max_hold, second, Duration::MAX)?;
        let at_least = self.at_least.map_or(Duration::ZERO, |time| time.0);
        within(
            "--at-least",
            at_least,
            Duration::ZERO,
            max_hold.min(LONGEST),
        )
        .map_err(|error| format!("{error} (--max-hold)"))?;
        if let Some(longest) = self.votes.longest() {
            // The key is left with this ttl.
            within("--at-least", at_least, Duration::ZERO, longest)
                .map_err(|error| format!("{error} (--restart-guard)"))?;
        }
        let grace = self
            .grace
            .map_or(Duration::from_secs(5).min(ttl / 4), |time| time.0);
        within("--grace", grace, Duration::ZERO, ttl / 2)
            .map_err(|error| format!("{error} (half of --ttl)"))?;
        Ok(Job {
            name: name.to_owned(),
            program: program.clone(),
            arguments: arguments.to_vec(),
            wait: match self.waiting.nonblock {
                true => Some(Duration::ZERO),
                false => self.waiting.wait.map(|time| time.0),
            },
            conflict: self.waiting.conflict_exit_code,
            ttl,
            max_hold,
            at_least,
            grace,
            fair: self.fair,
            fence: self.fence,
            kind: self.any.kind(),
        })
    }
}

impl Doctor {
    /// The kind of lock that is tried.
    pub(crate) fn kind(&self) -> Kind {
        self.any.kind()
    }
}

impl Throttle {
    pub(crate) fn kind(&self) -> Kind {
        self.count.kind()
    }

    /// NAME, COMMAND and its arguments.
    ///
    /// # Errors
    ///
    /// The mistake in the words.
    pub(crate) fn words(&self) -> Result<(&OsStr, &[OsString]), String> {
        let (name, command) = words(&self.words)?;
        if self.fence && command.is_empty() {
            return Err("--fence is for COMMAND, and there is none".into());
        }
        within("--every", self.every.0, SHORTEST, LONGEST)?;
        if let Some(longest) = self.votes.longest() {
            within("--every", self.every.0, SHORTEST, longest)
                .map_err(|error| format!("{error} (--restart-guard)"))?;
        }
        Ok((name, command))
    }
}

/// NAME, and COMMAND with its arguments. `--` may be written before either.
fn words(words: &[OsString]) -> Result<(&OsStr, &[OsString]), String> {
    let [name, command @ ..] = words else {
        return Err("no NAME".into());
    };
    let command = match command {
        [dashes, command @ ..] if dashes == "--" => command,
        command => command,
    };
    let starts_with_dash = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    if let Some(program) = command.first().filter(|program| starts_with_dash(program)) {
        return Err(format!(
            "COMMAND is {program:?}: it cannot begin with \"-\". Options go before NAME"
        ));
    }
    Ok((name, command))
}

pub(crate) fn within(
    what: &str,
    time: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), String> {
    if time >= min && time <= max {
        return Ok(());
    }
    let to = match max {
        Duration::MAX => "more".into(),
        max => Time(max).to_string(),
    };
    let (time, min) = (Time(time), Time(min));
    Err(format!("{what} is {time}: it must be {min} to {to}"))
}

/// A number of seconds, or with a unit: 500ms 30s 5m 1h 1d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// The form in which it can be given; less than a millisecond is not shown.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        if millis > 0 {
            return match seconds {
                0 => write!(f, "{millis}ms"),
                _ => write!(f, "{}s", self.0.as_millis() as f64 / 1000.0),
            };
        }
        let units = [(DAY, "d"), (3600, "h"), (60, "m")];
        match units
            .iter()
            .find(|(unit, _)| seconds > 0 && seconds % unit == 0)
        {
            Some((unit, name)) => write!(f, "{}{name}", seconds / unit),
            None => write!(f, "{seconds}s"),
        }
    }
}

impl std::str::FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let end = text
            .trim_end_matches(|c: char| c.is_ascii_alphabetic())
            .len();
        let (number, unit) = text.split_at(end);
        let unit = match unit {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err("its unit must be ms, s, m, h or d".into()),
        };
        let digits = number
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: Option<f64> = digits.then(|| number.parse().ok()).flatten();
        let time = number.and_then(|number| Duration::try_from_secs_f64(number * unit).ok());
        time.filter(|time| *time <= LONGEST)
            .map(Time)
            .ok_or_else(|| {
                "it must be a number of seconds, or have a unit: 500ms 30s 5m 1h 1d; up to 36500d"
                    .into()
            })
    }
}

fn max_hold(text: &str) -> Result<Time, String> {
    match text {
        "forever" => Ok(Time(Duration::MAX)),
        text => text.parse(),
    }
}
