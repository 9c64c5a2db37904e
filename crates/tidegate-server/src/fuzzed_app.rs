//! The server's state for the fuzz targets: made from a policy file, with counters in memory and without connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::config::{Config, Format, StoreSettings};
use tidegate::policy::PolicySet;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::app::App;
use crate::auth::Access;
use crate::connections::Phase;
use crate::decider::{Decider, DeciderOptions, TicketSeal};
use crate::options::ServerOptions;
use crate::reload::Reload;
use crate::settings::{Settings, Source};
use crate::stores::OpenStore;

/// Returns the runtime for a door that a fuzz target calls.
///
/// # Panics
/// If the system cannot provide a runtime.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system has a runtime")
}

/// Makes the state of a server with the policies of this file. No token is needed.
///
/// # Panics
/// If the file has errors.
pub(crate) async fn app(policies: &str, clock: Arc<dyn Clock>) -> Arc<App> {
    let (config, _) = Config::parse(policies, "policies", Format::Yaml).expect("a file without mistakes");
    let settings = Settings::from(config);
    let ServerOptions { tickets, .. } = ServerOptions::default();
    let store = OpenStore::in_memory(&StoreSettings::default(), None).expect("there is memory");
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let seal = TicketSeal::of(&tickets, &here.into()).expect("a key can be drawn");
    let decider = Decider::new(&settings, store, clock, seal, DeciderOptions::default());
    let reload = Reload::new(Source::new(|| Ok(Settings::new(PolicySet::default()))), None);
    let access = Access::open(None, None).await.expect("there is no file to read");
    let (_, phase) = watch::channel(Phase::Serving);
    Arc::new(App::new(decider, reload, access, None, None, phase))
}
