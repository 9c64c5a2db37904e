//! The manifests for Kubernetes: by its schemas, and by what their containers run.

use std::process::Command;

use tidegate_testkit::{RedisServer, python_program};

use super::{deployed, serving};

const MANIFESTS: [&str; 2] = ["kubernetes/central.yaml", "kubernetes/sidecar.yaml"];

#[test]
fn the_manifests_hold_by_the_schemas_of_kubernetes() {
    let Some(program) = python_program("kubernetes-validate") else { return };
    let checked = Command::new(program).arg("--strict").args(MANIFESTS.map(deployed)).output().unwrap();
    let told = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && told.matches(" passed ").count() == 7, "{told}");
}

/// Returns the policy file of a manifest's ConfigMap.
fn policies(manifest: &str) -> String {
    let (_, rest) = manifest.split_once("  tidegate.yaml: |\n").unwrap();
    rest.lines().map_while(|line| line.strip_prefix("    ")).map(|line| format!("{line}\n")).collect()
}

/// Returns the words of each command in a manifest, without the program.
fn commands<'m>(manifest: &'m str, of: &str) -> Vec<&'m str> {
    let (_, rest) = manifest.split_once(&format!("{of}:\n")).unwrap();
    let (_, rest) = rest.split_once("[/usr/bin/tidegate, ").unwrap();
    rest.split(']').next().unwrap().split(", ").collect()
}

#[test]
fn what_the_containers_run_works() {
    let Some(redis) = RedisServer::start(&[]) else { return };
    let token = "a-token-of-more-than-sixteen-bytes";
    for name in MANIFESTS {
        let manifest = std::fs::read_to_string(deployed(name)).unwrap();
        let central = name.contains("central");
        let file = policies(&manifest).replace("redis:6379", &redis.addr().to_string());
        assert!(file.contains("redis://127.0.0.1") == central && file.contains("policies:"), "{file}");
        let desk = serving::Desk::with(&file);
        std::fs::write(desk.path("token"), token).unwrap();
        std::fs::write(desk.path("ticket-key"), "0123456789abcdef".repeat(4)).unwrap();
        let run = |arguments: &[&str]| {
            let mut command = desk.command(arguments);
            command.env("STATE_DIRECTORY", desk.path(""));
            if central {
                command.env("TIDEGATE_TOKEN", token);
            }
            command
        };
        let mut serve = run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0"]);
        if central {
            assert!(
                manifest.contains("name: TIDEGATE_GRPC")
                    && manifest.contains("name: TIDEGATE_TICKET_KEY_FILE")
            );
            serve.env("TIDEGATE_GRPC", "127.0.0.1:0");
            serve.env("TIDEGATE_TOKEN_FILE", "token").env("TIDEGATE_TICKET_KEY_FILE", "ticket-key");
        } else {
            assert!(manifest.contains("args: [serve, --http, '127.0.0.1:8080']"));
        }
        let serving = serving::Serving::start(serve);
        let server = format!("http://{}", serving.addr);
        let ends = |words: &[&str]| {
            let words = [words, &["--server", &server]].concat();
            run(&words).output().unwrap()
        };
        let probes = manifest.matches("path: /").count();
        assert_eq!(
            probes,
            manifest.matches("path: /readyz").count() + manifest.matches("path: /livez").count()
        );
        assert_eq!((serving.get("/readyz").status, serving.get("/livez").status), (200, 200));
        if central {
            let drained = ends(&commands(&manifest, "preStop"));
            assert!(drained.status.success(), "{drained:?}");
            assert_eq!((serving.get("/readyz").status, serving.get("/livez").status), (503, 200));
        } else {
            let ready = ends(&commands(&manifest, "readinessProbe"));
            assert!(ready.status.success(), "{ready:?}");
        }
    }
}
