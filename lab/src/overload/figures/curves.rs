//! The curves of the pictures.

use std::time::Duration;

use tidegate::Tick;
use tidegate_sim::chart::Curve;

use super::super::meter::Measured;
use super::super::scenario::OVERLOAD;

/// Returns goodput over time, in steps of `wide`.
pub(super) fn good_curve(name: &str, measured: &Measured, wide: Duration) -> Curve {
    let steps = (0..(OVERLOAD.1.as_nanos() / wide.as_nanos()) as u32).map(|step| wide * step);
    Curve {
        name: name.to_owned(),
        steps: steps.map(|at| (tick(at), measured.goodput(at, at + wide))).collect(),
        end: tick(OVERLOAD.1),
    }
}

pub(super) fn tick(at: Duration) -> Tick {
    Tick::EPOCH.after(at)
}
