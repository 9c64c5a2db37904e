//! How busy the processor is, smoothed over readings.

use crate::average::interpolate;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// The smoothed use of the processor in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cpu {
    used: f64,
    heard: bool,
}

impl Cpu {
    /// Averages in a reading with the weight `1 − kept`; the average so far keeps the weight `kept`. The first reading
    /// becomes the average.
    pub(super) fn read(&mut self, thousandths: u16, kept: f64) {
        let reading = f64::from(thousandths);
        self.used = if self.heard { interpolate(self.used, reading, 1.0 - kept) } else { reading };
        self.heard = true;
    }

    /// Averages in a reading as the other libraries do: starting from zero, and truncated to whole thousandths each
    /// time.
    pub(super) fn read_whole(&mut self, thousandths: u16, kept: f64) {
        self.used = (self.used * kept + f64::from(thousandths) * (1.0 - kept)).trunc();
    }

    /// Returns the use in whole thousandths, 0 to 1000.
    pub(super) fn thousandths(&self) -> u16 {
        // Readings are at most 1000, so their average is too, apart from rounding.
        self.used.round().min(1000.0) as u16
    }
}

impl Bytes for Cpu {
    fn write(&self, out: &mut Writer) {
        out.f64(self.used);
        out.flag(self.heard);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { used: from.within("cpu", 0.0..=1000.0)?, heard: from.flag("cpu heard")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_full_load_reads_as_981_and_takes_33_readings_to_800() {
        let mut cpu = Cpu::default();
        let readings: Vec<u16> = std::iter::repeat_with(|| {
            cpu.read_whole(1000, 0.95);
            cpu.thousandths()
        })
        .take(10_000)
        .collect();
        assert_eq!(readings.iter().position(|&reading| reading >= 800), Some(32));
        assert_eq!(readings.iter().max(), Some(&981));
    }

    #[test]
    fn ours_reaches_full_load_and_idleness() {
        let mut cpu = Cpu::default();
        cpu.read(300, 0.95);
        assert_eq!(cpu.thousandths(), 300, "the first reading counts whole");
        for (reading, reached) in [(1000, 1000), (0, 0), (1000, 1000)] {
            (0..200).for_each(|_| cpu.read(reading, 0.95));
            assert_eq!(cpu.thousandths(), reached);
        }
    }
}
