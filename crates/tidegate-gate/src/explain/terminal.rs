//! Formats an explanation as text for a terminal, one line per limit.

use std::fmt;
use std::time::Duration;

use tidegate_core::Priority;

use super::{Explanation, LimitReason, Reason};
use crate::policy::TIME_LEFT;
use tidegate_limits::duration_text::in_words;
use tidegate_limits::visible;

/// The most attributes that are named as used by no policy.
const UNUSED: usize = 5;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.decision, &self.policy, self.retry_after_ms) {
            ("delayed", _, _) => writeln!(f, "DELAYED {}", millis(self.delay_ms))?,
            ("allowed", Some(name), _) => writeln!(f, "ALLOWED, tightest is {name}")?,
            ("allowed", None, _) => match self.passed_over() {
                names if names.is_empty() && self.unread.is_some() => {
                    writeln!(f, "ALLOWED, no policy is about it, so nothing limits it")?;
                }
                names if names.is_empty() => writeln!(f, "ALLOWED, no policy limits it")?,
                names => writeln!(f, "ALLOWED, though over the limit of {}", names.join(", "))?,
            },
            (_, Some(name), _) if self.too_late => {
                writeln!(f, "DENIED by the deadline of {name}: too little time is left")?;
            }
            (_, Some(name), wait) if let Some(reason) = &self.blocked => {
                let separator = if reason.is_empty() { "" } else { ": " };
                let lasts = millis(wait.unwrap_or_default());
                writeln!(f, "DENIED by a block of its key under {name} for {lasts} more{separator}{reason}")?;
            }
            (_, None, wait) if let Some(reason) = &self.blocked => {
                let separator = if reason.is_empty() { "" } else { ": " };
                let lasts = millis(wait.unwrap_or_default());
                writeln!(f, "DENIED by a block for all policies for {lasts} more{separator}{reason}")?;
            }
            (_, Some(name), _) if self.denied_by_list => writeln!(f, "DENIED by the deny-list of {name}")?,
            (_, None, _) if self.denied_by_list => writeln!(f, "DENIED by the deny-list for all policies")?,
            (_, name, wait) => {
                write!(f, "DENIED by {}, ", name.as_deref().unwrap_or("no policy"))?;
                match wait {
                    Some(wait) => writeln!(f, "retry after {}", millis(wait))?,
                    None if self.retry == Some("unknown") => {
                        writeln!(f, "it is unknown when it would be allowed")?;
                    }
                    None => writeln!(
                        f,
                        "never allowed {}",
                        self.binding().map_or("at this cost", causes_of_never)
                    )?,
                }
            }
        }
        let width =
            self.reasons.iter().map(|reason| reason.policy.chars().count()).max().unwrap_or(0).min(255);
        for (place, reason) in self.reasons.iter().enumerate() {
            let start = |f: &mut fmt::Formatter<'_>, word| {
                write!(f, "{:>3} {:width$}   {word:<11} ", place + 1, reason.policy)
            };
            for limit in &reason.limits {
                start(f, limit.result)?;
                limit.write(f, &reason.key)?;
            }
            if let Some((_, why)) = reason.why.split_once("cost cannot be worked out: ") {
                writeln!(f, "    {}: {}", visible::line(&reason.policy), visible::line(why))?;
            }
            if reason.limits.is_empty() {
                start(f, reason.result)?;
                writeln!(f, "{}", reason.why.strip_prefix("not charged: ").unwrap_or(&reason.why))?;
            }
        }
        if let Some((limit, with)) = self.binding().and_then(|limit| Some((limit, limit.allowed_with?))) {
            let (word, after) = limit.word;
            let more = with.burst_at_least.map(|least| format!("   {word} >= {least}{after}"));
            let less = with.cost_at_most.map(|most| format!("   cost <= {most}"));
            let higher = with.priority_at_least.map(|level| format!("   priority >= {level}"));
            let wait = with.max_wait_at_least_ms.map(|least| format!("   max_wait >= {}", written(least)));
            let ways: Vec<String> = more.into_iter().chain(less).chain(higher).chain(wait).collect();
            if !ways.is_empty() {
                writeln!(f, "    would be allowed with{}", ways.join("   or"))?;
            }
        }
        for remark in &self.remarks {
            writeln!(f, "    {remark}")?;
        }
        for sentence in self.unread.iter().flatten() {
            writeln!(f, "    {}", visible::line(sentence))?;
        }
        if !self.unused.is_empty() {
            let more = self.unused.len().saturating_sub(UNUSED);
            let told = self
                .unused
                .iter()
                .take(UNUSED)
                .map(|name| visible::line(name))
                .collect::<Vec<_>>()
                .join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            writeln!(
                f,
                "    no policy uses the attribute{} {told}{more}",
                if self.unused.len() == 1 { "" } else { "s" }
            )?;
        }
        Ok(())
    }
}

impl Explanation {
    /// Returns the policies over whose limit the request passes, marked or demoted.
    fn passed_over(&self) -> Vec<&str> {
        let over = self.reasons.iter().filter(|reason| ["marked", "demoted"].contains(&reason.result));
        over.map(|reason| reason.policy.as_str()).collect()
    }

    /// Returns the limit that refuses.
    fn binding(&self) -> Option<&LimitReason> {
        self.reasons.iter().flat_map(|reason| &reason.limits).find(|limit| limit.binds)
    }
}

impl LimitReason {
    fn write(&self, f: &mut fmt::Formatter<'_>, key: &str) -> fmt::Result {
        let what = match (self.shadow_limit, self.canary) {
            (true, _) => "shadow limit, ",
            (_, true) => "canary, ",
            _ => "",
        };
        write!(f, "{what}{}: ", self.limit)?;
        match (self.counts, self.retry, self.retry_after_ms) {
            _ if !self.is_breaker => match self.needs {
                Some(needs) => write!(f, "needs {needs}, ")?,
                None => f.write_str("its cost cannot be worked out, ")?,
            },
            _ if let Some(state) = &self.breaker => f.write_str(state)?,
            (_, None, _) => f.write_str("lets this call through")?,
            (_, _, Some(wait)) => write!(f, "is open, lets the first probe through in {}", millis(wait))?,
            _ if self.may_shed => f.write_str("refuses this call by chance, as a share of the calls")?,
            _ => f.write_str("refuses this call, it is unknown for how long")?,
        }
        match self.counts {
            _ if self.is_breaker => {}
            "places" => write!(f, "{} of {} places in use", self.in_use, self.of)?,
            _ => write!(f, "has {} of {}", self.has, self.of)?,
        }
        if self.kept_back > 0 {
            // What is kept from whoever never passes is more than the whole limit.
            write!(f, ", keeps {} for higher priority", self.kept_back.min(self.of))?;
        }
        match self.shed {
            Some((level, 0)) => write!(f, " and sheds {level}: none of it is admitted now")?,
            Some((level, cohorts)) => {
                let (all, last) = (Priority::COHORTS, cohorts - 1);
                let percent = (u32::from(cohorts) * 100 + u32::from(all) / 2) / u32::from(all);
                write!(
                    f,
                    " and sheds {level}: {percent}% of it is admitted now, cohorts 0 to {last} of {all}"
                )?;
            }
            None => {}
        }
        // Callers choose the values of a key: a line end in one of them would begin a line of their own.
        write!(f, "; key {}", visible::line(key))?;
        if self.spared {
            f.write_str("; not charged, another limit denied")?;
        }
        writeln!(f)
    }
}

/// Returns what a limit never allows, however long the caller waits before it asks.
fn causes_of_never(limit: &LimitReason) -> &'static str {
    let waits = limit.allowed_with.is_some_and(|with| with.max_wait_at_least_ms.is_some());
    match (limit.kept_back > 0, waits) {
        (false, false) => "at this cost",
        (true, false) => "at this cost and priority",
        (false, true) => "at this cost with this max_wait",
        (true, true) => "at this cost and priority with this max_wait",
    }
}

fn millis(count: u64) -> String {
    in_words(Duration::from_millis(count))
}

/// Formats milliseconds as a policy file writes a span: from ten seconds on in whole seconds, rounded up.
fn written(millis: u64) -> String {
    if millis < 10_000 { format!("{millis}ms") } else { format!("{}s", millis.div_ceil(1000)) }
}

// Says what an explanation does not know.

/// The most policies that a remark names.
const NAMED: usize = 5;

/// What is known of breakers and of places.
#[derive(Clone, Copy)]
enum Guards {
    /// Those of the gate that is in use were asked.
    Asked,
    /// The gate was made for the explanation, and all its counters are fresh.
    Fresh,
}

impl Explanation {
    /// Says of each breaker and each limit of places that only a running server knows its present state, and how to ask
    /// it. For an explanation by a gate that was just made from a policy file, whose counters are all fresh.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let quota = Quota::from(tidegate::concurrency::Concurrency::new(5)?);
    /// let set = PolicySet::new(vec![Policy::new("work", Limit::new(quota, "concurrency 5"))])?;
    /// let told = Gate::in_memory(set, 1)?.explain(&Descriptor::new()).now()?.over_fresh_counters();
    /// assert!(told.remarks[0].starts_with("only a running server knows how many places of work are in use"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn over_fresh_counters(self) -> Self {
        let remarks = self.remarks_with(Guards::Fresh);
        Self { remarks, ..self }
    }

    /// Says what an explanation by the gate that is in use does not know.
    pub(super) fn with_remarks(self) -> Self {
        let remarks = self.remarks_with(Guards::Asked);
        Self { remarks, ..self }
    }

    fn remarks_with(&self, guards: Guards) -> Vec<String> {
        let with = |has: fn(&LimitReason) -> bool| self.named(|reason| reason.limits.iter().any(has));
        let breakers = with(|limit| limit.is_breaker);
        let places = with(|limit| limit.counts == "places" && !limit.is_breaker);
        let breakers = breakers.map(|of| match guards {
            Guards::Asked => format!(
                "whether the breaker of {of} is half-open or forced, and why, is not looked up here; Keys::handle_breaker tells it"
            ),
            Guards::Fresh => format!(
                "only a running server knows the state of the breaker of {of}, here it is new and closed; ask by tidegate explain --server URL, or by tidegate breaker list --server URL"
            ),
        });
        let places = places.filter(|_| matches!(guards, Guards::Fresh)).map(|of| {
            format!(
                "only a running server knows how many places of {of} are in use, here all are free; ask by tidegate explain --server URL"
            )
        });
        let untimed = self.named(|reason| reason.untimed).map(|of| {
            let [grpc, envoy] = TIME_LEFT;
            format!(
                "the deadline of {of} was not compared, since the request does not say how long its caller waits; {grpc} and {envoy} say it"
            )
        });
        [breakers, places, untimed].into_iter().flatten().collect()
    }

    /// Returns the names of some policies as a text; `None` if there are none.
    fn named(&self, among: impl Fn(&Reason) -> bool) -> Option<String> {
        let names: Vec<&str> =
            self.reasons.iter().filter(|reason| among(reason)).map(|reason| reason.policy.as_str()).collect();
        let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => None,
            count if count > NAMED => Some(format!("{shown} and {} more", count - NAMED)),
            _ => Some(shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_written_as_in_a_policy_file() {
        assert_eq!([0, 500, 9_999, 10_001].map(written), ["0ms", "500ms", "9999ms", "11s"]);
        assert!(crate::policy::span(&written(12_345)).is_ok_and(|span| span.as_secs() == 13));
    }
}
