//! Finds code and links in Markdown.

/// Lists the code of a page with line numbers: each line of a fenced block, each code span.
pub(crate) fn code(text: &str) -> Vec<(usize, &str)> {
    let (mut pieces, mut fenced) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced && !fence {
            pieces.push((index + 1, line));
        } else if !fence {
            pieces.extend(line.split('`').skip(1).step_by(2).map(|span| (index + 1, span)));
        }
    }
    pieces
}

/// Lists the targets of a page's links and pictures, without fragments.
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next());
    let sources = ["src=\"", "href=\"", "srcset=\""];
    let tags = sources
        .into_iter()
        .flat_map(|source| text.split(source).skip(1))
        .filter_map(|rest| rest.split('"').next());
    links.chain(tags).filter_map(|target| target.split('#').next()).filter(|target| !target.is_empty())
}

pub(crate) fn words<'t>(text: &'t str, signs: &'static [char]) -> impl Iterator<Item = &'t str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && !signs.contains(&letter))
        .filter(|word| !word.is_empty())
}

/// Returns whether a file is a page for users: in the manual, the README or the examples' page.
pub(crate) fn is_page(path: &str) -> bool {
    let ours = path.starts_with("docs/") || path.starts_with("examples/") || path.contains("/src/docs/");
    path == "README.md" || ours && path.ends_with(".md")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "See `one` and `two`.\n\n```console\n$ three\n```\n[four](five.md#six) ![](seven.svg)\n<img src=\"eight.svg\">";

    #[test]
    fn code_is_told_from_prose_with_its_lines() {
        assert_eq!(code(PAGE), [(1, "one"), (1, "two"), (4, "$ three")]);
    }

    #[test]
    fn links_lose_the_place_on_the_page() {
        assert_eq!(links(PAGE).collect::<Vec<_>>(), ["five.md", "seven.svg", "eight.svg"]);
    }

    #[test]
    fn pages_are_what_users_read() {
        assert!(is_page("README.md") && is_page("docs/a.md") && is_page("crates/a/src/docs/b.md"));
        assert!(
            !is_page("CONTRIBUTING.md") && !is_page("docs/images/a.svg") && !is_page("benches/README.md")
        );
    }
}
