//! How a program connects: addresses, credentials, prefix and time limit; and why there is no connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The default time limit of one exchange. [`Fallback`](tidegate::store::Fallback) waits for less.
const TIMEOUT: Duration = Duration::from_secs(5);

const PREFIX: &str = "tidegate";

/// The version of the layout: different layouts never share keys.
const LAYOUT: &str = "/1/";

/// The options of a connection to etcd. `Debug` shows neither password nor key.
#[derive(Clone)]
pub struct EtcdOptions {
    pub(crate) addresses: Vec<String>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) tls: Tls,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    renew: Option<Renew>,
}

/// Makes the options anew; see [`EtcdOptions::renewed_by`].
type Renew = Arc<dyn Fn() -> Result<EtcdOptions, String> + Send + Sync>;

/// The certificates for connections to addresses that begin with `https://`, all in PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificate authorities that may have signed the server's certificate; if empty, the system's.
    pub authorities: Vec<u8>,
    /// This client's certificate and key, if etcd asks for them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the server's certificate, if it is not the host of the address.
    pub server_name: Option<String>,
}

impl EtcdOptions {
    /// Names the members of a cluster: `http://host:port` or `https://host:port` each. Requests go to any that answers.
    #[must_use]
    pub fn new<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            user: None,
            tls: Tls::default(),
            prefix: PREFIX.to_owned(),
            timeout: TIMEOUT,
            renew: None,
        }
    }

    /// Sets the user and the password, if etcd requires authentication.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// Sets the certificates for connections; the default is the system's authorities.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Sets a function that is called before each connection, and when etcd refuses the password. It returns options
    /// whose user, password and certificates are then used: so passwords can change while the connection is in use. Its
    /// error is that of the connection; it must not contain a secret.
    #[must_use]
    pub fn renewed_by(mut self, renew: impl Fn() -> Result<Self, String> + Send + Sync + 'static) -> Self {
        self.renew = Some(Arc::new(renew));
        self
    }

    /// Returns the options for a new connection.
    pub(crate) fn anew(&self) -> Result<Self, String> {
        let Some(renew) = &self.renew else { return Ok(self.clone()) };
        renew().map(|anew| Self { user: anew.user, tls: anew.tls, ..self.clone() })
    }

    /// Sets the prefix of all keys; the default is `tidegate`. Deployments that share an etcd need different ones. The
    /// version of the layout follows: with `tg` or `tg/`, keys begin with `tg/1/`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    pub(crate) fn below(&self) -> String {
        format!("{}{LAYOUT}", self.prefix.trim_end_matches('/'))
    }

    /// Sets the time limit of one exchange, and of connecting; the default is 5 s.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.addresses.iter().map(|address| without_credentials(address)).collect();
        f.debug_struct("EtcdOptions")
            .field("addresses", &shown)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &format_args!("{} bytes", self.authorities.len()))
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// Returns an address without what is before an `@`.
pub(crate) fn without_credentials(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

/// The oldest version of etcd that was tested.
pub(crate) const OLDEST: (u32, u32) = (3, 4);

/// Why there is no connection. No message contains a password or a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address is not valid, or none was given.
    #[error("etcd address `{address}`: {reason}; write `http://host:port` or `https://host:port`")]
    Address {
        /// The address, without credentials.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The future was not polled by a tokio runtime, on which the connection has to live.
    #[error("there is no tokio runtime here; connect to etcd within one that has I/O and time enabled")]
    NoRuntime,
    /// No server answers at any address.
    #[error("no etcd answers at {tried}; is it running, and is this its port for clients (2379)?")]
    Unreachable {
        /// Each address, and the reason.
        tried: String,
    },
    /// The address begins with `http://`, but the server speaks TLS.
    #[error("etcd at {address} does not speak plain text; write `https://` if it has certificates")]
    WantsTls {
        /// The address.
        address: String,
    },
    /// The address begins with `https://`, but the server speaks plain text.
    #[error("etcd at {address} speaks plain text and no TLS; write `http://`, or give etcd a certificate")]
    PlainText {
        /// The address.
        address: String,
    },
    /// The TLS handshake failed.
    #[error(
        "no TLS with etcd at {address}: {reason}; check the authorities, the name and this client's certificate"
    )]
    Certificate {
        /// The address.
        address: String,
        /// The error of the handshake.
        reason: String,
    },
    /// The user or the password is wrong.
    #[error("etcd at {address} knows no user `{user}` with the password given")]
    Credentials {
        /// The addresses.
        address: String,
        /// The user.
        user: String,
    },
    /// etcd requires authentication, but no user was given.
    #[error("etcd at {address} has authentication on; give a user and a password")]
    NoCredentials {
        /// The addresses.
        address: String,
    },
    /// The user, the password or the certificates could not be renewed; see [`EtcdOptions::renewed_by`].
    #[error("nothing to log in to etcd at {address} with: {reason}")]
    Renewal {
        /// The address.
        address: String,
        /// The error of the function that renews them.
        reason: String,
    },
    /// The user may not read keys under the prefix.
    #[error(
        "etcd at {address} does not let {user} read below `{prefix}`; grant a role `readwrite --prefix {prefix}`"
    )]
    NotAllowed {
        /// The addresses.
        address: String,
        /// The user, or a description of unauthenticated access.
        user: String,
        /// The prefix of all keys.
        prefix: String,
    },
    /// The server is too old.
    #[error("etcd at {address} is {version}; {}.{} is the oldest that is known to work", OLDEST.0, OLDEST.1)]
    TooOld {
        /// The addresses.
        address: String,
        /// Its version.
        version: String,
    },
    /// The server is read-only.
    #[error("etcd at {address} takes no writes: {reason}")]
    ReadOnly {
        /// The addresses.
        address: String,
        /// The reason.
        reason: String,
    },
    /// Any other error.
    #[error("etcd at {address} answered: {reason}")]
    Other {
        /// The addresses.
        address: String,
        /// The error.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_has_a_number_below_any_prefix() {
        let below = |prefix: &str| EtcdOptions::new(["http://h:1"]).prefix(prefix).below();
        assert_eq!(EtcdOptions::new(["http://h:1"]).below(), "tidegate/1/");
        assert_eq!(
            (below("tg"), below("tg/"), below("a/b//")),
            ("tg/1/".into(), "tg/1/".into(), "a/b/1/".into())
        );
    }

    #[test]
    fn no_secret_is_shown() {
        let options = EtcdOptions::new(["https://root:hunter2@10.0.0.1:2379", "u:hunter2@h"])
            .user("root", "hunter2")
            .tls(Tls { identity: Some((b"hunter2".to_vec(), b"hunter2".to_vec())), ..Tls::default() });
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter2") && shown.contains("https://10.0.0.1:2379"), "{shown}");
    }
}
