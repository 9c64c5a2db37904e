//! Finds the default folder for counters on disk.

use std::ffi::OsString;
use std::path::PathBuf;

use tidegate::config::Address;

/// Returns a folder for this address inside the system's folder for state, so that two servers on one machine do not
/// share one.
///
/// Under systemd that is the first of `STATE_DIRECTORY`, otherwise `tidegate` in `XDG_STATE_HOME` or `~/.local/state`.
/// The policy file does not matter: a server that moves to another address begins with empty counters, and one with
/// another file keeps its counters.
///
/// # Errors
/// Why there is no such folder.
pub(super) fn of(http: &Address, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    if http.tcp().is_some_and(|addr| addr.port() == 0) {
        return Err(
            "the system chooses the port, so nothing tells this server's folder from another's".to_owned()
        );
    }
    // Relative paths are ignored: they would mean a different folder wherever the server is started.
    let said = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let first = |list: OsString| std::env::split_paths(&list).next().filter(|path| path.is_absolute());
    let state = variable("STATE_DIRECTORY")
        .and_then(first)
        .or_else(|| Some(said("XDG_STATE_HOME")?.join("tidegate")))
        .or_else(|| Some(said("HOME")?.join(".local/state/tidegate")));
    let state = state.ok_or("neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME names an absolute path")?;
    // Colons separate paths in lists and have other meanings on some systems. The path of a socket becomes one name
    // here.
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
        // A relative path must not hide the variables after it.
        let hiding = [("STATE_DIRECTORY", "state"), ("XDG_STATE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(found(&hiding).unwrap(), PathBuf::from("/h/.local/state/tidegate/127.0.0.1_8080"));
        assert!(found(&[("HOME", "relative")]).unwrap_err().contains("neither"));
        assert!(of(&"[::1]:0".parse().unwrap(), |_| None).unwrap_err().contains("the port"));
    }
}
