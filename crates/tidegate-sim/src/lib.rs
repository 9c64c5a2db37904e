//! Drives a real gate with traffic, synthetic or recorded, on a virtual clock, and draws the results as curves.
//!
//! * [`log`]: access logs, JSON lines and tables, plain or packed, as one stream of requests in time order
//! * [`traffic`]: requests generated from one line of text
//! * [`replay`]: drives real gates with either, and returns the results
//! * [`report`]: one page with the tables and charts of a replay, and limits to try beside the replayed one
//! * [`suggest`]: proposes a limit from a log, with the evidence
//! * [`what_if`]: many limits tried side by side during one reading of a log
//! * [`trace`]: operations on one limit, line by line
//! * [`chart`]: charts, as SVG, PNG and for a terminal
//!
//! ```
//! use tidegate::config::{Config, Format};
//! use tidegate_sim::replay::{Replay, ReplayOptions};
//! use tidegate_sim::traffic::Traffic;
//! use tidegate::{Tick, policy::Descriptor};
//!
//! let policies = "version: 1\npolicies:\n  - { name: all, limit: { rate: 100/s, burst: 200 } }\n";
//! let (config, _) = Config::parse(policies, "example", Format::Yaml).unwrap();
//! let mut replay = Replay::new(vec![("policies".to_owned(), config.policies)], ReplayOptions::default()).unwrap();
//! let traffic: Traffic = "steady 80/s 1min, burst 500, steady 150/s 1min".parse()?;
//! for arrival in traffic.arrivals(Tick::EPOCH, 1) {
//!     replay.feed_request(arrival.at, &Descriptor::new(), Some(arrival.cost));
//! }
//! let outcome = &replay.outcomes()[0];
//! // 300 of the burst; then 150 a second against 100 for a minute, the last refill a 150th of a second short of it.
//! assert_eq!((outcome.requests, outcome.denied), (14_300, 3_301));
//! # Ok::<(), tidegate_sim::traffic::TrafficError>(())
//! ```

pub mod chart;
mod ladder;
pub mod log;
mod meter;
mod order;
mod peaks;
mod policy_yaml;
pub mod replay;
pub mod report;
mod series;
mod source;
pub mod suggest;
pub mod trace;
pub mod traffic;
mod units;
mod unknown;
pub mod what_if;

pub use units::{grouped, millis, rfc3339};
