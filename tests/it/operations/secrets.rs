//! No token and no password in `Debug`, `Display` or log lines.

use crate::support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redlock_sync::{Credentials, Redlock};
use support::*;

static LINES: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collect;

impl log::Log for Collect {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES
            .lock()
            .unwrap()
            .push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

fn of_a_server_that_repeats_tokens() -> Vec<String> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = sent.clone();
    let node = fake::Fake::new(move |words| match &words[0][..] {
        b"SET" => {
            seen.lock()
                .unwrap()
                .push(words[2].escape_ascii().to_string());
            format!("-ERR bad line: SET {}\r\n", words[2].escape_ascii()).into()
        }
        _ => b"+OK\r\n".to_vec(),
    });
    let redlock = Redlock::new([node.url("hunter2")]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let error = unavailable(redlock.try_acquire("repeated", TTL)).to_string();
    let text = format!("{error} {}", redlock.check("probe").unwrap());
    assert!(error.contains("bad line: SET ***"), "{error}");
    let sent = sent.lock().unwrap();
    assert!(
        sent.len() >= 2 && !sent.iter().any(|token| text.contains(token)),
        "{text}"
    );
    vec![text]
}

/// All that is shown of them: errors, inspections and reports.
fn of_servers_that_repeat_what_they_are_sent() -> Vec<String> {
    type Answer = fn(&fake::Words) -> Vec<u8>;
    let answers: [Answer; 9] = [
        |words| format!("-ERR bad line: {}\r\n", fake::line(words)).into(),
        |words| format!("-{}\r\n", fake::line(&words[1..])).into(),
        |words| format!("-ERR {:?}\r\n", fake::line(words).to_uppercase()).into(),
        |_| b"-ERR redis://u:h%75nter2@host\r\n".to_vec(),
        |_| b"-ERR bad line: AUTH u hunter\r\n".to_vec(),
        // No RESP.
        |words| format!("{}\r\n", fake::line(&words[1..])).into(),
        // What was not asked for.
        |words| {
            format!(
                "*2\r\n$4\r\nAUTH\r\n${}\r\n{}\r\n",
                words[1].len(),
                fake::line(&words[1..2])
            )
            .into()
        },
        // It takes the password, and repeats it later.
        |words| match &words[0][..] {
            b"AUTH" => b"+OK\r\n".to_vec(),
            _ => b"-ERR sent after 'AUTH' 'u' 'hunter2'\r\n".to_vec(),
        },
        |words| match &words[0][..] {
            b"INFO" => b"$45\r\nredis_version:hunter2\nmaxmemory_policy:hunter\r\n".to_vec(),
            b"CONFIG" => b"*2\r\n$1\r\na\r\n$7\r\nhunter2\r\n".to_vec(),
            b"TIME" => b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        },
    ];
    let mut shown = of_a_server_that_repeats_tokens();
    let from_closure =
        || options().credentials(|_| Ok::<_, String>(Credentials::new("hunter2").user("u")));
    let both = answers
        .into_iter()
        .enumerate()
        .flat_map(|one| [(one, true), (one, false)]);
    for ((i, answer), in_url) in both {
        let node = fake::Fake::new(answer);
        let (url, options) = match in_url {
            true => (node.url("hunter2"), options()),
            false => (node.url("other"), from_closure()),
        };
        let redlock = Redlock::new([url]).unwrap();
        // An answer that is no refusal for good is waited for.
        let redlock = redlock.with_options(options.fair(true)).unwrap();
        let redlock =
            redlock.with_observer(|event| EVENTS.lock().unwrap().push(format!("{event:?}")));
        let taken = redlock.try_acquire("repeated", TTL);
        let waited = redlock.acquire_within("repeated", TTL, ms(50));
        let report = redlock.check("probe").unwrap();
        let inspection = redlock.inspect("repeated").unwrap();
        let text = format!("{taken:?} {waited:?} {report} {report:?} {inspection:?}");
        if i == 0 {
            assert!(text.contains("ERR bad line: AUTH u ***"), "{text}");
        }
        if let Err(error) = taken {
            shown.push(error.to_string());
        }
        shown.push(text);
    }
    assert_eq!(shown.len(), 35);
    shown
}

#[test]
fn nothing_that_is_shown_or_logged_has_a_token_or_a_password() {
    let name = "nothing_that_is_shown_or_logged_has_a_token_or_a_password";
    in_own_process(name, || {
        log::set_logger(&Collect).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let mut servers: Vec<Server> = (0..3)
            .map(|_| Server::with_args(&["--requirepass", "hunter2"]))
            .collect();
        let urls = servers
            .iter()
            .map(|server| server.url().replace("://", "://:hunter2@"));
        let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
        let redlock =
            redlock.with_observer(|event| EVENTS.lock().unwrap().push(format!("{event:?}")));
        let mut shown = vec![format!("{redlock:?}"), format!("{:?}", options())];

        let mut lock = take(&redlock, "the resource");
        assert!(redlock.try_acquire("the resource", TTL).unwrap().is_none());
        lock.extend(TTL).unwrap();
        let token = *lock.token();
        shown.push(format!("{lock:?} {token:?}"));
        assert!(shown[2].contains("the resource"));
        let inspection = redlock.inspect("the resource").unwrap();
        let report = redlock.check("probe").unwrap();
        shown.push(format!("{inspection:?} {:?}", inspection.state()));
        assert!(shown[3].contains(&token.fingerprint().to_string()));
        shown.push(format!("{report:?} {report} {:?}", token.fingerprint()));
        lock.release().unwrap();
        let lost = redlock.acquire("lost", ms(200)).unwrap();
        eventually("it is over", || !lost.is_valid());
        lost.release().unwrap_err();
        let kept = redlock.acquire("kept", ms(600)).unwrap();
        let kept = kept.keep_alive(ms(600)).unwrap();
        let third = *kept.token();
        shown.push(format!("{kept:?}"));
        assert!(kept.wait_lost(TTL));
        kept.release().unwrap_err();

        let lock = take(&redlock, "the resource");
        let second = *lock.token();
        servers.iter_mut().for_each(Server::kill);
        let errors = unavailable(redlock.try_acquire("the resource", TTL));
        drop(lock);
        shown.push(format!(
            "{errors} {errors:?} {:?}",
            errors.iter().collect::<Vec<_>>()
        ));

        shown.extend(of_servers_that_repeat_what_they_are_sent());

        eventually("a node is logged as away", || {
            let lines = LINES.lock().unwrap();
            lines.iter().any(|(_, line)| line.contains("is away"))
        });
        let lines = LINES.lock().unwrap();
        let has = |level, text: &str| {
            lines
                .iter()
                .any(|(line_level, line)| *line_level == level && line.contains(text))
        };
        assert!(
            has(log::Level::Debug, "acquire \"the resource\": granted"),
            "one line per attempt"
        );
        assert!(has(log::Level::Debug, "acquire \"the resource\": denied"));
        assert!(has(log::Level::Warn, "found lost"));
        assert!(has(
            log::Level::Warn,
            "kept lock \"kept\" is lost: it was held for as long as max_hold permits"
        ));
        assert!(has(log::Level::Warn, "could not be released"));
        assert!(has(log::Level::Warn, "is away"));
        assert!(!has(log::Level::Warn, "Busy") && !has(log::Level::Error, ""));
        shown.extend(lines.iter().map(|(_, line)| line.clone()));
        let failed = redlock.inspect("the resource").unwrap();
        shown.push(format!("{failed:?} {}", redlock.check("probe").unwrap()));
        shown.append(&mut EVENTS.lock().unwrap());
        assert!(shown.iter().any(|text| text.starts_with("NodeAway")));
        for token in [token, second, third] {
            let bytes = token.as_bytes();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let list = format!("{bytes:?}");
            let escaped = bytes.escape_ascii().to_string();
            for text in &shown {
                let text_lower = text.to_lowercase();
                assert!(
                    !text_lower.contains(&hex) && !text.contains(&escaped),
                    "{text}"
                );
                assert!(!text.contains(list.trim_matches(['[', ']'])), "{text}");
            }
        }
        for text in &shown {
            let lower = text.to_lowercase();
            assert!(!lower.contains("hunter"), "{text}");
            assert!(!lower.contains("h%75nter"), "{text}");
            let listed = "104, 117, 110, 116";
            assert!(!text.contains(listed), "{text}");
        }
    });
}

/// All that is shown of a node whose sentinel, or whose Cluster's server, answers `text`, once it was asked.
fn of_a_directory_that_answers(text: &'static str, url: fn(u16) -> String, in_url: bool) {
    let is_given = Arc::new(AtomicBool::new(in_url));
    let (answers, gives) = (is_given.clone(), is_given);
    let port = Arc::new(Mutex::new(0));
    let own = port.clone();
    let fake = fake::Fake::ending(move |words| match &words[0][..] {
        b"SENTINEL" | b"CLUSTER" if answers.load(Ordering::Relaxed) => Some(text.into()),
        // Itself is the master, so that the closure is asked for its credentials.
        b"SENTINEL" => {
            let port = own.lock().unwrap().to_string();
            let length = port.len();
            Some(format!("*2\r\n$9\r\n127.0.0.1\r\n${length}\r\n{port}\r\n").into())
        }
        // The next connection asks again.
        b"SET" => None,
        _ => Some(b"+OK\r\n".to_vec()),
    });
    *port.lock().unwrap() = fake.port();
    let options = match in_url {
        true => options(),
        false => options().credentials(move |_| {
            gives.store(true, Ordering::Relaxed);
            Ok::<_, String>(Credentials::new("hunter2").user("u"))
        }),
    };
    let redlock = Redlock::new([url(fake.port())]).unwrap();
    let redlock = redlock.with_options(options).unwrap();
    eventually(&format!("{text:?} is shown"), || {
        let errors = unavailable(redlock.try_acquire("a", TTL));
        let report = redlock.check("probe").unwrap();
        let inspection = redlock.inspect("a").unwrap();
        let text = format!("{errors} {errors:?} {report} {report:?} {inspection:?} {redlock:?}");
        assert!(!text.contains("hunter"), "{text}");
        text.contains("***")
    });
}

/// Sentinels have the password of the set (`auth-pass`), and their own.
#[test]
fn no_text_of_a_sentinel_or_of_a_clusters_server_repeats_a_password() {
    let sentinel = |port| format!("redis+sentinel://u:hunter2@127.0.0.1:{port}/m");
    let own = |port| format!("redis+sentinel://127.0.0.1:{port}/m?sentinel_password=hunter2");
    let cluster = |port| format!("redis+cluster://u:hunter2@127.0.0.1:{port}");
    let closure = |port| format!("redis+sentinel://127.0.0.1:{port}/m");
    let of_cluster = |port| format!("redis+cluster://127.0.0.1:{port}");
    for text in [
        "-ERR bad auth-pass hunter2 for m\r\n",
        "-ERR no: u%3Ah%75nter2@host\r\n",
        // No RESP.
        "auth-pass hunter2\r\n",
    ] {
        for url in [sentinel, own, cluster] {
            of_a_directory_that_answers(text, url, true);
        }
        for url in [closure, of_cluster] {
            of_a_directory_that_answers(text, url, false);
        }
    }
}
