//! Admissions as sealed bytes: settled once, within a stated time, by whoever is handed them.
//!
//! A ticket holds the charges themselves: keys, quotas, receipts. So nothing is remembered of a check until it is settled, and any node
//! that shares the store and the key of the deployment can settle it. What is remembered then is one mark for each settled ticket, in
//! the same store as the charges and for about as long as the ticket would have lived: so once holds for every node of that store, and
//! across restarts where the store outlives them. Tickets of a store in memory are settled by the process that made them and by no other.
//!
//! Tickets are sealed (XChaCha20-Poly1305) and not only signed: keys may be what callers must keep secret, as tokens are.
//!
//! # Bounds
//! A ticket of one limit takes about 250 bytes (330 characters as text), each further limit 110 and its key. More than
//! [`Ticket::MAX_BYTES`] is refused when it is made. It lives for at most [`Ticket::MAX_TTL`]. A mark takes one key of the store. Where
//! that is full of live keys, marks have a policy's share of it; a mark beyond that can be pushed out, and its ticket could then be settled
//! again until it expires. So can a key that was charged: where it was pushed out and charged again, a ticket from before can give back
//! what was charged since, up to what it holds.
//!
//! # Clocks
//! Whether a ticket has expired is told by the clock of the node that settles it, so nodes of one store have to agree on the time as
//! closely as tickets are to end.

mod form;
mod keys;
mod settle;

pub use keys::{KeyError, TicketKeys};

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_core::Tick;

use super::charged::{Charged, ChargedLine, Part};
use crate::store::{Home, StoreError};

/// An admission, sealed; its text is base64url without padding.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Ticket(Box<[u8]>);

/// A ticket that one of the deployment's keys has opened; opening does not settle it.
///
/// About as large as the ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTicket {
    id: u128,
    issuer: Box<str>,
    home: Home,
    made: Tick,
    expires: Tick,
    charged: Charged,
}

/// Why a ticket could not be made. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The keys that were charged are too long together.
    #[error(
        "a ticket of {bytes} bytes is too long, at most {} are possible: the keys that were charged are long",
        Ticket::MAX_BYTES
    )]
    TooLong {
        /// How long the ticket would be, in bytes.
        bytes: usize,
    },
    /// The time to live is out of range.
    #[error("a ticket cannot live for {ttl:?}; use 1 ns to {} days", Ticket::MAX_TTL.as_secs() / 86_400)]
    Lifetime {
        /// The time given.
        ttl: Duration,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Random,
}

/// Why a ticket was not settled. Nothing was given back or booked then, unless a store's answer was lost; see [`TicketError::Store`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The text or the bytes have no form of a ticket.
    #[error("this is not a ticket: {why}")]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// None of the keys opens it.
    #[error("no key opens this ticket: it was changed or cut off, or another deployment has made it")]
    Unsealed,
    /// It was opened, and holds what this version cannot read.
    #[error("this ticket was made by a version that this one cannot read")]
    Unreadable(#[from] tidegate_core::bytes::DecodeError),
    /// The ticket's time to live is over.
    #[error("this ticket expired {} ms ago", .ago.as_millis())]
    Expired {
        /// How long ago.
        ago: Duration,
    },
    /// The ticket, or the part that was asked for, has been settled.
    #[error("this ticket is settled already")]
    Settled,
    /// What it charged lies in the memory of another process.
    #[error("this ticket was made by {issuer}, which keeps its limits in its own memory; settle it there{restarted}",
        issuer = named(.issuer), restarted = if *.restarted { ", if that has not restarted since" } else { "" })]
    Elsewhere {
        /// The name of that node; empty where it has none.
        issuer: Box<str>,
        /// Whether that node has the name of this one: then what it charged is gone, or lies in another of its stores.
        restarted: bool,
    },
    /// The store did not settle it, or its answer was lost ([`StoreError::Unavailable`]); it may be tried again, and is told
    /// [`TicketError::Settled`] then if it was.
    #[error("the ticket could not be settled")]
    Store(#[from] StoreError),
}

fn named(issuer: &str) -> String {
    if issuer.is_empty() { "a node without a name".to_owned() } else { format!("`{issuer}`") }
}

impl Ticket {
    /// The most bytes that a ticket may have: as text it fits the 64 KiB of a body with room to spare.
    pub const MAX_BYTES: usize = 16 * 1024;

    /// The longest time that a ticket may live: longer than any batch, and short enough that marks come to an end.
    pub const MAX_TTL: Duration = Duration::from_secs(30 * 86_400);

    /// Takes bytes for a ticket; whether they are one is known when they are opened.
    ///
    /// # Errors
    /// [`TicketError::Malformed`] when they are too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(TicketError::Malformed { why: "it is too long" });
        }
        Ok(Self(bytes.into()))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes: whoever has them can settle it.
        f.debug_struct("Ticket").field("bytes", &self.0.len()).finish()
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        if text.len() > Self::MAX_BYTES.div_ceil(3) * 4 {
            return Err(TicketError::Malformed { why: "it is too long" });
        }
        let bytes = URL_SAFE_NO_PAD.decode(text);
        Self::from_bytes(
            &bytes.map_err(|_| TicketError::Malformed { why: "it is not base64url without padding" })?,
        )
    }
}

impl OpenTicket {
    /// Returns the number that tells it from every other ticket.
    #[must_use]
    pub const fn id(&self) -> u128 {
        self.id
    }

    /// Returns the name of the node that made it; empty where it has none.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns when it was made, by the clock of its issuer.
    #[must_use]
    pub const fn made(&self) -> Tick {
        self.made
    }

    /// Returns the tick from which it cannot be settled.
    #[must_use]
    pub const fn expires(&self) -> Tick {
        self.expires
    }

    /// Returns every charge, in the order of the policies.
    pub fn lines(&self) -> impl Iterator<Item = ChargedLine<'_>> {
        self.charged.lines()
    }

    /// Returns what was charged.
    #[must_use]
    pub const fn charged(&self) -> &Charged {
        &self.charged
    }

    /// Says whether a part has any charge.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.charged.of(part).next().is_some()
    }
}
