//! The tokens in force, and what a request with one of them may do.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::sync::{Mutex as Turn, watch};

use super::Scope;
use super::tokens::{Token, Tokens, TokensError};
use crate::files::BlockingJobs;
use crate::problem::Problem;

/// For proxies that cannot set `Authorization` without overwriting their caller's.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-tidegate-token");

/// The longest wait for the file of tokens, as for the configuration.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name of the single token in refusals.
const NAMELESS: &str = "token";

/// Decides who may do what. The tokens of the file may change; whether one is needed does not.
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

    /// Reads the file again. A refused one changes nothing and is logged.
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

    /// Returns the name of the token that [`Access::authorize`] judges; `None` if it is not valid.
    pub(crate) fn name_of(&self, headers: &HeaderMap) -> Option<Box<str>> {
        let shown = shown(headers).ok().flatten()?;
        Some(self.tokens.load().of(shown)?.name.clone())
    }

    /// Returns whether a token is shown, valid or not.
    #[cfg(feature = "grpc")]
    pub(crate) fn is_shown(headers: &HeaderMap) -> bool {
        headers.contains_key(TOKEN_HEADER) || headers.contains_key(AUTHORIZATION)
    }

    /// Returns the tokens in force.
    pub(crate) fn tokens(&self) -> Guard<Arc<Tokens>> {
        self.tokens.load()
    }

    /// Checks that a caller may act in this scope; `None`: any token will do. `encrypted`: the request came over TLS.
    ///
    /// # Errors
    /// 401 without a valid token, if one is needed, or if a header that may hold one came twice. 403 for a token
    /// without the scope, and, if none is needed, for requests that only a web page would send.
    pub(crate) fn authorize(
        &self,
        headers: &HeaderMap,
        required: Option<Scope>,
        encrypted: bool,
    ) -> Result<(), Problem> {
        if !self.needs_token() {
            return refuse(headers, encrypted);
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

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// Returns the token that is shown, valid or not. An `x-tidegate-token` alone counts if there is one: a proxy that
/// sets it hands on its caller's `authorization`, and nothing may depend on what that is.
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

/// Returns the value of a header that may hold a token. If it came twice, which one counts would be a guess: 401.
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

// Refuses requests that only a web page would send, on servers without tokens.

/// Which page made the browser send the request, and for what (W3C, Fetch Metadata Request Headers).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Refuses what only a web page would send to a server without a token.
///
/// A page can map its own name to this machine; then its requests are same-origin. Over TLS (`encrypted`) the browser
/// wants a certificate for that name, so any host name is accepted.
///
/// # Errors
/// 403 for a foreign origin, and without TLS for a host name that is not this machine's.
pub(super) fn refuse(headers: &HeaderMap, encrypted: bool) -> Result<(), Problem> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (host, origin) = (once(headers, &HOST)?, once(headers, &ORIGIN)?);
    // A page's images and scripts are requested without `Origin`, so they are refused here: a pending request holds
    // a connection open. Followed links (`document`) are allowed: a person clicked them.
    let of_a_page = text(&FETCH_SITE).is_some_and(|site| matches!(site, "cross-site" | "same-site"));
    let foreign = || {
        let detail =
            "a web page of another origin may not use this server; set a token and send it from a program";
        Problem::new(StatusCode::FORBIDDEN, detail)
    };
    if of_a_page && text(&FETCH_DEST) != Some("document") {
        return Err(foreign());
    }
    let host = host.unwrap_or_default();
    if let Some(origin) = origin
        && origin.split_once("://").map(|(_, authority)| authority) != Some(host)
    {
        return Err(foreign().with("origin", origin));
    }
    if !encrypted && !host.is_empty() && !names_this_machine(host) {
        let detail = "without a token, the server answers only requests for a loopback address or localhost; use 127.0.0.1 or \
                      localhost in the URL, or set a token";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).with("host", host));
    }
    Ok(())
}

/// Returns the value of a header that may come once.
///
/// # Errors
/// 403 if it came twice, or cannot be read.
fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Problem> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    match line.to_str() {
        Ok(value) if lines.next().is_none() => Ok(Some(value)),
        _ => {
            let detail = format!("{name} cannot be read, or came twice; send it once, in ASCII");
            Err(Problem::new(StatusCode::FORBIDDEN, detail))
        }
    }
}

fn names_this_machine(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inside, port)) if port.is_empty() || port.starts_with(':') => inside,
            _ => return false,
        },
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
            (
                &[("host", "localhost:8080"), ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "image")],
                false,
            ),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "same-site")], false),
            (
                &[
                    ("host", "localhost:8080"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-dest", "document"),
                ],
                true,
            ),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "same-origin")], true),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "none")], true),
            (&[("host", "evil.example:8080")], false),
            (&[("host", "[127.0.0.1]evil.example")], false),
            (&[("host", "[::1")], false),
            (&[("host", "evil.example"), ("origin", "http://evil.example")], false),
        ] {
            assert_eq!(refuse(&headers(pairs), false).is_ok(), passes, "{pairs:?}");
        }
        let mut twice = headers(&[("host", "localhost:8080")]);
        twice.append("host", HeaderValue::from_static("evil.example"));
        assert!(refuse(&twice, false).is_err(), "two hosts");
        for name in ["host", "origin"] {
            let mut unreadable = headers(&[]);
            unreadable.append(name, HeaderValue::from_bytes(b"\xffevil.example").unwrap());
            assert!(refuse(&unreadable, false).is_err(), "{name}: present, and not readable");
        }
        let named = headers(&[("host", "tidegate.example:8443")]);
        assert!(
            refuse(&named, false).is_err() && refuse(&named, true).is_ok(),
            "a browser has looked at the certificate"
        );
        let foreign = headers(&[("host", "tidegate.example"), ("origin", "https://evil.example")]);
        assert!(refuse(&foreign, true).is_err(), "a browser shows its user's certificate for every page");
    }
}
