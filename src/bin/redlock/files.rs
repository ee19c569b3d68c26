//! Files that the command reads, which may be pipes.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use redlock_sync::command::LONGEST_FILE;

/// How long the writer of a pipe may take: it may ask a store of secrets, or be a person.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

/// A file's mode and content. The file may be a pipe: standard input, or `<(…)` of a shell, whose writer takes its
/// time, or a FIFO, which may have none.
pub(crate) fn read(path: &Path, within: Duration) -> io::Result<(u32, Vec<u8>)> {
    let end = Instant::now() + within;
    let mut file = OpenOptions::new();
    // Without the flag, opening a FIFO waits for a writer.
    let file = file.custom_flags(OFlag::O_NONBLOCK.bits());
    let file = file.read(true).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut bytes = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, wait) {
            Ok(0) => {
                let text = format!(
                    "not read to its end within {within:?}: is it a pipe that is never closed?"
                );
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut page = [0; 4096];
        match (&file).read(&mut page) {
            Ok(0) => break,
            Ok(count) => bytes.extend(page.iter().take(count)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > LONGEST_FILE {
            let text = format!("longer than {LONGEST_FILE} bytes");
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
    }
    Ok((mode, bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;
    use std::{env, thread};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fifo(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("redlock-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        path
    }

    #[test]
    fn a_pipe_that_is_not_written_or_closed_is_waited_for_within_its_time() {
        let path = fifo("silent");
        let begin = Instant::now();
        let unopened = read(&path, SECOND / 2).unwrap_err();
        let writer = OpenOptions::new().read(true).write(true).open(&path);
        let open = read(&path, SECOND / 2).unwrap_err();
        assert!(begin.elapsed() > SECOND / 2 && begin.elapsed() < 6 * SECOND);
        for error in [unopened, open] {
            let text = error.to_string();
            assert!(text.contains("500ms") && text.contains("pipe"), "{text}");
        }
        drop(writer);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_pipe_is_read_until_it_is_closed() {
        let path = fifo("slow");
        let text = thread::scope(|scope| {
            let reader = scope.spawn(|| read(&path, 20 * SECOND));
            thread::sleep(SECOND / 10);
            let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
            for _ in 0..3 {
                writer.write_all("#\n".repeat(3000).as_bytes()).unwrap();
                thread::sleep(SECOND / 10);
            }
            drop(writer);
            reader.join().unwrap().unwrap().1
        });
        assert_eq!(text.len(), 18_000);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_never_ends_is_read_to_its_limit() {
        let error = read(Path::new("/dev/zero"), 20 * SECOND).unwrap_err();
        assert!(error.to_string().contains("1048576 bytes"), "{error}");
    }
}
