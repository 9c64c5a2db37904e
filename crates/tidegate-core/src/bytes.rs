//! The stable, versioned byte form of states and quotas.
//!
//! A store outside the process keeps bytes, and nodes of different versions read each other's. The form is: one byte of
//! format version, one byte naming the algorithm, then the fields in their written order, fixed-width and little-endian. A
//! version, once released, is read for ever; fixtures in the tests hold every one of them.

use crate::decision::{Cost, Receipt};
use crate::time::{Rate, Tick};
use core::ops::RangeInclusive;
use core::time::Duration;

/// The format version this build writes, and the newest that it reads. It reads all from the first, 1, on.
pub const FORMAT: u8 = 1;

/// Something with a byte form.
pub trait Bytes: Sized {
    /// Appends the byte form, without the header.
    fn write(&self, out: &mut Writer);

    /// Reads what [`Bytes::write`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes end early or name an impossible value. Never allocates more than the input is long.
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// Why bytes are not a state or a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end before the value does.
    #[error("the bytes end early")]
    Short,
    /// Bytes follow the value.
    #[error("{extra} bytes follow the value")]
    Long {
        /// How many.
        extra: usize,
    },
    /// A format version that this build does not know: written by a newer one, or no byte form at all.
    #[error("format version {version} is not known; this build reads up to {FORMAT}")]
    Version {
        /// The version found.
        version: u8,
    },
    /// No such algorithm.
    #[error("algorithm {kind} is not known")]
    Kind {
        /// The byte found.
        kind: u8,
    },
    /// A field holds what it cannot.
    #[error("field `{field}` is out of range")]
    Value {
        /// Which field.
        field: &'static str,
    },
}

/// Collects a byte form.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Starts a form with its header.
    #[must_use]
    pub fn new(kind: u8) -> Self {
        Self { bytes: vec![FORMAT, kind] }
    }

    /// Returns how many bytes were written, header included.
    #[must_use]
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    /// Returns what was written.
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

    /// Appends the bits of a float, for the profiles whose peers compute in floats.
    pub fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// Appends a tick.
    pub fn tick(&mut self, tick: Tick) {
        self.u64(tick.as_nanos());
    }

    /// Appends a rate as count and period, as given.
    pub fn rate(&mut self, rate: Rate) {
        self.u64(rate.count());
        self.u64(rate.period_nanos());
    }

    /// Appends a span of time in nanoseconds.
    pub(crate) fn duration(&mut self, span: Duration) {
        self.u128(span.as_nanos());
    }

    /// Appends whether something holds.
    pub(crate) fn flag(&mut self, holds: bool) {
        self.u8(u8::from(holds));
    }

    /// Appends in one byte whether two things hold. The first alone is written as by [`Writer::flag`].
    pub(crate) fn two_flags(&mut self, first: bool, second: bool) {
        self.u8(u8::from(first) | u8::from(second) << 1);
    }

    /// Appends a string of at most 255 bytes; a longer one is cut.
    pub fn short_str(&mut self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(255)];
        // At most 255, see above.
        self.u8(bytes.len() as u8);
        self.bytes.extend_from_slice(bytes);
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

/// Walks over a byte form.
#[derive(Debug)]
pub struct Reader<'a> {
    version: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks the header and returns the reader with the algorithm's byte.
    ///
    /// # Errors
    /// [`DecodeError::Short`] or [`DecodeError::Version`].
    pub fn open(bytes: &'a [u8]) -> Result<(u8, Self), DecodeError> {
        match bytes {
            [version @ 1..=FORMAT, kind, rest @ ..] => Ok((*kind, Self { version: *version, rest })),
            [version, _, ..] => Err(DecodeError::Version { version: *version }),
            _ => Err(DecodeError::Short),
        }
    }

    /// Returns the format version of the form, 1 to [`FORMAT`]: what a field looks like may depend on it.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`DecodeError::Long`].
    pub fn close(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(DecodeError::Long { extra }),
        }
    }

    /// Returns how many bytes are left: the bound for anything that wants to reserve memory.
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
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads sixteen bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        self.take().map(u128::from_le_bytes)
    }

    /// Reads the bits of a float.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn f64(&mut self) -> Result<f64, DecodeError> {
        self.u64().map(f64::from_bits)
    }

    /// Reads a tick.
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn tick(&mut self) -> Result<Tick, DecodeError> {
        self.u64().map(Tick::from_nanos)
    }

    /// Reads a rate.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] for an impossible rate.
    pub fn rate(&mut self) -> Result<Rate, DecodeError> {
        let (count, period) = (self.u64()?, self.u64()?);
        Rate::new(count, Duration::from_nanos(period)).map_err(|_| DecodeError::Value { field: "rate" })
    }

    /// Reads a number in a range, which is never NaN.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] when it lies outside.
    pub(crate) fn within(
        &mut self,
        field: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<f64, DecodeError> {
        let number = self.f64()?;
        if range.contains(&number) { Ok(number) } else { Err(DecodeError::Value { field }) }
    }

    /// Reads a count of events, small enough for another to be added.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] when it is larger than anything that was counted.
    pub(crate) fn count(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        // Whole numbers up to 2⁵³ are exact as floats, too.
        self.u64()
            .and_then(|count| if count <= 1 << 53 { Ok(count) } else { Err(DecodeError::Value { field }) })
    }

    /// Reads a span of time.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] when it is longer than a [`Duration`] can be.
    pub(crate) fn duration(&mut self, field: &'static str) -> Result<Duration, DecodeError> {
        let nanos = self.u128()?;
        let secs = u64::try_from(nanos / 1_000_000_000).map_err(|_| DecodeError::Value { field })?;
        // A remainder of 10⁹ fits.
        Ok(Duration::new(secs, (nanos % 1_000_000_000) as u32))
    }

    /// Reads whether something holds.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] when it is neither yes nor no.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value { field }),
        }
    }

    /// Reads whether two things hold, and what [`Writer::flag`] wrote as the first alone. `field` names both in errors.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] when the byte is above 3.
    pub(crate) fn two_flags(&mut self, field: &'static str) -> Result<(bool, bool), DecodeError> {
        match self.u8()? {
            both @ 0..=3 => Ok((both & 1 != 0, both & 2 != 0)),
            _ => Err(DecodeError::Value { field }),
        }
    }

    /// Reads a string of at most 255 bytes.
    ///
    /// # Errors
    /// [`DecodeError::Short`], or [`DecodeError::Value`] when it is not UTF-8.
    pub fn short_str(&mut self) -> Result<&'a str, DecodeError> {
        let len = usize::from(self.u8()?);
        let (text, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        core::str::from_utf8(text).map_err(|_| DecodeError::Value { field: "text" })
    }
}
