//! The keys of a deployment: the first one seals tickets, and all of them can open tickets.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use tidegate_core::Tick;

use super::{OpenTicket, SealError, Ticket, TicketError};

/// The first byte of a ticket: the version of the sealing format.
const VERSION: u8 = 1;

/// The associated data of every ticket, so that nothing else sealed with the same key can pass as a ticket.
const CONTEXT: &[u8] = b"tidegate ticket 1";

/// A key with fewer distinct bytes than this is not random.
const FEWEST_DIFFERENT: usize = 8;

/// The length of a nonce in bytes. It is drawn at random for each ticket; random values of 192 bits do not repeat.
const NONCE: usize = 24;

/// The nonce under which the secret for digests is made. Those of tickets are random, so none is this one.
const DIGESTS: &[u8; NONCE] = b"tidegate digests of keys";

/// The length in bytes of the tag that authenticates a ticket.
const TAG: usize = 16;

/// Seals tickets with one key, and opens tickets of that key and of up to seven older ones. To change keys, list the
/// new key first on every node, and remove the old key once its last tickets have expired.
///
/// Every node that settles the tickets of another needs the same keys. Anybody who has a key can create tickets.
#[derive(Clone)]
pub struct TicketKeys {
    /// Never empty; the first one seals.
    ciphers: Vec<XChaCha20Poly1305>,
    looks_typed: bool,
}

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A line is not a key.
    #[error(
        "line {line} is not a ticket key: give 32 random bytes, as 64 hexadecimal digits or 43 characters of base64"
    )]
    Line {
        /// The line, counted from 1.
        line: usize,
    },
    /// A line is the key of 32 zeros, which an attacker would try first.
    #[error(
        "line {line} is a ticket key of zeros, with which anybody can make tickets: give 32 random bytes"
    )]
    Zero {
        /// The line, counted from 1.
        line: usize,
    },
    /// A line repeats the key of an earlier line: probably another key was meant.
    #[error("line {line} is the ticket key of line {first} again: give each key once")]
    Repeated {
        /// The line, counted from 1.
        line: usize,
        /// The line that has the same key, counted from 1.
        first: usize,
    },
    /// There is no key.
    #[error("there is no ticket key: give one a line, the current one first")]
    Empty,
    /// There are too many keys.
    #[error("{count} ticket keys are too many; keep the current one and up to {} older ones", TicketKeys::MAX - 1)]
    TooMany {
        /// The number of keys.
        count: usize,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Random,
}

impl TicketKeys {
    /// The most keys. A ticket that cannot be opened is tried with each of them.
    pub const MAX: usize = 8;

    /// Creates keys from a single key: 32 random bytes.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self { ciphers: vec![XChaCha20Poly1305::new(&key.into())], looks_typed: false }
    }

    /// Creates a single random key, for a process that was given none: only that process can open its tickets.
    ///
    /// # Errors
    /// [`KeyError::Random`] if the system gives no random bytes.
    pub fn random() -> Result<Self, KeyError> {
        random_key().map(Self::new)
    }

    /// Draws a random key and returns it as a line of a key file, which [`TicketKeys::parse`] reads: for a process that
    /// keeps its key.
    ///
    /// # Errors
    /// [`KeyError::Random`] if the system gives no random bytes.
    pub fn random_line() -> Result<String, KeyError> {
        Ok(STANDARD_NO_PAD.encode(random_key()?))
    }

    /// Adds an older key, which opens tickets but does not seal them.
    ///
    /// # Errors
    /// [`KeyError::TooMany`] for more than [`TicketKeys::MAX`] keys.
    pub fn with_older(mut self, key: [u8; 32]) -> Result<Self, KeyError> {
        self.ciphers.push(XChaCha20Poly1305::new(&key.into()));
        let count = self.ciphers.len();
        if count > Self::MAX { Err(KeyError::TooMany { count }) } else { Ok(self) }
    }

    /// Parses the content of a key file: one key per line, the current one first; empty lines and lines that start with
    /// `#` are skipped.
    ///
    /// # Errors
    /// [`KeyError`] with the number of the line, never its content.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::ticket::TicketKeys;
    ///
    /// let file = "# since November\n000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    /// assert!(TicketKeys::parse(file).is_ok());
    /// ```
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (mut ciphers, mut looks_typed) = (Vec::new(), false);
        // Holds only as many lines as there may be keys: a longer file is refused in any case.
        let mut before: Vec<(usize, [u8; 32])> = Vec::with_capacity(Self::MAX);
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let key = key_of(line).ok_or(KeyError::Line { line: at + 1 })?;
                if key == [0; 32] {
                    return Err(KeyError::Zero { line: at + 1 });
                }
                if let Some((first, _)) = before.iter().find(|(_, other)| *other == key) {
                    return Err(KeyError::Repeated { line: at + 1, first: *first });
                }
                if before.len() < Self::MAX {
                    before.push((at + 1, key));
                }
                looks_typed |= different(&key) < FEWEST_DIFFERENT;
                ciphers.push(XChaCha20Poly1305::new(&key.into()));
            }
        }
        match ciphers.len() {
            0 => Err(KeyError::Empty),
            count if count > Self::MAX => Err(KeyError::TooMany { count }),
            _ => Ok(Self { ciphers, looks_typed }),
        }
    }

    /// Reports whether a [parsed](TicketKeys::parse) key has fewer than 8 distinct bytes. For a random key the
    /// probability is below 2⁻¹²⁰, so such a key was probably typed by hand and can be guessed.
    #[must_use]
    pub const fn looks_typed(&self) -> bool {
        self.looks_typed
    }

    /// Returns 32 bytes that are derived from the current key and open no ticket. With them as a secret, all nodes of a
    /// deployment make the same digests of what they do not show, before and after a restart.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::ticket::TicketKeys;
    ///
    /// let of = |key| TicketKeys::new([key; 32]).digest_secret();
    /// assert!(of(1) == of(1) && of(1) != of(2));
    /// ```
    #[must_use]
    pub fn digest_secret(&self) -> [u8; 32] {
        let nonce = XNonce::from(*DIGESTS);
        let sealed = self.ciphers[0].encrypt(&nonce, Payload { msg: &[0; 32], aad: DIGESTS });
        let sealed = sealed.expect("32 bytes can be sealed");
        *sealed.first_chunk().expect("what is sealed is not shorter")
    }

    /// Opens a ticket and checks that it has not expired; settles nothing. Costs one pass over the ticket for each key
    /// that does not open it.
    ///
    /// # Errors
    /// [`TicketError`] if the ticket is not of this deployment, has expired at `now`, or cannot be read.
    pub fn open(&self, ticket: &Ticket, now: Tick) -> Result<OpenTicket, TicketError> {
        let (version, rest) = ticket.0.split_first().ok_or(TicketError::Malformed { why: "it is empty" })?;
        if *version != VERSION {
            return Err(TicketError::Malformed { why: "it does not begin as tickets do" });
        }
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or(TicketError::Unsealed)?;
        let nonce = XNonce::from(*nonce);
        let open =
            |cipher: &XChaCha20Poly1305| cipher.decrypt(&nonce, Payload { msg: sealed, aad: CONTEXT }).ok();
        let plain = self.ciphers.iter().find_map(open).ok_or(TicketError::Unsealed)?;
        let open = OpenTicket::read(&plain)?;
        open.in_time(now).map(|()| open)
    }

    /// Seals any bytes as a ticket.
    pub(super) fn seal(&self, plain: &[u8]) -> Result<Ticket, SealError> {
        Ok(self.prepare(plain.len())?.seal(plain))
    }

    /// Prepares to seal so many bytes: whatever can fail fails here, so that what must not fail can follow.
    pub(super) fn prepare(&self, length: usize) -> Result<Prepared<'_>, SealError> {
        let bytes = 1 + NONCE + length + TAG;
        if bytes > Ticket::MAX_BYTES {
            return Err(SealError::TooLong { bytes });
        }
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| SealError::Random)?;
        Ok(Prepared { cipher: &self.ciphers[0], nonce, length })
    }

    /// Seals any bytes, for a fuzzer of [`TicketKeys::open`].
    ///
    /// # Errors
    /// As [`Tickets::seal`](super::Tickets::seal).
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn seal_bytes(&self, plain: &[u8]) -> Result<Ticket, SealError> {
        self.seal(plain)
    }
}

/// A seal for one ticket, which cannot fail any more.
pub(super) struct Prepared<'k> {
    cipher: &'k XChaCha20Poly1305,
    nonce: [u8; NONCE],
    /// The most bytes that it seals.
    length: usize,
}

impl Prepared<'_> {
    /// Seals at most as many bytes as it was prepared for.
    pub(super) fn seal(self, plain: &[u8]) -> Ticket {
        assert!(plain.len() <= self.length, "no more than it was prepared for");
        let payload = Payload { msg: plain, aad: CONTEXT };
        let sealed = self.cipher.encrypt(&XNonce::from(self.nonce), payload);
        let sealed = sealed.expect("far below 256 GiB, the most of the cipher");
        Ticket([&[VERSION][..], &self.nonce, &sealed].concat().into())
    }
}

fn random_key() -> Result<[u8; 32], KeyError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|_| KeyError::Random)?;
    Ok(key)
}

/// Returns the number of distinct bytes of a key.
fn different(key: &[u8; 32]) -> usize {
    (0..key.len()).filter(|&at| !key[..at].contains(&key[at])).count()
}

fn key_of(text: &str) -> Option<[u8; 32]> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let mut key = [0; 32];
        for (byte, digits) in key.iter_mut().zip(0..) {
            *byte = u8::from_str_radix(&text[2 * digits..2 * digits + 2], 16).ok()?;
        }
        return Some(key);
    }
    let text = text.trim_end_matches('=');
    let bytes = STANDARD_NO_PAD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text)).ok()?;
    bytes.try_into().ok()
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").field("keys", &self.ciphers.len()).finish()
    }
}
