//! Who may use the server, and for what.
//!
//! Without a token the server listens on loopback only, and refuses two tricks of web pages ([`access`]): requests
//! to loopback, which `Origin` reveals, and a page's own name mapped to this machine, which `Host` reveals. With
//! tokens, every request but health checks and pages, which have sessions, needs one with its scope.

mod access;
mod tokens;

use std::fmt;
use std::str::FromStr;

pub(crate) use self::access::Access;
pub(crate) use self::tokens::{Grant, SHORTEST};
pub use self::tokens::{Token, TokenError, Tokens, TokensError};

// Scopes: what a token allows its holder to do.

/// A kind of access that a token can grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Ask for decisions, and settle them.
    Check,
    /// See policies, digests of keys, breakers, signals, metrics, and why a request is decided as it is.
    Read,
    /// Change what runs: breakers, signals, the counters of a key, a reload.
    Admin,
    /// See metrics, the version and the checks of health; included in [`Scope::Read`].
    Metrics,
    /// See the names of keys, where `Read` shows the rest.
    Keys,
}

impl Scope {
    const ALL: [Self; 5] = [Self::Check, Self::Read, Self::Admin, Self::Metrics, Self::Keys];

    /// Returns the name of the scope in files and answers.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
            Self::Keys => "keys",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A set of scopes. None includes another, but `read` what `metrics` may: who may change things may not therefore see
/// them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scopes(u8);

/// A text is not a list of scopes. Does not repeat it: it may be a secret in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these are not scopes; write check, read, admin, metrics or keys, or several with commas between them, as check,read"
)]
pub(crate) struct UnknownScope;

impl Scopes {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self::NONE
        .with(Scope::Check)
        .with(Scope::Read)
        .with(Scope::Admin)
        .with(Scope::Metrics)
        .with(Scope::Keys);

    /// Returns this set with one more scope.
    pub(crate) const fn with(self, scope: Scope) -> Self {
        Self(self.0 | scope.bit())
    }

    /// Returns whether the holder may do what this scope allows.
    pub(crate) const fn has(self, scope: Scope) -> bool {
        let included = match scope {
            Scope::Metrics => Scope::Read.bit(),
            _ => 0,
        };
        self.0 & (scope.bit() | included) != 0
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> =
            Scope::ALL.into_iter().filter(|scope| self.0 & scope.bit() != 0).map(Scope::word).collect();
        f.write_str(&words.join(","))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scopes({self})")
    }
}

impl FromStr for Scopes {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        text.split(',').try_fold(Self::NONE, |scopes, word| {
            let scope = Scope::ALL.into_iter().find(|scope| scope.word() == word);
            scope.map(|scope| scopes.with(scope)).ok_or(UnknownScope)
        })
    }
}
