//! Deadline layers: read the time left from a request, carry it through the task, and tell it to the next service.

mod forward;
mod rules;
mod serve;

pub use self::forward::{BoundsCalls, ForwardDeadlineLayer, WholeCallLayer};
pub use self::serve::DeadlineLayer;
