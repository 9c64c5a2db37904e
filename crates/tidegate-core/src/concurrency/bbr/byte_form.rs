//! How the law and its state are written and read.

use super::{Arithmetic, Bbr, BbrState};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

impl Bytes for Bbr {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        self.window.write(out);
        out.u32(u32::from(self.threshold));
        out.f64(self.smoothing);
        out.duration(self.cool_off);
        out.u8(match (self.arithmetic, self.memory) {
            (Arithmetic::Corrected, None) => 0,
            (Arithmetic::Aegis, _) => 1,
            (Arithmetic::GoZero, _) => 2,
            (Arithmetic::Corrected, Some(_)) => 3,
        });
        if let (Arithmetic::Corrected, Some(memory)) = (self.arithmetic, self.memory) {
            out.u32(u32::from(memory));
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bounds, window) = (Bytes::read(from)?, Bytes::read(from)?);
        let law = Self { bounds, window, ..Self::default() };
        // A value that does not fit 16 bits is out of range, too.
        let threshold = u16::try_from(from.u32()?).unwrap_or(u16::MAX);
        let (smoothing, cool_off) = (from.f64()?, from.duration("cool-off")?);
        let law = law.threshold(threshold).and_then(|law| law.smoothing(smoothing)?.cool_off(cool_off));
        let law = law.map_err(|_| DecodeError::Value { field: "threshold" })?;
        let arithmetic = match from.u8()? {
            0 => Arithmetic::Corrected,
            1 => Arithmetic::Aegis,
            2 => Arithmetic::GoZero,
            3 => {
                let memory = u16::try_from(from.u32()?).unwrap_or(u16::MAX);
                return law.memory(memory).map_err(|_| DecodeError::Value { field: "memory" });
            }
            _ => return Err(DecodeError::Value { field: "arithmetic" }),
        };
        Ok(Self { arithmetic, ..law })
    }
}

impl Bytes for BbrState {
    fn write(&self, out: &mut Writer) {
        self.cpu.write(out);
        self.served.write(out);
        out.tick(self.last);
        out.flag(self.mark.is_some());
        out.tick(self.mark.unwrap_or(Tick::EPOCH));
        out.flag(self.limited);
        out.flag(self.dropped);
        out.f64(self.flying);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (cpu, served, last) = (Bytes::read(from)?, Bytes::read(from)?, from.tick()?);
        let (marked, mark) = (from.flag("mark")?, from.tick()?);
        Ok(Self {
            cpu,
            served,
            last,
            mark: marked.then_some(mark),
            limited: from.flag("limited")?,
            dropped: from.flag("dropped")?,
            flying: from.within("flying", 0.0..=f64::MAX)?,
        })
    }
}
