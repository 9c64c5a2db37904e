//! A socket in the file system that is listened on.
//!
//! Its file outlives a program that is killed, and then nobody can bind there. It is taken away before binding when it is a socket and
//! nobody listens behind it, and at the end by whoever bound it, unless somebody else has put another in its place.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tidegate::config::UnixAddress;
use tokio::net::{UnixListener, UnixSocket as Socket, UnixStream};

/// How often another program that is just binding is let go on: it takes microseconds.
const TRIES: u32 = 10_000;

/// A socket that is listened on; its file goes when this is dropped, unless somebody else bound it.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    /// What this program has bound.
    bound: Option<Bound>,
}

/// Where a socket lies.
#[derive(Debug)]
struct Bound {
    path: PathBuf,
    /// Device and number of the file, to know it again.
    file: (u64, u64),
}

impl UnixSocket {
    /// Binds, listens with a queue of this length, and lets those connect whom the mode names.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when somebody listens there, or something lies there that is no socket; else what the system said.
    pub(super) fn bind(address: &UnixAddress, queue: u32) -> io::Result<Self> {
        let path = address.path();
        let _alone = alone_in(path.parent().unwrap_or(Path::new("/")))?;
        is_free(path)?;
        if path.symlink_metadata().is_ok() {
            fs::remove_file(path)?;
        }
        let socket = Socket::new_stream()?;
        // Before there is a file, so that nobody connects in between whom the mode keeps out. Where the system does not go by it, the
        // change below comes a moment later.
        let unbound = fs::File::from(socket.as_fd().try_clone_to_owned()?);
        drop(unbound.set_permissions(fs::Permissions::from_mode(0o600)));
        drop(unbound);
        socket.bind(path)?;
        let file = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))?;
        let listener = socket.listen(queue)?;
        let bound = Self { listener, bound: Some(Bound { path: path.to_owned(), file }) };
        fs::set_permissions(path, fs::Permissions::from_mode(address.mode()))?;
        Ok(bound)
    }

    /// Listens on a socket that somebody else bound, and whose file is theirs.
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
            // What is left behind is taken away by the next start.
            drop(fs::remove_file(path));
        }
    }
}

/// Keeps other programs of this kind from binding in a folder until what is returned is dropped: of two that start at once, the second would take
/// the socket of the first for one that was left behind, since nobody listens yet.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] when another program keeps the folder locked for too long.
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

/// Says whether nothing lies there but perhaps a socket that nobody listens on.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`], or what the system said.
pub(super) fn is_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(folder) if !folder.is_dir() => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(()),
        },
        Err(error) => Err(error),
        Ok(file) if !file.file_type().is_socket() => Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => match asked(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            // Somebody listens, or may listen: its queue is full, or it does not let us in.
            Ok(()) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
        },
    }
}

/// Connects without waiting: whoever listens and accepts nobody would hold up the start.
fn asked(path: &Path) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&socket2::SockAddr::unix(path)?)
}
