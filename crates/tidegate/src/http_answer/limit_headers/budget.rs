//! Which limits an answer's headers show when there is no room for all.
//!
//! A proxy reads our head into one buffer, of 4 KiB in nginx unless its manual's setting says otherwise, and a head that does not fit
//! it is an error to every caller. So the lists of limits take at most [`BUDGET`] bytes together, which leaves half of that buffer for
//! the status, the headers of fixed size and the proxy's own. Where all fit they stand in the order of the policies. Where they do not,
//! the most binding come first: the one that binds, which is always there, then those that refuse, then by the share that is left.

use std::borrow::Cow;
use std::cmp::Reverse;

use smallvec::SmallVec;

use super::super::shown::{ShownLimit, ShownLimits};

/// Bytes of the lists of limits, in all headers of one answer.
const BUDGET: usize = 2048;
/// The longest name that is shown whole, in bytes; of a longer one the start, and two dots.
const NAME: usize = 128;
/// Bytes of the unit of a limit that counts requests in flight.
const UNIT: usize = 25;

/// The limits to show, and how many were left out.
#[derive(Debug)]
pub(super) struct Fitting<'p, 'a> {
    pub(super) limits: SmallVec<[&'p ShownLimit<'a>; 4]>,
    pub(super) left_out: usize,
}

/// Chooses what fits when each limit's name stands in `lists` headers.
pub(super) fn fitting<'p, 'a>(shown: &'p ShownLimits<'a>, lists: usize) -> Fitting<'p, 'a> {
    let mut limits: SmallVec<[&ShownLimit<'_>; 4]> = shown.limits.iter().collect();
    let sizes = |limits: &[&ShownLimit<'_>]| limits.iter().map(|limit| size(limit, lists)).sum::<usize>();
    // So few always fit, whatever their names and numbers are.
    if limits.len() <= BUDGET / largest(lists) || sizes(&limits) <= BUDGET {
        return Fitting { limits, left_out: 0 };
    }
    let binding = shown.binding.and_then(|at| shown.limits.get(at));
    limits.sort_by_cached_key(|limit| {
        let binds = binding.is_some_and(|binding| std::ptr::eq(*limit, binding));
        let share = (u128::from(limit.remaining) << 64) / u128::from(limit.quota.max(1));
        (Reverse(binds), Reverse(limit.refused), share)
    });
    let mut used = 0;
    let fit = limits.iter().take_while(|limit| {
        used += size(limit, lists);
        used <= BUDGET
    });
    // One always fits: a name is cut to far less than the budget.
    let fit = fit.count();
    let left_out = limits.len() - fit;
    limits.truncate(fit);
    Fitting { limits, left_out }
}

/// The most bytes that any limit takes, separators included: a name of which each byte is escaped, and four numbers of twenty digits.
const fn largest(lists: usize) -> usize {
    lists * (2 * NAME + 9) + 4 * (3 + 20) + UNIT
}

/// The most bytes that a limit takes, separators included.
fn size(limit: &ShownLimit<'_>, lists: usize) -> usize {
    let digits = |number: u64| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let name = shown_name(limit.name);
    let escaped = name.len() + name.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    // `, "name"` or `;name="name"`; then `;q=`, `;r=`, `;w=` and `;t=` with their numbers, and the unit.
    lists * (escaped + 9)
        + [Some(limit.quota), Some(limit.remaining), limit.window, limit.wait]
            .into_iter()
            .flatten()
            .map(|number| 3 + digits(number))
            .sum::<usize>()
        + if limit.concurrent { UNIT } else { 0 }
}

/// A name as headers show it. Strings of structured fields are printable ASCII; anything else becomes a question mark.
pub(super) fn shown_name(name: &str) -> Cow<'_, str> {
    let plain = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
    if name.len() <= NAME && name.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        return Cow::Borrowed(name);
    }
    let mut cut: String = name.chars().take(NAME).map(plain).collect();
    if name.chars().nth(NAME).is_some() {
        cut.truncate(NAME - 2);
        cut.push_str("..");
    }
    Cow::Owned(cut)
}
