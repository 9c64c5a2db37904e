//! A virtual clock and traffic, synthetic or recorded; drives a real gate; curves out.
//!
//! * [`source`]: opens files and standard input, plain or packed
//! * [`log`]: access logs, JSON lines and tables as one stream of requests in time order; [`order`] sorts it
//! * [`traffic`]: requests made up from a line of text
//! * [`trace`]: operations on one limit, line by line
//! * [`chart`]: pictures, as SVG and for a terminal
//! * [`replay`]: real gates driven by a log or by traffic, and the account of it
//! * [`suggest`]: a limit proposed from a log, with the evidence
//! * [`report`]: one page with the tables and charts of a replay
//! * [`series`], [`peaks`]: what happened over time, and who was fastest, in bounded memory

pub mod chart;
pub mod log;
pub mod order;
pub mod peaks;
pub mod replay;
pub mod report;
pub mod series;
pub mod source;
pub mod suggest;
pub mod trace;
pub mod traffic;
mod words;
