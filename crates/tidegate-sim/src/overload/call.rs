//! One attempt of one request at one service.

/// The caller of a service: a request of the load, or a call at the previous service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Request(u32),
    Call(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) parent: Parent,
    pub(super) request: u32,
    pub(super) service: u8,
    pub(super) attempt: u8,
    /// Whether the caller has an answer or has stopped waiting.
    pub(super) settled: bool,
    /// Whether the service has answered.
    pub(super) left: bool,
    pub(super) began: u64,
}
