//! Encrypted doors, over real sockets: real clients, client certificates, renewal under open connections, and clients
//! that violate the protocol.

use crate::running;

mod caller;
mod clients;
pub(crate) mod made;
mod mutual;
mod plain_text;
#[cfg(unix)]
mod proxies;
mod renewal;
mod start;

use std::net::SocketAddr;

use made::Folder;
use running::{Running, start_with};
use tidegate::config::TlsSettings;
use tidegate_server::ServerOptions;
use tidegate_testkit::free_address;

const POLICIES: &str = "
version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: per-user
    by: [user.id]
    limit: { rate: 3/min }
";

/// A server whose doors are encrypted, except the one for operations.
struct Doors {
    server: Running,
    http: SocketAddr,
    admin: SocketAddr,
    grpc: SocketAddr,
    resp: SocketAddr,
}

/// Starts a server with the folder's certificate.
async fn started(folder: &Folder) -> Doors {
    started_with(folder, |_| {}).await
}

/// Starts a server with other options.
async fn started_with(folder: &Folder, change: impl FnOnce(&mut ServerOptions)) -> Doors {
    let [admin, grpc, resp] = [free_address(), free_address(), free_address()];
    let server = start_with(POLICIES, |mut options| {
        options.admin = Some(admin.into());
        options.grpc = Some(grpc.into());
        options.resp = Some(resp.into());
        let mut tls = TlsSettings::new(folder.path("server.pem"), folder.path("server.key"));
        tls.plain = vec!["admin".parse().unwrap()];
        options.tls = Some(tls);
        change(&mut options);
        options
    })
    .await;
    Doors { http: server.addr, server, admin, grpc, resp }
}

impl Doors {
    /// Reads one number of the metrics.
    async fn metric(&self, series: &str) -> f64 {
        let page = running::send(self.admin, http::Method::GET, "/metrics", &[], "").await;
        let value = page.text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {}", page.text)).parse().unwrap()
    }

    /// Waits until a number of the metrics is this one.
    async fn until_metric(&self, series: &str, wanted: f64) {
        running::until(series, async || (self.metric(series).await - wanted).abs() < 0.5).await;
    }
}
