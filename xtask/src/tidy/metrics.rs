//! Rule: the manual names every metric, and none that does not exist.
//!
//! Metrics are read where the server registers them: `registry.register("name", ..)` or `new_series(registry, "name", ..)`, in
//! a `Registry::with_prefix("..")`. In a table of those that are registered alike, `("name", "help", ..)`. A registry that is passed to a function may have any prefix of the server.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ExprTuple, LitStr, Local, Pat};

use super::code::literal;
use super::fault::{Allowed, Fault};
use super::markdown::{is_page, words};
use super::tree::Tree;

const SOURCES: &str = "crates/tidegate-server/src/";

/// Where tables of metrics are, besides those of tests and of the names that other servers give them.
const TABLES: &str = "crates/tidegate-server/src/metrics";

/// The suffixes of a series' name beyond the registered name: those of the type and the unit, and of a histogram's
/// parts.
const ENDS: [&str; 8] = [
    "",
    "_total",
    "_info",
    "_seconds",
    "_seconds_total",
    "_seconds_count",
    "_seconds_sum",
    "_seconds_bucket",
];

const PREFIX: &str = "tidegate_";

/// An exception is named by a metric, as in the manual or as registered.
pub(crate) fn check(tree: &Tree, allowed: &Allowed<'_>) -> Vec<Fault> {
    let mut found = Found::default();
    for path in tree.rust().filter(|path| path.starts_with(SOURCES)) {
        found.path = path.to_owned();
        found.prefixes.clear();
        tree.items(path).iter().for_each(|item| found.visit_item(item));
    }
    let told = told(tree);
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for metric in &found.metrics {
        let prefixes: Vec<&String> = metric.prefix.iter().collect();
        let prefixes = if prefixes.is_empty() { found.all.iter().collect() } else { prefixes };
        let names: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}_{}", metric.name)).collect();
        let series = names.iter().flat_map(|name| ENDS.map(|end| format!("{name}{end}")));
        let series: Vec<String> = series.collect();
        if !series.iter().any(|name| told.contains_key(name.as_str())) && !allowed.allows(&names[0]) {
            let what = format!("metric `{}` is on no page under docs/; say there what it counts", names[0]);
            faults.push(Fault::new(metric.path.clone(), metric.line, what));
        }
        known.extend(series);
    }
    for (name, (path, line)) in told {
        if !known.contains(name) && !allowed.allows(name) {
            faults.push(Fault::new(
                path,
                line,
                format!("the server has no metric `{name}`; take it out or correct it"),
            ));
        }
    }
    faults
}

/// Lists the metrics that the manual names, each with its first place.
fn told(tree: &Tree) -> BTreeMap<&str, (&str, usize)> {
    let mut told = BTreeMap::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_page(path)) {
        for (index, line) in text.lines().enumerate() {
            // nginx's variables begin with `$`; names of crates are followed by `::`.
            let names =
                words(line, &['_', '$', ':']).filter(|word| word.starts_with(PREFIX) && !word.contains("::"));
            let names = names.map(|word| word.trim_end_matches(':')).filter(|word| !word.ends_with('_'));
            names.for_each(|name| _ = told.entry(name).or_insert((path, index + 1)));
        }
    }
    told
}

#[derive(Debug)]
struct Metric {
    path: String,
    line: usize,
    /// `None` if the registry was passed in.
    prefix: Option<String>,
    name: String,
}

#[derive(Debug, Default)]
struct Found {
    path: String,
    metrics: Vec<Metric>,
    /// The prefix of each registry that this file makes, by its binding.
    prefixes: BTreeMap<String, String>,
    /// The prefixes of all registries of the server.
    all: BTreeSet<String>,
}

fn name(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        Expr::Reference(reference) => name(&reference.expr),
        _ => None,
    }
}

fn prefix(call: &ExprCall) -> Option<String> {
    let Expr::Path(function) = &*call.func else { return None };
    let makes_one = function.path.segments.last()?.ident == "with_prefix";
    call.args.first().filter(|_| makes_one).and_then(literal).map(LitStr::value)
}

impl Found {
    /// Notes a metric that is registered in the registry with this name.
    fn found(&mut self, registry: Option<String>, metric: &LitStr) {
        let prefix = registry.and_then(|registry| self.prefixes.get(&registry).cloned());
        let line = metric.span().start().line;
        self.metrics.push(Metric { path: self.path.clone(), line, prefix, name: metric.value() });
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_local(&mut self, local: &'ast Local) {
        let made = local.init.as_ref().and_then(|init| match &*init.expr {
            Expr::Call(call) => prefix(call),
            _ => None,
        });
        if let (Pat::Ident(binding), Some(prefix)) = (&local.pat, made) {
            self.prefixes.insert(binding.ident.to_string(), prefix);
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        self.all.extend(prefix(call));
        if let (Some("new_series"), Some(registry), Some(metric)) =
            (name(&call.func).as_deref(), call.args.first(), call.args.get(1).and_then(literal))
        {
            self.found(name(registry), metric);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_tuple(&mut self, row: &'ast ExprTuple) {
        let of_metrics = self.path.starts_with(TABLES)
            && !self.path.ends_with("peer_names.rs")
            && !self.path.ends_with("tests.rs");
        let (metric, help) = (row.elems.first().and_then(literal), row.elems.get(1).and_then(literal));
        if let (true, Some(metric), Some(_)) = (of_metrics, metric, help) {
            self.found(None, metric);
        }
        visit::visit_expr_tuple(self, row);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let registers = call.method.to_string().starts_with("register");
        if let (true, Some(metric)) = (registers, call.args.first().and_then(literal)) {
            self.found(name(&call.receiver), metric);
        }
        visit::visit_expr_method_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::found;

    const SOURCE: &str = "fn f() {\n    let mut main = Registry::with_prefix(\"tidegate\");\n    \
        new_series(&mut main, \"denied\", \"help\");\n    \
        main.register_with_unit(\"decision\", \"help\", Unit::Seconds, histogram);\n    \
        let mut log = Registry::with_prefix(\"tidegate_log\");\n    log.register(\"lost\", \"help\", counter);\n}\n\
        fn g(handed: &mut Registry) { handed.register(\"late\", \"help\", gauge); }\n";

    fn check(page: &str) -> Vec<String> {
        found("metrics", &[("crates/tidegate-server/src/metrics.rs", SOURCE), ("docs/http-api.md", page)], "")
    }

    #[test]
    fn a_metric_that_no_page_names_is_found() {
        let page = "`tidegate_denied_total{policy=\"a\"}`, `tidegate_decision_seconds_bucket`, \
                    `tidegate_log_lost_total`, tidegate_log_late: $tidegate_nginx tidegate_core::Rate";
        assert_eq!(check(page), [""; 0]);
        let found = check(
            "`tidegate_denied_total`, `tidegate_decision_seconds`, `tidegate_lost_total`, `tidegate_late`",
        );
        let expected = [
            "crates/tidegate-server/src/metrics.rs:6: metric `tidegate_log_lost` is on no page under docs/; \
             say there what it counts",
            "docs/http-api.md:1: the server has no metric `tidegate_lost_total`; take it out or correct it",
        ];
        assert_eq!(found, expected);
    }
}
