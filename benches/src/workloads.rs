//! The workloads for the contenders.

pub(crate) mod disk;
pub(crate) mod gate;
pub(crate) mod growth;
mod keyed;
pub(crate) mod permits;
pub(crate) mod store;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::measure::{Want, alone};
use crate::pair::{Figures, pair};

pub(crate) use keyed::{BATCH, Keyed, Question};

// One limit, checked again and again.

/// A limit that is never reached: the highest rate that governor can express, whose interval is whole nanoseconds.
const PLENTY: u32 = 1_000_000_000;

/// One run over one limiter: all its checks are permitted, or all are denied.
pub(crate) struct One<'a> {
    pub(crate) want: Want,
    /// Whether the limiter is to be the only one of its memory page that is asked.
    pub(crate) apart: bool,
    pub(crate) figures: &'a mut Figures,
}

/// One limiter, or one amid others that nobody asks, so that nothing near it is written.
pub(crate) struct Placed<T>(Vec<T>);

impl<T> Placed<T> {
    pub(crate) fn get(&self) -> &T {
        &self.0[self.0.len() / 2]
    }
}

/// The limiters made where one is to be apart: even of 24 bytes each, there is more than a page on either side.
const NEIGHBOURS: usize = 512;

impl One<'_> {
    /// The limit to build: a number of units, and the time in which as many come back. The burst equals the number.
    pub(crate) fn limit(&self) -> (u32, Duration) {
        match self.want {
            Want::Permitted => (PLENTY, Duration::from_secs(1)),
            // Not a burst of one: that is a special case, and one peer never denies it.
            Want::Denied => (10, Duration::from_secs(86_400)),
        }
    }

    /// Makes the limiter, and others around it if it is to be apart.
    pub(crate) fn place<T>(&self, make: impl Fn() -> Result<T>) -> Result<Placed<T>> {
        let count = if self.apart { NEIGHBOURS } else { 1 };
        Ok(Placed((0..count).map(|_| make()).collect::<Result<_>>()?))
    }

    /// Measures a limiter that threads can share.
    pub(crate) fn shared(&mut self, check: impl Fn() -> bool + Sync) -> Result<()> {
        self.alone(&check)?;
        let both = pair(self.want, |_| &check)?;
        self.figures.set_pair(format!("{}.pair", self.name()), &both);
        Ok(())
    }

    /// Measures a limiter that belongs to one thread.
    pub(crate) fn alone(&mut self, mut check: impl FnMut() -> bool) -> Result<()> {
        if self.want == Want::Denied {
            ensure!((0..100).any(|_| !check()), "a spent limit went on permitting");
        }
        self.figures.set(self.name(), alone(self.want, check)?);
        Ok(())
    }

    fn name(&self) -> &'static str {
        match self.want {
            Want::Permitted => "permitted",
            Want::Denied => "denied",
        }
    }
}
