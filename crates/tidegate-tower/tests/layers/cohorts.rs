use http::{HeaderValue, Request};
use tidegate::clock::{Clock, ManualClock};
use tidegate::priority::header::TIDEGATE_PRIORITY;
use tidegate::priority::{Cohorts, Priority, carried};
use tidegate_tower::PriorityLayer;
use tidegate_tower::parameter::priority_of;
use tower_layer::Layer;

use crate::layers::service::{Finds, answer, get};

const FINDS: Finds = Finds(|| carried().map_or_else(|| "nothing".to_owned(), |found| found.to_string()));

/// As the manual's program: whatever a caller writes, it comes into no better cohort than that of its user.
#[test]
fn nobody_names_a_better_cohort_than_that_of_its_user() {
    let (cohorts, clock) = (Cohorts::default(), ManualClock::default());
    let layer = PriorityLayer::default().ceiling_of(move |request: &Request<String>| {
        let named = priority_of(request.headers(), TIDEGATE_PRIORITY).unwrap_or_default();
        named.min(Priority::default()).for_user("alice", &cohorts, clock.now())
    });
    for (values, expected) in [
        (&[][..], "critical/34"),
        (&["critical"], "critical/34"),
        (&["critical-plus"], "critical/34"),
        (&["critical/3"], "critical/34"),
        (&["critical/99"], "critical/99"),
        (&["sheddable"], "sheddable/34"),
        (&["sheddable/0"], "sheddable/34"),
        (&["urgent"], "critical/34"),
        (&["sheddable", "critical-plus"], "sheddable/34"),
    ] as [(&[&'static str], _); 9]
    {
        let mut request = get();
        for value in values {
            request.headers_mut().append(TIDEGATE_PRIORITY, HeaderValue::from_static(value));
        }
        let found = answer(&mut layer.layer(FINDS), request).unwrap().into_body();
        assert_eq!(found, expected, "{values:?}");
    }
}
