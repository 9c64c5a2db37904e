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
