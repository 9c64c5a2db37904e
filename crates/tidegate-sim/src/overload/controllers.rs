//! What is judged: protections by name, from none at all to the default.

use tidegate_core::concurrency::{Aimd, Bbr, Gradient, HillClimb, MinLatency, Vegas};
use tidegate_core::throttle::{Pid, Shedding, Sre};

use super::backend::Backend;
use super::front::Front;

/// A protection under judgement.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    /// Its name, for tables.
    pub name: &'static str,
    /// What it consists of, in one line.
    pub about: &'static str,
    /// Makes one for a service; only fixed limits look at what the service is.
    pub protect: fn(&Backend) -> Front,
}

/// The default: the hill climb, a short line by priority, and shedding.
pub const DEFAULT: Controller = Controller {
    name: "default",
    about: "hill climb on goodput, a short line by priority, shedding at the door; nothing configured",
    protect: |_| Front::law(HillClimb::default()).with_line().throttled(Shedding::default()),
};

/// No protection.
pub const NONE: Controller =
    Controller { name: "none", about: "everybody enters", protect: |_| Front::open() };

/// The limit of whoever knows the service, with the same line and shedding as the default has.
pub const RIGHT: Controller = Controller {
    name: "fixed, right",
    about: "as many as finish the most, and the line and shedding of the default: needs to be known, and does not move",
    protect: |backend| Front::fixed(right(backend)).with_line().throttled(Shedding::default()),
};

/// The published laws, as their authors run them: refusing at once where they have no line.
pub const PUBLISHED: [Controller; 7] = [
    Controller {
        name: "AIMD",
        about: "20 to 200, refuses at once",
        protect: |_| Front::law(Aimd::default()),
    },
    Controller {
        name: "Vegas",
        about: "up to 1000, refuses at once",
        protect: |_| Front::law(Vegas::default()),
    },
    Controller {
        name: "Gradient2",
        about: "20 to 200, refuses at once",
        protect: |_| Front::law(Gradient::default()),
    },
    Controller {
        name: "Envoy",
        about: "by the least latency, measured anew each minute; refuses at once",
        protect: |_| Front::law(MinLatency::default()),
    },
    Controller {
        name: "BBR",
        about: "by the processor signal, read every half second",
        protect: |_| Front::law(Bbr::default()),
    },
    Controller {
        name: "SRE",
        about: "the throttle of a caller: K of 2 over two minutes",
        protect: |_| Front::open().throttled(Sre::default()),
    },
    Controller {
        name: "PID",
        about: "on the rejection ratio, before a line and the limit of Vegas",
        protect: |_| Front::law(Vegas::default()).with_line().throttled(Pid::default()),
    },
];

/// Fixed limits that are wrong.
pub const WRONG: [Controller; 2] = [
    Controller {
        name: "fixed, ¼",
        about: "a quarter of the right limit",
        protect: |backend| {
            Front::fixed((right(backend) / 4).max(1)).with_line().throttled(Shedding::default())
        },
    },
    Controller {
        name: "fixed, × 16",
        about: "sixteen times the right limit",
        protect: |backend| Front::fixed(right(backend) * 16).with_line().throttled(Shedding::default()),
    },
];

/// Parts of the default, to see what each is for.
pub const PARTS: [Controller; 2] = [
    Controller {
        name: "no line",
        about: "the hill climb alone; refuses at once",
        protect: |_| Front::law(HillClimb::default()),
    },
    Controller {
        name: "no shedding",
        about: "the hill climb and the line",
        protect: |_| Front::law(HillClimb::default()).with_line(),
    },
];

/// Returns every controller: the default first.
#[must_use]
pub fn all() -> Vec<Controller> {
    [&[DEFAULT, NONE, RIGHT][..], &WRONG, &PUBLISHED].concat()
}

fn right(backend: &Backend) -> u64 {
    u64::from(backend.best_inside())
}
