//! The Prometheus expressions in the files of `deploy/`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::deploy::deployed;

/// An expression, with the rule or panel that it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    pub(crate) of: String,
    pub(crate) text: String,
}

impl Expression {
    /// Returns the names of Tidegate's own series in it, without series recorded by rules.
    pub(crate) fn series(&self) -> BTreeSet<String> {
        let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
        let words = self.text.split(|char| !is_word(char));
        words.filter(|word| word.starts_with("tidegate_") && !word.contains(':')).map(str::to_owned).collect()
    }
}

fn rules() -> Vec<Value> {
    let text = std::fs::read_to_string(deployed("prometheus-rules.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = rules["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

/// Returns the names of all alerts.
pub(crate) fn alerts() -> Vec<String> {
    rules().iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

/// Returns the expressions of the recording rules, and those of the alerts.
pub(crate) fn of_rules() -> (Vec<Expression>, Vec<Expression>) {
    let expression = |of: &Value, rule: &Value| Expression {
        of: of.as_str().unwrap().to_owned(),
        text: rule["expr"].as_str().unwrap().to_owned(),
    };
    let of = |kind: &str| {
        rules()
            .iter()
            .filter_map(|rule| Some((rule.get(kind)?, rule)))
            .map(|(of, rule)| expression(of, rule))
            .collect()
    };
    (of("record"), of("alert"))
}

/// Returns the expressions of the dashboard's panels and annotations, with their variables replaced.
pub(crate) fn of_dashboard() -> Vec<Expression> {
    let text = std::fs::read_to_string(deployed("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let filled = |expr: &Value| {
        let filled = expr.as_str().unwrap().replace("$__rate_interval", "30s").replace("$job", "tidegate");
        let filled = filled.replace("$instance", ".*").replace("$policy", ".*");
        assert!(!filled.contains('$'), "a variable that is not filled in: {filled}");
        filled
    };
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panels = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().map_or(&[][..], |targets| targets);
        targets.iter().map(|target| (panel["title"].to_string(), filled(&target["expr"])))
    });
    let annotations = dashboard["annotations"]["list"].as_array().unwrap();
    let of_annotations =
        annotations.iter().map(|annotation| (annotation["name"].to_string(), filled(&annotation["expr"])));
    of_panels.chain(of_annotations).map(|(of, text)| Expression { of, text }).collect()
}

#[test]
fn panels_have_their_own_places_and_say_what_they_show() {
    let text = std::fs::read_to_string(deployed("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let (title, grid) = (&panel["title"], &panel["gridPos"]);
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "the id of {title} is taken");
        let side = |side: &str| grid[side].as_u64().unwrap();
        for (x, y) in (side("x")..side("x") + side("w"))
            .flat_map(|x| (side("y")..side("y") + side("h")).map(move |y| (x, y)))
        {
            assert!(x < 24 && places.insert((x, y)), "{title} lies over another panel");
        }
        if panel["type"] != "row" {
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{title} says nothing");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}
