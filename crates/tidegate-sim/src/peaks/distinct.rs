//! The number of distinct keys: counted, or estimated from their hashes in 4 KiB.

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::thousands::grouped;

/// The number of distinct keys. In JSON it becomes two fields of the surrounding document: `keys` and
/// `keys_estimated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinct {
    /// Counted.
    Exactly(u64),
    /// Estimated, with a standard error of 1.6 %.
    About(u64),
}

impl Distinct {
    /// Returns the number, counted or estimated.
    #[must_use]
    pub fn about(self) -> u64 {
        match self {
            Self::Exactly(count) | Self::About(count) => count,
        }
    }
}

impl Serialize for Distinct {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Distinct", 2)?;
        fields.serialize_field("keys", &self.about())?;
        fields.serialize_field("keys_estimated", &matches!(self, Self::About(_)))?;
        fields.end()
    }
}

impl std::fmt::Display for Distinct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => f.write_str(&grouped(*count)),
            Self::About(count) => write!(f, "~{}", grouped(*count)),
        }
    }
}

/// The registers of the sketch. The error falls with the square root of their number.
const REGISTERS: usize = 4_096;

/// Estimates the number of distinct hashes from the longest runs of zero bits; 4 KiB.
///
/// # Source
/// Flajolet, Fusy, Gandouet, Meunier: HyperLogLog, 2007; linear counting where many registers are empty.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    registers: Box<[u8; REGISTERS]>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { registers: Box::new([0; REGISTERS]) }
    }
}

impl Sketch {
    pub(crate) fn add(&mut self, hash: u64) {
        let register = &mut self.registers[hash as usize % REGISTERS];
        // Twelve bits chose the register; the marker bit bounds the run.
        let run = ((hash >> 12) | 1 << 52).trailing_zeros() as u8 + 1;
        *register = (*register).max(run);
    }

    /// Returns the number of distinct hashes, with a standard error of 1.6 %.
    pub(crate) fn estimate(&self) -> u64 {
        let count = REGISTERS as f64;
        let sum: f64 = self.registers.iter().map(|run| (-f64::from(*run)).exp2()).sum();
        let empty = self.registers.iter().filter(|run| **run == 0).count();
        let raw = 0.721_3 / (1.0 + 1.079 / count) * count * count / sum;
        let estimate = if raw < 2.5 * count && empty > 0 { count * (count / empty as f64).ln() } else { raw };
        estimate.round() as u64
    }
}
