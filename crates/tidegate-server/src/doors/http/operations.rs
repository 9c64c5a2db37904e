//! Health, metrics, version, schema, reload and backup.

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;
use tidegate::cluster::Part;
use tidegate::policy::Mode;
use tidegate::visible;

use super::routes::Query;
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::body::{self, Response, json};
use crate::decider::{Nodes, Outage};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::reload::Taken;
use crate::settings::limits_nothing;
use crate::text::moment;
use crate::uncovered_requests::{SeenKind, Unmet};

/// `/livez`: the process runs. Does not check the store: a restart would not repair it.
pub(crate) fn livez() -> Response {
    body::text(StatusCode::OK, "ok\n")
}

/// `/readyz`: whether to send requests here; 503 once a drain begins. `?verbose` lists the checks.
///
/// Health needs no token, so that load balancers can ask. The checks tell about the file, keys and traffic, so they
/// are shown only to callers that may read such things, and at the admin address if there is one: `may_read`, asked
/// only for them.
pub(crate) fn readyz(
    app: &App,
    uri: &http::Uri,
    may_read: impl FnOnce() -> bool,
) -> Result<Response, Problem> {
    let verbose = Query::of(uri, &["verbose"])?.flag("verbose")?;
    let serving = app.is_ready();
    let status = if serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if !verbose {
        return Ok(body::text(status, if serving { "ok\n" } else { "draining\n" }));
    }
    let text = if may_read() { checks(app, serving) } else { state(serving) };
    Ok(body::text(status, text))
}

/// Returns what everybody may see.
fn state(serving: bool) -> String {
    let (mark, word) = if serving { ("[+]", "ready") } else { ("[-]", "not ready") };
    format!("{mark} serving\n{word}\n")
}

fn checks(app: &App, serving: bool) -> String {
    app.decider.conditions.tell();
    let live = app.decider.live();
    let occupancy = app.decider.storage.occupancy();
    let mark = |good: bool| if good { "[+]" } else { "[-]" };
    let reload = app.reload.last();
    // A refused file does not make the server unready: the old one is in force.
    let is_idle =
        !live.set.is_empty() && live.set.policies().iter().all(|policy| policy.mode != Mode::Enforce);
    let is_empty = limits_nothing(&live.set) && app.decider.storage.cluster_policies().is_none();
    let in_force = match live.set.len() {
        1 => format!("config #{} in force, 1 policy", live.number),
        count => format!("config #{} in force, {count} policies", live.number),
    };
    let config = match &reload {
        None if is_idle => format!("[!] {in_force}, and none refuses: all are in shadow mode or off"),
        None if is_empty => format!("[!] {in_force}: nothing is limited"),
        None => format!("[+] {in_force}"),
        Some(refused) => format!(
            "[!] {in_force}; the last reload was refused: {}",
            refused.diagnostics.first().map_or("", String::as_str)
        ),
    };
    let kind = app.decider.storage.kind();
    // Nor does a store outage: policies say what happens then, and no other node would have the store.
    let store = match (app.decider.storage.outage(), app.decider.storage.trouble()) {
        (None, Some((reason, lasts))) => {
            let seconds = lasts.as_secs();
            format!(
                "[!] store {kind} has written nothing for {seconds} s, counters are only in memory: {}",
                visible::line(&reason)
            )
        }
        // An engine has no slots of this process.
        (None, None) if occupancy.capacity == 0 => engine_line(app),
        (None, None) => {
            let of = format!("store {kind}: {} of {} slots", occupancy.used, occupancy.capacity);
            match occupancy.evicted_over_limit {
                0 => format!("[+] {of}"),
                1 => format!("[!] {of}; 1 key over its limit was forgotten; raise store.keys"),
                keys => format!("[!] {of}; {keys} keys over their limit were forgotten; raise store.keys"),
            }
        }
        (Some(Outage { reason, lasts }), _) => {
            let seconds = lasts.as_secs();
            format!(
                "[!] store {kind} has been gone for {seconds} s, on_store_error decides: {}",
                visible::line(&reason)
            )
        }
    };
    let lent = central_line(&app.decider.storage.not_leased(&live.set), "which cannot be leased");
    let reported = app.decider.storage.nodes().map_or_else(String::new, nodes_line);
    let nodes = app.decider.storage.membership().map_or_else(String::new, |status| {
        let mark = if status.failed.is_some() || status.too_many { "[!]" } else { "[+]" };
        let part = f64::from(status.part) * 100.0 / f64::from(Part::WHOLE);
        let why = match (&status.failed, status.too_many) {
            (Some(why), _) => format!("; the last round failed: {}", visible::line(why)),
            (None, true) if app.decider.storage.region().is_some() => {
                "; more regions than store.region.max".to_owned()
            }
            (None, true) => "; more than store.nodes".to_owned(),
            (None, false) => String::new(),
        };
        // Only the leading node counts the members.
        let members = match status.members {
            0 => String::new(),
            members => format!("{members} members, "),
        };
        let (of, whose) = match app.decider.storage.region() {
            Some(region) => ("regions", format!("region {}", visible::line(region))),
            None => ("nodes", "this one".to_owned()),
        };
        format!("\n{mark} {of}: {members}{whose} has {part:.1} % of each limit{why}")
    });
    let (too_far, round_trip) = app.decider.storage.too_far(&live.set);
    let ms = round_trip.as_secs_f64() * 1e3;
    let far =
        central_line(&too_far, &format!("whose bursts are too small for a store that answers in {ms:.1} ms"));
    let unmet = unmet_lines(&live, &app.decider.metrics)
        + &out_of_date_line(&app.decider.conditions.out_of_date(&live));
    let unread =
        app.decider.conditions.unread_sources(&live).into_iter().chain(app.decider.conditions.unended(&live));
    let unread: String = unread.map(|one| format!("\n[!] {}", visible::line(&one))).collect();
    let blocks = match app.decider.keys.blocks_left_out() {
        0 => String::new(),
        count => format!(
            "\n[!] {count} blocks of `over: block` did not begin, since too many keys are blocked; their limits refused"
        ),
    };
    let policies = app
        .decider
        .storage
        .cluster_policies()
        .map_or_else(String::new, |_| policies_line(&app.reload.taken()));
    let drained =
        if app.drain.is_ready() { "" } else { ": drained by an operator; `tidegate drain --undo` ends that" };
    let tls = app
        .certificates
        .as_ref()
        .map_or_else(String::new, |certificates| format!("\n{}", certificates.describe()));
    format!(
        "{} serving{drained}\n{config}{policies}{unmet}{unread}{blocks}\n{store}{lent}{reported}{nodes}{far}{tls}\n[+] {} requests in flight\n{}\n",
        mark(serving),
        // Does not count this request.
        app.requests_in_flight().saturating_sub(1),
        if serving { "ready" } else { "not ready" },
    )
}

/// Describes an engine that is asked: how far it is, and what was noticed since the start.
fn engine_line(app: &App) -> String {
    let storage = &app.decider.storage;
    let (losses, set_back) = storage.noticed();
    let mark = if losses + set_back > 0 { "[!]" } else { "[+]" };
    let seen = storage.nodes().map(Nodes::seen).filter(|seen| seen.members > 0);
    let far = seen.map_or_else(String::new, |seen| {
        format!(", answers in {:.1} ms", seen.round_trip.as_secs_f64() * 1e3)
    });
    let lost = match losses {
        0 => String::new(),
        count => format!("; lost the state of keys, noticed {count} x: they count as store.after_loss says"),
    };
    let clock = match set_back {
        0 => String::new(),
        count => format!("; its clock was set back, noticed {count} x"),
    };
    format!("{mark} store {}{far}{lost}{clock}", storage.kind())
}

/// Describes the policies that use another share than the file asks for.
fn central_line(policies: &[&str], why: &str) -> String {
    let named: Vec<_> = policies.iter().take(TOLD).map(|name| visible::line(name).to_string()).collect();
    let more = match policies.len().saturating_sub(TOLD) {
        _ if named.is_empty() => return String::new(),
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("\n[+] share: the engine decides each request of {}{more}, {why}", named.join(", "))
}

/// Describes the nodes of an engine that does not coordinate them.
fn nodes_line(nodes: &Nodes) -> String {
    let (seen, most) = (nodes.seen(), nodes.most());
    if seen.members == 0 {
        return String::new();
    }
    let mark = if seen.too_many() || !seen.others().is_empty() { "[!]" } else { "[+]" };
    let many = if seen.too_many() { ", more than it says" } else { "" };
    let others = match seen.others() {
        [] => String::new(),
        others => format!("; other policies than this one have: {}", others.join(", ")),
    };
    format!("\n{mark} nodes: {} of {most} in store.nodes{many}{others}", seen.members)
}

/// How many kinds of requests, and policies, are told.
const TOLD: usize = 5;

/// Describes the requests that no policy is about, and the policies that no request has reached.
fn unmet_lines(live: &ActiveConfig, metrics: &Metrics) -> String {
    /// After so many requests, a policy that none has reached is probably a mistake.
    const MANY: u64 = 100;
    let since = |tick| moment(tick, Duration::ZERO).unwrap_or_default();
    let unmet = live.unmet.unlimited();
    let kinds = |kinds: &[SeenKind], count: fn(u64) -> String| {
        let mut lines = String::new();
        for kind in kinds.iter().take(TOLD) {
            lines += &format!("\n      {} x {}", count(kind.count), visible::line(&kind.what));
        }
        if let more @ 1.. = kinds.len().saturating_sub(TOLD) {
            lines += &format!("\n      and {more} more kinds; the log has a line for each");
        }
        lines
    };
    let mut lines = String::new();
    if let Some(unmet) = &unmet {
        let of = match unmet.count {
            1 => "1 request was".to_owned(),
            count => format!("{count} requests were"),
        };
        lines += &format!("\n[!] {of} limited by no policy since {}:", since(live.since));
        lines += &kinds(&unmet.kinds, |count| count.to_string());
    }
    if let Some(mistaken) = live.unmet.mistaken().filter(|mistaken| !mistaken.kinds.is_empty()) {
        let mark = if mistaken.kinds.iter().any(|kind| kind.is_mistake) { "[!]" } else { "[+]" };
        lines += &format!("\n{mark} requests that may be meant otherwise, since {}:", since(live.since));
        let about =
            |count: u64| if count > Unmet::FIRST { format!("about {count}") } else { count.to_string() };
        lines += &kinds(&mistaken.kinds, about);
    }
    let unreached: Vec<_> = live.unreached().collect();
    if let Some(first) = unreached.iter().map(|(_, since)| *since).min() {
        let named: Vec<_> = unreached.iter().take(TOLD).map(|(name, _)| visible::line(name)).collect();
        let more = match unreached.len().saturating_sub(TOLD) {
            0 => String::new(),
            more => format!(" and {more} more, see GET /v1/policies"),
        };
        let decided = live.decided(metrics);
        let lacking = unreached.iter().filter_map(|(name, _)| {
            let (missing, had) = live.unmet.never_had(live.set.find(name)?.1);
            let others =
                if had.is_empty() { String::new() } else { format!("; requests had {}", had.join(", ")) };
            let missing = missing.iter().map(|name| visible::line(name)).collect::<Vec<_>>().join(", ");
            let name = visible::line(name);
            (!missing.is_empty())
                .then(|| format!("\n      {name} needs {missing}, which no request was seen to have{others}"))
        });
        let lacking: Vec<String> = lacking.take(TOLD).filter(|_| decided > 0).collect();
        // Else it may only say that nobody has asked yet.
        let is_odd = unmet.is_some() || !lacking.is_empty() || decided >= MANY;
        let mark = if is_odd { "[!]" } else { "[+]" };
        let of = if decided == 0 { String::new() } else { format!(", of {decided} in all") };
        lines +=
            &format!("\n{mark} no request has reached {}{more} since {}{of}", named.join(", "), since(first));
        lines.extend(lacking);
    }
    lines
}

/// Describes the policies that limit nothing because a number of theirs is not known any more.
fn out_of_date_line(policies: &[&str]) -> String {
    let named: Vec<_> = policies.iter().take(TOLD).map(|name| visible::line(name)).collect();
    let more = match policies.len().saturating_sub(TOLD) {
        _ if named.is_empty() => return String::new(),
        0 => String::new(),
        more => format!(" and {more} more, see GET /v1/policies"),
    };
    format!(
        "\n[!] a number that the conditions of {}{more} need is not known any more: they limit nothing",
        named.join(", ")
    )
}

/// Describes which of the policies for all nodes are in force.
fn policies_line(taken: &Taken) -> String {
    let in_force = taken.in_force.as_ref().map_or_else(
        || "those of the file are in force".to_owned(),
        |policies| format!("version {} is in force", policies.version),
    );
    match &taken.refused {
        None => format!("\n[+] policies put for all nodes: {in_force}"),
        Some((0, why)) => {
            format!("\n[!] policies put for all nodes: {in_force}; the last are refused: {why}")
        }
        Some((version, why)) => format!(
            "\n[!] policies put for all nodes: {in_force}; version {version} is refused: {}",
            visible::line(why)
        ),
    }
}

/// `/metrics`, in the format that the caller prefers.
pub(crate) fn metrics(app: &App, headers: &HeaderMap) -> Response {
    let format = MetricsFormat::of(headers);
    let page = app.decider.write_metrics(|registry| {
        if let Some(certificates) = &app.certificates {
            certificates.show(registry);
        }
        if let Some(spans) = &app.spans {
            spans.show(registry);
        }
    });
    body::answer(StatusCode::OK, format.content_type(), format.written(page))
}

/// `/version`: the version of the program.
pub(crate) fn version() -> Response {
    json::ok(&json!({
        "name": "tidegate",
        "version": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("TIDEGATE_COMMIT").unwrap_or("unknown"),
    }))
}

/// `/config.schema.json`: the JSON Schema of the configuration file.
pub(crate) fn schema() -> Response {
    let mut response = json::ok(&tidegate::config::schema());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/schema+json"));
    response
}

/// `POST /v1/reload`: reads the configuration again.
///
/// # Errors
/// 422 with every mistake; the old one stays in force.
pub(crate) async fn reload(app: &App, headers: &HeaderMap) -> Result<Response, Problem> {
    let token = app.access.name_of(headers).unwrap_or_default();
    match app.read_again(&token).await {
        Ok(warnings) => {
            let live = app.decider.live();
            Ok(json::ok(&json!({
                "config": live.number,
                "policies": live.set.len(),
                "warnings": warnings,
            })))
        }
        Err(refused) => {
            let count = refused.diagnostics.len();
            let detail = format!(
                "the configuration was refused, {count} {}; the old one stays in force",
                if count == 1 { "mistake" } else { "mistakes" }
            );
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
            Err(problem.with("diagnostics", refused.diagnostics))
        }
    }
}

/// `/v1/drain`: takes this node out while it still answers (`POST`), undoes that (`DELETE`), or says how far it is.
pub(crate) fn drain(app: &App, method: &Method, headers: &HeaderMap) -> Response {
    let token = app.access.name_of(headers).unwrap_or_default();
    let changed = |what: &str| app.decider.tell_change("change", &token, "", || what.to_owned());
    match *method {
        Method::POST if app.drain.begin(&app.decider) => changed("this node is drained"),
        Method::DELETE if app.drain.undo(&app.decider) => changed("this node is no longer drained"),
        _ => {}
    }
    let Some(state) = app.drain.state(&app.decider) else {
        return json::shown(&json!({ "drained": false }));
    };
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let leases = state
        .leases
        .map(|leases| json!({ "held": leases.held, "returned": leases.returned, "burned": leases.burned }));
    json::shown(&json!({
        "drained": true,
        "since": moment(state.since, Duration::ZERO),
        "quiet_ms": ms(state.quiet),
        "requests": state.requests,
        "leases": leases,
        "part_handed_over": state.handed_over,
        "may_stop": state.may_stop(),
    }))
}

/// `POST /v1/backup`: writes a copy of the counters on disk beside them, while checks go on.
///
/// # Errors
/// 409 for a store that keeps none; 503 if the copy cannot be written.
pub(crate) async fn back_up(app: &App) -> Result<Response, Problem> {
    match app.decider.storage.back_up().await {
        Some(Ok(file)) => Ok(json::ok(&json!({ "file": file }))),
        Some(Err(why)) => Err(Problem::unavailable(format!("the counters were not copied: {why}"))),
        None => {
            let kind = app.decider.storage.kind();
            let detail = format!("`store.kind: {kind}` keeps no counters on this disk; only `disk` does");
            Err(Problem::conflict(detail))
        }
    }
}

/// The format of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    OpenMetrics,
    Text,
}

impl MetricsFormat {
    /// Returns OpenMetrics, unless `accept` ranks `text/plain` higher.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let (mut open, mut text, mut any) = (None, None, None);
        let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in ranges.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            let weight = weight.and_then(|weight| weight.parse::<f32>().ok()).unwrap_or(1.0);
            let known: &mut Option<f32> = match kind.as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" | "text/*" => &mut text,
                "*/*" => &mut any,
                _ => continue,
            };
            *known = Some(known.map_or(weight, |before| before.max(weight)));
        }
        let open = open.or(any).unwrap_or(0.0);
        if text.is_some_and(|text| text > open) { Self::Text } else { Self::OpenMetrics }
    }

    pub(super) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    /// Writes a page of OpenMetrics in this format.
    pub(super) fn written(self, page: String) -> String {
        if self == Self::OpenMetrics { page } else { as_text(&page) }
    }
}

/// Rewrites the heads of families: a counter is called as its samples, an info is a gauge, without units and end.
fn as_text(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut help = "";
    for line in page.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        if let Some(text) = comment.strip_prefix("HELP ") {
            help = text;
        } else if let Some((name, kind)) = comment.strip_prefix("TYPE ").and_then(|of| of.split_once(' ')) {
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            // Writing to a string does not fail.
            if let Some((_, text)) = help.split_once(' ') {
                let _ = writeln!(out, "# HELP {name}{ending} {text}");
            }
            let _ = writeln!(out, "# TYPE {name}{ending} {kind}");
            help = "";
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_chooses() {
        let chosen = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            MetricsFormat::of(&headers)
        };
        assert_eq!(MetricsFormat::of(&HeaderMap::new()), MetricsFormat::OpenMetrics);
        for accept in [
            "*/*",
            "text/html",
            // Prometheus 2 and 3.
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "text/plain;q=x, application/openmetrics-text",
        ] {
            assert_eq!(chosen(accept), MetricsFormat::OpenMetrics, "{accept}");
        }
        for accept in [
            "text/plain",
            "text/plain;version=0.0.4;q=0.6,*/*;q=0.5",
            "text/plain, application/openmetrics-text;q=0.9",
            "TEXT/*",
        ] {
            assert_eq!(chosen(accept), MetricsFormat::Text, "{accept}");
        }
    }

    #[test]
    fn heads_are_those_of_the_text_format() {
        let page = "# HELP a Decisions made.\n# TYPE a counter\na_total{x=\"a # b\"} 5\n# HELP b Times.\n\
            # TYPE b histogram\n# UNIT b seconds\nb_sum 1.0\n# TYPE c info\nc_info{v=\"1\"} 1\n# HELP d d.\n\
            # TYPE d unknown\nd 1\n# EOF\n";
        let text = "# HELP a_total Decisions made.\n# TYPE a_total counter\na_total{x=\"a # b\"} 5\n# HELP b Times.\n\
            # TYPE b histogram\nb_sum 1.0\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n# HELP d d.\n# TYPE d untyped\nd 1\n";
        assert_eq!(as_text(page), text);
    }
}
