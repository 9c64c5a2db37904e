//! Metrics of costs that could not be worked out.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tidegate::policy::CostErrors;

use super::labels::{CostErrorAt, CostErrorLabels};

/// Registers the counts of the policies in force, which the policies keep themselves.
pub(crate) fn show<'p>(registry: &mut Registry, policies: impl Iterator<Item = (&'p str, CostErrors)>) {
    let family = Family::<CostErrorLabels, Counter>::default();
    for (policy, errors) in policies {
        for (at, count) in
            [(CostErrorAt::check, errors.at_check), (CostErrorAt::settlement, errors.at_settlement)]
        {
            let labels = CostErrorLabels { policy: policy.to_owned(), at };
            family.get_or_create(&labels).inc_by(count);
        }
    }
    registry.register(
        "cost_errors",
        "Requests whose cost could not be worked out: at the check, on_cost_error decides; at the settlement, the charge stays",
        family,
    );
}
