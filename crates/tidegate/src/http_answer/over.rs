//! What the next hop is told, in headers of the request, where the request passes over a limit (`over: mark` and `over: demote`).
//!
//! # Examples
//! ```
//! use http::HeaderMap;
//! use tidegate::http_answer::over;
//! use tidegate::policy::{Limit, Over};
//! use tidegate::{Descriptor, Gate, ManualClock, Policy, PolicySet, Quota};
//!
//! let mut soft = Policy::new("per user", Limit::new(Quota::per_minute(1).gcra()?, "1/min"));
//! soft.over = Over::Mark;
//! let gate = Gate::in_memory(PolicySet::new(vec![soft])?, 1000)?.with_clock(ManualClock::default());
//! let request = Descriptor::new();
//! let mut headers = HeaderMap::new();
//! over::replace(&gate.check(&request)?, &mut headers);
//! assert!(headers.is_empty(), "within its limits");
//! over::replace(&gate.check(&request)?, &mut headers);
//! assert_eq!(headers[over::MARKED], "per%20user");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use http::header::{HeaderMap, HeaderName};
use percent_encoding::percent_encode_byte;

use super::limit_headers::insert;
use crate::gate::GateDecision;
use crate::policy::Over;
use crate::priority::header::TIDEGATE_PRIORITY;

/// The names of policies whose limits it is over, and which only mark it.
pub const MARKED: HeaderName = HeaderName::from_static("x-tidegate-marked");
/// The names of policies that lowered its priority.
pub const DEMOTED: HeaderName = HeaderName::from_static("x-tidegate-demoted");
/// The priority that is left, as a [`Priority`](crate::Priority) is written; only beside [`DEMOTED`]. [`Headers`] may have another name for it.
pub const PRIORITY: HeaderName = HeaderName::from_static(TIDEGATE_PRIORITY);
/// The most bytes of a list of names: the whole head of an answer has to fit the 4 KiB that nginx reads it into. What does not fit is left out.
const LONGEST: usize = 256;

/// The names of the headers: those of the constants of this module, but for the priority's, which services of one company may have agreed on
/// another name for. The free functions of this module go by the default.
///
/// # Examples
/// ```
/// use http::HeaderName;
/// use tidegate::http_answer::over::{Headers, PRIORITY};
///
/// assert_eq!(*Headers::default().priority(), PRIORITY);
/// let headers = Headers::default().priority_in(HeaderName::from_static("x-request-priority"));
/// assert_eq!(*headers.priority(), "x-request-priority");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    priority: HeaderName,
}

impl Default for Headers {
    fn default() -> Self {
        Self { priority: PRIORITY }
    }
}

impl Headers {
    /// Chooses the header of the priority that is left; [`PRIORITY`] unless chosen.
    #[must_use]
    pub fn priority_in(self, name: HeaderName) -> Self {
        Self { priority: name }
    }

    /// Returns the name of the header of the priority that is left.
    #[must_use]
    pub const fn priority(&self) -> &HeaderName {
        &self.priority
    }

    /// Does as [`write()`] does, under these names.
    pub fn write(&self, decision: &GateDecision, out: &mut HeaderMap) {
        let (mut marked, mut demoted) = (String::new(), String::new());
        for (name, over) in decision.over() {
            let names = if matches!(over, Over::Demote { .. }) { &mut demoted } else { &mut marked };
            let before = names.len();
            if !names.is_empty() {
                names.push_str(", ");
            }
            if !push_escaped(name, LONGEST - names.len().min(LONGEST), names) && before > 0 {
                names.truncate(before);
            }
        }
        if !marked.is_empty() {
            insert(out, MARKED, marked);
        }
        if !demoted.is_empty() {
            insert(out, self.priority.clone(), decision.priority.to_string());
            insert(out, DEMOTED, demoted);
        }
    }

    /// Does as [`replace`] does, under these names.
    pub fn replace(&self, decision: &GateDecision, headers: &mut HeaderMap) {
        if decision.policies.lets_through() {
            self.remove(headers);
            self.write(decision, headers);
        }
    }

    /// Does as [`remove`] does, under these names.
    pub fn remove(&self, headers: &mut HeaderMap) {
        for name in [&MARKED, &DEMOTED, &self.priority] {
            headers.remove(name);
        }
    }
}

/// Writes which policies let a request through over their limit: names escaped as in a path and separated by commas, at most 256 bytes of each
/// list. Headers of these names are replaced where there is something to write.
pub fn write(decision: &GateDecision, out: &mut HeaderMap) {
    Headers::default().write(decision, out);
}

/// Writes them into the headers of a request that goes on, in place of what its caller sent. Where no policy of the decision marks or demotes,
/// the headers stay: a proxy in front may have written them.
pub fn replace(decision: &GateDecision, headers: &mut HeaderMap) {
    Headers::default().replace(decision, headers);
}

/// Removes them: where nobody decides about a request whose caller may have sent them.
pub fn remove(headers: &mut HeaderMap) {
    Headers::default().remove(headers);
}

#[doc(hidden)]
/// Appends a name escaped as in a path, so that it may stand between quotes of any language; cut after `most` bytes, between letters. Says
/// whether it is whole.
pub fn push_escaped(name: &str, most: usize, out: &mut String) -> bool {
    let end = out.len().saturating_add(most);
    for byte in name.bytes() {
        let before = out.len();
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(percent_encode_byte(byte));
        }
        if out.len() > end {
            out.truncate(before);
            return false;
        }
    }
    true
}
