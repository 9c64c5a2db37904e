//! Decides which requests may pass, which must wait and which are shed: everything that lives in one process.
//!
//! * [`clock`]: where ticks come from; a virtual clock for tests
//! * [`policy`]: who is limited, by what; the file format
//! * [`store`]: settles a list of charges in one step, all or nothing
//! * [`Quota`], [`Decision`] and the other words of the field come from [`tidegate_core`]

pub mod clock;
pub mod policy;
pub mod store;

pub use clock::{Clock, ManualClock, SystemClock};
pub use policy::{Descriptor, Policy, PolicySet};
pub use tidegate_core::{
    Ask, Cost, Decision, Quota, QuotaBuilder, QuotaError, Rate, Receipt, Replace, Standing, Tick,
};
