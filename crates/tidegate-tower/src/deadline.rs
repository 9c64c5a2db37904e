//! How much time is left: read from a request, carried through the task, and told to the next service.

mod forward;
mod future;
mod header;
mod rules;
mod serve;

pub use self::forward::{ForwardDeadlineLayer, ForwardDeadlineService};
pub use self::future::DeadlineFuture;
pub use self::serve::{DeadlineLayer, DeadlineService};
