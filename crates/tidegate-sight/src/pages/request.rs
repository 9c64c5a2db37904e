//! A request for a page: its parameters, its cookies, and whether its form comes from its own page.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::header::{COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode};

use super::context::PageError;
use super::session;

/// The most parameters of a URL or a form.
const MOST_PAIRS: usize = 64;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The cookie that remembers the colours.
pub(super) const THEME_COOKIE: &str = "tidegate_theme";

/// A request, read.
#[derive(Debug)]
pub(super) struct PageRequest {
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) fields: Vec<(String, String)>,
    headers: HeaderMap,
    /// Who it was sent to: `Host`, or the authority of the URL.
    host: String,
    /// The same as a URL, for commands to copy.
    pub(super) address: String,
    /// Where it comes from, if the server says so.
    pub(super) source: Option<IpAddr>,
    pub(super) is_post: bool,
}

impl PageRequest {
    pub(super) fn of(parts: Parts, body: &Bytes, encrypted: bool) -> Self {
        let Parts { method, uri, headers, extensions, .. } = parts;
        let is_post = method == Method::POST;
        let host = only(&headers, &HOST).map(str::to_owned);
        let host = host.or_else(|| uri.authority().map(|authority| authority.as_str().to_owned()));
        let host = host.unwrap_or_default();
        let is_plain =
            |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | ':' | '-' | '_' | '[' | ']');
        // What stands in a command must not end it.
        let at = if !host.is_empty() && host.len() <= 255 && host.chars().all(is_plain) {
            &*host
        } else {
            "127.0.0.1:8080"
        };
        let scheme = if encrypted { "https" } else { "http" };
        Self {
            path: uri.path().to_owned(),
            query: pairs(uri.query().unwrap_or_default().as_bytes()),
            fields: if is_post { pairs(body) } else { Vec::new() },
            address: format!("{scheme}://{at}"),
            source: extensions.get::<SocketAddr>().map(|peer| session::source_of(peer.ip())),
            host,
            headers,
            is_post,
        }
    }

    /// The value of a cookie, if it came once.
    pub(super) fn cookie(&self, name: &str) -> Option<&str> {
        let lines = self.headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let cookies =
            lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        let mut values = cookies.filter(|(have, _)| *have == name).map(|(_, value)| value);
        match (values.next(), values.next()) {
            (Some(value), None) => Some(value),
            _ => None,
        }
    }

    pub(super) fn theme(&self) -> Option<&'static str> {
        self.cookie(THEME_COOKIE).and_then(theme)
    }

    fn is_of(&self, site: &str) -> bool {
        self.headers.get(&FETCH_SITE).is_some_and(|value| value.as_bytes() == site.as_bytes())
    }

    /// Whether `Origin`, if there is one, is where the request was sent to; `None` without one.
    fn is_same_origin(&self) -> Option<bool> {
        let mut lines = self.headers.get_all(ORIGIN).iter();
        let first = lines.next()?;
        let authority = first.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, at)| at);
        Some(lines.next().is_none() && !self.host.is_empty() && authority == Some(self.host.as_str()))
    }

    /// Checks that a form was sent by its own page. Browsers say where it comes from (`Sec-Fetch-Site`); older ones
    /// send its `Origin`.
    pub(super) fn refuse_foreign_form(&self, secret: &str) -> Result<(), PageError> {
        let site = self.headers.get_all(&FETCH_SITE).iter().count();
        let is_own = match site {
            0 => self.is_same_origin() == Some(true),
            1 => self.is_of("same-origin") && self.is_same_origin() != Some(false),
            _ => false,
        };
        if !is_own {
            let detail = "the form does not come from this server's own page, so nothing was done; open the page itself";
            return Err(PageError::new(StatusCode::FORBIDDEN, detail));
        }
        let mut sent = self.fields.iter().filter(|(name, _)| name == "form").map(|(_, value)| value);
        let is_right = match (sent.next(), sent.next()) {
            (Some(sent), None) => !secret.is_empty() && session::is_same(sent, secret),
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        let detail = "the form is of an earlier login or start of the server, so nothing was done; go back, read the page \
                      again, and send it again";
        Err(PageError::new(StatusCode::FORBIDDEN, detail))
    }
}

/// Returns the value of a header that may come once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => line.to_str().ok(),
        _ => None,
    }
}

fn pairs(text: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(text)
        .take(MOST_PAIRS)
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect()
}

pub(super) fn theme(word: &str) -> Option<&'static str> {
    ["dark", "light"].into_iter().find(|theme| *theme == word)
}
