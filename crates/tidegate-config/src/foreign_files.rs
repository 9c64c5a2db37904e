//! Recognises files that are none of ours: configurations of other rate limiters, and Kubernetes manifests around any
//! configuration. What they are given for decides what is said.

use super::node::{Node, Spot, Value};
use tidegate_limits::visible::excerpt;

/// Returns the kind of a Kubernetes manifest, as `ConfigMap`; `None` for any other tree.
pub(super) fn kind(node: &Node) -> Option<&str> {
    node.get("apiVersion")?;
    node.get("kind")?.text()
}

/// Says of a file given as a policy file what it is instead, and what to do with it; `None` if it may be a policy file.
pub(super) fn told(node: &Node) -> Option<(Spot, String)> {
    let told = match &node.value {
        Value::List(limits) if limits.first().is_some_and(is_limitador) => LIMITADOR.to_owned(),
        _ if node.get("descriptors").is_some() && node.get("domain").is_some() => ENVOY.to_owned(),
        _ => manifest(node, kind(node)?),
    };
    Some((node.spot, told))
}

fn is_limitador(limit: &Node) -> bool {
    limit.get("namespace").is_some() && limit.get("max_value").is_some()
}

fn manifest(node: &Node, kind: &str) -> String {
    let texts = node.get("data").map_or(&[][..], Node::entries);
    match (kind, texts.first()) {
        ("Limitador", _) => LIMITADOR.to_owned(),
        ("ConfigMap", Some((_, text))) if has_line(text, "domain:") => ENVOY.to_owned(),
        ("ConfigMap", Some((_, text))) if has_line(text, "- namespace:") => LIMITADOR.to_owned(),
        ("ConfigMap", Some((key, _))) => {
            let key = plain(&key.text).map_or_else(|| "KEY".to_owned(), |key| key.replace('.', "\\."));
            let name = node.get("metadata").and_then(|metadata| metadata.get("name")?.text());
            let name = name.and_then(plain).unwrap_or("NAME");
            format!(
                "the file is a Kubernetes ConfigMap, and the policy file is the text under `data`; write it out with \
                 kubectl get configmap {name} -o jsonpath='{{.data.{key}}}' > tidegate.yaml"
            )
        }
        (kind, _) => format!(
            "the file is a Kubernetes manifest of kind {}; name the policy file itself",
            excerpt(kind)
        ),
    }
}

fn has_line(text: &Node, begin: &str) -> bool {
    text.text().is_some_and(|text| text.lines().any(|line| line.starts_with(begin)))
}

/// Returns a name that a shell reads as one word.
fn plain(name: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (!name.is_empty() && name.len() <= 253 && name.bytes().all(is_plain)).then_some(name)
}

const ENVOY: &str = "the file is a configuration of envoyproxy/ratelimit; read it with --from-envoy";
const LIMITADOR: &str = "the file holds limits of Limitador; read it with --from-limitador";
