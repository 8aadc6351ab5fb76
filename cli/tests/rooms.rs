//! Who may use whom: the table "Rooms" of docs/ARCHITECTURE.md against the manifests, and the order of
//! the engine's modules against what they import.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

type Names = BTreeSet<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What a cell names: `mm` `sys` is two names.
fn names_in(cell: &str) -> Names {
    let mut names = Names::new();
    for (i, word) in cell.split('`').enumerate() {
        if i % 2 == 1 {
            names.insert(word.to_owned());
        }
    }
    names
}

/// The rooms in the table's order, each with those that it may use.
fn table() -> Vec<(String, Names)> {
    let text = read(&root().join("docs/ARCHITECTURE.md"));
    let section = text.split("\n## Rooms\n").nth(1).expect("a section Rooms");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|l| l.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" |").collect();
        let room = names_in(cells[0]).pop_first().expect("a room's name");
        (room, names_in(cells.last().unwrap()))
    })
    .collect()
}

/// The lines of a manifest between `begins` and the next table.
fn lines_of<'a>(manifest: &'a str, begins: &'a str) -> impl Iterator<Item = &'a str> {
    let from = manifest.lines().skip_while(move |l| *l != begins).skip(1);
    from.take_while(|l| !l.starts_with('['))
}

/// The rooms that a room's manifest names. What a build or a target needs would have to be added here.
fn used_by(room: &str) -> Names {
    let manifest = read(&root().join(room).join("Cargo.toml"));
    let paths =
        lines_of(&manifest, "[dependencies]").filter_map(|l| l.split("path = \"../").nth(1));
    paths
        .map(|p| p.split('"').next().unwrap().to_owned())
        .collect()
}

#[test]
fn rooms_use_only_what_the_table_says() {
    let table = table();
    for (room, allowed) in &table {
        assert_eq!(&used_by(room), allowed, "{room}: the manifest, the table");
    }
}

#[test]
fn rooms_use_only_rooms_above_them() {
    let mut above = Names::new();
    for (room, uses) in table() {
        let below: Vec<_> = uses.difference(&above).collect();
        assert!(below.is_empty(), "{room} uses {below:?}");
        assert!(above.insert(room.clone()), "{room} is there twice");
    }
}

#[test]
fn every_crate_is_a_room() {
    let manifest = read(&root().join("Cargo.toml"));
    let members: Names = lines_of(&manifest, "members = [")
        .take_while(|l| *l != "]")
        .map(|l| l.trim().trim_matches(['"', ',']).to_owned())
        .collect();
    let rooms: Names = table().into_iter().map(|(room, _)| room).collect();
    assert_eq!(members, rooms);
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The modules of the engine, of its own and of rooms, in the order of its `lib.rs`.
fn modules() -> Vec<String> {
    let text = read(&root().join("engine/src/lib.rs"));
    let name = |line: &str| {
        let line = line.strip_prefix("pub ")?.trim_end_matches([';', '{', ' ']);
        Some(line.rsplit([' ', ':']).next()?.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// The words that follow `crate::`, also in braces.
fn imported(text: &str) -> Names {
    let mut names = Names::new();
    for after in text.split("crate::").skip(1) {
        let inner = after
            .strip_prefix('{')
            .map(|a| a.split('}').next().unwrap());
        for part in inner.unwrap_or(after).split(", ") {
            let end = part.find(|c: char| c != '_' && !c.is_alphanumeric());
            names.insert(part[..end.unwrap_or(part.len())].to_owned());
            if inner.is_none() {
                break;
            }
        }
    }
    names
}

#[test]
fn the_engines_modules_import_only_from_those_above() {
    let modules = modules();
    let rank = |name: &str| modules.iter().position(|m| m == name);
    let src = root().join("engine/src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        let within = file.strip_prefix(&src).unwrap();
        let first = within.iter().next().unwrap().to_str().unwrap();
        let Some(own) = rank(first.trim_end_matches(".rs")) else {
            assert_eq!(first, "lib.rs", "{} is in no module", file.display());
            continue;
        };
        for name in imported(&read(&file)) {
            let used = rank(&name).unwrap_or_else(|| panic!("{}: {name}?", file.display()));
            assert!(used <= own, "{} imports from {name}", file.display());
        }
    }
}
