//! One try of one request at one service.

/// Who waits for a call: a request of the load, or a call of the service before.
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
    /// Whether the caller has its answer, or waits no longer.
    pub(super) settled: bool,
    /// Whether the service has answered.
    pub(super) left: bool,
    pub(super) began: u64,
}
