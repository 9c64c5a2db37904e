//! The byte forms of the guard and of its state, their sizes, and the effect of a clock that was set back.

use core::time::Duration;
use std::sync::Arc;

use super::{AdaptiveConcurrency, AdaptiveConcurrencyState, Learnt};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::storable::Storable;
use crate::time::Tick;

/// Stands for an unknown use of the processor.
const UNKNOWN: u32 = u32::MAX;

impl Storable for AdaptiveConcurrency {
    type State = AdaptiveConcurrencyState;

    fn last_change(&self, state: &AdaptiveConcurrencyState) -> Option<Tick> {
        Some(state.inner.places.last())
    }

    /// Places are set back as without a law. The law's own state stays: its ticks are not after the last change, and
    /// each law handles a clock that steps back.
    fn set_back(&self, state: &AdaptiveConcurrencyState, to: Tick) -> AdaptiveConcurrencyState {
        let places = self.parameters.places.set_back(&state.inner.places, to);
        let law = state.inner.law.clone().map(|known| Learnt { at: known.at.min(to), ..known });
        AdaptiveConcurrencyState::of(places, law)
    }

    fn largest(&self) -> usize {
        self.parameters.places.largest() + 1 + 8 + self.parameters.law.largest()
    }
}

impl Bytes for AdaptiveConcurrency {
    fn write(&self, out: &mut Writer) {
        out.u64(self.time_to_live().map_or(u64::MAX, crate::time::nanos));
        out.u64(self.parameters.forget);
        out.u32(self.parameters.cpu.map_or(UNKNOWN, u32::from));
        self.parameters.law.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (ttl, forget, cpu) = (from.u64()?, from.u64()?, from.u32()?);
        let guard = Self::new(Bytes::read(from)?);
        let guard = match ttl {
            u64::MAX => Ok(guard),
            ttl => guard.ttl(Duration::from_nanos(ttl)),
        };
        let guard = guard.and_then(|guard| match forget {
            u64::MAX => Ok(guard.never_forget()),
            span => guard.forget_after(Duration::from_nanos(span)),
        });
        let guard = guard.map_err(|_| DecodeError::Value { field: "ttl" })?;
        match cpu {
            UNKNOWN => Ok(guard),
            // At most 1000, so it fits.
            thousandths @ ..=1000 => Ok(guard.cpu(thousandths as u16)),
            _ => Err(DecodeError::Value { field: "cpu" }),
        }
    }
}

impl Bytes for AdaptiveConcurrencyState {
    fn write(&self, out: &mut Writer) {
        self.inner.places.write(out);
        out.flag(self.inner.law.is_some());
        if let Some(law) = &self.inner.law {
            out.tick(law.at);
            law.state.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (places, known) = (Bytes::read(from)?, from.flag("known")?);
        let law =
            if known { Some(Learnt { at: from.tick()?, state: Arc::new(Bytes::read(from)?) }) } else { None };
        Ok(Self::of(places, law))
    }
}
