//! The store on Redis or Valkey.

use std::sync::Arc;

use tidegate::config::{AfterLoss, EngineSettings, Topology};
use tidegate_redis::{RedisOptions, RedisStore};

use super::opened::{OpenStoreError, Opened};
use super::password;

const KIND: &str = "redis";

pub(super) async fn open(
    engine: &EngineSettings,
    topology: &Topology,
    after_loss: AfterLoss,
) -> Result<Opened, OpenStoreError> {
    let password = password::password(engine)?;
    let urls: Vec<String> = engine
        .urls
        .iter()
        .map(|url| with_secrets(url, engine.user.as_deref(), password.as_deref()))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let options = match topology {
        Topology::Single => match urls[..] {
            [url] => RedisOptions::single(url),
            _ => {
                let reason = "several addresses are for `topology: cluster` or `sentinel`; write one, or say which it is";
                return Err(OpenStoreError::Engine { kind: KIND, reason: reason.to_owned() });
            }
        },
        Topology::Cluster => RedisOptions::cluster(&urls),
        Topology::Sentinel { master } => {
            let any = with_secrets("redis://sentinels-say", engine.user.as_deref(), password.as_deref());
            let sentinels: Vec<&str> = engine.urls.iter().map(String::as_str).collect();
            RedisOptions::sentinel(&sentinels, master, &any)
        }
    };
    let failed = |error: tidegate_redis::ConnectError| OpenStoreError::Engine {
        kind: KIND,
        reason: error.to_string(),
    };
    let mut options = options.map_err(failed)?.namespace(&engine.prefix).after_loss(match after_loss {
        AfterLoss::Empty => tidegate_redis::AfterLoss::Empty,
        AfterLoss::Half => tidegate_redis::AfterLoss::Half,
        AfterLoss::Full => tidegate_redis::AfterLoss::Full,
    });
    if let Some(pem) = password::certificates(engine)? {
        options = options.root_certificates(pem);
    }
    let store = RedisStore::connect(options).await.map_err(failed)?;
    let mut warnings = Vec::new();
    let policy = store.eviction_policy();
    if policy.starts_with("allkeys") {
        warnings.push(format!(
            "store.kind: redis: maxmemory-policy is {policy}, so counters may be dropped when memory is short, and what was spent with them; set noeviction or volatile-ttl"
        ));
    }
    Ok(Opened { store: Arc::new(store), coordinator: None, warnings })
}

/// Puts user and password into an address, which is never shown.
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
}
