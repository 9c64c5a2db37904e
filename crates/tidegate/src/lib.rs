//! Decides which requests may pass, which must wait and which are shed: everything that lives in one process.
//!
//! * [`clock`]: where ticks come from; a virtual clock for tests
//! * [`explain`]: why a request was denied, and by which policy
//! * [`gate`]: policies, store and clock together: one check over many limits
//! * [`policy`]: who is limited, by what; the file format
//! * [`store`]: settles a list of charges in one step, all or nothing
//! * [`Quota`], [`Decision`] and the other words of the field come from [`tidegate_core`]

pub mod clock;
pub mod explain;
pub mod gate;
pub mod policy;
pub mod store;

pub use clock::{Clock, ManualClock, SystemClock};
pub use gate::{Gate, GateDecision, LimitDecision, Report};
pub use tidegate_core::{
    Ask, Cost, Decision, Quota, QuotaBuilder, QuotaError, Rate, Receipt, Replace, Standing, Tick,
};
