//! Listens on addresses, with as long an accept queue as the system allows: on a new socket, or on one that the parent
//! process handed over.

use std::io;
use std::net::{self, SocketAddr};
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::sync::LazyLock;

use listenfd::ListenFd;
use parking_lot::Mutex;
use tidegate::config::Address;
use tidegate::visible::excerpt;
use tokio::net::{TcpListener, TcpSocket};

#[cfg(unix)]
use self::unix_socket::UnixSocket;
use super::stream::Stream;

/// The accept queue that is asked for. The system caps it (`net.core.somaxconn` on Linux, 4,096 by default).
const QUEUE: u32 = i32::MAX as u32;

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixSocket),
}

impl Listener {
    /// Listens on the socket that was handed over for the address, or on a new one. Returns the address with its
    /// port. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The system's: the address is taken, belongs to another machine, or needs a privilege.
    pub(crate) fn bind(address: &Address) -> io::Result<(Self, Address)> {
        if let Some(socket) = take_inherited(address) {
            tracing::info!(%address, "listens on a socket that was handed over");
            let listener = match socket {
                Inherited::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)?),
                #[cfg(unix)]
                Inherited::Unix(socket) => Self::Unix(UnixSocket::inherited(socket)?),
            };
            return Ok((listener, address.clone()));
        }
        match address {
            Address::Tcp(addr) => {
                let listener = bound(*addr)?.listen(QUEUE)?;
                let addr = listener.local_addr()?;
                Ok((Self::Tcp(listener), addr.into()))
            }
            #[cfg(unix)]
            Address::Unix { path, mode } => {
                Ok((Self::Unix(UnixSocket::bind(path, *mode, QUEUE)?), address.clone()))
            }
            #[cfg(not(unix))]
            Address::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Checks whether the address could be listened on, without listening: a caller who connected meanwhile would be
    /// cut off, or take the server for ready.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub(crate) fn check(address: &Address) -> io::Result<()> {
        match address {
            address if is_inherited(address) => Ok(()),
            Address::Tcp(addr) => bound(*addr).map(drop),
            #[cfg(unix)]
            Address::Unix { path, .. } => unix_socket::is_free(path),
            #[cfg(not(unix))]
            Address::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The system's error.
    pub(super) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, peer)| (Stream::Tcp(stream), peer)),
            #[cfg(unix)]
            Self::Unix(socket) => {
                socket.accept().await.map(|stream| (Stream::Unix(stream), super::stream::THIS_MACHINE))
            }
        }
    }
}

fn bound(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart can bind while connections of the previous process are open. Elsewhere the option lets two programs
    // share a port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

// Listening sockets that the parent process hands over (socket activation).
//
// The service manager keeps them open while the program restarts, so callers who connect in between wait in the
// queue instead of being refused. A socket goes to the door of its address; a door without one binds its address
// itself.
//
// Source: `sd_listen_fds(3)`: `LISTEN_FDS` and `LISTEN_PID`.

#[derive(Debug)]
enum Inherited {
    Tcp(net::TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

/// The sockets handed over to this process that no door has taken yet, read at the first use.
static INHERITED: LazyLock<Mutex<Vec<Inherited>>> = LazyLock::new(|| Mutex::new(handed_over()));

/// Takes the socket of this address.
fn take_inherited(address: &Address) -> Option<Inherited> {
    let mut inherited = INHERITED.lock();
    let at = inherited.iter().position(|socket| socket.is_at(address))?;
    Some(inherited.swap_remove(at))
}

fn is_inherited(address: &Address) -> bool {
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

#[cfg(unix)]
mod unix_socket {
    //! A listening Unix socket.
    //!
    //! Its file outlives a killed program, and nobody can bind there while it exists. So a file on which nobody listens
    //! is removed before binding. On drop, the process that bound it removes it, unless another program put a new one
    //! there.

    use std::fs;
    use std::io;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
    use std::path::{Path, PathBuf};

    use tokio::net::{UnixListener, UnixSocket as Socket, UnixStream};

    /// How often a try to lock the folder is repeated while another program binds, which takes microseconds.
    const TRIES: u32 = 10_000;

    /// A listening socket. Dropping it removes its file, unless another program bound it.
    #[derive(Debug)]
    pub(crate) struct UnixSocket {
        listener: UnixListener,
        bound: Option<Bound>,
    }

    #[derive(Debug)]
    struct Bound {
        path: PathBuf,
        /// Device and inode, to recognise the file again.
        file: (u64, u64),
    }

    impl UnixSocket {
        /// Binds, and listens with a queue of this length. The mode of the file decides who may connect.
        ///
        /// # Errors
        /// [`io::ErrorKind::AddrInUse`] if another program listens there, or if the path is not a socket; otherwise the
        /// system's error.
        pub(super) fn bind(path: &Path, mode: u32, queue: u32) -> io::Result<Self> {
            let _alone = alone_in(path.parent().unwrap_or(Path::new("/")))?;
            is_free(path)?;
            if path.symlink_metadata().is_ok() {
                fs::remove_file(path)?;
            }
            let socket = Socket::new_stream()?;
            // Set before the file exists, so that no user excluded by the mode connects in between. Where systems
            // ignore this, the change below comes a moment later.
            let unbound = fs::File::from(socket.as_fd().try_clone_to_owned()?);
            drop(unbound.set_permissions(fs::Permissions::from_mode(0o600)));
            drop(unbound);
            socket.bind(path)?;
            let file = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))?;
            let listener = socket.listen(queue)?;
            let bound = Self { listener, bound: Some(Bound { path: path.to_owned(), file }) };
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            Ok(bound)
        }

        /// Listens on a socket that another program bound, whose file stays.
        ///
        /// # Errors
        /// The system's.
        pub(super) fn inherited(socket: std::os::unix::net::UnixListener) -> io::Result<Self> {
            Ok(Self { listener: UnixListener::from_std(socket)?, bound: None })
        }

        pub(super) async fn accept(&self) -> io::Result<UnixStream> {
            self.listener.accept().await.map(|(stream, _)| stream)
        }
    }

    impl Drop for UnixSocket {
        fn drop(&mut self) {
            let Some(Bound { path, file }) = &self.bound else { return };
            let now = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
            if now.is_ok_and(|now| now == *file) {
                // If this fails, the next start removes the file.
                drop(fs::remove_file(path));
            }
        }
    }

    /// Keeps other instances from binding in a folder until the returned file is dropped: a second one could take the
    /// first's socket, bound and not yet listened on, for a stale one.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another program keeps it locked too long.
    fn alone_in(folder: &Path) -> io::Result<fs::File> {
        let folder = fs::File::open(folder)?;
        for _ in 0..TRIES {
            match folder.try_lock() {
                Ok(()) => return Ok(folder),
                Err(fs::TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Checks that nothing is at the path, or only a socket on which nobody listens.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`], or the system's.
    pub(super) fn is_free(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
                Some(folder) if !folder.is_dir() => Err(io::ErrorKind::NotFound.into()),
                _ => Ok(()),
            },
            Err(error) => Err(error),
            Ok(file) if !file.file_type().is_socket() => Err(io::ErrorKind::AddrInUse.into()),
            Ok(_) => match connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                // Somebody listens, or may: the queue may be full, or access denied.
                Ok(()) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
            },
        }
    }

    /// Connects without waiting: a listener that accepts nobody would hold up the start.
    fn connect(path: &Path) -> io::Result<()> {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&socket2::SockAddr::unix(path)?)
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
        let socket = net::TcpListener::bind("127.0.0.1:0").unwrap();
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
