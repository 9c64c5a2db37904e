//! A file of tokens: each has a name, scopes and a secret.
//!
//! ```text
//! # name     scopes        secret
//! envoy      check         6f0d…
//! envoy      check         91ac…        the next one: both hold until the line above goes
//! prometheus metrics       c3e8…
//! on-call    read,admin    77b1…
//! ```
//!
//! No message repeats a word of the file, since it may be a secret in the wrong place.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use subtle::ConstantTimeEq as _;
use tidegate::config::{ReadError, read_text};

use super::Scopes;

/// The most tokens of a file. Each is compared with the secret that a caller shows.
const MOST: usize = 256;

/// The longest name of a token, in bytes. Names are shown in refusals.
const LONGEST_NAME: usize = 64;

/// A token with its name and scopes.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) name: Box<str>,
    pub(crate) scopes: Scopes,
    pub(crate) token: Token,
}

/// The tokens that callers may show, each with its scopes. `Debug` prints no secret.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    grants: Vec<Arc<Grant>>,
}

/// Why a file of tokens cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// The file cannot be read.
    #[error("the tokens' file {} {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<ReadError>,
    },
    /// The file has mistakes, with one text for each.
    #[error("{}", mistakes.join("\n"))]
    Mistakes {
        /// Each with file, line, what is wrong, and what would work.
        mistakes: Vec<String>,
    },
}

impl Tokens {
    /// Reads a regular file of at most 64 KiB and 256 tokens.
    ///
    /// Each line has a name (letters, digits, `-`, `_`, `.`), comma-separated scopes, and a secret of 16 or more
    /// printable ASCII characters, separated by blanks. Lines that begin with `#` are comments. Several tokens may
    /// share a name, so that a secret can be replaced while the old one is still valid.
    ///
    /// # Errors
    /// [`TokensError`] with every mistake.
    pub fn from_file(path: &Path) -> Result<Self, TokensError> {
        let text = read_text(path, MOST_FILE_BYTES)
            .map_err(|error| TokensError::File { path: path.to_owned(), why: Arc::new(error) })?;
        Self::parse(&text, &path.display().to_string()).map_err(|mistakes| TokensError::Mistakes { mistakes })
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.grants.len()
    }

    fn parse(text: &str, file: &str) -> Result<Self, Vec<String>> {
        let (mut grants, mut lines) = (Vec::<Arc<Grant>>::new(), Vec::new());
        let mut mistakes = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let words: Vec<_> = text.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
            if words.is_empty() {
                continue;
            }
            match grant(&words) {
                Ok(grant) => match grants.iter().position(|other| other.token.is_same(&grant.token)) {
                    Some(other) => mistakes.push(format!(
                        "{file}:{line}: the secret is that of line {}; each token has its own",
                        lines[other]
                    )),
                    None => {
                        grants.push(Arc::new(grant));
                        lines.push(line);
                    }
                },
                Err(wrong) => mistakes.push(format!("{file}:{line}: {wrong}")),
            }
        }
        if grants.is_empty() && mistakes.is_empty() {
            mistakes.push(format!("{file}: there is no token; write a line for each: NAME SCOPES SECRET"));
        }
        if grants.len() > MOST {
            mistakes.push(format!("{file}: {} tokens, and there may be {MOST} at most", grants.len()));
        }
        if mistakes.is_empty() { Ok(Self { grants }) } else { Err(mistakes) }
    }

    /// Adds a token with every scope, under this name.
    pub(crate) fn with_all_scopes(mut self, name: &str, token: Token) -> Self {
        self.grants.push(Arc::new(Grant { name: name.into(), scopes: Scopes::ALL, token }));
        self
    }

    /// Finds the grant of the secret that a caller shows. Compares it with all tokens, so that the time does not
    /// reveal which one matched.
    pub(crate) fn of(&self, shown: &[u8]) -> Option<&Arc<Grant>> {
        let mut found = None;
        for grant in &self.grants {
            if grant.token.matches(shown) {
                found = Some(grant);
            }
        }
        found
    }
}

/// Parses the words of one line. Errors do not repeat the words.
fn grant(words: &[&str]) -> Result<Grant, Wrong> {
    let [name, scopes, secret] = words else { return Err(Wrong::Words(words.len())) };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.len() > LONGEST_NAME || !name.bytes().all(fits) {
        return Err(Wrong::Name);
    }
    let scopes = scopes.parse().map_err(|error| Wrong::Said(format!("the second word: {error}")))?;
    let token = Token::new(secret).map_err(|error| Wrong::Said(error.to_string()))?;
    Ok(Grant { name: (*name).into(), scopes, token })
}

/// What is wrong with a line.
enum Wrong {
    Words(usize),
    Name,
    Said(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(count) => write!(f, "{count} words are not a token; write three: NAME SCOPES SECRET"),
            Self::Name => write!(f, "the name has letters, digits, `-`, `_` and `.`, {LONGEST_NAME} at most"),
            Self::Said(what) => f.write_str(what),
        }
    }
}

// A secret that callers show.

/// The shortest token, in bytes: shorter ones can be guessed.
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
    /// A variable or a file holds no valid token.
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
    /// A variable is not UTF-8. Taken for unset, it would leave the server open.
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

    /// Reads the token from a regular file of at most 64 KiB. White space around it is removed.
    ///
    /// # Errors
    /// As [`Token::new`]; also if the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        match read_text(path, MOST_FILE_BYTES) {
            Ok(secret) => Self::new(&secret).map_err(|why| why.within(path.display())),
            Err(error) => Err(TokenError::File { path: path.to_owned(), why: Arc::new(error) }),
        }
    }

    /// Reads the token from `TIDEGATE_TOKEN`, or from the file that `TIDEGATE_TOKEN_FILE` names. `None` if neither
    /// is set. An empty value is an error (a token too short), since it must not open the server.
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
    use super::super::Scope;
    use super::*;

    #[test]
    fn a_line_is_a_name_scopes_and_a_secret() {
        let text = "# who\nenvoy check 0123456789abcdef # the old one\n\n  envoy\tcheck   0123456789abcdeg\nops read,admin 0123456789abcdeh\r\n";
        let tokens = Tokens::parse(text, "t").unwrap();
        assert_eq!(tokens.len(), 3);
        let of = |shown: &str| tokens.of(shown.as_bytes()).map(|grant| (&*grant.name, grant.scopes));
        assert_eq!(of("0123456789abcdef"), Some(("envoy", Scopes::NONE.with(Scope::Check))));
        assert_eq!(of("0123456789abcdeg"), Some(("envoy", Scopes::NONE.with(Scope::Check))));
        let both = Scopes::NONE.with(Scope::Read).with(Scope::Admin);
        assert_eq!(of("0123456789abcdeh"), Some(("ops", both)));
        assert!(both.has(Scope::Metrics) && !both.has(Scope::Keys) && both.to_string() == "read,admin");
        for wrong in ["", "0123456789abcde", "0123456789abcdei", "0123456789abcdefg"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains("0123"), "{tokens:?}");
    }

    #[test]
    fn every_mistake_is_told_and_no_word_of_the_file() {
        let text = "a check\nhunter2hunter2hunter2 hunter2hunter2hunter2 check\nb writ 0123456789abcdef\nc read hunter2\n\
                    d read 0123456789abcdef\ne check 0123456789abcdef\nhunter2/ read 0123456789abcdeg\nf read, 0123456789abcdeh";
        let told = Tokens::parse(text, "t").unwrap_err();
        let no_scopes = "the second word: these are not scopes; write check, read, admin, metrics or keys, or several with commas between them, as check,read";
        assert_eq!(
            told,
            [
                "t:1: 2 words are not a token; write three: NAME SCOPES SECRET".to_owned(),
                format!("t:2: {no_scopes}"),
                format!("t:3: {no_scopes}"),
                "t:4: the token has 7 bytes, which can be guessed; use 16 or more".to_owned(),
                "t:6: the secret is that of line 5; each token has its own".to_owned(),
                "t:7: the name has letters, digits, `-`, `_` and `.`, 64 at most".to_owned(),
                format!("t:8: {no_scopes}"),
            ]
        );
        assert!(Tokens::parse(" \n# none\n", "t").unwrap_err()[0].contains("there is no token"));
        let many: String = (0..=MOST).map(|n| format!("n check 0123456789abcdef{n}\n")).collect();
        assert_eq!(Tokens::parse(&many, "t").unwrap_err(), ["t: 257 tokens, and there may be 256 at most"]);
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
