//! Reads a log several times, and reports the progress.

use std::ops::ControlFlow;

use tidegate::policy::Match;

use super::options::SuggestError;
use crate::log::{Log, LogOptions, Record, Tally, Watch};
use crate::source::Input;

/// A report of the progress.
#[derive(Clone, Debug)]
pub enum Step {
    /// A reading of the log begins.
    Begins {
        /// The number of the reading, from 1.
        reading: u32,
        /// Its purpose, in a word or two.
        purpose: &'static str,
        /// A handle for the progress of the reading.
        watch: Watch,
    },
    /// A request was read.
    Request,
    /// The reading has ended.
    Ends,
}

/// Reads the log several times.
pub(super) struct Readings<'l, W> {
    inputs: &'l [Input],
    log: &'l LogOptions,
    watch: W,
    done: u32,
}

impl<'l, W> Readings<'l, W> {
    /// Returns which requests are read.
    pub(super) const fn matching(&self) -> &'l Match {
        &self.log.matching
    }

    pub(super) const fn new(inputs: &'l [Input], log: &'l LogOptions, watch: W) -> Self {
        Self { inputs, log, watch, done: 0 }
    }
}

impl<W: FnMut(Step)> Readings<'_, W> {
    pub(super) fn read(
        &mut self,
        purpose: &'static str,
        mut each: impl FnMut(&Record<'_>),
    ) -> Result<Tally, SuggestError> {
        let mut log = Log::open(self.inputs.to_vec(), self.log.clone())?;
        self.done += 1;
        (self.watch)(Step::Begins { reading: self.done, purpose, watch: log.watch() });
        let outcome = log.read(|record| {
            (self.watch)(Step::Request);
            each(record);
            ControlFlow::Continue(())
        });
        (self.watch)(Step::Ends);
        Ok(outcome?.clone())
    }
}
