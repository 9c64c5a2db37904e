//! Names of attributes that people write short, where policies use a longer name.
//!
//! A name without a dot can be a program's own, so such names are allowed; people are only told of the other one.

/// Short names and the attributes that are usually meant.
const SHORT: [(&str, &str); 22] = [
    ("ip", "client.ip"),
    ("ipaddr", "client.ip"),
    ("ip_addr", "client.ip"),
    ("ip_address", "client.ip"),
    ("remote_addr", "client.ip"),
    ("remote_ip", "client.ip"),
    ("source_ip", "client.ip"),
    ("uid", "user.id"),
    ("user", "user.id"),
    ("userid", "user.id"),
    ("user_id", "user.id"),
    ("user.id", "user.id"),
    ("tier", "user.tier"),
    ("user_tier", "user.tier"),
    ("user.tier", "user.tier"),
    ("path", "request.path"),
    ("uri", "request.path"),
    ("url", "request.path"),
    ("host", "request.host"),
    ("hostname", "request.host"),
    ("method", "request.method"),
    ("direction", "request.direction"),
];

/// Returns the attribute that is probably meant by a name; `None` for a name that is right or a program's own.
pub(crate) fn meant(name: &str) -> Option<&'static str> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    let found = SHORT.iter().find(|(short, _)| *short == plain);
    found.map(|(_, long)| *long).filter(|long| *long != name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_forms_are_near() {
        let meant =
            ["ip", "User", "user-id", "User.ID", "user.id", "tenant", "client.id", "form.user"].map(meant);
        let user = Some("user.id");
        assert_eq!(meant, [Some("client.ip"), user, user, user, None, None, None, None]);
    }
}
