//! What the script is asked of one charge: a few numbers, computed here in whole numbers of 128 bits where they need that many.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate::store::Charge;
use tidegate_core::time::nanos;
use tidegate_core::{Quota, Tick};

use crate::cell::{EXACT, Form, GcraRule, Rule, longest_window, parts};
use crate::loss::AfterLoss;

/// What is asked of one charge, in the order in which the script's `ask` reads it. Charges that ask for the same share one.
pub(crate) type Ask = SmallVec<[u8; 96]>;

/// The most quotas whose form is remembered; policies have far fewer, and quotas of one step are not remembered.
const MOST_FORMS: usize = 1024;

/// Forms of quotas, by where the quota lies.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    /// The quota is held together with its form, so that nothing else comes to lie at its address.
    known: Mutex<HashMap<usize, Known>>,
}

type Known = (Arc<Quota>, Option<Arc<Form>>);

impl Forms {
    /// Returns the form of a charge's quota; `None` where the script does not decide it.
    pub(crate) fn of(&self, charge: &Charge<'_>) -> Option<Arc<Form>> {
        if charge.passing {
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
    /// Returns what the script is asked; `None` where a number does not fit, and the library has to decide. `now` is about when.
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
                    // A window's last tick is a nanosecond before the next begins.
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

/// What a charge spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spends {
    /// Its cost, or nothing.
    All,
    /// As much of its cost as fits, at least one unit.
    WhatFits,
}

/// The units that a charge asks for.
#[derive(Clone, Copy)]
struct Units {
    /// The cost; of a draw, the most of it that ever fits. Zero for what never fits.
    cost: u64,
    kept_back: u64,
    draws: bool,
}

impl Units {
    /// `most` is what the limit ever grants at once.
    fn of(charge: &Charge<'_>, spends: Spends, most: u64) -> Self {
        let fits = most.saturating_sub(charge.kept_back);
        let cost = match (charge.cost.units(), spends) {
            (cost, Spends::All) if cost > fits => 0,
            (cost, _) => cost.min(fits),
        };
        // Whatever never fits is asked for alike.
        Self { cost, kept_back: charge.kept_back.min(most), draws: cost > 0 && spends == Spends::WhatFits }
    }

    /// Returns what must fit, and what is then spent. What never fits is more than the script's most, which is below 2^53.
    fn times(self, unit: u64) -> (u64, u64) {
        if self.cost == 0 {
            return (EXACT, EXACT);
        }
        ((self.cost + self.kept_back) * unit, self.cost * unit)
    }

    fn flags(self, charge: &Charge<'_>) -> u8 {
        u8::from(charge.binding) | u8::from(self.draws) << 1
    }

    /// Appends what the script needs to know of a draw that does not fit whole.
    fn put_draw(self, out: &mut Ask, unit: u64) {
        if self.draws {
            doubles(out, &[unit, self.kept_back]);
        }
    }
}

/// How many of the script's ticks after a loss a cell may still be fuller than it should be.
fn horizon(rule: &GcraRule, after_loss: AfterLoss) -> u64 {
    let spent = after_loss.spent(rule.limit.burst()) * rule.unit;
    if spent == 0 { 0 } else { (spent.div_ceil(rule.rate) + 1).min(EXACT - 1) }
}

/// Appends numbers, none above 2^53, as the doubles that hold them exactly.
fn doubles(out: &mut Ask, numbers: &[u64]) {
    for number in numbers {
        // Exact, see above.
        out.extend_from_slice(&(*number as f64).to_le_bytes());
    }
}
