//! The `tidegate` command: parses the command line, runs the verb, maps outcomes to exit codes.

mod args;
mod exit;
mod features;
mod guards;
mod keys_hit;
mod limit_spec;
mod log;
mod online;
mod outcome;
mod output;
#[cfg_attr(not(feature = "tui"), allow(dead_code, reason = "the live view of `top` shows all of it"))]
mod overview;
mod policies;
mod reading;
mod styled;
mod verbs;
mod writing;

use std::io::Write as _;
use std::process::ExitCode;

use anstream::AutoStream;
use anyhow::Result;
use tidegate::visible;
use tidegate_sim::log::LogError;

use crate::args::{Cli, Verb};
use crate::exit::{AlreadyPrinted, Exit, Mistake};
use crate::log::Log;
use crate::output::Printer;

/// Runs the command line of this process, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    let printer = Printer::new(&cli.global);
    let log = match Log::start(&cli.global) {
        Ok(log) => log,
        Err(mistake) => {
            let text = mistake.to_string();
            match cli.verb {
                Verb::Serve(ref serve) if !serve.check => log::error_without_log(&text, &printer),
                _ => printer.error(&text),
            }
            return Exit::Bad.into();
        }
    };
    match run(&cli, &printer, &log) {
        Ok(exit) => exit.into(),
        // A reader that closes the pipe, as `head` does, has read enough.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<AlreadyPrinted>() => Exit::Bad.into(),
        Err(error) => {
            let text = format!("{error:#}");
            match cli.verb {
                // A server must end even if standard error is not read.
                Verb::Serve(ref serve) if !serve.check => log.error(&text),
                _ => printer.error(&text),
            }
            if is_mistake(&error) { Exit::Bad.into() } else { Exit::No.into() }
        }
    }
}

fn run(cli: &Cli, printer: &Printer, log: &Log) -> Result<Exit> {
    match &cli.verb {
        Verb::Serve(serve) => verbs::serve::run(serve, printer, log),
        Verb::Init(init) => verbs::init(init, printer),
        Verb::Config(config) => verbs::config::run(config, printer),
        Verb::Explain(explain) => verbs::explain::run(explain, cli.global.typed, printer),
        Verb::Bench(bench) => verbs::bench::run(bench, printer),
        Verb::Top(top) => verbs::top::run(top, printer),
        Verb::Stat(stat) => verbs::stat::run(stat, printer),
        Verb::Tail(tail) => verbs::tail::run(tail, printer),
        Verb::Why(why) => verbs::explain::why(why, printer),
        Verb::Changes(changes) => verbs::changes::run(changes, printer),
        Verb::Key(key) => verbs::key::run(key, printer),
        Verb::Switch(switch) => verbs::operate::switch(switch, printer),
        Verb::Breaker(breaker) => verbs::operate::breaker(breaker, printer),
        Verb::Ready(server) => verbs::operate::ready(server, printer),
        Verb::Drain(drain) => verbs::operate::drain(drain, printer),
        Verb::Policies(policies) => verbs::policies::run(policies, printer),
        Verb::Completions { shell } => verbs::completions(*shell, printer),
        Verb::Man { dir } => verbs::man(dir, printer),
        Verb::Simulate(simulate) => verbs::simulate::run(simulate, printer),
        Verb::Replay(replay) => verbs::replay::run(replay, cli.global.typed, printer),
        Verb::Suggest(suggest) => verbs::suggest::run(suggest, printer),
    }
}

/// Prints an error of the command line, or the help that was asked for. If the message contains text that a terminal
/// would act on, it is escaped and printed without colours.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let text = error.render();
    let plain = text.to_string();
    let shown = match visible::lines(&plain) {
        safe if safe == plain => text.ansi().to_string(),
        safe => safe.into_owned(),
    };
    let color = output::typed_color();
    if error.use_stderr() {
        output::say(&shown, color);
    } else {
        // The stream may be closed.
        let _ = AutoStream::new(std::io::stdout(), color).write_all(shown.as_bytes());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Says whether the caller can correct the error by other words or another file, such as a log in an unknown format.
fn is_mistake(error: &anyhow::Error) -> bool {
    error.is::<Mistake>() || matches!(error.downcast_ref(), Some(LogError::Format { .. }))
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
