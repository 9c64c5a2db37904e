//! The part of a call that counts as its latency.

use tidegate_core::{Receipt, Tick};

/// Which part of a call counts as its latency: by default all of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// When the work began, if the call waited for its turn before.
    began: Option<Tick>,
    /// When the answer began, if it was streamed.
    answered: Option<Tick>,
}

impl Measured {
    /// Notes that the work begins now.
    pub(super) const fn work_begins(&mut self, now: Tick) {
        self.began = Some(now);
    }

    /// Notes that the answer begins now. Only the first time counts.
    pub(super) fn answer_begins(&mut self, now: impl FnOnce() -> Tick) {
        if self.answered.is_none() {
            self.answered = Some(now());
        }
    }

    /// Returns the tick until which the law measures the latency of a call, which it counts from the receipt's tick;
    /// `None`: until now.
    pub(super) fn answered(self, receipt: &Receipt, now: Tick) -> Option<Tick> {
        let Some(began) = self.began else { return self.answered };
        Some(receipt.at.after(self.answered.unwrap_or(now).since(began)))
    }
}
