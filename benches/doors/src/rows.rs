//! The rows to measure, and the table of results.

use crate::load::{Found, Shape};
use crate::servers::{Kind, Policies, Server, redis_cell};
use crate::wire::{Answers, Grpc, Http, Resp, What, Wire};

/// A row of the table: the same load for each contender, Tidegate first.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) contenders: Vec<Contender>,
}

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) port: fn(&Server) -> u16,
    pub(crate) wire: Box<dyn Fn() -> Box<dyn Wire>>,
}

fn grpc(name: &'static str, kind: Kind, descriptors: usize, envoy: bool) -> Contender {
    let wire = Box::new(move || Box::new(Grpc::new(descriptors, envoy)) as Box<dyn Wire>);
    Contender { name, kind, port: |server| server.grpc, wire }
}

fn http(name: &'static str, kind: Kind, what: What) -> Contender {
    let wire = Box::new(move || Box::new(Http::new(what)) as Box<dyn Wire>);
    Contender { name, kind, port: |server| server.http, wire }
}

fn resp(name: &'static str, kind: Kind, wire: fn(Answers) -> Resp) -> Contender {
    let wire = Box::new(move || Box::new(wire(Answers::default())) as Box<dyn Wire>);
    Contender { name, kind, port: |server| server.resp, wire }
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
    row("Envoy's call, server on both cores", 16, 4, vec![grpc("tidegate", Kind::TidegateOnTwo, 1, false)]);

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
    for connections in [64, 1] {
        let three = vec![
            http("tidegate", Kind::Tidegate(Policies::Address), What::ForwardAuth),
            http("axum no-op", Kind::Axum, What::ForwardAuth),
            http("nginx `limit_req`", Kind::Nginx, What::Nginx),
        ];
        row("`/v1/forward-auth`", connections, 1, three);
    }
    rows
}

/// Prints a line per contender of each row: its median, and how many times as cheap Tidegate is.
pub(crate) fn print(rows: &[Row], found: Vec<Vec<Vec<Found>>>) {
    println!(
        "| door, connections x open calls | server | calls a second | server's us a call | p50, p99 us | ours is x as cheap, p99 x theirs |"
    );
    println!("|---|---|---|---|---|---|");
    for (row, found) in rows.iter().zip(found) {
        let medians: Vec<Found> = found.into_iter().filter_map(median).collect();
        for (contender, median) in row.contenders.iter().zip(&medians) {
            let Found { rate, cpu, p50, p99 } = median;
            let beside = match contender.name {
                "tidegate" => String::new(),
                _ => format!("{:.2}, {:.2}", cpu / medians[0].cpu, medians[0].p99 / p99),
            };
            println!(
                "| {} | {} | {:.0} k | {cpu:.2} | {p50:.0}, {p99:.0} | {beside} |",
                row.name,
                contender.name,
                rate / 1e3
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
