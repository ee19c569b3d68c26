//! The verdict on the history of one scenario. A pure function that knows of no library: it compares what each
//! client's library told it with what the others' did, and with what was found on the nodes.
//!
//! What a client may believe: from the return of an acquire it holds the lock until the end that the library names
//! (`left`). A library that names none is read as a careful user would: it is held for the ttl from the *call* on.
//! An extension or a check that succeeds moves the end. Belief ends early when the client calls `release`, when the
//! library says that the lock is lost, or when the process is killed. An extension that *failed* changes nothing:
//! the library has not said that the lock is lost.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Event, Time};

/// Redis counts expiry in whole milliseconds, from the time at which its event loop woke up.
const ROUNDING: Time = 2_000;
/// A call may return this much after the wait that it was given, or that the documents promise.
const GRACE: Time = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Two clients held one lock, by what their libraries told them.
    Overlap,
    /// The lock was granted after its ttl had passed.
    GrantedLate,
    /// A write on top of a state that another had changed.
    LostUpdate,
    /// The same, although the register refuses old fencing tokens.
    LostUpdateFenced,
    /// The library said that the lock was lost while it was not.
    LostEarly,
    /// The library extended, or vouched for, a lock that another held by then.
    Vouched,
    /// No answer at all.
    Hung,
    /// The client's process ended by itself.
    Died,
    /// A call took longer than the wait that was given or is documented, by two seconds and more.
    Late,
    /// The lock was free and enough nodes were well, and the client did not get it.
    NotGranted,
    /// A key that belongs to no holder and blocks others until it expires.
    KeyLeft,
    /// The same, and it never expires.
    KeyForever,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    pub text: String,
    /// How long, or how late, in microseconds. Zero where there is no such thing.
    pub size: Time,
}

#[derive(Debug, Default)]
pub struct Verdict {
    pub findings: Vec<Finding>,
    /// How many acquires were granted, out of how many.
    pub granted: (u64, u64),
    /// The longest call.
    pub longest: Time,
    /// Writes that the register refused for their fencing token.
    pub refused: u64,
    /// What the library said when it could not, in its words.
    pub said: Vec<String>,
    /// The scenario could not be carried out, and why.
    pub skipped: Option<String>,
}

impl Verdict {
    /// Nothing was found that the library could have prevented: where the token of a late write was refused, the
    /// register without a fence is only there to compare.
    pub fn is_well(&self) -> bool {
        let harmless = |finding: &Finding| finding.kind == Kind::LostUpdate && self.refused > 0;
        self.skipped.is_none() && self.findings.iter().all(harmless)
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

/// A client's belief that it holds a lock.
#[derive(Debug)]
struct Span {
    who: String,
    name: String,
    from: Time,
    until: Time,
    /// As promised, whatever ended it.
    promised: Time,
}

/// A guarded value, as versions: with and without a fence.
#[derive(Debug, Default)]
struct Register {
    version: u64,
    fenced_version: u64,
    highest: u64,
}

#[derive(Debug, Default)]
struct Judge {
    verdict: Verdict,
    spans: Vec<Span>,
    /// The client's current span, by client and lock.
    current: BTreeMap<(String, String), usize>,
    registers: BTreeMap<String, Register>,
    /// What a client has read: the versions without and with a fence.
    read: BTreeMap<(String, String), (u64, u64)>,
    /// The wait that a library documents, in microseconds, by client.
    documented: BTreeMap<String, String>,
    /// Locks are leases that are renewed from their beginning, also while a call waits: a late grant is as good as an early one.
    leased: bool,
    /// Parts of names of keys that a library documents to leave.
    keeps: Vec<String>,
    /// The request that a client has not had an answer to.
    asked: BTreeMap<String, Event>,
    /// Locks with a call that the harness ended, client and all: what it would have cleaned up is not known.
    abandoned: Vec<String>,
    /// Nodes have lost data, so that any lock may rightly be found lost.
    lossy: bool,
}

/// All that can be said about one scenario.
pub fn judge(history: &[Event]) -> Verdict {
    let mut judge = Judge::default();
    for event in history {
        judge.event(event);
    }
    judge.overlaps();
    judge.verdict
}

fn seconds(time: Time) -> String {
    format!("{:.3} s", time as f64 / 1e6)
}

impl Judge {
    fn find(&mut self, kind: Kind, size: Time, text: String) {
        self.verdict.findings.push(Finding { kind, text, size });
    }

    fn event(&mut self, event: &Event) {
        match event.what.as_str() {
            "ready" => self.ready(event),
            "acquire" | "release" | "extend" | "check" | "fence" | "write" => self.request(event),
            "reply" => self.reply(event),
            "gone" => self.end(event, event.number("end").unwrap_or(event.at)),
            "hung" => {
                let text = format!("{} had no answer to {}", event.who, event.get("to"));
                self.find(Kind::Hung, 0, text);
                self.over(event);
            }
            "died" => {
                let text = format!("{} ended by itself in {}", event.who, event.get("to"));
                self.find(Kind::Died, 0, text);
                self.over(event);
            }
            "fault" => self.fault(event),
            "read" => {
                let register = self
                    .registers
                    .entry(event.get("name").to_owned())
                    .or_default();
                let versions = (register.version, register.fenced_version);
                self.read.insert(key(event), versions);
            }
            "key" => self.key_left(event),
            "skipped" => self.verdict.skipped = Some(event.get("text").to_owned()),
            _ => {}
        }
    }

    fn ready(&mut self, event: &Event) {
        self.leased = event.get("leased") == "yes";
        self.documented
            .insert(event.who.clone(), event.get("wait").to_owned());
        let keeps = event
            .get("keeps")
            .split(',')
            .filter(|part| !part.is_empty());
        self.keeps = keeps.map(str::to_owned).collect();
    }

    fn request(&mut self, event: &Event) {
        if event.what == "acquire" {
            self.verdict.granted.1 += 1;
        }
        if event.what == "release" {
            self.end(event, event.at);
        }
        self.asked.insert(event.who.clone(), event.clone());
    }

    fn fault(&mut self, event: &Event) {
        self.lossy |= event.get("data") == "lost";
        if event.get("what") == "killed" && !event.get("client").is_empty() {
            let client = Event::new(event.at, event.get("client"), "died");
            self.over(&client);
        }
    }

    /// The client holds nothing any more.
    fn over(&mut self, event: &Event) {
        if let Some(asked) = self.asked.remove(&event.who) {
            self.abandoned.push(asked.get("name").to_owned());
        }
        for span in self.spans.iter_mut().filter(|span| span.who == event.who) {
            span.until = span.until.min(event.at);
        }
    }

    fn span(&mut self, event: &Event) -> Option<&mut Span> {
        let at = self.current.get(&key(event))?;
        self.spans.get_mut(*at)
    }

    fn end(&mut self, event: &Event, at: Time) {
        if let Some(span) = self.span(event) {
            span.until = span.until.min(at);
        }
    }

    fn reply(&mut self, event: &Event) {
        let Some(asked) = self.asked.remove(&event.who) else {
            return;
        };
        let begin = event.number("begin").unwrap_or(asked.at);
        let end = event.number("end").unwrap_or(event.at);
        self.verdict.longest = self.verdict.longest.max(end.saturating_sub(begin));
        let is = event.get("is");
        if matches!(is, "busy" | "lost" | "failed") {
            let said = format!("{}: {is}: {}", asked.what, event.get("text"));
            if !self.verdict.said.contains(&said) {
                self.verdict.said.push(said);
            }
        }
        // What the library names, or else the ttl from the call on.
        let ttl = asked.number("ttl").map(|ttl| begin + ttl * 1_000);
        let until = match (event.get("left"), ttl) {
            ("kept", _) => Some(Time::MAX),
            ("", ttl) => ttl,
            _ => Some(end.saturating_add(event.number("left").unwrap_or(0))),
        };
        match (asked.what.as_str(), is) {
            ("acquire", _) => self.acquired(&asked, is, begin, end, until),
            ("extend" | "check", "ok") => {
                self.vouched(&asked, begin);
                if let (Some(until), Some(span)) = (until, self.span(&asked)) {
                    span.until = until;
                    span.promised = until;
                }
            }
            ("extend" | "check", "lost") => self.lost(&asked, end),
            ("write", "ok") => self.write(&asked),
            _ => {}
        }
    }

    fn acquired(&mut self, asked: &Event, is: &str, begin: Time, end: Time, until: Option<Time>) {
        let took = end.saturating_sub(begin);
        let wait = match self.documented.get(&asked.who).map(String::as_str) {
            Some("given") => asked.number("wait"),
            Some(ms) => ms.parse().ok(),
            None => None,
        };
        if let Some(wait) = wait.map(|wait| wait * 1_000)
            && took > wait + GRACE
        {
            let text = format!(
                "{} waited for {} of {}",
                asked.who,
                seconds(took),
                seconds(wait)
            );
            self.find(Kind::Late, took - wait, text);
        }
        if is != "ok" {
            // A library that renews by itself may rightly hold on to what the schedule takes for free.
            let name = asked.get("name");
            let mut spans = self.spans.iter();
            let held =
                spans.any(|span| span.name == name && span.who != asked.who && span.until > begin);
            let abandoned = self.abandoned.iter().any(|other| other == name);
            if asked.get("expect") == "granted" && !held && !abandoned {
                let text = format!(
                    "{} did not get {}, which was free: {is}",
                    asked.who,
                    asked.get("name")
                );
                self.find(Kind::NotGranted, 0, text);
            }
            return;
        }
        self.verdict.granted.0 += 1;
        let until = until.unwrap_or(end);
        let ttl = asked.number("ttl").unwrap_or(0) * 1_000;
        // After a wait the last attempt may have begun late; but nothing is valid for all of its ttl when it is granted.
        if took > ttl && until.saturating_sub(end) >= ttl && !self.leased {
            let text = format!(
                "{} got {} {} after its ttl",
                asked.who,
                asked.get("name"),
                seconds(took - ttl)
            );
            self.find(Kind::GrantedLate, took - ttl, text);
        }
        self.current.insert(key(asked), self.spans.len());
        self.spans.push(Span {
            who: asked.who.clone(),
            name: asked.get("name").to_owned(),
            from: end,
            until,
            promised: until,
        });
    }

    /// The library says that the client holds the lock. If another was granted it in the meantime, and this
    /// client's own time was over before, that is false.
    fn vouched(&mut self, asked: &Event, begin: Time) {
        let Some(own) = self.span(asked) else {
            return;
        };
        let (from, until) = (own.from, own.until);
        let other = self.spans.iter().find(|other| {
            other.name == asked.get("name")
                && other.who != asked.who
                && other.from > from
                && other.from < begin
                && other.until > begin + ROUNDING
        });
        if let Some(other) = other
            && until < begin
        {
            let text = format!(
                "{} was told that it holds {}, which {} holds",
                asked.who,
                asked.get("name"),
                other.who
            );
            self.find(Kind::Vouched, 0, text);
        }
    }

    fn lost(&mut self, asked: &Event, at: Time) {
        let lossy = self.lossy;
        let Some(span) = self.span(asked) else {
            return;
        };
        let early = span.promised.saturating_sub(at);
        let again = span.until <= at;
        span.until = span.until.min(at);
        if early > ROUNDING && !lossy && !again {
            let text = format!(
                "{} lost {} {} before its end",
                asked.who,
                asked.get("name"),
                seconds(early)
            );
            self.find(Kind::LostEarly, early, text);
        }
    }

    fn write(&mut self, asked: &Event) {
        let (plain, fenced) = self.read.get(&key(asked)).copied().unwrap_or_default();
        let register = self
            .registers
            .entry(asked.get("name").to_owned())
            .or_default();
        let lost = plain != register.version;
        register.version += 1;
        let fence = asked.number("fence");
        let refused = fence.is_some_and(|fence| fence < register.highest);
        let lost_fenced = !refused && fence.is_some() && fenced != register.fenced_version;
        if !refused {
            register.fenced_version += 1;
            register.highest = register.highest.max(fence.unwrap_or(0));
        }
        let versions = (register.version, register.fenced_version);
        self.read.insert(key(asked), versions);
        self.verdict.refused += u64::from(refused);
        if lost {
            let text = format!(
                "{} wrote {} on top of another's write",
                asked.who,
                asked.get("name")
            );
            self.find(Kind::LostUpdate, 0, text);
        }
        if lost_fenced {
            let text = format!(
                "{}'s token {} was not refused",
                asked.who,
                asked.get("fence")
            );
            self.find(Kind::LostUpdateFenced, 0, text);
        }
    }

    /// A key found at the end, on a node that is well.
    fn key_left(&mut self, event: &Event) {
        let key = event.get("key");
        if self.keeps.iter().any(|part| key.contains(part)) {
            return;
        }
        let held = self
            .spans
            .iter()
            .any(|span| key.contains(span.name.as_str()) && span.until > event.at);
        let abandoned = self
            .abandoned
            .iter()
            .any(|name| key.contains(name.as_str()));
        if held || abandoned {
            return;
        }
        let text = format!(
            "node {} has {key}, {} ms to live",
            event.get("node"),
            event.get("pttl")
        );
        match event.number("pttl") {
            Some(ttl) => self.find(Kind::KeyLeft, ttl * 1_000, text),
            None => self.find(Kind::KeyForever, 0, text),
        }
    }

    fn overlaps(&mut self) {
        let mut found = Vec::new();
        for (at, first) in self.spans.iter().enumerate() {
            for second in &self.spans[at + 1..] {
                if first.name != second.name || first.who == second.who {
                    continue;
                }
                let both = first.until.min(second.until);
                let both = both.saturating_sub(first.from.max(second.from));
                if both > ROUNDING {
                    let text = format!(
                        "{} and {} hold {} for {}",
                        first.who,
                        second.who,
                        first.name,
                        seconds(both)
                    );
                    found.push((both, text));
                }
            }
        }
        for (size, text) in found {
            self.find(Kind::Overlap, size, text);
        }
    }
}

fn key(event: &Event) -> (String, String) {
    (event.who.clone(), event.get("name").to_owned())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
