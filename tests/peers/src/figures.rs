//! Times, from the histories: how fast it is where all is well, and how long a fault keeps a lock from the next holder.

use std::fmt::Write;

use crate::history::{Event, Time, scenarios};

/// A contender's, in microseconds; none where the scenario was not played or ended otherwise.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Of an acquire and a release together, where no other client is there.
    pub pair: Option<Time>,
    /// The waits of three clients that take turns: the one in the middle, and the longest.
    pub waits: Option<(Time, Time)>,
    /// From the kill of the leader until a free lock is granted.
    pub leader: Option<Time>,
    /// From the kill of a holder whose ttl was 1.5 s until another is granted its lock.
    pub holder: Option<Time>,
}

pub fn figures(history: &[Event]) -> Figures {
    let mut figures = Figures::default();
    for part in scenarios(history) {
        let times = |what| answers(part, what);
        match part[0].get("name") {
            "pairs" => {
                // The first lock is there to connect.
                let (acquires, releases) = (times("acquire"), times("release"));
                let took = |all: &[(Time, Time)]| {
                    all.iter()
                        .skip(1)
                        .map(|(begin, end)| end - begin)
                        .sum::<Time>()
                };
                let count = acquires.len().min(releases.len()).saturating_sub(1) as Time;
                figures.pair = (took(&acquires) + took(&releases)).checked_div(count);
            }
            "contention" => {
                let mut waits: Vec<Time> = times("acquire")
                    .iter()
                    .map(|(begin, end)| end - begin)
                    .collect();
                waits.sort_unstable();
                figures.waits = waits.last().map(|last| (waits[waits.len() / 2], *last));
            }
            "leader-killed" => figures.leader = until_granted(part),
            "holder-killed" => figures.holder = until_granted(part),
            _ => {}
        }
    }
    figures
}

/// When each call that succeeded began and ended.
fn answers(part: &[Event], what: &str) -> Vec<(Time, Time)> {
    let well = |event: &&Event| {
        event.what == "reply" && event.get("to") == what && event.get("is") == "ok"
    };
    let times = part.iter().filter(well);
    times
        .filter_map(|event| Some((event.number("begin")?, event.number("end")?)))
        .collect()
}

/// From the kill to the next grant.
fn until_granted(part: &[Event]) -> Option<Time> {
    let killed = part
        .iter()
        .find(|event| event.what == "fault" && event.get("what") == "killed")?
        .at;
    let granted = answers(part, "acquire").into_iter().map(|(_, end)| end);
    granted
        .filter(|end| *end > killed)
        .min()
        .map(|end| end - killed)
}

/// A row for each contender.
pub fn markdown<'a>(rows: impl Iterator<Item = (String, &'a Figures)>) -> String {
    let heads = "contender | pairs per second | wait for a turn: in the middle, longest | \
        next grant after the leader's kill | next holder after the holder's kill (ttl 1.5 s)";
    let mut text = format!("| {heads} |\n| --- | --- | --- | --- | --- |\n");
    let ms = |time: Time| format!("{:.0} ms", time as f64 / 1e3);
    let none = || "–".to_owned();
    for (name, figures) in rows {
        let pairs = figures
            .pair
            .map(|pair| format!("{:.0}", 1e6 / pair.max(1) as f64));
        let waits = figures
            .waits
            .map(|(middle, longest)| format!("{}, {}", ms(middle), ms(longest)));
        let [leader, holder] =
            [figures.leader, figures.holder].map(|time| time.map_or_else(none, ms));
        let (pairs, waits) = (pairs.unwrap_or_else(none), waits.unwrap_or_else(none));
        let _ = writeln!(text, "| {name} | {pairs} | {waits} | {leader} | {holder} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::parse;

    #[test]
    fn times_are_taken_from_histories() {
        let history = "0 - scenario name=leader-killed\n\
            10 a reply to=acquire is=ok begin=1 end=9\n\
            1000 - fault node=2 what=killed\n\
            2000 a reply to=acquire is=failed begin=1100 end=1900\n\
            3500 a reply to=acquire is=ok begin=2000 end=3400\n\
            0 - scenario name=pairs\n\
            1 a reply to=acquire is=ok begin=0 end=5000\n\
            2 a reply to=release is=ok begin=0 end=5000\n\
            3 a reply to=acquire is=ok begin=6000 end=7000\n\
            4 a reply to=release is=ok begin=7000 end=7500\n";
        let found = figures(&parse(history).unwrap());
        assert_eq!(
            found,
            Figures {
                pair: Some(1_500),
                leader: Some(2_400),
                ..Figures::default()
            }
        );
        let text = markdown(std::iter::once(("x".to_owned(), &found)));
        assert!(text.ends_with("| x | 667 | – | 2 ms | – |\n"), "{text}");
    }
}
