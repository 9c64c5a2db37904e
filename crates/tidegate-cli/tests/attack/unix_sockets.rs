//! The server behind a Unix socket, asked through nginx.

use crate::attack::proxy::Proxy;
use crate::attack::raw::ask;
use crate::attack::serving::{Desk, Serving};

/// A caller behind nginx is limited by the address that nginx forwards, as over TCP.
#[test]
fn nginx_asks_over_a_socket() {
    let policies = "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: nginx }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 2/day }
";
    let desk = Desk::with(policies);
    let socket = desk.path("tidegate.sock");
    let address = format!("unix:{},mode=666", socket.display());
    let _server = Serving::start(desk.command(&["serve", "--http", &address, "-c", "p.yaml"]));
    let Some(proxy) = Proxy::nginx_with(&format!("server unix:{};", socket.display())) else { return };
    let statuses = [(); 3].map(|()| ask(proxy.addr, "GET", "/api/thing", &[], b"").status);
    assert_eq!(statuses, [200, 200, 429]);
}
