//! The protections that are judged, by name, from none to the default.

use tidegate::Bulkhead;
use tidegate::bulkhead::QueueOrder;
use tidegate::concurrency::codel::Codel;
use tidegate::concurrency::throttle::{Pid, Shedding, Sre};
use tidegate::concurrency::{Aimd, Bbr, Concurrency, Gradient, HillClimb, Law, MinLatency, Vegas};

use super::backend::Backend;
use super::front::Front;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Controller {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Makes the protection of a service. Only fixed limits use the backend's description.
    pub(crate) protect: fn(&Backend) -> Front,
}

/// The default, [`Bulkhead::self_tuning`]: the hill climb, a short queue by priority, and shedding.
pub(crate) const DEFAULT: Controller = Controller {
    name: "default",
    about: "hill climb on goodput, a short queue by priority, load shedding on arrival; nothing configured",
    protect: |_| Front::behind(Bulkhead::self_tuning()),
};

/// The default where calls do not say until when their callers wait.
pub(crate) const UNTOLD: Controller = Controller {
    name: "default, not told",
    about: "the default where calls do not say how long their callers wait",
    protect: |_| Front::behind(Bulkhead::self_tuning()).without_deadlines(),
};

pub(crate) const NONE: Controller =
    Controller { name: "none", about: "no limit: every request enters", protect: |_| Front::open() };

/// Which requires knowledge of the service.
pub(crate) const RIGHT: Controller = Controller {
    name: "fixed, right",
    about: "the fixed limit with the most finished requests, and the queue and load shedding of the default; it must be known, and does not adapt",
    protect: |backend| protected(right(backend)),
};

/// The published laws, as their authors run them: those without a queue refuse at once.
pub(crate) const PUBLISHED: [Controller; 7] = [
    Controller { name: "AIMD", about: "20 to 200, refuses at once", protect: |_| refusing(Aimd::default()) },
    Controller {
        name: "Vegas",
        about: "up to 1000, refuses at once",
        protect: |_| refusing(Vegas::default()),
    },
    Controller {
        name: "Gradient2",
        about: "20 to 200, refuses at once",
        protect: |_| refusing(Gradient::default()),
    },
    Controller {
        name: "Envoy",
        about: "by the least latency, measured again each minute; refuses at once",
        protect: |_| refusing(MinLatency::default()),
    },
    Controller {
        name: "BBR",
        about: "by the processor signal, read every half second",
        protect: |_| refusing(Bbr::default()),
    },
    Controller {
        name: "SRE",
        about: "the throttle of a caller: K of 2 over two minutes",
        protect: |_| Front::throttled(Sre::default()),
    },
    Controller {
        name: "PID",
        about: "on the rejection ratio, before a queue and the limit of Vegas",
        protect: |_| {
            let places = Bulkhead::adaptive(Vegas::default());
            Front::behind(places.with_short_queue().with_throttle(Pid::default()))
        },
    },
];

pub(crate) const WRONG: [Controller; 2] = [
    Controller {
        name: "fixed, ¼",
        about: "a quarter of the right limit",
        protect: |backend| protected((right(backend) / 4).max(1)),
    },
    Controller {
        name: "fixed, × 16",
        about: "sixteen times the right limit",
        protect: |backend| protected(right(backend) * 16),
    },
];

/// The default without some of its parts, to show what each is for.
pub(crate) const PARTS: [Controller; 2] = [
    Controller {
        name: "no line",
        about: "the hill climb alone; refuses at once",
        protect: |_| refusing(HillClimb::default()),
    },
    Controller {
        name: "no shedding",
        about: "the hill climb and the queue",
        protect: |_| Front::behind(Bulkhead::adaptive(HillClimb::default()).with_short_queue()),
    },
];

/// The right fixed limit behind a queue in each order. All calls have one priority, so only the order decides who is
/// next. They do not say how long their callers wait, except where told.
pub(crate) const ORDERS: [Controller; 5] = [
    Controller {
        name: "FIFO",
        about: "a long queue, the oldest first",
        protect: |backend| long_queue(backend, QueueOrder::Fifo).without_deadlines(),
    },
    Controller {
        name: "FIFO, told",
        about: "the same; waiters leave at their deadline, and are refused if their turn comes later",
        protect: |backend| long_queue(backend, QueueOrder::Fifo),
    },
    Controller {
        name: "LIFO",
        about: "a long queue, the newest first",
        protect: |backend| long_queue(backend, QueueOrder::Lifo).without_deadlines(),
    },
    Controller {
        name: "CoDel, adaptive LIFO",
        about: "a long queue, the newest first while it does not empty",
        protect: |backend| long_queue(backend, QueueOrder::Adaptive(Codel::default())).without_deadlines(),
    },
    Controller {
        name: "short queue",
        about: "at most as many waiters as places, the newest first",
        protect: |backend| {
            let places = fixed(right(backend)).with_short_queue();
            Front::behind(places).without_priorities().without_deadlines()
        },
    },
];

pub(crate) fn all() -> Vec<Controller> {
    [&[DEFAULT, NONE, RIGHT][..], &WRONG, &PUBLISHED].concat()
}

fn protected(places: u64) -> Front {
    Front::behind(fixed(places).with_short_queue().with_throttle(Shedding::default()))
}

/// Makes the right fixed limit behind a queue of the default length, 65,536, for calls of one priority.
fn long_queue(backend: &Backend, order: QueueOrder) -> Front {
    Front::behind(fixed(right(backend)).with_order(order)).without_priorities()
}

fn refusing<L>(law: L) -> Front
where
    L: Law + Send + 'static,
    L::State: Send,
{
    Front::behind(Bulkhead::adaptive(law).with_room(0))
}

/// A bulkhead of `places`, or of the nearest number allowed.
pub(super) fn fixed(places: u64) -> Bulkhead {
    Bulkhead::new(places.clamp(1, Concurrency::MAX_PLACES)).expect("the number is within the range")
}

fn right(backend: &Backend) -> u64 {
    u64::from(backend.best_inside())
}
