//! Priority layers: read a request's priority, carry it through the task, and tell it to the next service.

mod forward;
mod header;
mod serve;

pub use self::forward::{ForwardPriorityLayer, ForwardPriorityService};
pub use self::header::priority_of;
pub use self::serve::{Ceiling, PriorityLayer, PriorityService};
