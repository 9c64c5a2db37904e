//! Who may talk to the server, and what about.
//!
//! Without a token the server is bound to loopback only, and two tricks of web pages are refused: a page may send requests
//! to loopback, which its `Origin` betrays, and it may give its own name our address, which `Host` betrays ([`web_pages`]).
//! With tokens, every request but health carries one that is for what the request asks.

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
