//! How many connections the system lets this process hold open.
//!
//! Many systems give a process 1,024 descriptors, and let it raise that itself up to a far higher hard limit. The low
//! value protects programs that use `select`, which this one does not.

use super::places::RESERVE;

/// Descriptors for everything but connections: the listener, files, the log and the runtime's own.
const OTHERS: usize = 64;
/// Descriptors that the runtime of each door thread needs.
const PER_THREAD: usize = 4;

/// Returns how many of the `wanted` connections each of `doors` may have under the limit of descriptors; 1 or more.
/// Raises the soft limit if that helps. Accounts for the descriptors that `threads` need.
pub(crate) fn fitting(wanted: usize, doors: usize, threads: usize) -> usize {
    let (wanted, doors, others) = (wanted.max(1), doors.max(1), OTHERS + threads * PER_THREAD);
    let needed = wanted.saturating_add(RESERVE).saturating_mul(doors).saturating_add(others);
    match limit(needed) {
        Some(limit) if limit < needed => {
            let fitting = under(limit, doors, others);
            tracing::warn!(
                descriptors = limit,
                doors,
                "{wanted} connections were asked for at each door and {fitting} fit the limit of open files; raise it to {needed} \
                 (ulimit -n, LimitNOFILE)"
            );
            fitting
        }
        _ => wanted,
    }
}

/// Returns how many connections each door may have beside its reserve, under a limit of descriptors; 1 or more.
fn under(limit: usize, doors: usize, others: usize) -> usize {
    (limit.saturating_sub(others) / doors).saturating_sub(RESERVE).max(1)
}

/// Raises the soft limit towards `needed`, and returns the limit that then applies; `None` if the system has no such
/// limit.
#[cfg(unix)]
fn limit(needed: usize) -> Option<usize> {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(RLIMIT_NOFILE).ok()?;
    let needed = needed as u64;
    let raised = needed.min(hard);
    let now = if raised > soft && setrlimit(RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft };
    Some(usize::try_from(now).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn limit(_: usize) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_never_more_than_asked_for_and_never_nothing() {
        assert_eq!(fitting(0, 1, 1), 1);
        assert_eq!(fitting(10, 2, 1), 10);
        assert!(fitting(usize::MAX, 2, 1) >= 1);
    }

    #[test]
    fn all_doors_together_stay_under_the_limit() {
        for doors in [1, 2] {
            for limit in [1024, 4096, 1 << 20] {
                let together = (under(limit, doors, OTHERS) + RESERVE) * doors + OTHERS;
                assert!((limit - doors..=limit).contains(&together), "{doors} doors, {limit}: {together}");
            }
            assert_eq!(under(0, doors, OTHERS), 1);
        }
    }
}
