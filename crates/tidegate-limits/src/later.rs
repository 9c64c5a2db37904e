//! The future type of answers from engines.

use std::pin::Pin;

/// A boxed future of an answer. Nothing happens before its first poll.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
