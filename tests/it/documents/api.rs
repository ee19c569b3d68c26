//! Names every public item and its trait bounds, so that an accidental break does not compile.

use std::error::Error as StdError;
use std::fmt::{Debug, Display};
use std::time::{Duration, SystemTime};

use redlock_sync::{
    ConfigError, Credentials, Ending, Error, Event, Finding, Fingerprint, Holder, Inspection,
    IntoNode, KeptLock, LastRun, ListedLock, Listing, Lock, LockState, Lockable, LostReason,
    NodeAddress, NodeError, NodeErrors, NodeFacts, NodeState, Options, Problem, RandomError,
    Redlock, Reentrant, ReentrantLock, Report, Severity, Tls, Token,
};

fn sendable<T: Send + Sync + 'static>() {}
fn shown<T: Debug + Display>() {}
fn shown_only<T: Debug>() {}
#[cfg(feature = "testing")]
fn unwinds<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
fn error<T: StdError + Send + Sync + 'static>() {}
fn cloned<T: Clone + Debug + Send + Sync>() {}

#[cfg(feature = "testing")]
#[test]
fn every_item_for_tests_has_its_bounds() {
    use redlock_sync::testing::{Held, Node, Requests};
    sendable::<Node>();
    shown_only::<Node>();
    unwinds::<Node>();
    cloned::<Held>();
    cloned::<Requests>();
    assert_eq!(Requests::default(), Requests::default());
}

#[test]
fn every_item_has_its_bounds() {
    cloned::<Redlock>();
    cloned::<Options>();
    cloned::<Tls>();
    sendable::<Tls>();
    cloned::<Credentials>();
    sendable::<Credentials>();
    cloned::<Token>();
    cloned::<NodeErrors>();
    cloned::<NodeError>();
    error::<NodeError>();
    cloned::<Listing>();
    sendable::<Listing>();
    cloned::<ListedLock>();
    shown::<Problem>();
    sendable::<Redlock>();
    sendable::<Lock>();
    cloned::<Lockable>();
    sendable::<KeptLock>();
    cloned::<LostReason>();
    cloned::<Ending>();
    cloned::<Inspection>();
    cloned::<LockState>();
    cloned::<NodeState>();
    cloned::<Holder>();
    cloned::<Fingerprint>();
    cloned::<Report>();
    cloned::<Finding>();
    cloned::<NodeAddress>();
    cloned::<NodeFacts>();
    shown::<NodeAddress>();
    cloned::<Severity>();
    shown::<Holder>();
    shown::<Fingerprint>();
    shown::<Report>();
    shown::<Finding>();
    shown::<Severity>();
    shown_only::<Event<'_>>();
    sendable::<Error>();
    error::<Error>();
    error::<ConfigError>();
    error::<RandomError>();
    shown::<Error>();
    shown::<NodeErrors>();
    assert!(std::mem::size_of::<Error>() <= 64);
    assert!(Options::new() == Options::default());
}

// Spelled out is what they are for.
#[allow(clippy::type_complexity)]
#[test]
fn every_function_has_its_signature() {
    let _: fn(Redlock, Options) -> Result<Redlock, Error> = Redlock::with_options;
    let _: fn(Redlock, fn(Options) -> Options) -> Result<Redlock, Error> = Redlock::adjust;
    let _: fn(&Redlock) -> Result<Option<NodeErrors>, Error> = Redlock::connect;
    let _: fn(&Redlock, &'static str, Duration) -> Result<Option<Lock>, Error> =
        Redlock::try_acquire;
    let _: fn(&Redlock, Vec<u8>, Duration) -> Result<Lock, Error> = Redlock::acquire;
    let _: fn(&Redlock, &'static [u8], Duration, Duration) -> Result<Lock, Error> =
        Redlock::acquire_within;
    let _: fn(&Redlock, String, Duration, fn() -> bool) -> Result<Lock, Error> =
        Redlock::acquire_while;
    // The error of the work is any that is made from the library's, as with `anyhow`.
    type AnyError = Box<dyn std::error::Error + Send + Sync>;
    type Result8 = Result<u8, AnyError>;
    let _: fn(&Redlock, &'static str, Duration, fn(&mut Lock) -> Result8) -> Result8 =
        Redlock::with_lock;
    let _: fn(&Reentrant, &'static str, Duration, fn(&ReentrantLock) -> Result8) -> Result8 =
        Reentrant::with_lock;
    let _: fn(&Redlock, &'static str, Token, Duration) -> Result<Lock, Error> = Redlock::resume;
    let _: fn(&Redlock, &'static str, u32) -> Result<Lockable, Error> = Redlock::semaphore;
    let _: fn(&Redlock, &'static str) -> Result<Lockable, Error> = Redlock::read_lock;
    let _: fn(&Redlock, &'static str) -> Result<Lockable, Error> = Redlock::write_lock;
    let _: fn(&Redlock, Vec<&'static str>) -> Result<Lockable, Error> = Redlock::several;
    let _: fn(&Lockable, Duration) -> Result<Option<Lock>, Error> = Lockable::try_acquire;
    let _: fn(&Lockable, Duration) -> Result<Lock, Error> = Lockable::acquire;
    let _: fn(&Lockable, Duration, Duration) -> Result<Lock, Error> = Lockable::acquire_within;
    let _: fn(&Lockable, Duration, fn() -> bool) -> Result<Lock, Error> = Lockable::acquire_while;
    let _: fn(&Lockable, Duration, fn(&mut Lock) -> Result8) -> Result8 = Lockable::with_lock;
    let _: fn(&Lockable, Duration, Duration, fn(&KeptLock) -> Result8) -> Result8 =
        Lockable::with_kept_lock;
    let _: fn(&Lockable, Token, Duration) -> Result<Lock, Error> = Lockable::resume;
    let _: fn(&Lock) -> Option<u32> = Lock::slot;
    let _: fn(&KeptLock) -> Option<u32> = KeptLock::slot;
    let _: fn(Redlock, fn(&Event<'_>)) -> Redlock = Redlock::with_observer;
    let _: fn(&Redlock, &'static str) -> Result<Inspection, Error> = Redlock::inspect;
    let _: fn(&Redlock, &'static str, &Holder) -> Result<bool, Error> = Redlock::break_lock;
    let _: fn(&Inspection) -> LockState = Inspection::state;
    let _: fn(&Inspection) -> Option<usize> = Inspection::waiting;
    let _: fn(&Inspection) -> Option<Duration> = Inspection::longest_wait;
    let _ = |it: &Inspection| it.waiting_labels().map(str::len).count();
    let _ = |it: &ListedLock| it.waiting_labels().map(str::len).count();
    let _: fn(&ListedLock) -> Option<usize> = ListedLock::waiting;
    let _: fn(&ListedLock) -> Option<Duration> = ListedLock::longest_wait;
    let _: fn(&Holder) -> Option<SystemTime> = Holder::since;
    let _: fn(&Holder) -> bool = Holder::has_left;
    let _: fn(&redlock_sync::Busy) -> bool = redlock_sync::Busy::is_own;
    let _: fn(&Redlock, &'static str) -> Result<Option<LastRun>, Error> = Redlock::last_run;
    let _: fn(&Lock, Duration, Duration) -> Result<(), Error> = Lock::mark_done;
    let _: fn(&KeptLock, Duration, Duration) -> Result<(), Error> = KeptLock::mark_done;
    let _: fn(&LastRun) -> SystemTime = LastRun::ended;
    let _: fn(&LastRun) -> Duration = LastRun::took;
    let _: fn(&LastRun) -> Duration = LastRun::again_in;
    let _: fn(&LastRun) -> Option<&str> = LastRun::label;
    let _: fn(&Redlock, &'static [u8]) -> Result<Report, Error> = Redlock::check;
    let _: fn(&Report) -> bool = Report::is_fit;
    let _: fn(&Token) -> Fingerprint = Token::fingerprint;
    let _: fn(&Holder) -> Fingerprint = Holder::fingerprint;
    let _: fn(&Holder) -> Option<&str> = Holder::label;
    let _: fn(&Finding) -> Severity = Finding::severity;
    let _: fn(&Finding) -> Option<usize> = Finding::node;
    let _: fn(&Finding) -> &'static str = Finding::code;
    let _: fn(&NodeFacts) -> &str = NodeFacts::address;
    let _: fn(&NodeFacts) -> Option<&str> = NodeFacts::version;
    let _: fn(&NodeFacts) -> Option<&str> = NodeFacts::role;
    let _: fn(&NodeFacts) -> Option<Duration> = NodeFacts::uptime;
    let _: fn(&NodeFacts) -> Option<Duration> = NodeFacts::round_trip;
    let _: fn(&NodeFacts) -> Option<i64> = NodeFacts::clock_offset_ms;
    let _: fn(&Lock) -> &[u8] = Lock::resource;
    let _: fn(&Lock) -> &Token = Lock::token;
    let _: fn(&Lock) -> Duration = Lock::remaining;
    let _: fn(&Lock) -> bool = Lock::is_valid;
    let _: fn(&Lock, Duration) -> Result<(), Error> = Lock::ensure;
    let _: fn(&Lock) -> u32 = Lock::extensions_left;
    let _: fn(&mut Lock, Duration) -> Result<(), Error> = Lock::extend;
    let _: fn(Lock) -> Result<(), Error> = Lock::release;
    let _: fn(Lock) = Lock::leak;
    let _: fn(Lock, Duration) -> Result<(), Error> = Lock::leak_for;
    let _: fn(Lock, Duration) -> Result<KeptLock, Error> = Lock::keep_alive;
    let _: fn(&Redlock, &'static str, Duration, Duration, fn(&KeptLock) -> Result8) -> Result8 =
        Redlock::with_kept_lock;
    let _: fn(&KeptLock) -> &[u8] = KeptLock::resource;
    let _: fn(&KeptLock) -> &Token = KeptLock::token;
    let _: fn(&KeptLock) -> Duration = KeptLock::remaining;
    let _: fn(&KeptLock) -> Duration = KeptLock::hold_left;
    let _: fn(&KeptLock) -> bool = KeptLock::is_valid;
    let _: fn(&KeptLock, Duration) -> Result<(), Error> = KeptLock::ensure;
    let _: fn(&KeptLock, Duration) -> bool = KeptLock::wait_lost;
    let _: fn(&KeptLock, Box<dyn FnOnce(LostReason) + Send>) = KeptLock::on_lost;
    let _: fn(&KeptLock) -> Option<LostReason> = KeptLock::lost;
    let _: fn(KeptLock) -> Lock = KeptLock::stop;
    let _: fn(KeptLock) -> Result<(), Error> = KeptLock::release;
    let _: fn(&Token) -> &[u8; 20] = Token::as_bytes;
    let _: fn([u8; 20]) -> Token = Token::from_bytes;
    let _: fn() -> Options = Options::new;
    let _: fn(Options, Duration) -> Options = Options::wait;
    let _: fn(Options, Duration, Duration) -> Options = Options::retry_delay;
    let _: fn(Options, Duration) -> Options = Options::node_timeout;
    let _: fn(Options, Duration) -> Options = Options::connect_timeout;
    let _: fn(Options, u32) -> Options = Options::max_extensions;
    let _: fn(&Redlock) -> &Options = Redlock::options;
    let _: fn(&Options) -> Duration = Options::get_wait;
    let _: fn(&Options) -> (Duration, Duration) = Options::get_retry_delay;
    let _: fn(&Options) -> Duration = Options::get_node_timeout;
    let _: fn(&Options) -> Duration = Options::get_connect_timeout;
    let _: fn(&Options) -> u32 = Options::get_max_extensions;
    let _: fn(&Options) -> Option<Duration> = Options::get_restart_guard;
    let _: fn(&Options) -> bool = Options::get_fair;
    let _: fn(&Options) -> Option<&str> = Options::get_label;
    let _: fn(&Options) -> &str = Options::get_prefix;
    let _: fn(Options, Tls) -> Options = Options::tls;
    let _: fn(Options, fn(&str) -> Result<Credentials, String>) -> Options = Options::credentials;
    let _: fn(&'static str) -> Credentials = Credentials::new;
    let _: fn(Credentials, String) -> Credentials = Credentials::user;
    let _: fn(Tls, &'static str) -> Tls = Tls::root_certificates;
    let _: fn(Tls, &'static str, Vec<u8>) -> Tls = Tls::client_certificate;
    let _: fn(Tls, &'static str) -> Tls = Tls::server_name;
    assert!(Tls::new() == Tls::default());
}

#[test]
fn one_node_or_several_are_given_in_any_form() {
    Redlock::new("redis://a").unwrap();
    Redlock::new("redis://a".to_owned()).unwrap();
    Redlock::new(("localhost", 6379)).unwrap();
    Redlock::new(["redis://a", "redis://b"]).unwrap();
    Redlock::new(["redis://a", "redis://b"].iter()).unwrap();
    Redlock::new(["redis://a".to_owned()].iter()).unwrap();
    Redlock::new(vec!["redis://a".to_owned()]).unwrap();
    Redlock::new([("localhost", 6379)]).unwrap();
    Redlock::new(["unix:///run/redis.sock?db=1&user=u&pass=p"]).unwrap();
    Redlock::new("redis://a/0".into_node().unwrap()).unwrap();
    let node: NodeAddress = "redis+sentinel://:p@a,b/m".into_node().unwrap();
    assert!(node.has_password() && !node.is_over_tls());
    Redlock::new(node).unwrap();
    let node: NodeAddress = "redis+cluster://:p@a,b".into_node().unwrap();
    assert!(node.has_password() && !node.is_over_tls());
    Redlock::new(node).unwrap();
}

#[test]
fn every_error_can_be_distinguished_from_the_others() {
    let name = |error: &Error| match error {
        Error::Config(_) => "config",
        Error::Busy(_) => "busy",
        Error::OtherKind(other) => {
            let _: &[u8] = other.resource();
            "other kind"
        }
        Error::Lost(_) => "lost",
        Error::TooSlow(_) => "too slow",
        Error::Unavailable(nodes) => {
            for error in nodes.iter() {
                let _: (usize, &str) = (error.node(), error.address());
                let _: &(dyn StdError + Send + Sync) = error.cause();
            }
            "unavailable"
        }
        Error::ExtensionLimit(limit) => {
            let _: u32 = limit.limit();
            "limit"
        }
        Error::Cancelled(_) => "cancelled",
        Error::Random(_) => "random",
        _ => "later",
    };
    let reason = |reason: LostReason| match reason {
        LostReason::Taken => "taken",
        LostReason::Expired => "expired",
        LostReason::HoldLimit => "hold limit",
        _ => "later",
    };
    assert_eq!(reason(LostReason::Taken), "taken");
    let redlock = Redlock::new("redis://a").unwrap();
    let gone = redlock.acquire_while("shop:a", Duration::from_secs(1), || false);
    let error = gone.unwrap_err();
    assert_eq!(name(&error), "cancelled");
    assert_eq!(error.resource(), Some(&b"shop:a"[..]));
    assert!(!error.is_busy());
}
