//! Distributes one policy file to all nodes: it is put once and followed by each node, and an earlier version can be
//! restored.
//!
//! The file's bytes are a document, with a version of their own: 1, 2, 3. Each node [follows](follow) it. A node
//! refuses a version that it cannot apply and keeps its present policies; it [reports](super::MemberReport::refused)
//! the version and the reason, which [`nodes`] shows. So a mistake in a file stops no node, and it shows if only some
//! nodes understand a file.
//!
//! [`put`] keeps the last sixteen versions that were in force before. [`rollback`] puts one of them again, as a new
//! version.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::{Coordinator, CoordinatorError, MemberReport, OwnReport};
use tidegate_limits::clock::Clock;

/// The name of the document.
pub const NAME: &str = "policies";

/// The number of versions that are kept besides the one in force.
const KEPT: u64 = 16;

/// The first lines of the document: its type, its format, and the version.
const HEAD: &str = "tidegate-policies 1\nversion ";

/// The pause after a failure before the engine is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The engine is asked anew after this time without an answer: a connection that was cut off silently reports nothing.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// The reason with which a node refuses a document in another form.
pub const UNREADABLE: &str = "it was not put by this program, nor by one like it";

/// A policy file at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// 1, 2, 3: each is one more than the one before, also after the document was removed from the engine.
    pub version: u64,
    /// The file.
    pub bytes: Vec<u8>,
}

/// The policies that a node follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// The node's name.
    pub node: String,
    /// The version it follows; 0 for the policies that it started with.
    pub follows: u64,
    /// The version it refuses, and why; version 0 is a document in an unknown form.
    pub refused: Option<(u64, String)>,
}

/// Why policies were not put.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The engine could not be asked, or does not accept them.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// Another version was put in the meantime.
    #[error("version {found} is in force, and not {expected}; look at it, and put yours again")]
    Changed {
        /// The version that was to be replaced.
        expected: u64,
        /// The version in force.
        found: u64,
    },
    /// The version is not among those kept.
    #[error("version {version} is not kept; kept are {}", numbers(.kept))]
    NoVersion {
        /// The version that was asked for.
        version: u64,
        /// The versions that are kept, ascending.
        kept: Vec<u64>,
    },
    /// The document is in a form that this program does not know.
    #[error("`{0}` in the engine was not written by Tidegate; remove it from the engine")]
    Foreign(String),
}

fn numbers(kept: &[u64]) -> String {
    if kept.is_empty() {
        return "none".to_owned();
    }
    kept.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

impl Version {
    fn encode(&self) -> Vec<u8> {
        [format!("{HEAD}{}\n", self.version).as_bytes(), &self.bytes].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(HEAD.as_bytes())?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let version = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        Some(Self { version, bytes: rest[end + 1..].to_vec() })
    }
}

/// Returns the name of the document that keeps a version.
fn document_name(version: u64) -> String {
    format!("{NAME}-{}", version % KEPT)
}

async fn read(coordinator: &dyn Coordinator, name: &str) -> Result<(Option<Version>, u64), PutError> {
    let document = coordinator.read(name).await?;
    match document.bytes {
        None => Ok((None, document.version)),
        Some(bytes) => match Version::decode(&bytes) {
            Some(version) => Ok((Some(version), document.version)),
            None => Err(PutError::Foreign(name.to_owned())),
        },
    }
}

/// Returns the policies in force; `None` where none were ever put.
///
/// # Errors
/// [`PutError::Coordinator`] if the engine does not answer; [`PutError::Foreign`] for a document in an unknown form.
///
/// # Cancel safety
/// If dropped, nothing has changed.
pub async fn current(coordinator: &dyn Coordinator) -> Result<Option<Version>, PutError> {
    Ok(read(coordinator, NAME).await?.0)
}

/// Puts policies in force on every node, and returns their version. `expected` is the version that they must replace,
/// 0 for none; `None` replaces any version. The bytes are not checked here: the caller should, and each node checks
/// them again.
///
/// # Errors
/// [`PutError`]. After [`CoordinatorError::Unavailable`] the policies may or may not be in force.
///
/// # Cancel safety
/// If dropped, the policies may or may not be in force.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// use tidegate::clock::ManualClock;
/// use tidegate::cluster::{LocalCluster, policies};
///
/// # futures_util::FutureExt::now_or_never(async {
/// let node = LocalCluster::new(ManualClock::default(), Duration::from_secs(10)).node();
/// assert_eq!(policies::put(&*node, b"policies: []".to_vec(), None).await?, 1);
/// assert_eq!(policies::put(&*node, b"policies: [".to_vec(), Some(1)).await?, 2);
/// assert_eq!(policies::rollback(&*node, 1).await?, 3);
/// assert_eq!(policies::current(&*node).await?.unwrap().bytes, b"policies: []");
/// # Ok::<(), policies::PutError>(())
/// # }).expect("it has nothing to wait for")?;
/// # Ok::<(), policies::PutError>(())
/// ```
pub async fn put(
    coordinator: &dyn Coordinator,
    bytes: Vec<u8>,
    expected: Option<u64>,
) -> Result<u64, PutError> {
    let (held, at) = read(coordinator, NAME).await?;
    let found = held.as_ref().map_or(0, |held| held.version);
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        return Err(PutError::Changed { expected, found });
    }
    if let Some(held) = held {
        // The version in force is kept first: so every kept version was in force, even if others put versions at the
        // same time.
        keep(coordinator, &held).await?;
    }
    // If the document was removed, numbering continues above the kept versions, because an older number would not
    // replace a kept version.
    let last = match found {
        0 => history(coordinator).await?.last().map_or(0, |kept| kept.version),
        found => found,
    };
    let next = Version { version: last.saturating_add(1), bytes };
    match coordinator.replace(NAME, at, next.encode()).await? {
        Some(_) => Ok(next.version),
        None => {
            let now = current(coordinator).await?.map_or(0, |held| held.version);
            Err(PutError::Changed { expected: found, found: now })
        }
    }
}

/// Keeps a version that is in force.
async fn keep(coordinator: &dyn Coordinator, version: &Version) -> Result<(), PutError> {
    let name = document_name(version.version);
    let document = coordinator.read(&name).await?;
    let held = document.bytes.as_deref().and_then(Version::decode);
    if held.is_some_and(|held| held.version >= version.version) {
        return Ok(());
    }
    // If another node has written it meanwhile, it wrote the same.
    coordinator.replace(&name, document.version, version.encode()).await?;
    Ok(())
}

/// Returns the versions that are kept and were in force before the present one, ascending.
///
/// # Errors
/// [`PutError::Coordinator`] if the engine does not answer.
///
/// # Cancel safety
/// If dropped, nothing has changed.
pub async fn history(coordinator: &dyn Coordinator) -> Result<Vec<Version>, PutError> {
    let mut versions = Vec::new();
    for slot in 0..KEPT {
        let document = coordinator.read(&document_name(slot)).await?;
        versions.extend(document.bytes.as_deref().and_then(Version::decode));
    }
    versions.sort_by_key(|held| held.version);
    Ok(versions)
}

/// Puts an earlier version in force again, as a new version, and returns the new number.
///
/// # Errors
/// As [`put`]; [`PutError::NoVersion`] if the version is not kept.
///
/// # Cancel safety
/// As [`put`].
pub async fn rollback(coordinator: &dyn Coordinator, version: u64) -> Result<u64, PutError> {
    let found = current(coordinator).await?.map_or(0, |held| held.version);
    let mut versions = history(coordinator).await?;
    match versions.iter().position(|held| held.version == version) {
        Some(at) => put(coordinator, versions.swap_remove(at).bytes, Some(found)).await,
        None => {
            let kept = versions.into_iter().map(|held| held.version).collect();
            Err(PutError::NoVersion { version, kept })
        }
    }
}

/// Returns for each node the version of the policies that it follows, and the version that it refuses, if any.
///
/// # Errors
/// [`CoordinatorError`] if the engine does not answer.
///
/// # Cancel safety
/// If dropped, nothing has changed.
pub async fn nodes(coordinator: &dyn Coordinator) -> Result<Vec<Following>, CoordinatorError> {
    let members = coordinator.members().await?;
    let following = |member: super::Member| {
        let report = MemberReport::decode(&member.report);
        Following { node: member.name, follows: report.policies, refused: report.refused }
    };
    Ok(members.into_iter().map(following).collect())
}

/// Follows the policies for as long as it is polled: passes each new version to `apply`, waits for its result, and
/// reports that. A version that `apply` refuses, with a reason, is not passed to it again. `apply` gets `None` for a
/// document in an unknown form.
///
/// `own_report` is that of this node's [driver](super::shares::Driver::own_report). While the engine is unavailable,
/// the present policies stay in force.
///
/// # Cancel safety
/// If dropped, the node stops following; the result of a version that is being applied is not reported.
pub async fn follow<Applying: Future<Output = Result<(), String>> + Send>(
    coordinator: Arc<dyn Coordinator>,
    clock: Arc<dyn Clock>,
    own_report: OwnReport,
    mut apply: impl FnMut(Option<Version>) -> Applying + Send,
) {
    let mut seen = 0;
    loop {
        let asked = coordinator.changed(NAME, seen);
        let document = match select(asked, clock.sleep_until(clock.now().after(ASK_EVERY))).await {
            Either::Left((Ok(document), _)) => document,
            Either::Left((Err(_), _)) => {
                clock.sleep_until(clock.now().after(AGAIN_AFTER)).await;
                continue;
            }
            Either::Right(_) => continue,
        };
        seen = document.version;
        // If the document was removed, the present policies stay in force.
        let Some(bytes) = document.bytes else { continue };
        let decoded = Version::decode(&bytes);
        let version = decoded.as_ref().map_or(0, |version| version.version);
        let readable = decoded.is_some();
        let result = match apply(decoded).await {
            Ok(()) if !readable => Err(UNREADABLE.to_owned()),
            result => result,
        };
        own_report.update(|report| match result {
            Ok(()) => (report.policies, report.refused) = (version, None),
            Err(why) => report.refused = Some((version, why)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, LocalCluster};
    use tidegate_limits::block_on;
    use tidegate_limits::clock::ManualClock;
    use tidegate_limits::store::Later;

    #[test]
    fn the_last_versions_are_kept_and_put_again_as_new_ones() {
        let node = LocalCluster::new(ManualClock::default(), Duration::from_secs(10)).node();
        block_on(async {
            assert_eq!(current(&*node).await, Ok(None));
            assert!(
                matches!(rollback(&*node, 1).await, Err(PutError::NoVersion { kept, .. }) if kept.is_empty())
            );
            for version in 1..=20u8 {
                assert_eq!(put(&*node, vec![version], None).await, Ok(u64::from(version)));
            }
            let versions: Vec<u64> = history(&*node).await.unwrap().iter().map(|held| held.version).collect();
            assert_eq!(versions, (4..=19).collect::<Vec<u64>>());
            assert_eq!(rollback(&*node, 4).await, Ok(21));
            assert_eq!(current(&*node).await.unwrap().unwrap(), Version { version: 21, bytes: vec![4] });
            let told = rollback(&*node, 3).await.unwrap_err().to_string();
            assert!(told.starts_with("version 3 is not kept; kept are 5, 6"), "{told}");
            let changed = PutError::Changed { expected: 20, found: 21 };
            assert_eq!(put(&*node, vec![], Some(20)).await, Err(changed));
            node.replace(NAME, node.read(NAME).await.unwrap().version, b"by hand".to_vec()).await.unwrap();
            assert_eq!(put(&*node, vec![], None).await, Err(PutError::Foreign(NAME.to_owned())));
        });
    }

    /// Versions once restarted at 1 while older ones were kept under the same names; the new ones were then not kept
    /// and not found.
    #[test]
    fn versions_go_on_after_the_document_was_removed() {
        let node = Removable(LocalCluster::new(ManualClock::default(), Duration::from_secs(10)).node());
        block_on(async {
            for version in 1..=20u8 {
                put(&node, vec![version], None).await.unwrap();
            }
            let at = node.0.read(NAME).await.unwrap().version;
            node.0.replace(NAME, at, b"removed".to_vec()).await.unwrap();
            assert_eq!(current(&node).await, Ok(None));
            assert_eq!(put(&node, b"new".to_vec(), Some(0)).await, Ok(20), "19 is the last that was kept");
            assert_eq!(put(&node, b"newer".to_vec(), Some(20)).await, Ok(21));
            assert_eq!(rollback(&node, 20).await, Ok(22));
            assert_eq!(current(&node).await.unwrap().unwrap().bytes, b"new");
            assert_eq!(rollback(&node, 8).await, Ok(23), "and the old ones are still there");
        });
    }

    /// An engine in which a document with certain bytes counts as removed: no coordinator removes one, but people do.
    #[derive(Debug)]
    struct Removable(Arc<dyn Coordinator>);

    impl Coordinator for Removable {
        fn keeps(&self) -> Duration {
            self.0.keeps()
        }

        fn join(&self, name: &str, report: &[u8]) -> Later<Result<u64, CoordinatorError>> {
            self.0.join(name, report)
        }

        fn renew(&self, report: &[u8]) -> Later<Result<(), CoordinatorError>> {
            self.0.renew(report)
        }

        fn leave(&self) -> Later<Result<(), CoordinatorError>> {
            self.0.leave()
        }

        fn members(&self) -> Later<Result<Vec<crate::Member>, CoordinatorError>> {
            self.0.members()
        }

        fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>> {
            let read = self.0.read(document);
            Box::pin(async move {
                let document = read.await?;
                let bytes = document.bytes.filter(|bytes| bytes != b"removed");
                Ok(Document { bytes, ..document })
            })
        }

        fn replace(
            &self,
            document: &str,
            version: u64,
            bytes: Vec<u8>,
        ) -> Later<Result<Option<u64>, CoordinatorError>> {
            self.0.replace(document, version, bytes)
        }

        fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>> {
            self.0.changed(document, seen)
        }
    }

    #[test]
    fn a_version_is_read_as_it_was_written() {
        for bytes in [&b""[..], b"\n\n", b"\xff\nversion 3\n"] {
            let version = Version { version: 7, bytes: bytes.to_vec() };
            assert_eq!(Version::decode(&version.encode()), Some(version));
        }
        for other in [&b""[..], b"tidegate-policies 1\nversion 7", b"tidegate-policies 1\nversion x\n"] {
            assert_eq!(Version::decode(other), None);
        }
    }
}
