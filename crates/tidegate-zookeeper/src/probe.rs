//! Probes an address by hand, because the client library's errors do not say what is wrong.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{ConnectError, OLDEST};

/// The time limit per address.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of an answer that are read; a normal answer has a few hundred.
const LONGEST: u64 = 4096;

enum Probed {
    /// No server answers, for this reason.
    Silent(String),
    /// The server is not ZooKeeper, or cannot be used.
    Wrong(ConnectError),
}

/// Probes addresses until one is good.
pub(crate) async fn any(addresses: &[String]) -> Result<(), ConnectError> {
    let (mut wrong, mut silent) = (None, Vec::new());
    for address in addresses {
        match check(address).await {
            Ok(()) => return Ok(()),
            Err(Probed::Silent(reason)) => silent.push(format!("{address} ({reason})")),
            Err(Probed::Wrong(error)) => wrong = Some(error),
        }
    }
    Err(wrong.unwrap_or_else(|| ConnectError::Unreachable { tried: silent.join(", ") }))
}

async fn check(address: &str) -> Result<(), Probed> {
    let mut stream = match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(|error| Probed::Silent(error.to_string()))?,
        Err(_) => {
            return Err(Probed::Silent(format!("no connection within {} ms", PATIENCE.as_millis())));
        }
    };
    // The one four-letter word that servers answer by default.
    let mut answer = Vec::new();
    let asked = async {
        stream.write_all(b"srvr").await?;
        stream.take(LONGEST).read_to_end(&mut answer).await
    };
    let _ = timeout(PATIENCE, asked).await;
    if answer.is_empty() {
        // A stopped process, or a balancer without backends: it may answer later.
        return Err(Probed::Silent("it does not answer; is it the port for TLS?".to_owned()));
    }
    judge(address, &String::from_utf8_lossy(&answer)).map_err(Probed::Wrong)
}

/// Judges a server by its answer.
fn judge(address: &str, answer: &str) -> Result<(), ConnectError> {
    let address = address.to_owned();
    if answer.contains("not currently serving requests") {
        return Err(ConnectError::NoQuorum { address });
    }
    if answer.contains("not in the whitelist") {
        return Ok(());
    }
    let Some(version) = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")) else {
        return Err(ConnectError::NotZooKeeper { address });
    };
    let version = version.split(['-', ',', ' ']).next().unwrap_or_default();
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(ConnectError::TooOld { address, version: version.to_owned() });
    }
    if answer.lines().any(|line| line == "Mode: read-only") {
        return Err(ConnectError::ReadOnly { address });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_what_they_say_of_themselves() {
        let answer = |version: &str, mode: &str| {
            format!(
                "Zookeeper version: {version}-${{mvnbuild}}, built on 2022\nOutstanding: 0\nMode: {mode}\n"
            )
        };
        let judge = |answer: &str| judge("h:1", answer);
        assert_eq!(judge(&answer("3.8.0", "standalone")), Ok(()));
        assert_eq!(judge(&answer("3.10.1", "leader")), Ok(()));
        assert!(
            matches!(judge(&answer("3.5.9", "leader")), Err(ConnectError::TooOld { version, .. }) if version == "3.5.9")
        );
        assert!(matches!(judge(&answer("3.8.0", "read-only")), Err(ConnectError::ReadOnly { .. })));
        assert!(matches!(
            judge("This ZooKeeper instance is not currently serving requests\n"),
            Err(ConnectError::NoQuorum { .. })
        ));
        assert_eq!(judge("srvr is not executed because it is not in the whitelist.\n"), Ok(()));
        assert!(matches!(judge("HTTP/1.1 400 Bad Request"), Err(ConnectError::NotZooKeeper { .. })));
    }
}
