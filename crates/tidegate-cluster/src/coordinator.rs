//! The interface of an engine through which nodes agree, and what a node reports to it of itself.

use std::fmt::{Debug, Write as _};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tidegate_limits::store::Later;

/// A node, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name; the same after a restart if the deployment names its nodes.
    pub name: String,
    /// The number that the engine gave it when it joined; greater than that of every member before it. The member with
    /// the least number leads.
    pub joined: u64,
    /// The last report that it made about itself: its demand, and the version of each document that it follows.
    pub report: Vec<u8>,
}

impl Member {
    /// The longest name that is kept, in bytes; longer names are cut.
    const LONGEST_NAME: usize = 1024;

    /// Encodes a member for an engine: the length of its name, its name, and its report. A name of more than 1,024
    /// bytes is cut.
    #[must_use]
    pub fn encode(name: &str, report: &[u8]) -> Vec<u8> {
        let name = &name[..name.floor_char_boundary(Self::LONGEST_NAME)];
        // The cast is exact: at most LONGEST_NAME.
        let length = (name.len() as u16).to_be_bytes();
        [&length, name.as_bytes(), report].concat()
    }

    /// Decodes the bytes that [`Member::encode`] returned; `None` for bytes that are not a member.
    #[must_use]
    pub fn decode(joined: u64, bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (name, report) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        Some(Self { name: String::from_utf8(name.to_vec()).ok()?, joined, report: report.to_vec() })
    }
}

/// A small document that all nodes share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Its content; `None` if it was never written, or was deleted.
    pub bytes: Option<Vec<u8>>,
    /// The engine's number of its last write, which grows with each write (a fencing token). 0 if it was never written.
    pub version: u64,
}

/// Why a call to the engine failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The engine did not answer. It is unknown whether the call was done.
    #[error("the engine did not answer: {reason}")]
    Unavailable {
        /// What the engine or the network said, without credentials.
        reason: String,
    },
    /// The engine has forgotten this node, because it was silent for too long. Whatever the node was granted has ended;
    /// it may join again.
    #[error(
        "the engine has not heard of this node for longer than {0:?} and has forgotten it; it joins again as a new member"
    )]
    Forgotten(Duration),
    /// A document to be written is larger than the engine takes.
    #[error("`{document}` takes {bytes} bytes, and the engine takes {most} at most")]
    TooLarge {
        /// The document's name.
        document: String,
        /// Its size.
        bytes: usize,
        /// The largest size that the engine takes.
        most: usize,
    },
}

/// An engine through which nodes agree: it keeps members, which it forgets when they are silent, and small documents
/// with versions.
///
/// No call does anything before it is polled. A call that is dropped after its first poll may have been done, as after
/// [`CoordinatorError::Unavailable`].
pub trait Coordinator: Debug + Send + Sync + 'static {
    /// Returns for how long a silent member is kept.
    fn keeps(&self) -> Duration;

    /// Makes this node a member, and returns its number ([`Member::joined`]). A node that is a member already keeps its
    /// number. `report` becomes [`Member::report`].
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`] if the engine does not answer.
    fn join(&self, name: &str, report: &[u8]) -> Later<Result<u64, CoordinatorError>>;

    /// Renews this node's membership and replaces its report. Call it well within [`Coordinator::keeps`].
    ///
    /// # Errors
    /// [`CoordinatorError::Forgotten`] if it came too late, or before [`Coordinator::join`];
    /// [`CoordinatorError::Unavailable`] if the engine does not answer.
    fn renew(&self, report: &[u8]) -> Later<Result<(), CoordinatorError>>;

    /// Ends this node's membership at once. Succeeds also if the node is not a member.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`] if the engine does not answer.
    fn leave(&self) -> Later<Result<(), CoordinatorError>>;

    /// Returns all members, ordered by their numbers.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`] if the engine does not answer.
    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>>;

    /// Reads a document, at least as new as when this node last joined or renewed: a node that renews and then reads
    /// has seen everything that was written before it renewed.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`] if the engine does not answer.
    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>>;

    /// Writes a document if it still has the given version, and returns its new version; `None` if another node has
    /// written it.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`], after which it may or may not have been written;
    /// [`CoordinatorError::TooLarge`].
    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>>;

    /// Waits until a document has another version than `seen`, and returns it; returns at once if it has one already.
    /// Intermediate changes may be skipped, but the last one never is.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`], also when the connection breaks while it waits.
    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>>;
}

/// The longest reason of a refusal that is reported, in bytes; the rest is cut.
const LONGEST_REFUSAL: usize = 400;

/// The report of a member about itself ([`Member::report`]), as text, so that an engine's own tools can show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// The region whose part of the shares it uses together with all other members there; empty: it has a part of its
    /// own.
    pub(crate) region: String,
    /// How many thousandths of a unit it is asked for each second, allowed or not.
    pub(crate) demand: u64,
    /// The line of the shares that it follows ([`shares`](super::shares)); 0 before the first.
    pub(crate) line: u64,
    /// The turn of the shares that it follows; 0 before the first.
    pub(crate) turn: u64,
    /// The version of the policies that it follows; 0 for those that it started with.
    pub policies: u64,
    /// The version of the policies that it refuses, and why; version 0 is a document in an unknown form.
    pub refused: Option<(u64, String)>,
}

impl MemberReport {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "demand {}.{:03}\nline {}\nturn {}\npolicies {}\n",
            self.demand / 1000,
            self.demand % 1000,
            self.line,
            self.turn,
            self.policies
        );
        if !self.region.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "region {}", self.region.replace(['\n', '\r'], " "));
        }
        if let Some((version, why)) = &self.refused {
            let why = why[..why.floor_char_boundary(LONGEST_REFUSAL)].replace(['\n', '\r'], " ");
            let _ = writeln!(text, "refused {version} {why}");
        }
        text.into_bytes()
    }

    /// Reads a report. Unknown words are ignored, and invalid values count as absent: members of another version
    /// report more or less.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut report = Self::default();
        for text in String::from_utf8_lossy(bytes).lines() {
            let Some((word, value)) = text.split_once(' ') else { continue };
            let number = || value.parse().unwrap_or(0);
            match word {
                "demand" => report.demand = thousandths(value).unwrap_or(0),
                "line" => report.line = number(),
                "turn" => report.turn = number(),
                "region" => report.region = value.to_owned(),
                "policies" => report.policies = number(),
                "refused" => {
                    let (version, why) = value.split_once(' ').unwrap_or((value, ""));
                    report.refused = version.parse().ok().map(|version| (version, why.to_owned()));
                }
                _ => {}
            }
        }
        report
    }
}

/// Parses a number with up to three decimals, in thousandths; a number that is too large gives the largest one.
fn thousandths(text: &str) -> Option<u64> {
    let (units, rest) = text.split_once('.').unwrap_or((text, "0"));
    let scale = 10u64.pow(3u32.checked_sub(u32::try_from(rest.len()).ok()?)?);
    Some(units.parse::<u64>().ok()?.saturating_mul(1000).saturating_add(rest.parse::<u64>().ok()? * scale))
}

/// This node's report about itself, to which several tasks add. Clones share one report.
#[derive(Clone, Debug, Default)]
pub struct OwnReport {
    shared: Arc<PublishedReport>,
}

#[derive(Debug, Default)]
struct PublishedReport {
    report: Mutex<MemberReport>,
    /// Whether there is a change that should not wait for the next round.
    urgent: AtomicBool,
    waker: AtomicWaker,
}

impl OwnReport {
    /// Returns the present report.
    #[must_use]
    pub fn now(&self) -> MemberReport {
        self.shared.report.lock().clone()
    }

    /// Changes the report, which is sent in the next round.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut MemberReport) -> R) -> R {
        change(&mut self.shared.report.lock())
    }

    /// Changes the report, and has it sent at once.
    pub(super) fn update(&self, change: impl FnOnce(&mut MemberReport)) {
        self.with(change);
        // Release here, Acquire in `urgent_change`: the task that is woken sees the change.
        self.shared.urgent.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Waits until there is a change that should be sent at once. Only one task may wait at a time.
    pub(super) async fn urgent_change(&self) {
        poll_fn(|cx| {
            self.shared.waker.register(cx.waker());
            if self.shared.urgent.swap(false, Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_read_as_it_was_written_and_anything_else_is_none() {
        for (name, report) in [("node-1", &b"says"[..]), ("", b""), ("\u{e9}", &[0, 255])] {
            let member = Member { name: name.to_owned(), joined: 7, report: report.to_vec() };
            assert_eq!(Member::decode(7, &Member::encode(name, report)), Some(member));
        }
        let long = "\u{e9}".repeat(Member::LONGEST_NAME);
        let cut = Member::decode(1, &Member::encode(&long, b"x")).unwrap();
        assert_eq!((cut.name.len(), &*cut.report), (Member::LONGEST_NAME, &b"x"[..]));
        for other in [&b""[..], b"\0", b"\0\x05abcd", b"\0\x02\xff\xff"] {
            assert_eq!(Member::decode(1, other), None);
        }
    }

    #[test]
    fn what_is_said_is_read_and_what_is_not_known_is_passed_over() {
        let refused = Some((9, "line 3: no such key".to_owned()));
        let report = MemberReport {
            region: "eu west".to_owned(),
            demand: 7,
            line: 5,
            turn: u64::MAX,
            policies: 3,
            refused,
        };
        assert_eq!(MemberReport::decode(&report.encode()), report);
        assert_eq!(MemberReport::decode(&MemberReport::default().encode()), MemberReport::default());
        let others = b"mood good\nturn x\ndemand 5\nrefused\n\xff\nrefused z y\n";
        assert_eq!(MemberReport::decode(others), MemberReport { demand: 5_000, ..MemberReport::default() });
        for (text, demand) in
            [("0.5", 500), ("7.25", 7_250), ("1.0005", 0), ("1.", 0), ("x.1", 0), ("1.-1", 0)]
        {
            assert_eq!(MemberReport::decode(format!("demand {text}").as_bytes()).demand, demand, "{text}");
        }
        let most = MemberReport { demand: u64::MAX, ..MemberReport::default() };
        assert_eq!(MemberReport::decode(&most.encode()), most);
        let long = MemberReport { refused: Some((1, "\u{e9}\n".repeat(1000))), ..MemberReport::default() };
        let told = MemberReport::decode(&long.encode()).refused.unwrap().1;
        assert!(told.len() <= LONGEST_REFUSAL && !told.contains('\n'));
    }
}
