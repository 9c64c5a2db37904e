//! Formats the key of a request for people.

use crate::policy::{Descriptor, Policy, PolicySet};

/// Returns the key of a request under a policy of this set in readable form: `client.ip=203.0.113.9`, or `(all)`.
#[must_use]
pub fn key_text(set: &PolicySet, policy: &Policy, request: &Descriptor<'_>) -> String {
    let pairs = policy.key_values(request, set.ipv6_prefix()).map(|(name, value)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("{name} absent"),
    });
    let text = pairs.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "(all)".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Access, Limit};
    use tidegate_limits::Quota;

    #[test]
    fn an_ipv6_address_is_the_network_that_is_the_key() {
        let mut policy = Policy::new("p", Limit::new(Quota::per_hour(1).sliding_log().unwrap(), "1/h"));
        policy.by = vec!["client.ip".to_owned(), "request.path".to_owned()];
        for (prefix, address, text) in [
            (64, "2001:db8:1:2:3::4", "client.ip=2001:db8:1:2::/64, request.path=/a"),
            (64, "[2001:db8:1:2:3::4]:80", "client.ip=2001:db8:1:2::/64, request.path=/a"),
            (48, "2001:db8:1:2:3::4", "client.ip=2001:db8:1::/48, request.path=/a"),
            (64, "::ffff:203.0.113.9", "client.ip=203.0.113.9, request.path=/a"),
            (64, "203.0.113.9", "client.ip=203.0.113.9, request.path=/a"),
            // In the form of the key's text, so that it can be used to name the key again.
            (64, "2001:db8:1:2::/64", "client.ip=2001:db8:1:2::/64, request.path=/a"),
        ] {
            let set = PolicySet::with(vec![policy.clone()], Access::default(), prefix).unwrap();
            let request = Descriptor::new().with("client.ip", address).with("request.path", "/x/../a");
            assert_eq!(key_text(&set, &set.policies()[0], &request), text);
        }
    }
}
