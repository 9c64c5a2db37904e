//! Headers that tell the next hop that a request is over a limit but passes (`over: mark` and `over: demote`).
//!
//! # Examples
//! ```
//! use http::HeaderMap;
//! use tidegate::clock::ManualClock;
//! use tidegate::http_answer::over;
//! use tidegate::policy::{Descriptor, Limit, Over, Policy, PolicySet};
//! use tidegate::{Gate, Quota};
//!
//! let mut soft = Policy::new("per user", Limit::new(Quota::per_minute(1).gcra()?, "1/min"));
//! soft.over = Over::Mark;
//! let gate = Gate::in_memory(PolicySet::new(vec![soft])?, 1000)?.with_clock(ManualClock::default());
//! let request = Descriptor::new();
//! let mut headers = HeaderMap::new();
//! over::replace(&gate.check(&request).now()?, &mut headers);
//! assert!(headers.is_empty(), "within its limits");
//! over::replace(&gate.check(&request).now()?, &mut headers);
//! assert_eq!(headers[over::MARKED], "per%20user");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use http::header::{HeaderMap, HeaderName};
use percent_encoding::percent_encode_byte;
use smallvec::SmallVec;

use super::limit_headers::insert;
use crate::gate::GateDecision;
use crate::policy::Over;
use tidegate_limits::Priority;
use tidegate_limits::priority::header::TIDEGATE_PRIORITY;

/// The header with the names of the policies whose limits the request is over and that only mark it.
pub const MARKED: HeaderName = HeaderName::from_static("x-tidegate-marked");
/// The header with the names of the policies that lowered the priority.
pub const DEMOTED: HeaderName = HeaderName::from_static("x-tidegate-demoted");
/// The header with the lowered priority, in the text form of [`Priority`]; only together with [`DEMOTED`]. [`Headers`]
/// can have another name for it.
pub const PRIORITY: HeaderName = HeaderName::from_static(TIDEGATE_PRIORITY);
/// The most bytes of a list of names, so that the whole head of an answer fits nginx's buffer of 4 KiB. Names that do
/// not fit are omitted.
const LONGEST: usize = 256;

/// The names of the headers: the constants of this module, except that the header for the priority can be renamed to
/// one that the services of a company agree on. The free functions of this module use the default names.
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
    /// Sets the name of the header for the lowered priority; by default [`PRIORITY`].
    #[must_use]
    pub fn priority_in(self, name: HeaderName) -> Self {
        Self { priority: name }
    }

    /// Writes which policies let a request pass over their limits. Names are percent-escaped and separated by commas; each
    /// list has at most 256 bytes. Existing headers of these names are replaced if there is something to write.
    pub fn write(&self, decision: &GateDecision, out: &mut HeaderMap) {
        self.write_all([decision], out);
    }

    /// Like [`Headers::write`], for one request about which several decisions were made. Writes the policies of all of
    /// them, each once, and of their lowered priorities the lowest.
    pub fn write_all<'d>(&self, decisions: impl IntoIterator<Item = &'d GateDecision>, out: &mut HeaderMap) {
        let (mut marked, mut demoted) = (Names::default(), Names::default());
        let mut lowest: Option<Priority> = None;
        for decision in decisions {
            for (name, over) in decision.over() {
                if matches!(over, Over::Demote { .. }) {
                    demoted.push(name);
                    let priority = decision.priority;
                    lowest = Some(lowest.map_or(priority, |before| before.min(priority)));
                } else {
                    marked.push(name);
                }
            }
        }
        if !marked.text.is_empty() {
            insert(out, MARKED, marked.text);
        }
        if let Some(priority) = lowest {
            insert(out, self.priority.clone(), priority.to_string());
            insert(out, DEMOTED, demoted.text);
        }
    }

    /// Like [`replace`], with these names.
    pub fn replace(&self, decision: &GateDecision, headers: &mut HeaderMap) {
        if decision.policies.lets_through() {
            self.remove(headers);
            self.write(decision, headers);
        }
    }

    /// Like [`remove`], with these names.
    pub fn remove(&self, headers: &mut HeaderMap) {
        for name in [&MARKED, &DEMOTED, &self.priority] {
            headers.remove(name);
        }
    }
}

/// A list of names of policies, each once.
#[derive(Default)]
struct Names<'d> {
    seen: SmallVec<[&'d str; 4]>,
    /// The value of the header: percent-escaped and separated by commas.
    text: String,
}

impl<'d> Names<'d> {
    /// Adds a name. Omits it if it is in the list or does not fit; only the first name is cut instead.
    fn push(&mut self, name: &'d str) {
        if self.seen.contains(&name) {
            return;
        }
        self.seen.push(name);
        let before = self.text.len();
        if before > 0 {
            self.text.push_str(", ");
        }
        let fits = push_escaped(name, LONGEST.saturating_sub(self.text.len()), &mut self.text);
        if !fits && before > 0 {
            self.text.truncate(before);
        }
    }
}

/// Writes the headers into a request that is forwarded, in place of what its caller sent. If no policy of the
/// decision's set marks or demotes, existing headers stay: a proxy in front may have written them.
pub fn replace(decision: &GateDecision, headers: &mut HeaderMap) {
    Headers::default().replace(decision, headers);
}

/// Removes the headers. For requests that no gate decides about, since their callers may have sent these headers.
pub fn remove(headers: &mut HeaderMap) {
    Headers::default().remove(headers);
}

#[doc(hidden)]
/// Appends a percent-escaped name, which is safe inside quotes of any language; cut after `most` bytes, between
/// escapes. Returns whether the name was appended completely.
pub fn push_escaped(name: &str, most: usize, out: &mut String) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    // Most names need no escapes.
    if name.len() <= most && name.bytes().all(is_plain) {
        out.push_str(name);
        return true;
    }
    let end = out.len().saturating_add(most);
    for byte in name.bytes() {
        let before = out.len();
        if is_plain(byte) {
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
