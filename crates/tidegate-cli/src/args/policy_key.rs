//! The arguments that select one key of a policy, or a caller for all policies.

use clap::Args;

use super::values::pair;

/// A policy and one of its keys; a policy without `by` has one key, which has no attributes.
#[derive(Args, Debug)]
pub(crate) struct PolicyKey {
    /// The policy
    #[arg(value_name = "POLICY")]
    pub(crate) policy: String,
    /// The key, such as client.ip=203.0.113.9, for each attribute of the policy's `by`; may be repeated
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) key: Vec<(String, String)>,
}

/// A key of one policy, or a caller for all policies.
#[derive(Args, Debug)]
pub(crate) struct KeyOrCaller {
    /// The policy; or for all policies at once the caller, such as client.ip=203.0.113.9, without --key
    #[arg(value_name = "POLICY|CALLER")]
    pub(crate) policy: String,
    /// The key of that policy, such as client.ip=203.0.113.9, for each attribute of the policy's `by`; may be repeated
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) key: Vec<(String, String)>,
}

impl KeyOrCaller {
    /// Returns the attribute of a caller for all policies; `None` if a policy is named.
    pub(crate) fn caller(&self) -> Option<(&str, &str)> {
        self.policy.split_once('=').filter(|(name, _)| self.key.is_empty() && !name.is_empty())
    }

    /// Returns the values of the key or the caller.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        let caller = self.caller().map(|(_, value)| value);
        self.key.iter().map(|(_, value)| &**value).chain(caller)
    }

    /// Returns the key of the named policy.
    pub(crate) fn of_policy(&self) -> PolicyKey {
        PolicyKey { policy: self.policy.clone(), key: self.key.clone() }
    }
}
