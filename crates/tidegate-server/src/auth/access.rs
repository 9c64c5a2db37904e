//! The tokens in force, and what a request with one of them may do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use http::header::{AUTHORIZATION, HeaderMap};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::sync::{Mutex as Turn, watch};

use super::scope::Scope;
use super::token::Token;
use super::tokens::{Tokens, TokensError};
use super::web_pages;
use crate::blocking_jobs::BlockingJobs;
use crate::problem::Problem;

/// For proxies that cannot set `Authorization` without overwriting their caller's.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-tidegate-token");
/// The longest wait for the file of tokens, as for the configuration.
const PATIENCE: Duration = Duration::from_secs(10);
/// The name by which refusals call the single token that has no name.
const NAMELESS: &str = "token";

/// Decides who may do what. The tokens of the file may change while the server runs; whether a token is needed does not
/// change.
#[derive(Debug)]
pub(crate) struct Access {
    /// The single token that has every scope.
    sole: Option<Token>,
    file: Option<PathBuf>,
    tokens: ArcSwap<Tokens>,
    changes: watch::Sender<()>,
    jobs: BlockingJobs,
    /// Locked while the files are read and stored, so that renewals do not overlap and the latest wins.
    turn: Turn<()>,
}

impl Access {
    /// Reads the file of tokens, if there is one.
    ///
    /// # Errors
    /// [`TokensError`], also if the file cannot be read within 10 s.
    pub(crate) async fn open(sole: Option<Token>, file: Option<PathBuf>) -> Result<Self, TokensError> {
        let (jobs, turn) = (BlockingJobs::new(PATIENCE), Turn::new(()));
        let (tokens, changes) = (ArcSwap::default(), watch::Sender::new(()));
        let access = Self { sole, file, tokens, changes, jobs, turn };
        access.read().await?;
        Ok(access)
    }

    async fn read(&self) -> Result<(), TokensError> {
        let _turn = self.turn.lock().await;
        let named = match self.file.clone() {
            None => Tokens::default(),
            Some(file) => {
                let name = file.display().to_string();
                let read = self.jobs.run(move || Tokens::from_file(&file)).await;
                read.unwrap_or_else(|none| {
                    let mistakes = vec![format!("{name}: reading it {none}")];
                    Err(TokensError::Mistakes { mistakes })
                })?
            }
        };
        let tokens = match self.sole.clone() {
            Some(sole) => named.with_all_scopes(NAMELESS, sole),
            None => named,
        };
        self.tokens.store(Arc::new(tokens));
        self.changes.send_replace(());
        Ok(())
    }

    /// Reads the file of tokens again. A refused file changes nothing and is logged.
    pub(crate) async fn renew(&self) {
        if self.file.is_none() {
            return;
        }
        match self.read().await {
            Ok(()) => tracing::info!(tokens = self.tokens.load().len(), "the tokens were read again"),
            Err(error) => {
                for line in error.to_string().lines() {
                    tracing::error!("{line}");
                }
                tracing::error!("the tokens were refused; the old ones stay valid");
            }
        }
    }

    /// Returns the path of the file of tokens.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns whether callers must show a token.
    pub(crate) fn needs_token(&self) -> bool {
        self.sole.is_some() || self.file.is_some()
    }

    /// Returns the name of the token that a caller with these headers shows, which is the one that [`Access::authorize`]
    /// judges; `None` if it shows none that is valid.
    pub(crate) fn name_of(&self, headers: &HeaderMap) -> Option<Box<str>> {
        let shown = shown(headers).ok().flatten()?;
        Some(self.tokens.load().of(shown)?.name.clone())
    }

    /// Returns whether a caller with these headers shows a token, valid or not.
    #[cfg(feature = "grpc")]
    pub(crate) fn is_shown(headers: &HeaderMap) -> bool {
        headers.contains_key(TOKEN_HEADER) || headers.contains_key(AUTHORIZATION)
    }

    /// Returns the tokens in force.
    pub(crate) fn tokens(&self) -> Guard<Arc<Tokens>> {
        self.tokens.load()
    }

    /// Checks that a caller with these headers may act in this scope; `None`: any token will do. `encrypted`: the
    /// request came over TLS.
    ///
    /// # Errors
    /// 401 without a valid token, if one is needed, or if a header that may hold one came twice. 403 for a token without the scope, and, if no token is needed, for
    /// requests that only a web page would send.
    pub(crate) fn authorize(
        &self,
        headers: &HeaderMap,
        required: Option<Scope>,
        encrypted: bool,
    ) -> Result<(), Problem> {
        if !self.needs_token() {
            return web_pages::refuse(headers, encrypted);
        }
        let shown = shown(headers)?;
        let grant = shown.and_then(|shown| self.tokens.load().of(shown).map(Arc::clone));
        if let Some(grant) = grant {
            let Some(scope) = required.filter(|scope| !grant.scopes.has(*scope)) else { return Ok(()) };
            let detail = format!(
                "the token {} has the scope {}, and this needs {scope}; send a token with that scope",
                grant.name, grant.scopes
            );
            return Err(Problem::new(StatusCode::FORBIDDEN, detail).with("scope", scope.word()));
        }
        let what = if shown.is_some() { "the token is wrong" } else { "no token was sent" };
        let basic = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().get(..6));
        let how = match basic {
            Some(basic) if basic.eq_ignore_ascii_case(b"basic ") => {
                "`authorization` has the scheme Basic; send `authorization: Bearer TOKEN`, in Prometheus by `authorization: { credentials: TOKEN }`"
            }
            _ => "send `authorization: Bearer TOKEN` or `x-tidegate-token: TOKEN`",
        };
        let problem = Problem::new(StatusCode::UNAUTHORIZED, format!("{what}; {how}"));
        Err(if shown.is_some() { problem.of_guess() } else { problem })
    }

    /// Returns a receiver that is told when the tokens in force change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// Returns the token that these headers show, valid or not. If there is an `x-tidegate-token`, it alone counts: a proxy
/// that sets it hands on its caller's `authorization`, and nothing may depend on what that is.
///
/// # Errors
/// 401 if the header that counts came twice.
fn shown(headers: &HeaderMap) -> Result<Option<&[u8]>, Problem> {
    if let Some(own) = only(headers, &TOKEN_HEADER)? {
        return Ok(Some(own.as_bytes()));
    }
    let Some(value) = only(headers, &AUTHORIZATION)? else { return Ok(None) };
    let value = value.as_bytes();
    let Some(end) = value.iter().position(|byte| *byte == b' ') else { return Ok(None) };
    let (scheme, token) = value.split_at(end);
    Ok(scheme.eq_ignore_ascii_case(b"bearer").then(|| token.trim_ascii()))
}

/// Returns the value of a header that may hold a token. If it came twice, which one counts would be a guess.
///
/// # Errors
/// 401 if it came twice.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, Problem> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (line, None) => Ok(line),
        _ => Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            format!("{name} came twice; send it once, with one token"),
        )),
    }
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

    #[tokio::test]
    async fn a_token_is_shown_in_either_header() {
        let access = Access::open(Some(Token::new("0123456789abcdef\n").unwrap()), None).await.unwrap();
        let may = |pairs: &[_]| access.authorize(&headers(pairs), Some(Scope::Admin), false).is_ok();
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
            assert_eq!(may(&[(name, value)]), passes, "{name}: {value}");
        }
        let both = [("authorization", "Bearer of-the-caller"), ("x-tidegate-token", "0123456789abcdef")];
        assert!(may(&both), "a proxy hands on its caller's authorization");
        let status = |pairs: &[(&'static str, &str)]| {
            let mut all = HeaderMap::new();
            for (name, value) in pairs {
                all.append(*name, HeaderValue::from_str(value).unwrap());
            }
            access.authorize(&all, Some(Scope::Admin), false).map_err(|problem| problem.status())
        };
        let (right, wrong) = ("0123456789abcdef", "0123456789abcdee");
        let twice = Err(StatusCode::UNAUTHORIZED);
        for (one, other) in [(right, wrong), (wrong, right), (right, right)] {
            assert_eq!(status(&[("x-tidegate-token", one), ("x-tidegate-token", other)]), twice);
            let bearers = [one, other].map(|token| format!("Bearer {token}"));
            let [one, other] = bearers.each_ref().map(|bearer| ("authorization", bearer.as_str()));
            assert_eq!(status(&[one, other]), twice);
            assert_eq!(status(&[("x-tidegate-token", right), one, other]), Ok(()), "handed on by a proxy");
        }
    }

    #[tokio::test]
    async fn a_token_is_for_its_scopes_and_a_refused_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        std::fs::write(&file, "proxy check 0123456789abcdef\nops read,admin 0123456789abcdeg\n").unwrap();
        let access = Access::open(None, Some(file.clone())).await.unwrap();
        let status = |access: &Access, secret: &str, required| {
            access
                .authorize(&headers(&[("x-tidegate-token", secret)]), required, false)
                .map_err(|problem| problem.status())
        };
        let (wrong, lacks) = (Err(StatusCode::UNAUTHORIZED), Err(StatusCode::FORBIDDEN));
        assert_eq!(status(&access, "0123456789abcdef", Some(Scope::Check)), Ok(()));
        assert_eq!(status(&access, "0123456789abcdef", Some(Scope::Read)), lacks);
        assert_eq!(status(&access, "0123456789abcdef", None), Ok(()));
        assert_eq!(status(&access, "0123456789abcdeg", Some(Scope::Check)), lacks);
        assert_eq!(status(&access, "0123456789abcdeg", Some(Scope::Admin)), Ok(()));
        assert_eq!(status(&access, "0123456789abcdeh", None), wrong);

        std::fs::write(&file, "proxy check short\n").unwrap();
        access.renew().await;
        assert_eq!(status(&access, "0123456789abcdef", Some(Scope::Check)), Ok(()), "the old ones hold");
        std::fs::write(&file, "proxy check 0123456789abcdeh\n").unwrap();
        access.renew().await;
        assert_eq!(status(&access, "0123456789abcdef", Some(Scope::Check)), wrong);
        assert_eq!(status(&access, "0123456789abcdeh", Some(Scope::Check)), Ok(()));
        // A missing file revokes no token, and admits no new one.
        std::fs::remove_file(&file).unwrap();
        access.renew().await;
        assert_eq!(status(&access, "0123456789abcdeh", Some(Scope::Check)), Ok(()));
    }
}
