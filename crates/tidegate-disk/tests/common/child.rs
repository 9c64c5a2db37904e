//! Child processes: this test program again, running one of its ignored tests.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The variable in which a child finds its folder.
const FOLDER: &str = "TIDEGATE_TEST_FOLDER";

/// A child process; killed when it is dropped.
pub(crate) struct Other {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts an ignored test of this program in another process. `before` is shell code that runs first.
    pub(crate) fn start(test: &str, folder: &Path, before: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("sh");
        let script = format!("{before} exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(program).args([test, "--exact", "--ignored", "--nocapture"]);
        command.env(FOLDER, folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// Returns the rest of the next line that starts with `word`; `None` when the output has ended.
    pub(crate) fn says(&mut self, word: &str) -> Option<String> {
        for line in self.said.by_ref() {
            if let Some(rest) = line.ok()?.strip_prefix(word) {
                return Some(rest.trim().to_owned());
            }
        }
        None
    }

    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as `kill -9` does, and returns all of its output so far.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said.by_ref().map_while(Result::ok).collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the folder that a child was given; `None` if this process was not started as a child.
pub(crate) fn folder() -> Option<std::path::PathBuf> {
    std::env::var_os(FOLDER).map(Into::into)
}
