//! Opens the store on ZooKeeper.

use std::sync::Arc;

use tidegate::config::EngineSettings;
use tidegate::store::Caps;
use tidegate_zookeeper::{ConnectError, ZooKeeper, ZooKeeperOptions};

use super::dial::{Attempt, Dial, Dialled, Failed, MEMBERS_KEPT};
use super::opened::OpenStoreError;
use super::password;

const KIND: &str = "zookeeper";

pub(super) fn dial(engine: &EngineSettings) -> Result<Dial, OpenStoreError> {
    let addresses = engine.urls.iter().map(|url| url.trim_start_matches("zookeeper://").to_owned());
    let mut options = ZooKeeperOptions::new(addresses).path(format!("/{}", engine.prefix));
    if let Some(user) = &engine.user {
        options = options.user(user, password::password(engine)?.unwrap_or_default());
    }
    let attempt = move || -> Attempt {
        let connecting = ZooKeeper::connect(options.clone());
        Box::pin(async {
            connecting.await.map(|zookeeper| dialled(&zookeeper)).map_err(|error| failed(&error))
        })
    };
    Ok(Dial { caps: Caps::ENGINE, coordinates: true, attempt: Box::new(attempt) })
}

fn dialled(zookeeper: &ZooKeeper) -> Dialled {
    let coordinator = Some(zookeeper.coordinator(MEMBERS_KEPT));
    Dialled { store: Arc::new(zookeeper.store()), coordinator, warnings: Vec::new() }
}

fn failed(error: &ConnectError) -> Failed {
    let reason = error.to_string();
    match error {
        // A server that is cut off from its ensemble accepts no writes, and reports various errors.
        ConnectError::Unreachable { .. } | ConnectError::ReadOnly { .. } | ConnectError::Other { .. } => {
            Failed::Away(reason)
        }
        ConnectError::Address { .. } | ConnectError::Path { .. } => {
            Failed::ForGood(OpenStoreError::Setting { kind: KIND, reason })
        }
        _ => Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason }),
    }
}
