//! Warns of comparisons in expressions that never hold, or hold by the letters of a number.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::names::METHODS;
use tidegate_limits::visible::excerpt;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Word<'s> {
    Name(&'s str),
    Text(&'s str),
    Sign(&'s str),
}

const SIGNS: [&str; 10] = ["==", "!=", "<=", ">=", "&&", "||", "<", ">", "=", "["];

/// Returns what is wrong with comparisons, each as a sentence, in linear time.
pub(super) fn remarks(source: &str) -> Vec<String> {
    let words = words(source);
    let mut told = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Word::Name(name) = word else { continue };
        let after = words.get(at + 1..).unwrap_or_default();
        // The values on the right, or the one on the left.
        let (sign, texts): (&str, Vec<&str>) = match after {
            [Word::Sign(sign), Word::Text(text), ..] => (sign, vec![text]),
            [Word::Name("in"), Word::Sign("["), list @ ..] => {
                let text = |word: &Word<'_>| matches!(word, Word::Text(_));
                let texts = list.iter().take_while(|word| text(word));
                (
                    "in",
                    texts
                        .filter_map(|word| if let Word::Text(text) = word { Some(*text) } else { None })
                        .collect(),
                )
            }
            _ => match at.checked_sub(2).map(|first| (words[first], words[first + 1])) {
                Some((Word::Text(text), Word::Sign(sign))) => (sign, vec![text]),
                _ => continue,
            },
        };
        told.extend(texts.into_iter().filter_map(|text| remark(name, sign, text)));
    }
    told
}

fn remark(name: &str, sign: &str, text: &str) -> Option<String> {
    let (shown, is_equal) = (excerpt(text), matches!(sign, "==" | "!=" | "in"));
    match name {
        "request.method" if is_equal => {
            let known =
                METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(text) && *known != text)?;
            Some(format!("no request has the method \"{shown}\": methods are upper case; write \"{known}\""))
        }
        "client.ip" if is_equal => {
            let network: IpNet = text.parse().ok()?;
            let begin = match network.addr() {
                IpAddr::V4(address) => {
                    let bytes: Vec<_> = address.octets().iter().map(ToString::to_string).collect();
                    let whole = usize::from(network.prefix_len() / 8).clamp(1, 4);
                    format!("{}.", bytes[..whole].join("."))
                }
                IpAddr::V6(address) => address.to_string().trim_end_matches(':').to_owned() + ":",
            };
            Some(format!(
                "no address is \"{shown}\", which is a network and compared as text; write client.ip.startsWith(\"{begin}\")"
            ))
        }
        name if matches!(sign, "<" | ">" | "<=" | ">=") && text.trim().parse::<f64>().is_ok() => {
            Some(format!(
                "{name} is compared with the text \"{shown}\" letter by letter, so that 9 is above 100; write the number without quotes, {}",
                excerpt(text.trim())
            ))
        }
        _ => None,
    }
}

/// Cuts an expression into names, texts and comparisons.
fn words(source: &str) -> Vec<Word<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' | '\'' => {
                let inner = &rest[1..];
                let end = inner.find(first).unwrap_or(inner.len());
                found.push(Word::Text(&inner[..end]));
                (end + 2).min(rest.len())
            }
            _ if first.is_ascii_alphabetic() || first == '_' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                found.push(Word::Name(&rest[..end]));
                end
            }
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => {
                    found.push(Word::Sign(sign));
                    sign.len()
                }
                None => {
                    // Anything else stands between, except what separates the values of a list.
                    if !first.is_whitespace() && first != ',' {
                        found.push(Word::Sign(""));
                    }
                    first.len_utf8()
                }
            },
        };
        rest = &rest[length..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_that_never_hold_are_told() {
        for (source, says) in [
            ("request.method == \"post\" ? 5 : 1", "write \"POST\""),
            ("'get' != request.method ? 5 : 1", "write \"GET\""),
            ("request.method in [\"GET\", \"put\"] ? 5 : 1", "write \"PUT\""),
            ("client.ip == \"10.0.0.0/8\" ? 1 : 9", "write client.ip.startsWith(\"10.\")"),
            ("client.ip == \"2001:db8::/32\" ? 1 : 9", "write client.ip.startsWith(\"2001:db8:\")"),
            ("user.score > \"100\" ? 1 : 9", "write the number without quotes, 100"),
        ] {
            let told = remarks(source);
            assert!(told.len() == 1 && told[0].contains(says), "{source}: {told:?}");
        }
        for fine in [
            "request.method == \"POST\" ? 5 : 1",
            "client.ip == \"10.0.0.1\" ? 5 : 1",
            "user.name > \"m\" ? 1 : 2",
            "user.score > 100 ? 1 : 2",
            "request.path == \"post\" ? 1 : 2",
            "\"é",
            "",
        ] {
            assert_eq!(remarks(fine), [""; 0], "{fine}");
        }
    }
}
