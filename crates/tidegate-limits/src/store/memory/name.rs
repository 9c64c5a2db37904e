//! The name of a slot, which tells whose state its word is, and how to read it.
//!
//! ```text
//! 63                      16 15             1   0
//! ┌─────────────────────────┬────────────────┬──────┐
//! │ tag: 48 bits of the     │ class: which   │ lock │   0 is an empty slot
//! │ key's keyed fingerprint │ limit, or wide │      │
//! └─────────────────────────┴────────────────┴──────┘
//! ```

/// The bit that locks a line; used in the name of its first slot.
pub(super) const LOCK: u64 = 1;

const TAG: u64 = !0 << 16;

/// The key that a slot belongs to, and the limit by which its word is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(pub(super) u64);

/// The number of the limit that a word is read by; [`Class::WIDE`] where the state is in the overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(pub(super) u16);

impl Class {
    /// The state does not fit a word.
    pub(super) const WIDE: Self = Self(0);
    /// The largest number: 15 bits.
    pub(super) const MAX: u16 = (1 << 15) - 1;

    /// Makes a class from a number from 1 to [`Class::MAX`].
    #[inline]
    pub(crate) const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number)) }
    }

    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}

impl Name {
    pub(super) const EMPTY: Self = Self(0);

    /// Makes the name of a key. The tag is the upper 48 bits of its fingerprint; the lower 16 bits are only for
    /// choosing lines.
    #[inline]
    pub(super) const fn new(fingerprint: u64, class: Class) -> Self {
        // A tag is never zero, because that marks an empty slot: one in 2⁴⁸ keys therefore shares its tag with another.
        let tag = if fingerprint & TAG == 0 { 1 << 16 } else { fingerprint & TAG };
        Self(tag | (class.0 as u64) << 1)
    }

    /// Returns whether both names are of the same key, under any limit.
    #[inline]
    pub(super) const fn is_key_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & TAG == 0
    }

    /// Returns the upper 48 bits of the key's fingerprint, in place.
    pub(super) const fn tag(self) -> u64 {
        self.0 & TAG
    }

    pub(super) const fn class(self) -> Class {
        Class((self.0 >> 1) as u16 & Class::MAX)
    }
}
