//! Runs programs with a time limit: a step that hangs is named and stopped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time limit of a step. The longest, `cargo test`, takes a quarter of an hour on two cores including a full build;
/// a machine may be more than twice as slow.
pub(crate) const STEP: Duration = Duration::from_secs(40 * 60);

/// Runs a program in the workspace root and prints the command. Fails if the program fails or takes longer than
/// [`STEP`].
pub(crate) fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    within(STEP, program, arguments, environment)
}

pub(crate) fn within(
    most: Duration,
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let words = format!("{program} {}", arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).current_dir(root());
    let ended = timed(command, &words, most)?;
    if !ended.status.success() {
        bail!("{words} failed: {}", ended.status);
    }
    Ok(())
}

/// Runs a command and prints its name, and how long it took.
pub(crate) fn timed(command: Command, words: &str, most: Duration) -> Result<Output> {
    eprintln!("\n$ {words}");
    let begun = now();
    let ended = wait(command, words, most)?;
    eprintln!("{words}: {} s", begun.elapsed().as_secs());
    Ok(ended)
}

/// Runs a command and returns its output. Fails if it takes longer than [`STEP`].
pub(crate) fn output(mut command: Command) -> Result<Output> {
    let words = format!("{command:?}");
    eprintln!("\n$ {words}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command, &words, STEP)
}

#[expect(clippy::disallowed_methods, reason = "says which step takes long, and decides nothing")]
fn now() -> Instant {
    Instant::now()
}

fn wait(mut command: Command, words: &str, most: Duration) -> Result<Output> {
    // In CI, where no one presses ^C, a step is a process group of its own, so that all its children can be stopped
    // with it. At a terminal it stays in xtask's group, because ^C only reaches that group.
    let alone = std::env::var_os("CI").is_some();
    if alone {
        use std::os::unix::process::CommandExt as _;
        command.process_group(0);
    }
    let child = command.spawn().with_context(|| format!("cannot start {words}"))?;
    let id = i32::try_from(child.id()).context("a process id beyond 31 bits")?;
    let (say, said) = sync_channel(1);
    std::thread::spawn(move || drop(say.send(Child::wait_with_output(child))));
    match said.recv_timeout(most) {
        Ok(ended) => Ok(ended?),
        Err(_) => {
            // A negative number names the whole process group.
            let _ = kill(Pid::from_raw(if alone { -id } else { id }), Signal::SIGKILL);
            bail!("gave up after {} s waiting for `{words}` to end", most.as_secs())
        }
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace root")
}

/// Returns the path of a build product of the main workspace; `file` is named by profile and program.
pub(crate) fn built(file: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_hangs_is_ended_and_named() {
        let most = Duration::from_millis(50);
        let error = within(most, "sleep", &["600"], &[]).unwrap_err().to_string();
        assert!(error.contains("`sleep 600`"), "{error}");
        assert!(within(STEP, "true", &[], &[]).is_ok());
        assert!(within(STEP, "false", &[], &[]).unwrap_err().to_string().contains("failed"));
    }
}
