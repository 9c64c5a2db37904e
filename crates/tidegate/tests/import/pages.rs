//! The examples in the migration pages are what the conversion produces.

use tidegate::config::{Imported, Peer};

#[test]
fn the_pages_show_what_is_written() {
    for (peer, file, page) in [
        (Peer::Envoy, "ratelimit.yaml", include_str!("../../../../docs/migration/envoyproxy-ratelimit.md")),
        (Peer::Limitador, "limits.yaml", include_str!("../../../../docs/migration/limitador.md")),
    ] {
        let mut blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let (theirs, ours) = (blocks.next().unwrap(), blocks.next().unwrap());
        let text = Imported::of(&[(peer, file, theirs)]).unwrap().text;
        assert_eq!(text.strip_prefix(&format!("# Converted from {file}.\n")), Some(ours));
    }
}
