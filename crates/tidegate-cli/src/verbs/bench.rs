//! Puts load on a running server and reports its answers: how fast they came, and whether they were right.
//!
//! An *ask* is one request to the server: whether a key may pass.

mod client;
#[cfg(feature = "grpc")]
mod grpc;
mod judge;
mod load;
mod question;
mod report;
mod tally;
mod target;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::config::{Config, Format};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use self::client::Dial;
use self::judge::{Judge, Judged, MAX_WAITING};
use self::load::{Load, Running};
use self::question::Question;
use self::report::Rows;
use self::tally::Tally;
use self::target::{Protocol, Target};
use crate::args::Bench;
use crate::exit::{Exit, Mistake};
use crate::output::Printer;
use crate::policies;
use report::{Done, Report};

/// How long to wait for answers after Ctrl-C.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

pub(crate) fn run(bench: &Bench, printer: &Printer) -> Result<Exit> {
    let target = Target::read(&bench.url)?;
    // Each run has another seed.
    let seed = bench.asks.seed.unwrap_or_else(|| SystemClock::new().now().as_nanos() >> 10);
    let mut question = Question::read(&bench.asks, bench.judging.expect.as_ref(), seed)?;
    if target.protocol == Protocol::Grpc {
        question.as_envoy_asks()?;
    }
    if question.throttle.is_some() && target.protocol != Protocol::Resp {
        let what = format!("--throttle needs a resp:// server, and {target} is not one");
        return Err(Mistake(what).into());
    }
    let by = question.by().to_vec();
    let judge = judge_of(bench, &question, printer)?;
    if bench.judging.max_wrong.is_some() && judge.is_none() {
        let what =
            "--max-wrong needs to know which answers are right: name the server's policy file with --config";
        return Err(Mistake(what.to_owned()).into());
    }
    let load = Arc::new(Load {
        dial: Dial::new(target, question, &bench.trust)?,
        keys: bench.asks.keys.clone(),
        seed,
        rate: bench.rate,
        connections: bench.connections,
        lasts: bench.lasts,
        timeout: bench.timeout,
        tally: Mutex::new(Tally::new(bench.connections, judge.is_some())),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(ask(load, judge, printer));
    // Those left by Ctrl-C may wait for an answer that never comes.
    runtime.shutdown_background();
    let done = done?;
    report::print(&Report { bench, seed, by: &by, done: &done }, printer)
}

/// A policy file to judge by, or each ask brings its limit.
fn judge_of(bench: &Bench, question: &Question, printer: &Printer) -> Result<Option<Judge>> {
    let (config, name) = match (&bench.judging.config, question.throttle) {
        (Some(file), _) => (policies::read(file, printer)?, file.display().to_string()),
        (None, Some(throttle)) => {
            let read = Config::parse(&throttle.file(), "--throttle", Format::Yaml);
            let wrong = |_| {
                Mistake("--throttle: these numbers are not a limit; write three as '15 30 60'".to_owned())
            };
            (read.map_err(wrong)?.0, "--throttle".to_owned())
        }
        (None, None) => return Ok(None),
    };
    let judged = Judged::of(&config, question, &name)?;
    Judge::new(&judged, question, bench.asks.keys.count(), bench.judging.slack).map(Some)
}

async fn ask(load: Arc<Load>, mut judge: Option<Judge>, printer: &Printer) -> Result<Done> {
    let clients = load.connect().await?;
    let (running, mut workers) = Arc::clone(&load).start(clients);
    let mut rows = Rows::default();
    let mut seconds = interval(Duration::from_secs(1));
    // After a late tick the next second is longer; no second is reported twice.
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick fires at once.
    seconds.tick().await;
    // A listener made anew in each turn would miss a Ctrl-C pressed while a row is written.
    let mut pressed = pin!(tokio::signal::ctrl_c());
    let interrupted = loop {
        tokio::select! {
            () = ended(&mut workers) => break false,
            _ = seconds.tick() => {
                let row = running.tally().lock().end_second();
                rows.print(&row, printer)?;
                take(&running, judge.as_mut());
            }
            _ = &mut pressed => break true,
        }
    };
    running.stop();
    let took = running.took();
    if interrupted {
        // Those without an answer by then are reported as unanswered.
        let _ = tokio::time::timeout(LAST_ANSWERS.min(load.timeout), ended(&mut workers)).await;
        workers.abort_all();
        ended(&mut workers).await;
    }
    // Asks that were due but not sent at an interruption are no failures.
    let (unsent, waited) = if interrupted { (0, 0) } else { running.left_over() };
    {
        let mut tally = running.tally().lock();
        tally.left_over(unsent, waited);
        if tally.has_begun_a_second() {
            rows.print(&tally.end_second(), printer)?;
        }
    }
    take(&running, judge.as_mut());
    if let Some(judge) = &mut judge {
        judge.take(&[], u64::MAX);
    }
    let tally = std::mem::replace(&mut *running.tally().lock(), Tally::new(0, false));
    if tally.counts.allowed + tally.counts.denied == 0 && !interrupted {
        let why = tally.first_failure.unwrap_or_else(|| "no request was sent".to_owned());
        return Err(anyhow!(
            "none of {} requests to {} was decided: {why}",
            tally.counts.asked,
            load.dial.target
        ));
    }
    Ok(Done { tally, judge, took, unsent, interrupted })
}

async fn ended(workers: &mut JoinSet<()>) {
    while let Some(worker) = workers.join_next().await {
        if let Err(error) = worker
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

fn take(running: &Running, judge: Option<&mut Judge>) {
    let Some(judge) = judge else { return };
    let taken = {
        let mut tally = running.tally().lock();
        tally.take_asks(running.now())
    };
    if let Some((asks, known_until)) = taken {
        // From this number on, some asks were not kept.
        if asks.len() >= MAX_WAITING {
            judge.give_up();
        }
        judge.take(&asks, known_until);
    }
}
