//! The fast path for checks of one call: no two of them meet the same limit under the same key, and one step of the
//! gate's own store decides them all.

use std::mem;
use std::time::Duration;

use smallvec::SmallVec;

use super::charged::{Keep, keep_allowed};
use super::check_together::Together;
use super::several_stores::all_answered;
use super::{Check, Gate};
use crate::policy::{Line, Plan, PolicySet};
use tidegate_limits::Precision;
use tidegate_limits::store::{StepClock, StoreError};
use tidegate_limits::{Borrowed, Buffers};

impl Gate {
    /// Decides the checks if they qualify for the fast path, and reports whether they did; if not, nothing was charged.
    pub(super) fn decide_together_plain<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        in_force: &PolicySet,
        together: &mut Together,
        keep: &mut K,
    ) -> Result<bool, StoreError> {
        let Some(first) = checks.first() else { return Ok(false) };
        let is_plain = |check: &Check<'_, '_>| {
            let set = policies(check, in_force);
            check.peek == first.peek
                && !set.demotes()
                && self.routes.are_plain(set.shares().with_prepared(false))
        };
        if self.routes.own_waits() || (K::KEEPS && first.peek) || !checks.iter().all(is_plain) {
            return Ok(false);
        }
        if checks.iter().any(|check| self.refusal(policies(check, in_force), check).is_some()) {
            return Ok(false);
        }
        let mut buffers = Borrowed::take();
        let Buffers { keys, executed } = &mut *buffers;
        let mut plan = Plan { lines: SmallVec::new(), keys: mem::take(keys) };
        plan.clear();
        // The index behind the last line of each check.
        let mut ends: SmallVec<[usize; 8]> = SmallVec::new();
        for check in checks {
            let start = plan.lines.len();
            check.plan_after(policies(check, in_force), &mut plan);
            if meets_again(&plan, start) {
                return Ok(false);
            }
            ends.push(plan.lines.len());
        }
        // As in a single check, shadow limits and queues use the exact clock from the start, because their answers
        // cannot be taken back.
        let by_tick =
            self.precision != Precision::Exact && !first.peek && plan.lines.iter().all(Line::is_plain);
        let at = if by_tick { self.time.recent() } else { self.time.now() };
        let mut start = 0;
        for (check, end) in checks.iter().zip(&ends) {
            self.shorten_waits(policies(check, in_force), at, check, &mut plan.lines[start..*end]);
            start = *end;
        }
        let clock = if by_tick { StepClock::Fresh(self.time.fresh()) } else { StepClock::Engine };
        match self.execute_plan::<K>(&plan, at, clock, first.op(), executed) {
            // The engine was not asked yet.
            Err(StoreError::MustWait) => return Ok(false),
            decided => decided.and_then(|()| all_answered(executed, plan.lines.len()))?,
        }
        if executed.allowed {
            keep_allowed(keep, &mut plan, executed);
        }
        self.tell_executed(first.op(), &plan, executed);
        let mut start = 0;
        let mut all = plan.lines.iter().zip(&executed.lines);
        for ((check, decision), end) in checks.iter().zip(&mut together.decisions).zip(ends) {
            let lines = all.by_ref().take(end - start);
            decision.limits.extend(lines.map(|(line, settlement)| line.decided(settlement)));
            decision.conclude_part(end - start);
            (decision.at, decision.by) = (executed.at, executed.by);
            self.block_over(check, decision);
            if executed.allowed {
                self.count(check, decision);
            }
            start = end;
        }
        (together.allowed, together.at, together.by) = (executed.allowed, executed.at, executed.by);
        together.wait = if executed.allowed { executed.wait } else { Duration::ZERO };
        *keys = mem::take(&mut plan.keys);
        Ok(true)
    }
}

/// Returns the policies that a check is decided under.
fn policies<'p>(check: &Check<'p, '_>, in_force: &'p PolicySet) -> &'p PolicySet {
    check.among.map_or(in_force, |among| among.set())
}

/// Reports whether any line from index `from` on has the key of an earlier line.
fn meets_again(plan: &Plan<'_>, from: usize) -> bool {
    let key = |line: &Line<'_>| &plan.keys[line.key.clone()];
    let (before, new) = plan.lines.split_at(from);
    new.iter().any(|new| before.iter().any(|before| key(before) == key(new)))
}
