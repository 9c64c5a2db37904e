//! The OpenAPI document: its operations, and whether an answer is one that they declare.

use http::Method;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::running::Answer;

/// The document that a server served.
pub(crate) struct Document {
    whole: Value,
    pub(crate) operations: Vec<Operation>,
}

/// One operation.
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) scope: Option<String>,
    pub(crate) parameters: Vec<Parameter>,
    /// The schema of a JSON body, and valid examples.
    pub(crate) body: Option<Value>,
    pub(crate) examples: Vec<Value>,
    accepts: Option<Validator>,
    responses: Vec<Response>,
}

/// One parameter, and where it belongs.
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) place: String,
    pub(crate) schema: Value,
}

/// The declared answers with one status: media types, with the schema of JSON ones.
struct Response {
    status: String,
    content: Vec<(String, Option<Validator>)>,
}

impl Document {
    pub(crate) fn new(whole: Value) -> Self {
        assert_eq!(whole["openapi"], "3.1.1");
        let mut document = Self { whole, operations: Vec::new() };
        for (path, item) in document.whole["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let read = document.read(method, path, operation);
                document.operations.push(read);
            }
        }
        document
    }

    pub(crate) fn operation(&self, method: &str, path: &str) -> &Operation {
        self.operations.iter().find(|one| one.method == method && one.path == path).unwrap()
    }

    /// Follows a reference.
    pub(crate) fn resolved<'v>(&'v self, value: &'v Value) -> &'v Value {
        match value["$ref"].as_str() {
            Some(reference) => self.whole.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
            None => value,
        }
    }

    fn validator(&self, schema: &Value) -> Validator {
        let schema = json!({ "allOf": [schema], "components": self.whole["components"] });
        jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
    }

    fn read(&self, method: &str, path: &str, operation: &Value) -> Operation {
        let parameters = operation["parameters"].as_array().into_iter().flatten().map(|parameter| {
            let parameter = self.resolved(parameter);
            let text = |name: &str| parameter[name].as_str().unwrap().to_owned();
            Parameter { name: text("name"), place: text("in"), schema: parameter["schema"].clone() }
        });
        let content = operation["requestBody"]["content"].as_object().into_iter().flatten();
        let mut examples = Vec::new();
        let mut body = None;
        for (kind, content) in content {
            let each = content["examples"].as_object().unwrap().values();
            examples.extend(each.map(|example| example["value"].clone()));
            if kind == "application/json" {
                body = Some(content["schema"].clone());
            }
        }
        // A policy is JSON or YAML, and its schema is in another document.
        let closed = body.as_ref().filter(|schema| **schema != json!({ "type": "object" }));
        let accepts = closed.map(|schema| self.validator(schema));
        for example in examples.iter().filter(|_| accepts.is_some()) {
            accepts.as_ref().unwrap().validate(example).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        let responses = operation["responses"].as_object().unwrap().iter().map(|(status, response)| {
            let response = self.resolved(response);
            let content = response["content"].as_object().into_iter().flatten().map(|(kind, content)| {
                let schema = kind.ends_with("json").then(|| self.validator(&content["schema"]));
                (kind.clone(), schema)
            });
            Response { status: status.clone(), content: content.collect() }
        });
        Operation {
            method: Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap(),
            path: path.to_owned(),
            scope: operation["security"][0]["bearer"][0].as_str().map(str::to_owned),
            parameters: parameters.collect(),
            body,
            examples,
            accepts,
            responses: responses.collect(),
        }
    }

    /// Checks that an answer is one that the operation declares.
    ///
    /// # Errors
    /// How it differs from the declaration.
    pub(crate) fn holds(&self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        let status = answer.status.as_str();
        let range = format!("{}XX", &status[..1]);
        let found = |status: &str| operation.responses.iter().find(|response| response.status == status);
        let Some(response) = found(status).or_else(|| found(&range)) else {
            return Err(format!("{status} is not declared: {answer:?}"));
        };
        let kind = answer.header("content-type");
        // The body of a HEAD answer is not sent, and 304 has none.
        if response.content.is_empty() {
            return if answer.text.is_empty() {
                Ok(())
            } else {
                Err(format!("{status} has a body: {answer:?}"))
            };
        }
        let Some((_, schema)) = response.content.iter().find(|(declared, _)| declared == kind) else {
            return Err(format!("{status} is not declared as {kind:?}: {answer:?}"));
        };
        schema.as_ref().map_or(Ok(()), |schema| as_declared(schema, answer))
    }

    /// Checks that an answer is a problem document, as for requests outside all operations.
    ///
    /// # Errors
    /// As [`Document::holds`].
    pub(crate) fn is_problem(&self, answer: &Answer) -> Result<(), String> {
        as_declared(&self.validator(&json!({ "$ref": "#/components/schemas/Problem" })), answer)
    }
}

impl Operation {
    /// Returns whether the document accepts a body; `None` if it does not describe the body.
    pub(crate) fn accepts(&self, body: &Value) -> Option<bool> {
        self.accepts.as_ref().map(|accepts| accepts.is_valid(body))
    }
}

fn as_declared(schema: &Validator, answer: &Answer) -> Result<(), String> {
    let value: Value = serde_json::from_str(&answer.text).map_err(|error| format!("{error}: {answer:?}"))?;
    let mut faults: Vec<String> =
        schema.iter_errors(&value).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    let is_problem = answer.header("content-type") == "application/problem+json";
    if is_problem && value["status"] != answer.status.as_u16() {
        faults.push("the body says another status".to_owned());
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("{}: {answer:?}", faults.join("; "))) }
}
