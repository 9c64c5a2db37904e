//! Refuses requests that only a web page would send, on servers without tokens.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};
use http::{HeaderName, StatusCode};

use crate::problem::Problem;

/// The origin of the page that made the browser send the request, and the use of the answer (W3C, Fetch Metadata
/// Request Headers).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Refuses requests that only a web page would send to a server without a token.
///
/// A page can map its own name to this machine; then its requests are same-origin. Over TLS (`encrypted`) that does not
/// work, since the browser wants a certificate for that name. So any host name is accepted there.
///
/// # Errors
/// 403 for a foreign origin, and without TLS also for a host name that is not this machine's.
pub(super) fn refuse(headers: &HeaderMap, encrypted: bool) -> Result<(), Problem> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (host, origin) = (once(headers, &HOST)?, once(headers, &ORIGIN)?);
    // A page's images and scripts are requested without an `Origin` header, so they are refused here: a pending request
    // holds a connection open. Followed links (`document`) are allowed, because a person clicked them.
    let of_a_page = text(&FETCH_SITE).is_some_and(|site| matches!(site, "cross-site" | "same-site"));
    if of_a_page && text(&FETCH_DEST) != Some("document") {
        let detail =
            "a web page of another origin may not use this server; set a token and send it from a program";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let host = host.unwrap_or_default();
    if let Some(origin) = origin
        && origin.split_once("://").map(|(_, authority)| authority) != Some(host)
    {
        let detail =
            "a web page of another origin may not use this server; set a token and send it from a program";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).with("origin", origin));
    }
    if !encrypted && !host.is_empty() && !names_this_machine(host) {
        let detail = "without a token, the server answers only requests for a loopback address or localhost; use 127.0.0.1 or \
                      localhost in the URL, or set a token";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).with("host", host));
    }
    Ok(())
}

/// Returns the value of a header that may be present at most once.
///
/// # Errors
/// 403 if it is present twice, or cannot be read.
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
