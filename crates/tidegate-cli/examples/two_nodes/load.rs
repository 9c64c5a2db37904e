//! Requests at times that were set before, so that a slow answer holds up no other.

#![allow(clippy::disallowed_methods, reason = "real programs are asked in real time")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidegate::Tick;
use tidegate_testkit::within;
use ureq::Agent;

use crate::stand::Stand;
use crate::verdict::Phases;

/// How the site is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) per_second: u32,
    /// The requests are dealt to that many connections.
    pub(crate) threads: u32,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// When it was answered.
    pub(crate) at: Tick,
    /// How long that took.
    pub(crate) took: Duration,
    /// The status, 0 where none came.
    pub(crate) status: u16,
    /// Which of the nodes decided, 0 or 1.
    pub(crate) node: usize,
}

/// What came of it.
pub(crate) struct Seen {
    /// In order of the answers.
    pub(crate) asked: Vec<Asked>,
    /// How long after its return the engine was in use by both nodes.
    pub(crate) in_use_after: Duration,
}

impl Load {
    /// Asks for as long as the phases say, and does to the engine what they say.
    pub(crate) fn run(self, stand: &mut Stand, phases: Phases) -> Seen {
        let all = Mutex::new(Vec::new());
        let (page, nodes) = (stand.page(), stand.nodes().map(|node| node.to_string()));
        let begun = Instant::now();
        let in_use_after = std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let (all, page, nodes) = (&all, &page, &nodes);
                scope.spawn(move || {
                    let mine = self.thread(thread, begun, phases.end, page, nodes);
                    all.lock().unwrap().extend(mine);
                });
            }
            wait_until(begun, phases.dies);
            stand.kill_engine();
            wait_until(begun, phases.back);
            stand.revive_engine();
            let back = begun.elapsed();
            within("both nodes use the engine again", || stand.store_is_there());
            begun.elapsed() - back
        });
        let mut asked = all.into_inner().unwrap();
        asked.sort_by_key(|asked: &Asked| asked.at);
        Seen { asked, in_use_after }
    }

    fn thread(self, thread: u32, begun: Instant, end: Duration, page: &str, nodes: &[String]) -> Vec<Asked> {
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(5)));
        let agent: Agent = config.build().into();
        let mut out = Vec::new();
        for turn in 0.. {
            let due = Duration::from_secs(1) * (turn * self.threads + thread) / self.per_second;
            if due >= end {
                return out;
            }
            wait_until(begun, due);
            let sent = begun.elapsed();
            let answer = agent.get(page).call();
            let at = begun.elapsed();
            let node = answer.as_ref().ok().and_then(|answer| answer.headers().get("x-node")?.to_str().ok());
            // After a node that does not answer nginx asks the other: the last one decided.
            let node = node.and_then(|node| nodes.iter().position(|known| node.ends_with(known.as_str())));
            let status = answer.map_or(0, |answer| answer.status().as_u16());
            let at_tick = Tick::from_nanos(u64::try_from(at.as_nanos()).unwrap());
            out.push(Asked { at: at_tick, took: at - sent, status, node: node.unwrap_or(0) });
        }
        out
    }
}

fn wait_until(begun: Instant, at: Duration) {
    while let Some(left) = at.checked_sub(begun.elapsed()) {
        std::thread::park_timeout(left);
    }
}
