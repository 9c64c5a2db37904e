//! curl, redis-cli, redis-benchmark, and gRPC's client in Python, unmodified.
//!
//! Needs the Debian packages `curl` and `redis-tools`, and the Python packages that `cargo xtask test` installs. If one
//! is missing, its test says so and skips, unless `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::made::Folder;
use super::{started, started_with};

/// Returns whether a client can be run.
pub(crate) fn is_there(program: &str, from: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
        assert!(!required, "{program} is missing and TIDEGATE_REQUIRE_SERVERS=1; {from}");
        eprintln!("skipped: there is no {program}; {from}");
    }
    there
}

pub(crate) async fn run(program: impl Into<PathBuf>, arguments: Vec<String>) -> Output {
    let program = program.into();
    tokio::task::spawn_blocking(move || Command::new(program).args(arguments).output().unwrap())
        .await
        .unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub(crate) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

const CURL: &str = "apt-get install curl";
const REDIS: &str = "apt-get install redis-tools";

#[tokio::test(flavor = "multi_thread")]
async fn curl_asks_over_https() {
    if !is_there("curl", CURL) {
        return;
    }
    let folder = Folder::new();
    let doors = started(&folder).await;
    let url = format!("https://localhost:{}", doors.http.port());
    let ask = async |more: Vec<String>| {
        let body = r#"{"attributes": {"user.id": "7"}}"#;
        let check = format!("{url}/v1/check");
        let all = words(["-sS", "-m", "20", "-w", "%{http_version} %{http_code}", "-d", body, &check]);
        run("curl", [all, more].concat()).await
    };
    let trusting = words(["--cacert", &folder.name("ca.pem")]);
    for versions in [words(["--tlsv1.3"]), words(["--tls-max", "1.2"]), words(["--http2"])] {
        let asked = text(&ask([trusting.clone(), versions.clone()].concat()).await);
        assert!(
            asked.contains("\"decision\":\"allowed\"") && asked.ends_with("1.1 200"),
            "{versions:?}: {asked}"
        );
    }
    let asked = text(&ask(trusting.clone()).await);
    assert!(asked.ends_with("1.1 429"), "{asked}");
    // A client that does not trust the certificate disconnects, and is counted.
    let refused = ask(Vec::new()).await;
    assert_eq!(refused.status.code(), Some(60), "{}", text(&refused));
    doors
        .until_metric(r#"tidegate_tls_handshake_failures_total{transport="http",reason="refused"}"#, 1.0)
        .await;
    // An outdated version of TLS.
    let old =
        ask([trusting.clone(), words(["--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"])].concat())
            .await;
    assert!(!old.status.success(), "{}", text(&old));
    // An answer of many TLS records arrives complete.
    let page = format!("{url}/livez");
    let many = [words(["-sS"]), trusting, vec![page; 50]].concat();
    assert_eq!(text(&run("curl", many).await), "ok\n".repeat(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_clients_ask_over_tls() {
    if !is_there("redis-cli", REDIS) {
        return;
    }
    let folder = Folder::new();
    let doors = started(&folder).await;
    let port = doors.resp.port().to_string();
    let to = words(["-p", &port, "--tls", "--cacert", &folder.name("ca.pem")]);
    let cli = async |more: Vec<String>| text(&run("redis-cli", [to.clone(), more].concat()).await);
    assert_eq!(cli(words(["PING"])).await.trim(), "PONG");
    let asked = cli(words(["TG.CHECK", "per-user", "user.id", "9"])).await;
    assert!(asked.starts_with("1\nper-user\n2\n0\n20000\n"), "{asked}");
    assert_eq!(cli(words(["-3", "CL.THROTTLE", "k", "1", "1", "60"])).await.trim(), "0\n2\n1\n-1\n60");
    let load = words(["-n", "20000", "-c", "16", "-P", "16", "-q", "CL.THROTTLE", "key", "100", "60", "60"]);
    let ran = run("redis-benchmark", [to.clone(), load].concat()).await;
    assert!(ran.status.success() && text(&ran).contains("requests per second"), "{}", text(&ran));
}

const SCRIPT: &str = "
import sys, grpc
read = lambda name: open(name, 'rb').read()
shown = dict(private_key=read(sys.argv[4]), certificate_chain=read(sys.argv[3])) if len(sys.argv) > 3 else {}
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(read(sys.argv[2]), **shown))
health = channel.unary_unary('/grpc.health.v1.Health/Check')
try:
    print(health(b'', timeout=20).hex())
    futures = [health.future(b'', timeout=20) for _ in range(500)]
    print({future.result().hex() for future in futures})
except grpc.RpcError as error:
    print(error.code().name)
";

/// The path of a program in the environment that `cargo xtask test` makes.
pub(crate) fn environment(program: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    cache.unwrap_or_default().join("tidegate/python/bin").join(program)
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_in_python_asks_over_tls() {
    let python = environment("python3");
    if !is_there(&python.display().to_string(), "cargo xtask test installs it") {
        return;
    }
    let folder = Folder::new();
    let doors = started_with(&folder, |options| {
        options.tls.as_mut().unwrap().client_ca = Some(folder.path("ca.pem"));
    })
    .await;
    let to = format!("localhost:{}", doors.grpc.port());
    let trusting = words(["-c", SCRIPT, &to, &folder.name("ca.pem")]);
    let shown = words([&folder.name("caller.pem"), &folder.name("caller.key")]);
    let said = run(&python, [trusting.clone(), shown].concat()).await;
    assert_eq!(text(&said), "0801\n{'0801'}\n");
    let refused = run(&python, trusting).await;
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "UNAVAILABLE\n", "it shows no certificate");
}
