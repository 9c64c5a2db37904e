//! The outcomes that a closed breaker remembers: those of the last calls, or those of a span of time.
//!
//! Totals are kept beside the outcomes, so the cost of a call does not depend on the window: its outcome is added to
//! them, and the outcome that it displaces is subtracted.

mod buckets;
mod ring;

use self::buckets::Buckets;
use self::ring::Ring;
use super::window::{Sample, Totals, Window};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

/// The outcomes in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcomes {
    /// No calls; takes no memory.
    #[default]
    None,
    Ring(Ring),
    Buckets(Buckets),
}

/// A view of later ticks: see [`Outcomes::ahead`].
pub(super) struct Ahead<'o> {
    left: Totals,
    /// The buckets of a window of time, and the number of the newest bucket at the last tick asked for.
    buckets: Option<(&'o Buckets, u64)>,
}

impl Ahead<'_> {
    /// Returns the totals of the window at `at`, which must not be before the last tick asked for.
    pub(super) fn totals(&mut self, at: Tick) -> Totals {
        if let Some((buckets, newest)) = &mut self.buckets {
            *newest = buckets.leave_out(&mut self.left, *newest, at);
        }
        self.left
    }
}

impl Outcomes {
    /// Returns the number of bytes that a full window is written in.
    pub(super) const fn largest(window: Window) -> usize {
        match window {
            Window::Calls(calls) => Ring::largest(calls),
            Window::Time { buckets, .. } => Buckets::largest(buckets),
        }
    }

    /// Adds the outcome of a call that ended at `at`. Allocates only for the first one.
    pub(super) fn add(&mut self, window: Window, at: Tick, sample: Sample) {
        if !self.is_of(window) {
            *self = match window {
                Window::Calls(calls) => Self::Ring(Ring::new(calls)),
                Window::Time { span, buckets } => Self::Buckets(Buckets::new(span, buckets, at)),
            };
        }
        match self {
            Self::None => {}
            Self::Ring(ring) => ring.add(sample),
            Self::Buckets(buckets) => buckets.add(at, sample),
        }
    }

    /// Returns the totals of the window that ends at `at`, and forgets older outcomes.
    pub(super) fn totals(&mut self, at: Tick) -> Totals {
        match self {
            Self::None => Totals::default(),
            Self::Ring(ring) => ring.totals(),
            Self::Buckets(buckets) => {
                buckets.advance(at);
                buckets.totals()
            }
        }
    }

    /// Returns a view of what is left in the window at increasing ticks; changes nothing.
    pub(super) fn ahead(&self) -> Ahead<'_> {
        match self {
            Self::None => Ahead { left: Totals::default(), buckets: None },
            Self::Ring(ring) => Ahead { left: ring.totals(), buckets: None },
            Self::Buckets(buckets) => {
                Ahead { left: buckets.totals(), buckets: Some((buckets, buckets.newest())) }
            }
        }
    }

    /// Says whether these outcomes were kept for this window.
    pub(super) fn is_of(&self, window: Window) -> bool {
        match (self, window) {
            (Self::Ring(ring), Window::Calls(calls)) => ring.size() == calls,
            (Self::Buckets(kept), Window::Time { span, buckets }) => kept.is_of(span, buckets),
            _ => false,
        }
    }

    /// Returns the tick from which the window is empty; `None` if time does not empty it.
    pub(super) fn empty_at(&self) -> Option<Tick> {
        match self {
            Self::None => Some(Tick::EPOCH),
            Self::Ring(ring) => (ring.totals().calls == 0).then_some(Tick::EPOCH),
            Self::Buckets(buckets) => Some(buckets.empty_at()),
        }
    }

    /// Moves outcomes as of `from` to `to`, an earlier tick.
    pub(super) fn set_back(&mut self, from: Tick, to: Tick) {
        if let Self::Buckets(buckets) = self {
            buckets.set_back(from, to);
        }
    }
}

impl Bytes for Outcomes {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::None => out.u8(0),
            Self::Ring(ring) => {
                out.u8(1);
                ring.write(out);
            }
            Self::Buckets(buckets) => {
                out.u8(2);
                buckets.write(out);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            0 => Ok(Self::None),
            1 => Bytes::read(from).map(Self::Ring),
            2 => Bytes::read(from).map(Self::Buckets),
            _ => Err(DecodeError::Value { field: "window" }),
        }
    }
}

#[cfg(test)]
mod tests;
