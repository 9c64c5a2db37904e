//! Answers that come later.

use std::pin::Pin;

/// An answer that comes later. It does nothing before it is first polled: dropped before that, nothing was asked of the engine.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
