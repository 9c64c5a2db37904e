//! Reads the original request from the headers of a sub-request.
//!
//! Its method, path and host come from the three headers of the configured family, which the proxy sets. Each must be
//! present exactly once and valid. Anything else shows that the proxy does not set it, so its value could come from the
//! caller. Every other header is the caller's, and becomes `request.header.<name>`.
//!
//! A caller chooses which headers to send, and how many. Headers that policies name are kept whatever else is there and
//! however long they are; the bound on a request head limits them. Other headers decide nothing: they are read only for
//! a refusal, which is remembered, and fill the room that is left. Bytes that are not UTF-8 are percent-encoded, so
//! that such values count and are not treated as absent.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Method;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED,
    HOST, HeaderMap, HeaderName, HeaderValue, VIA,
};
use percent_encoding::percent_encode_byte;
use tidegate::Priority;
use tidegate::config::ForwardAuth;
use tidegate::policy::{ClientIpError, Descriptor, IpSource};

use super::super::request_body::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
use crate::problem::Problem;
use crate::proxy::{HEADER, Proxy};
use crate::spelling::quoted;

const TOKEN: HeaderName = HeaderName::from_static("x-tidegate-token");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers that are defined as lists, so that several lines are one list.
const LISTS: [HeaderName; 8] =
    [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, COOKIE, FORWARDED, VIA, X_FORWARDED_FOR];

/// The request that the proxy received.
#[derive(Debug)]
pub(super) struct Original<'r> {
    pub(super) method: &'r str,
    pub(super) descriptor: Descriptor<'r>,
    pub(super) priority: Priority,
}

impl<'r> Original<'r> {
    /// Reads the parts of the original request that decide; `peer` is the other end of the connection. [`add_others`]
    /// reads the rest.
    ///
    /// # Errors
    /// 503 if the door is not set up. 400 if the proxy does not set its headers correctly. The door's status for
    /// refusals, or 400, if the caller sent a header that policies name in a form that two readers would interpret
    /// differently.
    pub(super) fn of(headers: &'r HeaderMap, peer: IpAddr, proxy: &Proxy) -> Result<Self, Problem> {
        let forward_auth = proxy.forward_auth()?;
        let family = &forward_auth.original;
        let proxys = |detail: String| Problem::bad_request(detail).of_proxy();
        let set =
            |name: &str, known: &Option<HeaderName>| once(headers, name, known.as_ref()).map_err(proxys);
        let [method, uri, host] = &proxy.original;
        let (method, uri, host) =
            (set(family.method(), method)?, set(family.uri(), uri)?, set(family.host(), host)?);
        // Not the proxy's problem: a caller can send such a host, and would use up a kind of what is told.
        let is_not_a = |what: &str, name: &str, value: &HeaderValue| {
            let value = text(value);
            Problem::bad_request(format!(
                "{name}: {} is not a {what}; the proxy must set this header itself",
                quoted(&value)
            ))
        };
        let method = Method::from_bytes(method.as_bytes())
            .ok()
            .and(method.to_str().ok())
            .ok_or_else(|| is_not_a("method", family.method(), method))?;
        let path = path(text(uri)).ok_or_else(|| is_not_a("path", family.uri(), uri))?;
        if proxy.policies.is_ambiguous_path(&path) {
            let shown = quoted(&path);
            return Err(proxy.refused(format!(
                "servers read the `..` of {shown} differently, and a policy depends on the path; send it without"
            )));
        }
        let host = host_name(text(host)).ok_or_else(|| is_not_a("host", family.host(), host))?;
        let priority = priority(headers, peer, proxy, proxys)?;
        let lines = proxy.forwarded.iter().flat_map(|name| headers.get_all(name)).map(HeaderValue::as_bytes);
        let client = proxy.client_ip.find(peer, lines).map_err(|error| match error {
            // A caller can write this entry, as it can the host.
            ClientIpError::Unreadable { hop: 2.., .. } => Problem::bad_request(error.to_string()),
            error => proxys(error.to_string()),
        })?;
        if client.from == IpSource::Peer {
            proxy.took_peer_for_caller(client.address, headers);
        }

        let mut descriptor = Descriptor::from([
            ("request.method", Cow::Borrowed(method)),
            ("request.path", path),
            ("request.host", host),
            ("client.ip", Cow::Owned(written(client.address))),
        ]);
        if proxy.names_headers {
            add_named(headers, proxy, &mut descriptor)?;
        }
        Ok(Self { method, descriptor, priority })
    }
}

/// Reads the priority of the original request from the header that the file names, but only from a peer that is a
/// trusted proxy: anybody else could claim any priority. If the header is missing or empty, the priority is the one that
/// the file sets for this case.
///
/// # Errors
/// 400 if the header came several times (as a problem of the proxy, by `proxys`) or is not a priority.
fn priority(
    headers: &HeaderMap,
    peer: IpAddr,
    proxy: &Proxy,
    proxys: impl Fn(String) -> Problem,
) -> Result<Priority, Problem> {
    let forward_auth = proxy.forward_auth()?;
    let name = forward_auth.priority_header.as_ref().filter(|_| proxy.client_ip.trusts(peer));
    let Some(name) = name else { return Ok(forward_auth.default_priority) };
    let mut lines = headers.get_all(name).iter().filter(|line| !line.is_empty());
    let Some(line) = lines.next() else { return Ok(forward_auth.default_priority) };
    if lines.next().is_some() {
        let detail = format!(
            "{name} came several times; the proxy must set it itself, and replace what its caller sent"
        );
        return Err(proxys(detail));
    }
    // Not the proxy's problem: a caller may have written it.
    let value = String::from_utf8_lossy(line.as_bytes());
    value.parse().map_err(|error| Problem::bad_request(format!("{name}: {} {error}", quoted(&value))))
}

/// Adds the headers that no policy names, for later questions why the request was refused: as many as fit into 64
/// attributes.
pub(super) fn add_others<'r>(headers: &'r HeaderMap, proxy: &Proxy, descriptor: &mut Descriptor<'r>) {
    let Ok(forward_auth) = proxy.forward_auth() else { return };
    let mut room = MAX_ATTRIBUTES.saturating_sub(descriptor.pairs().count());
    for name in headers.keys().filter(|name| **name != TOKEN && is_the_callers(name, forward_auth)) {
        if room == 0 {
            return;
        }
        let (attribute, value) = ([HEADER, name.as_str()].concat(), joined(headers, name));
        let fits = name.as_str().len() <= MAX_NAME && value.len() <= MAX_VALUE;
        if fits && !proxy.named.contains(&attribute) {
            room -= 1;
            descriptor.push(attribute, value);
        }
    }
}

/// Adds the headers that policies name.
///
/// # Errors
/// If the caller sent one in a form that two readers would interpret differently.
fn add_named<'r>(
    headers: &'r HeaderMap,
    proxy: &Proxy,
    descriptor: &mut Descriptor<'r>,
) -> Result<(), Problem> {
    let mut attribute = String::from(HEADER);
    for name in headers.keys().filter(|name| **name != TOKEN) {
        attribute.truncate(HEADER.len());
        attribute.push_str(name.as_str());
        if proxy.named.contains(&attribute) {
            let value = value_of(headers, name).map_err(|detail| proxy.refused(detail))?;
            descriptor.push(attribute.clone(), value);
        } else if proxy.is_taken_for_named(name) {
            let shown = quoted(name.as_str());
            return Err(proxy.refused(format!(
                "many programs treat the header {shown} like one that policies name; send that one, with its dashes"
            )));
        }
    }
    Ok(())
}

/// Returns whether a header belongs to the original request, and not to the sub-request or the proxy.
fn is_the_callers(name: &HeaderName, forward_auth: &ForwardAuth) -> bool {
    ![CONNECTION, CONTENT_LENGTH, HOST].contains(name)
        && forward_auth.headers().all(|own| own != name.as_str())
}

/// Formats an address. IPv4 is done by hand: the formatter takes ten times as many instructions, and this runs for each
/// request.
fn written(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let (mut text, mut number) = (String::with_capacity("255.255.255.255".len()), itoa::Buffer::new());
    for (place, part) in address.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        text.push_str(number.format(part));
    }
    text
}

/// Returns the value of a header that the proxy sets, which must be present exactly once and not empty. `known` is the
/// parsed name, if the name is valid.
fn once<'r>(
    headers: &'r HeaderMap,
    name: &str,
    known: Option<&HeaderName>,
) -> Result<&'r HeaderValue, String> {
    let mut lines = known.into_iter().flat_map(|known| headers.get_all(known));
    let line = lines.next().filter(|line| !line.is_empty());
    let line = line.ok_or_else(|| {
        format!("the proxy sent no {name}, which describes the original request; have it set that header, or name another proxy under forward_auth")
    })?;
    match lines.count() {
        0 => Ok(line),
        others => Err(format!(
            "{name} came {} times; the proxy must set it itself, and replace what its caller sent",
            others + 1
        )),
    }
}

/// Returns the value of a header that policies use: one that they name, or one that says how long a caller waits.
///
/// # Errors
/// If it came with two values. The programs behind the proxy take the first, the last or both, so a caller could be
/// limited by one and served by the other.
fn value_of<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<Cow<'r, str>, String> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if LISTS.contains(name) || first.is_none() {
        return Ok(joined(headers, name));
    }
    if lines.any(|line| Some(line) != first) {
        let shown = quoted(name.as_str());
        return Err(format!("the header {shown} came with several values; policies go by one, so send one"));
    }
    Ok(first.map(text).unwrap_or_default())
}

/// Joins the lines of one header as RFC 9110 defines, and those of a cookie as RFC 6265 does.
fn joined<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Cow<'r, str> {
    let mut lines = headers.get_all(name).iter().map(text);
    let Some(mut all) = lines.next() else { return Cow::Borrowed("") };
    for line in lines {
        let all = all.to_mut();
        all.push_str(if *name == COOKIE { "; " } else { ", " });
        all.push_str(&line);
    }
    all
}

/// Returns a value as text. Bytes that are not UTF-8 are percent-encoded, like those in a path by RFC 3986.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    let mut chunks = value.as_bytes().utf8_chunks();
    let Some(first) = chunks.next() else { return Cow::Borrowed("") };
    if first.invalid().is_empty() {
        // Only the last chunk has no invalid bytes after it.
        return Cow::Borrowed(first.valid());
    }
    let mut out = String::new();
    for chunk in std::iter::once(first).chain(chunks) {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|byte| percent_encode_byte(*byte)));
    }
    Cow::Owned(out)
}

/// Reduces a URL to path and query; policies ignore the query. `None` if the value is neither a path, nor `*`, nor a
/// URL.
fn path(uri: Cow<'_, str>) -> Option<Cow<'_, str>> {
    match uri {
        Cow::Borrowed(uri) => path_of(uri).map(Cow::Borrowed),
        Cow::Owned(uri) => path_of(&uri).map(|path| Cow::Owned(path.to_owned())),
    }
}

fn path_of(uri: &str) -> Option<&str> {
    if uri.starts_with('/') || uri == "*" {
        return Some(uri);
    }
    let (scheme, rest) = uri.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let after = rest.find(['/', '?', '#']).map_or("/", |start| &rest[start..]);
    is_scheme.then_some(if after.starts_with('/') { after } else { "/" })
}

/// Lower-cases a host, and removes its port and a trailing dot; `None` if it is not a host.
fn host_name(authority: Cow<'_, str>) -> Option<Cow<'_, str>> {
    let is_odd = |byte: u8| byte.is_ascii_whitespace() || b",/\\@?#".contains(&byte);
    if authority.bytes().any(is_odd) {
        return None;
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority.as_ref(),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    // A second port: servers disagree on where the name ends.
    if host.is_empty() || (host.contains(':') && !host.starts_with('[')) {
        return None;
    }
    let plain = host.len() == authority.len() && !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if plain { authority } else { Cow::Owned(host.to_ascii_lowercase()) })
}

#[cfg(test)]
mod tests;
