//! Real clients: Envoy with the manual's own configuration, and the Python client of gRPC.
//!
//! Both are Python packages in the environment that `cargo xtask test` makes ([`python_program`]). If one is missing,
//! its test says so and skips, unless `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message as _;
use tidegate::config::{Imported, Peer};
use tidegate_testkit::{free_address, python_program};

use super::client::{Client, RATE_LIMIT, call};
use super::running::wire::{application, exchange};
use super::running::{Running, start, start_with, until};
use super::started;

/// The pages with the configuration.
const PAGES: [&str; 2] =
    [include_str!("../../../../docs/envoy.md"), include_str!("../../../../docs/token-budgets.md")];

/// Returns the block of the pages that begins with this line.
pub(super) fn block(begin: &str) -> &'static str {
    let (page, from) = PAGES.into_iter().find_map(|page| Some((page, page.find(begin)?))).unwrap();
    page[from..].split("```").next().unwrap()
}

/// Envoy in front of a program. Killed when dropped, so that a failed test does not leave it behind.
pub(super) struct Envoy {
    child: Child,
    front: SocketAddr,
    log: PathBuf,
    _app: Option<Running>,
    _dir: tempfile::TempDir,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Envoy {
    /// Starts Envoy with the page's configuration, which asks `grpc`; `change` edits the configuration.
    pub(super) async fn start(
        program: PathBuf,
        grpc: SocketAddr,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let app = start("version: 1\npolicies: []\n").await;
        Self::before(program, grpc, (app.addr, Some(app)), change).await
    }

    /// Like [`Envoy::start`], in front of this application.
    async fn before(
        program: PathBuf,
        grpc: SocketAddr,
        (addr, app): (SocketAddr, Option<Running>),
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let front = free_address();
        let port = |text: String, of: u16, to: SocketAddr| {
            let (from, to) = (format!("port_value: {of} "), format!("port_value: {} ", to.port()));
            assert!(text.contains(&from), "{of}");
            text.replace(&from, &to)
        };
        let text = port(port(port(block("# envoy.yaml").to_owned(), 10_000, front), 8081, grpc), 3000, addr);
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("envoy.yaml"), dir.path().join("log"));
        std::fs::write(&file, change(text)).unwrap();
        let child = Command::new(program)
            .args(["--concurrency", "1", "--log-level", "warn", "--use-dynamic-base-id", "-c"])
            .arg(&file)
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let envoy = Self { child, front, log, _app: app, _dir: dir };
        until("Envoy listens", async || tokio::net::TcpStream::connect(front).await.is_ok()).await;
        envoy
    }

    /// Requests a page with an additional header line; returns the head of the answer.
    pub(super) async fn get(&self, header: &str) -> String {
        let request =
            [b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n", header.as_bytes(), b"\r\n"];
        exchange(self.front, &request.concat()).await
    }
}

pub(super) fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or_default()
}

fn line<'a>(answer: &'a str, name: &str) -> &'a str {
    let lines = answer.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(have, _)| *have == name).map(|(_, value)| value).next().unwrap_or_default()
}

#[tokio::test]
async fn envoy_limits_by_the_manuals_configuration() {
    let Some(program) = python_program("envoy") else { return };
    let (server, grpc) =
        started(&block("# policies.yaml").replace("server: { grpc: 127.0.0.1:8081 }\n", "")).await;
    let envoy = Envoy::start(program, grpc, |text| text).await;
    for left in ["19", "18"] {
        let answer = envoy.get("").await;
        assert_eq!(status(&answer), "200", "{answer}");
        assert_eq!(line(&answer, "x-ratelimit-limit"), "20, 20;w=60;name=\"per-address\"");
        assert_eq!(line(&answer, "x-ratelimit-remaining"), left);
    }
    // Two descriptors: the limit of the key runs out first, and then neither is charged.
    for left in ["4", "3", "2", "1", "0"] {
        let answer = envoy.get("x-api-key: k1\r\n").await;
        assert_eq!((status(&answer), line(&answer, "x-ratelimit-remaining")), ("200", left), "{answer}");
    }
    let refused = envoy.get("x-api-key: k1\r\n").await;
    assert_eq!(status(&refused), "429", "{refused}");
    assert_eq!(line(&refused, "x-envoy-ratelimited"), "true");
    assert_eq!(line(&refused, "retry-after"), "3600");
    let id = line(&refused, "x-tidegate-decision-id");
    assert_eq!(server.get(&format!("/v1/explain?id={id}")).await.status, 200);
    let answer = envoy.get("").await;
    assert_eq!(line(&answer, "x-ratelimit-remaining"), "12", "the address was not charged by the refusal");
    let said = format!("429 policy=per-key decision={id}");
    until("the access log", async || std::fs::read_to_string(&envoy.log).unwrap().contains(&said)).await;
    // A header that is too long to be a key, and bytes that are not UTF-8, do not evade the limit.
    let long = envoy.get(&format!("x-api-key: {}\r\n", "k".repeat(20_000))).await;
    assert_eq!(status(&long), "429", "{long}");
    let request =
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: k\xff\xfe1\r\n\r\n";
    let mut last = String::new();
    for _ in 0..6 {
        last = exchange(envoy.front, request).await;
    }
    assert_eq!(status(&last), "429", "{last}");
}

/// Replaces the route's rate limits by those of the page about token budgets. The filter before it sets what a gateway
/// for language models sets: the tokens that an answer took.
fn with_tokens(text: &str, tokens: u32) -> String {
    let (before, rest) = text.split_once("                            rate_limits:\n").unwrap();
    let after = &rest[rest.find("                http_filters:\n").unwrap()..];
    let limits = block("# in place of the route's rate_limits").split_once('\n').unwrap().1;
    let filters = format!(
        "                http_filters:
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata: [{{ metadata_namespace: io.envoy.ai_gateway, value: {{ llm_total_token: {tokens} }} }}]
"
    );
    format!("{before}{limits}{}", after.replacen("                http_filters:\n", &filters, 1))
}

/// Ten answers of 400 tokens against 1000 an hour. Regression: all ten passed, and 800 were charged.
#[tokio::test]
async fn tokens_that_envoy_reports_when_a_stream_ends_are_a_limit() {
    let theirs = "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: { unit: hour, requests_per_unit: 1000 }\n";
    let imported = Imported::of(&[(Peer::Envoy, "theirs.yaml", theirs)]).unwrap().text;
    for policies in [block("# tokens.yaml"), &imported] {
        for (limit, tokens, expected) in [("1000", 400, 3), ("5", 288, 1)] {
            let Some(program) = python_program("envoy") else { return };
            let policies = policies
                .replace("server: { grpc: 127.0.0.1:8081 }\n", "")
                .replace("rate: 1000/h", &format!("rate: {limit}/h"));
            let (_server, grpc) = started(&policies).await;
            let envoy = Envoy::start(program, grpc, |text| with_tokens(&text, tokens)).await;
            let mut passed = 0;
            for at in 1..=10 {
                let answer = envoy.get("x-tenant: a\r\n").await;
                let is_refused = at > expected;
                assert_eq!(status(&answer), if is_refused { "429" } else { "200" }, "{at}: {answer}");
                passed += u32::from(!is_refused);
                // The report follows the answer.
                let charged = passed * tokens;
                let left = limit.parse::<u32>().unwrap().saturating_sub(charged);
                let mut look = call(&[&[("tenant", "a")]]);
                look.descriptors[0].hits_addend = Some(UInt64Value { value: 0 });
                until("the report", async || {
                    let told = Client::connect(grpc).await.ask(&look).await;
                    told.statuses[0].limit_remaining == left
                })
                .await;
            }
            assert_eq!(status(&envoy.get("x-tenant: b\r\n").await), "200", "another tenant");
        }
    }
}

/// Regression: the answer to a request over its limit carried `retry-after`, though Envoy let the request pass.
#[tokio::test]
async fn a_filter_that_does_not_enforce_adds_nothing_to_its_answers() {
    let Some(program) = python_program("envoy") else { return };
    let (_server, grpc) = started("version: 1\npolicies: [{ name: one, limit: { rate: 1/day } }]\n").await;
    for (numerator, expected, wait) in [("0", "200", ""), ("100", "429", "86400")] {
        let enforced = format!("filter_enforced: {{ default_value: {{ numerator: {numerator} }} }}");
        let envoy = Envoy::start(program.clone(), grpc, |text| {
            let (at, line) = (
                "                      domain: shop\n",
                "                      domain: shop\n                      ",
            );
            text.replace(at, &format!("{line}{enforced}\n"))
        })
        .await;
        let mut answer = envoy.get("").await;
        if line(&answer, "x-envoy-ratelimited").is_empty() {
            answer = envoy.get("").await;
        }
        assert_eq!((status(&answer), line(&answer, "x-envoy-ratelimited")), (expected, "true"), "{answer}");
        assert_eq!(line(&answer, "retry-after"), wait, "{answer}");
    }
}

#[tokio::test]
async fn behind_envoy_the_application_sees_only_marks_of_the_server() {
    let Some(program) = python_program("envoy") else { return };
    let marks = "version: 1\npolicies: [{ name: soft, over: mark, by: [remote_address], absent: skip, limit: { rate: 1/day } }]\n";
    let (_server, grpc) = started(marks).await;
    let envoy = Envoy::before(program, grpc, (application().await, None), |text| text).await;
    let mut forged = String::new();
    for name in ["marked", "demoted", "priority", "ticket", "decision-id"] {
        forged += &format!("x-tidegate-{name}: forged\r\n");
    }
    let usual = envoy.get(&forged).await;
    assert_eq!(status(&usual), "200", "{usual}");
    assert!(!usual.contains("forged") && !usual.contains("x-tidegate-marked"), "{usual}");
    let marked = envoy.get(&forged).await;
    assert!(!marked.contains("forged") && marked.contains("x-tidegate-marked: soft\r"), "{marked}");
}

#[tokio::test]
async fn what_envoy_does_when_nobody_answers_is_its_own_setting() {
    for (deny, expected) in [("false", "200"), ("true", "500")] {
        let Some(program) = python_program("envoy") else { return };
        let (server, grpc) = started("version: 1\npolicies: [{ name: one, limit: { rate: 1/day } }]\n").await;
        let change =
            |text: String| text.replace("failure_mode_deny: false", &format!("failure_mode_deny: {deny}"));
        let envoy = Envoy::start(program, grpc, change).await;
        assert_eq!(status(&envoy.get("").await), "200");
        assert_eq!(status(&envoy.get("").await), "429");
        server.handle.stop();
        server.stopped().await;
        let gone = envoy.get("").await;
        assert_eq!(status(&gone), expected, "failure_mode_deny: {deny}: {gone}");
    }
}

/// Changes the page's configuration: replaces the rate limit filter by the quota filter. Assignments are valid for 10
/// s.
fn with_quotas(text: &str) -> String {
    let (before, rest) = text.split_once("                  - name: envoy.filters.http.ratelimit\n").unwrap();
    let (_, after) = rest.split_once("                  - name: envoy.filters.http.router").unwrap();
    let filter = block("                  - name: envoy.filters.http.rate_limit_quota\n");
    let filter = filter.replace("value: \"20\"", "value: \"10\"");
    let assigned = "no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }";
    assert!(filter.contains(assigned));
    let filter = filter.replace(assigned, &assigned.replace("ALLOW", "DENY"));
    format!("{before}{filter}                  - name: envoy.filters.http.router{after}")
}

#[tokio::test]
async fn two_envoys_share_a_quota_and_go_on_when_the_server_is_gone() {
    let Some(program) = python_program("envoy") else { return };
    let policies = "version: 1\npolicies: [{ name: all, match: { attributes: { plan: free } }, limit: { rate: 20/day } }]\n";
    let (server, grpc) = started(policies).await;
    let mut granted = 0;
    let mut envoys = Vec::new();
    for _ in 0..2 {
        let envoy = Envoy::start(program.clone(), grpc, |text| with_quotas(&text)).await;
        // The first request makes the bucket. It is denied, as configured for buckets without an assignment.
        assert_eq!(status(&envoy.get("").await), "429");
        until("the assignment", async || status(&envoy.get("").await) == "200").await;
        granted += 1;
        // Then as many pass as its part holds; another one comes back only after an hour.
        while status(&envoy.get("").await) == "200" {
            granted += 1;
        }
        assert_eq!(status(&envoy.get("").await), "429");
        envoys.push(envoy);
    }
    assert!((18..=22).contains(&granted), "{granted} of 20 by two proxies");
    // The allowed requests are booked here with the next reports.
    let booked = async || {
        let text = server.get("/metrics").await.text;
        text.contains(&format!("tidegate_quota_allowed_requests_total {granted}"))
    };
    until("the reports", booked).await;
    server.handle.stop();
    server.stopped().await;
    assert_eq!(status(&envoys[0].get("").await), "429", "the last part holds for its time");
    until("the end of the assignment", async || status(&envoys[0].get("").await) == "200").await;
}

const SCRIPT: &str = "
import sys, grpc
# Of a socket this client makes an authority that is none: %2Frun%2Fgrpc.
options = [('grpc.default_authority', 'localhost')] if sys.argv[1].startswith('unix:') else []
channel = grpc.insecure_channel(sys.argv[1], options)
ask = channel.unary_unary(sys.argv[2])
message = bytes.fromhex(sys.argv[3])
for _ in range(3):
    print(ask(message, timeout=20).hex())
futures = [ask.future(b'', timeout=20) for _ in range(500)]
print({future.code().name for future in futures})
try:
    # The domain, once more and long enough to be compressed; the last one holds.
    ask(b'\\x0a\\x04shop' * 200 + message, timeout=20, compression=grpc.Compression.Gzip)
except grpc.RpcError as error:
    print(error.code().name)
health = channel.unary_unary('/grpc.health.v1.Health/Check')
print(health(b'', timeout=20).hex())
";

const TWO_A_DAY: &str = "version: 1\npolicies: [{ name: two, limit: { rate: 2/day } }]\n";

#[tokio::test]
async fn the_python_client_asks() {
    let Some(python) = python_program("python3") else { return };
    let (_server, grpc) = started(TWO_A_DAY).await;
    says_what_it_should(python, grpc.to_string()).await;
}

#[cfg(unix)]
#[tokio::test]
async fn the_python_client_asks_over_a_socket() {
    let Some(python) = python_program("python3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("grpc").display());
    let _server = start_with(TWO_A_DAY, |mut options| {
        options.grpc = Some(socket.parse().unwrap());
        options
    })
    .await;
    says_what_it_should(python, socket).await;
}

/// Runs the script against this server, which has decided nothing yet.
async fn says_what_it_should(python: PathBuf, grpc: String) {
    let message: String =
        call(&[&[("a", "b")]]).encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut asking = Command::new(python);
    asking.args(["-c", SCRIPT, &grpc, RATE_LIMIT, &message]);
    let said = tokio::task::spawn_blocking(move || asking.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}{}", String::from_utf8_lossy(&said.stderr));
    // The first field is the overall code: OK twice, then OVER_LIMIT.
    assert!(
        lines[0].starts_with("0801") && lines[1].starts_with("0801") && lines[2].starts_with("0802"),
        "{text}"
    );
    assert_eq!(lines[3..], ["{'INVALID_ARGUMENT'}", "UNIMPLEMENTED", "0801"]);
}
