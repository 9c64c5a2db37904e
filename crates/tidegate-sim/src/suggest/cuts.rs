//! Chooses which keys to cut, and the finding: the best gap among those that only cut keys a limit is meant for.

use std::collections::HashSet;

use tidegate::policy::{GlobError, Match, Want};

use super::bursts::{KeyNeed, Needs};
use super::candidates::{self, Cut, Edge, Known, PAYS, Purpose, Spare};
use super::group_policies::literal;
use super::outliers::Fate;
use super::suggestion::{Finding, Instead, Suggestion};

/// From this number of keys on, the limit that hits 1 % of them is shown if the log has no gap.
const HUNDREDTH: u64 = 200;
/// Keys come in bursts if they peak less than 5 times as high as any key of the crowd, and over time ask for less than
/// twice as much.
const BURSTS: (u64, u64) = (5, 2);

#[derive(Debug)]
pub(super) struct Choice {
    pub(super) finding: Finding,
    /// The recommended cut first.
    pub(super) cuts: Vec<Cut>,
    /// The hashes of the keys that stand out.
    pub(super) stand_out: HashSet<u64>,
}

impl Choice {
    pub(super) fn gap(&self) -> Option<&Cut> {
        self.cuts.iter().find(|cut| cut.purpose == Purpose::Gap)
    }

    fn only(finding: Finding, cuts: Vec<Cut>) -> Self {
        Self { finding, cuts, stand_out: HashSet::new() }
    }
}

/// Chooses the finding and the cuts. `by_gap` says whether keys may be cut for a gap alone. `has_culprits` says whether
/// a key looks like a crawler, or is refused most of the time, and asks for enough to matter.
pub(super) fn choose_cuts(
    needs: &Needs,
    known: &Known,
    kept: Option<Cut>,
    by_gap: bool,
    has_culprits: bool,
) -> Choice {
    let ceiling = || candidates::most_demanding(needs, Purpose::Ceiling, 0);
    let keys = needs.keys().about();
    let mut cuts: Vec<Cut> = kept.into_iter().collect();
    if !candidates::is_crowd(needs) {
        cuts.extend(ceiling());
        return Choice::only(if keys == 1 { Finding::OneKey } else { Finding::FewKeys }, cuts);
    }
    let pays = |edge: &&Edge| edge.denied_share >= PAYS;
    let edge = |spare| candidates::edge(needs, spare);
    let (meant, unsigned, any) =
        (edge(Spare::Ordinary(known)), edge(Spare::SignedIn(known)), edge(Spare::Nobody));
    let stricter = |edge: &Edge| edge.cut(needs, Purpose::Stricter);
    let hashes = |edge: &Edge| edge.cut(needs, Purpose::Gap).hit;
    let meant = meant.filter(|edge| by_gap && pays(&edge));
    let gone = meant.as_ref().map(hashes).unwrap_or_default();
    let culprits = candidates::culprits(needs, known, &gone).filter(|edge| !gone.is_empty() || pays(&edge));
    let stand_out: HashSet<u64> =
        [&meant, &culprits, &unsigned, &any].into_iter().flatten().flat_map(hashes).collect();
    let finding = if let Some(edge) = meant.as_ref().or(culprits.as_ref()) {
        let hit = gone.into_iter().chain(culprits.iter().flat_map(hashes)).collect();
        let gap = Cut { purpose: Purpose::Gap, hit };
        let more = unsigned.iter().chain(&any).map(stricter).find(|cut| cut.hits_more_than(&gap));
        let others = more.or_else(|| edge.stricter(needs)).into_iter().chain(edge.lenient(needs));
        cuts.extend(std::iter::once(gap).chain(others));
        Finding::Gap
    } else {
        let paying = unsigned.as_ref().filter(pays);
        let mut worst = None;
        let (finding, cut) = match (paying, any.as_ref().filter(pays)) {
            _ if has_culprits => (Finding::NoFaster, None),
            (Some(edge), _) => (ordinary(needs, known, edge), Some(stricter(edge))),
            (_, Some(edge)) => {
                worst = edge.lenient(needs);
                (Finding::SignedIn, Some(stricter(edge)))
            }
            _ => {
                let few = (keys >= HUNDREDTH).then_some((keys / 100) as usize);
                let few = few.and_then(|few| candidates::most_demanding(needs, Purpose::Hundredth, few));
                let finding = any
                    .or(unsigned)
                    .map_or(Finding::Smooth, |edge| Finding::NotWorthIt { denied_share: edge.denied_share });
                (finding, few)
            }
        };
        cuts.extend(ceiling().into_iter().chain(cut).chain(worst));
        finding
    };
    let mut seen: Vec<HashSet<u64>> = Vec::new();
    cuts.retain(|cut| {
        let new = !seen.contains(&cut.hit);
        seen.push(cut.hit.clone());
        new
    });
    cuts.truncate(3);
    Choice { finding, cuts, stand_out }
}

/// The reason not to cut the keys above a gap, none of which signed in.
fn ordinary(needs: &Needs, known: &Known, edge: &Edge) -> Finding {
    let key = |place: &usize| &needs.remembered()[*place];
    if edge.above.iter().all(|place| known.spares(key(place))) {
        return Finding::Ordinary;
    }
    let above: HashSet<usize> = edge.above.iter().copied().collect();
    let crowd = || {
        let all = needs.remembered().iter().enumerate();
        all.filter(|(place, _)| !above.contains(place)).map(|(_, key)| key)
    };
    let peak = crowd().map(KeyNeed::peak).max().unwrap_or(0).saturating_mul(BURSTS.0);
    let over_time = crowd().map(|key| needs.burst(key, 0)).max().unwrap_or(0).saturating_mul(BURSTS.1);
    let in_bursts = |place: &usize| key(place).peak() < peak && needs.burst(key(place), 0) < over_time;
    if edge.above.iter().all(in_bursts) { Finding::Bursts } else { Finding::Unclear }
}

// The narrower question whose answer cuts what a suggestion spares.
//
// A guesser who is slower than readers of pages is far faster than anybody else at `/login`; a scraper that is slower
// than an office stands out among those who do not sign in. So the log is asked again about such requests alone, and
// the question is told if its answer cuts the key.

const ASKED: usize = 2;

pub(super) struct Question {
    key: String,
    name: &'static str,
    pattern: String,
}

impl Question {
    pub(super) fn matching(&self) -> Result<Match, GlobError> {
        match self.name {
            "path" => Match::any().path(&self.pattern),
            name => Ok(Match::any().attribute(name, Want::Absent)),
        }
    }

    /// Returns the answer, if it cuts the key.
    pub(super) fn answered(self, by: &Suggestion) -> Option<Instead> {
        let proposal = by.recommended().filter(|_| by.finding == Finding::Gap)?;
        let Self { key, name, pattern } = self;
        let cuts = proposal.hit.iter().any(|hit| hit.key == key);
        cuts.then(|| Instead { key, name: name.to_owned(), pattern, proposal: proposal.clone() })
    }
}

/// Returns the questions about the keys that a suggestion does not cut, those that no limit catches first.
pub(super) fn questions(found: &Suggestion) -> Vec<Question> {
    let spared = found.stand_out.iter().filter(|key| key.fate != Fate::Cut);
    let ask = |key: &str, name, pattern| Question { key: key.to_owned(), name, pattern };
    let mut out = Vec::new();
    for key in spared {
        let path = key.signs.path.as_deref().filter(|path| path.starts_with('/'));
        out.extend(path.map(|path| ask(&key.key, "path", literal(path))));
        if !key.signed_in && found.keys_signed_in > 0 {
            out.push(ask(&key.key, "user.id", "false".to_owned()));
        }
    }
    out.truncate(ASKED);
    out
}
