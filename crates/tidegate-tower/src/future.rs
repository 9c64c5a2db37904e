//! The futures of the services, for code that has to name their types.

pub use crate::arriving::ArrivingRetriesFuture;
pub use crate::breaker::BreakerFuture;
pub use crate::client::ClientFuture;
pub use crate::concurrency::ConcurrencyFuture;
pub use crate::deadline::{DeadlineFuture, WholeCallFuture};
pub use crate::fallback::FallbackFuture;
pub use crate::gate::GateFuture;
pub use crate::load_shed::LoadShedFuture;
pub use crate::rate_limit::RateLimitFuture;
pub use crate::retry::RetryFuture;
pub use tidegate::priority::Carrying as PriorityFuture;
