//! Encodes the script's input for one charge.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::store::{AfterLoss, Charge};
use tidegate_core::time::nanos;
use tidegate_core::{Quota, Tick};

use crate::cell::{EXACT, Form, GcraRule, Rule, longest_window, parts};
use crate::loss;

/// The numbers of one charge, in the order in which the script's `ask` reads them. Charges with equal input share one.
pub(crate) type Ask = SmallVec<[u8; 96]>;

/// The most quotas whose forms are cached: policies have far fewer.
const MOST_FORMS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Forms {
    /// The quota is kept alive with its form, so that no other is allocated at its address.
    known: Mutex<HashMap<usize, KnownForm>>,
}

type KnownForm = (Arc<Quota>, Option<Arc<Form>>);

impl Forms {
    pub(crate) fn of(&self, charge: &Charge<'_>) -> Option<Arc<Form>> {
        if charge.inline_quota {
            return Form::of(charge.quota).map(Arc::new);
        }
        let address = Arc::as_ptr(charge.quota) as usize;
        let mut known = self.known.lock();
        if let Some((_, form)) = known.get(&address) {
            return form.clone();
        }
        let form = Form::of(charge.quota).map(Arc::new);
        if known.len() >= MOST_FORMS {
            known.clear();
        }
        known.insert(address, (Arc::clone(charge.quota), form.clone()));
        form
    }
}

impl Form {
    /// Encodes a charge; `None` if a number does not fit, and the library has to decide.
    pub(crate) fn ask(
        &self,
        charge: &Charge<'_>,
        spends: Spends,
        after_loss: AfterLoss,
        now: Tick,
    ) -> Option<Ask> {
        let max_wait = nanos(charge.max_wait);
        let mut out = Ask::new();
        match &self.rule {
            Rule::Gcra(rule) => {
                let most = rule.full().checked_add(rule.passes_in(max_wait)?).filter(|most| *most < EXACT)?;
                let units = Units::of(charge, spends, rule.limit.burst());
                let (need, add) = units.times(rule.unit);
                out.extend_from_slice(&[1, units.flags(charge)]);
                doubles(&mut out, &[need, add, most, horizon(rule, after_loss)]);
                self.put_prefix(&mut out);
                units.put_draw(&mut out, rule.unit);
                doubles(&mut out, &[rule.grain, rule.rate]);
            }
            Rule::Window { limit, calendar } => {
                let most = limit.limit();
                let wait = Some(max_wait).filter(|wait| *wait < EXACT)?;
                let units = Units::of(charge, spends, most);
                let (need, add) = units.times(1);
                let watched = if after_loss == AfterLoss::Full { 0 } else { longest_window(limit) };
                out.extend_from_slice(&[if *calendar { 3 } else { 2 }, units.flags(charge)]);
                doubles(&mut out, &[need, add, most, watched.min(EXACT - 1)]);
                self.put_prefix(&mut out);
                units.put_draw(&mut out, 1);
                doubles(&mut out, &[wait]);
                if *calendar {
                    let (first, last) = limit.window_at(now);
                    for (seconds, rest) in [parts(first)?, parts(last)?] {
                        out.extend_from_slice(&seconds.to_le_bytes());
                        out.extend_from_slice(&rest.to_le_bytes());
                    }
                } else {
                    // A window's last tick is one nanosecond before the next window begins.
                    let span = nanos(limit.period()) - 1;
                    doubles(&mut out, &[span / 1_000_000_000, span % 1_000_000_000]);
                }
            }
        }
        Some(out)
    }

    fn put_prefix(&self, out: &mut Ask) {
        // At most 242 bytes, see `Form::of`.
        out.push(self.prefix.len() as u8);
        out.extend_from_slice(&self.prefix);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spends {
    All,
    /// As much of its cost as fits, at least one unit.
    WhatFits,
}

#[derive(Clone, Copy)]
struct Units {
    /// The cost; for a draw, at most what can ever fit. Zero if it can never fit.
    cost: u64,
    kept_back: u64,
    draws: bool,
}

impl Units {
    fn of(charge: &Charge<'_>, spends: Spends, most: u64) -> Self {
        let fits = most.saturating_sub(charge.kept_back);
        let cost = match (charge.cost.units(), spends) {
            (cost, Spends::All) if cost > fits => 0,
            (cost, _) => cost.min(fits),
        };
        // Costs that can never fit are all encoded the same way.
        Self { cost, kept_back: charge.kept_back.min(most), draws: cost > 0 && spends == Spends::WhatFits }
    }

    /// Returns what must fit, and what is then spent, both times `unit`. A cost that can never fit becomes 2^53, which
    /// is above the script's `most`.
    fn times(self, unit: u64) -> (u64, u64) {
        if self.cost == 0 {
            return (EXACT, EXACT);
        }
        ((self.cost + self.kept_back) * unit, self.cost * unit)
    }

    fn flags(self, charge: &Charge<'_>) -> u8 {
        u8::from(charge.binding) | u8::from(self.draws) << 1
    }

    fn put_draw(self, out: &mut Ask, unit: u64) {
        if self.draws {
            doubles(out, &[unit, self.kept_back]);
        }
    }
}

/// Returns for how many ticks after a loss a cell may be fuller than it should be.
fn horizon(rule: &GcraRule, after_loss: AfterLoss) -> u64 {
    let spent = loss::spent(after_loss, rule.limit.burst()) * rule.unit;
    if spent == 0 { 0 } else { (spent.div_ceil(rule.rate) + 1).min(EXACT - 1) }
}

fn doubles(out: &mut Ask, numbers: &[u64]) {
    for number in numbers {
        // Exact, because none is above 2^53.
        out.extend_from_slice(&(*number as f64).to_le_bytes());
    }
}
