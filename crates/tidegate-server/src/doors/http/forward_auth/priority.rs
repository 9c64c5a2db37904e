//! Reads the priority of the original request from a header of a trusted proxy.

use std::net::IpAddr;

use http::header::HeaderMap;
use tidegate::Priority;

use crate::problem::Problem;
use crate::proxy::Proxy;
use crate::spelling::quoted;

/// Reads the header that the file names, but only from a peer that is a trusted proxy: anybody else could claim any
/// priority. If the header is missing or empty, the priority is the one that the file sets for this case.
///
/// # Errors
/// 400 if the header came several times (as a problem of the proxy, by `proxys`) or is not a priority.
pub(super) fn priority(
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
