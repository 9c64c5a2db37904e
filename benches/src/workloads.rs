//! The workloads for the contenders.

pub(crate) mod disk;
pub(crate) mod gate;
pub(crate) mod growth;
mod keyed;
pub(crate) mod permits;

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
    pub(crate) figures: &'a mut Figures,
}

impl One<'_> {
    /// The limit to build: a number of units, and the time in which as many come back. The burst equals the number.
    pub(crate) fn limit(&self) -> (u32, Duration) {
        match self.want {
            Want::Permitted => (PLENTY, Duration::from_secs(1)),
            // Not a burst of one: that is a special case, and one peer never denies it.
            Want::Denied => (10, Duration::from_secs(86_400)),
        }
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
