//! Limits whose law asks how busy the processor is.
//!
//! Where such a limit stands lies in the store, one state for each key, and a reading of the processor reaches none of them. So the reading comes
//! with the limit: one of two is in force, that of a processor which has time or that of one which is busy, and a key takes the reading in
//! when it is next used. Readings are those that conditions go by.

use std::sync::Arc;

use tidegate_core::Quota;
use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency};

use super::follows::Levels;
use super::policy::Limit;

/// Returns from which use of the processor on it is busy for a limit, in percent; `None` for limits that do not ask.
pub(super) fn busy_from(limit: &Limit) -> Option<f64> {
    asks(limit).map(|(_, from)| f64::from(from) / 10.0)
}

/// Makes the two limits: at rest, and busy.
pub(super) fn levels(limit: &Limit) -> Option<Levels> {
    let (guard, _) = asks(limit)?;
    let with = |thousandths| Arc::new(Quota::from(guard.clone().cpu(thousandths)));
    Some(Levels::from_first([with(0), with(1000)]))
}

fn asks(limit: &Limit) -> Option<(&AdaptiveConcurrency, u16)> {
    match limit.terms.quota.as_deref()? {
        Quota::Adaptive(guard) => match guard.law() {
            Adaptive::Bbr(law) => Some((guard, law.busy_from())),
            _ => None,
        },
        _ => None,
    }
}
