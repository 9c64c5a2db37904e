//! The stable, versioned byte form of states and quotas: one byte for the format version, one byte for the algorithm,
//! then the fields in their written order, fixed-width and little-endian. Nodes of different versions read each
//! other's, so every released version stays readable; fixtures in the tests cover each one.

use crate::decision::{Cost, Receipt};
use crate::time::{Rate, Tick};
use core::ops::RangeInclusive;
use core::time::Duration;

/// The newest format version, and the one that this build writes. It reads every version from 1 to this one.
pub const FORMAT: u8 = 1;

/// A type with a byte form.
pub trait Bytes: Sized {
    /// Appends the byte form, without the header.
    fn write(&self, out: &mut Writer);

    /// Reads what [`Bytes::write`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes end early or a value is impossible. Never allocates more than the input's length.
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// Why bytes cannot be decoded as a state or a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("the bytes end early")]
    Short,
    /// Bytes follow the value.
    #[error("{extra} bytes follow the value")]
    Long {
        /// How many bytes.
        extra: usize,
    },
    /// An unknown format version: the bytes come from a newer build, or are not a byte form at all.
    #[error("format version {version} is not known; this build reads up to {FORMAT}")]
    Version {
        /// The version found.
        version: u8,
    },
    /// An unknown algorithm.
    #[error("algorithm {kind} is not known")]
    Kind {
        /// The byte found.
        kind: u8,
    },
    /// The value of a field is impossible.
    #[error("field `{field}` is out of range")]
    Value {
        /// The name of the field.
        field: &'static str,
    },
}

/// Builds a byte form.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Starts a form with its header: the format version, and the algorithm's byte `kind`.
    #[must_use]
    pub fn new(kind: u8) -> Self {
        Self { bytes: vec![FORMAT, kind] }
    }

    /// Returns how many bytes were written, header included.
    #[must_use]
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes written, header included.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends sixteen bytes.
    pub fn u128(&mut self, value: u128) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends the bits of a float, for the profiles of libraries that compute in floats.
    pub(crate) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// Appends a tick.
    pub fn tick(&mut self, tick: Tick) {
        self.u64(tick.as_nanos());
    }

    /// Appends a rate as its count and period in nanoseconds, not reduced.
    pub(crate) fn rate(&mut self, rate: Rate) {
        self.u64(rate.count());
        self.u64(rate.period_nanos());
    }

    /// Appends a span of time in nanoseconds, in sixteen bytes.
    pub(crate) fn duration(&mut self, span: Duration) {
        self.u128(span.as_nanos());
    }

    pub(crate) fn flag(&mut self, holds: bool) {
        self.u8(u8::from(holds));
    }

    /// Appends a string of at most 255 bytes. A longer one is cut after its last character that ends within 255 bytes.
    pub fn short_str(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(usize::from(u8::MAX))];
        // At most 255, by the line above.
        self.u8(text.len() as u8);
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

impl Bytes for Receipt {
    fn write(&self, out: &mut Writer) {
        out.tick(self.at);
        out.tick(self.act);
        out.u64(self.cost.units());
        for number in self.mark {
            out.u64(number);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (at, act) = (from.tick()?, from.tick()?);
        let cost = Cost::new(from.u64()?).ok_or(DecodeError::Value { field: "cost" })?;
        let mut mark = [0; 4];
        for number in &mut mark {
            *number = from.u64()?;
        }
        Ok(Self { at, act, cost, mark })
    }
}

/// Reads a byte form field by field. Each read returns [`DecodeError::Short`] if the bytes end before the field does.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks the header and returns the reader with the algorithm's byte.
    ///
    /// # Errors
    /// [`DecodeError::Short`] if the bytes end within the header; [`DecodeError::Version`] if the format version is not
    /// known.
    pub fn open(bytes: &'a [u8]) -> Result<(u8, Self), DecodeError> {
        match bytes {
            [1..=FORMAT, kind, rest @ ..] => Ok((*kind, Self { rest })),
            [version, _, ..] => Err(DecodeError::Version { version: *version }),
            _ => Err(DecodeError::Short),
        }
    }

    /// Checks the header, and returns the reader before the algorithm's byte.
    pub(crate) fn open_form(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::open(bytes).map(|_| Self { rest: &bytes[1..] })
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// [`DecodeError::Long`] if there are more bytes.
    pub fn close(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(DecodeError::Long { extra }),
        }
    }

    /// Returns how many bytes are left: the upper bound for memory to reserve while reading.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        self.take().map(u128::from_le_bytes)
    }

    /// Reads the bits of a float.
    pub(crate) fn f64(&mut self) -> Result<f64, DecodeError> {
        self.u64().map(f64::from_bits)
    }

    /// Reads a tick.
    pub fn tick(&mut self) -> Result<Tick, DecodeError> {
        self.u64().map(Tick::from_nanos)
    }

    /// Reads a rate. [`DecodeError::Value`] for an impossible rate.
    pub(crate) fn rate(&mut self) -> Result<Rate, DecodeError> {
        let (count, period) = (self.u64()?, self.u64()?);
        Rate::new(count, Duration::from_nanos(period)).map_err(|_| DecodeError::Value { field: "rate" })
    }

    /// Reads a float in `range`. NaN is in no range. [`DecodeError::Value`] when the number is outside the range.
    pub(crate) fn within(
        &mut self,
        field: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<f64, DecodeError> {
        let number = self.f64()?;
        if range.contains(&number) { Ok(number) } else { Err(DecodeError::Value { field }) }
    }

    /// Reads a count of events, at most 2⁵³, so that adding one cannot overflow; otherwise [`DecodeError::Value`].
    pub(crate) fn count(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        // Integers up to 2⁵³ are also exact as floats.
        self.u64()
            .and_then(|count| if count <= 1 << 53 { Ok(count) } else { Err(DecodeError::Value { field }) })
    }

    /// Reads a span of time. [`DecodeError::Value`] when it is longer than a [`Duration`] can be.
    pub(crate) fn duration(&mut self, field: &'static str) -> Result<Duration, DecodeError> {
        let nanos = self.u128()?;
        let secs = u64::try_from(nanos / 1_000_000_000).map_err(|_| DecodeError::Value { field })?;
        // A remainder below 10⁹ fits 32 bits.
        Ok(Duration::new(secs, (nanos % 1_000_000_000) as u32))
    }

    /// Reads a boolean. [`DecodeError::Value`] when the byte is neither 0 nor 1.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value { field }),
        }
    }

    /// Reads a string of at most 255 bytes. [`DecodeError::Value`] when it is not UTF-8.
    pub fn short_str(&mut self) -> Result<&'a str, DecodeError> {
        let len = usize::from(self.u8()?);
        let (text, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        core::str::from_utf8(text).map_err(|_| DecodeError::Value { field: "text" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_string_is_cut_between_characters_and_can_be_read() {
        // Two bytes each, so the 128th would end at byte 256.
        let mut out = Writer::new(0);
        out.short_str(&"ä".repeat(200));
        let bytes = out.finish();
        let (_, mut reader) = Reader::open(&bytes).unwrap();
        assert_eq!(reader.short_str(), Ok("ä".repeat(127).as_str()));
    }
}
