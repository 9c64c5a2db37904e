use tidegate::{KeyedLimiter, Quota, QuotaError};

fn main() -> Result<(), QuotaError> {
    let limiter = KeyedLimiter::new(Quota::per_second(50).burst(100), 100_000)?; // room for 100,000 live keys
    let answer = limiter.allow("203.0.113.9");
    assert!(answer.is_allowed());
    assert_eq!(answer.remaining(), 99);
    Ok(())
}
