//! Who is limited, by what.

mod descriptor;
mod plan;

pub use descriptor::Descriptor;
pub use plan::{Line, Plan};
