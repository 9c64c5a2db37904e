//! Who may use the server, and for what.
//!
//! Without a token the server listens on loopback only, and two tricks of web pages are refused. A page may send
//! requests to loopback, which its `Origin` reveals. And a page may map its own name to the server's address, which
//! `Host` reveals ([`web_pages`]). With tokens, every request except health checks must carry a token with the scope
//! that the request needs.

mod access;
mod scope;
mod token;
mod tokens;
mod web_pages;

pub(crate) use self::access::Access;
pub use self::scope::{Scope, Scopes, UnknownScope};
pub(crate) use self::token::SHORTEST;
pub use self::token::{Token, TokenError};
pub(crate) use self::tokens::Grant;
pub use self::tokens::{Tokens, TokensError};
