//! Where policies are decided. A bit set of these places shows a gate in one comparison whether its own store can
//! decide a whole policy set.

/// Where a policy is decided if several nodes enforce it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// By each process alone: `n` processes let through `n` times the limit.
    Local,
    /// By each process alone, under its part of the limit.
    Split,
    /// By the engine, at each check.
    Central,
    /// By each process, out of capacity that it has drawn from the engine in advance.
    Leased,
}

impl Share {
    /// All variants, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Local, Self::Split, Self::Central, Self::Leased];

    /// Returns the word of the variant in the policy file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Split => "split",
            Self::Central => "central",
            Self::Leased => "leased",
        }
    }
}

/// A set of [`Share`] values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares(u8);

impl Shares {
    /// The bit for policy sets whose checks need one more step: taking readings, lowering priorities, or charging what is
    /// refused.
    const PREPARED: u8 = 1 << 7;

    /// Marks a policy set whose checks need one more step. A gate then leaves the fast path, on which its own
    /// store decides in one step; on the fast path itself the mark costs nothing.
    pub(crate) const fn with_prepared(self, prepared: bool) -> Self {
        if prepared { Self(self.0 | Self::PREPARED) } else { Self(self.0 & !Self::PREPARED) }
    }

    /// Reports whether all values are also in `others`.
    pub(crate) const fn within(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }
}

impl FromIterator<Share> for Shares {
    fn from_iter<I: IntoIterator<Item = Share>>(shares: I) -> Self {
        Self(shares.into_iter().fold(0, |bits, share| bits | 1 << share as u8))
    }
}
