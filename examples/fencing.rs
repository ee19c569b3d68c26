//! A holder that was stopped comes back late and writes: the store refuses it, because another holder has been
//! there with a larger number. Without that comparison the other's deposit is lost.
//!
//! ```text
//! cargo run --package example-fencing
//! ```
//!
//! It starts private servers, and keeps an account in an SQLite file, by the crate `rusqlite`. What is to be copied
//! is [`deposit`].

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redlock_sync::Redlock;
use rusqlite::Connection;
use support::{Server, TempDir, eventually, urls, watched};

const TTL: Duration = Duration::from_secs(1);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [_, dir, fenced, nodes] = &args[..] {
        return late_holder(Path::new(dir), fenced == "fenced", nodes);
    }
    for fenced in [true, false] {
        demonstrate(fenced)?;
    }
    Ok(())
}

fn demonstrate(fenced: bool) -> Result<(), Failure> {
    let (servers, dir) = (Server::several(3), TempDir::new());
    let account = Connection::open(dir.path().join("bank"))?;
    account.execute_batch(
        "CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER, fence INTEGER);
         INSERT INTO account VALUES ('ann', 100, 0)",
    )?;
    println!(
        "-- the store {}",
        if fenced {
            "compares"
        } else {
            "does not compare"
        }
    );

    // A takes the lock, reads the balance, and is stopped.
    let mut holder = watched(&mut Command::new(std::env::current_exe()?))
        .arg("--late")
        .arg(dir.path())
        .args([
            if fenced { "fenced" } else { "unfenced" },
            &urls(&servers).join(","),
        ])
        .stdin(Stdio::null())
        .spawn()?;
    eventually("A has read", || dir.path().join("has read").exists());
    signal(&holder, libc::SIGSTOP);

    // B waits until A's lock has ended, and deposits 50.
    let redlock = Redlock::new(urls(&servers))?;
    let lock = redlock.acquire("shop:account:ann", TTL)?;
    let fence = lock.fencing_token()?;
    assert!(deposit(&account, balance(&account)? + 50, fence, fenced)?);
    println!("B deposited 50 with number {fence}");
    lock.release()?;

    // A goes on, and does not know that it was away.
    std::fs::write(dir.path().join("go on"), "")?;
    signal(&holder, libc::SIGCONT);
    assert!(holder.wait()?.success());
    let balance = balance(&account)?;
    println!("the balance is {balance}");
    assert_eq!(balance, if fenced { 150 } else { 110 });
    Ok(())
}

/// Deposits 10, and takes its time between reading and writing.
fn late_holder(dir: &Path, fenced: bool, nodes: &str) -> Result<(), Failure> {
    let account = Connection::open(dir.join("bank"))?;
    let redlock = Redlock::new(nodes)?;
    let lock = redlock.acquire("shop:account:ann", TTL)?;
    // Before it reads what it is going to change.
    let fence = lock.fencing_token()?;
    let before = balance(&account)?;
    std::fs::write(dir.join("has read"), "")?;
    // Here it is stopped, for longer than its lock lasts.
    eventually("it goes on", || dir.join("go on").exists());
    let written = deposit(&account, before + 10, fence, fenced)?;
    println!(
        "A wrote with number {fence}: {}",
        if written { "written" } else { "refused" }
    );
    assert_eq!(written, !fenced);
    Ok(())
}

fn signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).expect("a process id");
    // SAFETY: a plain system call on a child that was not waited for.
    unsafe { libc::kill(pid, signal) };
}

fn balance(account: &Connection) -> rusqlite::Result<i64> {
    account.query_row(
        "SELECT balance FROM account WHERE name = 'ann'",
        [],
        |row| row.get(0),
    )
}

/// False: a holder with a larger number has been there, so nothing was written.
fn deposit(account: &Connection, balance: i64, fence: u64, fenced: bool) -> rusqlite::Result<bool> {
    let fence = i64::try_from(fence).expect("numbers are below 2^53");
    let refuses = if fenced { " AND fence <= ?2" } else { "" };
    let sql = format!("UPDATE account SET balance = ?1, fence = ?2 WHERE name = 'ann'{refuses}");
    Ok(account.execute(&sql, (balance, fence))? == 1)
}
