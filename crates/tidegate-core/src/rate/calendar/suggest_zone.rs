//! Finds the time zone that a name with a mistake probably means.

use crate::spelling::{LONGEST, distance};

/// Returns the name that was probably meant: the one of that city, or else the most similar one.
pub(super) fn meant(text: &str, names: &[String]) -> Option<String> {
    if text.is_empty() || text.len() > LONGEST {
        return None;
    }
    let text = plain(text);
    let city = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let plains: Vec<String> = names.iter().map(|name| plain(name)).collect();
    if let Some(at) = plains.iter().position(|name| city(name) == city(&text)) {
        return Some(names[at].clone());
    }
    let apart = |name: &str| {
        let of_city = if text.contains('/') { None } else { distance(&text, &city(name)) };
        distance(&text, name).into_iter().chain(of_city).min()
    };
    let near = plains.iter().enumerate().filter_map(|(at, name)| Some((apart(name)?, at)));
    near.min().map(|(_, at)| names[at].clone())
}

/// Returns a name in lower case, with underscores as names have them between words.
fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace([' ', '-'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_city_and_a_slip_have_a_name() {
        let names = super::super::zone::names();
        for (text, name) in [
            ("Shanghai", Some("Asia/Shanghai")),
            ("Asia/Shangai", Some("Asia/Shanghai")),
            ("Shangai", Some("Asia/Shanghai")),
            ("new york", Some("America/New_York")),
            ("Europe/New_York", Some("America/New_York")),
            ("Europa/Berlin", Some("Europe/Berlin")),
            ("Viena", Some("Europe/Vienna")),
            ("Mars", None),
            ("", None),
        ] {
            assert_eq!(meant(text, &names).as_deref(), name, "{text}");
        }
        assert_eq!(meant(&"x".repeat(1000), &names), None);
    }
}
