//! Charges that go on while connections misbehave.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::faulty_proxy::{Fault, FaultyProxy};
use crate::waiting::within;

/// How many threads charge at once.
const THREADS: usize = 3;

/// How often each fault is set.
const ROUNDS: usize = 3;

/// What came of charges of one unit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// Those that were answered: all of them are spent.
    pub answered: u64,
    /// Those whose answer was an error: each of them is spent once or not at all.
    pub unanswered: u64,
}

/// Charges by several threads, through a proxy that loses answers, stalls, cuts and resets its connections in turns; returns what came
/// of it. `charge` spends one unit of a limit that has enough of them, and says whether it was told that it did.
///
/// # Panics
/// When nothing is answered any more after a fault is over, or everything is in spite of one.
pub fn charge_under_faults(proxy: &FaultyProxy, charge: impl Fn() -> bool + Sync) -> Charges {
    let (answered, unanswered, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let counted = if charge() { &answered } else { &unanswered };
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = |what: &str, counted: &AtomicU64, by: u64| {
            let before = counted.load(Ordering::Relaxed);
            within(what, || counted.load(Ordering::Relaxed) >= before + by);
        };
        // The threads end also where the checks here fail.
        let _end = End(&over);
        for round in 0..ROUNDS {
            for fault in [Fault::LoseAnswers, Fault::Stall, Fault::Cut, Fault::Reset] {
                proxy.set(Fault::None);
                // Not always the same many, so that faults meet other moments of an exchange.
                more(&format!("answers after {fault:?}"), &answered, 5 + round as u64);
                proxy.set(fault);
                more(&format!("errors in spite of {fault:?}"), &unanswered, 2);
                // What is still on its way through a connection with gaps is no request of anybody.
                proxy.set(Fault::Reset);
            }
        }
        proxy.set(Fault::None);
        more("answers when all is over", &answered, 5);
    });
    Charges { answered: answered.into_inner(), unanswered: unanswered.into_inner() }
}

/// Ends threads, also by a panic.
struct End<'o>(&'o AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
