//! The readings of a suggestion, one after the other: measure, choose, minimise, replay.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;
use tidegate::limiter::Rate;
use tidegate::policy::{CostErrors, Policy};

use super::bursts::{KeyNeed, Needs};
use super::candidates::{self, Cut, Known, Purpose, WORTH_A_POLICY};
use super::cuts::{Choice, choose_cuts};
use super::group_policies::{NARROWER, Narrower, narrower, selected};
use super::limits::{self, Halves, Point};
use super::signs::{ClientKind, Evidence};
use super::suggestion::{Caution, Finding, KeysPeak, LeastLimit, Proposal, ReplayResult, Spared, Suggestion};
use super::watch::KeyWatch;
use super::{Readings, Step, SuggestError, SuggestOptions, outliers};
use crate::meter::Meter;
use crate::policy_yaml::scope;
use crate::replay::PeakRate;
use crate::what_if::{Asking, Candidate, WhatIf, WhatIfOptions, WhatIfOutcome};

/// The counts of the first reading: from 1 to 65,536 per period, each a half or a third more than the one before.
const COUNTS: u32 = 16;
/// Examined by each further reading for each proposal, between two of these.
const BETWEEN: u64 = 24;
/// Each leaves a twenty-fourth of the counts in question, so three usually suffice; costs of millions take more. If
/// keys were forgotten, readings may disagree, and the last one counts.
const MOST_CHOOSING: u32 = 9;
/// The least room of a limit that cuts keys for a gap alone: where not even half as much again fits between the crowd
/// and those above, the gap is an accident of the day.
const GAP_ROOM: f64 = 1.5;
/// Named where the key is missing.
const ATTRIBUTES: usize = 32;
const NAMED: usize = 10;
/// The shares of keys whose peaks are shown.
const SHARES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];

pub(super) struct Measured<'l, W> {
    readings: Readings<'l, W>,
    options: &'l SuggestOptions,
    policy: &'l Policy,
    asking: Asking,
    hasher: RandomState,
    needs: Needs,
    /// Requests whose cost could not be determined.
    unknown_costs: u64,
}

struct Findings {
    finding: Finding,
    proposals: Vec<Proposal>,
    stand_out: Vec<outliers::StandsOut>,
    narrower: Vec<Narrower>,
    evicted: u64,
}

impl Findings {
    const fn only(finding: Finding) -> Self {
        Self { finding, proposals: Vec::new(), stand_out: Vec::new(), narrower: Vec::new(), evicted: 0 }
    }
}

/// The spared keys need no more than `burst` at `count`, and more at `below`.
#[derive(Clone, Debug)]
struct Fitting {
    cut: Cut,
    /// 0 for none.
    below: u64,
    count: u64,
    burst: u64,
    burst_for: Option<Spared>,
    rate_for: Option<Spared>,
    /// The limit with room, if it has any.
    offered: Option<Offered>,
}

#[derive(Clone, Copy, Debug)]
struct Offered {
    count: u64,
    burst: u64,
    room: f64,
    /// The keys hit on the half on which it was not found.
    held_out: Option<u64>,
}

impl<'l, W: FnMut(Step)> Measured<'l, W> {
    pub(super) fn new(
        mut readings: Readings<'l, W>,
        options: &'l SuggestOptions,
        policy: &'l Policy,
    ) -> Result<Self, SuggestError> {
        let asking = Asking::new(policy, options.ipv6_prefix)?;
        let hasher = RandomState::default();
        let counts = (0..=COUNTS).flat_map(|power| [1u64 << power, 3u64 << power >> 1]);
        let counts = counts.skip(1).filter(|count| *count <= 1 << COUNTS);
        let scale = if options.cost.is_some() { scale(&mut readings, &asking)? } else { 1 };
        let counts: Vec<u64> = counts.map(|count| count.saturating_mul(scale).min(Rate::MAX_COUNT)).collect();
        let mut needs = Needs::new(counts, scale, options.per, options.keys, hasher.clone())?;
        let (mut has, unknown_before) = (Vec::<String>::new(), asking.unknown_costs().at_check);
        let tally = readings.read("measuring", |record| {
            if needs.requests == 0 {
                for (name, _) in record.describe().pairs() {
                    if has.len() < ATTRIBUTES && !has.iter().any(|known| known == name) {
                        has.push(name.to_owned());
                    }
                }
            }
            needs.feed(record, &asking);
        })?;
        let CostErrors { at_check, last, .. } = asking.unknown_costs();
        let unknown_costs = at_check - unknown_before;
        let doubts = options.trust.doubts(&tally);
        if !doubts.is_empty() {
            return Err(SuggestError::Doubtful { doubts, tally: Box::new(tally) });
        }
        if needs.requests == 0
            && let Some(why) = last
        {
            return Err(SuggestError::NoCost { requests: unknown_costs, why });
        }
        if needs.requests == 0 {
            let has = match &has[..] {
                [] if tally.records == 0 => "no requests".to_owned(),
                [] => "times and nothing else".to_owned(),
                names => names.join(", "),
            };
            // The names of fields are untrusted text, and the message must be one line.
            let has = tidegate::visible::line(&has).into_owned();
            return Err(SuggestError::NoKey { requests: tally.records, by: options.by.join(", "), has });
        }
        Ok(Self { readings, options, policy, asking, hasher, needs, unknown_costs })
    }

    /// Finds which keys to cut, at which limit, and at what price.
    pub(super) fn suggestion(mut self) -> Result<Suggestion, SuggestError> {
        let keys = self.needs.keys();
        let mut cautions = Vec::new();
        if let Some(keep) =
            self.options.keep.filter(|keep| spared_by(*keep, keys.about()) == 0 && *keep < 1.0)
        {
            cautions.push(Caution::EveryKey { keep, keys: keys.about() });
        }
        let findings = if self.needs.span() < self.options.per.saturating_mul(2) {
            Findings::only(Finding::TooShort)
        } else {
            self.find(&mut cautions)?
        };
        if !self.needs.has_users {
            cautions.push(Caution::NoUsers);
        }
        if self.needs.floor > 0 {
            cautions.push(Caution::Forgotten { most: self.needs.floor });
        }
        if findings.evicted > 0 {
            cautions.push(Caution::Evicted { keys: findings.evicted });
        }
        if self.unknown_costs > 0 {
            cautions.push(Caution::CostsUnknown { requests: self.unknown_costs });
        }
        let signed_in = self.needs.remembered().iter().filter(|key| key.signed_in).count() as u64;
        let cost = self.options.cost.as_ref().map(|cost| cost.written.as_str());
        let scope = match scope(self.policy, self.readings.matching(), cost) {
            Ok(scope) => Some(scope),
            Err(why) => {
                cautions.push(Caution::Unwritten { why });
                None
            }
        };
        Ok(Suggestion {
            by: self.options.by.clone(),
            matching: self.readings.matching().clone(),
            scope,
            per: self.options.per,
            requests: self.needs.requests,
            cost: self.options.cost.as_ref().map(|cost| cost.written.clone()),
            units: self.options.cost.is_some().then_some(self.needs.units),
            keys,
            keys_signed_in: signed_in,
            span: self.needs.span(),
            peaks: peaks(&self.needs),
            finding: findings.finding,
            proposals: findings.proposals,
            stand_out: findings.stand_out,
            narrower: findings.narrower,
            instead: Vec::new(),
            cautions,
        })
    }

    fn find(&mut self, cautions: &mut Vec<Caution>) -> Result<Findings, SuggestError> {
        let (watch, known) = self.watch()?;
        if !(watch.has_paths && watch.has_agents) {
            cautions.push(Caution::NoEvidence { paths: watch.has_paths, agents: watch.has_agents });
        }
        let culprits: Vec<u64> =
            outliers::culprits(&self.needs, &known, WORTH_A_POLICY).into_iter().map(|key| key.hash).collect();
        let of_groups = culprits.iter().copied().collect();
        let groups = watch.groups(&of_groups, self.needs.requests, WORTH_A_POLICY);
        let borrowed = watch.borrowed_agents(&of_groups, self.needs.requests, WORTH_A_POLICY);
        let borrowed = borrowed.into_iter().take(NARROWER);
        cautions.extend(borrowed.map(|(agent, keys, requests)| Caution::BorrowedAgent {
            agent,
            keys,
            requests,
        }));
        let shared = groups.is_empty() && culprits.iter().all(|key| watch.looks(*key) == ClientKind::Shared);
        let has_culprits = !culprits.is_empty() || !groups.is_empty();
        let mut choice = choose_cuts(&self.needs, &known, self.kept(), true, has_culprits);
        let mut offered = self.leave_room(&choice)?;
        let is_told = |cut: &&Cut| cut.hit.iter().all(|key| known.is_culprit(*key));
        if choice.gap().is_some_and(|cut| !is_told(&cut)) && offered.is_none_or(|one| one.room < GAP_ROOM) {
            choice = choose_cuts(&self.needs, &known, self.kept(), false, has_culprits);
            offered = self.leave_room(&choice)?;
        }
        if choice.finding == Finding::NoFaster && shared {
            choice.finding = Finding::Shared;
        }
        let cut = choice.gap().map(|cut| cut.hit.clone()).unwrap_or_default();
        cautions.extend(outliers::doubts(&self.needs, &watch, &known, &cut));
        let missed: Vec<u64> = culprits.into_iter().filter(|key| !cut.contains(key)).collect();
        let stand_out = outliers::describe(&self.needs, &watch, &cut, &missed, &choice.stand_out);
        let periods = (self.needs.span().as_secs_f64() / self.options.per.as_secs_f64()).max(1.0);
        let pace = |asked: u64| (asked as f64 / periods) as u64;
        let a_request = self.needs.units / self.needs.requests.max(1);
        let pace = |requests: u64| pace(requests.saturating_mul(a_request));
        let selected = selected(&stand_out, groups, &watch, &self.options.by, pace);
        let narrower = narrower(&mut self.readings, self.options, &self.asking, &selected, known.usual_peak)?;
        let mut fitted = self.fit(choice.cuts)?;
        for fit in &mut fitted {
            match fit.cut.purpose {
                Purpose::Gap => fit.offered = offered,
                Purpose::Ceiling => {
                    let (count, burst) = (fit.count.saturating_mul(2), fit.burst.saturating_mul(2));
                    let offered = Offered { count, burst, room: 2.0, held_out: None };
                    fit.offered = self.can_be_doubled(count, burst).then_some(offered);
                }
                _ => {}
            }
        }
        let (proposals, evicted) = self.replay(&fitted)?;
        Ok(Findings { finding: choice.finding, proposals, stand_out, narrower, evicted })
    }

    /// The cut that keeps the requested share of keys.
    fn kept(&self) -> Option<Cut> {
        let keys = self.needs.keys().about();
        // A share that amounts to every key cannot be answered from the log.
        let kept = self.options.keep.map(|keep| (keep, spared_by(keep, keys)));
        let (_, count) = kept.filter(|(keep, count)| *count > 0 || *keep >= 1.0)?;
        candidates::most_demanding(&self.needs, Purpose::Kept, count)
    }

    /// Reads the log again, to see the requests of the keys that stand out.
    fn watch(&mut self) -> Result<(KeyWatch, Known), SuggestError> {
        let is_by_client = self.options.by == ["client.ip"];
        let mut watch = KeyWatch::new(&self.needs, is_by_client);
        let (asking, hasher) = (&self.asking, &self.hasher);
        self.readings.read("looking closer", |record| {
            if let Some(asked) = asking.find(&asking.describe(record), None) {
                watch.feed(record, hasher.hash_one(&asked.key));
            }
        })?;
        // Only this evidence tells an office from a single excessive customer; a key that is a user is never an
        // office.
        let is_by_user = self.options.by.iter().any(|name| name == "user.id");
        let shows_offices = is_by_user || watch.has_paths && watch.has_agents;
        let per = self.options.per.as_secs_f64();
        let lasted = |key| watch.evidence(key).map_or(0.0, |evidence| evidence.lasted().as_secs_f64() / per);
        let pages = |key| watch.evidence(key).map_or(0, Evidence::page_requests);
        let looks = |key| watch.looks(key);
        let known = Known::new(&self.needs, shows_offices, looks, lasted, pages, watch.crowd_loads());
        Ok((watch, known))
    }

    /// Finds the knee of each cut's curve, then the least count that needs no more burst.
    fn fit(&mut self, cuts: Vec<Cut>) -> Result<Vec<Fitting>, SuggestError> {
        let mut fitting: Vec<Fitting> = Vec::new();
        for cut in cuts {
            let points = limits::points(&self.needs, &cut.hit);
            let Some(knee) = limits::knee(&points) else { continue };
            let at = |place: usize| points.get(place).map(|point| point.count);
            // Between the knee's neighbours, at first in steps.
            let below = knee.checked_sub(1).and_then(at).unwrap_or(0);
            let count = at(knee + 1).unwrap_or(points[knee].count);
            let (burst_for, rate_for) = (None, None);
            fitting.push(Fitting { cut, below, count, burst: 0, burst_for, rate_for, offered: None });
        }
        for reading in 0..MOST_CHOOSING {
            if fitting.iter().all(|fit| fit.burst > 0 && fit.count <= fit.below + 1) {
                break;
            }
            let mut counts: Vec<u64> = fitting.iter().flat_map(Fitting::to_look_at).collect();
            counts.sort_unstable();
            counts.dedup();
            let SuggestOptions { per, keys, .. } = *self.options;
            let mut needs = Needs::new(counts, self.needs.scale, per, keys, self.hasher.clone())?;
            let asking = &self.asking;
            self.readings.read("choosing", |record| needs.feed(record, asking))?;
            for fit in &mut fitting {
                fit.narrow(&needs, reading == 0);
            }
        }
        Ok(fitting)
    }

    /// A limit, and one of twice its size, can be replayed exactly.
    fn can_be_doubled(&self, count: u64, burst: u64) -> bool {
        let meter = |count| Rate::new(count, self.options.per).map(Meter::new);
        let is_exact = |count, burst| meter(count).is_ok_and(|meter| meter.full(burst).is_some());
        is_exact(count, burst) && is_exact(count.saturating_mul(2), burst.saturating_mul(2))
    }

    /// Leaves room between the keys that a choice spares and its limit, in two readings; `None` if it cuts nobody.
    fn leave_room(&mut self, choice: &Choice) -> Result<Option<Offered>, SuggestError> {
        let Some(Cut { hit, .. }) = choice.gap() else { return Ok(None) };
        let (per, keys, asking) = (self.options.per, self.options.keys, &self.asking);
        let mut limits = limits::with_room(&self.needs, hit);
        limits.retain(|limit| self.can_be_doubled(limit.count, limit.burst));
        if limits.is_empty() {
            return Ok(None);
        }
        let mut halves = Halves::new(&self.needs, per, keys, self.hasher.clone())?;
        self.readings.read("halving", |record| halves.feed(record, asking, hit))?;
        let candidates: Vec<Candidate> =
            limits.iter().map(|limit| limit.candidate(per)).collect::<Result<_, _>>()?;
        let options = WhatIfOptions { keys, window: per, named: 0, ipv6_prefix: self.options.ipv6_prefix };
        let mut what_if = WhatIf::new(self.policy, &candidates, options)?;
        let hasher = &self.hasher;
        // No limit in question denies a key that it spares.
        self.readings.read("making room", |record| {
            let asked = asking.find(&asking.describe(record), None);
            if asked.is_some_and(|asked| hit.contains(&hasher.hash_one(&asked.key))) {
                what_if.feed(record);
            }
        })?;
        let chosen = limits::choose_limit(&limits, &what_if.denied(), &halves, hit);
        Ok(chosen.map(|(limit, held_out)| {
            let (count, burst, room) = (limit.count, limit.burst, limit.room());
            Offered { count, burst, room, held_out }
        }))
    }

    /// Replays the proposals, and each with twice the rate and burst. Also returns how many live keys were evicted.
    fn replay(&mut self, fitted: &[Fitting]) -> Result<(Vec<Proposal>, u64), SuggestError> {
        let candidate = |count: u64, burst: u64| -> Result<Candidate, SuggestError> {
            Ok(Candidate { rate: Rate::new(count.max(1), self.options.per)?, burst: burst.max(1) })
        };
        let mut candidates = Vec::new();
        for fit in fitted {
            let Offered { count, burst, .. } = fit.offered();
            candidates.push(candidate(count, burst)?);
            candidates.push(candidate(count.saturating_mul(2), burst.saturating_mul(2))?);
        }
        if candidates.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let options = WhatIfOptions {
            keys: self.options.keys,
            window: self.options.per,
            named: NAMED,
            ipv6_prefix: self.options.ipv6_prefix,
        };
        let mut what_if = WhatIf::new(self.policy, &candidates, options)?;
        self.readings.read("replaying", |record| what_if.feed(record))?;
        let outcomes = what_if.outcomes();
        let rate = |count| PeakRate { count, window: self.options.per };
        let proposals = fitted.iter().zip(outcomes.chunks_exact(2)).map(|(fit, outcomes)| {
            let Offered { count, burst, room, held_out } = fit.offered();
            Proposal {
                purpose: fit.cut.purpose,
                rate: rate(count),
                burst,
                evidence: replay_result(&outcomes[0]),
                hit: outcomes[0].hit.clone(),
                room,
                hit_on_another_half: held_out,
                least: LeastLimit {
                    rate: rate(fit.count),
                    burst: fit.burst,
                    burst_for: fit.burst_for.clone().filter(|_| fit.burst > 1),
                    rate_for: fit.rate_for.clone().filter(|_| fit.count > 1),
                },
                doubled: replay_result(&outcomes[1]),
            }
        });
        Ok((without_pointless(proposals.collect()), what_if.evicted()))
    }
}

impl Fitting {
    /// Returns the limit that is proposed: with room, or the least.
    fn offered(&self) -> Offered {
        self.offered.unwrap_or(Offered { count: self.count, burst: self.burst, room: 1.0, held_out: None })
    }

    /// Returns the counts that the next reading examines: evenly spaced between the bounds, both included.
    fn to_look_at(&self) -> impl Iterator<Item = u64> + use<> {
        let (below, wide) = (self.below, self.count - self.below);
        let steps = wide.min(BETWEEN);
        (0..=steps).map(move |step| below + wide * step / steps.max(1)).filter(|count| *count > 0)
    }

    /// Uses a reading: at first, takes the knee of the examined counts; then the least count that needs no more burst.
    fn narrow(&mut self, needs: &Needs, is_first: bool) {
        let points = limits::points(needs, &self.cut.hit);
        let mine: Vec<(usize, Point)> = points
            .into_iter()
            .enumerate()
            .filter(|(_, point)| (self.below..=self.count).contains(&point.count))
            .collect();
        if is_first {
            let only: Vec<Point> = mine.iter().map(|(_, point)| *point).collect();
            if let Some(knee) = limits::knee(&only) {
                (self.count, self.burst) = (only[knee].count, only[knee].burst);
            }
        }
        // Needs fall as the rate rises: rates that are too slow come first.
        let enough = |point: &Point| point.burst <= self.burst;
        if let Some((place, point)) = mine.iter().find(|(_, point)| enough(point)) {
            self.count = point.count;
            let most_needed = limits::most_needed(needs, *place, &self.cut.hit);
            self.burst_for = most_needed.filter(|key| needs.burst(key, *place) == self.burst).map(spared);
        }
        let slower = mine.iter().rev().find(|(_, point)| point.count < self.count && !enough(point));
        self.below = slower.map_or(if is_first { 0 } else { self.below }, |(_, point)| point.count);
        if let Some((place, _)) = slower {
            let most_needed = limits::most_needed(needs, *place, &self.cut.hit);
            self.rate_for = most_needed.filter(|key| needs.burst(key, *place) > self.burst).map(spared);
        }
    }
}

/// Leaves out proposals equal to an earlier one, or stricter and denying no more than the gap's.
fn without_pointless(proposals: Vec<Proposal>) -> Vec<Proposal> {
    let mut out: Vec<Proposal> = Vec::new();
    for proposal in proposals {
        let same = |one: &Proposal| (one.rate, one.burst) == (proposal.rate, proposal.burst);
        let pointless = proposal.purpose == Purpose::Stricter
            && out
                .iter()
                .any(|one| one.purpose == Purpose::Gap && one.evidence.denied >= proposal.evidence.denied);
        if !pointless && !out.iter().any(same) {
            out.push(proposal);
        }
    }
    out
}

/// The mean cost, rounded down to 1, 2 or 5 times a power of ten.
fn scale<W: FnMut(Step)>(readings: &mut Readings<'_, W>, asking: &Asking) -> Result<u64, SuggestError> {
    let (mut requests, mut units) = (0u64, 0u64);
    readings.read("weighing", |record| {
        if let Some(asked) = asking.find(&asking.describe(record), None) {
            requests += 1;
            units = units.saturating_add(asked.cost.units());
        }
    })?;
    let mean = units / requests.max(1);
    let ten = 10u64.pow(mean.checked_ilog10().unwrap_or(0));
    Ok([5, 2, 1].into_iter().find(|digit| digit * ten <= mean).map_or(1, |digit| digit * ten))
}

fn spared(key: &KeyNeed) -> Spared {
    Spared { key: key.name.to_string(), signed_in: key.signed_in }
}

fn replay_result(outcome: &WhatIfOutcome) -> ReplayResult {
    ReplayResult {
        denied: outcome.denied,
        denied_share: outcome.denied_share,
        keys_hit: outcome.keys_hit,
        keys_hit_share: outcome.keys_hit_share,
        keys_hit_signed_in: outcome.keys_hit_signed_in,
    }
}

/// Returns how many keys may be hit if a share of them is kept.
fn spared_by(keep: f64, keys: u64) -> usize {
    (keys as f64 * (1.0 - keep) + 1e-9).floor() as usize
}

/// A share that amounts to every key is left out, except the last.
fn peaks(needs: &Needs) -> Vec<KeysPeak> {
    let (falling, keys) = (needs.falling_peaks(), needs.keys().about());
    let peak = |share: f64| {
        let above = spared_by(share, keys);
        (share >= 1.0 || above > 0).then(|| KeysPeak {
            keys_share: share,
            // Keys that are not remembered are the lightest.
            peak: falling.get(above).or(falling.last()).copied().unwrap_or(0),
        })
    };
    SHARES.into_iter().filter_map(peak).collect()
}
