//! Parses costs: whole numbers from 1.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use tidegate::Cost;

use super::bounds::MAX_COST;
use crate::spelling::quoted_text;

pub(super) struct CostSeed;

impl CostSeed {
    fn wrong<E: Error, T>(value: &dyn fmt::Display) -> Result<T, E> {
        Err(E::custom(format_args!("`cost` {value} is not a cost; use a whole number, 1 to {MAX_COST}")))
    }
}

impl<'de> DeserializeSeed<'de> for CostSeed {
    type Value = Option<Cost>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<Cost>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CostSeed {
    type Value = Option<Cost>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`cost` as a whole number, 1 to {MAX_COST}")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Cost>, E> {
        Self::wrong(&"null")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<Cost>, E> {
        match Cost::new(value) {
            None => Err(E::custom(
                "`cost` 0 asks for nothing; use 1 or more, or POST /v1/peek to look without spending",
            )),
            Some(_) if value > MAX_COST => Self::wrong(&value),
            cost => Ok(cost),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<Cost>, E> {
        Err(E::custom(format_args!(
            "`cost` {value} is negative; use 1 or more, or `refund` of POST /v1/settle to give back"
        )))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Cost>, E> {
        // Shown as it was written: 1000.0 is not a whole number.
        Self::wrong(&format_args!("{value:?}"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Cost>, E> {
        Self::wrong(&quoted_text(value))
    }
}
