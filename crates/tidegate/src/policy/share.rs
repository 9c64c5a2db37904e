//! Where policies are decided, and how a gate sees at once whether it can decide a set by itself.

/// Where a policy is decided, when several nodes enforce it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// By each process for itself: `n` of them let through `n` times the limit.
    Local,
    /// By each process for itself, under its part of the limit.
    Split,
    /// By the engine, each check.
    Central,
    /// By each process out of what it has drawn from the engine ahead of time.
    Leased,
}

impl Share {
    /// Every word, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Local, Self::Split, Self::Central, Self::Leased];

    /// Returns the word of the policy file.
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

/// Some of the words of [`Share`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares(u8);

impl Shares {
    /// The bit of sets whose checks need a step before they are decided: numbers have to be read, or priorities lowered.
    const PREPARED: u8 = 1 << 7;

    /// Marks a set whose checks need such a step. A gate then leaves the way of a set that is decided in one step of its own store, and to
    /// know of it costs nothing where it stays on it.
    pub(crate) const fn with_prepared(self, prepared: bool) -> Self {
        if prepared { Self(self.0 | Self::PREPARED) } else { Self(self.0 & !Self::PREPARED) }
    }

    /// Says whether all of them are among others.
    pub(crate) const fn within(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }
}

impl FromIterator<Share> for Shares {
    fn from_iter<I: IntoIterator<Item = Share>>(shares: I) -> Self {
        Self(shares.into_iter().fold(0, |bits, share| bits | 1 << share as u8))
    }
}
