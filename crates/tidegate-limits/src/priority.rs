//! Priorities: how important a request is, read from a header, carried through the task, and sent on to the next
//! service.
//!
//! The carried priority applies to all work inside the task that names none itself: an entry into a
//! [`Bulkhead`](crate::Bulkhead), or a function that a [`BlockingPool`](crate::blocking_pool::BlockingPool) runs. A
//! [`Check`](tidegate_gate::Check) of a gate and a [switch](tidegate_gate::switches) do not read it; pass it to them as
//! `priority::carried().unwrap_or_default()`.
//!
//! # Examples
//! A report is computed within a request of low priority; an entry deep inside it takes its place by that priority:
//! ```
//! use tidegate::policy::{KeepFor, Kept};
//! use tidegate::{Bulkhead, Criticality, priority};
//!
//! let kept = KeepFor::default().with(Criticality::Critical, Kept::Percent(50));
//! let database = Bulkhead::new(2)?.with_keep_for(kept)?;
//! let query = || database.try_enter();
//!
//! let _first = priority::carry(Criticality::Sheddable, query)?;
//! assert!(priority::carry(Criticality::Sheddable, query).is_err(), "the second place is kept");
//! assert!(query().is_ok(), "critical, where nobody says otherwise");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod header;
#[doc(hidden)]
pub mod keep_for;
mod task_local;

pub use keep_for::{KeepFor, KeepForError, Kept};
pub use task_local::{Carrying, carried, carry, carry_through};
pub(crate) use task_local::{carry_nothing, hand_over, named_or_carried};
pub use tidegate_core::priority::{Cohorts, ParsePriorityError};
pub use tidegate_core::{Criticality, Priority};
