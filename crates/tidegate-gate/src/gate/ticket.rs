//! Tickets: sealed admissions as bytes, which any holder can settle once within a stated time.
//!
//! A ticket contains the charges themselves: keys, quotas, receipts. So nothing is remembered of a check until it is
//! settled, and any node that shares the store and the key of the deployment can settle it. Settling leaves a mark in
//! the same store as the charges, for about as long as the ticket would have lived: so a ticket is settled once across
//! all nodes of that store, and across restarts if the store survives them. Tickets of a store in memory can only be
//! settled by the process that issued them.
//!
//! Tickets are encrypted and authenticated (XChaCha20-Poly1305) rather than only signed: keys may be secrets of
//! callers, such as tokens.
//!
//! # Bounds
//! A ticket of one limit takes about 250 bytes (330 characters as text); each further limit adds 110 bytes and its key.
//! A ticket of more than [`Ticket::MAX_BYTES`] is refused when it is created. A ticket lives for at most
//! [`Ticket::MAX_TTL`]. A mark takes one key of the store. If the store is full of live keys, marks together have the
//! share of one policy; a mark beyond that can be evicted, and its ticket could then be settled again until it expires.
//! A charged key can be evicted too: if it was evicted and charged again, an older ticket can give back newer charges,
//! up to the amount that the ticket holds.
//!
//! # Clocks
//! The clock of the node that settles a ticket decides whether it has expired, so the clocks of nodes that share a
//! store must agree as closely as expiry should be exact.

mod extend;
mod form;
mod keys;
mod settle;

pub use extend::{Extended, HeldPlace};
pub use keys::{KeyError, TicketKeys};
pub use settle::{FinishedBy, Tickets};

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_core::Tick;

use super::charged::{Charged, ChargedLine, Part};
use tidegate_limits::duration_text::in_words;
use tidegate_limits::store::{Home, StoreError};

/// A sealed admission; its text is base64url without padding.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Ticket(Box<[u8]>);

/// A ticket that was opened with one of the deployment's keys. Opening does not settle it.
///
/// Takes about as much memory as the ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTicket {
    id: u128,
    issuer: Box<str>,
    home: Home,
    made: Tick,
    issued: Tick,
    expires: Tick,
    charged: Charged,
}

/// Why a ticket could not be created. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The keys that were charged are too long in total.
    #[error(
        "a ticket of {bytes} bytes is too long, at most {} are possible: the keys that were charged are long",
        Ticket::MAX_BYTES
    )]
    TooLong {
        /// The size that the ticket would have, in bytes.
        bytes: usize,
    },
    /// The time to live is out of range.
    #[error("a ticket cannot live for {ttl:?}; use 1 ns to {} days", Ticket::MAX_TTL.as_secs() / 86_400)]
    Lifetime {
        /// The given time to live.
        ttl: Duration,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Random,
}

/// Why a ticket was not settled. Nothing was given back or booked, unless a store's answer was lost; see
/// [`TicketError::Store`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// The text or the bytes do not have the form of a ticket.
    #[error("this is not a ticket: {why}")]
    Malformed {
        /// What is wrong.
        why: &'static str,
    },
    /// The text or the bytes are more than a ticket has.
    #[error("this is not a ticket: it has {length} bytes, and a ticket has at most {most}")]
    TooLong {
        /// Its length.
        length: usize,
        /// The longest possible ticket in this form: [`Ticket::MAX_BYTES`], or the characters that they take as text.
        most: usize,
    },
    /// No key opens the ticket.
    #[error(
        "no key opens this ticket: it was changed or cut off, or sealed with another key, by another deployment or by this one before a \
         restart that did not keep its key (tickets.key_file keeps it)"
    )]
    Unsealed,
    /// The ticket was opened, but this version cannot read its content.
    #[error("this ticket was made by a version that this one cannot read")]
    Unreadable(#[from] tidegate_core::bytes::DecodeError),
    /// The ticket's time to live is over.
    #[error("this ticket expired {} ago", in_words(*ago))]
    Expired {
        /// How long ago.
        ago: Duration,
    },
    /// The ticket, or the requested part of it, is settled already.
    #[error("this ticket is settled already")]
    Settled,
    /// What the ticket charged lies in the memory of another process.
    #[error("this ticket was made by {issuer}, which keeps its limits in its own memory; settle it there{restarted}",
        issuer = named(.issuer), restarted = if *.restarted { ", if that has not restarted since" } else { "" })]
    Elsewhere {
        /// The name of the node that issued the ticket; empty if it has none.
        issuer: Box<str>,
        /// Whether that node has the same name as this one: then the charges are gone, or lie in another store of this
        /// node.
        restarted: bool,
    },
    /// The places of the ticket cannot be held longer. The ticket stays as it is, and can be settled.
    #[error("the places of this ticket are not held longer: {why}")]
    NotExtended {
        /// What is in the way.
        why: &'static str,
    },
    /// There can be no ticket in place of the one to extend. That stays as it is, and can be settled.
    #[error(
        "the places of this ticket are not held longer, since there can be no ticket in place of it: {0}"
    )]
    Seal(#[from] SealError),
    /// The store did not settle the ticket, or its answer was lost ([`StoreError::Unavailable`]). Settling may be tried
    /// again, and fails with [`TicketError::Settled`] if the first attempt succeeded.
    #[error("the ticket could not be settled")]
    Store(#[from] StoreError),
}

fn named(issuer: &str) -> String {
    if issuer.is_empty() { "a node without a name".to_owned() } else { format!("`{issuer}`") }
}

impl Ticket {
    /// The most bytes of a ticket: as text it fits a body of 64 KiB with room to spare.
    pub const MAX_BYTES: usize = 16 * 1024;

    /// The longest life of a ticket: longer than any batch job, and short enough that marks expire.
    pub const MAX_TTL: Duration = Duration::from_secs(30 * 86_400);

    /// Creates a ticket from bytes. Whether they are a valid ticket shows only when it is opened.
    ///
    /// # Errors
    /// [`TicketError::TooLong`] if there are more than [`Ticket::MAX_BYTES`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(TicketError::TooLong { length: bytes.len(), most: Self::MAX_BYTES });
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
        // The bytes are left out, since they are all that is needed to settle the ticket.
        f.debug_struct("Ticket").field("bytes", &self.0.len()).finish()
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let most = (Self::MAX_BYTES * 4).div_ceil(3);
        if text.len() > most {
            return Err(TicketError::TooLong { length: text.len(), most });
        }
        let bytes = URL_SAFE_NO_PAD.decode(text);
        Self::from_bytes(
            &bytes.map_err(|_| TicketError::Malformed { why: "it is not base64url without padding" })?,
        )
    }
}

impl OpenTicket {
    /// Returns the id of the ticket, which is unique.
    #[must_use]
    pub const fn id(&self) -> u128 {
        self.id
    }

    /// Returns the name of the node that issued the ticket; empty if it has none.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns when the first ticket of these charges was issued, by the clock of its issuer: an extension does not
    /// change it.
    #[must_use]
    pub const fn made(&self) -> Tick {
        self.made
    }

    /// Returns when this ticket was issued, by the clock of its issuer: for a ticket that an extension answered, when
    /// that was.
    #[must_use]
    pub const fn issued(&self) -> Tick {
        self.issued
    }

    /// Returns the tick from which the ticket can no longer be settled.
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

    /// Reports whether a part has any charge.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.charged.of(part).next().is_some()
    }
}
