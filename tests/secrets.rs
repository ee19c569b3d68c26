//! No token and no password in `Debug`, `Display` or log lines.

mod support;

use std::sync::Mutex;

use redlock_sync::Redlock;
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

#[test]
fn nothing_that_is_shown_or_logged_has_a_token_or_a_password() {
    log::set_logger(&Collect).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let mut servers: Vec<Server> = (0..3)
        .map(|_| Server::with_args(&["--requirepass", "hunter2"]))
        .collect();
    let urls = servers
        .iter()
        .map(|server| server.url().replace("://", "://:hunter2@"));
    let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
    let redlock = redlock.with_observer(|event| EVENTS.lock().unwrap().push(format!("{event:?}")));
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

    eventually("a node is said to be away", || {
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
        assert!(!text.contains("hunter2"), "{text}");
    }
}
