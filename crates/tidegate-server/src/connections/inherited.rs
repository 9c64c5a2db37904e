//! Listening sockets that the parent process hands over (socket activation).
//!
//! The service manager keeps them open while the program restarts, so callers who connect in between wait in the
//! queue instead of being refused. A socket goes to the door of its address; a door without one binds its address
//! itself.
//!
//! # Source
//! `sd_listen_fds(3)`: `LISTEN_FDS` and `LISTEN_PID`.

use std::io;
use std::net::TcpListener;
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::sync::LazyLock;

use listenfd::ListenFd;
use parking_lot::Mutex;
use tidegate::config::Address;
use tidegate::visible::excerpt;

#[derive(Debug)]
pub(super) enum Inherited {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

/// The sockets handed over to this process that no door has taken yet, read at the first use.
static INHERITED: LazyLock<Mutex<Vec<Inherited>>> = LazyLock::new(|| Mutex::new(handed_over()));

/// Takes the socket of this address.
pub(super) fn take(address: &Address) -> Option<Inherited> {
    let mut inherited = INHERITED.lock();
    let at = inherited.iter().position(|socket| socket.is_at(address))?;
    Some(inherited.swap_remove(at))
}

pub(super) fn has(address: &Address) -> bool {
    INHERITED.lock().iter().any(|socket| socket.is_at(address))
}

/// Returns the addresses of the sockets that no door has taken.
pub(crate) fn unclaimed() -> Vec<String> {
    INHERITED.lock().iter().map(Inherited::address_text).collect()
}

/// The most sockets that are taken over: far more than there are doors.
const MOST: usize = 64;

/// Takes the sockets out of the environment. Logs those that are not listening stream sockets.
fn handed_over() -> Vec<Inherited> {
    let said = |name| std::env::var(name).ok();
    if let Err(why) = believable(said("LISTEN_FDS").as_deref(), said("LISTEN_PID").as_deref()) {
        tracing::warn!("no socket is taken over: {why}");
        return Vec::new();
    }
    let mut handed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for at in 0..handed.len() {
        match taken(&mut handed, at) {
            Ok(socket) => sockets.extend(socket),
            Err(error) => tracing::warn!(%error, "a socket that was handed over cannot be used"),
        }
    }
    sockets
}

/// Checks whether the variables can be trusted. Without `LISTEN_PID`, `LISTEN_FDS` may be meant for another process,
/// and its descriptors are other files of this one.
///
/// # Errors
/// The variable, its value, and what would work.
fn believable(fds: Option<&str>, pid: Option<&str>) -> Result<(), String> {
    let Some(fds) = fds else { return Ok(()) };
    match fds.parse::<usize>() {
        Ok(count) if count <= MOST => {}
        _ => return Err(format!("LISTEN_FDS is \"{}\", which is not a number up to {MOST}", excerpt(fds))),
    }
    match pid {
        Some(_) => Ok(()),
        None => Err("LISTEN_FDS says that there are sockets, but LISTEN_PID does not say for which process; set it to this process's id".to_owned()),
    }
}

fn taken(handed: &mut ListenFd, at: usize) -> io::Result<Option<Inherited>> {
    #[cfg(unix)]
    if let Ok(Some(socket)) = handed.take_unix_listener(at) {
        socket.set_nonblocking(true)?;
        return Ok(Some(Inherited::Unix(socket)));
    }
    let Some(socket) = handed.take_tcp_listener(at)? else { return Ok(None) };
    socket.set_nonblocking(true)?;
    Ok(Some(Inherited::Tcp(socket)))
}

impl Inherited {
    fn is_at(&self, address: &Address) -> bool {
        match (self, address) {
            (Self::Tcp(socket), Address::Tcp(addr)) => socket.local_addr().is_ok_and(|own| own == *addr),
            #[cfg(unix)]
            (Self::Unix(socket), Address::Unix { path, .. }) => {
                socket.local_addr().is_ok_and(|own| own.as_pathname() == Some(path.as_path()))
            }
            #[cfg(unix)]
            (Self::Tcp(_), Address::Unix { .. }) | (Self::Unix(_), Address::Tcp(_)) => false,
            #[cfg(not(unix))]
            (Self::Tcp(_), Address::Unix { .. }) => false,
        }
    }

    fn address_text(&self) -> String {
        match self {
            Self::Tcp(socket) => {
                socket.local_addr().map_or_else(|error| error.to_string(), |own| own.to_string())
            }
            #[cfg(unix)]
            Self::Unix(socket) => match socket.local_addr() {
                Ok(own) => format!("unix:{}", own.as_pathname().unwrap_or("".as_ref()).display()),
                Err(error) => error.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a count of a billion made a start that did not end.
    #[test]
    fn what_the_environment_says_is_followed_within_bounds() {
        assert_eq!(believable(None, None), Ok(()));
        assert_eq!(believable(Some("2"), Some("77")), Ok(()));
        for wrong in ["999999999", "-1", "", "two"] {
            let why = believable(Some(wrong), Some("77")).unwrap_err();
            assert!(why.contains("LISTEN_FDS") && why.contains(wrong), "{why}");
        }
        assert!(believable(Some("1"), None).unwrap_err().contains("LISTEN_PID"));
    }

    #[test]
    fn a_socket_belongs_to_its_address_and_no_other() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let socket = Inherited::Tcp(socket);
        let is_at = |address: &str| socket.is_at(&address.parse().unwrap());
        assert!(is_at(&format!("127.0.0.1:{port}")));
        assert!(!is_at(&format!("0.0.0.0:{port}")) && !is_at("127.0.0.1:0") && !is_at("unix:/run/x"));
        assert_eq!(socket.address_text(), format!("127.0.0.1:{port}"));
    }

    #[cfg(unix)]
    #[test]
    fn a_socket_in_the_file_system_belongs_to_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("http");
        let socket = Inherited::Unix(UnixListener::bind(&path).unwrap());
        let address = |path: &std::path::Path| format!("unix:{}", path.display()).parse::<Address>().unwrap();
        assert!(socket.is_at(&address(&path)) && !socket.is_at(&address(&dir.path().join("other"))));
        assert_eq!(socket.address_text(), format!("unix:{}", path.display()));
    }
}
