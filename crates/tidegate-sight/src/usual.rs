//! What is usual at an hour of the day, and what is not: is this share of refusals normal?
//!
//! Refusals are unusual if their share is above what is usual, **and** their number a second above what is common, both by
//! more than chance explains, **and** there is one in two seconds at least. The share alone rises when fewer pass, at a
//! weekend; the number alone rises when more come, and as much is refused of it. It has to last for a minute
//! (`UNUSUAL_FOR`), unless the last ten seconds are clearly so (`CLEAR`).
//!
//! A share is *usual* up to six median absolute deviations above the median of the five-minute spans of the same hour of
//! the last 28 days, and up to twice the median; a number is *common* up to three. Medians, because one bad night must not
//! become usual. Deviations of the logarithm (of a share, of its odds), because what changes refusals multiplies them: as
//! many spans have half of the median as twice of it, so deviations in percent are too short upwards. If logarithms are
//! normal, six of them are four standard deviations.
//!
//! *Chance* is wider than that of single refusals where several come together, as when one caller tries again at once. By
//! how much is learnt from the same spans: from how much one differs from the next ([`Usual::together`]). It is added as
//! variances are, since a minute differs from the median by both.
//!
//! With counts of fewer than three days, the spans of the last 24 hours stand in, whatever their hour; with less than
//! three hours, nothing is known.
//!
//! How often it is wrong is in lab/results/alarms.tsv.

use std::collections::BTreeMap;

use crate::history::{DAY, History};
use crate::numbers::Refused;

/// What refusals are usual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usual {
    /// The denied share is commonly not below this, 0 to 1.
    pub(crate) low: f64,
    /// The median share; above `high`, it is unusual.
    pub(crate) middle: f64,
    pub(crate) high: f64,
    /// The median of refusals a second; above `high_a_second`, these are more than common.
    pub(crate) middle_a_second: f64,
    pub(crate) high_a_second: f64,
    /// How many refusals come together, on average: the variance of their number over that of single ones. 1 at least.
    pub(crate) together: f64,
    /// On how many days the same hour was counted.
    pub(crate) days: u32,
    /// Those days are too few, so this is of the windows of the last one, of all hours.
    pub(crate) from_last_day: bool,
}

/// The days whose same hour is compared, and the fewest that are enough.
const DAYS: u64 = 28;
const ENOUGH_DAYS: u32 = 3;

/// How long spans must reach back if they are of the last day alone.
const ENOUGH_TIME: u64 = 3 * 3_600;

/// The last two spans of the last day are under judgement themselves.
const RECENT: u64 = 600;

/// The length of a span, in seconds.
const SPAN: u64 = 300;

/// How many deviations from the median are unusual, and how many are still common. Of a normal law, one and a half of them
/// are nearly a standard deviation.
const UNUSUAL: f64 = 6.0;
const COMMON: f64 = 3.0;
const IN_STANDARD: f64 = 1.5;

/// A share that is no news, and what is added to shares before their odds are taken: where nothing is ever denied there is
/// no deviation, and yet a few refusals mean nothing.
const LEAST_SHARE: f64 = 0.006;

/// How many times as far from the middle is clear. Ten seconds are judged each second, sixty times as often as a minute.
const CLEAR: f64 = 1.5;

/// Below so many refusals a second nothing is unusual.
const LEAST_A_SECOND: f64 = 0.5;

/// The most refusals that are taken to come together.
const MOST_TOGETHER: f64 = 100.0;

/// Returns what is usual at this hour for a policy, or for the server; `None` if too little is known. Reads 29 blocks of
/// the history, which takes some hundred microseconds, and holds for five minutes at least.
pub(crate) fn usual(history: &History, policy: Option<&str>, now: u64) -> Option<Usual> {
    let hour = now - now % 3_600;
    let same_hour = |days: u64| hour.checked_sub(days * DAY).map(|from| (from, from + 3_600));
    let ranges: Vec<(u64, u64)> = (1..=DAYS).filter_map(same_hour).collect();
    let spans = history.five_minutes(policy, &ranges);
    let days = days_of(&spans);
    if days >= ENOUGH_DAYS {
        return judge(&spans, days, false);
    }
    let last = history.five_minutes(policy, &[(now.saturating_sub(DAY), now.saturating_sub(RECENT))]);
    let reaches_back = now.saturating_sub(last.first()?.0);
    if reaches_back < ENOUGH_TIME {
        return None;
    }
    judge(&last, days, true)
}

/// Counts the days on which there were requests. The spans are in their order.
fn days_of(spans: &[(u64, Refused)]) -> u32 {
    let with_requests = spans.iter().filter(|(_, refused)| refused.requests > 0);
    let mut days: Vec<u64> = with_requests.map(|(at, _)| at / DAY).collect();
    days.dedup();
    u32::try_from(days.len()).unwrap_or(u32::MAX)
}

/// Judges by spans; `None` if there were no requests in any.
fn judge(spans: &[(u64, Refused)], days: u32, from_last_day: bool) -> Option<Usual> {
    let with_requests = || spans.iter().map(|(_, refused)| *refused).filter(|refused| refused.requests > 0);
    let mut odds: Vec<f64> = with_requests().filter_map(Refused::share).map(log_odds).collect();
    let (middle, around) = median_and_deviation(&mut odds)?;
    let share = share_of(middle);
    let twice = 2.0 * share / (1.0 + share);
    let a_second = |refused: Refused| (refused.denied as f64 / SPAN as f64 + LEAST_A_SECOND).ln();
    let mut rates: Vec<f64> = with_requests().map(a_second).collect();
    let (middle_rate, around_rate) = median_and_deviation(&mut rates)?;
    Some(Usual {
        low: share_of(middle - COMMON * around),
        middle: share,
        high: share_of(middle + UNUSUAL * around).max(twice).max(LEAST_SHARE),
        middle_a_second: middle_rate.exp() - LEAST_A_SECOND,
        high_a_second: (middle_rate + COMMON * around_rate).exp() - LEAST_A_SECOND,
        together: together(spans),
        days,
        from_last_day,
    })
}

/// Returns the logarithm of the odds of a share.
fn log_odds(share: f64) -> f64 {
    ((share + LEAST_SHARE) / (1.0 - share + LEAST_SHARE)).ln()
}

/// Returns the share that has such odds, 0 to 1.
fn share_of(log_odds: f64) -> f64 {
    let odds = log_odds.exp().min(1e6);
    ((odds * (1.0 + LEAST_SHARE) - LEAST_SHARE) / (1.0 + odds)).clamp(0.0, 1.0)
}

/// Returns how many refusals come together: how much more the numbers of two spans in a row differ than if each request
/// was refused by itself. What changes slowly is nearly the same in both. The median of hours, so that a bad one is none.
fn together(spans: &[(u64, Refused)]) -> f64 {
    let mut by_hour: BTreeMap<u64, (f64, u32)> = BTreeMap::new();
    for pair in spans.windows(2) {
        let [(at, one), (then, other)] = pair else { continue };
        let both = one.requests.saturating_add(other.requests) as f64;
        let share = one.denied.saturating_add(other.denied) as f64 / both;
        // Without a refusal, or with nothing else, nothing is told.
        let is_telling = share > 0.0 && share < 1.0 && one.requests > 0 && other.requests > 0;
        if !is_telling || *then != at.saturating_add(SPAN) {
            continue;
        }
        let differs = |refused: &Refused| {
            let usual = refused.requests as f64 * share;
            (refused.denied as f64 - usual).powi(2) / (usual * (1.0 - share))
        };
        let hour = by_hour.entry(at / 3_600).or_default();
        hour.0 += differs(one) + differs(other);
        hour.1 += 1;
    }
    let mut means: Vec<f64> = by_hour.into_values().map(|(sum, pairs)| sum / f64::from(pairs)).collect();
    median(&mut means).unwrap_or(1.0).clamp(1.0, MOST_TOGETHER)
}

/// Returns the median, and the median of the distances from it, which replace the values.
fn median_and_deviation(values: &mut [f64]) -> Option<(f64, f64)> {
    let middle = median(values)?;
    values.iter_mut().for_each(|value| *value = (*value - middle).abs());
    Some((middle, median(values)?))
}

/// Returns the value in the middle, the upper of two. Changes the order.
fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// Returns whether refusals of some seconds are above what is usual by more than chance explains, in share and in number.
/// An alarm needs that for two spans in a row, minutes for example.
pub(crate) fn is_unusual(refused: Refused, seconds: u64, usual: &Usual) -> bool {
    is_above(refused, seconds, usual, 1.0)
}

/// Returns whether refusals of some seconds are so far above what is usual that one span of ten seconds is enough.
pub(crate) fn is_clear(refused: Refused, seconds: u64, usual: &Usual) -> bool {
    is_above(refused, seconds, usual, CLEAR)
}

/// `times`: how many times as far from the middle as what is usual at most.
fn is_above(refused: Refused, seconds: u64, usual: &Usual, times: f64) -> bool {
    let (requests, denied, seconds) = (refused.requests as f64, refused.denied as f64, seconds as f64);
    if denied < LEAST_A_SECOND * seconds {
        return false;
    }
    let of_requests = Line {
        middle: usual.middle.max(LEAST_SHARE.min(usual.high)) * requests,
        high: usual.high * requests,
        deviations: UNUSUAL / IN_STANDARD,
    };
    let of_time = Line {
        middle: usual.middle_a_second * seconds,
        high: usual.high_a_second * seconds,
        deviations: COMMON / IN_STANDARD,
    };
    [of_requests, of_time].into_iter().all(|line| denied > line.times(times).with_chance(usual.together))
}

/// A number of refusals, and the one that is so many standard deviations above it by what changes slowly.
#[derive(Clone, Copy, Debug)]
struct Line {
    middle: f64,
    high: f64,
    deviations: f64,
}

impl Line {
    /// Returns the line that is so many times as far from the middle.
    fn times(self, times: f64) -> Self {
        let Self { middle, high, deviations } = self;
        Self { middle, high: middle + times * (high - middle), deviations: times * deviations }
    }

    /// Returns the number that is so many deviations above the middle by what changes slowly and by chance, which do not
    /// depend on each other: their variances add up. Of refusals so many come together.
    fn with_chance(self, together: f64) -> f64 {
        let Self { middle, high, deviations } = self;
        let slowly = (high - middle).powi(2);
        let by_chance = deviations.powi(2) * together * middle;
        let both = slowly + by_chance;
        // For the skewness of a number of which some come together (Cornish and Fisher).
        let of_chance = if both > 0.0 { by_chance / both } else { 0.0 };
        middle + both.sqrt() + of_chance * together * (deviations.powi(2) - 1.0) / 6.0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::f64::consts::TAU;
    use std::sync::Arc;

    use super::*;
    use crate::numbers::{Counts, Series, ServerCounts, ServerSeries, Span};

    /// A xorshift generator. The seed is not 0.
    pub(crate) struct Random(pub(crate) u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        /// From 0 to below 1.
        pub(crate) fn unit(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// Large means by the normal distribution.
        pub(crate) fn poisson(&mut self, mean: f64) -> u64 {
            if mean > 30.0 {
                let normal = (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (TAU * self.unit()).cos();
                return (mean + mean.sqrt() * normal + 0.5).max(0.0) as u64;
            }
            let (least, mut product, mut count) = ((-mean).exp(), self.unit(), 0);
            while product > least {
                product *= self.unit();
                count += 1;
            }
            count
        }
    }

    fn spans(of: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, Refused)> {
        of.map(|(requests, denied)| (0, Refused { denied, requests })).collect()
    }

    fn is_near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn the_median_stands_whatever_a_few_spans_were() {
        let calm = spans((0..100).map(|number| (1_000, 10 + number % 3)));
        let usual = judge(&calm, 9, false).unwrap();
        assert!(
            (0.007..0.009).contains(&usual.low) && is_near(usual.high, 0.022 / 1.011),
            "{usual:?}, twice the odds of 1.1 %"
        );
        assert_eq!((usual.days, usual.from_last_day), (9, false));
        let mut night = calm;
        night.extend(spans((0..30).map(|_| (1_000, 900))));
        let after = judge(&night, 9, false).unwrap();
        assert!(after.high < 0.03, "{after:?}");
    }

    #[test]
    fn a_little_where_nothing_is_denied_and_chance_and_few_refusals_are_no_news() {
        let usual = judge(&spans((0..100).map(|_| (1_000, 0))), 9, false).unwrap();
        assert!(is_near(usual.low, 0.0) && is_near(usual.high, 0.006), "{usual:?}");
        let news = |denied: u64, requests: u64, seconds: u64| {
            is_unusual(Refused { denied, requests }, seconds, &usual)
        };
        assert!(!news(36, 6_000, 60), "what is usual at most");
        assert!(!news(5, 500, 10), "one percent of few, by chance");
        assert!(news(100, 6_000, 60));
        assert!(!news(20, 20, 60), "a third of a refusal a second, whatever the share");
        assert!(news(40, 40, 60));
        assert!(!news(0, 0, 0) && !news(0, 0, 60));
        assert_eq!(judge(&[], 0, false), None);
        assert_eq!(judge(&spans([(0, 0)].into_iter()), 1, false), None, "no requests have no share");
    }

    /// Calls that many guess passwords with, as always, and fewer that pass at a weekend.
    #[test]
    fn a_larger_share_of_fewer_requests_is_no_news_and_more_refusals_of_more_are_none() {
        let usual =
            judge(&spans((0..100).map(|number| (900 + number % 200, 270 + number % 60))), 9, false).unwrap();
        let news = |denied: u64, passed: u64| is_news(passed, denied, &usual);
        assert!(!news(60, 30), "{usual:?}: two thirds, of a third as many");
        assert!(!news(240, 560), "four times as many");
        assert!(news(240, 140), "{usual:?}");
    }

    #[test]
    fn refusals_that_come_together_are_learned_whatever_one_night_was() {
        let of = |each: u64, bad: u64| {
            let mut random = Random(7);
            let spans: Vec<(u64, Refused)> = (0..20 * 12)
                .map(|number| {
                    let (day, span) = (number / 12, number % 12);
                    let denied = if day < bad { 500 * (span % 2) } else { each * random.poisson(8.0) };
                    (day * DAY + span * SPAN, Refused { denied, requests: 3_000 })
                })
                .collect();
            judge(&spans, 20, false).unwrap().together
        };
        assert!((1.0..1.3).contains(&of(1, 0)), "{}", of(1, 0));
        assert!((7.0..13.0).contains(&of(10, 0)), "{}", of(10, 0));
        assert!((7.0..16.0).contains(&of(10, 5)), "{}", of(10, 5));
    }

    /// What is twice as often half of the median as it is four times as much is usual up to there.
    #[test]
    fn what_multiplies_refusals_is_measured_by_its_logarithm() {
        let of = |spread: f64| {
            let share = |number: u64| 0.02 * spread.powf((number % 101) as f64 / 50.0 - 1.0);
            let all = (0..404).map(|number| (100_000, (100_000.0 * share(number)) as u64));
            judge(&spans(all), 9, false).unwrap().high
        };
        assert!(is_near(of(1.0), 0.04 / 1.02), "{}", of(1.0));
        assert!((0.1..0.3).contains(&of(2.0)), "{}", of(2.0));
    }

    /// How busy a policy is, about 1: by the hour of the day and the day of the week.
    fn busy(at: u64) -> f64 {
        let hour = (at / 3_600 % 24) as f64;
        let of_day = if at / DAY % 7 >= 5 { 0.5 } else { 1.0 };
        (1.0 + 0.9 * (hour / 24.0 * TAU).sin()) * of_day + 0.05
    }

    /// A policy with requests a second, and a denied share that grows when it is busy.
    struct Policy {
        rate: f64,
        share: f64,
        random: Random,
    }

    impl Policy {
        /// Returns how many pass and how many are denied in some seconds.
        fn see(&mut self, at: u64, seconds: f64) -> (u64, u64) {
            let busy = busy(at);
            let requests = seconds * self.rate * busy;
            let share = self.share * (0.5 + busy) * (0.7 + 0.6 * self.random.unit());
            (self.random.poisson(requests), self.random.poisson(requests * share))
        }

        /// Returns what is usual at each hour of the day after four weeks.
        fn learn(&mut self) -> Vec<Usual> {
            let seen: Vec<(u64, Refused)> = (0..DAYS * 288)
                .map(|number| {
                    let (passed, denied) = self.see(number * 300, 300.0);
                    (number * 300, Refused { denied, requests: passed + denied })
                })
                .collect();
            let of_hour = |hour: u64| {
                let spans = seen.iter().filter(|(at, _)| at / 3_600 % 24 == hour).copied();
                judge(&spans.collect::<Vec<_>>(), 28, false).unwrap()
            };
            (0..24).map(of_hour).collect()
        }
    }

    fn policies() -> impl Iterator<Item = Policy> {
        let rates = [0.5, 2.0, 8.0, 25.0, 75.0];
        let shares = [0.0, 0.004, 0.01, 0.03];
        let both = move |number: usize| (rates[number % 5], shares[number / 5]);
        (0..20).map(move |number| {
            let (rate, share) = both(number);
            Policy { rate, share, random: Random(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1)) }
        })
    }

    fn is_news(passed: u64, denied: u64, usual: &Usual) -> bool {
        is_unusual(Refused { denied, requests: passed + denied }, 60, usual)
    }

    /// Twenty policies over a week of spans of ten seconds after four weeks: 1.2 million looks.
    #[test]
    fn ten_seconds_are_seldom_clear_by_chance() {
        let mut clear = 0;
        for mut policy in policies() {
            let usual = policy.learn();
            for ten in 0..7 * 8_640 {
                let at = DAYS * DAY + ten * 10;
                let (passed, denied) = policy.see(at, 10.0);
                let refused = Refused { denied, requests: passed + denied };
                clear += u32::from(is_clear(refused, 10, &usual[(at / 3_600 % 24) as usize]));
            }
        }
        assert!(clear <= 2, "{clear} times clear in a week of twenty policies");
    }

    /// Twenty policies over a week of minutes after four weeks; then incidents in which a scraper's refused requests
    /// come on top, a quarter or a twentieth as many as there are others, but one a second at least.
    #[test]
    fn a_week_without_an_incident_raises_no_alarm() {
        let (mut false_alarms, mut planted, mut found) = (0, 0, [0, 0]);
        for mut policy in policies() {
            let usual = policy.learn();
            let mut before = false;
            for minute in 0..7 * 1_440 {
                let at = DAYS * DAY + minute * 60;
                let (passed, denied) = policy.see(at, 60.0);
                let news = is_news(passed, denied, &usual[(at / 3_600 % 24) as usize]);
                false_alarms += u32::from(news && before);
                before = news;
            }
            for hour in (0..7 * 24).step_by(8) {
                planted += 1;
                for (more, found) in [0.25, 0.05].into_iter().zip(&mut found) {
                    let at = DAYS * DAY + hour * 3_600 + 1_200;
                    let news: Vec<bool> = (0..3)
                        .map(|minute| {
                            let (passed, denied) = policy.see(at + minute * 60, 60.0);
                            let mean = (more * (passed + denied) as f64).max(60.0);
                            let refused = policy.random.poisson(mean);
                            is_news(passed, denied + refused, &usual[(at / 3_600 % 24) as usize])
                        })
                        .collect();
                    *found += u32::from(news.windows(2).any(|two| two[0] && two[1]));
                }
            }
        }
        assert!(false_alarms <= 1, "{false_alarms} false alarms in a week of twenty policies");
        // Weekends are among the days, so a busy policy's deviation is theirs too.
        assert!(found[0] * 100 >= planted * 97, "{found:?} of {planted} incidents were found");
        assert!(found[1] * 100 >= planted * 80, "{found:?} of {planted} small incidents were found");
    }

    fn minute(at: u64, allowed: u64, denied: u64) -> Span {
        let (mut server, mut counts) = (ServerCounts::default(), Counts::default());
        server.0[ServerSeries::Allowed as usize] = allowed;
        server.0[ServerSeries::Denied as usize] = denied;
        server.0[ServerSeries::Up as usize] = 60;
        counts.0[Series::Allowed as usize] = allowed;
        counts.0[Series::Denied as usize] = denied;
        Span { at, server, policies: vec![(3, counts)] }
    }

    #[test]
    fn what_is_usual_is_unknown_then_of_the_last_day_then_of_the_hour() {
        let begin = 20_000 * DAY;
        let (history, _) = History::open(None, begin);
        // Nothing is denied, but at noon a tenth.
        let see = |minutes: std::ops::Range<u64>| {
            for at in minutes.map(|minute| begin + minute * 60) {
                let denied = if at % DAY / 3_600 == 12 { 10 } else { 0 };
                history.push(&minute(at, 100 - denied, denied), &|_| Some(Arc::from("p")));
            }
        };
        let ask = |minute: u64| usual(&history, Some("p"), begin + minute * 60);
        see(0..170);
        assert_eq!(ask(170), None, "of less than three hours");
        see(170..14 * 60);
        let first = ask(14 * 60).unwrap();
        assert!(first.from_last_day && first.days == 0 && first.high < 0.01, "{first:?}");
        see(14 * 60..4 * 1_440);
        let (night, noon) = (ask(4 * 1_440 + 60).unwrap(), ask(4 * 1_440 + 12 * 60 + 30).unwrap());
        assert!(!night.from_last_day && night.days == 4 && night.high < 0.01, "{night:?}");
        assert!(is_near(noon.high, 0.2 / 1.1) && noon.days == 4, "{noon:?}");
        let server = usual(&history, None, begin + 4 * DAY + 60).unwrap();
        assert!(is_near(server.high, night.high));
        assert_eq!(usual(&history, Some("q"), begin + 4 * DAY), None);
    }
}
