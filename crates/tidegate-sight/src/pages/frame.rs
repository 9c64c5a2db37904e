//! The frame around all pages: the navigation, the state of the server, and what the script needs.
//!
//! A page returns the contents of `main`, beginning with its `h1`; the router puts the frame around it.

use maud::{DOCTYPE, Markup, html};

use super::context::{Context, Head};
use super::words::{Mark, cut, mark, moment, url};

/// The pages in the navigation: path, word, and the key behind `g`.
pub(crate) const PAGES: [(&str, &str, &str); 7] = [
    ("/ui/", "Now", "n"),
    ("/ui/policies", "Policies", "p"),
    ("/ui/keys", "Keys", "k"),
    ("/ui/why", "Why", "w"),
    ("/ui/guards", "Guards", "u"),
    ("/ui/alerts", "Alerts", "a"),
    ("/ui/changes", "Changes", "c"),
];

/// How a page is framed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    /// The path in the navigation that the page belongs to.
    pub(crate) section: &'a str,
    /// Whether the page reads itself again every ten seconds where scripts are off.
    pub(crate) renews: bool,
    /// `dark` or `light`; `None`: as the system says.
    pub(crate) theme: Option<&'a str>,
    /// Whether the navigation is shown: not before a login.
    pub(crate) navigates: bool,
}

impl Context<'_> {
    /// Puts the frame around the contents of `main`.
    pub(crate) fn page(&self, frame: Frame<'_>, main: &Markup) -> String {
        let shown = self.head.lock().clone();
        let markup = html! {
            (DOCTYPE)
            html lang="en" data-theme=[frame.theme] {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    meta name="color-scheme" content="light dark";
                    title { (frame.title) " · tidegate" }
                    link rel="stylesheet" href="/ui/ui.css";
                    @if frame.navigates { script type="module" src="/ui/live.js" {} }
                    @if frame.renews { noscript { meta http-equiv="refresh" content="10"; } }
                }
                body {
                    a class="skip" href="#main" { "Skip to the contents" }
                    header {
                        a class="brand" href="/ui/" { "tidegate" }
                        @if frame.navigates {
                            nav aria-label="Pages" { ul {
                                @for (path, word, key) in PAGES {
                                    li { a href=(path) data-key=(key) aria-current=[(path == frame.section).then_some("page")] { (word) } }
                                }
                            } }
                        }
                        (self.header(frame, shown.as_ref()))
                    }
                    main id="main" tabindex="-1" { (main) }
                    @if frame.navigates {
                        footer tabindex="-1" {
                            p class="quiet" { "Times are UTC. Keys: " kbd { "g" } " then "
                                @for (at, (_, word, key)) in PAGES.iter().enumerate() {
                                    @if at > 0 { ", " } kbd { (key) } " " (word)
                                }
                                "; " kbd { "/" } " search; " kbd { "?" } " this line." }
                        }
                    }
                }
            }
        };
        markup.into_string()
    }

    fn header(&self, frame: Frame<'_>, shown: Option<&Head>) -> Markup {
        let other = if frame.theme == Some("dark") { "light" } else { "dark" };
        html! {
            ul class="state" {
                @if let Some(Head { configuration, store, away }) = shown {
                    @if let Some(number) = configuration { li { a href="/ui/changes" { "config #" (number) } } }
                    li data-live="store" {
                        @match away {
                            None => { (mark(Mark::Usual)) " store " (cut(store, 40)) " ok" },
                            Some(why) => strong class="bad" title=(cut(why, 500)) {
                                (mark(Mark::Trouble)) " store " (cut(store, 40)) " away"
                            },
                        }
                    }
                }
                @if frame.navigates {
                    li id="fresh" class="quiet" { "as of " (moment(self.now, self.now)) }
                    @if self.caller.token.is_some() {
                        li {
                            form method="post" action="/ui/logout" class="inline" {
                                (self.form_field())
                                @if self.caller.name.is_empty() { "logged in " } @else { (cut(self.caller.name, 64)) " " }
                                button { "Log out" }
                            }
                        }
                    } @else { li { "no login needed" } }
                }
                li { a href=(with_theme(self.path, self.query, other)) rel="nofollow" { (other) " theme" } }
            }
        }
    }
}

fn with_theme(path: &str, query: &[(String, String)], theme: &str) -> String {
    let kept = without_theme(path, query);
    let sign = if kept.contains('?') { '&' } else { '?' };
    format!("{kept}{sign}theme={theme}")
}

/// The URL of a page without what chooses its colours.
pub(crate) fn without_theme(path: &str, query: &[(String, String)]) -> String {
    url(path, query.iter().filter(|(name, _)| name != "theme"))
}
