//! Opens the store on etcd.

use std::sync::Arc;

use tidegate::config::EngineSettings;
use tidegate::store::Caps;
use tidegate_etcd::{ConnectError, Etcd, EtcdOptions, Tls};

use super::dial::{Attempt, Dial, Dialled, Failed, MEMBERS_KEPT};
use super::opened::OpenStoreError;
use super::password;

const KIND: &str = "etcd";

pub(super) fn dial(engine: &EngineSettings) -> Result<Dial, OpenStoreError> {
    let mut options = EtcdOptions::new(engine.urls.iter().cloned()).prefix(&engine.prefix);
    if let Some(user) = &engine.user {
        options = options.user(user, password::password(engine)?.unwrap_or_default());
    }
    let (authorities, identity) = (password::certificates(engine)?, password::identity(engine)?);
    if authorities.is_some() || identity.is_some() {
        let authorities = authorities.unwrap_or_default();
        options = options.tls(Tls { authorities, identity, ..Tls::default() });
    }
    let attempt = move || -> Attempt {
        let connecting = Etcd::connect(options.clone());
        Box::pin(async { connecting.await.map(|etcd| dialled(&etcd)).map_err(|error| failed(&error)) })
    };
    Ok(Dial { caps: Caps::ENGINE, coordinates: true, attempt: Box::new(attempt) })
}

fn dialled(etcd: &Etcd) -> Dialled {
    let coordinator = Some(etcd.coordinator(MEMBERS_KEPT));
    Dialled { store: Arc::new(etcd.store()), coordinator, warnings: Vec::new() }
}

fn failed(error: &ConnectError) -> Failed {
    let reason = error.to_string();
    match error {
        // Members without a leader accept no writes, and report various errors.
        ConnectError::Unreachable { .. } | ConnectError::ReadOnly { .. } | ConnectError::Other { .. } => {
            Failed::Away(reason)
        }
        ConnectError::Address { .. } => Failed::ForGood(OpenStoreError::Setting { kind: KIND, reason }),
        _ => Failed::ForGood(OpenStoreError::Engine { kind: KIND, reason }),
    }
}
