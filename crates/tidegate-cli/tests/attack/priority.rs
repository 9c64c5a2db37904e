//! A stranger behind a proxy claims a priority, to use the part of a limit that is reserved for it.

use std::net::SocketAddr;

use crate::attack::forward_auth::{is_refused, served};
use crate::attack::proxy::{Proxy, SAYS_THE_PRIORITY};
use crate::attack::serving::Desk;

/// Ten a day, all but one reserved for callers of a higher priority than the stranger, who claims that priority.
const KEPT: &str = "version: 1
client_ip: { trusted_proxies: [TRUSTED] }
forward_auth: { proxy: PROXY, priority_header: x-priority }
policies:
  - name: api
    limit: { rate: 10/day, keep_for: { critical: 9, critical-plus: 8 } }
";

/// Spellings of a header that claims the reserved part.
const PRIORITIES: [&[u8]; 12] = [
    b"X-Priority: critical-plus",
    b"x-priority: critical-plus",
    b"X-Priority:critical-plus\t",
    b"X_Priority: critical-plus",
    b"X-Priority: critical-plus, critical-plus",
    b"X-Priority: critical-plus/0",
    b"X-Priority: \xff",
    b"X-Priority:",
    b"Connection: X-Priority",
    b"X-Forwarded-Priority: critical-plus",
    b"Priority: u=0",
    b"HTTP_X_PRIORITY: critical-plus",
];

/// Requires that a stranger gets the one unit that is not reserved, and no other.
fn nobody_raises_himself(proxy: SocketAddr) {
    assert_eq!(served(proxy, "/api/thing", &[]), 200, "the one of the day");
    for one in PRIORITIES {
        is_refused(proxy, b"GET", b"/api/thing", &[one]);
        is_refused(proxy, b"GET", b"/api/thing", &[one, one]);
        for other in PRIORITIES {
            is_refused(proxy, b"GET", b"/api/thing", &[one, other]);
        }
    }
}

#[test]
fn nobody_raises_himself_above_others_who_matter_more() {
    let file = |proxy: &str| KEPT.replace("TRUSTED", "127.0.0.0/8").replace("PROXY", proxy);
    let mut serving = Desk::with(&file("nginx")).serve(&[]);
    let all = [("198.51.100.0/24", "127.0.0.0/8".to_owned())];
    if let Some(nginx) = Proxy::nginx_by_recipe(serving.addr, SAYS_THE_PRIORITY, &all) {
        nobody_raises_himself(nginx.addr);
    }
    serving.is_well();
    let mut serving = Desk::with(&file("caddy")).serve(&[]);
    if let Some(caddy) = Proxy::caddy_set(serving.addr, "header_up X-Priority sheddable") {
        nobody_raises_himself(caddy.addr);
    }
    serving.is_well();
    // The header may get lost at the proxy, as Traefik drops headers that the caller names in `Connection`: the file
    // then gives the default priority.
    let lost = file("caddy")
        .replace("priority_header: x-priority", "priority_header: x-priority, default_priority: sheddable");
    let mut serving = Desk::with(&lost).serve(&[]);
    if let Some(caddy) = Proxy::caddy_set(serving.addr, "header_up -X-Priority") {
        nobody_raises_himself(caddy.addr);
    }
    serving.is_well();
    // Behind an untrusted proxy that forwards the header, all callers are critical: they share what is available to
    // critical ones.
    let unnamed = KEPT.replace("TRUSTED", "10.0.0.0/8").replace("PROXY", "nginx");
    let mut serving = Desk::with(&unnamed).serve(&[]);
    if let Some(nginx) = Proxy::nginx(serving.addr) {
        assert_eq!(served(nginx.addr, "/api/thing", &[]), 200);
        nobody_raises_himself(nginx.addr);
    }
    serving.is_well();
}
