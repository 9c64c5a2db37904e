//! A secret that callers show.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use subtle::ConstantTimeEq as _;
use tidegate::config::{ReadError, read_text};

/// The shortest token, in bytes: shorter ones can be guessed. Checked when a token is made.
pub(crate) const SHORTEST: usize = 16;
/// The most bytes of a file that holds tokens. A larger file is probably a different one.
pub(super) const MOST_FILE_BYTES: u64 = 64 << 10;

/// The secret that callers show. Never printed.
#[derive(Clone)]
pub struct Token {
    secret: String,
}

/// Why a text is not a valid token.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Too short to be a secret.
    #[error("the token has {length} bytes, which can be guessed; use {SHORTEST} or more")]
    Short {
        /// Its length in bytes.
        length: usize,
    },
    /// It has a character that cannot stand in a header.
    #[error("a token holds printable ASCII without spaces; byte {at} is something else")]
    Unprintable {
        /// The index of the byte, counted from 0.
        at: usize,
    },
    /// The text of a variable or a file is not a valid token.
    #[error("{place}: {why}")]
    In {
        /// The variable, or the file.
        place: String,
        /// Why.
        why: Box<Self>,
    },
    /// The file that should hold the token cannot be read.
    #[error("the token's file {} {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<ReadError>,
    },
    /// A variable holds bytes that are not UTF-8. Treating it as unset would leave the server open.
    #[error("{variable} is set to bytes that are not UTF-8 text; set it to printable ASCII, or unset it")]
    NotText {
        /// The name of the variable.
        variable: &'static str,
    },
    /// Both variables are set.
    #[error("TIDEGATE_TOKEN and TIDEGATE_TOKEN_FILE are both set; keep one")]
    Both,
}

impl TokenError {
    /// Names the variable or the file that holds the text.
    fn within(self, place: impl fmt::Display) -> Self {
        Self::In { place: place.to_string(), why: Box::new(self) }
    }
}

impl Token {
    /// Makes a token. White space around it, such as a file's last line end, is removed.
    ///
    /// # Errors
    /// [`TokenError`] if it is shorter than 16 bytes, or cannot stand in a header.
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

    /// Reads the token from a regular file of at most 64 KiB. White space around the token is removed.
    ///
    /// # Errors
    /// As [`Token::new`]; also if the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        match read_text(path, MOST_FILE_BYTES) {
            Ok(secret) => Self::new(&secret).map_err(|why| why.within(path.display())),
            Err(error) => Err(TokenError::File { path: path.to_owned(), why: Arc::new(error) }),
        }
    }

    /// Reads the token from the environment: from `TIDEGATE_TOKEN`, or from the file that `TIDEGATE_TOKEN_FILE` names.
    /// `None` if neither is set. An empty value is an error (a token too short), since it must not open the server.
    ///
    /// # Errors
    /// As [`Token::new`]; also if both are set, the file cannot be read, or a variable is not UTF-8.
    pub fn from_env() -> Result<Option<Self>, TokenError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, TokenError> {
        match (variable("TIDEGATE_TOKEN"), variable("TIDEGATE_TOKEN_FILE")) {
            (None, None) => Ok(None),
            (Some(secret), None) => match secret.to_str() {
                Some(secret) => Self::new(secret).map(Some).map_err(|why| why.within("TIDEGATE_TOKEN")),
                None => Err(TokenError::NotText { variable: "TIDEGATE_TOKEN" }),
            },
            (None, Some(path)) => Self::from_file(Path::new(&path)).map(Some),
            (Some(_), Some(_)) => Err(TokenError::Both),
        }
    }

    /// Returns the token in plain text. The caller must not print it.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Compares in constant time: the time reveals the length of the token, and nothing else.
    pub(crate) fn matches(&self, shown: &[u8]) -> bool {
        self.secret.as_bytes().ct_eq(shown).into()
    }

    /// Returns whether two tokens have the same secret.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.matches(other.secret.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(from(Some(secret), None).unwrap().is_some_and(|token| token.matches(secret.as_bytes())));
        assert!(from(None, Some(&path)).unwrap().is_some_and(|token| token.matches(secret.as_bytes())));
        let empty = from(Some(""), None).unwrap_err().to_string();
        assert_eq!(empty, "TIDEGATE_TOKEN: the token has 0 bytes, which can be guessed; use 16 or more");
        std::fs::write(&file, "abc").unwrap();
        let short = from(None, Some(&path)).unwrap_err().to_string();
        assert_eq!(short, format!("{path}: the token has 3 bytes, which can be guessed; use 16 or more"));
        assert!(matches!(from(Some(secret), Some(&path)), Err(TokenError::Both)));
        assert!(matches!(from(None, Some("/nowhere/at/all")), Err(TokenError::File { .. })));
        let error = from(None, Some("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "the token's file /dev/zero is a device; only a regular file is read");
    }

    /// Regression: bytes that are not UTF-8 were taken for no token, and the server admitted everybody.
    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_not_unset() {
        use std::os::unix::ffi::OsStringExt as _;
        let bytes = OsString::from_vec(b"0123456789abcdef\xff".to_vec());
        let from = |set: &str| Token::from_variables(|name| (name == set).then(|| bytes.clone()));
        assert!(matches!(from("TIDEGATE_TOKEN"), Err(TokenError::NotText { variable: "TIDEGATE_TOKEN" })));
        assert!(matches!(from("TIDEGATE_TOKEN_FILE"), Err(TokenError::File { .. })));
    }
}
