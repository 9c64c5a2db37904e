//! `TG.CHECK`: decides a request under the policies.

use smallvec::SmallVec;
use tidegate::Cost;
use tidegate::gate::{Charged, Check};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::limiter::Retry;
use tidegate::policy::{self, Descriptor};
use tidegate::priority::Priority;

use super::super::protocol::Replies;
use super::super::session::{RespDoor, Session};
use super::{Refusal, add, cost, once, shown, text, too_few};
use crate::decider::{Conclusion, TicketFor, Want};
use crate::metrics::Transport;
use crate::requests;

/// How to write the command, for error messages.
const USAGE: &str = "write name value [name value ...] [COST n] [PRIORITY level] [PEEK] [TICKET]";

/// The names of the options, in capitals, unlike attribute names.
const OPTIONS: [&str; 4] = ["COST", "PRIORITY", "PEEK", "TICKET"];

/// Options of other commands and servers, and what does it here.
const ELSEWHERE: [(&str, &str); 14] = [
    ("QUANTITY", "COST"),
    ("COUNT", "COST"),
    ("TOKENS", "COST"),
    ("HITS", "COST"),
    ("UNITS", "COST"),
    ("WEIGHT", "COST"),
    ("AMOUNT", "COST"),
    ("NUM", "COST"),
    ("N", "COST"),
    ("COSTS", "COST"),
    ("PRIO", "PRIORITY"),
    ("DRYRUN", "PEEK"),
    ("DRY_RUN", "PEEK"),
    ("NOCHARGE", "PEEK"),
];

#[derive(Debug, Default)]
struct Options {
    cost: Option<Cost>,
    priority: Option<Priority>,
    peek: bool,
    ticket: bool,
}

/// `TG.CHECK policy name value [name value ...] [COST n] [PRIORITY level] [PEEK] [TICKET]`
pub(super) async fn run(
    door: &RespDoor,
    session: &Session,
    words: &[&[u8]],
    replies: &mut Replies,
) -> Result<(), Refusal> {
    let [_, policy, rest @ ..] = words else { return too_few(words, replies) };
    let (request, options) = read(rest)?;
    let decider = &door.app.decider;
    let live = decider.live();
    let only: Option<SmallVec<[usize; 1]>> = match *policy {
        b"*" => None,
        name => {
            let found = requests::find(&live.set, &text(name));
            Some(SmallVec::from_slice(&[found.map_err(|none| Refusal::wrong(none.to_string()))?]))
        }
    };
    let only = only.as_deref();
    let check = Check::of(&request).maybe_cost(options.cost).priority(options.priority.unwrap_or_default());
    let want = if options.peek { Want::Peek } else { Want::Take };
    // Without the option, a ticket is made if a policy expects a settlement: nothing else returns a place before
    // its time to live is over.
    let wanted = match want {
        Want::Peek => TicketFor::Nobody,
        Want::Take => TicketFor::Caller(options.ticket.then_some(true)),
    };
    let mut held = Charged::default();
    let keep = wanted.keeps(&live).then_some(&mut held);
    let conclusion = decider.deciding.decide(&live, check, only, want, keep, Transport::resp).await;
    let name = || decider.telemetry.name_and_tell(&live, &check, only, &conclusion);
    let id = (want == Want::Take).then(name);
    let ticket = decider.tickets.make_or_undo(&request, &conclusion, &held, wanted, id).await;
    let ticket = ticket.map_err(|none| {
        Refusal::wrong(format!("refused, since the place that it takes could not be returned: {none}"))
    })?;
    let resp3 = session.resp3;
    let over = Over::of(&conclusion);
    replies.list(if over.is_some() { 11 } else { 8 });
    answer(&conclusion, resp3, replies);
    replies.text(id.map(|id| id.to_string()).as_deref(), resp3);
    let ticket = ticket.as_ref();
    let sealed = ticket.and_then(|ticket| ticket.ticket.as_ref());
    replies.text(sealed.map(ToString::to_string).as_deref(), resp3);
    let why_not = ticket.and_then(|ticket| ticket.error.as_ref());
    replies.text(why_not.map(ToString::to_string).as_deref(), resp3);
    if let Some(over) = over {
        over.write(resp3, replies);
    }
    Ok(())
}

/// The last three parts of an answer to a request that passes over a limit. Others end before, since clients may
/// expect eight parts.
struct Over<'c> {
    marked: Vec<&'c str>,
    demoted: Vec<&'c str>,
    /// The lowered priority, if it was lowered.
    priority: Option<Priority>,
}

impl<'c> Over<'c> {
    /// Returns the policies that let a request pass over their limits; `None` if there are none.
    fn of(conclusion: &'c Conclusion) -> Option<Self> {
        let Conclusion::Decided(decision) = conclusion else { return None };
        if !decision.allowed || !decision.policies.lets_through() {
            return None;
        }
        let mut over = Self { marked: Vec::new(), demoted: Vec::new(), priority: None };
        for (name, action) in decision.over() {
            if matches!(action, policy::Over::Demote { .. }) {
                over.demoted.push(name);
                over.priority = Some(decision.priority);
            } else {
                over.marked.push(name);
            }
        }
        (!over.marked.is_empty() || !over.demoted.is_empty()).then_some(over)
    }

    fn write(&self, resp3: bool, replies: &mut Replies) {
        for names in [&self.marked, &self.demoted] {
            replies.list(names.len());
            names.iter().for_each(|name| replies.bulk(name.as_bytes()));
        }
        replies.text(self.priority.map(|priority| priority.to_string()).as_deref(), resp3);
    }
}

/// Writes the first five parts: whether it is allowed, the policy that binds, what remains, the milliseconds until
/// asking again (0 if allowed, -1 unknown, -2 never), and until the limit is full.
fn answer(conclusion: &Conclusion, resp3: bool, replies: &mut Replies) {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let decision = match conclusion {
        Conclusion::Decided(decision) => decision,
        Conclusion::Unsettled { allowed, policy, .. } => {
            replies.integer(i64::from(*allowed));
            replies.text(policy.as_deref(), resp3);
            replies.integer(-1);
            replies.integer(if *allowed { 0 } else { -1 });
            return replies.integer(-1);
        }
    };
    replies.integer(i64::from(decision.allowed));
    // Of the set that decided: a reload may have changed it.
    let policy = decision.policy().and_then(|at| decision.policies.policies().get(at));
    replies.text(policy.map(|policy| &*policy.name), resp3);
    let binding = decision.binding.map(|at| &decision.limits[at]);
    replies.integer(binding.map_or(-1, |limit| whole(limit.remaining())));
    replies.integer(match decision.retry() {
        _ if decision.allowed => whole(millis_up(decision.wait)),
        Retry::After(wait) => whole(millis_up(wait)),
        Retry::Unknown => -1,
        Retry::Never => -2,
    });
    replies.integer(binding.map_or(-1, |limit| whole(millis_up(limit.decision.standing.reset_after))));
}

/// Parses attributes, and the options between them.
fn read<'w>(words: &[&'w [u8]]) -> Result<(Descriptor<'w>, Options), Refusal> {
    let mut request = Descriptor::new();
    let mut options = Options::default();
    let mut rest = words;
    loop {
        rest = match rest {
            [] => return Ok((request, options)),
            [b"PEEK", rest @ ..] => {
                options.peek = true;
                rest
            }
            [b"TICKET", rest @ ..] => {
                options.ticket = true;
                rest
            }
            [b"COST", units, rest @ ..] => {
                if let Some(cost) = Cost::new(cost(units, 1)?) {
                    once(&mut options.cost, "COST", cost)?;
                }
                rest
            }
            [b"PRIORITY", level, rest @ ..] => {
                let read = text(level).parse();
                let read =
                    read.map_err(|error| Refusal::wrong(format!("PRIORITY: {} {error}", shown(level))))?;
                once(&mut options.priority, "PRIORITY", read)?;
                rest
            }
            [name, ..] if let Some(word) = option_meant(name) => {
                let name = shown(name);
                return Err(Refusal::wrong(format!(
                    "{name} is not an attribute here; the option is {word}, {USAGE}"
                )));
            }
            [name] => return Err(Refusal::wrong(format!("{} has no value; {USAGE}", shown(name)))),
            [name, value, rest @ ..] => {
                add(&mut request, name, value)?;
                rest
            }
        };
    }
}

/// Returns the option that a word means: in any case, or in capitals one of [`ELSEWHERE`]. Otherwise it would be
/// taken for an attribute, and be ignored.
fn option_meant(word: &[u8]) -> Option<&'static str> {
    let own = OPTIONS.into_iter().find(|option| word.eq_ignore_ascii_case(option.as_bytes()));
    own.or_else(|| {
        ELSEWHERE.into_iter().find(|(other, _)| word == other.as_bytes()).map(|(_, option)| option)
    })
}
