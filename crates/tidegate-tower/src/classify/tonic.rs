//! Judges the statuses that tonic's clients return.

use tidegate::Outcome;
use tidegate::retries::Verdict;
use tonic::{Code, Status};

use super::{of_code, retry_after};

/// Judges the result of a call of a tonic client, for a [`Retrier`](tidegate::retries::Retrier) or a breaker around it: by
/// the status code as [`ByStatus`](crate::classify::ByStatus) does, and by the wait in the status's metadata ([`retry_after`]).
///
/// A status that tonic makes itself because the call could not be sent is `UNAVAILABLE`, which is overload, or `UNKNOWN`, which
/// is a failure.
///
/// # Examples
/// ```
/// use tidegate::Outcome;
/// use tidegate_tower::classify::judge_status;
/// use tonic::Status;
///
/// assert_eq!(judge_status(&Ok(())).outcome, Outcome::Success);
/// assert_eq!(judge_status(&Err::<(), _>(Status::not_found("no such order"))).outcome, Outcome::CallersFault);
/// assert_eq!(judge_status(&Err::<(), _>(Status::unavailable("later"))).outcome, Outcome::Overloaded);
/// ```
#[must_use]
pub fn judge_status<T>(result: &Result<T, Status>) -> Verdict {
    let Err(status) = result else { return Outcome::Success.into() };
    let code = match status.code() {
        // A failed call that says OK is not one that went well.
        Code::Ok => Code::Unknown,
        code => code,
    };
    // Codes are 0 to 16.
    let outcome = of_code(code as u64);
    Verdict { outcome, pushback: retry_after(status.metadata().as_ref()) }
}
