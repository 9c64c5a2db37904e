//! Limits that many nodes share, kept on Redis or Valkey.
//!
//! * [`RedisStore`]: a [`Store`](tidegate::store::Store) on one server, behind sentinels, or in a cluster
//! * [`RedisOptions`]: which servers, and how
//! * [`AfterLoss`]: how full limits are taken to be that a server has lost
//! * [`Counts`]: what a store has done so far
//! * [`ConnectError`]: why a store could not be connected
//!
//! A [`GCRA`](tidegate_core::rate::Gcra) and fixed windows are decided by a script on the server, in one round trip; several limits of one
//! request, in one call, all or nothing; units that a node draws ahead of time as well. All other limits, and whatever gives back, resets or carries over, are decided by this library over
//! what it has read, and written if nothing has changed: two round trips. Either way it is the same arithmetic, and the server's
//! clock decides.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate::SystemClock;
//! use tidegate::store::Fallback;
//! use tidegate_redis::{RedisOptions, RedisStore};
//!
//! # async fn connect() -> Result<(), tidegate_redis::ConnectError> {
//! let redis = RedisStore::connect(RedisOptions::single("redis://127.0.0.1/")?.namespace("shop")).await?;
//! // Decides by itself while the server is gone.
//! let store = Fallback::around(redis, SystemClock::new()).deadline(Duration::from_millis(50)).nodes(3).build();
//! # Ok(()) }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod ask;
mod batch;
mod call;
mod cell;
mod connect;
mod counts;
mod engine;
mod error;
mod find;
mod link;
mod loss;
mod options;
mod route;
mod store;
mod sweep;
mod work;

pub use cell::decided_by_script;
pub use counts::Counts;
pub use error::ConnectError;
pub use loss::AfterLoss;
pub use options::{CLUSTER_SHARDS, PATIENCE, RedisOptions, SHARDS, STEPS_IN_A_CALL, TIMEOUT};
pub use store::RedisStore;
