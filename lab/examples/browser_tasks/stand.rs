//! The server of a run: `tidegate serve` with the policies of a shop, a store on disk and two tokens, on loopback.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::{Process, folder, free_address, within};

/// The token of the shop, which asks for decisions.
pub(crate) const SHOP: &str = "0123456789abcdef-shop";

/// The name of the operator's token, and the token.
pub(crate) const OPERATOR: &str = "oncall";
pub(crate) const OPERATORS_TOKEN: &str = "0123456789abcdef-oncall";

/// The limit of `per-ip` before and after the change.
const BEFORE: &str = "rate: 20/s, burst: 40";
const AFTER: &str = "rate: 10/s, burst: 20";

const POLICIES: &str = r"version: 1
server: { http: HTTP, admin: ADMIN }
client_ip: { trusted_proxies: [127.0.0.0/8] }
store: { kind: disk, path: data, keys: 100000 }
defaults: { mode: enforce, near_limit: 80% }
policies:
  - name: everyone
    limit: { algorithm: token-bucket, rate: 500/s, burst: 500 }
    deny: { status: 503 }
  - name: per-ip
    match: { path: /api/** }
    by: [client.ip]
    limit: { algorithm: gcra, PER_IP }
    shadow_limit: { rate: 6/s }
  - name: per-tenant
    by: [tenant.id]
    limit: { algorithm: sliding-window, rate: { by: tenant.plan, values: { free: 120/min, pro: 600/min }, otherwise: 120/min } }
  - name: login
    match: { method: POST, path: /login }
    by: [client.ip, form.username]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
    deny: { problem: abnormal-usage-detected }
  - name: search
    match: { path: /api/search }
    limit: { algorithm: concurrency, max: 8, ttl: 5s }
  - name: reports
    mode: shadow
    match: { path: /api/report/** }
    by: [tenant.id]
    limit: { algorithm: gcra, rate: 1/s, burst: 5 }
  - name: bank
    match: { attributes: { upstream.name: bank } }
    by: [upstream.name]
    limit: { algorithm: breaker, failures: 50%, window: 10s, min_calls: 10, open_for: 5s }
";

/// The running server.
pub(crate) struct Stand {
    server: Process,
    file: PathBuf,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Stand {
    /// Starts the program. Returns when it listens.
    pub(crate) fn start(program: &Path) -> Self {
        let folder = folder();
        let (http, admin) = (free_address(), free_address());
        let file = folder.path().join("shop.yaml");
        std::fs::write(&file, policies(http, admin, BEFORE)).unwrap();
        let tokens = format!("shop check {SHOP}\n{OPERATOR} read,admin,keys,metrics {OPERATORS_TOKEN}\n");
        std::fs::write(folder.path().join("tokens"), tokens).unwrap();
        let mut command = Command::new(program);
        command.current_dir(folder.path());
        command.args(["serve", "-c", "shop.yaml", "--tokens-file", "tokens", "--no-watch"]);
        let stand = Self { server: Process::start(command, folder), file, http, admin };
        stand.until_up();
        stand
    }

    fn until_up(&self) {
        for address in [self.http, self.admin] {
            within("tidegate serve listens", || TcpStream::connect(address).is_ok());
        }
    }

    /// Where decisions are asked for.
    pub(crate) const fn http(&self) -> SocketAddr {
        self.http
    }

    /// The URL of a page.
    pub(crate) fn page(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// Lowers the limit of `per-ip` in the file, and has it read by the operator.
    pub(crate) fn change(&self) {
        std::fs::write(&self.file, policies(self.http, self.admin, AFTER)).unwrap();
        self.reload();
    }

    /// Has the file read again.
    pub(crate) fn reload(&self) {
        let ask = ureq::post(self.page("/v1/reload"));
        ask.header("authorization", format!("Bearer {OPERATORS_TOKEN}")).send_empty().unwrap();
    }

    /// Kills the server, as in a crash, and starts it again.
    pub(crate) fn crash(&mut self) {
        self.server.kill();
        self.server.start_again();
        self.until_up();
    }
}

fn policies(http: SocketAddr, admin: SocketAddr, per_ip: &str) -> String {
    POLICIES.replace("HTTP", &http.to_string()).replace("ADMIN", &admin.to_string()).replace("PER_IP", per_ip)
}
