//! Deadline layers: read the time left from a request, carry it through the task, and tell it to the next service.

mod forward;
mod rules;
mod serve;
mod whole_call;

pub use self::forward::ForwardDeadlineLayer;
pub use self::serve::DeadlineLayer;
pub use self::whole_call::{BoundsCalls, WholeCallLayer};
