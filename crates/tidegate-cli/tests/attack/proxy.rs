//! Real proxies in front of the server, with the configuration that the manual prints.
//!
//! Needs the Debian packages `nginx`, `caddy` and `haproxy`. If one is missing, the test prints a message and is
//! skipped; with `TIDEGATE_REQUIRE_SERVERS=1` it fails.
//!
//! `crates/tidegate-server/tests/proxies.rs` also includes this file and `waiting.rs`, so this file must not use
//! other modules of the attacks.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tidegate_testkit::free_port;

use super::waiting::{PATIENCE, within};

/// A proxy with a small site behind it. Dropping it stops the proxy, however the test ends.
pub(crate) struct Proxy {
    child: Child,
    pub(crate) addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // SIGTERM to the master also stops its workers; SIGKILL would leave them running.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// Returns the first code block of the manual with this beginning.
#[track_caller]
pub(crate) fn manual(begins: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/forward-auth.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```").skip(1).step_by(2);
    let block = blocks.filter_map(|block| block.split_once('\n')).find(|(_, text)| text.starts_with(begins));
    block.unwrap_or_else(|| panic!("the manual has no block that begins with `{begins}`")).1.to_owned()
}

/// Replaces the manual's addresses by those of the test; each must occur.
#[track_caller]
fn in_place(mut block: String, words: &[(&str, String)]) -> String {
    for (manuals, ours) in words {
        assert!(block.contains(manuals), "the manual's block no longer says `{manuals}`:\n{block}");
        block = block.replace(manuals, ours);
    }
    block
}

/// Applies one of the manual's recipes to its nginx block. Each part of a recipe begins with a line that tells where
/// it belongs.
#[track_caller]
fn cooked(block: String, recipe: &str) -> String {
    let refused = "location @refused { auth_request off; return 429 \"slow down\\n\"; }";
    let mut places = Vec::new();
    for line in recipe.lines() {
        let place = match line {
            "# in http" => "http {",
            "# in server" => "server_name example.org;",
            "# in location = /_tidegate" => "internal;",
            "# in place of location @refused" => refused,
            line => {
                let (_, text): &mut (&str, String) =
                    places.last_mut().expect("a recipe says where it belongs");
                *text += line;
                *text += "\n";
                continue;
            }
        };
        let text = if place == refused { String::new() } else { format!("{place}\n") };
        places.push((place, text));
    }
    in_place(block, &places)
}

/// The beginnings of the manual's recipes for nginx.
pub(crate) const FAILS_OPEN: &str = "# in location = /_tidegate\nproxy_connect_timeout";
pub(crate) const NAMES_THE_POLICY: &str = "# in http\nmap $tidegate_policy";
pub(crate) const SAYS_THE_PRIORITY: &str = "# in http\ngeo $tidegate_priority";

impl Proxy {
    /// Starts nginx with the manual's block, asking this server. `None` if nginx is not installed.
    pub(crate) fn nginx(tidegate: SocketAddr) -> Option<Self> {
        Self::nginx_with(&format!("server {tidegate};"))
    }

    /// Like [`Proxy::nginx`], with other `server` lines in the block's `upstream`.
    pub(crate) fn nginx_with(servers: &str) -> Option<Self> {
        Self::nginx_set(servers, "")
    }

    /// Like [`Proxy::nginx_with`], with more directives in the `http` block.
    pub(crate) fn nginx_set(servers: &str, more: &str) -> Option<Self> {
        Self::nginx_of(manual("http {"), servers, more)
    }

    /// Like [`Proxy::nginx`], changed by those of the manual's recipes that have these beginnings.
    pub(crate) fn nginx_by_recipes(tidegate: SocketAddr, recipes: &[&str]) -> Option<Self> {
        let block = recipes.iter().fold(manual("http {"), |block, begins| cooked(block, &manual(begins)));
        Self::nginx_of(block, &format!("server {tidegate};"), "")
    }

    /// Like [`Proxy::nginx`], but over TLS: these lines replace the block's `proxy_pass`.
    #[allow(dead_code, reason = "only the tests of TLS start it")]
    pub(crate) fn nginx_over_tls(tidegate: SocketAddr, lines: String) -> Option<Self> {
        let block = in_place(manual("http {"), &[("proxy_pass http://tidegate/v1/forward-auth;", lines)]);
        Self::nginx_of(block, &format!("server {tidegate};"), "")
    }

    /// Like [`Proxy::nginx_by_recipes`] with one recipe, in which some words are replaced.
    pub(crate) fn nginx_by_recipe(
        tidegate: SocketAddr,
        begins: &str,
        words: &[(&str, String)],
    ) -> Option<Self> {
        let block = cooked(manual("http {"), &in_place(manual(begins), words));
        Self::nginx_of(block, &format!("server {tidegate};"), "")
    }

    /// Like [`Proxy::nginx_by_recipes`], in front of this application. `words` are replaced in the block.
    #[allow(dead_code, reason = "only the tests of the server start it")]
    pub(crate) fn nginx_before(
        app: SocketAddr,
        tidegate: SocketAddr,
        recipes: &[&str],
        words: &[(&str, String)],
    ) -> Option<Self> {
        let block = recipes.iter().fold(manual("http {"), |block, begins| cooked(block, &manual(begins)));
        let passes = format!("root /srv/site; location / {{ proxy_pass http://{app}; }}");
        let block = in_place(in_place(block, words), &[("root /srv/site;", passes)]);
        Self::nginx_of(block, &format!("server {tidegate};"), "")
    }

    fn nginx_of(block: String, servers: &str, more: &str) -> Option<Self> {
        there("nginx")?;
        let (dir, port) = (site(), free_port());
        let prefix = dir.path().display().to_string();
        let http = in_place(
            block,
            &[
                ("server 127.0.0.1:8080;", servers.to_owned()),
                ("listen 80;", format!("listen 127.0.0.1:{port};")),
                ("root /srv/site;", format!("root {prefix}/site;")),
            ],
        );
        let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {prefix}/{kind};"))
            .join(" ");
        // `off` would also disable all other access logs.
        let silent = if more.contains("access_log") { "" } else { "access_log off;" };
        let http = http.replacen(
            "http {",
            &format!("http {{ {silent} types {{ }} default_type text/plain; {folders} {more}"),
            1,
        );
        let config = format!(
            "daemon off; master_process off; pid {prefix}/nginx.pid; error_log {prefix}/error.log;\n\
             events {{ worker_connections 512; }}\n{http}"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir.path()).arg("-e").arg(dir.path().join("error.log")).arg("-c").arg(file);
        Some(Self::start(command, dir, port))
    }

    /// Starts Caddy with the manual's block, asking this server; the site is `example.org`. `None` if Caddy is not
    /// installed.
    pub(crate) fn caddy(tidegate: SocketAddr) -> Option<Self> {
        Self::caddy_set(tidegate, "")
    }

    /// Like [`Proxy::caddy`], with more directives in its `forward_auth`.
    pub(crate) fn caddy_set(tidegate: SocketAddr, more: &str) -> Option<Self> {
        there("caddy")?;
        let (dir, port) = (site(), free_port());
        let block = in_place(
            manual("example.org {"),
            &[
                ("example.org {", format!("http://example.org:{port} {{\n  bind 127.0.0.1")),
                ("127.0.0.1:8080", tidegate.to_string()),
                ("uri /v1/forward-auth?", format!("uri /v1/forward-auth?\n{more}")),
                ("/srv/site", dir.path().join("site").display().to_string()),
            ],
        );
        Some(Self::caddy_of(&block, dir, port))
    }

    /// Starts Caddy with the manual's block for applications, in front of this one. `words` are replaced in the block.
    #[allow(dead_code, reason = "only the tests of the server start it")]
    pub(crate) fn caddy_before(
        app: SocketAddr,
        tidegate: SocketAddr,
        words: &[(&str, String)],
    ) -> Option<Self> {
        there("caddy")?;
        let (dir, port) = (site(), free_port());
        let block = in_place(
            in_place(manual("app.example.org {"), words),
            &[
                ("app.example.org {", format!("http://example.org:{port} {{\n  bind 127.0.0.1")),
                ("127.0.0.1:8080", tidegate.to_string()),
                ("127.0.0.1:3000", app.to_string()),
            ],
        );
        Some(Self::caddy_of(&block, dir, port))
    }

    fn caddy_of(block: &str, dir: tempfile::TempDir, port: u16) -> Self {
        let home = dir.path().join("caddy");
        let config = format!(
            "{{\n  admin off\n  auto_https off\n  storage file_system {}\n}}\n{block}",
            home.display()
        );
        let file = dir.path().join("Caddyfile");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
        for name in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
            command.env(name, dir.path());
        }
        Self::start(command, dir, port)
    }

    /// Starts HAProxy with the manual's script and configuration, asking this server. `None` if HAProxy is not
    /// installed.
    #[allow(dead_code, reason = "only the tests of the server start it")]
    pub(crate) fn haproxy(tidegate: SocketAddr) -> Option<Self> {
        let page =
            |text: &str| format!("http-request return status 200 content-type text/plain string \"{text}\"");
        let site = format!("{} if {{ path /api/thing }}\n  {}", page("a thing"), page("the front page"));
        Self::haproxy_of(tidegate, &[("server app 127.0.0.1:3000", site)])
    }

    /// Like [`Proxy::haproxy`], in front of this application. `words` are replaced in the configuration.
    #[allow(dead_code, reason = "only the tests of the server start it")]
    pub(crate) fn haproxy_before(
        app: SocketAddr,
        tidegate: SocketAddr,
        words: &[(&str, String)],
    ) -> Option<Self> {
        let mut all = words.to_vec();
        all.push(("server app 127.0.0.1:3000", format!("server app {app}")));
        Self::haproxy_of(tidegate, &all)
    }

    #[allow(dead_code, reason = "only the tests of the server start it")]
    fn haproxy_of(tidegate: SocketAddr, words: &[(&str, String)]) -> Option<Self> {
        there("haproxy")?;
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let script = dir.path().join("tidegate.lua");
        let asked = [("127.0.0.1:8080", tidegate.to_string())];
        std::fs::write(&script, in_place(manual("-- /etc/haproxy/tidegate.lua"), &asked)).unwrap();
        let config = in_place(
            in_place(manual("global\n  lua-load"), words),
            &[
                ("/etc/haproxy/tidegate.lua", script.display().to_string()),
                ("bind :80", format!("bind 127.0.0.1:{port}")),
            ],
        );
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, config + "\n").unwrap();
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(file);
        Some(Self::start(command, dir, port))
    }

    fn start(mut command: Command, dir: tempfile::TempDir, port: u16) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut proxy = Self { child, addr, _dir: dir };
        // A refused connection takes microseconds, so this loop ends soon either way.
        within(PATIENCE, "the proxy listens", || {
            assert_eq!(proxy.child.try_wait().unwrap(), None, "the proxy ended");
            TcpStream::connect(addr).is_ok()
        });
        proxy
    }
}

/// A small site: a front page, a thing under `/api/` and something free of limits.
fn site() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("site/api")).unwrap();
    std::fs::write(dir.path().join("site/index.html"), "the front page").unwrap();
    std::fs::write(dir.path().join("site/free"), "free of limits").unwrap();
    std::fs::write(dir.path().join("site/api/thing"), "a thing").unwrap();
    std::fs::write(dir.path().join("site/api/secret"), "a secret").unwrap();
    std::fs::create_dir_all(dir.path().join("site/paths")).unwrap();
    std::fs::write(dir.path().join("site/paths/thing"), "a path's thing").unwrap();
    dir
}

/// Returns `None`, and prints a message, if a program is not installed.
fn there(program: &str) -> Option<()> {
    let version = if program == "caddy" { "version" } else { "-v" };
    let asked = Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if asked.is_ok() {
        return Some(());
    }
    let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "{program} is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install {program}"
    );
    eprintln!("SKIPPED: {program} is not installed; apt-get install {program}");
    None
}
