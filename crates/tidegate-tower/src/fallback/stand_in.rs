//! What answers in place of a failure, and what it needs of the request.

/// What answers in place of failed calls of one kind: a function of the failed answer, a function of a request's key and
/// the failed answer ([`OfKey`]), or the last good answer of the key ([`LastOfKey`](crate::parameter::LastOfKey)).
pub trait StandsIn<Req, Res, Err> {
    /// What answers in place of one call.
    type Call: StandIn<Res, Err>;

    /// Reads what it needs of a request, before the service is called.
    fn of(&self, request: &Req) -> Self::Call;
}

/// What answers in place of one call: see [`StandsIn`].
pub trait StandIn<Res, Err>: Sized {
    /// Is given an answer that is a success; keeps nothing by default.
    fn keep(self, answer: &mut Res) {
        let _ = answer;
    }

    /// Returns the answer in place of a failed one. Calls `tell` if it has one.
    fn in_place(self, failed: Result<Res, Err>, tell: impl FnOnce()) -> Result<Res, Err>;
}

impl<Req, Res, Err, F> StandsIn<Req, Res, Err> for F
where
    F: Fn(Result<Res, Err>) -> Result<Res, Err> + Clone,
{
    type Call = F;

    fn of(&self, _: &Req) -> F {
        self.clone()
    }
}

impl<Res, Err, F: Fn(Result<Res, Err>) -> Result<Res, Err>> StandIn<Res, Err> for F {
    fn in_place(self, failed: Result<Res, Err>, tell: impl FnOnce()) -> Result<Res, Err> {
        tell();
        self(failed)
    }
}

/// A function of a request's key and the failed answer: see [`FallbackLayer::each`](crate::FallbackLayer::each).
#[derive(Clone, Debug)]
pub struct OfKey<G, F> {
    key: G,
    in_place: F,
}

impl<G, F> OfKey<G, F> {
    pub(super) const fn new(key: G, in_place: F) -> Self {
        Self { key, in_place }
    }
}

impl<Req, Res, Err, K, G, F> StandsIn<Req, Res, Err> for OfKey<G, F>
where
    G: Fn(&Req) -> K,
    F: Fn(K, Result<Res, Err>) -> Result<Res, Err> + Clone,
{
    type Call = WithKey<K, F>;

    fn of(&self, request: &Req) -> WithKey<K, F> {
        WithKey { key: (self.key)(request), in_place: self.in_place.clone() }
    }
}

/// The function and the key of one request.
#[derive(Debug)]
pub struct WithKey<K, F> {
    key: K,
    in_place: F,
}

impl<Res, Err, K, F> StandIn<Res, Err> for WithKey<K, F>
where
    F: Fn(K, Result<Res, Err>) -> Result<Res, Err>,
{
    fn in_place(self, failed: Result<Res, Err>, tell: impl FnOnce()) -> Result<Res, Err> {
        tell();
        (self.in_place)(self.key, failed)
    }
}
