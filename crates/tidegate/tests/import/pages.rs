//! The examples of conversions on the page about migrating are what the conversion produces.

use tidegate::config::{Imported, Peer};

const PAGE: &str = include_str!("../../../../docs/migrate.md");

#[test]
fn the_page_shows_what_is_written() {
    for (peer, file, heading) in [
        (Peer::Envoy, "ratelimit.yaml", "## From envoyproxy/ratelimit\n"),
        (Peer::Limitador, "limits.yaml", "## From Limitador\n"),
    ] {
        let (_, section) = PAGE.split_once(heading).unwrap();
        let mut blocks = section.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let (theirs, ours) = (blocks.next().unwrap(), blocks.next().unwrap());
        let text = Imported::of(&[(peer, file, theirs)]).unwrap().text;
        assert_eq!(text.strip_prefix(&format!("# Converted from {file}.\n")), Some(ours));
    }
}
