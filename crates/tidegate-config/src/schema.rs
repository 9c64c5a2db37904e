//! Generates the JSON Schema of the file from the keys that the validator uses.

use serde_json::{Map, Value, json};
use tidegate_core::Rate;

use super::keys::{ADAPTIVE, ALGORITHMS, AlgorithmKeys, BREAKER, CONCURRENCY, FILE, Kind, Table};

/// Returns the JSON Schema (2020-12) of the file.
///
/// It accepts every file that [`Config::parse`](super::Config::parse) accepts, and refuses unknown keys and values of the
/// wrong kind. It does not know relations between values, nor keys that are not available in this version.
#[must_use]
pub fn schema() -> Value {
    let mut schema = table(&FILE);
    if let Value::Object(root) = &mut schema {
        root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        root.insert("title".to_owned(), json!("Tidegate policies and server settings"));
        root.insert("patternProperties".to_owned(), json!({ "^x-": {} }));
    }
    schema
}

fn table(table: &Table) -> Value {
    let mut properties = Map::new();
    for key in table.keys {
        let Some(mut schema) = of(&key.kind) else { continue };
        if let Value::Object(inner) = &mut schema {
            inner.insert("description".to_owned(), json!(key.doc));
            if let Some(default) = key.default {
                inner.insert("default".to_owned(), super::show::default_value(default));
            }
        }
        properties.insert(key.name.to_owned(), schema);
    }
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "required": table.required,
        "additionalProperties": false,
    });
    match table.name {
        "limit" => {
            let of_guard = json!({ "anyOf": [{ "required": ["rate"] }, { "required": ["max"] }] });
            schema["oneOf"] = json!([
                { "required": ["rate"] },
                { "properties": { "algorithm": { "const": CONCURRENCY } }, "required": ["algorithm", "max"] },
                { "properties": { "algorithm": { "const": BREAKER } }, "required": ["algorithm"], "not": of_guard },
                { "properties": { "algorithm": { "const": ADAPTIVE } }, "required": ["algorithm"], "not": { "required": ["rate"] } },
            ]);
            schema["allOf"] = ALGORITHMS.iter().map(parameters).collect();
        }
        "shadow_limit" => {
            let guard = json!({ "properties": { "algorithm": { "enum": [BREAKER, ADAPTIVE] } }, "required": ["algorithm"] });
            schema["anyOf"] = json!([{ "required": ["rate"] }, { "required": ["max"] }, guard]);
        }
        "canary.limit" => schema["required"] = json!(["rate"]),
        "forward_auth" => {
            let headers = json!({ "anyOf": [{ "required": ["method"] }, { "required": ["path"] }, { "required": ["host"] }] });
            schema["oneOf"] = json!([
                { "required": ["proxy"], "not": headers },
                { "required": ["method", "path", "host"], "not": { "required": ["proxy"] } },
            ]);
        }
        "cost" => {
            let any = |names: &[&str]| {
                let each: Vec<_> = names.iter().map(|name| json!({ "required": [name] })).collect();
                json!({ "anyOf": each })
            };
            let settled = any(&["estimate", "start", "caller", "settle", "missing"]);
            schema["oneOf"] = json!([
                { "required": ["by", "values", "otherwise"], "not": settled },
                { "allOf": [any(&["estimate", "settle"]), { "not": any(&["by", "values", "otherwise"]) }] },
            ]);
        }
        "policy" => schema["required"] = json!(["name", "limit"]),
        _ => {}
    }
    schema
}

fn parameters(algorithm: &AlgorithmKeys) -> Value {
    let stated =
        json!({ "properties": { "algorithm": { "const": algorithm.name } }, "required": ["algorithm"] });
    let meant = match algorithm.name {
        // The default algorithm also applies to a limit that names none.
        "gcra" => json!({ "anyOf": [stated, { "not": { "required": ["algorithm"] } }] }),
        _ => stated,
    };
    let names: Vec<_> = algorithm.common.iter().chain(algorithm.takes).collect();
    json!({ "if": meant, "then": { "propertyNames": { "enum": names }, "required": algorithm.needs } })
}

fn of(kind: &Kind) -> Option<Value> {
    let text = |example: &str| json!({ "type": "string", "examples": [example] });
    Some(match kind {
        Kind::Unavailable | Kind::Elsewhere(_) => return None,
        Kind::Read(grammar) => json!({ "type": ["string", "number"], "examples": grammar.examples }),
        Kind::Text
        | Kind::Name
        | Kind::Attribute
        | Kind::Header
        | Kind::Method
        | Kind::Problem
        | Kind::Cost
        | Kind::Settle
        | Kind::Usage => {
            json!({ "type": ["string", "number", "boolean"] })
        }
        Kind::Whole(least, most) => json!({ "anyOf": [
            { "type": "integer", "minimum": least, "maximum": most },
            { "type": "string", "pattern": "^([0-9][0-9_]*[kK]?|[0-9][0-9_]*\\.0+)$" },
        ] }),
        Kind::Rate => json!({
            "type": "string",
            "pattern": "^\\s*([uU][nN][lL][iI][mM][iI][tT][eE][dD]|[0-9][0-9_]*[kK]?\\s*/\\s*[0-9]*\\s*[A-Za-z\u{b5}\u{3bc}]+)\\s*$",
            "examples": ["100/s", "60/min", "100/10min", "unlimited"],
        }),
        Kind::Span => json!({
            "type": "string",
            "pattern": "^\\s*([0-9][0-9_]*(\\.[0-9]+)?\\s*[A-Za-z\u{b5}\u{3bc}]+\\s*)+$",
            "examples": ["200ms", "10s", "1h30min"],
        }),
        Kind::Percent(..) => json!({ "type": "string", "pattern": "^[0-9]{1,3}\\s*%$", "examples": ["80%"] }),
        Kind::Kept => json!({ "anyOf": [
            { "type": "string", "pattern": "^([0-9]{1,3}\\s*%|[0-9][0-9_]*[kK]?)$", "examples": ["20%"] },
            { "type": "integer", "minimum": 0, "maximum": Rate::MAX_COUNT },
        ] }),
        Kind::Condition => json!({
            "type": "string",
            "pattern": "^\\s*((cpu|memory|load|in-flight|latency|rate|signal\\s+[A-Za-z0-9._-]{1,64}|policy\\s+.+) (above|below) .+|switch\\s+[A-Za-z0-9._-]{1,64}\\s+off\\s*)$",
            "examples": ["cpu above 80%, until 70%", "signal queue-length above 1000", "switch previews off"],
        }),
        Kind::Source => json!({
            "type": "string",
            "pattern": "^\\s*(cpu|memory|load|in-flight|latency|rate|signal\\s+[A-Za-z0-9._-]{1,64}|policy\\s+.+)\\s+\\S+\\s*\\.\\.\\s*\\S+\\s+to\\s+.+$",
            "examples": ["memory 70%..90% to 100/s", "signal queue-length 100..1000 to 10/s"],
        }),
        Kind::Socket => json!({ "anyOf": [
            { "type": "string", "examples": ["127.0.0.1:8080"] },
            { "type": "integer", "minimum": 0, "maximum": u16::MAX },
        ] }),
        Kind::Network => text("10.0.0.0/8"),
        Kind::Zone => text("Asia/Shanghai"),
        Kind::Path => json!({ "type": "string", "pattern": "^(/|\\*\\*|\\{)", "examples": ["/api/**"] }),
        Kind::Glob | Kind::Host => {
            json!({ "type": ["string", "number", "boolean"], "examples": ["*.example.com"] })
        }
        Kind::Entry => text("user.id=42"),
        Kind::Word(words, _) => json!({ "enum": words }),
        Kind::List(of_kind) => json!({ "type": "array", "items": of(of_kind)? }),
        Kind::OneOrMany(of_kind) => {
            let one = of(of_kind)?;
            json!({ "anyOf": [one, { "type": "array", "items": one }] })
        }
        Kind::Map(Kind::Word(words, _), of_kind) => {
            json!({ "type": "object", "propertyNames": { "enum": words }, "additionalProperties": of(of_kind)? })
        }
        Kind::Map(_, of_kind) => json!({ "type": "object", "additionalProperties": of(of_kind)? }),
        Kind::Table(keys) => table(keys),
        Kind::Either(scalar, other) => json!({ "anyOf": [of(scalar)?, of(other)?] }),
    })
}
