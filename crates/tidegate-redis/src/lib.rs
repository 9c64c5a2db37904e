//! Limits that many nodes share, kept on Redis or Valkey.
//!
//! * [`RedisStore`]: a [`Store`](tidegate::store::Store) on one server, behind sentinels, or in a cluster
//! * [`RedisOptions`]: which servers to use, and how
//! * [`AfterLoss`]: how full a limit is assumed to be after a server has lost its cell
//! * [`Counts`]: a store's activity so far. [`Reports`]: what nodes tell one another
//! * [`ConnectError`]: why a store could not be connected
//!
//! A script on the server decides [`GCRA`](tidegate_core::rate::Gcra) limits and fixed windows in one round trip.
//! Several limits of one request are decided in one call, all or nothing. This library decides all other limits, and
//! all settlements, resets and changes of quota: it reads the cells, decides, and writes them if unchanged, in two
//! round trips. Both ways use the same arithmetic and the server's clock.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate::clock::SystemClock;
//! use tidegate::store::Fallback;
//! use tidegate_redis::{RedisOptions, RedisStore};
//!
//! # async fn connect() -> Result<(), tidegate_redis::ConnectError> {
//! let redis = RedisStore::connect(RedisOptions::single("redis://127.0.0.1/")?.namespace("shop")).await?;
//! // Decides locally while the server is unreachable.
//! let store = Fallback::around(redis, SystemClock::new()).deadline(Duration::from_millis(50)).nodes(3).build();
//! # Ok(()) }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod cell;
mod connect;
mod counts;
mod engine;
mod link;
mod options;
mod route;
mod store;
mod sweep;
mod work;

pub use cell::decided_by_script;
pub use counts::{Counts, Reports};
pub use options::{ConnectError, RedisOptions};
pub use store::RedisStore;
pub use tidegate::store::AfterLoss;
