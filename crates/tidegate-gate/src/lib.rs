//! Policies and what decides by them: which limits a request meets, the gate that asks them, tickets, explanations, and
//! the answer in the words of HTTP.
//!
//! A part of [`tidegate`](https://docs.rs/tidegate), which shows all of it under one name.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod explain;
pub mod gate;
mod header_form;
pub mod hot_keys;
#[cfg(feature = "http")]
pub mod http_answer;
pub mod policy;
pub mod switches;

pub use gate::{Admission, Charged, Check, Entry, Gate, GateDecision, InForce, LimitDecision};
pub use header_form::HeaderForm;
pub use policy::{Descriptor, Policy, PolicySet};
