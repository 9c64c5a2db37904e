//! The store on ZooKeeper.

use std::sync::Arc;

use tidegate::config::EngineSettings;
use tidegate_zookeeper::{ZooKeeper, ZooKeeperOptions};

use super::opened::{MEMBERS_KEPT, OpenStoreError, Opened};
use super::password;

pub(super) async fn open(engine: &EngineSettings) -> Result<Opened, OpenStoreError> {
    let addresses = engine.urls.iter().map(|url| url.trim_start_matches("zookeeper://").to_owned());
    let mut options = ZooKeeperOptions::new(addresses).path(format!("/{}", engine.prefix));
    if let Some(user) = &engine.user {
        options = options.user(user, password::password(engine)?.unwrap_or_default());
    }
    let failed = |error: tidegate_zookeeper::ConnectError| OpenStoreError::Engine {
        kind: "zookeeper",
        reason: error.to_string(),
    };
    let zookeeper = ZooKeeper::connect(options).await.map_err(failed)?;
    let coordinator = Arc::new(zookeeper.coordinator(MEMBERS_KEPT));
    Ok(Opened { store: Arc::new(zookeeper.store()), coordinator: Some(coordinator), warnings: Vec::new() })
}
