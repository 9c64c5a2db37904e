//! Which server decides: the one that was named, or the one that sentinels name.

use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};

use crate::connect::{self, Dialer, Ready, text};
use crate::error::ConnectError;
use crate::options::{address, addresses};

/// How a connection finds its server, each time it is made.
#[derive(Clone, Debug)]
pub(crate) enum Find {
    /// It is named.
    Named(ConnectionInfo),
    /// Sentinels name it: any of them knows, and the first that does is asked first the next time.
    Sentinels { sentinels: Vec<ConnectionInfo>, name: String, master: ConnectionInfo },
    /// A mistake in this crate, as tests make one.
    #[cfg(test)]
    Panicking,
}

impl Find {
    /// Connects to the server that decides.
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
                            // What it names may be down for as long as it takes to name another.
                            Err(error) => error,
                        },
                        Err(error) => error,
                    };
                    // One that does not answer may know better than those that do.
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

/// Asks a sentinel where the master is.
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

/// Returns how a server is connected that lies at another address.
pub(crate) fn at(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match like.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}
