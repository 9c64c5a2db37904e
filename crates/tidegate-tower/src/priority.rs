//! How much a request matters: read from a request, carried through the task, and told to the next service.

mod forward;
mod header;
mod serve;

pub use self::forward::{ForwardPriorityLayer, ForwardPriorityService};
pub use self::header::priority_of;
pub use self::serve::{Ceiling, PriorityLayer, PriorityService};
