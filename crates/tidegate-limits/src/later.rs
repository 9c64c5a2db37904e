//! The future type of answers from engines.

use std::pin::Pin;

/// A boxed future of an answer. It does nothing before its first poll: if it is dropped before that, the engine was not
/// asked.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
