//! Checks hosts in the form in which they reach the policies: lower case, ASCII, without scheme, port and path.

use std::net::Ipv6Addr;

use tidegate_gate::policy::Glob;
use tidegate_limits::visible::excerpt;

/// Checks each alternative of a host pattern in lower case.
pub(crate) fn host_pattern(glob: &Glob) -> Result<(), String> {
    glob.alternatives().try_for_each(host)
}

/// Checks one host.
pub(super) fn host(text: &str) -> Result<(), String> {
    let wrong = |why: &str, meant: &str| match meant {
        "" => Err(format!("\"{}\": {why}", excerpt(text))),
        meant => Err(format!("\"{}\": {why}; write {}", excerpt(text), excerpt(meant))),
    };
    if let Some((_, rest)) = text.split_once("://") {
        return wrong("a host has no scheme", rest.split('/').next().unwrap_or_default());
    }
    if let Some((host, _)) = text.split_once('/') {
        return wrong("a host has no path", host);
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
        return wrong("an IPv6 host is compared without brackets", inner);
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => return wrong("the port is cut off", host),
        Some(_) => {
            let wild = text.contains(['*', '?']);
            let possible = text.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.*?".contains(&byte));
            let is_address = if wild { possible } else { text.parse::<Ipv6Addr>().is_ok() };
            return if is_address { Ok(()) } else { wrong("it is neither a host nor an IPv6 address", "") };
        }
        None => {}
    }
    if let Some(rest) = text.strip_prefix('.') {
        return wrong("a host begins with a name", &format!("*.{rest}"));
    }
    if let Some(rest) = text.strip_suffix('.') {
        return wrong("a dot at the end is cut off", rest);
    }
    if !text.is_ascii() {
        return wrong("a host is ASCII when it is sent: write it as xn--…", "");
    }
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._*?".contains(&byte)) {
        return wrong("a host has letters, digits, - and dots", "");
    }
    Ok(())
}
