//! Ports of this machine, each for one user at a time.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A port on which nothing listens yet. For as long as this value lives, no other test has it, in whatever process, and the
/// kernel gives it to no outgoing connection: a server that was killed can come back to it.
pub struct Port {
    number: u16,
    /// Its name is the port's.
    _for_tests: UnixListener,
    /// Bound, but not listening, and with `SO_REUSEADDR`: a server that sets that, as all do, can be bound to it as well.
    _for_others: OwnedFd,
}

impl Port {
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number.fmt(out)
    }
}

pub fn free_port() -> Port {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static LOOPBACK: Once = Once::new();
    LOOPBACK.call_once(loopback_is_up);
    for _ in 0..COUNT {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mixed = (std::process::id().wrapping_mul(2_654_435_761) >> 8).wrapping_add(number * 7);
        match reserve(FIRST + (mixed % u32::from(COUNT)) as u16) {
            Ok(port) => return port,
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("no port can be had: {error}"),
        }
    }
    panic!("no port is free of those from {FIRST} on, {COUNT} of them");
}

pub fn reserve(number: u16) -> Result<Port> {
    let name = SocketAddr::from_abstract_name(format!("redlock-sync-port-{number}"))?;
    Ok(Port {
        number,
        _for_tests: UnixListener::bind_addr(&name)?,
        _for_others: bound(number)?,
    })
}

fn bound(number: u16) -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: number.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(std::net::Ipv4Addr::LOCALHOST).to_be(),
        },
        sin_zero: [0; 8],
    };
    let (yes, size) = (1_i32, size_of::<i32>() as libc::socklen_t);
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: plain system calls on values of ours, with their sizes.
    unsafe {
        let socket = libc::socket(libc::AF_INET, kind, 0);
        if socket < 0 {
            return Err(Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let file = socket.as_raw_fd();
        let (level, option) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        let set = libc::setsockopt(file, level, option, (&raw const yes).cast(), size);
        if set != 0 || libc::bind(file, (&raw const address).cast(), length) != 0 {
            return Err(Error::last_os_error());
        }
        Ok(socket)
    }
}

/// A network namespace of its own, as `unshare -n` makes it, has none at first.
fn loopback_is_up() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0));
    let reached = listener.and_then(|one| std::net::TcpStream::connect(one.local_addr()?));
    if let Err(error) = reached {
        panic!(
            "127.0.0.1 cannot be reached: {error}. Is the loopback interface up (ip link set lo up)?"
        );
    }
}
