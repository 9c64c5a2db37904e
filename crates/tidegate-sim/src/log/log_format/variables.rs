//! The variables of a format: their positions and their meanings.

use super::super::roles::Role;
use super::LogFormatError;
use super::directive::Escape;

const MAX_VARIABLES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) escape: Escape,
    pub(super) head: Vec<u8>,
    pub(super) variables: Vec<Variable>,
}

impl Parts {
    pub(super) fn has(&self, name: &str) -> bool {
        self.variables.iter().any(|variable| variable.name == name)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The text between this variable and the next, or the end of the line.
    pub(super) after: Vec<u8>,
}

/// How the end of a variable's value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// At the first occurrence of the text that follows the variable.
    Plain,
    /// `$time_local`: contains a space and has a fixed length.
    LocalTime,
    /// `$request`: contains spaces and usually ends in `HTTP/` and a version.
    Request,
    /// Values of several upstream servers, separated by `, ` or ` : `.
    List,
    /// `$remote_addr`: contains colons if it is an IPv6 address, so that a port after it begins at the last colon of the
    /// word.
    Address,
    /// `$request_uri`: contains no space. A space in it means that an earlier value contained unexpected spaces.
    Target,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "time_local" => Self::LocalTime,
            "request" => Self::Request,
            "request_uri" => Self::Target,
            "remote_addr" | "realip_remote_addr" => Self::Address,
            "http_x_forwarded_for" | "proxy_add_x_forwarded_for" => Self::List,
            _ if name.starts_with("upstream_") => Self::List,
            _ => Self::Plain,
        }
    }
}

/// The variables that hold the time, best first: `$msec` has the finest resolution.
const TIMES: [&str; 3] = ["msec", "time_iso8601", "time_local"];

pub(super) fn is_time(name: &str) -> bool {
    TIMES.contains(&name)
}

/// Returns the role of a variable in a record, and its rank among the variables of that role, lower first.
pub(super) fn role(name: &str) -> Option<(Role, usize)> {
    Some(match name {
        "msec" => (Role::Time, 1),
        "time_iso8601" => (Role::Time, 2),
        "time_local" => (Role::Time, 3),
        "remote_addr" => (Role::Client, 1),
        "remote_user" => (Role::User, 1),
        "request" => (Role::Request, 1),
        "request_method" => (Role::Method, 1),
        "request_uri" => (Role::Path, 1),
        "uri" | "document_uri" => (Role::Path, 2),
        "host" => (Role::Host, 1),
        "http_host" => (Role::Host, 2),
        "server_name" => (Role::Host, 3),
        "status" => (Role::Status, 1),
        "body_bytes_sent" => (Role::Bytes, 1),
        "bytes_sent" => (Role::Bytes, 2),
        "http_user_agent" => (Role::Agent, 1),
        "http_referer" => (Role::Referer, 1),
        "request_time" => (Role::Duration, 1),
        _ => return None,
    })
}

/// Splits a format into the text before the first variable and the variables, each with the text after it. `text` is
/// the original, for the positions of errors.
pub(super) fn cut(text: &str, format: &[(u8, usize)]) -> Result<(Vec<u8>, Vec<Variable>), LogFormatError> {
    let (mut head, mut variables) = (Vec::new(), Vec::<Variable>::new());
    let mut at = 0;
    while let Some(&(byte, place)) = format.get(at) {
        if byte != b'$' {
            variables.last_mut().map_or(&mut head, |variable| &mut variable.after).push(byte);
            at += 1;
            continue;
        }
        let braced = matches!(format.get(at + 1), Some((b'{', _)));
        let from = at + 1 + usize::from(braced);
        let is_name = |(byte, _): &&(u8, usize)| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = format[from..].iter().take_while(is_name).count();
        let name: String = format[from..from + length].iter().map(|(byte, _)| char::from(*byte)).collect();
        at = from + length;
        if name.is_empty() {
            return Err(LogFormatError::at(text, place, "a $ without a variable's name behind it"));
        }
        if braced {
            if !matches!(format.get(at), Some((b'}', _))) {
                return Err(LogFormatError::at(text, place, format!("${{{name} has no closing brace")));
            }
            at += 1;
        }
        if let Some(before) = variables.last()
            && before.after.is_empty()
        {
            let what = format!(
                "there is no text between ${} and ${name}, so it is unclear where one ends",
                before.name
            );
            return Err(LogFormatError::at(text, place, what));
        }
        if variables.len() == MAX_VARIABLES {
            return Err(LogFormatError::at(text, place, format!("more than {MAX_VARIABLES} variables")));
        }
        variables.push(Variable { kind: Kind::of(&name), name, after: Vec::new() });
    }
    if variables.is_empty() {
        return Err(LogFormatError::whole(
            "has no variable; write it as nginx does: '$time_iso8601 $remote_addr …' (in single quotes, or the shell replaces the variables)"
                .to_owned(),
        ));
    }
    Ok((head, variables))
}
