//! The errors with which servers and proxies refuse, and their meaning for locks. Their texts are written here and
//! in `own_words`, by the sources of Redis 3 to 8 and Valkey 7 to 9.

use crate::protocol::mutants::{Mutant, mutant};

/// The meaning of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The connection has not logged in.
    NoLogin,
    /// Wrong user or password, or a password for a server that has none.
    WrongLogin,
    /// The user may not use the command or the key.
    NotPermitted,
    NoSuchCommand,
    /// A script that Redis before 5 does not run.
    TooOld,
    NoSuchDatabase,
    /// Protected mode.
    Protected,
    /// Another server of a Redis Cluster has the key.
    Moved,
    /// A slot of a Redis Cluster is being moved, and each of two servers has some of the keys.
    Torn,
    /// A Redis Cluster that does not serve the key now.
    ClusterDown,
    Replica,
    /// A replica that does not reach its master.
    MasterDown,
    Loading,
    /// The server runs a script that does not end.
    Busy,
    DiskFailed,
    TooFewReplicas,
    OutOfMemory,
    TooManyClients,
    WrongType,
    /// A Redis Cluster keeps a script's keys on different servers.
    OtherSlot,
    /// The server does not have the script with this hash.
    NoScript,
    Other,
}

use Meaning::*;

/// How a server that is in no Cluster refuses the commands about it (Redis and Valkey).
pub(crate) const NO_CLUSTER: &str = "cluster support disabled";

/// Error codes: the first words of errors.
pub(super) const CODES: [(&str, Meaning); 22] = [
    ("ERR", Other),
    ("ASK", Torn),
    ("BUSY", Busy),
    ("CLUSTERDOWN", ClusterDown),
    ("CROSSSLOT", OtherSlot),
    ("DENIED", Protected),
    ("EXECABORT", Other),
    ("LOADING", Loading),
    ("MASTERDOWN", MasterDown),
    ("MISCONF", DiskFailed),
    ("MOVED", Moved),
    ("NOAUTH", NoLogin),
    ("NOPERM", NotPermitted),
    ("NOPROTO", Other),
    ("NOREPLICAS", TooFewReplicas),
    ("NOSCRIPT", NoScript),
    ("OOM", OutOfMemory),
    ("READONLY", Replica),
    ("TRYAGAIN", Torn),
    ("UNKILLABLE", Busy),
    ("WRONGPASS", WrongLogin),
    ("WRONGTYPE", WrongType),
];

/// The meanings of errors that begin with `ERR`, which is used for many things.
pub(super) const ERRORS: [(&str, Meaning); 17] = [
    ("ERR invalid password", WrongLogin),
    ("ERR Client sent AUTH, but no password is set", WrongLogin),
    (
        "ERR AUTH <password> called without any password configured",
        WrongLogin,
    ),
    ("ERR DB index is out of range", NoSuchDatabase),
    ("ERR invalid DB index", NoSuchDatabase),
    ("ERR SELECT is not allowed in cluster mode", NoSuchDatabase),
    // A proxy without users and passwords.
    ("ERR unknown command 'AUTH'", WrongLogin),
    ("ERR unknown command `AUTH`", WrongLogin),
    ("ERR unknown command", NoSuchCommand),
    (
        "ERR Unknown Redis command called from script",
        NoSuchCommand,
    ),
    // Valkey.
    ("ERR Unknown command called from script", NoSuchCommand),
    // In a Redis Cluster it is "clients + cluster connections".
    ("ERR max number of clients", TooManyClients),
    // DELEX of Redis 8.4.
    ("ERR Key should be of string type", WrongType),
    (
        "Write commands not allowed after non deterministic commands",
        TooOld,
    ),
    // A command or a key that a script uses: in Redis 6, before Redis 7.2, and since.
    ("The user executing the script can't", NotPermitted),
    ("ERR The user executing the script can't", NotPermitted),
    ("ERR ACL failure in script", NotPermitted),
];

impl Meaning {
    pub(crate) fn of(error: &str) -> Meaning {
        let error = in_script(error).unwrap_or(error);
        let mut errors = ERRORS.iter();
        let known = errors.find(|(start, _)| error.starts_with(start));
        let mut codes = CODES.iter();
        let by_code = || codes.find(|(name, _)| *name == code(error));
        known
            .or_else(by_code)
            .map_or(Other, |(_, meaning)| *meaning)
    }

    /// Whether the server will answer so until its configuration is changed, or this client's. False when in doubt:
    /// then callers wait in vain, but no longer than they asked to.
    pub(crate) fn is_final(self) -> bool {
        self.concerns_user()
            || matches!(
                self,
                TooOld | NoSuchDatabase | Protected | Moved | OtherSlot
            )
    }

    /// Whether the server does nothing for any client at the moment, and may well do later what it refused.
    pub(crate) fn is_not_now(self) -> bool {
        matches!(
            self,
            Loading
                | Replica
                | MasterDown
                | ClusterDown
                | Torn
                | DiskFailed
                | TooFewReplicas
                | Busy
        )
    }

    /// Whether the server may well carry out later, over the same connection, what it refused. True when in doubt: the error
    /// of a proxy whose server is away has any words. (Without memory a server still does much for others.) Rights are given
    /// back without a new connection.
    pub(crate) fn passes(self) -> bool {
        match self {
            NotPermitted => !mutant(Mutant::RightsAreForGood),
            WrongType | NoScript => false,
            other => !other.is_final(),
        }
    }

    /// Whether the server is a replica, which another server may have replaced by now (rule R38).
    pub(crate) fn is_demoted(self) -> bool {
        matches!(self, Replica | MasterDown)
    }

    /// Whether another server may have the key.
    pub(crate) fn is_redirection(self) -> bool {
        matches!(self, Moved | Torn)
    }

    /// Whether other credentials may change the answer.
    pub(crate) fn concerns_login(self) -> bool {
        matches!(self, NoLogin | WrongLogin)
    }

    pub(crate) fn concerns_rights(self) -> bool {
        matches!(self, NotPermitted | NoSuchCommand)
    }

    /// Whether another user, or the same with other rights, would not be refused.
    pub(crate) fn concerns_user(self) -> bool {
        self.concerns_login() || self.concerns_rights()
    }

    /// Advice for people: how to resolve the error.
    pub(crate) fn advice(self) -> Option<&'static str> {
        Some(match self {
            NoLogin => "give a user and a password: redis://user:password@host:port",
            WrongLogin => "look at the user and the password: it may have none",
            NotPermitted | NoSuchCommand => "permit it, or use another user",
            TooOld => {
                "it is older than Redis 5: without fencing tokens, order of arrival, semaphores and read locks it will do"
            }
            NoSuchDatabase => "give a database that it has",
            Protected => {
                "it is in protected mode: give it a password, or bind it to private addresses and set \
                 protected-mode no"
            }
            Moved => "it is a node of a Redis Cluster: write redis+cluster://host:port",
            OtherSlot => {
                "the name has a } and nothing in braces: in a Redis Cluster it has no fencing tokens"
            }
            ClusterDown => "the Redis Cluster does not serve that key now: look at CLUSTER INFO",
            Torn => "the Redis Cluster is moving that key: it is tried again",
            Replica => "it is a replica, which takes no locks: name its master",
            MasterDown => "it is a replica, and does not reach its master: name the master",
            Loading => "it reads its data: wait until it has",
            Busy => "a script does not end: SCRIPT KILL",
            DiskFailed => "it cannot write to its disk: look at its log",
            TooFewReplicas => "start its replicas, or lower min-replicas-to-write",
            OutOfMemory => "give it more maxmemory, or remove data",
            TooManyClients => "raise maxclients, in redis.conf too, or have fewer clients",
            WrongType | NoScript | Other => return None,
        })
    }
}

/// The error of a script's command, which Redis before 7 put behind its own words: `ERR Error running script (call to
/// f_…): @user_script: 1: -READONLY …`.
fn in_script(error: &str) -> Option<&str> {
    let rest = error.strip_prefix("ERR Error running script")?;
    let (_, line) = rest.rsplit_once("@user_script:")?;
    let (_, inner) = line.split_once(": ")?;
    Some(inner.trim_start_matches('-'))
}

/// The first word.
pub(crate) fn code(error: &str) -> &str {
    error.split_whitespace().next().unwrap_or_default()
}

/// Whether the server does not have a script, or this user may not call it by its hash: nothing was done.
pub(crate) fn is_not_loaded(error: &str) -> bool {
    match Meaning::of(error) {
        NoScript => true,
        NotPermitted => error.contains("'evalsha'"),
        NoSuchCommand => without_arguments(error).contains("EVALSHA"),
        _ => false,
    }
}

/// Whether a server runs no scripts, or not for this user. (Any other error means that it tried to, such as one of a
/// command in the script.)
pub(crate) fn refuses_scripts(error: &str) -> bool {
    let words = [
        "disabled",
        "must be enabled",
        "not supported",
        "not allowed",
    ];
    let in_script = [
        "executing the script",
        "in script",
        "from script",
        "running script",
    ];
    let any = |words: &[&str]| words.iter().any(|words| error.contains(words));
    !any(&in_script) && (Meaning::of(error).concerns_rights() || any(&words))
}

/// Whether that is the answer to a call of a script.
pub(crate) fn refuses_eval(error: &str) -> bool {
    let names_it = error.to_ascii_lowercase().contains("eval");
    names_it && refuses_scripts(error) && !concerns_name(error)
}

/// Whether a name is refused and not a command: other names may be permitted. Servers of different versions put it in
/// different words, and scripts in others.
pub(crate) fn concerns_name(error: &str) -> bool {
    let words = [
        "to access one of the keys",
        "to access a key",
        "can't access at least one of the keys",
    ];
    words.iter().any(|words| error.contains(words))
}

/// Whether a command was refused as a whole for its keys: it may be permitted with the lock's key alone.
pub(crate) fn refuses_companions(error: &str) -> bool {
    error.starts_with("NOPERM ") && concerns_name(error) || error.starts_with("CROSSSLOT ")
}

/// The text without the arguments that some errors repeat: the token or the password may be among them.
pub(crate) fn without_arguments(error: &str) -> &str {
    let parts = error.split_once(", with args beginning with");
    parts.map_or(error, |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_an_operator_changes_is_final_and_nothing_else() {
        for text in [
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions to run the 'set' command",
            "NOPERM No permissions to access a key",
            "DENIED Redis is running in protected mode because protected mode is enabled",
            "MOVED 3999 127.0.0.1:6381",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR DB index is out of range",
            "ERR invalid DB index",
            "ERR SELECT is not allowed in cluster mode",
            "ERR invalid password",
            "ERR Client sent AUTH, but no password is set",
            "ERR AUTH <password> called without any password configured for the default user. Are you \
             sure your configuration is correct?",
            "ERR unknown command 'EVAL', with args beginning with: 'x' ",
            "ERR unknown command `SET`",
            "ERR Unknown Redis command called from script script: 104ae65d, on @user_script:1.",
            "ERR Unknown command called from script script: on @user_script:1.",
            "ERR Error running script (call to f_0f): @user_script:1: @user_script: 1: The user executing the script \
             can't run this command or subcommand",
            "ERR The user executing the script can't run this command or subcommand script: 0f, on @user_script:3.",
            "ERR ACL failure in script: User u has no permissions to run the 'set' command script: 0f, on @user_script:3.",
        ] {
            assert!(Meaning::of(text).is_final(), "{text}");
        }
        for text in [
            "",
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN Hash slot not served",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "ASK 3999 127.0.0.1:6381",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "BUSY Redis is busy running a script.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOSCRIPT No matching script. Please use EVAL.",
            "ERR max number of clients reached",
            "ERR max number of clients + cluster connections reached",
            "ERR Error running script (call to f_0f): @user_script: 1: -READONLY You can't write",
            "ERR something that is not known here: NOPERM, WRONGPASS",
            "NOPERMISSION",
        ] {
            assert!(!Meaning::of(text).is_final(), "{text}");
        }
    }

    #[test]
    fn what_a_server_cannot_do_now_is_distinguished_from_what_it_never_will() {
        for text in [
            "READONLY You can't write against a read only replica. script: 0f, on @user_script:1.",
            "ERR Error running script (call to f_0f): @user_script: 1: -READONLY You can't write",
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN Hash slot not served",
            "BUSY Redis is busy running a script.",
        ] {
            assert!(Meaning::of(text).is_not_now(), "{text}");
            assert!(Meaning::of(text).passes(), "{text}");
        }
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            // Rights can be given back.
            "NOPERM this user has no permissions to run the 'eval' command",
            // Proxies.
            "ERR Connection timed out",
            "upstream failure",
        ] {
            let meaning = Meaning::of(text);
            assert!(!meaning.is_not_now() && meaning.passes(), "{text}");
        }
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Key should be of string type if conditions are specified",
            "MOVED 3999 127.0.0.1:6381",
            "ERR unknown command 'EVAL', with args beginning with: 'if' '1' 'a BUSY name'",
        ] {
            assert!(!Meaning::of(text).passes(), "{text}");
        }
    }

    #[test]
    fn a_replica_is_distinguished_from_a_server_that_is_not_ready() {
        for (text, is_demoted) in [
            (
                "READONLY You can't write against a read only replica.",
                true,
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                true,
            ),
            (
                "ERR Error running script (call to f_0f): @user_script: 1: -READONLY You can't write",
                true,
            ),
            ("LOADING Redis is loading the dataset in memory", false),
            ("BUSY Redis is busy running a script.", false),
            ("MISCONF Redis is configured to save RDB snapshots", false),
            ("NOREPLICAS Not enough good replicas to write.", false),
            ("CLUSTERDOWN Hash slot not served", false),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                false,
            ),
        ] {
            assert_eq!(Meaning::of(text).is_demoted(), is_demoted, "{text}");
        }
    }

    #[test]
    fn the_same_in_a_script_of_any_version_means_the_same() {
        for (text, meaning) in [
            (
                "WRONGTYPE Operation against a key script: 0f, on @user_script:1.",
                WrongType,
            ),
            (
                "ERR Error running script (call to f_0f): @user_script:1: @user_script: 1: -WRONGTYPE Operation",
                WrongType,
            ),
            (
                "ERR Error running script (call to f_0f): @user_script: 1: -OOM command",
                OutOfMemory,
            ),
            ("ERR Error running script", Other),
        ] {
            assert_eq!(Meaning::of(text), meaning, "{text}");
        }
    }

    #[test]
    fn a_script_that_is_not_there_or_not_to_be_called_by_its_hash_is_sent_whole() {
        for (text, expected) in [
            ("NOSCRIPT No matching script. Please use EVAL.", true),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                true,
            ),
            (
                "NOPERM this user has no permissions to run the 'eval' command",
                false,
            ),
            (
                "READONLY You can't write against a read only replica.",
                false,
            ),
            ("ERR unknown command 'EVAL'", false),
            (
                "ERR unknown command 'EVAL', with args beginning with: 'EVALSHA' ",
                false,
            ),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'x' ",
                true,
            ),
            (
                "ERR unknown command `EVALSHA`, with args beginning with: `x`, ",
                true,
            ),
        ] {
            assert_eq!(is_not_loaded(text), expected, "{text}");
        }
    }

    #[test]
    fn a_refused_name_is_distinguished_from_a_refused_command() {
        for (text, expected) in [
            ("NOPERM No permissions to access a key", true),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                true,
            ),
            (
                "ERR The user executing the script can't access at least one of the keys",
                true,
            ),
            (
                "NOPERM this user has no permissions to run the 'del' command",
                false,
            ),
            (
                "NOPERM this user has no permissions to run the command or subcommand",
                false,
            ),
        ] {
            assert_eq!(concerns_name(text), expected, "{text}");
        }
    }

    #[test]
    fn errors_that_are_final_or_may_pass_have_advice() {
        for (name, meaning) in CODES.iter().chain(&ERRORS) {
            let is_known = meaning.is_final() || meaning.is_not_now();
            assert!(!is_known || meaning.advice().is_some(), "{name}");
            assert!(!(meaning.is_final() && meaning.is_not_now()), "{name}");
        }
    }
}
