//! How much the original request matters, as one of our own proxies tells it.

use std::net::IpAddr;

use http::header::HeaderMap;
use tidegate::Priority;

use crate::problem::Problem;
use crate::proxy::Proxy;
use crate::spelling::quoted;

/// Reads the header that the file names, of a peer that is one of our own proxies: of anybody else it is the word of whoever wants to pass.
/// Without the header, or where it is empty, the request has the priority that the file says for this.
///
/// # Errors
/// 400 where it came several times, told as `proxys` has it, or is no priority.
pub(super) fn priority(
    headers: &HeaderMap,
    peer: IpAddr,
    proxy: &Proxy,
    proxys: impl Fn(String) -> Problem,
) -> Result<Priority, Problem> {
    let asks = proxy.asks()?;
    let name = asks.priority_header.as_ref().filter(|_| proxy.client_ip.trusts(peer));
    let Some(name) = name else { return Ok(asks.default_priority) };
    let mut lines = headers.get_all(name).iter().filter(|line| !line.is_empty());
    let Some(line) = lines.next() else { return Ok(asks.default_priority) };
    if lines.next().is_some() {
        let detail = format!(
            "{name} came several times; the proxy must set it itself, in place of what its caller sent"
        );
        return Err(proxys(detail));
    }
    // Not for the log: a caller may have written it.
    let value = String::from_utf8_lossy(line.as_bytes());
    value.parse().map_err(|error| Problem::bad_request(format!("{name}: {} {error}", quoted(&value))))
}
