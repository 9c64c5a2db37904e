//! One attempt of one request at one service.

use super::station::Worked;

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
    /// When the service worked on it; `None` until the work is done.
    pub(super) worked: Option<Worked>,
    /// The call at the next service whose good answer it got.
    pub(super) below: Option<u32>,
}

impl Call {
    /// Makes a call that begins now. Nobody has worked on it yet.
    pub(super) fn begins(parent: Parent, request: u32, service: u8, attempt: u8, began: u64) -> Self {
        let (settled, left, worked, below) = (false, false, None, None);
        Self { parent, request, service, attempt, settled, left, began, worked, below }
    }
}
