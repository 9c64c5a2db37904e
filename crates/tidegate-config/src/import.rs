//! Converts files of other rate limiters into a policy file.
//!
//! Each file is read into policies whose matches use the attributes that the gRPC door sets for a descriptor
//! (`rls.domain`, `rls.keys`, `rls.index`), and these are written as a policy file. That text is validated like any
//! other file, and a mistake found there is reported at the line of the original. So the server and `init` use the same
//! text.

#[cfg(feature = "cel")]
mod condition;
mod draft;
mod envoy;
mod keys;
#[cfg(feature = "cel")]
mod limitador;
mod manifest;

use std::path::Path;

use self::draft::PolicyFileText;
use super::diagnostic::{Findings, Severity};
use super::file::read_text;
use super::format::Format;
use super::node::Spot;
use super::{Config, Diagnostic, MAX_BYTES};

/// The rate limiter that a file is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// envoyproxy/ratelimit: a domain and a tree of descriptors.
    Envoy,
    /// Limitador: a list of limits. Needs the feature `cel`, since its conditions are CEL expressions.
    Limitador,
}

/// Files of other rate limiters, converted into one policy file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The policy file, YAML with comments that name the original lines.
    pub text: String,
    /// The configuration that the text yields.
    pub config: Config,
    /// What works differently from the original or not at all, each at its line of the original.
    pub notes: Vec<Diagnostic>,
}

impl Imported {
    /// Reads and converts files; see [`Imported::of`].
    ///
    /// # Errors
    /// As [`Imported::of`], and if a file cannot be read.
    pub fn read(files: &[(Peer, &Path)]) -> Result<Self, Vec<Diagnostic>> {
        let mut texts = Vec::with_capacity(files.len());
        for (peer, path) in files {
            let name = path.display().to_string();
            match read_text(path, MAX_BYTES as u64) {
                Ok(text) => texts.push((*peer, name, text)),
                Err(error) => {
                    let mut findings = Findings::of(&name);
                    findings.error(Spot::default(), format_args!("the file {error}"));
                    return Err(findings.finish());
                }
            }
        }
        let texts: Vec<_> = texts.iter().map(|(peer, name, text)| (*peer, &**name, &**text)).collect();
        Self::of(&texts)
    }

    /// Converts texts, each with its name for diagnostics. Descriptors of one domain may be spread over several files.
    /// A text may have several documents, and each may be a Kubernetes manifest around the configuration: a ConfigMap
    /// with texts under `data`, a `Limitador`, or a list of these.
    ///
    /// Never panics, whatever the texts, and does a bounded amount of work.
    ///
    /// # Errors
    /// All mistakes, and everything that a policy cannot express, with the place and what would work.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{Imported, Peer};
    /// let text = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: minute, requests_per_unit: 5 }\n";
    /// let imported = Imported::of(&[(Peer::Envoy, "ratelimit.yaml", text)]).unwrap();
    /// assert_eq!(imported.config.policies.policies()[0].name, "shop.user");
    ///
    /// let wrong = Imported::of(&[(Peer::Envoy, "ratelimit.yaml", &text.replace("minute", "minutes"))]).unwrap_err();
    /// assert_eq!(
    ///     wrong[0].to_string(),
    ///     "ratelimit.yaml:4:25  error  rate_limit: unknown unit \"minutes\"; did you mean \"minute\"?"
    /// );
    /// ```
    pub fn of(files: &[(Peer, &str, &str)]) -> Result<Self, Vec<Diagnostic>> {
        let mut all: Vec<Findings> = files.iter().map(|(_, name, _)| Findings::of(name)).collect();
        let mut file_text = PolicyFileText::new(files.iter().map(|(_, name, _)| *name));
        let mut domains = envoy::Domains::default();
        for (at, ((peer, _, text), findings)) in files.iter().zip(&mut all).enumerate() {
            for file in manifest::configurations(*peer == Peer::Limitador, text, findings) {
                match peer {
                    Peer::Envoy => domains.add(at, &file, findings),
                    #[cfg(feature = "cel")]
                    Peer::Limitador => limitador::convert(at, &file, &mut file_text, findings),
                    #[cfg(not(feature = "cel"))]
                    Peer::Limitador => findings
                        .error(file.spot, "conditions of Limitador need a build with the feature `cel`"),
                }
            }
        }
        domains.write(&mut file_text, &mut all);
        file_text.finish();
        let refused = all.iter().any(Findings::refused);
        let found: Vec<Diagnostic> = all.into_iter().flat_map(Findings::finish).collect();
        if refused {
            // Notes about differences matter only for files that can be converted.
            return Err(found.into_iter().filter(|one| one.severity == Severity::Error).collect());
        }
        let placed = |one: Diagnostic| file_text.placed(one);
        match Config::parse_to_serve(&file_text.text, CONVERTED, Format::Yaml) {
            Ok((config, warnings)) => {
                let notes = found.into_iter().chain(warnings.into_iter().map(placed)).collect();
                Ok(Self { config, notes, text: file_text.text })
            }
            Err(mistakes) => Err(mistakes.into_iter().map(placed).collect()),
        }
    }
}

/// The path in diagnostics about written lines that come from no line of an original.
const CONVERTED: &str = "the converted file";
