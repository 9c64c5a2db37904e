//! What policy files say, and how their mistakes are told.

mod adaptive;
mod breakers;
mod budgets;
mod conditions;
mod files;
mod keep_for;
mod never_holds;
mod places;
mod settle;
mod switches;
