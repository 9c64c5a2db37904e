//! Tests of the layers, each by itself and together, around services that the test controls.

mod any_order;
mod body;
mod breaker;
mod breaker_refusals;
mod cohorts;
mod concurrency;
mod deadline;
mod engine;
mod fallback;
mod gate;
mod gate_engine;
mod giving_back;
mod over_the_wire;
mod priority;
mod rate_limit;
mod readiness;
mod refusals;
mod replay;
mod retry;
mod service;
mod spawned;
mod stack;
mod whole_call;
