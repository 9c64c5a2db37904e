//! Recognises rates in the form of other systems: `10r/s`, `10rps`, `0.5/s`, `300-M`, `10M/min`, `5/mo`.
//!
//! Such a rate is refused, so that files have one form for rates; the error shows the same rate in that form.

use std::borrow::Cow;

use super::{Unit, WrittenRate, counted_unit, plain_number};

/// Words for the things counted, before the slash or the `p` of "per".
const THINGS: [&str; 11] =
    ["r", "q", "t", "req", "reqs", "request", "requests", "hit", "hits", "query", "queries"];

/// The last letters of `rps`, `rpm`, `rph` and `rpd`.
const PER: [(char, Unit); 4] =
    [('s', Unit::Second), ('m', Unit::Minute), ('h', Unit::Hour), ('d', Unit::Day)];

/// Words before the slash that multiply the count: thousands and millions, of bytes too.
const TIMES: [(&str, u64); 6] = [
    ("k", 1000),
    ("kb", 1000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
];

/// Words for a period that are no units here.
const PERIODS: [(&str, Unit); 5] = [
    ("mo", Unit::Month),
    ("mon", Unit::Month),
    ("mth", Unit::Month),
    ("hourly", Unit::Hour),
    ("daily", Unit::Day),
];

/// The most decimals of a count that are converted to a whole count: more than anybody types.
const DECIMALS: usize = 9;

/// Returns the rate in the form that is accepted; `None` if it is unclear which rate was meant. The text comes from a
/// file and may have any length and any characters.
pub(super) fn meant(text: &str) -> Option<WrittenRate> {
    let text = text.trim();
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '_' | ',')).unwrap_or(text.len());
    let (count, rest) = text.split_at(end);
    let count = &*without_commas(count)?;
    let mut factor = 1;
    let (mut times, unit) = match rest.split_once('/').or_else(|| rest.split_once(" per ")) {
        Some((thing, period)) => {
            let word = thing.trim();
            if !is_thing(thing) {
                // `10m/s` could be anything.
                let fits = |(name, _): &&(&str, u64)| word != "m" && name.eq_ignore_ascii_case(word);
                factor = TIMES.iter().find(fits)?.1;
            }
            let period = period.trim();
            let named = PERIODS.iter().find(|(name, _)| period.eq_ignore_ascii_case(name));
            named.map_or_else(|| counted_unit(period).ok(), |(_, unit)| Some((1, *unit)))?
        }
        None if rest.starts_with('-') => {
            let (_, unit) =
                PER.iter().find(|(letter, _)| rest[1..].trim().to_ascii_lowercase().chars().eq([*letter]))?;
            (1, *unit)
        }
        None => {
            let rest = rest.to_ascii_lowercase();
            let (thing, per) = rest.trim().rsplit_once('p')?;
            let (_, unit) = PER.iter().find(|(letter, _)| per.chars().eq([*letter]))?;
            (!thing.is_empty() && is_thing(thing)).then_some((1, *unit))?
        }
    };
    let count = match count.split_once('.') {
        None => plain_number(count).ok()?,
        Some((whole, decimals)) => {
            let is_plain = decimals.bytes().all(|byte| byte.is_ascii_digit());
            if !is_plain || decimals.is_empty() || decimals.len() > DECIMALS {
                return None;
            }
            let parts = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
            let whole = if whole.is_empty() { 0 } else { plain_number(whole).ok()? };
            let count = whole.checked_mul(parts)?.checked_add(decimals.parse().ok()?)?;
            // 0.5 per second is 5 per 10 s, reduced to 1 per 2 s: the burst is the count unless it is given.
            let shared = greatest_divisor(count, parts);
            times = times.checked_mul(parts / shared)?;
            count / shared
        }
    };
    let written = WrittenRate::Per { count: count.checked_mul(factor)?, times, unit };
    // Only a rate that the parser accepts is proposed.
    (written.to_string().parse() == Ok(written)).then_some(written)
}

/// Returns a count without the commas between its thousands; `None` if a comma stands elsewhere.
fn without_commas(count: &str) -> Option<Cow<'_, str>> {
    let Some((first, groups)) = count.split_once(',') else { return Some(Cow::Borrowed(count)) };
    let is_grouped = (1..=3).contains(&first.len()) && groups.split(',').all(|group| group.len() == 3);
    is_grouped.then(|| Cow::Owned(count.replace(',', "")))
}

fn is_thing(text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    text.is_empty() || THINGS.contains(&text.as_str())
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
