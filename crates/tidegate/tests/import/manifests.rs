//! Configurations as clusters hold them: several documents, ConfigMaps and Limitador resources.

use tidegate::config::{Config, Format, Imported, Peer};

use super::door::{described, imported, limits, told};

/// In the form that Envoy Gateway generates: a document for each listener and shared policy, every field written out.
const GATEWAY: &str = "\
name: shop/listener-a
domain: shop/listener-a
descriptors:
  - key: route-a
    value: route-a
    rate_limit: null
    descriptors:
      - key: rule-0-match-0
        value: \"\"
        rate_limit: { requests_per_unit: 5, unit: SECOND, unlimited: false, name: \"\", replaces: [] }
        descriptors: []
        shadow_mode: false
        quota_mode: false
        detailed_metric: false
        value_to_metric: false
        share_threshold: false
      - key: rule-1-match--1
        value: rule-1-match--1
        rate_limit: null
        descriptors:
          - key: masked_remote_address
            value: 198.51.100.0/24
            rate_limit: { requests_per_unit: 100, unit: HOUR, unlimited: false, name: \"\", replaces: [] }
            descriptors: []
---
name: shop/policy-1
domain: shop/policy-1
descriptors:
  - key: shop/policy-1/rule/0
    value: shop/policy-1/rule/0
    rate_limit: null
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        rate_limit: { requests_per_unit: 7, unit: MONTH, unlimited: false, name: \"\", replaces: [] }
        descriptors: []
        shadow_mode: true
---
";

#[test]
fn what_envoy_gateway_generates_is_read_whole() {
    let imported = imported(Peer::Envoy, GATEWAY);
    let set = &imported.config.policies;
    let route = ("route-a", "route-a");
    let met = |domain, entries: &[_]| limits(set, &described(domain, 0, entries));
    assert_eq!(
        met("shop/listener-a", &[route, ("rule-0-match-0", "ann")]),
        ["shop/listener-a.route-a_route-a.rule-0-match-0: fixed-window 5/s calendar epoch"]
    );
    let masked =
        [route, ("rule-1-match--1", "rule-1-match--1"), ("masked_remote_address", "198.51.100.0/24")];
    assert_eq!(met("shop/listener-a", &masked).len(), 1, "{}", imported.text);
    let shared = [("shop/policy-1/rule/0", "shop/policy-1/rule/0"), ("rule-0-match-0", "rule-0-match-0")];
    assert_eq!(met("shop/policy-1", &shared).len(), 1, "{}", imported.text);
    assert!(met("shop/listener-a", &shared).is_empty());
    assert!(imported.notes.is_empty(), "{:#?}", imported.notes);
    assert!(imported.text.contains("  # theirs.yaml:33\n"), "{}", imported.text);
    // A mistake in the second document is at its line.
    let wrong = told(Peer::Envoy, &GATEWAY.replace("MONTH", "MONTHS"));
    assert!(wrong[0].starts_with("t:35:51  error  rate_limit: unknown unit \"MONTHS\""), "{wrong:?}");
}

const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: ratelimit-config
data:
  config.yaml: |
    domain: shop
    descriptors:
      - key: PATH
        rate_limit: { unit: minute, requests_per_unit: 2 }
";

const LIMITADOR: &str = "\
apiVersion: limitador.kuadrant.io/v1alpha1
kind: Limitador
metadata: { name: l }
spec:
  limits:
    - namespace: shop
      max_value: 2
      seconds: 30
      conditions: []
      variables: []
";

#[test]
fn manifests_are_read_with_their_places() {
    let read = |peer, text: &str| {
        limits(&imported(peer, text).config.policies, &described("shop", 0, &[("PATH", "/a")]))
    };
    let path = "shop.PATH: fixed-window 2/min calendar epoch";
    let folded = CONFIG_MAP.replace("|\n    domain", "|-  # ours\n\n    domain");
    let quoted = "apiVersion: v1\nkind: ConfigMap\ndata: { c: \"domain: shop\\ndescriptors: [{ key: PATH, rate_limit: { unit: minute, \
                  requests_per_unit: 2 } }]\" }\n";
    for text in [CONFIG_MAP, &folded, quoted] {
        assert_eq!(read(Peer::Envoy, text), [path], "{text}");
    }
    assert_eq!(read(Peer::Limitador, LIMITADOR), ["shop.limit-1: fixed-window 2/30s"]);
    let limits = CONFIG_MAP.split("    domain").next().unwrap().to_owned()
        + "    - namespace: shop\n      max_value: 2\n      seconds: 30\n";
    assert_eq!(read(Peer::Limitador, &limits), ["shop.limit-1: fixed-window 2/30s"]);
    let indent = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let both = format!(
        "apiVersion: v1\nkind: List\nitems:\n  -\n{}  -\n{}",
        indent(CONFIG_MAP),
        indent("apiVersion: v1\nkind: Service\n")
    );
    assert_eq!(read(Peer::Envoy, &both), [path]);
    assert!(
        told(Peer::Envoy, &both)
            .iter()
            .any(|note| note.starts_with("t:16:5  warn   kind: Service holds no configuration"))
    );

    let wrong = |peer, text: &str| told(peer, text)[0].clone();
    // A manifest without any text would be a file without policies, which limits nothing.
    for (kind, rest) in [
        ("ConfigMap", "binaryData: { a: eA== }"),
        ("ConfigMap", "data: {}"),
        ("ConfigMap", "data: { a: \"\" }"),
        ("List", "items: []"),
        ("List", "metadata: {}"),
    ] {
        for peer in [Peer::Envoy, Peer::Limitador] {
            let told = wrong(peer, &format!("apiVersion: v1\nkind: {kind}\n{rest}\n"));
            assert!(told.contains(&format!("error  kind: {kind} holds no configuration")), "{rest}: {told}");
        }
    }
    assert!(
        wrong(Peer::Envoy, &CONFIG_MAP.replace("minute", "minutes"))
            .starts_with("t:10:29  error  rate_limit: unknown unit")
    );
    assert!(
        wrong(Peer::Envoy, &folded.replace("minute", "minutes"))
            .starts_with("t:11:29  error  rate_limit: unknown unit")
    );
    assert!(
        wrong(Peer::Envoy, &quoted.replace("minute", "minutes"))
            .starts_with("t:3:12  error  rate_limit: unknown unit")
    );
    assert!(
        wrong(Peer::Envoy, &CONFIG_MAP.replace("      - key", "     [- key"))
            .contains("error  data.config.yaml: cannot be read as YAML")
    );
    assert_eq!(
        wrong(Peer::Envoy, LIMITADOR),
        "t:1:1  error  this is a file of Limitador; read it with --from-limitador"
    );
    assert!(
        wrong(Peer::Limitador, CONFIG_MAP)
            .ends_with("this is a file of envoyproxy/ratelimit; read it with --from-envoy")
    );
    assert_eq!(
        wrong(Peer::Envoy, "apiVersion: v1\nkind: Service\n"),
        "t:1:1  error  kind: Service holds no configuration of a rate limiter; it is left out, and there is nothing else; give a ConfigMap, a \
         Limitador, or the text itself"
    );
    assert_eq!(wrong(Peer::Envoy, "# nothing\n"), "t:1:1  error  the file is empty");
}

/// A file given for a policy file is named for what it is, with what reads it.
#[test]
fn a_foreign_file_is_no_policy_file_and_says_whose_it_is() {
    let envoy = "the file is a configuration of envoyproxy/ratelimit; read it with --from-envoy";
    let limitador = "the file holds limits of Limitador; read it with --from-limitador";
    let ours =
        CONFIG_MAP.split("    domain").next().unwrap().to_owned() + "    version: 1\n    policies: []\n";
    for (text, want) in [
        (GATEWAY, envoy),
        ("domain: shop\ndescriptors: []\n", envoy),
        (CONFIG_MAP, envoy),
        (LIMITADOR, limitador),
        ("- { namespace: shop, max_value: 1, seconds: 1 }\n", limitador),
        (
            &ours,
            "the file is a Kubernetes ConfigMap, and the policy file is the text under `data`; write it out with kubectl get configmap \
             ratelimit-config -o jsonpath='{.data.config\\.yaml}' > tidegate.yaml",
        ),
        (
            "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: BackendTrafficPolicy\nspec: {}\n",
            "the file is a Kubernetes manifest of kind BackendTrafficPolicy; name the policy file itself",
        ),
    ] {
        let mistakes = Config::parse(text, "t", Format::Yaml).unwrap_err();
        let said: Vec<&str> = mistakes.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(said, [want], "{text}");
    }
}

/// The documents of a file, and those of all its texts together, are bounded.
#[test]
fn documents_are_bounded() {
    let many = "---\ndomain: d\n".repeat(1_001);
    assert_eq!(told(Peer::Envoy, &many), ["t:2001:1  error  the file holds more than 1000 documents"]);
    let data: String = (0..501).map(|at| format!("  k{at}: \"domain: d\\n---\\ndomain: d\\n\"\n")).collect();
    let text = format!("apiVersion: v1\nkind: ConfigMap\ndata:\n{data}");
    let refused = Imported::of(&[(Peer::Envoy, "t", &text)]).unwrap_err();
    assert!(
        refused[0].message.starts_with("the file has more than 250000 values or 1000 texts"),
        "{refused:?}"
    );
}
