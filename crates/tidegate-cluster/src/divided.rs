//! Divides the limits of a step by a [`Part`], and converts the answers back to the whole limits.
//!
//! A store that grants a part asks an inner store for smaller limits than its callers name.
//! [`Split`](crate::Split) describes what a part of a limit is, and when a larger part may be used.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm as _, Decision, Quota, Replace, Retry, Standing, Tick};

use crate::Part;
use tidegate_limits::store::PerLimit;
use tidegate_limits::store::{Charge, ChargeAnswer, ChargeRules, Ending, Executed, Op, Step};

/// The divided limit that was used last, with its part: parts rarely change.
type Last = ArcSwap<(Option<Arc<Quota>>, u32)>;

pub(super) struct Divider {
    part: Part,
    /// Whether breakers and adaptive limits, which cannot be divided, are left whole; if `false`, they are refused.
    guards: bool,
    divided: PerLimit<Arc<Last>>,
    asked: Arc<AtomicU64>,
}

impl fmt::Debug for Divider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Divider").field("part", &self.part).finish_non_exhaustive()
    }
}

pub(super) struct DividedStep {
    /// For each charge, the divided limit and the part that it was made for. The limit is `None` where the part is less
    /// than one unit, or the limit cannot be divided.
    parts: SmallVec<[(Option<Arc<Quota>>, u32); 4]>,
    /// Whether a binding charge has no divided limit: then nothing is taken.
    closed: bool,
}

impl Divider {
    pub(super) fn new(part: Part) -> Self {
        Self { part, guards: false, divided: PerLimit::default(), asked: Arc::default() }
    }

    /// Leaves breakers and adaptive limits whole: they depend on how calls end.
    pub(super) fn with_guards(self) -> Self {
        Self { guards: true, ..self }
    }

    pub(super) fn demand(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let asked = Arc::clone(&self.asked);
        // Relaxed: a count.
        move || asked.load(Ordering::Relaxed)
    }

    pub(super) fn divide(&self, step: &Step<'_>) -> DividedStep {
        if matches!(step.op, Op::Take | Op::Draw) {
            let units =
                step.charges.iter().fold(0u64, |units, charge| units.saturating_add(charge.cost.units()));
            // Relaxed: a count.
            self.asked.fetch_add(units, Ordering::Relaxed);
        }
        let undivided = |charge: &Charge<'_>| (Some(Arc::clone(charge.quota)), Part::WHOLE);
        let parts: SmallVec<[_; 4]> = match step.op {
            Op::Take | Op::Peek | Op::Draw => {
                step.charges.iter().map(|charge| self.of(charge, step.now)).collect()
            }
            Op::Finish(endings) => {
                let part = |(charge, ending): (&Charge<'_>, &Ending)| match ending {
                    // Ended under the present part; where that has changed since the charge, nothing comes back.
                    Ending::Finish { .. } | Ending::Extend { .. } => {
                        let (quota, part) = self.of(charge, step.now);
                        (quota.or_else(|| Some(Arc::clone(charge.quota))), part)
                    }
                    // A mark is one unit, which is not divided.
                    Ending::Once | Ending::Forget => undivided(charge),
                };
                step.charges.iter().zip(endings).map(part).collect()
            }
            Op::Reset | Op::Breaker(_) => step.charges.iter().map(undivided).collect(),
        };
        let closed =
            parts.iter().zip(step.charges).any(|((quota, _), charge)| quota.is_none() && charge.binding);
        DividedStep { parts, closed }
    }

    fn of(&self, charge: &Charge<'_>, now: Tick) -> (Option<Arc<Quota>>, u32) {
        if self.guards && charge.quota.is_guard() && !matches!(**charge.quota, Quota::Concurrency(_)) {
            return (Some(Arc::clone(charge.quota)), Part::WHOLE);
        }
        let Some(span) = charge.quota.fills_within() else { return (None, 0) };
        let part = self.part.least(now, span);
        let divide = || (charge.quota.divided(part, Part::WHOLE).map(Arc::new), part);
        if charge.inline_quota {
            return divide();
        }
        let make = || Arc::new(ArcSwap::from_pointee(divide()));
        self.divided.with(charge.quota, make, |divided| {
            let last = divided.load();
            if last.1 == part {
                return (last.0.clone(), part);
            }
            let new = divide();
            divided.store(Arc::new(new.clone()));
            new
        })
    }
}

impl DividedStep {
    pub(super) const fn op<'a>(&self, step: &Step<'a>) -> Op<'a> {
        if self.closed { Op::Peek } else { step.op }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.parts.iter().any(|(quota, _)| quota.is_some())
    }

    /// Returns the charges that the inner store decides; empty where there is nothing to decide.
    pub(super) fn charges<'a>(&'a self, step: &Step<'a>) -> SmallVec<[Charge<'a>; 4]> {
        let takes = matches!(step.op, Op::Take | Op::Peek | Op::Draw);
        let both = self.parts.iter().zip(step.charges);
        both.filter_map(|((quota, part), charge)| {
            let quota = quota.as_ref()?;
            if !takes {
                return Some(Charge { quota, ..*charge });
            }
            let kept_back = u128::from(charge.kept_back) * u128::from(*part);
            // At most the original `kept_back`.
            let kept_back = u64::try_from(kept_back.div_ceil(u128::from(Part::WHOLE))).unwrap_or(u64::MAX);
            let rules = ChargeRules { replace: without_reset(charge.rules.replace), ..charge.rules };
            Some(Charge { quota, kept_back, rules, ..*charge })
        })
        .collect()
    }

    pub(super) fn answer(&self, step: &Step<'_>, out: &mut Executed) {
        if !matches!(step.op, Op::Take | Op::Peek | Op::Draw) {
            return;
        }
        out.allowed &= !self.closed;
        out.breaker = None;
        if !out.allowed {
            out.wait = Duration::ZERO;
        }
        if self.parts.iter().any(|(quota, _)| quota.is_none()) {
            let mut decided = mem::take(&mut out.lines).into_iter();
            let line = |((quota, _), charge): (&(Option<Arc<Quota>>, u32), &Charge<'_>)| {
                let line = quota.as_ref().and_then(|_| decided.next());
                line.unwrap_or_else(|| denial(charge, out.at))
            };
            out.lines = self.parts.iter().zip(step.charges).map(line).collect();
        }
        for (line, charge) in out.lines.iter_mut().zip(step.charges) {
            let asked = charge.cost.units().saturating_add(charge.kept_back);
            if let Ruling::Denied { retry: Retry::Never } = line.decision.ruling
                && asked <= charge.quota.capacity()
            {
                // The whole limit may grant it, and so may this part once it is larger.
                line.decision.ruling = Ruling::Denied { retry: Retry::Unknown };
            }
        }
    }
}

/// Keeps what was spent under the former part, or each change of a part would grant everything again.
const fn without_reset(replace: Replace) -> Replace {
    match replace {
        Replace::Reset => Replace::AsIs,
        other => other,
    }
}

fn denial(charge: &Charge<'_>, now: Tick) -> ChargeAnswer {
    let full = charge.quota.standing(&charge.quota.fresh(now), now);
    let decision = Decision {
        ruling: Ruling::Denied { retry: Retry::Unknown },
        standing: Standing { limit: 0, remaining: 0, ..full },
    };
    ChargeAnswer { decision, receipt: None }
}
