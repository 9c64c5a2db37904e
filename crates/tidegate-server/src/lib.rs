//! Serves a Tidegate gate over HTTP, gRPC and RESP: the check API, forward-auth sub-requests, Envoy's rate limit services,
//! commands of Redis clients, metrics, reload and graceful stop.
//!
//! * [`Server`]: runs from bind to exit. [`ServerOptions`] are the settings that stay the same until then, including
//!   [`Timeouts`]
//! * [`Source`]: where the configuration comes from, at start and at every reload. [`Settings`] are its result
//! * [`open_store`]: opens the store that a file names
//! * [`Sight`]: sees each decision and change, and answers the pages for operators
//! * [`Token`]: the secret that callers send; required if more than the own machine can reach the server
//! * [`TicketOptions`]: the keys and lifetime of the tickets that settle decisions later, here or at another node
//!
//! # Examples
//! ```no_run
//! use tidegate::Quota;
//! use tidegate::policy::{Limit, Policy, PolicySet};
//! use tidegate_server::{Server, ServerOptions, Settings, Source};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Source::new(|| {
//!     let quota = Quota::per_second(100).burst(200).gcra().expect("a rate in range");
//!     let mut policy = Policy::new("per-ip", Limit::new(quota, "gcra 100/s burst 200"));
//!     policy.by = vec!["client.ip".to_owned()];
//!     Ok(Settings::new(PolicySet::new(vec![policy])?))
//! });
//! let server = Server::bind(ServerOptions::default(), source).await?;
//! println!("http://{}", server.local_addr());
//! server.run().await;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod active_config;
mod api_policies;
mod app;
mod auth;
mod body;
mod connections;
mod decided_again;
mod decider;
mod denial_log;
mod doors;
mod events;
mod files;
mod metrics;
mod options;
mod otlp;
mod problem;
mod proxy;
mod refusal_record;
mod refused_requests;
mod reload;
mod requests;
mod server;
mod settings;
mod sight;
mod span_attributes;
mod stores;
mod systemd;
mod text;
mod ticket_options;
mod tls;
mod top_keys;
mod uncovered_requests;

pub use auth::{Token, TokenError, Tokens, TokensError};
pub use doors::http::describe_policy;
pub use options::{OptionsError, ServerOptions, Timeouts};
pub use otlp::{OtlpError, otlp_of};
pub use reload::unknown_numbers;
pub use server::{Ready, ServeError, Server, ServerHandle, Stopped};
pub use settings::{Refused, Settings, SharedPolicies, Source};
pub use sight::{
    AlertMessages, Canary, Changed, Firing, OpenBreaker, Recalled, RefusalRecord, Seen, Sight, Trial,
    Verdict, Vitals, WatchedServer,
};
pub use stores::{
    DecidedIn, OpenStore, OpenStoreError, PolicyCost, check_store, open_coordinator, open_store, round_trips,
};
pub use ticket_options::{TicketKeyError, TicketOptions};
pub use tls::{TlsError, check_tls};

/// Functions for the fuzz targets; not part of the API.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    #[cfg(feature = "grpc")]
    pub use crate::doors::grpc::fuzzing::{QuotaCall, RateLimitDoor, answer};
    pub use crate::doors::http::fuzzing::{ApiDoor, ForwardAuthDoor};
    pub use crate::doors::resp::fuzzing::{RespClient, resp_command};
}
