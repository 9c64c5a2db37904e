//! Adaptive limits whose law depends on how busy the processor is.
//!
//! The state of such a limit lies in the store, one state per key, and a reading of the processor cannot reach them
//! all. So the limit exists in two versions, for an idle and for a busy processor, and one of the two is in force. The
//! reading takes effect for a key when that key is next used.

use std::sync::Arc;

use tidegate_core::Quota;
use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency};

use super::policy::Limit;
use super::signal_rate::Levels;

/// Returns the processor use, in percent, from which the processor counts as busy for a limit; `None` for limits that
/// do not depend on it.
pub(super) fn busy_from(limit: &Limit) -> Option<f64> {
    adaptive_by_cpu(limit).map(|(_, from)| f64::from(from) / 10.0)
}

/// Returns both versions of the limit: idle, and busy.
pub(super) fn levels(limit: &Limit) -> Option<Levels> {
    let (guard, _) = adaptive_by_cpu(limit)?;
    let with = |thousandths| Arc::new(Quota::from(guard.clone().cpu(thousandths)));
    Some(Levels::from_first([with(0), with(1000)]))
}

fn adaptive_by_cpu(limit: &Limit) -> Option<(&AdaptiveConcurrency, u16)> {
    match limit.terms.quota.as_deref()? {
        Quota::Adaptive(guard) => match guard.law() {
            Adaptive::Bbr(law) => Some((guard, law.busy_from())),
            _ => None,
        },
        _ => None,
    }
}
