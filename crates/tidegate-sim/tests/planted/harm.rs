//! The effect of a proposal on the clients to cut and on all others.

use tidegate::limiter::Rate;
use tidegate::policy::{Descriptor, Glob, Limit, Policy};
use tidegate::{Quota, Tick};
use tidegate_sim::log::{Input, LogOptions};
use tidegate_sim::suggest::{Narrower, Proposal, SuggestOptions, Suggestion, suggest};
use tidegate_sim::what_if::{Candidate, WhatIf, WhatIfOptions};

use crate::planted::traffic::Planted;

pub(crate) fn propose(log: &Planted) -> Suggestion {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), log.text()).unwrap();
    let input = Input::File(file.path().to_owned());
    suggest(&[input], &LogOptions::default(), &SuggestOptions::default(), |_| {}).unwrap()
}

/// Keys hit and requests denied, for the clients to cut and for all others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Harm {
    pub(crate) bad_requests: u64,
    pub(crate) bad_denied: u64,
    pub(crate) bad_hit: u64,
    pub(crate) others_hit: u64,
    pub(crate) others_denied: u64,
}

/// Decides the generated requests by a limit, independent of the log's text, so that errors in reading the log would
/// be noticed.
pub(crate) fn harm(log: &Planted, proposal: &Proposal) -> Harm {
    let mut policy = Policy::new("p", Limit::new(Quota::per_second(1).gcra().unwrap(), "any"));
    policy.by = vec!["client.ip".to_owned()];
    let rate = Rate::new(proposal.rate.count, proposal.rate.window).unwrap();
    let candidate = Candidate { rate, burst: proposal.burst };
    let options = WhatIfOptions { named: 10_000, ..WhatIfOptions::default() };
    let mut what_if = WhatIf::new(&policy, &[candidate], options).unwrap();
    for request in &log.requests {
        let at = Tick::from_nanos(log.time(request) * 1_000_000);
        let asked = Descriptor::new().with("client.ip", request.client.as_str());
        what_if.ask(at, &asked, None, false);
    }
    let bad_requests = log.requests.iter().filter(|request| log.is_bad(request)).count() as u64;
    let mut harm = Harm { bad_requests, ..Harm::default() };
    for hit in &what_if.outcomes()[0].hit {
        if log.bad.contains(&hit.key) {
            harm.bad_hit += 1;
            harm.bad_denied += hit.denied;
        } else {
            harm.others_hit += 1;
            harm.others_denied += hit.denied;
        }
    }
    harm
}

/// Returns how many requests of the clients to cut the policies match, and how many of others.
pub(crate) fn spoken_of(log: &Planted, policies: &[Narrower]) -> (u64, u64) {
    let globs: Vec<_> =
        policies.iter().map(|one| (one.attribute.as_str(), Glob::new(&one.pattern).unwrap())).collect();
    let (mut bad, mut others) = (0, 0);
    for request in &log.requests {
        let fits = |(attribute, glob): &(&str, Glob)| match *attribute {
            "client.ip" => glob.matches(&request.client),
            _ => glob.matches(&request.agent),
        };
        if globs.iter().any(fits) {
            *(if log.is_bad(request) { &mut bad } else { &mut others }) += 1;
        }
    }
    (bad, others)
}
