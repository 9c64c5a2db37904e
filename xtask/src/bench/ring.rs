//! Runs the contenders of `benches/`, each run in a process of its own, one after the other and round after round.
//!
//! They take turns, so that a machine that is slower for a minute slows every contender.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::contender::Contender;
use super::found::Found;
use crate::places::root;
use crate::step;

/// The program that runs the contenders, and the contenders that it has.
#[derive(Debug)]
pub(crate) struct Ring {
    program: PathBuf,
    pub(crate) contenders: Vec<Contender>,
}

impl Ring {
    /// Builds the contenders with the profile that users use.
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

    /// Runs every contender of a workload, `rounds` times in turn.
    ///
    /// A contender that fails is left out of that round and named in the results; the others stay comparable.
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
