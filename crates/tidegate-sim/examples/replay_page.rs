//! Replays a log and writes its report page and pictures:
//! `cargo run -p tidegate-sim --example replay_page -- OUT POLICIES LOG...`

use std::ops::ControlFlow;
use std::path::PathBuf;

use tidegate::config::Config;
use tidegate_sim::log::{Input, Log, LogOptions};
use tidegate_sim::replay::{Replay, ReplayOptions, Trust};
use tidegate_sim::report::{self, Form, Ladders, Report};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(out), Some(policies)) = (arguments.next(), arguments.next()) else {
        return Err("usage: replay_page OUT POLICIES LOG...".into());
    };
    let read = Config::read(policies.as_ref());
    let (config, _) = read.map_err(|mistakes| tidegate::config::report(&mistakes))?;
    let options = ReplayOptions { details: true, ..ReplayOptions::default() };
    let mut ladders = Ladders::new(&config.policies, &options);
    let mut replay = Replay::new(vec![("policies".to_owned(), config.policies)], options)?;
    let mut log = Log::open(arguments.map(|arg| Input::from_arg(&arg)).collect(), LogOptions::default())?;
    log.read(|record| {
        replay.feed(record);
        ladders.feed(record);
        ControlFlow::Continue(())
    })?;
    let out = PathBuf::from(out);
    std::fs::create_dir_all(&out)?;
    let tally = log.tally();
    let page = report::page(&Report {
        title: "Replay",
        replay: &replay,
        log: Some(tally),
        doubts: &Trust::default().doubts(tally),
        ladders: &ladders,
        keys: 20,
    })?;
    std::fs::write(out.join("index.html"), page)?;
    for picture in report::pictures(&replay, Form::Svg)? {
        std::fs::write(out.join(picture.name), picture.bytes)?;
    }
    Ok(())
}
