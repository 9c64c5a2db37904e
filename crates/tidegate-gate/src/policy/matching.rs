//! Decides which requests a policy applies to, by method, path, host, headers and any other attribute.
//!
//! Every part that is stated must fit (and); within a part, one of its alternatives must fit (or). If the request lacks
//! a part, no demand on it fits, except a demand for its absence. An empty match fits every request.
//!
//! Before matching, the path is normalised as described in [`crate::policy`]; the host is lower-cased, and its port and a
//! final dot are cut off; methods are compared case-insensitively. Other values are compared as they are.

use std::borrow::Cow;
use std::cell::OnceCell;

use super::descriptor::Descriptor;
use super::glob::{Glob, GlobError, PathGlob};
use super::path::{self, NormalPath, Readings};

/// A demand on one attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// One of these globs must fit the value.
    OneOf(Vec<Glob>),
    /// The attribute must be present, with any value.
    Present,
    /// The attribute must be absent.
    Absent,
}

/// Which requests a policy applies to. Compiled once; matching never allocates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    methods: Vec<Box<str>>,
    paths: Vec<PathGlob>,
    hosts: Vec<Glob>,
    attributes: Vec<(Box<str>, Want)>,
    not: Vec<Match>,
}

impl Match {
    /// Creates a match that fits every request.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Requires a method; a further call adds an alternative.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.methods.push(method.to_ascii_uppercase().into());
        self
    }

    /// Requires a path: `/api/**`, `/login`, `/v?/{users,teams}/*`; a further call adds an alternative.
    ///
    /// # Errors
    /// [`GlobError`] if the pattern is invalid.
    pub fn path(mut self, pattern: &str) -> Result<Self, GlobError> {
        self.paths.push(PathGlob::new(pattern)?);
        Ok(self)
    }

    /// Requires a host: `api.example.com`, `*.example.com` (any subdomain, not the domain itself); a further call adds
    /// an alternative.
    ///
    /// # Errors
    /// [`GlobError`] if the pattern is invalid.
    pub fn host(mut self, pattern: &str) -> Result<Self, GlobError> {
        self.hosts.push(Glob::new(&pattern.to_ascii_lowercase())?);
        Ok(self)
    }

    /// Adds a demand on a header; the case of the name does not matter.
    #[must_use]
    pub fn header(self, name: &str, want: Want) -> Self {
        self.attribute(&format!("request.header.{}", name.to_ascii_lowercase()), want)
    }

    /// Adds a demand on an attribute of the descriptor.
    #[must_use]
    pub fn attribute(mut self, name: &str, want: Want) -> Self {
        self.attributes.push((name.into(), want));
        self
    }

    /// Excludes requests that fit `other`; a further call excludes more.
    #[must_use]
    pub fn not(mut self, other: Self) -> Self {
        self.not.push(other);
        self
    }

    /// Adds alternatives for the path.
    #[cfg(feature = "config")]
    pub fn add_paths(&mut self, paths: impl Iterator<Item = PathGlob>) {
        self.paths.extend(paths);
    }

    /// Adds alternatives for the host, in lower case.
    #[cfg(feature = "config")]
    pub fn add_hosts(&mut self, hosts: impl Iterator<Item = Glob>) {
        self.hosts.extend(hosts);
    }

    /// Reports whether a request fits.
    #[must_use]
    pub fn matches(&self, descriptor: &Descriptor<'_>) -> bool {
        let plain = plain_values(descriptor);
        self.misfit(&View::over(descriptor, plain.as_ref().unwrap_or(descriptor))).is_none()
    }

    /// Returns the first part that does not fit; `None` if the request fits.
    pub(crate) fn misfit(&self, view: &View<'_, '_>) -> Option<&'static str> {
        if !self.methods.is_empty() && !self.method_fits(view) {
            return Some("method");
        }
        if !self.hosts.is_empty() && !self.host_fits(view) {
            return Some("host");
        }
        for (name, want) in &self.attributes {
            if !want.fits(view.descriptor.value(name)) {
                return Some("attributes");
            }
        }
        if !self.reads_path() {
            return self.leaves_out(view).then_some("not");
        }
        let Some(readings) = view.path() else { return self.misfit_without_path(view) };
        // One and the same reading must fit the paths and must not fit `not`.
        let mut reason = "path";
        for path in readings.each().map(NormalPath::text) {
            if !self.path_fits(path) {
                continue;
            }
            if !self.not.iter().any(|not| not.fits_reading(view, path)) {
                return None;
            }
            reason = "not";
        }
        Some(reason)
    }

    /// Returns the attribute that a part which does not fit ([`Match::misfit`]) is about, if the request lacks it.
    pub(crate) fn lacks(&self, part: &str, request: &Descriptor<'_>) -> Option<&str> {
        let name = match part {
            "method" => "request.method",
            "host" => "request.host",
            "path" => "request.path",
            "attributes" => {
                let misfit = self.attributes.iter().find(|(name, want)| !want.fits(request.value(name)));
                misfit.map(|(name, _)| &**name)?
            }
            _ => return None,
        };
        request.value(name).is_none().then_some(name)
    }

    fn misfit_without_path(&self, view: &View<'_, '_>) -> Option<&'static str> {
        if !self.paths.is_empty() {
            return Some("path");
        }
        self.leaves_out(view).then_some("not")
    }

    #[inline]
    fn leaves_out(&self, view: &View<'_, '_>) -> bool {
        self.not.iter().any(|not| not.misfit(view).is_none())
    }

    /// Reports whether everything fits, with the path in one given reading; includes nested `not` matches.
    fn fits_reading(&self, view: &View<'_, '_>, path: &str) -> bool {
        (self.methods.is_empty() || self.method_fits(view))
            && (self.hosts.is_empty() || self.host_fits(view))
            && self.attributes.iter().all(|(name, want)| want.fits(view.descriptor.value(name)))
            && self.path_fits(path)
            && !self.not.iter().any(|not| not.fits_reading(view, path))
    }

    fn reads_path(&self) -> bool {
        !self.paths.is_empty() || self.not.iter().any(Self::reads_path)
    }

    fn path_fits(&self, path: &str) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|glob| glob.matches(path))
    }

    #[inline]
    fn method_fits(&self, view: &View<'_, '_>) -> bool {
        // Compared exactly first, since nearly all callers write methods in upper case.
        let fits = |want: &str, have: &str| want == have || want.eq_ignore_ascii_case(have);
        view.method.is_some_and(|have| self.methods.iter().any(|want| fits(want, have)))
    }

    fn host_fits(&self, view: &View<'_, '_>) -> bool {
        view.host().is_some_and(|have| self.hosts.iter().any(|want| want.matches(have)))
    }

    /// Returns the patterns for the path; empty if any path fits.
    #[must_use]
    pub fn paths(&self) -> &[PathGlob] {
        &self.paths
    }

    /// Returns the patterns for the host, in lower case; empty if any host fits.
    #[must_use]
    pub fn hosts(&self) -> &[Glob] {
        &self.hosts
    }

    /// Returns the demands on attributes; a header is the attribute `request.header.` and its name.
    #[must_use]
    pub fn attributes(&self) -> &[(Box<str>, Want)] {
        &self.attributes
    }

    /// Calls `each` with the name of every attribute in a demand, including those in `not`.
    pub fn names(&self, each: &mut impl FnMut(&str)) {
        self.attributes.iter().for_each(|(name, _)| each(name));
        self.not.iter().for_each(|not| not.names(each));
    }

    /// Reports whether there are demands on the method, the host and the path, including those in `not`.
    pub(crate) fn reads_places(&self) -> [bool; 3] {
        let own = [!self.methods.is_empty(), !self.hosts.is_empty(), !self.paths.is_empty()];
        self.not.iter().map(Self::reads_places).fold(own, |all, one| [0, 1, 2].map(|at| all[at] || one[at]))
    }

    /// Returns the methods, in capital letters; empty if any method fits.
    #[must_use]
    pub fn methods(&self) -> &[Box<str>] {
        &self.methods
    }

    /// Returns the matches whose requests are excluded.
    #[must_use]
    pub fn left_out(&self) -> &[Self] {
        &self.not
    }
}

impl Want {
    /// Requires one value or glob.
    ///
    /// # Errors
    /// [`GlobError`] if the pattern is invalid.
    pub fn value(pattern: &str) -> Result<Self, GlobError> {
        Ok(Self::OneOf(vec![Glob::new(pattern)?]))
    }

    fn fits(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::OneOf(globs), Some(value)) => globs.iter().any(|glob| glob.matches(value)),
            (Self::Present, Some(_)) | (Self::Absent, None) => true,
            _ => false,
        }
    }
}

/// A request prepared for matching: its parts are looked up once, and normalised at their first use.
#[derive(Debug)]
pub(crate) struct View<'d, 'v> {
    /// The descriptor in which attributes are looked up by name.
    pub(crate) descriptor: &'d Descriptor<'v>,
    pub(crate) outbound: bool,
    method: Option<&'d str>,
    raw_host: Option<&'d str>,
    raw_path: Option<&'d str>,
    host: OnceCell<Cow<'d, str>>,
    path: OnceCell<Readings<'d>>,
}

impl<'d, 'v> View<'d, 'v> {
    /// Looks up method, path, host and direction in one pass over the pairs.
    pub(crate) fn of(descriptor: &'d Descriptor<'v>) -> Self {
        let mut view = Self {
            descriptor,
            outbound: false,
            method: None,
            raw_host: None,
            raw_path: None,
            host: OnceCell::new(),
            path: OnceCell::new(),
        };
        for (name, value) in descriptor.pairs() {
            match name {
                "request.method" => view.method = Some(value),
                "request.path" => view.raw_path = Some(value),
                "request.host" => view.raw_host = Some(value),
                "request.direction" => view.outbound = value == "outbound",
                _ => {}
            }
        }
        view
    }

    /// Like [`View::of`], but attributes are looked up in `values`; method, host and path come from the request.
    pub(crate) fn over(request: &'d Descriptor<'v>, values: &'d Descriptor<'v>) -> Self {
        Self { descriptor: values, ..Self::of(request) }
    }

    pub(crate) fn host(&self) -> Option<&str> {
        self.raw_host.map(|raw| self.host.get_or_init(|| host_name(raw)).as_ref())
    }

    pub(crate) fn path(&self) -> Option<&Readings<'d>> {
        self.raw_path.map(|raw| self.path.get_or_init(|| Readings::of(raw)))
    }
}

/// Returns the request with path and host in the form that is used for comparing, keys and costs; `None` if they have that
/// form already. Otherwise each `?query`, `//` and capital letter would evade a key, a list or a cost.
pub(crate) fn plain_values<'v>(request: &Descriptor<'v>) -> Option<Descriptor<'v>> {
    let mut plain: Option<Descriptor<'v>> = None;
    let path = request.value("request.path").map(|raw| ("request.path", raw, path::for_values(raw)));
    let host = request.value("request.host").map(|raw| ("request.host", raw, host_name(raw)));
    for (name, raw, value) in path.into_iter().chain(host) {
        if value != raw {
            // The last pair of a name counts.
            plain.get_or_insert_with(|| request.clone()).push(name, value.into_owned());
        }
    }
    plain
}

/// Returns a value of a request in the form that is used for comparing and for keys.
pub(crate) fn compared<'v>(name: &str, raw: &'v str) -> Cow<'v, str> {
    match name {
        "request.path" => path::for_values(raw),
        "request.host" => host_name(raw),
        _ => Cow::Borrowed(raw),
    }
}

/// Lower-cases a host and cuts off its port and a final dot; borrows if nothing changes.
pub fn host_name(raw: &str) -> Cow<'_, str> {
    // A single pass for the usual host, which needs no change: the range `:` to `[` holds the colon, the capital letters
    // and the bracket (and characters that no host contains).
    if !raw.bytes().any(|byte| (b':'..=b'[').contains(&byte)) {
        return Cow::Borrowed(raw.strip_suffix('.').unwrap_or(raw));
    }
    let bare = match raw.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or(raw, |(address, _)| address),
        None => match raw.split_once(':') {
            // Several colons without brackets: an IPv6 address without a port.
            Some((host, port)) if !port.contains(':') => host,
            _ => raw,
        },
    };
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    if bare.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(bare.to_ascii_lowercase())
    } else {
        Cow::Borrowed(bare)
    }
}
