//! The orders of a bulkhead's queue, beside one another: tables and a picture.

use std::time::Duration;

use tidegate_sim::chart::{Chart, ChartError, OverTime, TimeAxis};

use super::super::backend::{self, Backend};
use super::super::controllers::ORDERS;
use super::super::load::Load;
use super::super::meter::STEP;
use super::super::scenario::{OVERLOAD, Score};
use super::super::world::{Service, run};
use super::good_curve;
use super::tables::{heading, scores, write_rows};

pub(in super::super) const PICTURE: &str = "overload-queue-orders.svg";

/// Work of about one length, random work, a capacity that falls and rises, a service that stands still now and then,
/// and work of two very different lengths.
const SERVICES: [&str; 5] = ["knee", "queue", "capacity steps", "pauses", "mixed costs"];

pub(super) fn tables() -> String {
    let mut services = backend::table();
    services.retain(|backend| SERVICES.contains(&backend.name.as_str()));
    let mut data = String::new();
    for times in [2.0, 10.0] {
        table(&mut data, &services, times);
    }
    data
}

fn table(data: &mut String, services: &[Backend], times: f64) {
    heading(data, &title(times), &ORDERS);
    write_rows(data, &scores(services, &ORDERS, times), cell);
}

pub(in super::super) fn title(times: f64) -> String {
    format!("Orders of a queue before the right fixed limit, at {times} times the capacity")
}

pub(in super::super) fn cell(score: &Score) -> String {
    format!("{:.2}, {} ms", score.goodput, score.p99.as_millis())
}

/// Draws goodput over time in an overload of six seconds, and after it.
pub(super) fn picture() -> Result<String, ChartError> {
    let Some(backend) = backend::table().into_iter().find(|backend| backend.name == "knee") else {
        return Ok(String::new());
    };
    let rates = [(0, 0.5), (2, 2.0), (8, 0.8)];
    let rates = rates.map(|(from, times)| (Duration::from_secs(from), backend.capacity() * times));
    let load = Load { rates: rates.to_vec(), ..Load::steady(0.0, OVERLOAD.1) };
    let [fifo, told, lifo, adaptive, _] = ORDERS;
    let curves = [fifo, told, lifo, adaptive].map(|order| {
        let service = Service { backend: backend.clone(), front: (order.protect)(&backend) };
        good_curve(order.name, &run(vec![service], &load, 1), STEP * 10)
    });
    OverTime {
        title: "A queue before the right fixed limit: 6 s at twice the capacity, then at 0.8 times",
        unit: "good answers per second",
        axis: TimeAxis::Elapsed,
        area: None,
        curves: curves.to_vec(),
        limit: None,
    }
    .svg()
}
