//! The live view of a running server on a terminal.
//!
//! A thread asks the server; this one reads keys and draws. The terminal is given back on every way out: a key, a signal,
//! an error, a panic.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind};
use ratatui::crossterm::style::force_color_output;
use serde_json::Value;
use tidegate::clock::{Clock as _, SystemClock};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::draw::draw;
use super::state::{Effect, Live, Want};
use crate::args::Top;
use crate::exit::Exit;
use crate::online::{self, Event, RefusedByServer, ServerUrl};
use crate::output::Printer;

/// The time between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// How long to wait for a key before what has come is drawn.
const TURN: Duration = Duration::from_millis(100);
/// The time until events are listened to again.
const AGAIN: Duration = Duration::from_secs(5);
/// How many answers and events wait to be drawn. Further ones are left out: the next second has new ones.
const WAITING: usize = 64;
/// How long the screen may take to end after a signal.
const LAST: Duration = Duration::from_secs(1);
/// So many answers in a row that nobody takes mean that nobody will: half a minute of them.
const UNTAKEN: usize = 30;

/// What the asking thread tells.
enum Told {
    Answer(Want, Result<Value>),
    Event(Event),
    /// A signal asks the program to end.
    Quit,
}

/// Shows the view until a key or a signal ends it.
///
/// # Errors
/// A server that does not answer, or refuses to.
pub(super) fn run(top: &Top, server: ServerUrl, printer: &Printer) -> Result<Exit> {
    let clock = SystemClock::new();
    let began = clock.now();
    let mut live = Live::new(top, server.to_string(), printer.shows_colors());
    let (ask, wants) = watch::channel(live.wants());
    let (tell, told) = sync_channel(WAITING);
    start(server, wants, tell)?;
    // A server that does not answer at all is an error below the command, and not on a screen that is gone at once.
    loop {
        match told.recv() {
            Ok(Told::Answer(want, answer)) => {
                live.now = clock.now().since(began);
                live.take(&want, answer).map_err(with_hint)?;
                if live.told_at.is_some() {
                    break;
                }
                ask.send_replace(live.wants());
            }
            Ok(Told::Event(event)) => live.hear(&event),
            Ok(Told::Quit) => return Ok(Exit::Done),
            Err(_) => bail!("the thread that asks {} has ended", live.server),
        }
    }
    let mut screen = Screen::open(live.has_colors).context("the terminal cannot show a live view")?;
    loop {
        live.now = clock.now().since(began);
        screen.0.draw(|frame| {
            let area = frame.area();
            draw(&live, area, frame.buffer_mut());
        })?;
        if event::poll(TURN)?
            && let Input::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match live.press(key) {
                Effect::None => {}
                Effect::Quit => return Ok(Exit::Done),
                Effect::Suspend => screen.suspend()?,
            }
        }
        live.now = clock.now().since(began);
        if !hear_all(&mut live, &told)? {
            return Ok(Exit::Done);
        }
        ask.send_if_modified(|wants| {
            let wanted = live.wants();
            let is_new = *wants != wanted;
            *wants = wanted;
            is_new
        });
    }
}

/// A server may keep nothing of what it sees.
fn with_hint(error: anyhow::Error) -> anyhow::Error {
    let status = error.downcast_ref::<RefusedByServer>().map(|refused| &refused.problem["status"]);
    if status.is_some_and(|status| status == 404) {
        return error.context("there is no live view; `tidegate top --plain` lists the keys refused most");
    }
    error
}

/// Takes all that has come. Returns false if the program is to end.
fn hear_all(live: &mut Live, told: &Receiver<Told>) -> Result<bool> {
    loop {
        match told.try_recv() {
            Ok(Told::Answer(want, answer)) => live.take(&want, answer)?,
            Ok(Told::Event(event)) => live.hear(&event),
            Ok(Told::Quit) => return Ok(false),
            Err(TryRecvError::Empty) => return Ok(true),
            Err(TryRecvError::Disconnected) => bail!("the thread that asks {} has ended", live.server),
        }
    }
}

/// The terminal, in raw mode and on its other page. Dropping it gives the terminal back; a panic does so before it is
/// reported.
struct Screen(DefaultTerminal);

impl Screen {
    fn open(has_colors: bool) -> io::Result<Self> {
        // The variable NO_COLOR is weaker than the option.
        force_color_output(has_colors);
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }

    /// Stops the program as Ctrl-Z does elsewhere, and goes on when the shell continues it.
    #[cfg(unix)]
    fn suspend(&mut self) -> Result<()> {
        use ratatui::crossterm::execute;
        use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
        use rustix::process::{Signal, getpid, kill_process};

        self.0.show_cursor()?;
        ratatui::restore();
        let stopped = kill_process(getpid(), Signal::TSTP);
        stopped.map_err(|error| io::Error::from_raw_os_error(error.raw_os_error()))?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        self.0.clear()?;
        Ok(())
    }

    #[cfg(not(unix))]
    fn suspend(&mut self) -> Result<()> {
        self.0.clear()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Starts the thread that asks. It ends by itself when nobody wants anything any more.
fn start(server: ServerUrl, wants: watch::Receiver<Vec<Want>>, tell: SyncSender<Told>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asks = move || {
        runtime.block_on(async {
            tokio::select! {
                () = poll(&server, wants, &tell) => {}
                () = listen(&server, &tell) => {}
                () = signal() => {
                    // A screen that does not read has no use for it.
                    let _ = tell.try_send(Told::Quit);
                    sleep(LAST).await;
                    leave(0);
                }
            }
        });
    };
    std::thread::Builder::new().name("top-asks".to_owned()).spawn(asks)?;
    Ok(())
}

/// Ends the program although its screen does not: reading the keys of a terminal that is gone never returns, and takes a core
/// (crossterm 0.29).
#[allow(clippy::disallowed_methods, reason = "the thread of the screen cannot be ended")]
fn leave(code: i32) -> ! {
    std::process::exit(code)
}

/// Asks each second for all that is wanted, and at once when something else is.
async fn poll(server: &ServerUrl, mut wants: watch::Receiver<Vec<Want>>, tell: &SyncSender<Told>) {
    let mut turns = interval(EVERY);
    // A late answer does not bring the next one forward.
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut untaken = 0;
    loop {
        tokio::select! {
            _ = turns.tick() => {}
            changed = wants.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        let wanted = wants.borrow_and_update().clone();
        for want in wanted {
            let answer = online::get(server, &want.path).await;
            match tell.try_send(Told::Answer(want, answer)) {
                Ok(()) => untaken = 0,
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(_)) if untaken < UNTAKEN => untaken += 1,
                // As after a signal, which not every terminal sends when it goes.
                Err(TrySendError::Full(_)) => leave(1),
            }
        }
    }
}

/// Tells refusals as they happen, for their ids. Without them the view lacks only the answer why.
async fn listen(server: &ServerUrl, tell: &SyncSender<Told>) {
    loop {
        if let Ok(mut stream) = online::listen(server, "/v1/events").await {
            while let Ok(Some(event)) = stream.next().await {
                let told = if event.name == "denied" { tell.try_send(Told::Event(event)) } else { Ok(()) };
                if let Err(TrySendError::Disconnected(_)) = told {
                    return;
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Waits for a signal to end. In raw mode Ctrl-C is a key, but another program may send it.
#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};

    let waits = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = waits else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

#[cfg(not(unix))]
async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
