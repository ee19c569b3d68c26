//! The reports of a set's sentinels about it, and what they mean for its locks.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::text::human;
use crate::net::discovery::sentinels::Description;
use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::Needs;
use crate::ops::rules::finding::{Remark, Severity};
use crate::protocol::commands::server_info::ServerInfo;

/// How much longer a replica may be silent than the time after which a silent master counts as down.
const LATER: Duration = Duration::from_secs(4);

/// The description of the master by each sentinel.
pub(crate) type Sentinels = [(String, Result<Description, Cause>)];

/// The remarks about a set. `info`: the master's.
pub(crate) fn remarks(
    sentinels: &Sentinels,
    info: Option<&ServerInfo>,
    needs: Needs,
) -> Vec<Remark> {
    let mut found = agreement(sentinels);
    let answered = sentinels
        .iter()
        .filter_map(|(_, description)| description.as_ref().ok());
    let all = |name| {
        answered
            .clone()
            .filter_map(move |description| number(description, name))
    };
    let down_after = all("down-after-milliseconds").min();
    let down_after = down_after.map(Duration::from_millis);
    let replicas = all("num-slaves").max();
    found.extend(info.and_then(|info| isolation(info, needs, (replicas, down_after))));
    found
}

fn number(description: &Description, name: &str) -> Option<u64> {
    description.get(name)?.parse().ok()
}

fn master(description: &Description) -> Option<String> {
    let (ip, port) = (description.get("ip")?, description.get("port")?);
    Some(format!("{ip}:{port}"))
}

fn agreement(sentinels: &Sentinels) -> Vec<Remark> {
    let mut found = Vec::new();
    let mut add = |severity, text| found.push((severity, Code::Sentinel, text));
    let mut named: Option<(&str, String)> = None;
    for (address, description) in sentinels {
        let description = match description {
            Ok(description) => description,
            Err(cause) => {
                let text = format!("the sentinel {address}: {}", cause.without_advice());
                add(Severity::Warning, text);
                continue;
            }
        };
        let Some(master) = master(description) else {
            let text = format!("the sentinel {address} does not know the master's name");
            add(Severity::Warning, text);
            continue;
        };
        match &named {
            Some((other, theirs)) if *theirs != master => {
                let text = format!(
                    "the sentinel {address} names the master {master}, and {other} names {theirs}: if that stays so, look \
                     at their logs"
                );
                add(Severity::Warning, text);
            }
            Some(_) => {}
            None => named = Some((address, master)),
        }
        let others = number(description, "num-other-sentinels").unwrap_or(0);
        let quorum = number(description, "quorum").unwrap_or(1);
        if quorum > others + 1 {
            let text = format!(
                "the sentinel {address} knows {others} others, and the quorum is {quorum}: nothing fails over"
            );
            add(Severity::Warning, text);
        }
    }
    // Each that did not answer has a warning.
    let any_answered = sentinels.iter().any(|(_, description)| description.is_ok());
    if named.is_none() && any_answered {
        let text = "no sentinel names a master: nothing fails over";
        add(Severity::Warning, text.into());
    } else if named.is_some() && sentinels.len() == 1 {
        let text = "one sentinel is given: where it is away no master is found. Name all of them";
        add(Severity::Note, text.into());
    }
    found
}

/// Warns if a master that is cut off from its sentinels would not stop.
fn isolation(
    info: &ServerInfo,
    needs: Needs,
    (replicas, down_after): (Option<u64>, Option<Duration>),
) -> Option<Remark> {
    const WHY: &str = "cut off from its sentinels, together with a client, it goes on granting locks that the new master \
                       grants to others";
    // One replica of several may be cut off with it.
    let most = replicas.unwrap_or(1).max(1);
    // INFO has this field only if the number is not zero.
    let needed = match info.get("min_slaves_good_slaves") {
        None => 0,
        Some(_) => needs.replicas.unwrap_or(most),
    };
    let text = match (needs.lag, down_after) {
        _ if needed < most => {
            let most = match replicas {
                Some(_) => format!("{most}, which is the number of replicas"),
                None => "the number of replicas".into(),
            };
            format!(
                "min-replicas-to-write is {needed}: {WHY}. Set it to {most}, on all servers of the set, in redis.conf too"
            )
        }
        (Some(lag), Some(down_after)) if lag > down_after + LATER => {
            format!(
                "min-replicas-max-lag is {}, and down-after-milliseconds {}: {WHY}, for a while. At most {} s",
                human(lag),
                human(down_after),
                (down_after + LATER).as_secs()
            )
        }
        _ => return None,
    };
    Some((Severity::Warning, Code::Isolation, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::secret::Secret;

    fn description(port: &str, others: &str) -> Result<Description, Cause> {
        let pairs = [
            ("ip", "h"),
            ("port", port),
            ("quorum", "2"),
            ("num-other-sentinels", others),
            ("down-after-milliseconds", "1000"),
        ];
        Ok(pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into())
    }

    fn with_two_replicas(description: Result<Description, Cause>) -> Result<Description, Cause> {
        description.map(|mut description| {
            description.insert("num-slaves".into(), "2".into());
            description
        })
    }

    fn texts(sentinels: Vec<Result<Description, Cause>>, info: &str, lag: u64) -> Vec<String> {
        let named = (1..).map(|number: u32| format!("s{number}")).zip(sentinels);
        let sentinels: Vec<_> = named.collect();
        let info = ServerInfo::new(info.as_bytes(), &Secret::default());
        let found = remarks(
            &sentinels,
            Some(&info),
            Needs {
                replicas: Some(1),
                lag: Some(Duration::from_secs(lag)),
            },
        );
        let found = found.into_iter();
        found
            .map(|(_, code, text)| format!("{}: {text}", code.as_str()))
            .collect()
    }

    #[test]
    fn what_keeps_a_set_from_failing_over_and_a_master_that_is_cut_off_from_stopping_is_found() {
        let stops = "min_slaves_good_slaves:1";
        let well = || {
            vec![
                description("1", "2"),
                description("1", "2"),
                description("1", "2"),
            ]
        };
        assert_eq!(texts(well(), stops, 5), [""; 0]);
        let refused = || Err(Cause::Connect("refused".into()));
        for (sentinels, info, lag, expected) in [
            (well(), "", 5, "isolation: min-replicas-to-write is 0"),
            (
                well().into_iter().map(with_two_replicas).collect(),
                stops,
                5,
                "isolation: min-replicas-to-write is 1: ",
            ),
            (
                well(),
                stops,
                6,
                "isolation: min-replicas-max-lag is 6 s, and down-after-milliseconds 1 s",
            ),
            (
                vec![description("1", "2"), refused()],
                stops,
                5,
                "sentinel: the sentinel s2: cannot connect: refused",
            ),
            (
                vec![description("1", "2"), description("2", "2")],
                stops,
                5,
                "sentinel: the sentinel s2 names the master h:2, and s1 names h:1",
            ),
            (
                vec![description("1", "0"), description("1", "2")],
                stops,
                5,
                "sentinel: the sentinel s1 knows 0 others, and the quorum is 2",
            ),
            (
                vec![description("1", "2"), Ok(Description::new())],
                stops,
                5,
                "sentinel: the sentinel s2 does not know",
            ),
            (
                vec![description("1", "2")],
                stops,
                5,
                "sentinel: one sentinel is given",
            ),
        ] {
            let texts = texts(sentinels, info, lag);
            assert_eq!(texts.len(), 1, "{texts:?}");
            assert!(texts[0].starts_with(expected), "{texts:?}");
        }
        let none = texts(vec![refused(), Ok(Description::new())], stops, 6);
        assert!(none[2].ends_with("nothing fails over"), "{none:?}");
        let silent = texts(vec![refused(), refused()], stops, 6);
        assert_eq!(silent.len(), 2, "{silent:?}");
        let unknown = texts(vec![refused()], "", 5);
        let expected = "Set it to the number of replicas, on all servers";
        assert!(unknown[1].contains(expected), "{unknown:?}");
    }
}
