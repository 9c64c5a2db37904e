//! Drives a real gate with traffic, synthetic or recorded, on a virtual clock, and draws the results as curves.
//!
//! * [`source`]: opens files and standard input, plain or packed
//! * [`log`]: access logs, JSON lines and tables as one stream of requests in time order; [`order`] sorts it
//! * [`traffic`]: requests generated from one line of text
//! * [`trace`]: operations on one limit, line by line
//! * [`chart`]: charts, as SVG, PNG and for a terminal
//! * [`replay`]: drives real gates with a log or with generated traffic, and returns the results
//! * [`what_if`]: many limits tried side by side during one reading of a log
//! * [`ladder`]: tries limits above and below the replayed one, so that the reader of a report can move the limit in
//!   its chart
//! * [`suggest`]: proposes a limit from a log, with the evidence
//! * [`report`]: one page with the tables and charts of a replay
//! * [`series`], [`levels`], [`served`], [`peaks`]: what happened over time, and which keys were fastest, in
//!   bounded memory
//!
//! ```
//! use tidegate::config::{Config, Format};
//! use tidegate_sim::replay::{Replay, ReplayOptions};
//! use tidegate_sim::traffic::Traffic;
//! use tidegate::{Tick, policy::Descriptor};
//!
//! let policies = "version: 1\npolicies:\n  - { name: all, limit: { rate: 100/s, burst: 200 } }\n";
//! let (config, _) = Config::parse(policies, "example", Format::Yaml).unwrap();
//! let mut replay = Replay::new(vec![("policies".to_owned(), config.policies)], ReplayOptions::default());
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
pub mod json_units;
pub mod ladder;
pub mod levels;
pub mod log;
mod meter;
pub mod order;
pub mod peaks;
mod policy_yaml;
pub mod replay;
pub mod report;
pub mod series;
pub mod served;
pub mod source;
pub mod suggest;
pub mod thousands;
pub mod trace;
pub mod traffic;
pub mod unknown;
pub mod what_if;
