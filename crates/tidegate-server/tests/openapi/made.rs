//! Values from a seed: valid and invalid ones for a schema.

use serde_json::{Map, Value, json};

use crate::openapi::document::Document;

/// Numbers that follow from a seed (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// 2014).
pub(crate) struct Seeded(pub(crate) u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one<'v, T>(&mut self, of: &'v [T]) -> &'v T {
        &of[self.below(of.len())]
    }
}

/// A value that few or no schemas here accept.
pub(crate) fn odd(seeded: &mut Seeded) -> Value {
    match seeded.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(1.5),
        5 => json!(u64::MAX),
        6 => json!(1e300),
        7 => json!(""),
        8 => json!("x".repeat(300)),
        9 => json!("x".repeat(9000)),
        10 => json!("é\u{0}\n\"\\\u{202e}"),
        11 => json!([]),
        12 => json!({ "a": [1, { "b": null }] }),
        // Nested deeper than a parser allows.
        _ => (0..150).fold(json!(1), |inner, _| json!([inner])),
    }
}

/// A value that conforms to a schema, as far as the schema says.
pub(crate) fn of_schema(document: &Document, schema: &Value, seeded: &mut Seeded) -> Value {
    let schema = document.resolved(schema);
    if let Some(values) = schema["enum"].as_array() {
        return seeded.one(values).clone();
    }
    if let Some(first) = schema["anyOf"].as_array().filter(|any| any[0]["$ref"].is_string()) {
        return of_schema(document, seeded.one(first), seeded);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    let Some(kind) = (!kinds.is_empty()).then(|| *seeded.one(&kinds)) else { return odd(seeded) };
    match kind {
        "object" => object(document, schema, seeded),
        "array" => {
            let number = 1 + seeded.below(3);
            (0..number).map(|_| of_schema(document, &schema["items"], seeded)).collect()
        }
        "integer" | "number" => {
            let least = schema["minimum"].as_u64().unwrap_or(0);
            let most = schema["maximum"].as_u64().unwrap_or(u64::MAX);
            json!(*seeded.one(&[least, least, least + 1, (least + 7).min(most), most]))
        }
        "boolean" => json!(seeded.percent(50)),
        "null" => Value::Null,
        _ => {
            let texts = [
                "critical",
                "sheddable/17",
                "per-ip",
                "top",
                "10min",
                "30d",
                "upgrade",
                "7",
                "critical-plus",
            ];
            json!(*seeded.one(&texts))
        }
    }
}

fn object(document: &Document, schema: &Value, seeded: &mut Seeded) -> Value {
    let mut made = Map::new();
    for (name, of) in schema["properties"].as_object().into_iter().flatten() {
        let needed = schema["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
        if needed || seeded.percent(30) {
            made.insert(name.clone(), of_schema(document, of, seeded));
        }
    }
    if schema["additionalProperties"].is_object() {
        for name in ["client.ip", "user.id", "llm.output", "x"] {
            if seeded.percent(40) {
                made.insert(name.to_owned(), of_schema(document, &schema["additionalProperties"], seeded));
            }
        }
    }
    Value::Object(made)
}

/// Makes one error somewhere in a value.
pub(crate) fn spoil(value: &mut Value, seeded: &mut Seeded) {
    match value {
        Value::Object(object) if !object.is_empty() && seeded.percent(80) => {
            let names: Vec<String> = object.keys().cloned().collect();
            let name = seeded.one(&names).clone();
            match seeded.below(5) {
                0 => drop(object.remove(&name)),
                1 => drop(object.insert("unknown".to_owned(), odd(seeded))),
                2 => {
                    let moved = object.remove(&name).unwrap_or_default();
                    object.insert(format!("{name}s"), moved);
                }
                _ => spoil(object.get_mut(&name).unwrap(), seeded),
            }
        }
        Value::Array(values) if !values.is_empty() && seeded.percent(60) => {
            let at = seeded.below(values.len());
            spoil(&mut values[at], seeded);
        }
        _ => *value = odd(seeded),
    }
}
