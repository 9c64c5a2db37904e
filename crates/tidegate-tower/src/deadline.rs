//! Deadline layers: read the time left from a request, carry it through the task, and tell it to the next service.

mod forward;
mod rules;
mod serve;
mod whole_call;

pub use self::forward::{ForwardDeadlineLayer, ForwardDeadlineService};
pub use self::serve::{DeadlineFuture, DeadlineLayer, DeadlineService};
pub use self::whole_call::{BoundsCalls, WholeCallFuture, WholeCallLayer, WholeCallService};
