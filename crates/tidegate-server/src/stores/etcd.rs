//! The store on etcd.

use std::sync::Arc;

use tidegate::config::EngineSettings;
use tidegate_etcd::{Etcd, EtcdOptions, Tls};

use super::opened::{MEMBERS_KEPT, OpenStoreError, Opened};
use super::password;

pub(super) async fn open(engine: &EngineSettings) -> Result<Opened, OpenStoreError> {
    let mut options = EtcdOptions::new(engine.urls.iter().cloned()).prefix(&engine.prefix);
    if let Some(user) = &engine.user {
        options = options.user(user, password::password(engine)?.unwrap_or_default());
    }
    if let Some(pem) = password::certificates(engine)? {
        options = options.tls(Tls { authorities: pem, ..Tls::default() });
    }
    let failed = |error: tidegate_etcd::ConnectError| OpenStoreError::Engine {
        kind: "etcd",
        reason: error.to_string(),
    };
    let etcd = Etcd::connect(options).await.map_err(failed)?;
    let coordinator = Arc::new(etcd.coordinator(MEMBERS_KEPT));
    Ok(Opened { store: Arc::new(etcd.store()), coordinator: Some(coordinator), warnings: Vec::new() })
}
