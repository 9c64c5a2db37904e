//! Finds the deciding server: the configured one, or the one that sentinels name.

use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};

use crate::connect::{self, Dialer, Ready, text};
use crate::error::ConnectError;
use crate::options::{address, addresses};

/// How the server is found each time a connection is made.
#[derive(Clone, Debug)]
pub(crate) enum Find {
    /// The configured server.
    Named(ConnectionInfo),
    /// Sentinels name it. The first sentinel that leads to a master is asked first the next time.
    Sentinels { sentinels: Vec<ConnectionInfo>, name: String, master: ConnectionInfo },
    /// Simulates a bug in this crate, for tests.
    #[cfg(test)]
    Panicking,
}

impl Find {
    /// Connects to the deciding server.
    pub(crate) async fn connect(&mut self, dialer: &Dialer) -> Result<Ready, ConnectError> {
        match self {
            #[cfg(test)]
            Self::Panicking => panic!("as a mistake would"),
            Self::Named(server) => dialer.ready(server).await,
            Self::Sentinels { sentinels, name, master } => {
                let mut last = None;
                for at in 0..sentinels.len() {
                    let error = match named(dialer, &sentinels[at], name, master).await {
                        Ok(info) => match dialer.ready(&info).await {
                            Ok(ready) => {
                                sentinels.swap(0, at);
                                return Ok(ready);
                            }
                            // The named master may be down until the sentinels choose another one.
                            Err(error) => error,
                        },
                        Err(error) => error,
                    };
                    // An unreachable sentinel might know better than those that answer, so its error is kept.
                    if !matches!(last, Some(ConnectError::Unreachable { .. })) {
                        last = Some(error);
                    }
                }
                let reason = "none was asked".to_owned();
                Err(last.unwrap_or_else(|| ConnectError::NoMaster {
                    sentinels: addresses(sentinels),
                    name: name.clone(),
                    reason,
                }))
            }
        }
    }
}

/// Asks a sentinel for the master's address.
async fn named(
    dialer: &Dialer,
    sentinel: &ConnectionInfo,
    name: &str,
    master: &ConnectionInfo,
) -> Result<ConnectionInfo, ConnectError> {
    let mut connection = dialer.plain(sentinel).await?;
    let mut ask = Cmd::new();
    ask.arg("SENTINEL").arg("get-master-addr-by-name").arg(name);
    let none = |reason: String| ConnectError::NoMaster {
        sentinels: addresses(std::slice::from_ref(sentinel)),
        name: name.to_owned(),
        reason,
    };
    let told = connect::ask(&mut connection, &ask).await.map_err(|error| match error.detail() {
        Some(detail) if detail.starts_with("unknown command") => ConnectError::NoSentinel {
            address: address(sentinel.addr()),
            reason: "it knows no command SENTINEL".to_owned(),
        },
        _ => dialer.error(sentinel, &error),
    })?;
    let Value::Array(parts) = told else {
        return Err(none("it knows no such master".to_owned()));
    };
    let mut parts = parts.into_iter().map(text);
    let (host, port) = (parts.next().flatten(), parts.next().flatten());
    let port = port.and_then(|port| port.parse().ok());
    let (Some(host), Some(port)) = (host, port) else {
        return Err(none("its answer is not an address".to_owned()));
    };
    Ok(at(master, host, port))
}

/// Returns the connection settings of `like` with another address.
pub(crate) fn at(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match like.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}
