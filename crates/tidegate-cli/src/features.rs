//! The optional features of the program: which of them it has, what a file or a flag asks for of the others, and the
//! command that builds a program with those.

use std::fmt::{self, Write as _};

use serde_json::Value;
use tidegate::config::{Config, StoreKind};

use crate::exit::Mistake;

/// A feature of this package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Etcd,
    Grpc,
    Otel,
    Redis,
    Tls,
    Tui,
    ZooKeeper,
}

impl Feature {
    const ALL: [Self; 7] =
        [Self::Etcd, Self::Grpc, Self::Otel, Self::Redis, Self::Tls, Self::Tui, Self::ZooKeeper];

    /// Returns its name. That of an engine is also the word for the engine in the policy file.
    const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Grpc => "grpc",
            Self::Otel => "otel",
            Self::Redis => "redis",
            Self::Tls => "tls",
            Self::Tui => "tui",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// Returns what a program without the feature lacks.
    const fn adds(self) -> &'static str {
        match self {
            Self::Etcd => "the client of etcd",
            Self::Grpc => "gRPC",
            Self::Otel => "OpenTelemetry",
            Self::Redis => "the client of Redis",
            Self::Tls => "TLS",
            Self::Tui => "the live view of `top`",
            Self::ZooKeeper => "the client of ZooKeeper",
        }
    }

    /// Returns whether a build has it that names no features.
    const fn is_default(self) -> bool {
        matches!(self, Self::Grpc | Self::Tls)
    }

    const fn is_built_in(self) -> bool {
        match self {
            Self::Etcd => cfg!(feature = "etcd"),
            Self::Grpc => cfg!(feature = "grpc"),
            Self::Otel => cfg!(feature = "otel"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Tls => cfg!(feature = "tls"),
            Self::Tui => cfg!(feature = "tui"),
            Self::ZooKeeper => cfg!(feature = "zookeeper"),
        }
    }

    /// Says that this program lacks the feature, and how to build one that has it.
    pub(crate) fn lacking(self) -> String {
        advice(self, &[self], Self::is_built_in)
    }
}

/// Says that a program lacks a feature, and how to build one with all that are missing beside those that it has.
fn advice(lacked: Feature, missing: &[Feature], has: fn(Feature) -> bool) -> String {
    let is_named = |feature: &Feature| !feature.is_default() && (missing.contains(feature) || has(*feature));
    let named: Vec<&str> = Feature::ALL.into_iter().filter(is_named).map(Feature::name).collect();
    let features = if named.is_empty() { String::new() } else { format!(" --features {}", named.join(",")) };
    let needs = if missing.contains(&Feature::Etcd) { ", which needs protoc" } else { "" };
    format!(
        "this program was built without {}; build it with `cargo install --path crates/tidegate-cli{features}`{needs}",
        lacked.adds()
    )
}

/// The text of `--version`: the version, and which features the program has and lacks.
pub(crate) fn version() -> String {
    version_with(Feature::is_built_in)
}

fn version_with(has: fn(Feature) -> bool) -> String {
    let (with, without): (Vec<Feature>, Vec<Feature>) =
        Feature::ALL.into_iter().partition(|feature| has(*feature));
    let mut text = env!("CARGO_PKG_VERSION").to_owned();
    for (word, features) in [("with", with), ("without", without)] {
        let names: Vec<&str> = features.into_iter().map(Feature::name).collect();
        if !names.is_empty() {
            let _ = write!(text, "\nbuilt {word} {}", names.join(", "));
        }
    }
    text
}

/// A key of the file, or a flag, that asks for a feature.
#[derive(Debug)]
pub(crate) struct Wish {
    feature: Feature,
    key: String,
    /// The key or flag with its value.
    asked: String,
    /// The file and the line of a key.
    place: Option<(String, usize)>,
}

impl Wish {
    /// Describes a flag, with the variable that stands for it.
    pub(crate) fn of_flag(feature: Feature, flag: &str, variable: &str, value: &impl fmt::Display) -> Self {
        let asked = format!("{flag} {value} ({variable})");
        Self { feature, key: flag.to_owned(), asked, place: None }
    }

    /// Describes what the file says under a key, or under the first line of a section.
    fn of_key(config: &Config, feature: Feature, key: &str) -> Self {
        let section = format!("{key}.");
        let written = config.effective.origins.iter().filter_map(|(at, from)| {
            let (file, line) = from.rsplit_once(':')?;
            let line = line.parse::<usize>().ok()?;
            (at == key || at.starts_with(&section)).then_some((line, file, at))
        });
        let Some((line, file, at)) = written.min() else {
            return Self { feature, key: key.to_owned(), asked: key.to_owned(), place: None };
        };
        let value = config.effective.value.pointer(&format!("/{}", at.replace('.', "/")));
        let asked = match value {
            Some(Value::String(text)) => format!("{at}: {text}"),
            Some(value) => format!("{at}: {value}"),
            None => at.clone(),
        };
        Self { feature, key: at.clone(), asked, place: Some((file.to_owned(), line)) }
    }
}

fn wishes_of_file(config: &Config) -> Vec<Wish> {
    let mut keys = Vec::new();
    if let StoreKind::Engine(engine) = &config.store.kind {
        let through = engine.region.as_ref().map(|region| &*region.through);
        for (key, engine) in [("store.kind", Some(engine)), ("store.region.kind", through)] {
            let word = engine.map(|engine| engine.engine.word());
            let feature = Feature::ALL.into_iter().find(|feature| Some(feature.name()) == word);
            keys.extend(feature.map(|feature| (feature, key)));
        }
    }
    let server = &config.server;
    let sections = [
        (Feature::Grpc, "server.grpc", server.grpc.is_some()),
        (Feature::Tls, "server.tls.cert_file", server.tls.is_some()),
        (Feature::Otel, "server.otlp", server.otlp.is_some()),
    ];
    let written = sections.into_iter().filter(|(_, _, is_written)| *is_written);
    keys.extend(written.map(|(feature, key, _)| (feature, key)));
    keys.into_iter().map(|(feature, key)| Wish::of_key(config, feature, key)).collect()
}

/// A key of the file, or a flag, that asks for a feature which the program lacks. Prints as one line: the place, the key
/// and its value, and how to build a program that has the feature.
#[derive(Debug)]
pub(crate) struct Lacking {
    /// The key, or the flag.
    pub(crate) key: String,
    /// The line of the key; `None` for a flag, and for a section without keys.
    pub(crate) line: Option<usize>,
    /// The file, if there is a line.
    file: String,
    /// The line without the place.
    pub(crate) message: String,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "{}:{line}: ", self.file)?;
        }
        f.write_str(&self.message)
    }
}

/// Returns which wishes a program with the features of `has` does not fulfil.
pub(crate) fn lacked(mut wishes: Vec<Wish>, has: fn(Feature) -> bool) -> Vec<Lacking> {
    wishes.retain(|wish| !has(wish.feature));
    let missing: Vec<Feature> = wishes.iter().map(|wish| wish.feature).collect();
    let lacking = |wish: Wish| {
        let message = format!("{}: {}", wish.asked, advice(wish.feature, &missing, has));
        let (file, line) = wish.place.unzip();
        Lacking { key: wish.key, line, file: file.unwrap_or_default(), message }
    };
    wishes.into_iter().map(lacking).collect()
}

/// Returns what a file asks for and this program lacks.
pub(crate) fn lacked_by(config: &Config) -> Vec<Lacking> {
    lacked(wishes_of_file(config), Feature::is_built_in)
}

/// Checks that this program has all that flags and the file ask for.
///
/// # Errors
/// Names the first that it lacks. The command builds a program with all.
pub(crate) fn check(mut flags: Vec<Wish>, config: &Config) -> Result<(), Mistake> {
    flags.extend(wishes_of_file(config));
    all_built_in(flags)
}

/// Checks that this program has the client of a file's engine.
///
/// # Errors
/// If it lacks it.
pub(crate) fn check_engine(config: &Config) -> Result<(), Mistake> {
    let mut wishes = wishes_of_file(config);
    wishes.retain(|wish| wish.key == "store.kind");
    all_built_in(wishes)
}

fn all_built_in(wishes: Vec<Wish>) -> Result<(), Mistake> {
    let first = lacked(wishes, Feature::is_built_in).into_iter().next();
    first.map_or(Ok(()), |lacking| Err(Mistake(lacking.to_string())))
}

#[cfg(test)]
mod tests {
    use tidegate::config::Format;

    use super::*;

    const FILE: &str = "version: 1
server:
  grpc: 127.0.0.1:8081
  tls: { cert_file: server.pem, key_file: server.key }
  otlp: { keys: revealed }
store:
  kind: redis
  url: redis://127.0.0.1:1
  nodes: 2
  region: { name: eu, max: 3, kind: etcd, url: 'http://127.0.0.1:1' }
policies:
  - { name: all, by: [user.id], limit: { rate: 100/s } }
";

    fn said(text: &str, has: fn(Feature) -> bool) -> Vec<String> {
        let (config, _) = Config::parse(text, "p.yaml", Format::Yaml).unwrap();
        lacked(wishes_of_file(&config), has).iter().map(ToString::to_string).collect()
    }

    /// Whoever reads the line need look up nothing: it has the place in the file and a command to copy.
    #[test]
    fn a_file_is_told_what_it_asks_for_where_and_how_to_build_it() {
        let build = "build it with `cargo install --path crates/tidegate-cli --features";
        let all = format!("{build} etcd,otel,redis`, which needs protoc");
        assert_eq!(
            said(FILE, |_| false),
            [
                format!(
                    "p.yaml:7: store.kind: redis: this program was built without the client of Redis; {all}"
                ),
                format!(
                    "p.yaml:10: store.region.kind: etcd: this program was built without the client of etcd; {all}"
                ),
                format!("p.yaml:3: server.grpc: 127.0.0.1:8081: this program was built without gRPC; {all}"),
                format!(
                    "p.yaml:4: server.tls.cert_file: server.pem: this program was built without TLS; {all}"
                ),
                format!(
                    "p.yaml:5: server.otlp.keys: revealed: this program was built without OpenTelemetry; {all}"
                ),
            ]
        );
        assert_eq!(said(FILE, |_| true), Vec::<String>::new());
        // What the program has stays in the command, except what every build has.
        assert_eq!(
            said(FILE, |feature| feature != Feature::Redis),
            [format!(
                "p.yaml:7: store.kind: redis: this program was built without the client of Redis; {build} etcd,otel,redis,tui,zookeeper`"
            )]
        );
        // A section without keys has no line.
        let empty = "version: 1\nserver: { otlp: {} }\npolicies: []\n";
        assert_eq!(
            said(empty, Feature::is_default),
            [format!("server.otlp: this program was built without OpenTelemetry; {build} otel`")]
        );
        let store =
            "version: 1\nstore: { kind: zookeeper, url: 'zookeeper://a:1', nodes: 2 }\npolicies: []\n";
        assert_eq!(
            said(store, Feature::is_default),
            [format!(
                "p.yaml:2: store.kind: zookeeper: this program was built without the client of ZooKeeper; {build} zookeeper`"
            )]
        );
    }

    #[test]
    fn the_version_says_what_the_program_has() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            version_with(Feature::is_default),
            format!("{version}\nbuilt with grpc, tls\nbuilt without etcd, otel, redis, tui, zookeeper")
        );
        assert_eq!(
            version_with(|_| true),
            format!("{version}\nbuilt with etcd, grpc, otel, redis, tls, tui, zookeeper")
        );
    }

    /// A feature that is new in the manifest is told as the others are.
    #[test]
    fn the_features_are_those_of_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        let section = manifest.split("[features]\n").nth(1).unwrap().split("\n[").next().unwrap();
        let lists: Vec<(&str, &str)> = section.lines().filter_map(|line| line.split_once(" = ")).collect();
        let names_of = |of: &str| -> Vec<String> {
            let list = lists.iter().find(|(name, _)| *name == of).unwrap().1;
            list.trim_matches(['[', ']']).split(", ").map(|name| name.trim_matches('"').to_owned()).collect()
        };
        let mut names: Vec<&str> = lists.iter().map(|(name, _)| *name).collect();
        names.retain(|name| !["default", "engines"].contains(name));
        names.sort_unstable();
        assert_eq!(names, Feature::ALL.map(Feature::name));
        let defaults = Feature::ALL.into_iter().filter(|feature| feature.is_default());
        assert_eq!(names_of("default"), defaults.map(Feature::name).collect::<Vec<_>>());
        assert_eq!(names_of("engines"), ["etcd", "redis", "zookeeper"]);
    }
}
