//! What is planted into the traffic of a server, and what it changes there.

use tidegate_server::{OpenBreaker, Verdict};

use super::traffic::{Batch, HOUR, Kind, MINUTE, Policy, Shop, breaker};
use crate::history::DAY;
use crate::usual::tests::Random;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// One address asks for more than its limit lets pass.
    Scraper,
    /// A customer who passed a thousand times a day and was never refused is refused, at least most of the time.
    CutOff,
    /// A limit refuses a part of everybody's requests.
    TooLow,
    /// No store answers.
    StoreGone,
    /// A service fails, and its breaker opens and opens again.
    BreakerOpen,
}

impl What {
    pub(super) const ALL: [Self; 5] =
        [Self::Scraper, Self::CutOff, Self::TooLow, Self::StoreGone, Self::BreakerOpen];

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Scraper => "a scraper",
            Self::CutOff => "a customer cut off",
            Self::TooLow => "a limit too low",
            Self::StoreGone => "the store gone",
            Self::BreakerOpen => "a breaker that trips",
        }
    }
}

/// How long an incident lasts, in seconds.
const SHORTEST: f64 = 240.0;
const LONGEST: f64 = 2_400.0;

/// How long it takes to prepare for an incident: it begins within a minute after that.
pub(super) const LEAD: u64 = 3 * MINUTE;

/// A customer is one who passes so often in a day, and asks at least so often in a second when he is cut off: whoever
/// asks less often cannot be told from nobody in three minutes.
const CUSTOMER: f64 = 1_000.0;
const ASKS: f64 = 0.1;

/// The requests a second of a policy whose limit is too low.
const BUSY: f64 = 2.0;

/// Seconds for which a breaker lets probes pass before it opens again.
const PROBES: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Incident {
    pub(super) what: What,
    pub(super) begins: u64,
    pub(super) ends: u64,
    policy: u16,
    key: u64,
    /// Of a scraper, the requests a second that are refused; of a limit, the share that is refused; of a breaker, after
    /// how many seconds it opens.
    size: f64,
    /// Of a scraper, the requests a second that pass; of a customer, how many times as often he asks; of a breaker, for
    /// how many seconds it is open.
    more: f64,
}

impl Incident {
    /// Draws an incident that begins [`LEAD`] after a whole minute. `None`: at this time there is nobody to whom it
    /// could happen.
    pub(super) fn draw(what: What, shop: &mut Shop, now: u64) -> Option<Self> {
        let candidates = candidates(what, shop, now);
        let random = &mut shop.random;
        let at = random.below(candidates.len().max(1) as u64);
        let (policy, key) = *candidates.get(at as usize)?;
        let begins = now + LEAD + random.below(MINUTE);
        let ends = begins + random.spread(SHORTEST, LONGEST) as u64;
        let (size, more) = match what {
            What::Scraper => (random.spread(2.0, 40.0), random.between(0.5, 5.0)),
            What::CutOff => (random.between(0.6, 1.0), random.between(1.0, 3.0)),
            What::TooLow => (random.between(0.2, 0.9), 1.0),
            What::StoreGone => (1.0, 1.0),
            What::BreakerOpen => (random.between(3.0, 10.0), random.spread(5.0, 30.0)),
        };
        Some(Self { what, begins, ends, policy, key, size, more })
    }

    /// Returns the same so large and so steady that chance hardly matters.
    pub(super) fn at_its_worst(self) -> Self {
        let (size, more) = if self.what == What::Scraper { (40.0, self.more) } else { (5.0, 60.0) };
        Self { ends: self.begins + 600, size, more, ..self }
    }

    /// Returns the part of some seconds that lies in the incident.
    fn part(&self, at: u64, seconds: u64) -> f64 {
        let within = self.ends.min(at + seconds).saturating_sub(self.begins.max(at));
        within as f64 / seconds as f64
    }

    /// Changes what is asked and decided in some seconds from `at` on.
    pub(super) fn alter(&self, at: u64, seconds: u64, random: &mut Random, batches: &mut Vec<Batch>) {
        let part = self.part(at, seconds);
        if part <= 0.0 {
            return;
        }
        match self.what {
            What::Scraper => {
                for (verdict, rate) in [(Verdict::Denied, self.size), (Verdict::Allowed, self.more)] {
                    let count = random.poisson(rate * seconds as f64 * part);
                    batches.push(Batch { policy: self.policy, key: Some(self.key), verdict, count });
                }
            }
            What::CutOff => self.refuse(Some(self.key), part, random, batches),
            What::TooLow => self.refuse(None, part, random, batches),
            What::StoreGone => {
                let decided = batches
                    .iter_mut()
                    .filter(|batch| matches!(batch.verdict, Verdict::Allowed | Verdict::Denied));
                decided.for_each(|batch| batch.verdict = Verdict::Error);
            }
            What::BreakerOpen => {
                if self.opened(at).is_some_and(|(_, probes)| !probes) {
                    let own = batches.iter_mut().filter(|batch| batch.policy == self.policy);
                    own.for_each(|batch| batch.verdict = Verdict::Denied);
                }
            }
        }
        batches.retain(|batch| batch.count > 0);
    }

    /// Refuses a share of what passes: of a key, or of all.
    fn refuse(&self, key: Option<u64>, part: f64, random: &mut Random, batches: &mut Vec<Batch>) {
        let mut refused = Vec::new();
        for batch in batches.iter_mut() {
            let is_hit = batch.policy == self.policy && (key.is_none() || batch.key == key);
            if !is_hit || batch.verdict != Verdict::Allowed {
                continue;
            }
            batch.count += random.poisson(batch.count as f64 * (self.more - 1.0) * part);
            let count = random.of(batch.count, self.size * part);
            batch.count -= count;
            refused.push(Batch { verdict: Verdict::Denied, count, ..*batch });
        }
        batches.append(&mut refused);
    }

    /// Notes whose customers have been refused.
    pub(super) fn is_over(&self, shop: &mut Shop) {
        if self.what == What::TooLow
            && let Some(policy) = shop.policies.get_mut(usize::from(self.policy))
        {
            policy.refused_until = Some(self.ends);
        }
    }

    pub(super) fn store_away(&self, at: u64) -> Option<String> {
        let is_away = self.what == What::StoreGone && (self.begins..self.ends).contains(&at);
        is_away.then(|| "connection refused".to_owned())
    }

    pub(super) fn open_breaker(&self, at: u64, shop: &Shop) -> Option<OpenBreaker> {
        let (since, probes) = self.opened(at)?;
        let name = shop.policies.get(usize::from(self.policy))?.name.to_string();
        Some(breaker(name, since, probes))
    }

    /// Returns when the breaker opened last, and whether it lets probes pass.
    fn opened(&self, at: u64) -> Option<(u64, bool)> {
        let first = self.begins + self.size as u64;
        if self.what != What::BreakerOpen || !(first..self.ends).contains(&at) {
            return None;
        }
        let open_for = self.more as u64;
        let since = at - (at - first) % (open_for + PROBES);
        Some((since, at - since >= open_for))
    }

    /// Returns whether a message tells of this.
    pub(super) fn is_told_by(&self, rule: &str, policy: &str, shop: &Shop) -> bool {
        if self.what == What::StoreGone {
            return rule == "store-away";
        }
        shop.policies.get(usize::from(self.policy)).is_some_and(|own| *own.name == *policy)
    }
}

/// Returns the policies, with a key, to which something can happen now.
fn candidates(what: What, shop: &Shop, now: u64) -> Vec<(u16, u64)> {
    let numbered = (0_u16..).zip(&shop.policies);
    let is_busy = |policy: &Policy| shop.mean(policy, now) >= BUSY;
    let of_kind = |policy: &Policy| match what {
        What::Scraper => policy.kind == Kind::PerIp,
        What::CutOff => matches!(policy.kind, Kind::PerTenant | Kind::Office),
        What::TooLow => {
            let kinds = [Kind::PerIp, Kind::PerTenant, Kind::Office, Kind::Global];
            kinds.contains(&policy.kind) && is_busy(policy)
        }
        What::StoreGone => true,
        What::BreakerOpen => policy.kind == Kind::Breaker,
    };
    let mut found = Vec::new();
    for (number, policy) in numbered.filter(|(_, policy)| of_kind(policy)) {
        if what != What::CutOff {
            found.push((number, 0x5c4a_9e25));
            continue;
        }
        // Who was refused by an incident before is no such customer for a day.
        if policy.refused_until.is_some_and(|until| now < until + DAY) {
            continue;
        }
        // The last is refused now and then.
        for regular in policy.regulars.split_last().map_or(&[][..], |(_, others)| others) {
            let (now, day) = (shop.mean(policy, now), shop.of_a_day(policy, now));
            if now * regular.share >= ASKS && day * regular.share >= CUSTOMER {
                found.push((number, regular.key));
            }
        }
    }
    found
}

/// Returns a time some hours later, at any minute.
pub(super) fn later(random: &mut Random, now: u64) -> u64 {
    let at = now + HOUR + random.below(8 * HOUR);
    at - at % MINUTE
}
