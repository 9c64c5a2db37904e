//! Where ZooKeeper is, and who asks.

use std::fmt;
use std::time::Duration;

/// How long one exchange may take, unless another time is chosen. Whoever decides requests waits less: see
/// [`Fallback`](tidegate::store::Fallback).
const TIMEOUT: Duration = Duration::from_secs(5);

/// Below which node everything lies, unless another path is chosen.
const PATH: &str = "/tidegate";

/// What follows the path: the number of the layout, so that another layout never meets these nodes.
const LAYOUT: &str = "/1";

/// Where ZooKeeper is, and who asks. `Debug` does not show the password.
#[derive(Clone)]
pub struct ZooKeeperOptions {
    pub(crate) addresses: Vec<String>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) path: String,
    pub(crate) timeout: Duration,
}

impl ZooKeeperOptions {
    /// Names the servers of an ensemble: `host:port` each.
    #[must_use]
    pub fn new<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            user: None,
            path: PATH.to_owned(),
            timeout: TIMEOUT,
        }
    }

    /// Says who asks (scheme `digest`). Whatever is made is then that user's alone. ZooKeeper checks a password only where something is
    /// another user's already.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// Chooses below which node everything lies; `/tidegate` unless chosen. Deployments that share an ensemble have different ones. The number
    /// of the layout follows it: with `/tg`, everything lies in `/tg/1`.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// In which node everything lies.
    pub(crate) fn below(&self) -> String {
        format!("{}{LAYOUT}", self.path)
    }

    /// Chooses how long one exchange may take, and how long connecting may; 5 s unless chosen.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for ZooKeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<&str> = self.addresses.iter().map(|address| without_credentials(address)).collect();
        f.debug_struct("ZooKeeperOptions")
            .field("addresses", &shown)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("path", &self.path)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// Returns an address as it may be shown: what stands before an `@` is left out.
pub(crate) fn without_credentials(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_has_a_number_below_any_path() {
        let options = ZooKeeperOptions::new(["h:1"]);
        assert_eq!(options.below(), "/tidegate/1");
        assert_eq!(options.path("/tg").below(), "/tg/1");
    }

    #[test]
    fn no_secret_is_shown() {
        let options = ZooKeeperOptions::new(["root:hunter2@10.0.0.1:2181"]).user("root", "hunter2");
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter2") && shown.contains("10.0.0.1:2181"), "{shown}");
    }
}
