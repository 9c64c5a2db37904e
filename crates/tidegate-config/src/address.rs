//! The address where a server listens: a network address or a Unix socket.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a server listens.
///
/// # Examples
/// ```
/// use tidegate::config::Address;
/// let address: Address = "unix:/run/tidegate.sock,mode=660".parse()?;
/// assert_eq!(address.to_string(), "unix:/run/tidegate.sock");
/// assert!(address.is_local());
/// # Ok::<(), tidegate::config::NoAddress>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(UnixAddress),
}

/// A Unix socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixAddress {
    path: PathBuf,
    mode: u32,
}

/// Why a text is not an address. Prints as the end of a sentence about the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAddress {
    /// Neither an address and port nor a path after `unix:`.
    #[error(
        "is not an address and port, such as 127.0.0.1:8080, or 8080 for this machine alone, nor a socket, such as unix:/run/tidegate.sock"
    )]
    Unknown,
    /// A port with no host, or with a star for it.
    #[error(
        "has no host; write 0.0.0.0:{0} for all addresses of this machine, or 127.0.0.1:{0} for itself alone"
    )]
    NoHost(u16),
    /// The path is relative: it would name a different socket depending on the directory in which the server starts.
    #[error(
        "is a socket whose path does not begin with `/`; write the whole path, as unix:/run/tidegate.sock"
    )]
    Relative,
    /// The path is longer than the operating system accepts.
    #[error("is a socket whose path has more than {} bytes", UnixAddress::LONGEST)]
    Long,
    /// The text after the path is not a file mode.
    #[error(
        "has something else than its mode behind the path; write three octal digits, as unix:/run/tidegate.sock,mode=660"
    )]
    Mode,
}

impl UnixAddress {
    /// The longest path in bytes that every operating system accepts.
    const LONGEST: usize = 100;

    /// Creates the address of a socket that only its owner may use (mode 0o600).
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), mode: 0o600 }
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file mode, which decides who may connect: those with write permission. The default is 0o600.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        self.mode
    }
}

impl Address {
    /// Reports whether only this machine can reach the address: a loopback address or a Unix socket.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Returns the IP address and port; `None` for a Unix socket.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) => Some(*addr),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(socket) => write!(f, "unix:{}", socket.path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let Some(socket) = text.strip_prefix("unix:") else {
            let hostless = || text.strip_prefix("*:").or_else(|| text.strip_prefix(':'))?.parse().ok();
            return tcp(text)
                .map(Self::Tcp)
                .ok_or_else(|| hostless().map_or(NoAddress::Unknown, NoAddress::NoHost));
        };
        let (path, mode) = match socket.split_once(',') {
            None => (socket, 0o600),
            Some((path, said)) => {
                let octal = |digits: &&str| {
                    digits.len() == 3 && digits.bytes().all(|digit| (b'0'..b'8').contains(&digit))
                };
                let digits = said.strip_prefix("mode=").filter(octal);
                let mode = digits.and_then(|digits| u32::from_str_radix(digits, 8).ok());
                (path, mode.ok_or(NoAddress::Mode)?)
            }
        };
        if !path.starts_with('/') {
            return Err(NoAddress::Relative);
        }
        if path.len() > UnixAddress::LONGEST {
            return Err(NoAddress::Long);
        }
        Ok(Self::Unix(UnixAddress { path: path.into(), mode }))
    }
}

/// Parses an address and port. A port alone and the host `localhost` mean 127.0.0.1; other host names are not resolved.
fn tcp(text: &str) -> Option<SocketAddr> {
    let of_this_machine = || {
        let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
        let port = port.parse().ok().filter(|_| host.eq_ignore_ascii_case("localhost"))?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    text.parse().ok().or_else(of_this_machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_the_network_or_a_socket() {
        let of = |text: &str| text.parse::<Address>();
        assert_eq!(of("127.0.0.1:80"), Ok(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 80)))));
        for here in ["80", "localhost:80"] {
            assert_eq!(of(here), of("127.0.0.1:80"), "{here}");
        }
        assert_eq!(of("unix:/run/t"), Ok(Address::Unix(UnixAddress::new("/run/t"))));
        let Ok(Address::Unix(shared)) = of("unix:/run/t,mode=666") else { panic!("a socket") };
        assert_eq!((shared.path(), shared.mode()), (Path::new("/run/t"), 0o666));
        for (text, why) in [
            ("nowhere", NoAddress::Unknown),
            ("nowhere:80", NoAddress::Unknown),
            (":80", NoAddress::NoHost(80)),
            ("*:80", NoAddress::NoHost(80)),
            ("70000", NoAddress::Unknown),
            ("unix:run/t", NoAddress::Relative),
            ("unix:", NoAddress::Relative),
            ("unix:/run/t,mode=66", NoAddress::Mode),
            ("unix:/run/t,mode=668", NoAddress::Mode),
            ("unix:/run/t,660", NoAddress::Mode),
        ] {
            assert_eq!(of(text), Err(why), "{text}");
        }
        assert_eq!(of(&format!("unix:/{}", "x".repeat(100))), Err(NoAddress::Long));
    }
}
