//! Simulates fleets of 10, 100 and 1,000 nodes and prints what a decision costs the engine:
//! `cargo run --release -p tidegate-sim --example fleet_growth`.

use tidegate_sim::fleet::growth;

fn main() {
    print!("{}", growth(1));
}
