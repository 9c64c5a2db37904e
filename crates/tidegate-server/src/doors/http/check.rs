//! `POST /v1/check` and `/v1/peek`, `/v1/dry-run` and `/v1/check/batch`.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tidegate::config::{Config, Format};
use tidegate::gate::Charged;
use tidegate::policy::PolicySet;
use tokio::runtime::Handle;
use tokio::sync::{SemaphorePermit, mpsc};

use super::answer::Reply;
use super::explain::explained;
use super::policies;
use super::request_body::{
    self, CheckBody, MAX_BATCH_BODY, MAX_BATCH_LIMITS, MAX_PROPOSED, MAX_PROPOSED_BODY,
};
use super::routes::Query;
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::body::{self, Body, Response, json};
use crate::connections::Streamed;
use crate::decider::{Conclusion, NoTicket, TicketFor, Want};
use crate::metrics::Transport;
use crate::problem::{Delayed, Problem};
use crate::settings::Refused;

/// After a check that met more limits than this, others have their turn.
const MANY: usize = 64;

/// Decides one request: `/v1/check`, or without charging `/v1/peek`.
pub(crate) async fn check(app: &App, request: Request<Body>, want: Want) -> Result<Response, Problem> {
    let bytes = request_body::read(request, request_body::MAX_BODY).await?;
    let asked = request_body::check(&bytes)?;
    let live = app.decider.live();
    let only = asked.named(&live.set)?;
    let ticket = if want == Want::Take { TicketFor::Caller(asked.ticket) } else { TicketFor::Nobody };
    let (mut held, only) = (Charged::default(), only.as_deref());
    let keep = ticket.keeps(&live).then_some(&mut held);
    let conclusion =
        app.decider.deciding.decide(&live, asked.check(), only, want, keep, Transport::http).await;
    let reply = reply_to(app, &live, &asked, only, want, ticket, &conclusion, &held).await;
    let reply = reply.map_err(|none| unreturnable(&none, StatusCode::BAD_REQUEST))?;
    let mut response = reply.response(&live);
    if conclusion.met() > MANY {
        response.extensions_mut().insert(Delayed(Duration::ZERO));
    }
    Ok(response)
}

/// Refuses a request whose place nobody could return.
pub(crate) fn unreturnable(none: &NoTicket, status: StatusCode) -> Problem {
    let detail = format!("refused, since the place that it takes could not be returned: {none}");
    let problem = Problem::new(status, detail);
    match &none.policy {
        Some(policy) => problem.with("policy", policy.as_str()),
        None => problem,
    }
}

/// Makes the reply to a decision: gives it its id and its ticket. `held` has its charges, which may be undone here.
///
/// # Errors
/// [`NoTicket`] if a place was taken and no ticket can return it; then everything is undone.
#[allow(clippy::too_many_arguments, reason = "what was asked, and what came of it")]
pub(crate) async fn reply_to<'a, 'd>(
    app: &'a App,
    live: &'a ActiveConfig,
    asked: &'a CheckBody<'d>,
    only: Option<&[usize]>,
    want: Want,
    ticket: TicketFor,
    conclusion: &'a Conclusion,
    held: &Charged,
) -> Result<Reply<'a, 'd>, NoTicket> {
    let (decider, request) = (&app.decider, &asked.request);
    let name = || decider.telemetry.name_and_tell(live, &asked.check(), only, conclusion);
    let id = (want == Want::Take).then(name);
    let ticket = decider.tickets.make_or_undo(request, conclusion, held, ticket, id).await?;
    let facts = conclusion.facts(live, &decider.metrics);
    Ok(Reply { decider, request, conclusion, facts, want, id, ticket })
}

// `POST /v1/dry-run`: how a request would be decided, now or after a change of the policies. Charges nothing.
//
// Proposed policies are evaluated over the present counters: a policy finds its keys by its name, so the answer is
// that of the first check after a reload. They are never in force, and have no series.

/// The longest body that is answered on a thread of connections, in a turn of long work.
const SHORT_DRY_RUN: usize = 1024;

struct Proposed {
    set: Arc<PolicySet>,
    warnings: Vec<String>,
}

/// Answers how a request would be decided.
///
/// # Errors
/// 400 for a malformed body, 413 for too long a text, 422 with every mistake in it, 503 while the most texts that
/// may be read at once are being read.
pub(crate) async fn dry_run(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let reveal = Query::of(request.uri(), &["reveal"])?.flag("reveal")?;
    let bytes = request_body::read(request, MAX_PROPOSED_BODY).await?;
    if bytes.len() <= SHORT_DRY_RUN {
        drop(app.first_long_turn().await?);
        return answer_dry_run(app, &bytes, reveal).await;
    }
    let Ok(place) = Arc::clone(&app.proposals).try_acquire_owned() else {
        let detail = "the largest number of proposed texts is being read already; try again in a second";
        return Err(Problem::unavailable(detail));
    };
    let (app, runtime) = (Arc::clone(app), Handle::current());
    let answering = move || {
        // Held by the work, which goes on when the caller hangs up.
        let _place = place;
        runtime.block_on(answer_dry_run(&app, &bytes, reveal))
    };
    // Reading thousands of policies, asking them, writing and dropping them takes longer than others should wait.
    let answered = tokio::task::spawn_blocking(answering).await;
    answered.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the dry run failed"))?
}

async fn answer_dry_run(app: &App, bytes: &[u8], reveal: bool) -> Result<Response, Problem> {
    let asked = request_body::dry_run(bytes)?;
    let live = app.decider.live();
    let proposed = match &asked.config {
        Some(text) => Some(proposed(app, text)?),
        None => None,
    };
    let set = proposed.as_ref().map_or(&live.set, |proposed| &proposed.set);
    // In force, a canary would go on with the share that it has.
    set.keep_canary_shares(&live.set);
    let only = asked.check.named(set)?;
    let conclusion = app.decider.deciding.dry_run(set, asked.check.check(), only.as_deref()).await;
    // Without headers, whose facts only policies in force have.
    let reply = Reply::of_look(&app.decider, &asked.check.request, &conclusion);
    let mut answer = explained(app, set, &reply, only.as_deref(), reveal);
    answer["status"] = reply.status().as_u16().into();
    answer["config"] = json!(if proposed.is_some() { "proposed" } else { "in-force" });
    answer["warnings"] = json!(proposed.map(|proposed| proposed.warnings).unwrap_or_default());
    Ok(json::shown(&answer))
}

fn proposed(app: &App, text: &str) -> Result<Proposed, Problem> {
    if text.len() > MAX_PROPOSED {
        let detail = format!("`config` has {} bytes; at most {MAX_PROPOSED} are read here", text.len());
        let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
        return Err(problem.with("field", "config").with("max_bytes", MAX_PROPOSED));
    }
    let read = Config::parse_to_serve(text, "config", Format::of_text(text));
    let (config, warnings) = read.map_err(|mistakes| policies::of_mistakes(&mistakes))?;
    app.decider.fits(&config.policies).map_err(|Refused { diagnostics }| policies::of_lines(diagnostics))?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(Proposed { set: config.policies, warnings })
}

// `POST /v1/check/batch`: decides many requests of one call.
//
// A batch of 26 KB may ask for an answer of 5 MB. So checks are decided while the answer is read, a few hundred
// limits at a time: a caller that does not read costs its own bytes and one piece of the answer, and others have
// their turn between two pieces. A short answer is made at once and has a length.

/// After how many limits, and at most how many checks, a slice of the work ends: about a millisecond.
const SLICE: usize = 256;
/// The same if an engine decides, asked once for a slice.
const ENGINE_SLICE: usize = 1024;
/// The checks of the first slice.
const FIRST: usize = 64;
/// The longest body that is read without a turn of long work, in bytes.
const SHORT_BATCH: usize = 4096;
/// How long a piece of the answer gets, in bytes.
const PIECE: usize = 64 * 1024;

type Making = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send>>;

/// Decides many requests, in order. All are read before the first is charged.
///
/// # Errors
/// Those of reading the body; 503 without room for it, or without a turn for long work.
pub(crate) async fn batch(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let bytes = request_body::read(request, MAX_BATCH_BODY).await?;
    let room = request_body::room_for(bytes.len())?;
    let slice = if app.decider.deciding.asks_no_engine() { SLICE } else { ENGINE_SLICE };
    // An entry for a limit takes some 250 bytes.
    let held = bytes.len() + PIECE + 250 * slice;
    let (out, pieces) = mpsc::channel(1);
    let app = Arc::clone(app);
    let making = async move {
        let _room = room;
        make(&app, &bytes, slice, &out).await
    };
    let mut answer = Pieces { making: Some(Box::pin(making)), pieces };
    let first = std::future::poll_fn(|cx| answer.poll_next(cx)).await.unwrap_or(Ok(Vec::new()))?;
    let mut response = if answer.making.is_none() {
        Response::new(body::whole(first))
    } else {
        let rest = stream::poll_fn(move |cx| answer.poll_next(cx));
        // No error comes after the first piece.
        let all = stream::once(async { Ok(first) }).chain(rest);
        let all =
            all.map(|piece| piece.map_err(|problem| std::io::Error::other(problem.detail().to_owned())));
        let mut response = Response::new(body::streamed(all));
        response.extensions_mut().insert(Streamed { held });
        response
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// An answer that is made while it is read.
struct Pieces {
    /// `None` once the answer is complete.
    making: Option<Making>,
    pieces: mpsc::Receiver<Vec<u8>>,
}

impl Pieces {
    /// Returns the next piece; `None` after the last.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Problem>>> {
        loop {
            if let Poll::Ready(piece) = self.pieces.poll_recv(cx) {
                return Poll::Ready(piece.map(Ok));
            }
            let Some(making) = &mut self.making else { return Poll::Ready(None) };
            let made = ready!(making.as_mut().poll(cx));
            self.making = None;
            if let Err(problem) = made {
                return Poll::Ready(Some(Err(problem)));
            }
        }
    }
}

/// Decides the checks and writes the answer, piece by piece.
///
/// # Errors
/// Before anything is decided: 400 if a check cannot be read or names an unknown policy, 503 without a turn.
async fn make(
    app: &App,
    bytes: &[u8],
    slice_limits: usize,
    out: &mpsc::Sender<Vec<u8>>,
) -> Result<(), Problem> {
    // Reading a long body is long work too.
    let mut turn = if bytes.len() <= SHORT_BATCH { None } else { app.first_long_turn().await? };
    let checks = request_body::batch(bytes)?;
    let live = Arc::clone(&app.decider.live());
    for (at, asked) in checks.iter().enumerate() {
        asked.named(&live.set).map_err(|problem| problem.with("index", at))?;
    }
    // A ticket takes as much of the answer for each limit as the limit's own entry.
    let tickets = checks.iter().any(|asked| TicketFor::Caller(asked.ticket).keeps(&live));
    let mut batch = Batch {
        app,
        count: checks.len(),
        most_limits: if tickets { MAX_BATCH_LIMITS / 2 } else { MAX_BATCH_LIMITS },
        at: 0,
        limits: 0,
        slice_limits,
        slice: FIRST,
        written: vec![b'['],
    };
    let is_short = checks.len() <= batch.slice && live.set.len() * checks.len() <= SLICE;
    if !is_short && turn.is_none() {
        turn = app.first_long_turn().await?;
    }
    while batch.written.len() < PIECE && !batch.is_complete() {
        if batch.at > 0 {
            turn = app.long_turn().await;
        }
        let end = (batch.at + batch.slice).min(batch.count);
        batch.slice(&live, &checks[batch.at..end], turn.take()).await;
    }
    // The caller may take its time: what was read is dropped, and the rest read again slice by slice.
    let mut rest = request_body::batch_after(bytes, batch.at);
    drop((checks, live));
    while !batch.is_complete() {
        // An error means that the caller is gone.
        if out.send(std::mem::take(&mut batch.written)).await.is_err() {
            return Ok(());
        }
        while batch.written.len() < PIECE && !batch.is_complete() {
            let turn = app.long_turn().await;
            let (live, before) = (Arc::clone(&app.decider.live()), batch.at);
            let checks = request_body::batch_slice(rest, batch.slice)?;
            batch.slice(&live, &checks, turn).await;
            rest = request_body::batch_after(rest, batch.at - before);
        }
    }
    batch.written.push(b']');
    let _ = out.send(batch.written).await;
    Ok(())
}

struct Batch<'a> {
    app: &'a App,
    count: usize,
    /// After how many limits no more checks are decided.
    most_limits: usize,
    /// How many checks are answered.
    at: usize,
    /// How many limits they met.
    limits: usize,
    /// After how many limits a slice ends.
    slice_limits: usize,
    /// How many checks the next slice has, to meet about as many limits.
    slice: usize,
    /// The answer so far, without what was given out.
    written: Vec<u8>,
}

impl Batch<'_> {
    fn is_complete(&self) -> bool {
        self.at >= self.count
    }

    /// Decides at least one of the next checks, and writes the answers.
    async fn slice(
        &mut self,
        live: &ActiveConfig,
        checks: &[CheckBody<'_>],
        mut turn: Option<SemaphorePermit<'_>>,
    ) {
        let Self { app, most_limits, slice_limits, .. } = *self;
        let mut chosen = Vec::with_capacity(checks.len());
        for asked in checks {
            match asked.named(&live.set) {
                Ok(only) => chosen.push(only),
                // Its policy was removed since the batch began.
                Err(problem) if chosen.is_empty() => return self.write(&problem.in_batch()),
                Err(_) => break,
            }
        }
        let asked: Vec<_> =
            checks.iter().zip(&chosen).map(|(asked, only)| (asked.check(), only.as_deref())).collect();
        let most = slice_limits.min(most_limits - self.limits);
        let mut deciding = pin!(app.decider.deciding.decide_each(live, &asked, most));
        let first = std::future::poll_fn(|cx| Poll::Ready(deciding.as_mut().poll(cx))).await;
        let conclusions = match first {
            Poll::Ready(conclusions) => conclusions,
            Poll::Pending => {
                // Others work while this waits for an engine or the disk.
                turn = None;
                deciding.await
            }
        };
        let (decided, mut met) = (conclusions.len(), 0);
        for ((asked, only), (conclusion, held)) in checks.iter().zip(&chosen).zip(conclusions) {
            met += match &conclusion {
                Conclusion::Decided(decision) => decision.limits.len(),
                Conclusion::Unsettled { .. } => 0,
            };
            let (ticket, only) = (TicketFor::Caller(asked.ticket), only.as_deref());
            self.begin_entry();
            match reply_to(app, live, asked, only, Want::Take, ticket, &conclusion, &held).await {
                Ok(reply) => reply.write_in_batch(&mut self.written),
                Err(none) => {
                    let problem = unreturnable(&none, StatusCode::BAD_REQUEST);
                    json::write(&mut self.written, &problem.in_batch());
                }
            }
        }
        drop(turn);
        self.limits += met;
        self.slice = (slice_limits * decided / met.max(1)).clamp(1, slice_limits);
        if self.limits >= most_limits {
            let undecided = undecided(most_limits);
            while !self.is_complete() {
                self.write(&undecided);
            }
        }
    }

    fn begin_entry(&mut self) {
        if self.at > 0 {
            self.written.push(b',');
        }
        self.at += 1;
    }

    fn write(&mut self, entry: &Value) {
        self.begin_entry();
        json::write(&mut self.written, entry);
    }
}

/// The answer to a check that was not decided, because the answers before it are long enough.
fn undecided(most_limits: usize) -> Value {
    let detail = format!(
        "not decided, and nothing was charged: a batch is answered with {most_limits} limits; ask again"
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).in_batch()
}
