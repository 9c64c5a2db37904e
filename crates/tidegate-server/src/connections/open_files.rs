//! How many connections the system lets the process hold.
//!
//! Many systems give a process 1,024 descriptors and let it raise that itself, up to a hard limit that is far higher. The
//! low value is for programs that use `select`, which this one does not.

use super::places::RESERVE;

/// Descriptors for all that is no connection: the listener, files, the log, the runtime's own.
const OTHERS: usize = 64;

/// Returns how many of the wanted connections fit under the limit of descriptors, which is raised if that helps; 1 or more.
pub(crate) fn fitting(wanted: usize) -> usize {
    let wanted = wanted.max(1);
    let needed = wanted.saturating_add(RESERVE + OTHERS);
    match limit(needed) {
        Some(limit) if limit < needed => {
            let fitting = limit.saturating_sub(RESERVE + OTHERS).max(1);
            tracing::warn!(
                descriptors = limit,
                "{wanted} connections were asked for and {fitting} fit the limit of open files; raise it to {needed} \
                 (ulimit -n, LimitNOFILE)"
            );
            fitting
        }
        _ => wanted,
    }
}

/// Raises the soft limit towards what is needed, and returns what it is then; `None` where there is no such limit.
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
        assert_eq!(fitting(0), 1);
        assert_eq!(fitting(10), 10);
        assert!(fitting(usize::MAX) >= 1);
    }
}
