//! Where counters are kept that nobody chose a folder for.

use std::ffi::OsString;
use std::path::PathBuf;

use tidegate::config::Address;

/// Returns the folder for state of the system, and in it one of the address: two servers on one machine keep apart.
///
/// Under systemd that is the first of `STATE_DIRECTORY`; else `tidegate` in `XDG_STATE_HOME` or `~/.local/state`. The policy file has no
/// part in it: a server that moves to another address begins with other counters, and one with another file keeps those it had.
///
/// # Errors
/// Why there is none.
pub(super) fn of(http: &Address, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    if http.tcp().is_some_and(|addr| addr.port() == 0) {
        return Err(
            "the system chooses the port, so nothing tells this server's folder from another's".to_owned()
        );
    }
    // A relative path is none: it would mean another folder wherever the server is started.
    let said = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let first = |list: OsString| std::env::split_paths(&list).next().filter(|path| path.is_absolute());
    let state = variable("STATE_DIRECTORY")
        .and_then(first)
        .or_else(|| Some(said("XDG_STATE_HOME")?.join("tidegate")))
        .or_else(|| Some(said("HOME")?.join(".local/state/tidegate")));
    let state = state.ok_or("neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME names an absolute path")?;
    // Colons part paths in lists, and mean something else on some systems; a socket's path is one name here.
    Ok(state.join(http.to_string().replace([':', '/'], "_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_says_where_wins() {
        let http: Address = "127.0.0.1:8080".parse().unwrap();
        let found = |said: &[(&str, &str)]| {
            of(&http, |name| said.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let all = [("STATE_DIRECTORY", "/var/lib/tidegate:/other"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(found(&all).unwrap(), PathBuf::from("/var/lib/tidegate/127.0.0.1_8080"));
        assert_eq!(found(&all[1..]).unwrap(), PathBuf::from("/x/tidegate/127.0.0.1_8080"));
        assert_eq!(found(&all[2..]).unwrap(), PathBuf::from("/h/.local/state/tidegate/127.0.0.1_8080"));
        // One that is relative hid those behind it.
        let hiding = [("STATE_DIRECTORY", "state"), ("XDG_STATE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(found(&hiding).unwrap(), PathBuf::from("/h/.local/state/tidegate/127.0.0.1_8080"));
        assert!(found(&[("HOME", "relative")]).unwrap_err().contains("neither"));
        assert!(of(&"[::1]:0".parse().unwrap(), |_| None).unwrap_err().contains("the port"));
    }
}
