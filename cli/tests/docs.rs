//! What the pages of the documentation name is there.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// What stands in `](…)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    ends.filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link)
}

/// As the usual renderers name a heading's anchor.
fn anchors(text: &str) -> Vec<String> {
    let heads = text.lines().filter(|l| l.starts_with('#'));
    let heads = heads.map(|l| l.trim_start_matches('#').trim().to_lowercase());
    heads
        .map(|head| {
            let kept = head
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut found = Vec::new();
    pages(&root(), &mut found);
    assert!(found.len() > 20);
    for page in found {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text).filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            assert!(to.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let there = anchors(&fs::read_to_string(&to).unwrap());
                assert!(
                    there.iter().any(|a| a == anchor),
                    "{}: {link}",
                    page.display()
                );
            }
        }
    }
}

/// Files of the sources that stand in backquotes, as in `cli/tests/docs.rs`.
#[test]
fn files_that_pages_name_exist() {
    let rooms: Vec<String> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    let mut found = Vec::new();
    pages(&root(), &mut found);
    let history = root().join("docs/history");
    for page in found.iter().filter(|page| !page.starts_with(&history)) {
        let text = fs::read_to_string(page).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let Some((room, rest)) = name.split_once('/') else {
                continue;
            };
            let is_path = rest.contains('/') && !rest.contains([' ', '*', '<', '$', '\n']);
            if is_path && rooms.iter().any(|r| r == room) {
                let path = root().join(name);
                assert!(
                    path.exists() || path.with_extension("rs").exists(),
                    "{}: {name}",
                    page.display()
                );
            }
        }
    }
}
