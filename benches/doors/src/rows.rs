//! The rows to measure, and the table of results.

use anyhow::{Result, ensure};

use crate::load::{Found, Shape, Traffic};
use crate::servers::{Kind, Policies, Server, Told, redis_cell};
use crate::wire::{Answers, Grpc, Http, Resp, What, Wire};

/// A row of the table: the same load for each contender, Tidegate first.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) contenders: Vec<Contender>,
}

impl Row {
    /// Whether it compares refusals with permits, at one door.
    fn refuses(&self) -> bool {
        self.contenders.iter().any(Contender::is_refused)
    }
}

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) door: Door,
    pub(crate) traffic: Traffic,
    pub(crate) wire: Box<dyn Fn() -> Box<dyn Wire>>,
}

/// A protocol of the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Http,
    Grpc,
    Resp,
}

impl Door {
    pub(crate) fn port(self, server: &Server) -> u16 {
        match self {
            Self::Http => server.http,
            Self::Grpc => server.grpc,
            Self::Resp => server.resp,
        }
    }

    /// The label of Tidegate's metrics.
    fn transport(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
        }
    }
}

impl Contender {
    fn is_refused(&self) -> bool {
        self.traffic != Traffic::Permitted
    }
}

fn grpc(name: &'static str, kind: Kind, descriptors: usize, envoy: bool) -> Contender {
    let wire = Box::new(move || Box::new(Grpc::new(descriptors, envoy)) as Box<dyn Wire>);
    Contender { name, kind, door: Door::Grpc, traffic: Traffic::Permitted, wire }
}

fn http(name: &'static str, kind: Kind, what: What) -> Contender {
    let wire = Box::new(move || Box::new(Http::new(what)) as Box<dyn Wire>);
    Contender { name, kind, door: Door::Http, traffic: Traffic::Permitted, wire }
}

fn resp(name: &'static str, kind: Kind, wire: fn(Answers) -> Resp) -> Contender {
    let wire = Box::new(move || Box::new(wire(Answers::default())) as Box<dyn Wire>);
    Contender { name, kind, door: Door::Resp, traffic: Traffic::Permitted, wire }
}

/// Puts beside a permitted contender the same door under attack: a server whose keys have one unit a day.
fn attacked(permitted: Contender, refused: impl Fn(&'static str) -> Contender) -> Vec<Contender> {
    let of = |name, traffic| Contender { traffic, ..refused(name) };
    vec![
        permitted,
        of("99 of 100 refused, many keys", Traffic::ManyRefused),
        of("all refused, one key", Traffic::OneRefused),
    ]
}

/// Returns all rows. In names, `16 x 4` means 16 connections with 4 calls in flight on each.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |door: &str, connections, open, contenders| {
        let name = format!("{door}, {connections} x {open}");
        rows.push(Row { name, shape: Shape { connections, open }, contenders });
    };
    let ours = Kind::Tidegate(Policies::One);
    for (connections, open) in [(16, 4), (1, 64), (64, 1), (1, 1)] {
        let both = vec![grpc("tidegate", ours, 1, false), grpc("tonic no-op", Kind::Tonic, 1, false)];
        row("Envoy's call", connections, open, both);
    }
    let with_headers = vec![grpc("tidegate", ours, 1, true), grpc("tonic no-op", Kind::Tonic, 1, true)];
    row("Envoy's call with its headers", 16, 4, with_headers);
    let descriptors = Kind::Tidegate(Policies::FourDescriptors);
    let four = vec![grpc("tidegate", descriptors, 4, false), grpc("tonic no-op", Kind::Tonic, 4, false)];
    row("Envoy's call, 4 descriptors", 16, 4, four);
    let limits = Kind::Tidegate(Policies::FourLimits);
    let four = vec![grpc("tidegate", limits, 1, false), grpc("tonic no-op", Kind::Tonic, 1, false)];
    row("Envoy's call, 4 limits", 16, 4, four);
    let on_two = Kind::TidegateOnTwo(Policies::One);
    row("Envoy's call, server on both cores", 16, 4, vec![grpc("tidegate", on_two, 1, false)]);

    for open in [16, 64, 1] {
        let connections = if open == 1 { 1 } else { 16 };
        let mut beside = vec![
            resp("tidegate", ours, Resp::Throttle),
            resp("redis-server `INCR`", Kind::Redis, Resp::Increment),
        ];
        if redis_cell().is_some() {
            beside.push(resp("redis-cell", Kind::RedisCell, Resp::Throttle));
        }
        row("`CL.THROTTLE`", connections, open, beside);
    }
    for connections in [64, 16, 1] {
        let both = vec![http("tidegate", ours, What::Check), http("axum no-op", Kind::Axum, What::Check)];
        row("`/v1/check`", connections, 1, both);
    }
    row("`/v1/check`, server on both cores", 64, 1, vec![http("tidegate", on_two, What::Check)]);
    for connections in [64, 1] {
        let three = vec![
            http("tidegate", Kind::Tidegate(Policies::Address), What::ForwardAuth),
            http("axum no-op", Kind::Axum, What::ForwardAuth),
            http("nginx `limit_req`", Kind::Nginx, What::Nginx),
        ];
        row("`/v1/forward-auth`", connections, 1, three);
    }
    let on_two = Kind::TidegateOnTwo(Policies::Address);
    row("`/v1/forward-auth`, server on both cores", 64, 1, vec![http("tidegate", on_two, What::ForwardAuth)]);

    let (watched, unseen) = (Kind::Watched(Policies::One), Kind::Unseen(Policies::One));
    let both = vec![grpc("tidegate", watched, 1, false), grpc("tidegate, `sight: off`", unseen, 1, false)];
    row("Envoy's call, 16 listeners", 16, 4, both);
    let throttle = |name, kind| resp(name, kind, Resp::Throttle);
    let both = vec![throttle("tidegate", watched), throttle("tidegate, `sight: off`", unseen)];
    row("`CL.THROTTLE`, 16 listeners", 16, 16, both);
    let check = |name, kind| http(name, kind, What::Check);
    let both = vec![check("tidegate", watched), check("tidegate, `sight: off`", unseen)];
    row("`/v1/check`, 16 listeners", 64, 1, both);
    let (watched, unseen) = (Kind::Watched(Policies::Address), Kind::Unseen(Policies::Address));
    let auth = |name, kind| http(name, kind, What::ForwardAuth);
    let both = vec![auth("tidegate", watched), auth("tidegate, `sight: off`", unseen)];
    row("`/v1/forward-auth`, 16 listeners", 64, 1, both);

    let (user, address) = (Kind::Tidegate(Policies::OneUnit), Kind::Tidegate(Policies::OneUnitByAddress));
    let call = attacked(grpc("permitted", ours, 1, false), move |name| grpc(name, user, 1, false));
    row("Envoy's call, refused", 16, 4, call);
    let throttle =
        attacked(resp("permitted", ours, Resp::Throttle), move |name| resp(name, user, Resp::ThrottleOne));
    row("`CL.THROTTLE`, refused", 16, 16, throttle);
    let check = attacked(http("permitted", ours, What::Check), move |name| http(name, user, What::Check));
    row("`/v1/check`, refused", 64, 1, check);
    let by_address = Kind::Tidegate(Policies::Address);
    let sub_request = attacked(http("permitted", by_address, What::ForwardAuth), move |name| {
        http(name, address, What::ForwardAuth)
    });
    row("`/v1/forward-auth`, refused", 64, 1, sub_request);
    rows
}

/// The results of a row: of each contender, a measurement of each round.
pub(crate) type Rounds = Vec<Vec<Found>>;

/// Checks that the refusals of a row were counted by the metrics, and those of policies also by the denial log and the
/// top keys: without these they would cost less. Returns what the server has told.
///
/// # Errors
/// Fails if any of them has missed refusals.
pub(crate) fn verify_told(row: &Row, found: &[Vec<Found>], server: &Server) -> Result<Option<String>> {
    let Some(contender) = row.contenders.iter().find(|contender| contender.is_refused()) else {
        return Ok(None);
    };
    let Told { counted, logged, of_keys } = server.told(contender.door.transport())?;
    let of_policies = contender.door != Door::Resp;
    let refused: u64 = found.iter().flatten().map(|found| found.refused).sum();
    ensure!(counted >= refused, "the metrics count {counted} of {refused} refusals");
    if !of_policies {
        return Ok(Some(format!("{}: {counted} refusals in the metrics", row.name)));
    }
    ensure!(logged > 0, "the log has no denial");
    ensure!(of_keys >= refused, "the top keys count {of_keys} of {refused} refusals");
    Ok(Some(format!(
        "{}: {counted} refusals in the metrics, {of_keys} in the top keys, {logged} lines in the log",
        row.name
    )))
}

/// The most that a refused request may cost, in permitted ones.
const MOST: f64 = 1.1;

/// Prints a line per contender of each row: first the rows beside other servers, then those of refusals.
pub(crate) fn print(rows: &[Row], found: Vec<Rounds>) {
    let (refused, beside): (Vec<_>, Vec<_>) = rows.iter().zip(found).partition(|(row, _)| row.refuses());
    if !beside.is_empty() {
        print_beside(beside);
    }
    if !refused.is_empty() {
        print_refused(refused);
    }
}

/// Prints the median of each contender, and how many times as cheap Tidegate is.
fn print_beside(rows: Vec<(&Row, Rounds)>) {
    println!(
        "| door, connections x open calls | server | calls a second | server's us a call | in the kernel | p50, p99 us | ours is x as cheap, p99 x theirs |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (row, found) in rows {
        let medians: Vec<Found> = found.into_iter().filter_map(median).collect();
        for (contender, median) in row.contenders.iter().zip(&medians) {
            let Found { rate, cpu, kernel, p50, p99, .. } = median;
            let beside = match contender.name {
                "tidegate" => String::new(),
                _ => format!("{:.2}, {:.2}", cpu / medians[0].cpu, medians[0].p99 / p99),
            };
            println!(
                "| {} | {} | {:.0} k | {cpu:.2} | {:.0} % | {p50:.0}, {p99:.0} | {beside} |",
                row.name,
                contender.name,
                rate / 1e3,
                kernel * 100.0
            );
        }
    }
}

/// Prints the median of each contender, and of the ratios to the permitted time of the same round.
fn print_refused(rows: Vec<(&Row, Rounds)>) {
    println!(
        "\nRefusals, with metrics, denial log and top keys on, as by default (`CL.THROTTLE` has metrics alone).\n"
    );
    println!(
        "| door, connections x open calls | requests | refused | calls a second | server's us a call | in the kernel | p50, p99 us | x the permitted time [least-most] | at most {MOST} |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (row, found) in rows {
        let permitted: Vec<f64> = found[0].iter().map(|found| found.cpu).collect();
        for (contender, found) in row.contenders.iter().zip(found) {
            let mut ratios: Vec<f64> =
                found.iter().zip(&permitted).map(|(found, permitted)| found.cpu / permitted).collect();
            ratios.sort_by(f64::total_cmp);
            let Some(Found { rate, cpu, kernel, p50, p99, answers, refused }) = median(found) else {
                continue;
            };
            let share = refused as f64 * 100.0 / answers as f64;
            let (mut ratio, mut met) = (String::new(), "");
            if contender.is_refused() {
                let (least, middle, most) = (ratios[0], ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
                ratio = format!("{middle:.2} [{least:.2}-{most:.2}]");
                met = if middle <= MOST { "met" } else { "**not met**" };
            }
            println!(
                "| {} | {} | {share:.1} % | {:.0} k | {cpu:.2} | {:.0} % | {p50:.0}, {p99:.0} | {ratio} | {met} |",
                row.name,
                contender.name,
                rate / 1e3,
                kernel * 100.0
            );
        }
    }
}

/// Returns the result with the median processor time.
fn median(mut of: Vec<Found>) -> Option<Found> {
    of.sort_by(|a, b| a.cpu.total_cmp(&b.cpu));
    let middle = of.len() / 2;
    of.into_iter().nth(middle)
}
