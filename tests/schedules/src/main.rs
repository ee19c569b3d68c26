//! Runs schedules of the driver's threads: see `src/proof/schedules`.
//!
//!     redlock-schedules COUNT [FIRST]        this number of schedules, from that number on
//!     redlock-schedules races COUNT          all races: each is found within that number of schedules
//!     redlock-schedules race NAME COUNT [FIRST]      schedules with one race

use std::process::ExitCode;
use std::time::Instant;

use redlock_sync::schedules::{RACES, run};

/// What the operating system would give.
///
/// # Safety
///
/// `dest` is valid for `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    dest: *mut u8,
    len: usize,
) -> Result<(), getrandom::Error> {
    for at in 0..len {
        let [byte, ..] = redlock_sync::schedules::random().to_le_bytes();
        // SAFETY: the caller keeps the promise of this function.
        unsafe { dest.add(at).write(byte) };
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match words[..] {
        ["races", count] => races(number(count)),
        ["race", name, count] => one(0, number(count), Some(name)),
        ["race", name, count, first] => one(number(first), number(count), Some(name)),
        [count] => one(0, number(count), None),
        [count, first] => one(number(first), number(count), None),
        _ => one(0, 10_000, None),
    }
}

fn one(first: u64, count: u64, race: Option<&str>) -> ExitCode {
    let began = Instant::now();
    match run(first, count, race) {
        Ok(ran) => {
            let took = began.elapsed().as_secs_f64();
            println!(
                "{} schedules, {} calls, {} steps in {took:.1} s: all is well",
                ran.schedules, ran.calls, ran.steps
            );
            ExitCode::SUCCESS
        }
        Err((number, text)) => {
            println!("schedule {number} fails: {text}\n(again: redlock-schedules 1 {number})");
            ExitCode::FAILURE
        }
    }
}

/// Runs schedules with each race until one fails.
fn races(count: u64) -> ExitCode {
    // Each race fails, and there is no need to say how.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for (race, text) in RACES {
        match run(0, count, Some(&format!("{race:?}"))) {
            Ok(_) => {
                missed += 1;
                println!("{race:?} is not found: {text}");
            }
            Err((number, why)) => println!("{race:?}: schedule {number}: {why}"),
        }
    }
    println!("{} races, {missed} of them not found", RACES.len());
    ExitCode::from(u8::from(missed > 0))
}
