//! Charges against a limit while connections misbehave.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::faulty_proxy::{Fault, FaultyProxy};
use crate::waiting::within;

/// The number of threads that charge at once.
const THREADS: usize = 3;

/// How often each fault is set.
const ROUNDS: usize = 3;

/// The results of charges of one unit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// Answered charges: each of them is spent.
    pub answered: u64,
    /// Charges that ended with an error: each of them is spent once or not at all.
    pub unanswered: u64,
}

/// Charges by several threads through a proxy that loses answers, stalls, cuts and resets its connections in turn.
/// Returns the results. `charge` spends one unit of a limit that has enough of them, and returns whether that was
/// confirmed.
///
/// # Panics
/// If nothing is answered any more after a fault has ended, or everything is answered during one.
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
        // The threads end even if the checks here fail.
        let _end = End(&over);
        for round in 0..ROUNDS {
            for fault in [Fault::LoseAnswers, Fault::Stall, Fault::Cut, Fault::Reset] {
                proxy.set(Fault::None);
                // A varying number, so that faults hit different moments of an exchange.
                more(&format!("answers after {fault:?}"), &answered, 5 + round as u64);
                proxy.set(fault);
                more(&format!("errors in spite of {fault:?}"), &unanswered, 2);
                // Bytes that are still on their way through a connection with gaps are not a valid request.
                proxy.set(Fault::Reset);
            }
        }
        proxy.set(Fault::None);
        more("answers when all is over", &answered, 5);
    });
    Charges { answered: answered.into_inner(), unanswered: unanswered.into_inner() }
}

/// Ends the threads, also by a panic.
struct End<'o>(&'o AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
