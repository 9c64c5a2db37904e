//! Explains why a policy applies to a request or does not.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tidegate_core::Priority;

use super::access::AccessEntry;
use super::client_ip::network_of;
use super::cost::OnCostError;
use super::cost_error::CostError;
use super::deadline::time_left;
use super::descriptor::Descriptor;
use super::matching::{View, compared, plain_values};
use super::policy::{Direction, Mode, Policy};
use super::set::PolicySet;
use tidegate_limits::duration_text::in_words;
use tidegate_limits::visible::excerpt;

/// How a policy treats a request, before any counter is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relevance {
    /// The policy charges the request.
    Charged {
        /// Attributes of the key that the request lacks; each counts as the absent value.
        absent: Vec<String>,
        /// Why the cost cannot be determined although the policy has a cost rule, and what happens then.
        cost_error: Option<(CostError, OnCostError)>,
    },
    /// The policy's conditions do not hold.
    Idle {
        /// The conditions that do not hold, with their last readings.
        why: String,
    },
    /// The terms for this request are unlimited, so nothing is charged.
    Unlimited,
    /// The policy is switched off.
    Off,
    /// The policy applies to requests of the other direction.
    OtherDirection,
    /// A part of the policy's match does not fit.
    NoMatch {
        /// The part: `method`, `host`, `attributes`, `path` or `not`.
        part: &'static str,
        /// The attribute that the part is about, if the request lacks it.
        lacks: Option<String>,
    },
    /// The request lacks the attributes of the key.
    NothingToKeyBy {
        /// The attributes that are missing.
        absent: Vec<String>,
    },
    /// The request is on an allow-list; it is not charged.
    AllowListed {
        /// The entry that fits.
        entry: AccessEntry,
    },
    /// The caller waits for less time than a request of the policy needs; the policy refuses it.
    TooLate {
        /// The header with the time left.
        entry: AccessEntry,
        /// The time that a request of the policy needs.
        needs: Duration,
    },
    /// The request is on a deny-list; the policy refuses it.
    DenyListed {
        /// The entry that fits.
        entry: AccessEntry,
    },
}

impl Relevance {
    /// Reports whether the policy is about the request, even if a list, a condition or unlimited terms exempt it.
    pub(crate) const fn is_met(&self) -> bool {
        !matches!(self, Self::Off | Self::OtherDirection | Self::NoMatch { .. } | Self::NothingToKeyBy { .. })
    }
}

impl fmt::Display for Relevance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Charged { absent, cost_error } => {
                f.write_str("charged")?;
                if !absent.is_empty() {
                    write!(f, "; absent from the request and keyed as such: {}", absent.join(", "))?;
                }
                match cost_error {
                    Some((error, OnCostError::Deny)) => {
                        write!(f, "; refused, because its cost cannot be worked out: {error}")
                    }
                    Some((error, OnCostError::WholeLimit)) => {
                        write!(f, "; takes the whole limit, because its cost cannot be worked out: {error}")
                    }
                    None => Ok(()),
                }
            }
            Self::Idle { why } => write!(f, "not charged: holds while {why}"),
            Self::Unlimited => f.write_str("not charged: unlimited for this request"),
            Self::Off => f.write_str("not charged: mode is off"),
            Self::OtherDirection => f.write_str("not charged: limits the other direction"),
            Self::NoMatch { lacks: Some(name), .. } => {
                write!(f, "not charged: the request has no {}", excerpt(name))
            }
            Self::NoMatch { part: "attributes", .. } => {
                f.write_str("not charged: headers or attributes do not match")
            }
            Self::NoMatch { part, .. } => write!(f, "not charged: {part} does not match"),
            Self::NothingToKeyBy { absent } => {
                write!(f, "not charged: the request has no {}", absent.join(", "))
            }
            Self::AllowListed { entry } => write!(f, "not charged: {entry} is on an allow-list"),
            Self::TooLate { entry, needs } => {
                write!(f, "refused: needs {}, and {entry} leaves less", in_words(*needs))
            }
            Self::DenyListed { entry } => write!(f, "refused: {entry} is on a deny-list"),
        }
    }
}

impl PolicySet {
    /// Returns how each policy treats a request, in order. Examines every policy, so it is not for the hot path.
    #[must_use]
    pub fn relevance(&self, descriptor: &Descriptor<'_>) -> Vec<Relevance> {
        self.relevance_at(descriptor, Priority::default())
    }

    /// Like [`PolicySet::relevance`], for a request of any priority: policies with switches may hold for some
    /// priorities only.
    pub(crate) fn relevance_at(&self, descriptor: &Descriptor<'_>, priority: Priority) -> Vec<Relevance> {
        let plain = plain_values(descriptor);
        let view = View::over(descriptor, plain.as_ref().unwrap_or(descriptor));
        let descriptor = view.descriptor;
        let shared = self.shared_access();
        let denied = shared.deny.find(descriptor);
        let allowed = shared.allow.find(descriptor);
        let each = self.policies().iter().enumerate().map(|(place, policy)| match (&denied, &allowed) {
            (Some(entry), _) => Relevance::DenyListed { entry: entry.clone() },
            (None, Some(entry)) => Relevance::AllowListed { entry: entry.clone() },
            (None, None) => match policy.relevance(&view) {
                relevance @ (Relevance::Off | Relevance::OtherDirection | Relevance::NoMatch { .. }) => {
                    relevance
                }
                relevance => self.why_idle(place, priority).map_or(relevance, |why| Relevance::Idle { why }),
            },
        });
        each.collect()
    }
}

impl Policy {
    /// Returns the parts of the key in readable form: the names of `by` with their values, `None` if absent. Path and
    /// host are in the form in which they are compared, and an IPv6 address is the network that makes the key, of
    /// [`PolicySet::ipv6_prefix`] leading bits; so values that make the same key read alike. Allocates for such an
    /// address, and for a path or host that differs from its compared form.
    pub fn key_values<'a>(
        &'a self,
        descriptor: &'a Descriptor<'_>,
        ipv6_prefix: u8,
    ) -> impl Iterator<Item = (&'a str, Option<Cow<'a, str>>)> {
        let value = move |name: &str| -> Option<Cow<'a, str>> {
            let value = descriptor.value(name)?;
            let network = network_of(name, value, ipv6_prefix);
            Some(network.map_or_else(|| compared(name, value), Cow::Owned))
        };
        self.by.iter().map(move |name| (name.as_str(), value(name)))
    }

    fn relevance(&self, view: &View<'_, '_>) -> Relevance {
        let descriptor = view.descriptor;
        if self.mode == Mode::Off {
            return Relevance::Off;
        }
        if (self.direction == Direction::Outbound) != view.outbound {
            return Relevance::OtherDirection;
        }
        if let Some(part) = self.matching.misfit(view) {
            let lacks = self.matching.lacks(part, descriptor).map(str::to_owned);
            return Relevance::NoMatch { part, lacks };
        }
        if let Some(entry) = self.access.deny.find(descriptor) {
            return Relevance::DenyListed { entry };
        }
        if let Some(entry) = self.access.allow.find(descriptor) {
            return Relevance::AllowListed { entry };
        }
        if let (Some(needs), Some((left, entry))) = (self.deadline, time_left(descriptor))
            && left < needs
            && self.mode == Mode::Enforce
        {
            return Relevance::TooLate { entry, needs };
        }
        let absent: Vec<String> =
            self.by.iter().filter(|name| descriptor.value(name).is_none()).cloned().collect();
        if self.by.len() - absent.len() < self.needs() {
            return Relevance::NothingToKeyBy { absent };
        }
        if self.each_limit().all(|limit| limit.terms_for(descriptor).quota.is_none()) {
            return Relevance::Unlimited;
        }
        let error = self.cost.as_ref().and_then(|rule| rule.cost(descriptor).err());
        Relevance::Charged { absent, cost_error: error.map(|error| (error, self.on_cost_error)) }
    }
}
