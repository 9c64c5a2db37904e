//! One place among many, taken and returned, while nobody waits.

use anyhow::Result;

use crate::figures::Figures;
use crate::measure::{Want, alone};
use crate::pair::pair;

/// More places than threads, so that nobody is refused.
pub(crate) const PLACES: u64 = 1000;

/// One run over one guard.
pub(crate) struct Permits<'a> {
    pub(crate) figures: &'a mut Figures,
}

impl Permits<'_> {
    /// Measures a guard that threads can share: `pass` enters and leaves.
    pub(crate) fn shared(&mut self, pass: impl Fn() -> bool + Sync) -> Result<()> {
        self.alone(&pass)?;
        let both = pair(Want::Permitted, |_| &pass)?;
        self.figures.set_pair("permit.pair", &both);
        Ok(())
    }

    /// Measures a guard that belongs to one thread.
    pub(crate) fn alone(&mut self, pass: impl FnMut() -> bool) -> Result<()> {
        self.figures.set("permit", alone(Want::Permitted, pass)?);
        Ok(())
    }
}
