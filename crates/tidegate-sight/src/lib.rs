//! Sight of a Tidegate server: what is happening, who, why, what changed, and how it was before.
//!
//! Doors tell each decision of each policy to `feed`; one thread makes everything from it: `board` the counts of each
//! second, `busiest` the keys, `watch` what listeners see, `history` what was, `usual` what is normal, `traffic` the
//! requests of the last hour, on which `lab` tries other limits. `changes` is who changed what, `record` whom was refused
//! what, `alerts` what is wrong and who is told, `canary` stops a limit on trial that refuses too much. `pages` show all
//! this under `/ui/`, by the server's own paths.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod alerts;
mod board;
mod busiest;
mod canary;
mod changes;
mod engine_file;
mod feed;
mod history;
mod lab;
mod numbers;
mod pages;
mod record;
mod sketch;
mod traffic;
mod usual;
mod watch;

pub use self::watch::{OpenError, Watch};
