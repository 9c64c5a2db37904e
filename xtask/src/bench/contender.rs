//! Starts the contenders of `benches/`, each run in a process of its own, one after the other and round after round.
//!
//! In turn, so that a machine that is slower for a minute is slower for everybody.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::found::Found;
use crate::{root, step};

/// What a contender is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Tidegate,
    /// A peer as its documentation shows it first.
    Peer,
    /// A peer with its settings chosen for speed.
    Tuned,
    /// A peer that does less than the rest.
    Less,
    /// What the machine allows.
    Floor,
}

/// One contender in one workload.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) workload: String,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) role: Role,
}

/// The program that runs them, and whom it can run.
#[derive(Debug)]
pub(crate) struct Ring {
    program: PathBuf,
    pub(crate) contenders: Vec<Contender>,
}

impl Ring {
    /// Builds the contenders the way users build what they ship.
    pub(crate) fn build() -> Result<Self> {
        let manifest = root().join("benches/Cargo.toml");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root().join("benches/target"), |target| PathBuf::from(target).join("benches"));
        let (manifest, folder) = (manifest.to_string_lossy(), target.to_string_lossy());
        step::run(
            "cargo",
            &["build", "--release", "--manifest-path", &manifest, "--target-dir", &folder],
            &[],
        )?;
        let program = target.join("release/contender");
        let list = Command::new(&program).arg("list").output()?;
        let list = String::from_utf8(list.stdout)?;
        let contenders = list.lines().map(Contender::read).collect::<Result<_>>()?;
        Ok(Self { program, contenders })
    }

    /// Lets everyone of a workload have a turn, `rounds` times.
    ///
    /// Who fails is left out of that round and named; the others stay comparable.
    pub(crate) fn run(&self, workload: &str, rounds: usize, huge: bool, found: &mut Found) -> Result<()> {
        for round in 1..=rounds {
            for contender in self.contenders.iter().filter(|contender| contender.workload == workload) {
                eprintln!("{workload} {round}/{rounds}: {}", contender.title);
                let mut command = Command::new(&self.program);
                command.args([workload, &contender.name]).args(huge.then_some("--huge"));
                let output = command.output()?;
                if output.status.success() {
                    found.add(&serde_json::from_slice(&output.stdout)?)?;
                } else {
                    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    eprintln!("{reason}");
                    found.failed(reason);
                }
            }
        }
        Ok(())
    }
}

impl Contender {
    fn read(line: &str) -> Result<Self> {
        let line: Value = serde_json::from_str(line)?;
        let field = |name: &str| {
            let value = line[name].as_str().with_context(|| format!("no `{name}` in {line}"))?;
            Ok::<_, anyhow::Error>(value.to_owned())
        };
        let role = match field("role")?.as_str() {
            "tidegate" => Role::Tidegate,
            "peer" => Role::Peer,
            "tuned" => Role::Tuned,
            "less" => Role::Less,
            role => {
                ensure!(role == "floor", "nobody is compared as `{role}`");
                Role::Floor
            }
        };
        Ok(Self { workload: field("workload")?, name: field("contender")?, title: field("title")?, role })
    }
}
