//! What an engine has to offer so that nodes can agree.

use std::fmt::Debug;
use std::time::Duration;

use crate::later::Later;

/// A node, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, the same after a restart where the deployment names its nodes.
    pub name: String,
    /// The number the engine gave it when it joined; greater than that of every member before it. The least one leads.
    pub joined: u64,
    /// What it last said of itself: its demand, and the version of each document that it follows.
    pub says: Vec<u8>,
}

impl Member {
    /// The longest name that is kept, in bytes; longer ones are cut.
    pub const LONGEST_NAME: usize = 1024;

    /// Writes a member down for an engine: its name's length, its name, what it says.
    #[must_use]
    pub fn encode(name: &str, says: &[u8]) -> Vec<u8> {
        let name = &name[..name.floor_char_boundary(Self::LONGEST_NAME)];
        // At most LONGEST_NAME, which fits.
        let length = (name.len() as u16).to_be_bytes();
        [&length, name.as_bytes(), says].concat()
    }

    /// Reads what [`Member::encode`] has written; `None` for bytes that are no member.
    #[must_use]
    pub fn decode(joined: u64, bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (name, says) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        Some(Self { name: String::from_utf8(name.to_vec()).ok()?, joined, says: says.to_vec() })
    }
}

/// A small document that all nodes share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// What it says; `None` if it was never written, or was deleted.
    pub bytes: Option<Vec<u8>>,
    /// The engine's number of its last write: greater with each one, so that what was decided by an older one can be told from a newer one
    /// (a fencing token). 0 where it was never written.
    pub version: u64,
}

/// Why the nodes could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The engine did not answer. Nobody knows whether what was asked of it was done.
    #[error("the engine did not answer: {reason}")]
    Unavailable {
        /// What the engine or the network said, without credentials.
        reason: String,
    },
    /// The engine has forgotten this node, because it was not heard of for too long. Whatever it was granted has ended; it may join again.
    #[error(
        "the engine has not heard of this node for longer than {0:?} and has forgotten it; it joins again as a new member"
    )]
    Forgotten(Duration),
    /// What was to be written is larger than the engine takes.
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

/// An engine through which nodes agree: members that are forgotten when nothing is heard of them, and small documents with versions.
///
/// No call does anything before it is polled. A call that is dropped after its first poll may have been done, as after
/// [`CoordinatorError::Unavailable`].
pub trait Coordinator: Debug + Send + Sync + 'static {
    /// For how long a member is kept of which nothing is heard.
    fn keeps(&self) -> Duration;

    /// Makes this node a member, and returns its number ([`Member::joined`]). A node that is one already keeps its number.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`].
    fn join(&self, name: &str, says: &[u8]) -> Later<Result<u64, CoordinatorError>>;

    /// Says that this node is still there, and what it says of itself from now on. To be called well within [`Coordinator::keeps`].
    ///
    /// # Errors
    /// [`CoordinatorError::Forgotten`] when it came too late, or before [`Coordinator::join`]; [`CoordinatorError::Unavailable`].
    fn renew(&self, says: &[u8]) -> Later<Result<(), CoordinatorError>>;

    /// Ends this node's membership at once. It is no error if it has none.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`].
    fn leave(&self) -> Later<Result<(), CoordinatorError>>;

    /// Returns all members, by their numbers.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`].
    fn members(&self) -> Later<Result<Vec<Member>, CoordinatorError>>;

    /// Reads a document, as it was when this node last joined or renewed or later: whoever renews and then reads has seen everything that was
    /// written before it renewed.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`].
    fn read(&self, document: &str) -> Later<Result<Document, CoordinatorError>>;

    /// Writes a document if it is still at a version, and returns its new version; `None` if somebody else has written it.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`], after which it may have been written; [`CoordinatorError::TooLarge`].
    fn replace(
        &self,
        document: &str,
        version: u64,
        bytes: Vec<u8>,
    ) -> Later<Result<Option<u64>, CoordinatorError>>;

    /// Waits until a document is at another version than the one seen, and returns it: at once, if it is by now. Changes in between
    /// may be passed over; the last one never is.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`], also when the connection breaks while it waits.
    fn changed(&self, document: &str, seen: u64) -> Later<Result<Document, CoordinatorError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_read_as_it_was_written_and_anything_else_is_none() {
        for (name, says) in [("node-1", &b"says"[..]), ("", b""), ("\u{e9}", &[0, 255])] {
            let member = Member { name: name.to_owned(), joined: 7, says: says.to_vec() };
            assert_eq!(Member::decode(7, &Member::encode(name, says)), Some(member));
        }
        let long = "\u{e9}".repeat(Member::LONGEST_NAME);
        let cut = Member::decode(1, &Member::encode(&long, b"x")).unwrap();
        assert_eq!((cut.name.len(), &*cut.says), (Member::LONGEST_NAME, &b"x"[..]));
        for other in [&b""[..], b"\0", b"\0\x05abcd", b"\0\x02\xff\xff"] {
            assert_eq!(Member::decode(1, other), None);
        }
    }
}
