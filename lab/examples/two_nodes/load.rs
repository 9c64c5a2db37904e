//! Sends requests at preset times, so that a slow answer does not delay other requests.

#![allow(clippy::disallowed_methods, reason = "real programs are asked in real time")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidegate::Tick;
use tidegate_testkit::within;
use ureq::Agent;

use super::stand::Stand;
use super::verdict::Phases;

/// The load on the site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) per_second: u32,
    /// The number of connections that share the requests.
    pub(crate) threads: u32,
}

/// A request with its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The time of the answer.
    pub(crate) at: Tick,
    /// The latency.
    pub(crate) took: Duration,
    /// The status; 0 without an answer.
    pub(crate) status: u16,
    /// The node that decided, 0 or 1.
    pub(crate) node: usize,
}

/// The observations of a run.
pub(crate) struct Seen {
    /// The requests, in the order of their answers.
    pub(crate) asked: Vec<Asked>,
    /// How long after its return both nodes used the engine.
    pub(crate) in_use_after: Duration,
}

impl Load {
    /// Sends requests for the length of the phases, and kills and restarts the engine between them.
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
            // If a node does not answer, nginx asks the other: the last node in the list decided.
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
