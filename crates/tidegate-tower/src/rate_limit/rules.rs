//! Settings that a rate limit layer and its futures share.

use std::time::Duration;

use http::Request;
use tidegate::http_answer::{HttpAnswer, NamedLimit};
use tidegate::observer::RefusalCause;
use tidegate::{Answer, Quota, Reservation, Retry};

use crate::answers::{Answers, Problems};
use crate::name::Name;
use crate::real_cost::{self, Spent};
use crate::refused::Refused;

/// A charge that may be given back.
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation")]
pub(super) enum Charge {
    /// Of this layer alone.
    Own(Reservation),
    /// The handler may settle it.
    Shared(Spent),
}

impl Charge {
    pub(super) fn undo(self) {
        match self {
            Self::Own(reservation) => reservation.cancel(),
            Self::Shared(spent) => drop(spent.settle(0)),
        }
    }
}

/// The settings of a rate limit layer.
#[derive(Clone, Debug)]
pub(super) struct RateLimitRules<A> {
    pub(super) name: Name,
    /// How callers are told of each quota; has at least one element.
    pub(super) named_limits: Vec<NamedLimit>,
    pub(super) max_wait: Duration,
    pub(super) settling: bool,
    pub(super) giving_back: bool,
    pub(super) answers: A,
}

impl RateLimitRules<Problems> {
    pub(super) fn new(name: &str, quotas: impl IntoIterator<Item = Quota>) -> Self {
        // `NamedLimit::new` fails only for quotas that are not limits, and quotas in force are limits: none is left
        // out.
        let mut named_limits: Vec<_> =
            quotas.into_iter().filter_map(|quota| NamedLimit::new(name, quota).ok()).collect();
        if named_limits.is_empty() {
            named_limits.push(NamedLimit::of_places(name));
        }
        Self {
            name: Name::new(name),
            named_limits,
            max_wait: Duration::ZERO,
            settling: false,
            giving_back: true,
            answers: Problems,
        }
    }
}

impl<A> RateLimitRules<A> {
    pub(super) fn answering<B>(self, answers: B) -> RateLimitRules<B> {
        let Self { name, named_limits, max_wait, settling, giving_back, .. } = self;
        RateLimitRules { name, named_limits, max_wait, settling, giving_back, answers }
    }

    /// Returns whether a request keeps its charge, so that it can be settled or given back.
    pub(super) const fn keeps_charge(&self) -> bool {
        self.settling || self.giving_back || !self.max_wait.is_zero()
    }

    /// Makes the result of a refused call, and tells the observer. `answer` is that of the limit; `None` if the key of the
    /// request could not be read, which a retry would not change.
    pub(super) fn refuse<Res, Err>(&self, answer: Option<&Answer>) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        let Some(answer) = answer else {
            return self.answers.refuse(self.name.refuse(RefusalCause::NoKey, Retry::Never), None);
        };
        let refused = self.name.refuse(RefusalCause::RateLimit, answer.decision().retry());
        self.answers.refuse(refused, Some(&self.shown(answer)))
    }

    /// Adds the state of the limit to the response of a caller that passed.
    pub(super) fn add_limit_state<Res, Err>(&self, response: &mut Res, answer: &Answer)
    where
        A: Answers<Res, Err>,
    {
        self.answers.add_limit_state(response, &self.shown(answer));
    }

    fn shown(&self, answer: &Answer) -> HttpAnswer<'_> {
        self.named_limits.get(answer.binding()).unwrap_or(&self.named_limits[0]).answer(answer)
    }

    /// Adds the charge to the extensions of a request that passes, if the layer is settling. Returns the charge for the
    /// case that a layer inside refuses the request; `None` if it then stands.
    #[inline]
    pub(super) fn hand_over<B>(&self, charge: Reservation, request: &mut Request<B>) -> Option<Charge> {
        let charge = if self.settling {
            Charge::Shared(Spent::hand_over(real_cost::Charge::Reserved(charge), request))
        } else {
            Charge::Own(charge)
        };
        self.giving_back.then_some(charge)
    }

    /// Says whether a layer inside has refused the request before any work for it had begun.
    pub(super) fn is_refused_before_work<Res, Err>(&self, result: &Result<Res, Err>) -> bool
    where
        A: Answers<Res, Err>,
    {
        self.answers.refusal_in(result).is_some_and(Refused::is_before_work_here)
    }
}
