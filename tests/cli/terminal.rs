//! `redlock run` at a terminal, as a user of an interactive shell sees it.

use crate::children::{Program, program, redlock_command, start};
use crate::support;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use nix::unistd::{Pid, tcgetpgrp};
use support::*;

const SHELLS: [&str; 2] = ["bash", "dash"];

/// A program at a terminal of its own that shows no keys.
struct Session {
    program: Program,
    terminal: PtyMaster,
    /// What it has written, from what was expected last.
    written: Vec<u8>,
}

impl Session {
    fn spawn(mut command: Command) -> Session {
        // Other threads start programs meanwhile, which must not keep it open.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let terminal = posix_openpt(flags).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let end = options.open(ptsname_r(&terminal).unwrap()).unwrap();
        let mut modes = tcgetattr(&end).unwrap();
        modes.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&end, SetArg::TCSANOW, &modes).unwrap();
        command
            .stdin(end.try_clone().unwrap())
            .stdout(end.try_clone().unwrap())
            .stderr(end);
        let at_terminal = || {
            // SAFETY: plain system calls, in a child that is about to run the program.
            match unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 } {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: it allocates nothing, and takes no lock.
        let program = start(unsafe { command.pre_exec(at_terminal) });
        Session {
            program,
            terminal,
            written: Vec::new(),
        }
    }

    /// False: it has ended, or closed the terminal.
    fn read(&mut self, until: Instant) -> bool {
        let time = until.saturating_duration_since(Instant::now());
        let mut terminal = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut terminal, PollTimeout::try_from(time).unwrap()).unwrap();
        let seen = String::from_utf8_lossy(&self.written);
        assert!(ready > 0, "not in time; what came: {seen:?}");
        let mut bytes = [0; 1024];
        let count = self.terminal.read(&mut bytes).unwrap_or(0);
        self.written.extend(&bytes[..count]);
        count > 0
    }

    /// Waits until it writes `text`; what it wrote before.
    fn expect(&mut self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let mut places = self.written.windows(text.len());
            if let Some(at) = places.position(|bytes| bytes == text.as_bytes()) {
                let rest = self.written.split_off(at + text.len());
                let before = std::mem::replace(&mut self.written, rest);
                return String::from_utf8_lossy(&before[..at]).into_owned();
            }
            let seen = String::from_utf8_lossy(&self.written).into_owned();
            assert!(self.read(until), "it ended without {text:?}: {seen:?}");
        }
    }

    fn ends(&mut self) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.read(until) {}
    }

    fn line(&mut self, line: &str) {
        self.terminal.write_all(line.as_bytes()).unwrap();
        self.terminal.write_all(b"\n").unwrap();
    }

    /// Another group than that of the program itself has the terminal.
    fn is_given(&self) -> bool {
        tcgetpgrp(&self.terminal).unwrap().as_raw() != self.program.pid()
    }

    /// With Ctrl.
    fn key(&mut self, key: u8) {
        self.terminal.write_all(&[key & 0x1f]).unwrap();
    }
}

/// An interactive shell at a terminal of its own. `$r` is `redlock run`.
struct Terminal {
    session: Session,
    servers: Vec<Server>,
}

impl Terminal {
    fn new(shell: &str) -> Terminal {
        let servers = Server::several(3);
        let mut command = program(shell, &urls(&servers).join(","));
        if shell == "bash" {
            command.args(["--norc", "--noprofile", "--noediting"]);
        }
        command
            .arg("-i")
            .env("PS1", "@@ ")
            .env("TERM", "dumb")
            .env("r", "redlock run");
        let mut terminal = Terminal {
            session: Session::spawn(command),
            servers,
        };
        terminal.prompt();
        terminal
    }

    /// Runs a script without job control.
    fn script(&mut self, text: &str) {
        let script = self.servers[0].dir().join("script");
        std::fs::write(&script, text).unwrap();
        self.line(&format!("sh '{}'", script.display()));
    }

    /// Waits until the shell sees that its job is stopped.
    fn job_stops(&mut self) {
        eventually("the shell sees that it is stopped", || {
            std::thread::sleep(ms(100));
            self.line("jobs; echo end-of-jobs");
            let jobs = self.expect("end-of-jobs");
            self.prompt();
            jobs.contains("Stopped")
        });
    }

    fn prompt(&mut self) -> String {
        self.expect("@@ ")
    }

    /// What came before.
    fn expect(&mut self, text: &str) -> String {
        self.session.expect(text)
    }

    fn line(&mut self, line: &str) {
        self.session.line(line);
    }

    fn key(&mut self, key: u8) {
        self.session.key(key);
    }

    /// The last exit code, which shows that the shell has the terminal.
    fn code(&mut self) -> String {
        self.line("echo code=$?");
        self.expect("code=");
        let code = self.expect("\n");
        self.prompt();
        code.trim().to_owned()
    }

    fn is_held(&self, name: &str) -> bool {
        let on = self.servers.iter().filter(|server| server.exists(name));
        on.count() >= 2
    }
}

fn has_stopped(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.unwrap().contains(") T ")
}

/// Names of a shell's programs would be expanded too early. What is to get a key writes so itself: a shell that is just
/// starting a program may miss it, or go on to that program.
fn sh(script: &str) -> String {
    format!("sh -c '{script}'")
}

#[test]
fn the_command_reads_from_the_terminal_and_a_script_reads_after_it() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        terminal.line(&format!("$r x {}", sh("read a; echo \"<$a>\"; exit 4")));
        terminal.line("word");
        terminal.expect("<word>");
        terminal.prompt();
        assert_eq!(terminal.code(), "4");
        // Not interactive, so only we give the terminal away.
        let script = "$r x sh -c \"read a; echo first=\\$a\"; read b; echo second=$b";
        terminal.line(&format!("{shell} -c '{script}'"));
        terminal.line("one");
        terminal.expect("first=one");
        terminal.line("two");
        terminal.expect("second=two");
        terminal.prompt();
    }
}

#[test]
fn ctrl_c_ends_the_command_and_the_loop_around_it() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        let say = sh("echo started; exec sleep 1000");
        terminal.line(&format!("$r x {say}"));
        terminal.expect("started");
        terminal.key(b'c');
        terminal.prompt();
        assert_eq!(terminal.code(), "130", "{shell}");
        eventually("released", || !terminal.is_held("x"));
        // At the prompt, and in a script.
        let rounds = format!("for i in 1 2 3; do echo round=$i; $r x {say}; done");
        terminal.line(&rounds);
        terminal.expect("started");
        terminal.key(b'c');
        let said = terminal.prompt();
        assert!(!said.contains("round="), "{shell}: {said}");
        let rounds =
            "for i in 1 2 3; do echo round=$i; $r x sh -c \"echo started; exec sleep 1000\"; done";
        terminal.line(&format!("{shell} -c '{rounds}'"));
        terminal.expect("started");
        terminal.key(b'c');
        let said = terminal.prompt();
        assert!(!said.contains("round="), "{shell}: {said}");
        // One that handles it goes on.
        let handles = sh("trap \"echo caught\" INT; (echo started; exec sleep 1000); exit 4");
        terminal.line(&format!("$r x {handles}"));
        terminal.expect("started");
        terminal.key(b'c');
        terminal.expect("caught");
        terminal.prompt();
        assert_eq!(terminal.code(), "4");
    }
}

#[test]
fn ctrl_z_stops_it_and_fg_goes_on() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        terminal.line(&format!(
            "$r x {}",
            sh("echo started; read a; echo \"<$a>\"; exit 4")
        ));
        terminal.expect("started");
        terminal.key(b'z');
        terminal.prompt();
        terminal.line("jobs");
        terminal.expect("Stopped");
        terminal.prompt();
        assert!(terminal.is_held("x"));
        for _ in 0..3 {
            terminal.line("fg");
            terminal.expect("sh -c");
            std::thread::sleep(ms(200));
            terminal.key(b'z');
            terminal.prompt();
        }
        terminal.line("fg");
        terminal.line("word");
        terminal.expect("<word>");
        terminal.prompt();
        assert_eq!(terminal.code(), "4");
        eventually("released", || !terminal.is_held("x"));
    }
}

#[test]
fn stopped_past_the_lease_it_is_lost() {
    let mut terminal = Terminal::new("bash");
    terminal.line(&format!(
        "$r --ttl 6s x {}",
        sh("echo started; exec sleep 1000")
    ));
    terminal.expect("started");
    let start = Instant::now();
    terminal.key(b'z');
    terminal.prompt();
    eventually("nothing is renewed", || !terminal.is_held("x"));
    // Twice the ttl.
    assert!(start.elapsed() < ms(12_000), "{:?}", start.elapsed());
    terminal.line("fg");
    terminal.prompt();
    assert_eq!(terminal.code(), "76");
}

#[test]
fn a_script_around_it_stops_and_goes_on_with_it() {
    let mut terminal = Terminal::new("bash");
    let script = "$r x sh -c \"echo started; read a; echo first=\\$a\"; read b; echo second=$b";
    terminal.line(&format!("bash -c '{script}'"));
    terminal.expect("started");
    terminal.key(b'z');
    terminal.prompt();
    terminal.line("fg");
    terminal.line("one");
    terminal.expect("first=one");
    terminal.line("two");
    terminal.expect("second=two");
    terminal.prompt();
}

#[test]
fn in_the_background_it_runs_and_gets_the_terminal_when_it_is_brought_back() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        terminal.line(&format!("$r x {} &", sh("sleep 0.3; echo background")));
        terminal.expect("background");
        terminal.line("wait; echo waited");
        terminal.expect("waited");
        terminal.prompt();
        // It reads, so it is stopped, and so are we.
        terminal.line(&format!("$r x {} &", sh("read a; echo \"<$a>\"; exit 4")));
        terminal.job_stops();
        terminal.line("fg");
        terminal.line("word");
        terminal.expect("<word>");
        terminal.prompt();
        assert_eq!(terminal.code(), "4");
    }
}

/// The kernel stops the whole group of a process that reads from a terminal which is not its own.
#[test]
fn a_pipeline_in_the_background_is_seen_to_stop_when_its_command_reads() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        let reads = sh("read a </dev/tty; echo \"<$a>\"");
        terminal.line(&format!("$r x {reads} | cat &"));
        terminal.job_stops();
        terminal.line("fg");
        terminal.line("word");
        terminal.expect("<word>");
        terminal.prompt();
    }
}

#[test]
fn two_in_a_script_that_both_read_get_the_terminal_one_after_the_other() {
    let mut terminal = Terminal::new("bash");
    let reads = sh("read a </dev/tty; echo \"<$a>\"");
    terminal.script(&format!("$r x {reads} & $r y {reads} & wait; echo both\n"));
    terminal.line("one");
    terminal.expect("<one>");
    terminal.line("two");
    terminal.expect("<two>");
    terminal.expect("both");
    terminal.prompt();
}

/// As `cpulimit` does it. The shell of a script does not see that its child has stopped.
#[test]
fn a_command_of_a_script_that_another_process_stops_and_continues_goes_on() {
    let mut terminal = Terminal::new("bash");
    let job = sh("echo command=$$; exec sleep 8");
    terminal.script(&format!("$r --ttl 5s x {job}; echo behind $?\n"));
    terminal.expect("command=");
    let command = Pid::from_raw(terminal.expect("\n").trim().parse().unwrap());
    for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
        kill(command, signal).unwrap();
        // The wrapper has time to react.
        std::thread::sleep(ms(300));
    }
    terminal.expect("behind 0");
    terminal.prompt();
}

#[test]
fn in_a_pipeline_the_terminal_stays_with_the_program_that_shows_the_result() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        let mate = sh("read a </dev/tty; echo \"mate <$a>\"; cat");
        terminal.line(&format!("$r x {} | {mate}", sh("sleep 0.5; echo data")));
        terminal.line("word");
        terminal.expect("mate <word>");
        terminal.expect("data");
        terminal.prompt();
        // The keys reach both.
        let say = sh("echo command=$$; exec sleep 1000");
        terminal.line(&format!("$r x {say} | cat"));
        terminal.expect("command=");
        let command = terminal.expect("\n");
        let is_stopped = || has_stopped(command.trim());
        assert!(terminal.is_held("x") && !is_stopped());
        terminal.key(b'z');
        terminal.prompt();
        eventually("COMMAND is stopped", is_stopped);
        terminal.line("fg");
        terminal.expect("cat");
        eventually("COMMAND goes on", || !is_stopped());
        terminal.key(b'c');
        terminal.prompt();
        eventually("released", || !terminal.is_held("x"));
    }
}

#[test]
fn with_its_input_from_elsewhere_it_gets_the_terminal_when_it_asks() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        let asks = sh("cat; read a </dev/tty; echo \"<$a>\"; exit 4");
        terminal.line(&format!("echo piped | $r x {asks}"));
        terminal.expect("piped");
        terminal.line("word");
        terminal.expect("<word>");
        terminal.prompt();
        assert_eq!(terminal.code(), "4");
    }
}

/// As ssh, which asks for a password, before less.
#[test]
fn a_program_behind_it_gets_the_terminal_back_when_it_asks() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        let asks = sh("read a </dev/tty; echo \"<$a>\"; exec sleep 1000");
        let mate = sh(
            "read l; echo \"$l\"; read k </dev/tty; echo \"key $k\"; read k </dev/tty; echo \"again $k\"; cat",
        );
        terminal.line(&format!("$r x {asks} | {mate}"));
        terminal.line("word");
        terminal.expect("<word>");
        terminal.line("one");
        terminal.expect("key one");
        terminal.key(b'z');
        terminal.prompt();
        terminal.line("fg");
        terminal.line("two");
        terminal.expect("again two");
        assert!(terminal.is_held("x"));
        terminal.key(b'c');
        terminal.prompt();
        eventually("released", || !terminal.is_held("x"));
    }
}

/// The kernel stops the whole group of a process that reads from a terminal which is not its own.
#[test]
fn a_command_in_the_background_stops_when_a_program_behind_it_reads() {
    for shell in SHELLS {
        let mut terminal = Terminal::new(shell);
        let command = sh("echo command=$$. >/dev/tty; echo; exec sleep 1000");
        let mate = sh("read n; read a </dev/tty; echo \"<$a>\"; cat");
        terminal.line(&format!("$r x {command} | {mate} &"));
        terminal.expect("command=");
        let command = terminal.expect(".");
        let is_stopped = || has_stopped(&command);
        terminal.job_stops();
        assert!(is_stopped(), "{shell}");
        terminal.line("fg");
        terminal.line("word");
        terminal.expect("<word>");
        eventually("COMMAND goes on", || !is_stopped());
        terminal.key(b'c');
        terminal.prompt();
    }
}

#[test]
fn where_no_shell_could_let_it_go_on_ctrl_z_does_nothing() {
    let servers = Server::several(3);
    let script = "echo started; read a; echo \"<$a>\"";
    let words = ["run", "x", "sh", "-c", script];
    let mut session = Session::spawn(redlock_command(&urls(&servers).join(","), &words));
    session.expect("started");
    session.key(b'z');
    std::thread::sleep(ms(300));
    session.line("word");
    session.expect("<word>");
    session.ends();
}

#[test]
fn ctrl_z_and_ctrl_c_while_it_waits() {
    let mut terminal = Terminal::new("bash");
    let lock = take(&redlock(&terminal.servers), "x");
    terminal.line("$r x echo ran");
    eventually("it waits", || terminal.servers[0].queued("x") > 0);
    terminal.key(b'z');
    terminal.expect("Stopped");
    terminal.prompt();
    terminal.line("fg");
    // The shell says so before it gives it the terminal.
    terminal.expect("echo ran");
    eventually("it has the terminal", || terminal.session.is_given());
    terminal.key(b'c');
    terminal.prompt();
    assert_eq!(terminal.code(), "130");
    lock.release().unwrap();
}

#[test]
fn a_list_that_takes_long_shows_how_far_it_is() {
    let node = fake::Fake::new(|words| match &words[0][..] {
        b"SCAN" => {
            std::thread::sleep(ms(300));
            let cursor: u32 = String::from_utf8_lossy(&words[1]).parse().unwrap();
            let next = (cursor + 1) % 8;
            format!("*2\r\n$1\r\n{next}\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n").into()
        }
        b"GETRANGE" => b"$1\r\nx\r\n".to_vec(),
        b"PTTL" => b":1000\r\n".to_vec(),
        b"DBSIZE" => b":16\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    });
    let words = ["list", "--node-timeout", "5s"];
    let mut session = Session::spawn(redlock_command(&node.url("x"), &words));
    for text in [
        " keys looked at so far",
        "NAME",
        "0 listed, 0 with a problem; 16 keys looked at on 1 of 1 nodes",
    ] {
        session.expect(text);
    }
}

/// `redlock release --force a`, when it has shown the lock and asks.
fn asks(servers: &[Server]) -> (Session, String) {
    let words = ["release", "--force", "--node-timeout", "2s", "a"];
    let mut session = Session::spawn(redlock_command(&urls(servers).join(","), &words));
    let shown = session.expect("[y/N] ");
    (session, shown)
}

/// Its exit code after this answer, and what it says.
fn answered((mut session, _): (Session, String), answer: &str) -> (Option<i32>, String) {
    session.line(answer);
    session.ends();
    let code = session.program.wait().code();
    (code, String::from_utf8_lossy(&session.written).into_owned())
}

#[test]
fn release_shows_the_holder_and_deletes_nothing_without_a_yes() {
    let servers = Server::several(3);
    let lock = take(&connected(&servers), "a");
    let name = lock.token().fingerprint().to_string();
    for answer in ["", "n", "maybe"] {
        let asked = asks(&servers);
        assert!(asked.1.contains(&format!("a: held by {name} for ")));
        let (code, said) = answered(asked, answer);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("not released"), "{said}");
    }
    assert!(servers.iter().all(|server| server.exists("a")));
    let (code, said) = answered(asks(&servers), "y");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("a: released"), "{said}");
    assert!(lock.release().is_err());
}

#[test]
fn a_lock_that_changes_hands_before_the_answer_is_not_deleted() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    let old = lock.token().fingerprint().to_string();
    let asked = asks(&servers);
    lock.release().unwrap();
    let lock = take(&redlock, "a");
    let new = lock.token().fingerprint().to_string();
    let (code, said) = answered(asked, "y");
    assert_eq!(code, Some(75), "{said}");
    for text in [
        format!("{old} no longer has it: nothing was deleted"),
        format!("a: held by {new}"),
    ] {
        assert!(said.contains(&text), "{said}");
    }
    let asked = asks(&servers);
    lock.release().unwrap();
    let (code, said) = answered(asked, "y");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("{new} no longer has it")) && said.contains("a: free"),
        "{said}"
    );
}

/// They still compare and delete, and no longer show what they have.
#[test]
fn a_lock_that_changes_hands_where_nodes_do_not_show_its_holder_is_unknown() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    let old = lock.token().fingerprint().to_string();
    let asked = asks(&servers);
    lock.release().unwrap();
    let lock = take(&redlock, "a");
    for server in &servers {
        server.command(&["ACL", "SETUSER", "default", "-pttl"]);
    }
    let (code, said) = answered(asked, "y");
    for text in [
        &*format!("{old} no longer has it: nothing was deleted"),
        "too few nodes answered",
        "a: unknown",
    ] {
        assert!(said.contains(text), "{said}");
    }
    assert_eq!(code, Some(69), "{said}");
    lock.release().unwrap();
}

/// What runs without a terminal, as from cron, prints no line each time.
#[test]
fn a_time_that_a_failover_may_cut_short_is_reported_at_a_terminal() {
    let warned = |nodes: &str, words: &[&str], at_terminal| {
        let mut command = redlock_command(nodes, words);
        let said = if at_terminal {
            let mut session = Session::spawn(command);
            session.ends();
            session.written
        } else {
            command.output().unwrap().stderr
        };
        let said = String::from_utf8(said).unwrap();
        assert!(
            !said.is_empty(),
            "{words:?}: it reports no node that is down"
        );
        let lines = said.lines().filter(|line| line.contains("failover"));
        lines
            .map(|line| line.trim_end().to_owned())
            .collect::<Vec<_>>()
    };
    let (set, cluster, server) = (
        "redis+sentinel://127.0.0.1:1/m",
        "redis+cluster://127.0.0.1:1",
        "redis://127.0.0.1:1",
    );
    let at_least: &[&str] = &["run", "-n", "--at-least", "1m", "x", "true"];
    let ttl: &[&str] = &["run", "-n", "--ttl", "31s", "x", "true"];
    let every: &[&str] = &["throttle", "--every", "1h", "x"];
    for (nodes, words, option) in [
        (set, at_least, "--at-least"),
        (cluster, ttl, "--ttl"),
        (set, every, "--every"),
    ] {
        let lines = warned(nodes, words, true);
        let expected = format!("redlock: {option} is longer than 30s: ");
        let is_whole =
            |line: &String| line.starts_with(&expected) && line.contains("--restart-guard");
        assert!(
            lines.len() == 1 && is_whole(&lines[0]),
            "{words:?}: {lines:?}"
        );
        assert_eq!(warned(nodes, words, false), [""; 0]);
    }
    let guarded: &[&str] = &["throttle", "--restart-guard", "0", "--every", "1h", "x"];
    let short: &[&str] = &["run", "-n", "--at-least", "30s", "x", "true"];
    for (nodes, words) in [(server, every), (set, guarded), (cluster, short)] {
        assert_eq!(warned(nodes, words, true), [""; 0], "{words:?}");
    }
}
