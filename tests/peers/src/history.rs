//! A history: what happened, an event a line, in the order in which the harness saw it.
//!
//! ```text
//! 120034 a acquire name=x ttl=10000 wait=2000
//! 121377 a reply to=acquire name=x is=ok begin=120101 end=121290 left=9896000
//! 121400 - fault node=1 what=stopped
//! ```
//!
//! Time in microseconds of one clock, a client or `-`, a word, fields. A field `text` comes last and goes on to the
//! end of the line.

use std::fmt;

/// Microseconds since the history began.
pub type Time = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Time,
    pub who: String,
    pub what: String,
    fields: Vec<(String, String)>,
}

impl Event {
    pub fn new(at: Time, who: &str, what: &str) -> Event {
        Event {
            at,
            who: who.to_owned(),
            what: what.to_owned(),
            fields: Vec::new(),
        }
    }

    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Event {
        self.fields.push((name.to_owned(), value.to_string()));
        self
    }

    /// Fields as they stand on a line.
    pub fn with_line(mut self, line: &str) -> Event {
        let mut rest = line.trim();
        while !rest.is_empty() {
            let (name, after) = rest.split_once('=').unwrap_or((rest, ""));
            let (value, after) = match name {
                "text" => (after, ""),
                _ => after.split_once(' ').unwrap_or((after, "")),
            };
            self.fields.push((name.to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        self
    }

    /// Empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        let field = self.fields.iter().find(|(field, _)| field == name);
        field.map_or("", |(_, value)| value)
    }

    /// A number that is too large for any time is the largest one: some libraries subtract too much.
    pub fn number(&self, name: &str) -> Option<u64> {
        let number: u128 = self.get(name).parse().ok()?;
        Some(u64::try_from(number).unwrap_or(u64::MAX))
    }

    /// The same with another number in a field that has one.
    pub fn shifted(mut self, name: &str, origin: Time) -> Event {
        for (field, value) in &mut self.fields {
            if field == name
                && let Ok(number) = value.parse::<u64>()
            {
                *value = number.saturating_sub(origin).to_string();
            }
        }
        self
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.at, self.who, self.what)?;
        let mut fields = self.fields.iter();
        fields.try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// All lines but empty ones; an error names the line.
pub fn parse(text: &str) -> Result<Vec<Event>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().unwrap_or("");
            let (at, who, what) = (word(), word(), word());
            let at = at.parse().ok().filter(|_| !what.is_empty());
            let at = at.ok_or_else(|| format!("not an event: {line}"))?;
            Ok(Event::new(at, who, what).with_line(word()))
        })
        .collect()
}

/// The parts of a history, each with the event `scenario` at its head.
pub fn scenarios(events: &[Event]) -> Vec<&[Event]> {
    let heads = events.iter().enumerate();
    let mut heads: Vec<usize> = heads
        .filter(|(_, event)| event.what == "scenario")
        .map(|(at, _)| at)
        .collect();
    heads.push(events.len());
    heads
        .windows(2)
        .map(|ends| &events[ends[0]..ends[1]])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let event = Event::new(17, "a", "reply")
            .with("to", "acquire")
            .with("text", "no key x=1 here");
        let line = event.to_string();
        assert_eq!(line, "17 a reply to=acquire text=no key x=1 here");
        assert_eq!(parse(&line), Ok(vec![event]));
        assert!(parse("nonsense").is_err() && parse("a b c").is_err());
    }

    #[test]
    fn numbers_do_not_overflow() {
        let event = Event::new(0, "a", "reply").with("left", "18446744073709550615000");
        assert_eq!(event.number("left"), Some(u64::MAX));
        assert_eq!(
            Event::new(0, "a", "key").with("pttl", -1).number("pttl"),
            None
        );
    }

    #[test]
    fn a_history_falls_into_scenarios() {
        let events = parse("0 - scenario name=one\n1 a ready\n0 - scenario name=two\n").unwrap();
        let lengths: Vec<usize> = scenarios(&events).iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [2, 1]);
    }
}
