//! Opens the store on Redis or Valkey.

use std::sync::Arc;

use tidegate::config::{EngineSettings, Topology};
use tidegate::store::{AfterLoss, Caps, Later, StoreError};
use tidegate_redis::{ConnectError, RedisOptions, RedisStore};

use super::dial::{Attempt, Dial, Dialled, Failed};
use super::opened::{EngineLoad, OpenStoreError, Reported, Roster};
use super::password;

const KIND: &str = "redis";

pub(super) fn dial(
    engine: &EngineSettings,
    topology: &Topology,
    after_loss: AfterLoss,
) -> Result<Dial, OpenStoreError> {
    let mut caps = Caps::ENGINE;
    caps.own_clock = true;
    caps.one_tag = matches!(topology, Topology::Cluster);
    let (engine, topology) = (engine.clone(), topology.clone());
    let read = move || options(&engine, &topology, after_loss);
    // A mistake in a file ends the start.
    read()?;
    let read = Arc::new(read);
    let attempt = move || -> Attempt {
        let (read, again) = (Arc::clone(&read), Arc::clone(&read));
        Box::pin(async move {
            // Read anew for each connection, so passwords and certificates can be changed while the server runs.
            let options = read().map_err(|error| Failed::Away(error.to_string()))?;
            let options = options.renewed_by(move || again().map_err(|error| error.to_string()));
            RedisStore::connect(options).await.map(dialled).map_err(|error| failed(&error))
        })
    };
    Ok(Dial { caps, coordinates: false, attempt: Box::new(attempt) })
}

/// Reads the files that the settings name.
fn options(
    engine: &EngineSettings,
    topology: &Topology,
    after_loss: AfterLoss,
) -> Result<RedisOptions, OpenStoreError> {
    let (password, sentinels) = password::logins(engine, matches!(topology, Topology::Sentinel { .. }))?;
    let secret = |url: &str| with_secrets(url, engine.user.as_deref(), password.as_deref());
    let urls: Vec<String> = engine.urls.iter().map(|url| secret(url)).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let options = match topology {
        // The file has one address; more are refused when it is read.
        Topology::Single => RedisOptions::single(urls.first().copied().unwrap_or_default()),
        Topology::Cluster => RedisOptions::cluster(&urls),
        Topology::Sentinel { master } => {
            let (urls, any) = behind_sentinels(&engine.urls);
            let login = sentinels.as_ref();
            let user = login.map(|(user, _)| user.as_str()).filter(|user| !user.is_empty());
            let login = |url: &String| with_secrets(url, user, login.map(|(_, password)| password.as_str()));
            let urls: Vec<String> = urls.iter().map(login).collect();
            let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
            RedisOptions::sentinel(&urls, master, &secret(&any))
        }
    };
    let wrong = |error: ConnectError| OpenStoreError::Setting { kind: KIND, reason: error.to_string() };
    let mut options = options.map_err(wrong)?.namespace(&engine.prefix).after_loss(after_loss);
    if let Some(pem) = password::certificates(engine)? {
        options = options.root_certificates(pem);
    }
    if let Some((certificate, key)) = password::identity(engine)? {
        options = options.client_certificate(certificate, key);
    }
    Ok(options)
}

fn dialled(store: RedisStore) -> Dialled {
    let mut warnings = Vec::new();
    let policy = store.eviction_policy();
    if policy.starts_with("allkeys") {
        warnings.push(format!(
            "store.kind: redis: maxmemory-policy is {policy}, so counters may be dropped when memory is short, and what was spent with them; set noeviction or volatile-ttl"
        ));
    }
    Dialled { store: Arc::new(store.clone()), coordinator: None, roster: Some(Arc::new(store)), warnings }
}

impl Roster for RedisStore {
    fn exchange(&self, node: &str, report: &str) -> Later<Result<Reported, StoreError>> {
        let (store, node, report) = (self.clone(), node.to_owned(), report.to_owned());
        Box::pin(async move {
            let reports = store.exchange_reports(&node, &report).await?;
            let load = EngineLoad { memory: reports.memory, processor: reports.processor };
            Ok(Reported { nodes: reports.nodes, load })
        })
    }
}

fn failed(error: &ConnectError) -> Failed {
    let reason = error.to_string();
    match error {
        // Names the key in the file if the error suggests another kind of address.
        ConnectError::Unreachable { .. } if reason.contains("rediss://") => {
            Failed::Away(format!("{reason} (store.url)"))
        }
        ConnectError::Unreachable { .. } | ConnectError::Renewal { .. } => Failed::Away(reason),
        ConnectError::Address { .. } | ConnectError::Option { .. } => {
            Failed::ForGood(OpenStoreError::Setting { kind: KIND, reason })
        }
        ConnectError::Tls { address, reason } => {
            let reason = format!("no TLS with {address}: {reason}; {}", super::remedy(reason));
            Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason })
        }
        // In the terms of the file.
        ConnectError::Mode { address, is_cluster } => {
            let reason = if *is_cluster {
                format!("{address} is a node of a cluster; write store.topology: cluster")
            } else {
                format!("{address} is not a node of a cluster; leave out store.topology: cluster")
            };
            Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason })
        }
        _ => Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason }),
    }
}

/// Returns the addresses of sentinels, without databases, and that of their master: with TLS if they have it, since
/// its password must not go in plain text, and with their database.
fn behind_sentinels(urls: &[String]) -> (Vec<String>, String) {
    let parts = |url: &str| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        (format!("{scheme}://{host}"), format!("{scheme}://named-by-sentinels/{database}"))
    };
    let (sentinels, masters): (Vec<String>, Vec<String>) = urls.iter().map(|url| parts(url)).unzip();
    (sentinels, masters.into_iter().next().unwrap_or_default())
}

/// Inserts user and password into an address. The result is never shown.
fn with_secrets(url: &str, user: Option<&str>, password: Option<&str>) -> String {
    if user.is_none() && password.is_none() {
        return url.to_owned();
    }
    let escaped =
        |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20");
    let secrets = match (user, password) {
        (user, Some(password)) => format!("{}:{}@", user.map(escaped).unwrap_or_default(), escaped(password)),
        (user, None) => format!("{}@", user.map(escaped).unwrap_or_default()),
    };
    url.replacen("://", &format!("://{secrets}"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_may_hold_what_an_address_may_not() {
        assert_eq!(with_secrets("redis://h:1/2", None, None), "redis://h:1/2");
        assert_eq!(with_secrets("redis://h", None, Some("a@b: c")), "redis://:a%40b%3A%20c@h");
        assert_eq!(with_secrets("rediss://h", Some("me"), Some("p/w")), "rediss://me:p%2Fw@h");
    }

    #[test]
    fn a_hint_at_another_kind_of_address_names_the_key() {
        let away = |reason: &str| {
            let error = ConnectError::Unreachable { address: "h:1".to_owned(), reason: reason.to_owned() };
            let Failed::Away(told) = failed(&error) else { panic!("it is tried again") };
            told
        };
        assert!(away("closed; write `rediss://` in its address").ends_with("address (store.url)"));
        assert_eq!(away("refused"), "no Redis server answers at h:1: refused");
    }

    /// Regression: the master was dialled without TLS whatever the sentinels used, so it got the password in plain
    /// text, and the database was lost.
    #[test]
    fn a_master_is_reached_as_its_sentinels_are() {
        let behind = |urls: &[&str]| {
            let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            behind_sentinels(&urls)
        };
        let (sentinels, master) = behind(&["rediss://a:26379/3", "rediss://b:26379/3"]);
        assert_eq!(sentinels, ["rediss://a:26379", "rediss://b:26379"]);
        assert_eq!(with_secrets(&master, None, Some("p")), "rediss://:p@named-by-sentinels/3");
        assert_eq!(behind(&["redis://a"]).1, "redis://named-by-sentinels/");
    }
}
