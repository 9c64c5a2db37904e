//! The names of algorithms.

use tidegate::Quota;

/// Returns the name of a limit's algorithm as policies write it: `gcra`, `sliding-window`.
#[must_use]
pub fn algorithm(quota: &Quota) -> String {
    // Derive the name from the variant of `Quota`; a separate list would become outdated.
    let shown = format!("{quota:?}");
    let mut name = String::new();
    for char in shown.chars().take_while(char::is_ascii_alphanumeric) {
        if char.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(char.to_ascii_lowercase());
    }
    name
}
