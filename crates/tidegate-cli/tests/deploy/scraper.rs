//! A real Prometheus that scrapes one server, with the rules of `deploy/`.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{PATIENCE, Process, folder, free_port, program, within};

use crate::deploy::deployed;

/// A Prometheus on a loopback port, with its data in a folder of its own.
pub(crate) struct Scraper {
    process: Process,
    url: String,
    agent: ureq::Agent,
}

impl Scraper {
    /// Starts a Prometheus; `None` if it is not installed, to skip the test.
    #[track_caller]
    pub(crate) fn of(server: SocketAddr) -> Option<Self> {
        let program = program("prometheus", "prometheus")?;
        let (folder, port) = (folder(), free_port());
        let rules = deployed("prometheus-rules.yaml").canonicalize().unwrap();
        let config = serde_json::json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms" },
            "rule_files": [rules],
            "scrape_configs": [{ "job_name": "tidegate", "static_configs": [{ "targets": [server.to_string()] }] }],
        });
        // JSON is valid YAML.
        std::fs::write(folder.path().join("prometheus.yml"), config.to_string()).unwrap();
        let mut command = Command::new(program);
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        let agent = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = agent.timeout_global(Some(Duration::from_secs(20))).build().into();
        let process = Process::start(command, folder);
        let scraper = Self { process, url: format!("http://127.0.0.1:{port}"), agent };
        within("Prometheus is ready", || {
            scraper
                .agent
                .get(format!("{}/-/ready", scraper.url))
                .call()
                .is_ok_and(|ready| ready.status() == 200)
        });
        Some(scraper)
    }

    /// Returns the current samples of an expression.
    #[track_caller]
    pub(crate) fn samples(&self, expression: &str) -> Vec<Value> {
        let url = format!("{}/api/v1/query", self.url);
        let mut answer = self.agent.get(url).query("query", expression).call().unwrap();
        let answer: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        assert!(answer.get("warnings").is_none(), "{expression}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// Says whether an expression has a sample that is not NaN.
    #[track_caller]
    pub(crate) fn has(&self, expression: &str) -> bool {
        self.samples(expression).iter().any(|sample| sample["value"][1] != "NaN")
    }

    /// Waits until all expressions have data; calls a function between the checks.
    #[track_caller]
    pub(crate) fn until_all_have(
        &self,
        expressions: impl Iterator<Item = String>,
        mut meanwhile: impl FnMut(),
    ) {
        let mut without: Vec<String> = expressions.collect();
        // The expression checked last is named if the time runs out.
        #[expect(
            clippy::disallowed_methods,
            reason = "real processes take their own time; the wait is bounded"
        )]
        let start = std::time::Instant::now();
        loop {
            meanwhile();
            without.retain(|expression| !self.has(expression));
            if without.is_empty() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "without data: {without:#?}\n{}", self.log());
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.process.folder().join("log")).unwrap_or_default()
    }
}
