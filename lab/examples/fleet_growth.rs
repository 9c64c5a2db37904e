//! Simulates fleets of 10, 100 and 1,000 nodes and prints what a decision costs the engine:
//! `cargo run --release -p tidegate-lab --example fleet_growth`.

use tidegate_lab::fleet::growth;

fn main() {
    print!("{}", growth(1));
}
