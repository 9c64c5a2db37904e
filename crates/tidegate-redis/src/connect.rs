//! Opens connections to servers, and checks a server before it is used.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
    ServerErrorKind, Value,
};

use crate::options::{ConnectError, RedisOptions, address, addresses};

pub(crate) const SCRIPT: &str = include_str!("script.lua");

/// The lowest version of Redis, as servers report it; Valkey reports the one it is compatible with.
const LEAST: [u64; 2] = [7, 0];

#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) connection: MultiplexedConnection,
    /// The first half of the server's run id, which differs for each server process.
    pub(crate) run: [u8; 16],
    pub(crate) script: String,
    pub(crate) policy: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) options: RedisOptions,
    /// The pattern of the store's keys, for errors.
    pub(crate) keys: String,
    /// The key of one of the store's hashes.
    pub(crate) probe: String,
}

impl Dialer {
    pub(crate) async fn plain(&self, info: &ConnectionInfo) -> Result<MultiplexedConnection, ConnectError> {
        self.logged_in(info, false).await
    }

    async fn logged_in(
        &self,
        info: &ConnectionInfo,
        is_sentinel: bool,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let (info, tls) = &self.options.login(info, is_sentinel)?;
        let timeout = Some(self.options.timeout);
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(timeout).set_response_timeout(timeout);
        let failed = |error: RedisError| self.error(info, &error);
        let client = if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // A provider that the program has already installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            Client::build_with_tls(info.clone(), tls.clone())
        } else {
            Client::open(info.clone())
        };
        let client = client.map_err(failed)?;
        // The driver's own timeout does not cover the handshakes.
        let connected = client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(self.options.timeout, connected).await {
            Ok(connected) => connected.map_err(failed),
            Err(_) => Err(self.silent(info)),
        }
    }

    /// Connects to the deciding server, and checks that it is not a replica, is new enough, and runs the script, within
    /// one timeout.
    pub(crate) async fn ready(&self, info: &ConnectionInfo) -> Result<Ready, ConnectError> {
        match tokio::time::timeout(self.options.timeout, self.connect_and_check(info)).await {
            Ok(ready) => ready,
            Err(_) => Err(self.silent(info)),
        }
    }

    async fn connect_and_check(&self, info: &ConnectionInfo) -> Result<Ready, ConnectError> {
        let mut connection = self.plain(info).await?;
        let failed = |error: RedisError| self.error(info, &error);
        let info_text = ask(&mut connection, &redis::cmd("INFO")).await.map_err(failed)?;
        let info_text = text(info_text).ok_or_else(|| self.unexpected_answer(info, "INFO without text"))?;
        let (run, policy) = self.check_info(info, &info_text)?;
        let mut load = Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(SCRIPT);
        let script = ask(&mut connection, &load).await.map_err(failed)?;
        let script =
            text(script).ok_or_else(|| self.unexpected_answer(info, "SCRIPT LOAD without a name"))?;
        // Writes nothing, because the field does not exist, but needs the permission. In a cluster it was checked
        // before a redirection.
        let mut probe = Cmd::new();
        probe.arg("HDEL").arg(&self.probe).arg("");
        match ask(&mut connection, &probe).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Err(failed(error)),
            _ => Ok(Ready { connection, run, script, policy }),
        }
    }

    fn check_info(&self, info: &ConnectionInfo, info_text: &str) -> Result<([u8; 16], String), ConnectError> {
        let field = |name: &str| {
            let line = info_text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map_or("", str::trim)
        };
        let address = address(info.addr());
        let version = field("redis_version");
        let numbers: Vec<u64> = version.split('.').map_while(|part| part.parse().ok()).collect();
        if numbers.as_slice() < LEAST.as_slice() {
            return Err(ConnectError::Version { address, found: version.to_owned() });
        }
        // Valkey uses another field name.
        let is_cluster = ["redis_mode", "server_mode"].iter().any(|name| field(name) == "cluster");
        if is_cluster != self.options.is_cluster() {
            return Err(ConnectError::Mode { address, is_cluster });
        }
        if field("role") != "master" {
            return Err(ConnectError::ReadOnly { address });
        }
        let run = field("run_id").as_bytes().first_chunk::<16>();
        let run = *run.ok_or_else(|| self.unexpected_answer(info, "INFO without a run_id"))?;
        Ok((run, field("maxmemory_policy").to_owned()))
    }

    fn silent(&self, info: &ConnectionInfo) -> ConnectError {
        let mut reason = format!("it did not answer within {:?}", self.options.timeout);
        // A server without TLS waits for the rest of a command.
        if is_tls(info) {
            reason.push_str(NO_TLS);
        }
        ConnectError::Unreachable { address: address(info.addr()), reason }
    }

    pub(crate) fn unexpected_answer(&self, info: &ConnectionInfo, reason: &str) -> ConnectError {
        ConnectError::Answer { address: address(info.addr()), reason: reason.to_owned() }
    }

    pub(crate) fn error(&self, info: &ConnectionInfo, error: &RedisError) -> ConnectError {
        let (address, reason) = (address(info.addr()), error_text(error));
        let code = error.code().unwrap_or_default();
        let tls = is_tls(info);
        match error.kind() {
            ErrorKind::AuthenticationFailed => ConnectError::Credentials { address, reason },
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                ConnectError::Permission { address, reason, keys: self.keys.clone() }
            }
            _ if matches!(code, "NOAUTH" | "WRONGPASS") => ConnectError::Credentials { address, reason },
            _ if reason.contains("DB index") || reason.contains("SELECT") => {
                ConnectError::Database { address, database: info.redis_settings().db(), reason }
            }
            ErrorKind::InvalidClientConfig if tls => ConnectError::Tls { address, reason },
            _ if tls && tls_failed(&reason) => ConnectError::Tls { address, reason },
            // The driver's message speaks of bytes and offsets.
            _ if reason.contains("Parse error") => {
                ConnectError::Answer { address, reason: "something else than the protocol".to_owned() }
            }
            _ => {
                let hint = match (tls, hung_up(error)) {
                    (true, true) => NO_TLS,
                    (true, false) if error.is_timeout() => NO_TLS,
                    (false, true) if is_tcp(info) => WANTS_TLS,
                    _ => "",
                };
                ConnectError::Unreachable { address, reason: reason + hint }
            }
        }
    }
}

/// The hint if a server addressed by TLS does not complete the handshake.
const NO_TLS: &str =
    "; it may not speak TLS, which `rediss://` asks for: then write `redis://` in its address";

/// The hint if a server addressed in plain text closes the connection.
const WANTS_TLS: &str = "; it may want TLS: then write `rediss://` in its address";

fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

fn is_tcp(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::Tcp(..))
}

fn hung_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

fn tls_failed(reason: &str) -> bool {
    ["certificate", "Certificate", "handshake", "TLS", "tls", "corrupt message", "fatal alert"]
        .iter()
        .any(|word| reason.contains(word))
}

pub(crate) async fn ask(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(command).await?.extract_error()
}

pub(crate) fn error_text(error: &RedisError) -> String {
    error.code().map_or_else(|| error.to_string(), |code| server_error_text(code, error.detail()))
}

/// Returns a server's error without the name of a user, which `NOPERM` has from Redis 7.2 on.
pub(crate) fn server_error_text(code: &str, detail: Option<&str>) -> String {
    let Some(detail) = detail else { return code.to_owned() };
    match detail.strip_prefix("User ").and_then(|rest| rest.find(" has no permissions").map(|at| &rest[at..]))
    {
        Some(rest) => format!("{code} this user{rest}"),
        None => format!("{code} {detail}"),
    }
}

pub(crate) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

pub(crate) const PAUSE: Duration = Duration::from_millis(100);

// Finds the deciding server: the configured one, or the one that sentinels name.

#[derive(Clone, Debug)]
pub(crate) enum Find {
    /// The configured server.
    Named(ConnectionInfo),
    /// The first sentinel that leads to a master is asked first the next time.
    Sentinels { sentinels: Vec<ConnectionInfo>, name: String, master: ConnectionInfo },
    /// Simulates a bug in this crate.
    #[cfg(test)]
    Panicking,
}

impl Find {
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
                            // It may be down until the sentinels choose another one.
                            Err(error) => error,
                        },
                        Err(error) => error,
                    };
                    // An unreachable sentinel might know better than those that answer.
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

async fn named(
    dialer: &Dialer,
    sentinel: &ConnectionInfo,
    name: &str,
    master: &ConnectionInfo,
) -> Result<ConnectionInfo, ConnectError> {
    let mut connection = dialer.logged_in(sentinel, true).await?;
    let mut question = Cmd::new();
    question.arg("SENTINEL").arg("get-master-addr-by-name").arg(name);
    let none = |reason: String| ConnectError::NoMaster {
        sentinels: addresses(std::slice::from_ref(sentinel)),
        name: name.to_owned(),
        reason,
    };
    let told = ask(&mut connection, &question).await.map_err(|error| match error.detail() {
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

pub(crate) fn at(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match like.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(info_text: &str) -> Result<([u8; 16], String), ConnectError> {
        let options = RedisOptions::single("redis://user:secret@host:7/3").unwrap();
        let dialer = Dialer { options, keys: "tg:1:{n:*".to_owned(), probe: String::new() };
        let info = redis::IntoConnectionInfo::into_connection_info("redis://user:secret@host:7/3").unwrap();
        dialer.check_info(&info, info_text)
    }

    #[test]
    fn the_user_is_not_named() {
        let detail = "User alice has no permissions to run the 'hset' command";
        assert_eq!(
            server_error_text("NOPERM", Some(detail)),
            "NOPERM this user has no permissions to run the 'hset' command"
        );
        assert_eq!(server_error_text("NOPERM", Some("this user has no ...")), "NOPERM this user has no ...");
        assert_eq!(server_error_text("OOM", None), "OOM");
    }

    #[test]
    fn a_server_says_what_it_is() {
        let run = "0123456789abcdef0123456789abcdef01234567";
        let info_text = |version: &str, role: &str, mode: &str| {
            format!(
                "# Server\r\nredis_version:{version}\r\nredis_mode:{mode}\r\nrun_id:{run}\r\n\
                 maxmemory_policy:noeviction\r\nrole:{role}\r\n"
            )
        };
        let good = checked(&info_text("7.0.15", "master", "standalone"));
        assert_eq!(good, Ok((*b"0123456789abcdef", "noeviction".to_owned())));
        assert!(checked(&info_text("8.10.1", "master", "standalone")).is_ok());
        let old = checked(&info_text("6.2.14", "master", "standalone")).unwrap_err();
        assert_eq!(
            old.to_string(),
            "host:7 runs version 6.2.14; the store needs Redis 7.0 or Valkey 7.2, or a later one"
        );
        let replica = checked(&info_text("7.2.0", "slave", "standalone")).unwrap_err();
        assert!(matches!(replica, ConnectError::ReadOnly { .. }), "{replica}");
        let node = checked(&info_text("7.2.0", "master", "cluster")).unwrap_err();
        assert!(matches!(node, ConnectError::Mode { is_cluster: true, .. }), "{node}");
        // Valkey 9 reports the mode in this field: its cluster nodes used to be taken for single servers, and clusters
        // were refused.
        let valkey = info_text("7.2.4", "master", "cluster").replace("redis_mode", "server_mode");
        let node = checked(&valkey).unwrap_err();
        assert!(matches!(node, ConnectError::Mode { is_cluster: true, .. }), "{node}");
    }
}
