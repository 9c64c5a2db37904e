//! The same questions, asked in a real terminal of 80 columns and 24 lines, with colours and without: `tidegate top` in
//! tmux, and another verb where `top` has no such view. Keys go in, the screen comes out.

#![allow(clippy::disallowed_methods, reason = "a real terminal takes its own time")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_testkit::{Process, folder, within};

use super::browser::Spent;
use super::stand::{OPERATOR, OPERATORS_TOKEN, Stand};
use super::tasks::{AT_ONCE, EFFECT_AFTER, Most, POINTS, Rows, explains, number, verdict_then};
use super::traffic::{RefusedKey, Traffic};

/// What a program may take until its screen has an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// The time between two looks at the screen.
const LOOK: Duration = Duration::from_millis(50);

/// What says of a terminal that text is coloured.
const COLORS: [&str; 4] = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "[38;5;"];

/// How far the time of an opening may lie from the first call that it refused.
const SECONDS: u64 = 3;

/// A terminal with a shell.
struct Terminal<'t> {
    tmux: &'t Path,
    /// By which no other tmux is reached.
    socket: PathBuf,
    /// Where screens are written.
    pictures: Option<PathBuf>,
    spent: Spent,
    begun: Instant,
    _server: Process,
}

impl<'t> Terminal<'t> {
    fn start(tmux: &'t Path, program: &'t Path, stand: &Stand, has_colors: bool) -> Self {
        let folder = folder();
        std::os::unix::fs::symlink(program, folder.path().join("tidegate")).unwrap();
        let socket = folder.path().join("socket");
        // In the foreground, so that it ends with this.
        let mut server = tmux_at(tmux, &socket);
        server.arg("-D").env_remove("NO_COLOR");
        server.env("TIDEGATE_SERVER", stand.page("")).env("TIDEGATE_TOKEN", OPERATORS_TOKEN);
        if !has_colors {
            server.env("NO_COLOR", "1");
        }
        let server = Process::start(server, folder);
        within("tmux listens", || socket.exists());
        let (spent, begun) = (Spent::default(), Instant::now());
        let terminal = Self { tmux, socket, pictures: None, spent, begun, _server: server };
        terminal.ask(&["set-option", "-g", "default-terminal", "xterm-256color"]);
        terminal.ask(&["set-option", "-g", "status", "off"]);
        terminal.ask(&["new-session", "-d", "-s", "t", "-x", "80", "-y", "24", "sh"]);
        let size = terminal.ask(&["display-message", "-p", "-t", "t", "#{pane_width}×#{pane_height}"]);
        assert_eq!(size.trim(), "80×24");
        terminal
    }

    fn ask(&self, words: &[&str]) -> String {
        let answer = tmux_at(self.tmux, &self.socket).args(words).output().unwrap();
        assert!(answer.status.success(), "tmux {words:?}: {}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }

    /// Begins a task with a command in a new shell.
    fn begin(&mut self, command: &str) {
        (self.spent, self.begun) = (Spent::default(), Instant::now());
        self.run(command);
    }

    /// Types a further command.
    fn command(&mut self, command: &str) {
        self.count_step();
        self.run(command);
    }

    fn run(&self, command: &str) {
        self.ask(&["respawn-pane", "-k", "-t", "t", "sh"]);
        within("a shell that reads", || !self.screen().trim().is_empty());
        self.ask(&["send-keys", "-t", "t", "-l", command]);
        self.ask(&["send-keys", "-t", "t", "Enter"]);
    }

    fn press(&mut self, key: &str) {
        self.count_step();
        self.ask(&["send-keys", "-t", "t", key]);
    }

    fn count_step(&mut self) {
        self.spent.loads += 1;
        self.spent.groups += 1;
    }

    /// Returns what is on the screen. What the terminal has wrapped is one line.
    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p", "-J", "-t", "t"])
    }

    /// Waits for an answer. Returns the screen, also if there is none, and what it took.
    fn until(&self, name: &str, is_there: impl Fn(&str) -> bool) -> (String, Spent) {
        let begun = Instant::now();
        let mut screen = self.screen();
        while !is_there(&screen) && begun.elapsed() < PATIENCE {
            std::thread::park_timeout(LOOK);
            screen = self.screen();
        }
        let spent = Spent { took: self.begun.elapsed(), ..self.spent };
        if let Some(folder) = self.pictures.as_ref().filter(|_| !name.is_empty()) {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(format!("terminal-{name}.txt")), &screen).unwrap();
        }
        (screen, spent)
    }
}

/// A command of tmux, which gives its path to the shell.
fn tmux_at(tmux: &Path, socket: &Path) -> Command {
    let folder = socket.parent().expect("it is in a folder").display();
    let mut command = Command::new(tmux);
    command.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap_or_default()));
    command.args(["-u", "-f", "/dev/null", "-S"]).arg(socket);
    command
}

/// Does the tasks that only read. `pictures`: where screens are written.
pub(crate) fn read_all(
    tmux: &Path,
    program: &Path,
    stand: &Stand,
    traffic: &Traffic,
    pictures: Option<&Path>,
) -> Rows {
    let mut rows = Rows::default();
    for has_colors in [true, false] {
        let how = if has_colors { "" } else { ", NO_COLOR" };
        let mut terminal = Terminal::start(tmux, program, stand, has_colors);
        terminal.pictures = pictures.filter(|_| has_colors).map(Path::to_owned);
        now(&mut terminal, traffic, &mut rows, how);
        let colored = terminal.ask(&["capture-pane", "-p", "-e", "-t", "t"]);
        let is_colored = COLORS.iter().any(|color| colored.contains(color));
        let measured = if is_colored { "colours" } else { "none" };
        rows.add(
            &format!("colours{how}"),
            if has_colors { "colours" } else { "none" },
            measured.to_owned(),
            is_colored == has_colors,
        );
        stat(&mut terminal, traffic, &mut rows, how);
        why(&mut terminal, traffic, &mut rows, how);
        changed(&mut terminal, traffic, &mut rows, how);
        bank(&mut terminal, traffic, &mut rows, how);
    }
    rows
}

fn now(terminal: &mut Terminal<'_>, traffic: &Traffic, rows: &mut Rows, how: &str) {
    const LEVELS: [&str; 4] = ["▲ UNUSUAL  ", "■ TROUBLE  ", "● USUAL  ", "? UNKNOWN  "];
    terminal.begin("tidegate top --reveal");
    let (screen, spent) = terminal.until("now", |screen| screen.contains("requests/s"));
    let truth = traffic.refused_percent();
    let rates = screen.lines().find(|line| line.starts_with("requests/s")).unwrap_or_default();
    let shown = rates.split_once("refused ").and_then(|(_, refused)| number(refused.split_once('(')?.1));
    let verdict = screen.lines().find(|line| LEVELS.iter().any(|level| line.starts_with(level)));
    let is_right = verdict.is_some() && is_near(shown, truth);
    let verdict = verdict.unwrap_or("no verdict").trim();
    let answer = format!("{} % shown, {truth:.1} % true; {verdict}", shown.unwrap_or(f64::NAN));
    rows.task(&format!("1 refused, usual{how}"), AT_ONCE, spent, &answer, is_right);

    let RefusedKey { policy, key } = traffic.most_refused(Duration::from_secs(300));
    let is_row = |line: &&str| line.trim_start_matches(['>', ' ']).split(' ').next() == Some(&policy);
    let row = spaced(screen.lines().find(is_row).unwrap_or("no such row"));
    let is_headed = screen.lines().any(|line| line.trim_end().ends_with("REFUSED MOST"));
    rows.task(&format!("2 who{how}"), AT_ONCE, spent, &row, row.ends_with(&key) && is_headed);

    let first = screen.lines().next().unwrap_or_default();
    let deciding = screen.lines().find(|line| line.starts_with("deciding")).unwrap_or_default();
    let p99 = deciding.split_once("p99 ").and_then(|(_, p99)| number(p99));
    let store = first.rfind("store").map_or("no store", |at| first[at..].trim_end());
    let is_right = p99.is_some_and(|p99| p99 > 0.0) && store == "store disk ok";
    rows.task(
        &format!("4 p99, store{how}"),
        AT_ONCE,
        spent,
        &format!("{}; {store}", spaced(deciding)),
        is_right,
    );
}

fn stat(terminal: &mut Terminal<'_>, traffic: &Traffic, rows: &mut Rows, how: &str) {
    terminal.begin("tidegate stat -n 1");
    let (screen, spent) = terminal.until("stat", |screen| screen.contains("µs"));
    let truth = traffic.refused_percent();
    let line = screen.lines().skip_while(|line| !line.starts_with("TIME")).nth(1).unwrap_or_default();
    let cells: Vec<&str> = line.split_whitespace().collect();
    let word = cells.last().copied().unwrap_or_default();
    let is_right = is_near(cells.get(4).and_then(|share| number(share)), truth)
        && ["usual", "unusual", "unknown", "trouble"].contains(&word);
    rows.task(
        &format!("1 refused, usual, tidegate stat{how}"),
        AT_ONCE,
        spent,
        &format!("{}; {truth:.1} % true", spaced(line)),
        is_right,
    );
}

fn is_near(shown: Option<f64>, truth: f64) -> bool {
    shown.is_some_and(|shown| (shown - truth).abs() <= POINTS)
}

fn why(terminal: &mut Terminal<'_>, traffic: &Traffic, rows: &mut Rows, how: &str) {
    const MOST: Most = Most { steps: 2, seconds: 15 };
    let refusal = traffic.recorded_refusal();
    terminal.begin("tidegate top --reveal");
    terminal.command(&format!("tidegate why {}", refusal.id));
    let (screen, spent) = terminal.until("why", |screen| screen.contains("asked: "));
    let verdict = verdict_then(&screen).unwrap_or("no verdict");
    rows.task(&format!("3 why, tidegate why{how}"), MOST, spent, verdict, explains(&screen, &refusal));

    terminal.begin("tidegate top --reveal");
    // The first answer, then the first refusal that was told.
    terminal.until("", |screen| screen.contains("requests/s"));
    let told = Instant::now();
    loop {
        terminal.spent = Spent::default();
        terminal.press("y");
        let (screen, _) =
            terminal.until("", |screen| screen.contains("Why: ") || screen.contains("no refusal"));
        if screen.contains("Why: ") || told.elapsed() > PATIENCE {
            break;
        }
    }
    let (screen, spent) = terminal.until("why-in-top", |screen| screen.contains("DENIED"));
    let refusals = traffic.refusals();
    let refusal = refusals.iter().rfind(|refusal| screen.contains(&refusal.id));
    let is_right = refusal.is_some_and(|refusal| explains(&screen, refusal));
    let verdict = verdict_then(&screen).unwrap_or("no verdict");
    rows.task(&format!("3 why of the last refusal{how}"), MOST, spent, verdict, is_right);
}

fn changed(terminal: &mut Terminal<'_>, traffic: &Traffic, rows: &mut Rows, how: &str) {
    terminal.begin("tidegate top");
    terminal.until("", |screen| screen.contains("requests/s"));
    terminal.press("4");
    let (screen, spent) = terminal.until("changes", |screen| screen.contains("> 20"));
    let row = screen.lines().find(|line| line.starts_with("> ")).unwrap_or_default();
    let who = row.split_whitespace().nth(4).unwrap_or("nobody");
    let marked = marked(&screen);
    let is_early = traffic.now() < EFFECT_AFTER && marked.contains("too early to say");
    let is_right = who == OPERATOR
        && ["gcra 20/s burst 40", "gcra 10/s burst 20"].iter().all(|limit| marked.contains(limit))
        && (is_early || marked.contains("refused"));
    let answer = format!("by {who}: {marked}");
    rows.task(&format!("5 changed{how}"), Most { steps: 1, seconds: 15 }, spent, &answer, is_right);
}

fn bank(terminal: &mut Terminal<'_>, traffic: &Traffic, rows: &mut Rows, how: &str) {
    const MOST: Most = Most { steps: 1, seconds: 15 };
    terminal.begin("tidegate top");
    terminal.until("", |screen| screen.contains("requests/s"));
    terminal.press("3");
    let (screen, spent) =
        terminal.until("guards", |screen| screen.contains("> bank") && screen.contains("■ open"));
    let (times, since) = traffic.openings();
    let row = screen.lines().find(|line| line.starts_with("> bank")).unwrap_or_default();
    let marked = marked(&screen);
    let is_right = row.contains("■ open") && marked.contains("failed");
    rows.task(
        &format!("7 why bank refuses{how}"),
        MOST,
        spent,
        &format!("{}: {marked}", spaced(row)),
        is_right,
    );

    let at = row.split_whitespace().find_map(seconds_of_day);
    let is_then = at.zip(since).is_some_and(|(at, since)| since.abs_diff(at) <= SECONDS);
    let is_right = is_then && marked.contains(&format!("opened {times} times since the start"));
    let answer = format!("{marked}; {times} times by the answers");
    rows.task(&format!("7 trips of bank, since when{how}"), MOST, spent, &answer, is_right);
}

/// Returns the lines about the marked row, as one.
fn marked(screen: &str) -> String {
    let below = screen.lines().skip_while(|line| !line.starts_with("── ")).skip(1);
    let lines: Vec<&str> =
        below.map(str::trim).take_while(|line| !line.is_empty() && !line.starts_with('●')).collect();
    lines.join(" ")
}

/// Returns the words of a row with a blank between them.
fn spaced(row: &str) -> String {
    row.split_whitespace().filter(|word| *word != ">").collect::<Vec<_>>().join(" ")
}

/// Reads `02:14:08`.
fn seconds_of_day(time: &str) -> Option<u64> {
    let parts: Vec<u64> = time.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hours, minutes, seconds] = parts[..] else { return None };
    Some(hours * 3_600 + minutes * 60 + seconds)
}
