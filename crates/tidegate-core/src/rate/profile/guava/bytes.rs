//! The byte forms of both limiters and of their state.

use core::time::Duration;

use super::{GuavaBursty, GuavaState, GuavaWarming};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

impl Bytes for GuavaBursty {
    fn write(&self, out: &mut Writer) {
        out.f64(self.rate);
        out.f64(self.seconds);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(from.f64()?, from.f64()?).map_err(|_| DecodeError::Value { field: "rate" })
    }
}

impl Bytes for GuavaWarming {
    fn write(&self, out: &mut Writer) {
        out.f64(self.rate);
        out.f64(self.warm_up);
        out.f64(self.cold_factor);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, warm_up, cold_factor) = (from.f64()?, from.f64()?, from.f64()?);
        let whole = warm_up >= 0.0 && warm_up.is_finite();
        let made = Self::new(rate, Duration::ZERO, cold_factor).ok().filter(|_| whole);
        made.map(|made| Self { warm_up, ..made }).ok_or(DecodeError::Value { field: "rate" })
    }
}

impl Bytes for GuavaState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.start);
        out.f64(self.stored);
        out.u64(self.free);
        out.u64(self.charges);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (start, stored, free, charges) = (from.tick()?, from.f64()?, from.u64()?, from.u64()?);
        if stored.is_nan() || stored < 0.0 {
            return Err(DecodeError::Value { field: "stored" });
        }
        Ok(Self { start, stored, free: free.min(i64::MAX as u64), charges })
    }
}
