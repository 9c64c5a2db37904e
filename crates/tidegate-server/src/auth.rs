//! Who may talk to the server.
//!
//! Without a token the server is bound to loopback only, and two tricks of web pages are refused: a page may send requests
//! to loopback, which its `Origin` betrays, and it may give its own name our address, which `Host` betrays. With a token,
//! every request but health carries it.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use http::{HeaderName, StatusCode};

use crate::doors::http::Problem;

/// For proxies that cannot set `Authorization` without overwriting their caller's.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-tidegate-token");
/// Below this many bytes a token can be guessed; asked for when the token is made.
pub(crate) const SHORTEST: usize = 16;

/// The secret that callers show. Never printed.
#[derive(Clone)]
pub struct Token {
    secret: String,
    hasher: RandomState,
}

/// Why a token is none.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Too short to be a secret.
    #[error("a token of {length} bytes can be guessed; use {SHORTEST} or more")]
    Short {
        /// Its length in bytes.
        length: usize,
    },
    /// It holds something that no header can.
    #[error("a token holds printable ASCII without spaces; byte {at} is something else")]
    Unprintable {
        /// Where, counted from 0.
        at: usize,
    },
    /// The file that `TIDEGATE_TOKEN_FILE` names cannot be read.
    #[error("cannot read the token from {path}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// Both variables are set.
    #[error("TIDEGATE_TOKEN and TIDEGATE_TOKEN_FILE are both set; keep one")]
    Both,
}

impl Token {
    /// Makes a token; white space around it, as files have at their end, is not part of it.
    ///
    /// # Errors
    /// [`TokenError`] when it is shorter than 16 bytes or cannot stand in a header.
    pub fn new(secret: &str) -> Result<Self, TokenError> {
        let secret = secret.trim();
        if let Some(at) = secret.bytes().position(|byte| !byte.is_ascii_graphic()) {
            return Err(TokenError::Unprintable { at });
        }
        if secret.len() < SHORTEST {
            return Err(TokenError::Short { length: secret.len() });
        }
        Ok(Self { secret: secret.to_owned(), hasher: RandomState::new() })
    }

    /// Reads the token from the environment: `TIDEGATE_TOKEN`, or the file that `TIDEGATE_TOKEN_FILE` names. `None` when
    /// neither is set, or set to nothing.
    ///
    /// # Errors
    /// As [`Token::new`]; when both are set; when the file cannot be read.
    pub fn from_env() -> Result<Option<Self>, TokenError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TokenError> {
        let set = |name| variable(name).filter(|value| !value.trim().is_empty());
        match (set("TIDEGATE_TOKEN"), set("TIDEGATE_TOKEN_FILE")) {
            (None, None) => Ok(None),
            (Some(secret), None) => Self::new(&secret).map(Some),
            (None, Some(path)) => match std::fs::read_to_string(&path) {
                Ok(secret) => Self::new(&secret).map(Some),
                Err(error) => Err(TokenError::File { path, source: Arc::new(error) }),
            },
            (Some(_), Some(_)) => Err(TokenError::Both),
        }
    }

    fn is(&self, shown: &str) -> bool {
        // Hashes under a key of this process are compared first: how long that takes says nothing of the secret.
        self.hasher.hash_one(shown) == self.hasher.hash_one(&self.secret) && shown == self.secret
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Checks a request's credentials.
///
/// # Errors
/// 401 when the token is missing or wrong.
pub(crate) fn with_token(token: &Token, headers: &HeaderMap) -> Result<(), Problem> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, shown) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| shown.trim())
    });
    let own = headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok());
    if [own, bearer].into_iter().flatten().any(|shown| token.is(shown)) {
        return Ok(());
    }
    let what = if own.is_none() && bearer.is_none() { "no token was sent" } else { "the token is wrong" };
    let how = "send `authorization: Bearer TOKEN` or `x-tidegate-token: TOKEN`";
    Err(Problem::new(StatusCode::UNAUTHORIZED, format!("{what}; {how}")))
}

/// Refuses what only a web page would send to a server without a token.
///
/// # Errors
/// 403 for a foreign origin or a host name that is not this machine's.
pub(crate) fn without_token(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).unwrap_or_default();
    if let Some(origin) = text(ORIGIN)
        && origin.split_once("://").map(|(_, authority)| authority) != Some(host)
    {
        let detail =
            "a web page of another origin may not use this server; set a token and send it from a program";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).with("origin", origin));
    }
    if !host.is_empty() && !names_this_machine(host) {
        let detail = "without a token only loopback addresses are served under their own names; use 127.0.0.1 or \
                      localhost in the URL, or set a token";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).with("host", host));
    }
    Ok(())
}

fn names_this_machine(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(inside, _)| inside),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    let name = host.trim_end_matches('.');
    host.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn a_token_is_shown_in_either_header() {
        let token = Token::new("0123456789abcdef\n").unwrap();
        for (name, value, passes) in [
            ("authorization", "Bearer 0123456789abcdef", true),
            ("authorization", "bearer  0123456789abcdef", true),
            ("x-tidegate-token", "0123456789abcdef", true),
            ("authorization", "Basic 0123456789abcdef", false),
            ("authorization", "Bearer 0123456789abcdee", false),
            ("authorization", "Bearer", false),
            ("x-tidegate-token", "", false),
        ] {
            assert_eq!(with_token(&token, &headers(&[(name, value)])).is_ok(), passes, "{name}: {value}");
        }
        let both =
            headers(&[("authorization", "Bearer of-the-caller"), ("x-tidegate-token", "0123456789abcdef")]);
        assert!(with_token(&token, &both).is_ok(), "a proxy hands on its caller's authorization");
    }

    #[test]
    fn a_guessable_token_is_none() {
        assert!(matches!(Token::new(" short ").err(), Some(TokenError::Short { length: 5 })));
        assert!(matches!(Token::new("0123456789 abcdef").err(), Some(TokenError::Unprintable { at: 10 })));
        let shown = format!("{:?}", Token::new("0123456789abcdef").unwrap());
        assert!(!shown.contains("0123"), "{shown}");
    }

    #[test]
    fn the_environment_names_a_token_or_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let (secret, path) = ("0123456789abcdef", file.display().to_string());
        let from = |token: &str, file: &str| {
            Token::from_variables(|name| Some(if name == "TIDEGATE_TOKEN" { token } else { file }.to_owned()))
        };
        assert!(from("", "").unwrap().is_none());
        assert!(from(secret, "").unwrap().is_some_and(|token| token.is(secret)));
        assert!(from("", &path).unwrap().is_some_and(|token| token.is(secret)));
        assert!(matches!(from(secret, &path), Err(TokenError::Both)));
        assert!(matches!(from("", "/nowhere/at/all"), Err(TokenError::File { .. })));
    }

    #[test]
    fn web_pages_are_told_from_programs() {
        for (pairs, passes) in [
            (&[("host", "127.0.0.1:8080")][..], true),
            (&[("host", "[::1]:8080")], true),
            (&[("host", "localhost:8080")], true),
            (&[], true),
            (&[("host", "localhost:8080"), ("origin", "http://localhost:8080")], true),
            (&[("host", "localhost:8080"), ("origin", "http://evil.example")], false),
            (&[("host", "localhost:8080"), ("origin", "null")], false),
            (&[("host", "evil.example:8080")], false),
            (&[("host", "evil.example"), ("origin", "http://evil.example")], false),
        ] {
            assert_eq!(without_token(&headers(pairs)).is_ok(), passes, "{pairs:?}");
        }
    }
}
