//! Selects the limits that the headers of an answer show if there is no room for all.
//!
//! A proxy reads the head of the server's answer into one buffer, of 4 KiB in nginx by default, and turns a head that
//! does not fit into an error for the caller. So the lists of limits take at most [`BUDGET`] bytes in total, which
//! leaves half of that buffer for the status, the headers of fixed size and the proxy's own. If all limits fit, they
//! are in the order of the policies. If not, the most binding come first: the one that binds, which is always shown,
//! then those that refuse, then those with the smallest share left.

use std::borrow::Cow;
use std::cmp::Reverse;

use smallvec::SmallVec;

use super::super::shown_limits::{ShownLimit, ShownLimits};

/// The most bytes of the lists of limits, in all headers of one answer.
pub(super) const BUDGET: usize = 2048;
/// The longest name that is shown in full, in bytes; a longer one is cut and ends in two dots.
const NAME: usize = 128;
/// The bytes of the unit parameter of a limit that counts requests in flight.
const UNIT: usize = 25;

/// The limits to show, and the number of limits left out.
#[derive(Debug)]
pub(super) struct Fitting<'p, 'a> {
    pub(super) limits: SmallVec<[&'p ShownLimit<'a>; 4]>,
    pub(super) left_out: usize,
}

/// Selects the limits that fit if each limit's name appears in `lists` headers.
pub(super) fn fitting<'p, 'a>(shown: &'p ShownLimits<'a>, lists: usize) -> Fitting<'p, 'a> {
    let mut limits: SmallVec<[&ShownLimit<'_>; 4]> = shown.limits.iter().collect();
    let sizes = |limits: &[&ShownLimit<'_>]| limits.iter().map(|limit| size(limit, lists)).sum::<usize>();
    // This few limits always fit, whatever their names and numbers.
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
    // At least one always fits, since names are cut to far less than the budget.
    let fit = fit.count();
    let left_out = limits.len() - fit;
    limits.truncate(fit);
    Fitting { limits, left_out }
}

/// The most bytes that any limit can take, with separators: a name in which each byte is escaped, and four numbers of
/// twenty digits.
const fn largest(lists: usize) -> usize {
    lists * (2 * NAME + 9) + 4 * (3 + 20) + UNIT
}

/// Returns an upper bound of the bytes that a limit takes, with separators.
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

/// Returns a name as shown in headers. Strings of structured fields are printable ASCII; any other character becomes a
/// question mark.
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
