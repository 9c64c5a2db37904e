//! A history of charges and settlements at their ticks. It is run as it happened, and again as if only what was used
//! had been charged.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Algorithm, Ask, Quota, Receipt, State, Tick, Transition};

use crate::settling::answers::cost;

/// An operation. Moving the clock is part of the next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Charge {
        now: Tick,
        units: u64,
        max_wait: u64,
    },
    /// Settles the allowed charge number `nth`.
    Settle {
        now: Tick,
        nth: usize,
        used: u64,
    },
}

impl fmt::Display for Op {
    /// Ticks in ns: `5 charge 2`, `5 charge 2 within 10`, `9 settle #0 used 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charge { now, units, max_wait: 0 } => write!(f, "{} charge {units}", now.as_nanos()),
            Self::Charge { now, units, max_wait } => {
                write!(f, "{} charge {units} within {max_wait}", now.as_nanos())
            }
            Self::Settle { now, nth, used } => write!(f, "{} settle #{nth} used {used}", now.as_nanos()),
        }
    }
}

impl Op {
    /// Reads what [`fmt::Display`] wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.trim_start_matches('#').parse::<u64>().ok();
        let now = Tick::from_nanos(number(0)?);
        match *words.get(1)? {
            "charge" => Some(Self::Charge { now, units: number(2)?, max_wait: number(4).unwrap_or(0) }),
            "settle" => Some(Self::Settle { now, nth: number(2)? as usize, used: number(4)? }),
            _ => None,
        }
    }
}

/// An allowed charge.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) receipt: Receipt,
    /// What the settlement reported as used; `None` while open.
    pub(crate) used: Option<u64>,
}

impl Charge {
    pub(crate) fn units(&self) -> u64 {
        self.receipt.cost.units()
    }

    /// What should have been charged at the charge's own tick: what was used, but at most what was charged.
    pub(crate) fn owed(&self) -> u64 {
        self.used.map_or(self.units(), |used| used.min(self.units()))
    }
}

/// A history as it is run.
#[derive(Clone, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) quota: &'a Quota,
    pub(crate) start: Tick,
    pub(crate) state: State,
    /// The tick of the last change; an earlier tick counts as this one.
    pub(crate) last: Tick,
    /// The latest tick of any operation. It may be later than the state's: a settlement of a charge that is long over
    /// changes nothing.
    pub(crate) clock: Tick,
    pub(crate) ops: Vec<Op>,
    pub(crate) charges: Vec<Charge>,
    pub(crate) waited: bool,
    /// Whether more than was charged was ever booked.
    pub(crate) booked: bool,
    /// Whether anything was ever given back.
    pub(crate) gave_back: bool,
    /// Whether the limit was full at an operation after the first charge.
    pub(crate) was_full: bool,
    /// Whether the limit was ever below empty after an operation.
    pub(crate) was_in_debt: bool,
}

/// The result of an operation.
pub(crate) enum Done {
    Allowed(Receipt),
    Denied,
    Settled,
}

impl<'a> Run<'a> {
    pub(crate) fn new(quota: &'a Quota, start: Tick) -> Self {
        Self {
            quota,
            start,
            state: quota.fresh(start),
            last: start,
            clock: start,
            ops: Vec::new(),
            charges: Vec::new(),
            waited: false,
            booked: false,
            gave_back: false,
            was_full: false,
            was_in_debt: false,
        }
    }

    /// Performs an operation. A denied charge does not become part of the history.
    ///
    /// # Errors
    /// What is wrong with the answer in itself.
    pub(crate) fn apply(&mut self, op: Op) -> Result<Done, String> {
        let quota = self.quota;
        let full_at = |state: &State, at: Tick| quota.standing(state, at).reset_after.is_zero();
        match op {
            Op::Charge { now, units, max_wait } => {
                let ask = Ask::within(now, cost(units), Duration::from_nanos(max_wait));
                let (wait, next, receipt) = match quota.decide(&self.state, ask) {
                    Transition::Allowed { wait, next, receipt } => (wait, next, receipt),
                    Transition::Denied { .. } => return Ok(Done::Denied),
                };
                if wait > ask.max_wait || receipt.cost != ask.cost || receipt.act < receipt.at {
                    return Err(format!("{op}: allowed after {wait:?} with {receipt:?}"));
                }
                let effective = now.max(self.last);
                let full = full_at(&self.state, effective);
                self.was_full |= full && !self.charges.is_empty();
                self.waited |= !wait.is_zero();
                self.last = effective;
                self.clock = self.clock.max(effective);
                self.state = next;
                self.ops.push(Op::Charge { now: effective, units, max_wait });
                self.charges.push(Charge { receipt, used: None });
                self.was_in_debt |= quota.standing(&self.state, self.last).debt > 0;
                Ok(Done::Allowed(receipt))
            }
            Op::Settle { now, nth, used } => {
                let charge = &mut self.charges[nth];
                let effective = now.max(self.last);
                self.was_full |= full_at(&self.state, effective);
                let next = quota.settle(&self.state, now, &charge.receipt, used);
                self.gave_back |= used < charge.units();
                self.booked |= used > charge.units();
                charge.used = Some(used);
                if next != self.state {
                    self.last = effective;
                }
                self.clock = self.clock.max(effective);
                self.state = next;
                self.ops.push(Op::Settle { now: effective, nth, used });
                self.was_in_debt |= quota.standing(&self.state, self.last).debt > 0;
                Ok(Done::Settled)
            }
        }
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = (usize, &Charge)> {
        self.charges.iter().enumerate().filter(|(_, charge)| charge.used.is_none())
    }

    /// Returns one line with which [`crate::settling::replay`] runs the same history again.
    pub(crate) fn line(&self, next: Option<Op>) -> String {
        let quota: String = self.quota.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let ops: Vec<String> = self.ops.iter().chain(next.as_ref()).map(ToString::to_string).collect();
        format!("{quota}; {}; {}", self.start.as_nanos(), ops.join("; "))
    }
}

/// The same history under `quota`, with what was used charged from the start, and any excess booked when it was
/// settled. A charge made in full here is also settled here.
#[derive(Debug)]
pub(crate) struct Counterfactual {
    pub(crate) state: State,
    /// The first charge that would act later than in the history.
    pub(crate) late: Option<String>,
    pub(crate) waited: bool,
    pub(crate) was_full: bool,
    pub(crate) was_in_debt: bool,
}

impl Counterfactual {
    /// Runs a history with `owed` charged for each charge.
    ///
    /// # Errors
    /// The first charge that would be refused.
    pub(crate) fn run(
        quota: &Quota,
        run: &Run<'_>,
        owed: impl Fn(usize, &Charge) -> u64,
    ) -> Result<Self, String> {
        let state = quota.fresh(run.start);
        let mut this = Self { state, late: None, waited: false, was_full: false, was_in_debt: false };
        let mut receipts: Vec<Option<Receipt>> = Vec::with_capacity(run.charges.len());
        for op in &run.ops {
            let full = |state: &State, now: Tick| quota.standing(state, now).reset_after.is_zero();
            match *op {
                Op::Charge { now, .. } => {
                    let nth = receipts.len();
                    let charge = &run.charges[nth];
                    let owed = owed(nth, charge);
                    this.was_full |= nth > 0 && full(&this.state, now);
                    if owed == 0 {
                        receipts.push(None);
                        continue;
                    }
                    match quota.decide(&this.state, Ask::within(now, cost(owed), Duration::MAX)) {
                        Transition::Allowed { wait, next, receipt } => {
                            if receipt.act > charge.receipt.act {
                                let late = || format!("#{nth} would act later, at {:?}", receipt.act);
                                this.late.get_or_insert_with(late);
                            }
                            this.state = next;
                            this.waited |= !wait.is_zero();
                            receipts.push(Some(receipt));
                        }
                        Transition::Denied { retry } => return Err(format!("#{nth} would get {retry:?}")),
                    }
                    this.was_in_debt |= quota.standing(&this.state, now).debt > 0;
                }
                Op::Settle { now, nth, used } => {
                    this.was_full |= full(&this.state, now);
                    // A charge made in full is settled as in the history, with more or with less.
                    if let Some(receipt) = receipts[nth].filter(|receipt| {
                        receipt.cost.units() == run.charges[nth].units() && used != receipt.cost.units()
                    }) {
                        this.state = quota.settle(&this.state, now, &receipt, used);
                        this.was_in_debt |= quota.standing(&this.state, now).debt > 0;
                    }
                }
            }
        }
        Ok(this)
    }
}
