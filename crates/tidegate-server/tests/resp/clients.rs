//! redis-cli, redis-benchmark and redis-py, unmodified.
//!
//! Needs the Debian packages `redis-tools` and `python3-redis`. If one is missing, its test says so and skips, unless
//! `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};

use tidegate_testkit::python_program;

use super::started;

/// Debian's own Python, for which Debian's packages are installed. Another one may come first in the path.
const PYTHON: &str = "/usr/bin/python3";

/// Returns whether a client can be run.
fn is_there(mut probe: Command, package: &str) -> bool {
    let there = probe.output().is_ok_and(|output| output.status.success());
    if !there {
        let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "{package} is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install {package}"
        );
        eprintln!("skipped: {package} is not installed");
    }
    there
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn port(of: SocketAddr) -> String {
    of.port().to_string()
}

#[tokio::test]
async fn redis_cli_asks() {
    if !is_there(command("redis-cli", &["--version"]), "redis-tools") {
        return;
    }
    let (_server, resp) = started().await;
    let port = port(resp);
    for version in ["-2", "-3"] {
        let asked =
            run(command("redis-cli", &[version, "-p", &port, "CL.THROTTLE", version, "1", "1", "60"])).await;
        assert_eq!(text(&asked).trim(), "0\n2\n1\n-1\n60", "{version}");
    }
    let asked = run(command("redis-cli", &["-p", &port, "TG.CHECK", "per-user", "user.id", "9"])).await;
    assert!(text(&asked).starts_with("1\nper-user\n2\n0\n20000\n"), "{}", text(&asked));
    assert!(text(&run(command("redis-cli", &["-p", &port, "INFO"])).await).contains("redis_version:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_benchmark_runs_to_its_end() {
    if !is_there(command("redis-benchmark", &["--version"]), "redis-tools") {
        return;
    }
    let (_server, resp) = started().await;
    let port = port(resp);
    let load = ["-p", &port, "-n", "20000", "-c", "16", "-P", "16", "-r", "1000", "-q"];
    let own = run(command(
        "redis-benchmark",
        &[&load[..], &["CL.THROTTLE", "key:__rand_int__", "100", "60", "60"]].concat(),
    ))
    .await;
    assert!(own.status.success() && text(&own).contains("requests per second"), "{}", text(&own));
    assert!(!text(&own).contains("WARNING"), "{}", text(&own));
    let ping = run(command("redis-benchmark", &[&load[..], &["-t", "ping"]].concat())).await;
    assert!(
        ping.status.success() && text(&ping).matches("requests per second").count() == 2,
        "{}",
        text(&ping)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn debians_redis_py_speaks() {
    if !is_there(command(PYTHON, &["-c", "import redis"]), "python3-redis") {
        return;
    }
    says_fine(PYTHON.into(), "").await;
}

/// The newest version, from the environment that `cargo xtask test` makes.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_redis_py_speaks_both_versions() {
    let Some(python) = python_program("python3") else { return };
    for version in ["", ", protocol=2", ", protocol=3"] {
        says_fine(python.clone(), version).await;
    }
}

async fn says_fine(python: PathBuf, options: &str) {
    let (_server, resp) = started().await;
    let script = format!(
        "import redis\n\
         one = redis.Redis(port={0}{options})\n\
         assert one.ping() is True\n\
         assert one.execute_command('CL.THROTTLE', 'py', 1, 1, 60) == [0, 2, 1, -1, 60]\n\
         for key, pipe in ('py', one.pipeline(transaction=False)), ('two', one.pipeline()):\n\
         \x20   for _ in range(3): pipe.execute_command('CL.THROTTLE', key, 0, 1, 60)\n\
         \x20   assert [answer[0] for answer in pipe.execute()][-2:] == [1, 1], key\n\
         try:\n    one.execute_command('CL.THROTTLE', 'py')\n    raise SystemExit('no error')\n\
         except redis.ResponseError as error:\n    assert 'wrong number' in str(error), error\n\
         print('fine')\n",
        resp.port()
    );
    let mut asking = Command::new(python);
    asking.args(["-c", &script]);
    assert_eq!(text(&run(asking).await).trim(), "fine", "{options}");
}
