//! Who may talk to the server.
//!
//! Without a token the server is bound to loopback only, and two tricks of web pages are refused: a page may send requests
//! to loopback, which its `Origin` betrays, and it may give its own name our address, which `Host` betrays. With a token,
//! every request but health carries it.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use http::{HeaderName, HeaderValue, StatusCode};
use subtle::ConstantTimeEq as _;
use tidegate::config::{ReadError, read_text};

use crate::problem::Problem;

/// For proxies that cannot set `Authorization` without overwriting their caller's.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-tidegate-token");
/// Below this many bytes a token can be guessed; asked for when the token is made.
pub(crate) const SHORTEST: usize = 16;
/// The most bytes of a file that holds a token: more is another file.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// The secret that callers show. Never printed.
#[derive(Clone)]
pub struct Token {
    secret: String,
}

/// Why a text cannot be a token.
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
    /// The file that is to hold it cannot be read.
    #[error("the token's file {} {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<ReadError>,
    },
    /// A variable is set to bytes that are no text. Taken for unset, it would leave the server open.
    #[error("{variable} is set to bytes that are no UTF-8 text; set it to printable ASCII, or unset it")]
    NotText {
        /// Which.
        variable: &'static str,
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
        Ok(Self { secret: secret.to_owned() })
    }

    /// Reads the token from a file: a regular one, of at most 64 KiB. White space around the token is not part of it.
    ///
    /// # Errors
    /// As [`Token::new`], and when the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        match read_text(path, MOST_FILE_BYTES) {
            Ok(secret) => Self::new(&secret),
            Err(error) => Err(TokenError::File { path: path.to_owned(), why: Arc::new(error) }),
        }
    }

    /// Reads the token from the environment: `TIDEGATE_TOKEN`, or the file that `TIDEGATE_TOKEN_FILE` names. `None` when
    /// neither is set. One that is set to nothing is a token too short: an empty secret must not open the server.
    ///
    /// # Errors
    /// As [`Token::new`]; when both are set; when the file cannot be read; when a variable is no text.
    pub fn from_env() -> Result<Option<Self>, TokenError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, TokenError> {
        match (variable("TIDEGATE_TOKEN"), variable("TIDEGATE_TOKEN_FILE")) {
            (None, None) => Ok(None),
            (Some(secret), None) => match secret.to_str() {
                Some(secret) => Self::new(secret).map(Some),
                None => Err(TokenError::NotText { variable: "TIDEGATE_TOKEN" }),
            },
            (None, Some(path)) => Self::from_file(Path::new(&path)).map(Some),
            (Some(_), Some(_)) => Err(TokenError::Both),
        }
    }

    /// Returns the token as it is sent. Whoever asks sees to it that it is not printed.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Compares in a time that tells how long the token is and nothing else of it.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        self.secret.as_bytes().ct_eq(shown).into()
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
    let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
        let (scheme, shown) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
        scheme.eq_ignore_ascii_case(b"bearer").then(|| shown.trim_ascii())
    });
    let own = headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes);
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
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    for name in [HOST, ORIGIN] {
        // A header that cannot be read is there all the same.
        if headers.contains_key(&name) && text(&name).is_none()
            || headers.get_all(&name).iter().nth(1).is_some()
        {
            let detail = format!("{name} cannot be read, or came twice; send it once, in ASCII");
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
    }
    let host = text(&HOST).unwrap_or_default();
    if let Some(origin) = text(&ORIGIN)
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
            ("x-tidegate-token", "0123456789abcde", false),
            ("x-tidegate-token", "0123456789abcdef0", false),
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
        let from = |token: Option<&str>, file: Option<&str>| {
            let set = |name: &str| if name == "TIDEGATE_TOKEN" { token } else { file };
            Token::from_variables(|name| set(name).map(Into::into))
        };
        assert!(from(None, None).unwrap().is_none());
        assert!(from(Some(secret), None).unwrap().is_some_and(|token| token.is(secret.as_bytes())));
        assert!(from(None, Some(&path)).unwrap().is_some_and(|token| token.is(secret.as_bytes())));
        assert!(matches!(from(Some(""), None), Err(TokenError::Short { length: 0 })));
        assert!(matches!(from(Some(secret), Some(&path)), Err(TokenError::Both)));
        assert!(matches!(from(None, Some("/nowhere/at/all")), Err(TokenError::File { .. })));
        let error = from(None, Some("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "the token's file /dev/zero is a device; only a regular file is read");
    }

    /// Bytes that are no text were taken for no token, and the server let everybody in.
    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_not_unset() {
        use std::os::unix::ffi::OsStringExt as _;
        let bytes = OsString::from_vec(b"0123456789abcdef\xff".to_vec());
        let from = |set: &str| Token::from_variables(|name| (name == set).then(|| bytes.clone()));
        assert!(matches!(from("TIDEGATE_TOKEN"), Err(TokenError::NotText { variable: "TIDEGATE_TOKEN" })));
        assert!(matches!(from("TIDEGATE_TOKEN_FILE"), Err(TokenError::File { .. })));
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
        let mut twice = headers(&[("host", "localhost:8080")]);
        twice.append("host", HeaderValue::from_static("evil.example"));
        assert!(without_token(&twice).is_err(), "two hosts");
        for name in ["host", "origin"] {
            let mut unreadable = headers(&[]);
            unreadable.append(name, HeaderValue::from_bytes(b"\xffevil.example").unwrap());
            assert!(without_token(&unreadable).is_err(), "{name}: present, and not readable");
        }
    }
}
