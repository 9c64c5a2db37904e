//! The arguments that select one key of a policy.

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
