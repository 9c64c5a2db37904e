//! The layers and breakers of Tidegate and its peers, while they have nothing to do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use failsafe::{CircuitBreaker as _, Config};
use http::Request;
use tidegate::breaker::{CircuitBreaker, KeyedBreaker};
use tidegate::concurrency::Vegas;
use tidegate::deadline::Timeouts;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::retries::Retrier;
use tidegate::{Breaker, Bulkhead, Gate, Limiter, Outcome, Quota};
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, Errors, FallbackLayer, ForwardDeadlineLayer,
    GateLayer, LoadShedLayer, RateLimitLayer, RetryLayer, ServerStack,
};
use tower_layer::Layer;
use tower_resilience_adaptive::AdaptiveLimiterLayer;
use tower_resilience_bulkhead::BulkheadLayer;
use tower_resilience_circuitbreaker::CircuitBreakerLayer;
use tower_resilience_ratelimiter::RateLimiterLayer;

use crate::workloads::permits::{AnswersAtOnce, PLACES, Permits};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn breaker(run: &mut Permits<'_>) -> Result<()> {
    let breaker = Breaker::new(CircuitBreaker::builder())?;
    run.breaker(|| breaker.try_enter().map(|call| call.leave(Outcome::Success)).is_ok())
}

pub(crate) fn keyed_breaker(run: &mut Permits<'_>) -> Result<()> {
    let breaker = KeyedBreaker::new(CircuitBreaker::builder(), 1000)?;
    run.breaker(|| breaker.try_enter("10.0.0.7").map(|call| call.leave(Outcome::Success)).is_ok())
}

pub(crate) fn failsafe(run: &mut Permits<'_>) -> Result<()> {
    let breaker = Config::new().build();
    run.breaker(|| breaker.call(|| Ok::<_, ()>(())).is_ok())
}

pub(crate) fn none(run: &mut Permits<'_>) -> Result<()> {
    run.layers(AnswersAtOnce)
}

fn rate() -> Result<RateLimitLayer<Limiter>> {
    Ok(RateLimitLayer::all("all", Limiter::new(Quota::per_second(1_000_000_000).burst(1_000_000_000))?))
}

fn places() -> Result<ConcurrencyLayer> {
    Ok(ConcurrencyLayer::new("places", Bulkhead::new(PLACES)?))
}

fn calls() -> Result<BreakerLayer> {
    Ok(BreakerLayer::new("calls", Breaker::new(CircuitBreaker::builder())?))
}

fn deadline() -> Result<DeadlineLayer> {
    Ok(DeadlineLayer::within(SECOND, SECOND)?)
}

pub(crate) fn rate_limit(run: &mut Permits<'_>) -> Result<()> {
    run.layers(rate()?.layer(AnswersAtOnce))
}

pub(crate) fn concurrency(run: &mut Permits<'_>) -> Result<()> {
    run.layers(places()?.layer(AnswersAtOnce))
}

pub(crate) fn adaptive(run: &mut Permits<'_>) -> Result<()> {
    run.layers(ConcurrencyLayer::new("places", Bulkhead::adaptive(Vegas::default())).layer(AnswersAtOnce))
}

pub(crate) fn self_tuning(run: &mut Permits<'_>) -> Result<()> {
    run.layers(ConcurrencyLayer::self_tuning("places").layer(AnswersAtOnce))
}

pub(crate) fn breaker_layer(run: &mut Permits<'_>) -> Result<()> {
    run.layers(calls()?.layer(AnswersAtOnce))
}

pub(crate) fn deadline_layer(run: &mut Permits<'_>) -> Result<()> {
    run.layers(deadline()?.layer(AnswersAtOnce))
}

pub(crate) fn gate(run: &mut Permits<'_>) -> Result<()> {
    let quota = Quota::per_second(1_000_000_000).burst(1_000_000_000).gcra()?;
    let policies = PolicySet::new(vec![Policy::new("all", Limit::new(quota, "all"))])?;
    let gate = Arc::new(Gate::in_memory(policies, 1000)?);
    run.layers(GateLayer::new(gate, |_: &Request<()>| Descriptor::new()).layer(AnswersAtOnce))
}

pub(crate) fn retry(run: &mut Permits<'_>) -> Result<()> {
    run.layers(RetryLayer::new(Retrier::default()).layer(AnswersAtOnce))
}

pub(crate) fn load_shed(run: &mut Permits<'_>) -> Result<()> {
    run.layers(LoadShedLayer::new().layer(AnswersAtOnce))
}

pub(crate) fn fallback(run: &mut Permits<'_>) -> Result<()> {
    run.layers(FallbackLayer::new(|answer| answer).layer(AnswersAtOnce))
}

pub(crate) fn server_stack(run: &mut Permits<'_>) -> Result<()> {
    let stack = ServerStack::new()
        .fallback(FallbackLayer::new(|answer| answer))
        .deadline(deadline()?)
        .rate_limit(rate()?)
        .concurrency(ConcurrencyLayer::new("places", Bulkhead::adaptive(Vegas::default())));
    run.layers(stack.layer(AnswersAtOnce))
}

pub(crate) fn client_stack(run: &mut Permits<'_>) -> Result<()> {
    let stack = ClientStack::new()
        .fallback(FallbackLayer::new(|answer| answer))
        .retry(RetryLayer::new(Retrier::default()))
        .breaker(calls()?.answering(Errors))
        .concurrency(places()?.answering(Errors))
        .rate_limit(rate()?.answering(Errors))
        .deadline(ForwardDeadlineLayer::new(Timeouts::new(SECOND, SECOND)?));
    run.layers(stack.layer(AnswersAtOnce))
}

pub(crate) fn resilience_breaker(run: &mut Permits<'_>) -> Result<()> {
    run.layers(CircuitBreakerLayer::builder().build()?.layer(AnswersAtOnce))
}

pub(crate) fn resilience_bulkhead(run: &mut Permits<'_>) -> Result<()> {
    let layer = BulkheadLayer::builder().max_concurrent_calls(PLACES as usize).build()?;
    run.layers(layer.layer(AnswersAtOnce))
}

pub(crate) fn resilience_rate(run: &mut Permits<'_>) -> Result<()> {
    let layer = RateLimiterLayer::builder().limit_for_period(1_000_000_000).refresh_period(SECOND).build()?;
    run.layers(layer.layer(AnswersAtOnce))
}

pub(crate) fn resilience_adaptive(run: &mut Permits<'_>) -> Result<()> {
    let law = tower_resilience_adaptive::Vegas::builder().build()?;
    run.layers(AdaptiveLimiterLayer::new(law).layer(AnswersAtOnce))
}
