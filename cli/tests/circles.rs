//! No file of a room imports one that, over others, imports it again. A file may name what its own folder's
//! `mod.rs` has: the folder is one thing, told in parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn rooms() -> Vec<PathBuf> {
    let entries = fs::read_dir(root()).unwrap();
    let rooms = entries.map(|entry| entry.unwrap().path());
    let mut rooms: Vec<_> = rooms
        .filter(|path| path.join("Cargo.toml").exists())
        .collect();
    rooms.sort();
    rooms
}

/// The modules that are files, each with its text up to its tests.
fn files(src: &Path, within: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = within.to_vec();
        if path.is_dir() {
            module.push(name);
            files(&path, &module, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            if !["lib", "main", "mod"].contains(&name.as_str()) {
                module.push(name);
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("\n#[cfg(test)]\n").next().unwrap();
            let code = code.lines().filter(|l| !l.trim_start().starts_with("//"));
            found.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// `a::{b, c::{d, e}}` is `a::b`, `a::c::d` and `a::c::e`.
fn spread(path: &str) -> Vec<String> {
    let path = path.trim();
    let Some((before, inner)) = path.split_once('{') else {
        return vec![path.split(" as ").next().unwrap().trim().to_owned()];
    };
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let mut depth = 0;
    let parts = inner.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    parts
        .flat_map(|part| spread(&format!("{before}{part}")))
        .collect()
}

/// The paths of a file's `use` lines.
fn used(text: &str) -> Vec<String> {
    let statements = text.split("\n").enumerate().filter_map(|(number, line)| {
        let line = line.trim_start();
        let line = line
            .strip_prefix("pub(super) ")
            .or(line.strip_prefix("pub "))
            .unwrap_or(line);
        line.starts_with("use ").then_some(number)
    });
    let lines: Vec<&str> = text.split('\n').collect();
    let whole = statements.map(|from| {
        let text = lines[from..].join(" ");
        let text = text.split(';').next().unwrap().to_owned();
        text.split_once("use ").unwrap().1.to_owned()
    });
    let mut paths: Vec<String> = whole.flat_map(|path| spread(&path)).collect();
    paths.extend(named_in_code(text));
    paths
}

/// The paths that begin at the crate or above, wherever they stand.
fn named_in_code(text: &str) -> Vec<String> {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !part(c));
    words
        .filter(|w| w.starts_with("super::") || w.starts_with("crate::"))
        .map(|w| w.trim_end_matches(':').to_owned())
        .collect()
}

/// The file that a path leads to, from a module.
fn target(module: &Module, path: &str, files: &BTreeMap<Module, String>) -> Option<Module> {
    let mut names: Vec<&str> = path.split("::").collect();
    let mut at = module.clone();
    match names[0] {
        "crate" => at = Module::new(),
        "super" | "self" => {}
        child => {
            at.push(child.to_owned());
            files.get(&at)?;
            at.pop();
            names.insert(0, "self");
        }
    }
    for name in names {
        match name {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            name => {
                at.push(name.to_owned());
                if !files.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    Some(at)
}

fn imports(files: &BTreeMap<Module, String>) -> Imports {
    let of = |(module, text): (&Module, &String)| {
        let targets = used(text).into_iter();
        let targets = targets.filter_map(|path| target(module, &path, files));
        let others = targets.filter(|to| !module.starts_with(to));
        (module.clone(), others.collect())
    };
    files.iter().map(of).collect()
}

/// A way from `from` back to it.
fn circle(from: &Module, imports: &Imports) -> Option<Vec<Module>> {
    let mut came_from: BTreeMap<Module, Module> = BTreeMap::new();
    let mut open = vec![from.clone()];
    while let Some(at) = open.pop() {
        for next in imports.get(&at).into_iter().flatten() {
            if next == from {
                let mut way = vec![from.clone(), at.clone()];
                let mut back = &at;
                while let Some(before) = came_from.get(back) {
                    way.push(before.clone());
                    back = before;
                }
                way.reverse();
                return Some(way);
            }
            if !came_from.contains_key(next) {
                came_from.insert(next.clone(), at.clone());
                open.push(next.clone());
            }
        }
    }
    None
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    for room in rooms() {
        let mut found = BTreeMap::new();
        files(&room.join("src"), &[], &mut found);
        let imports = imports(&found);
        for module in found.keys() {
            if let Some(way) = circle(module, &imports) {
                let way: Vec<String> = way.iter().map(|m| m.join("::")).collect();
                panic!("{}: {}", room.display(), way.join(" -> "));
            }
        }
    }
}

#[test]
fn a_circle_is_found() {
    let module = |name: &str| vec![name.to_owned()];
    let files = BTreeMap::from([
        (module("a"), "use crate::{b::One, c};".to_owned()),
        (module("b"), "use super::c::{\n    Two,\n};".to_owned()),
        (module("c"), "pub use super::a::Three;".to_owned()),
        (module("d"), "use super::a;".to_owned()),
        (module("e"), "fn e() { super::f::g(); }".to_owned()),
        (module("f"), "fn f() -> crate::e::E {}".to_owned()),
    ]);
    let imports = imports(&files);
    assert!(circle(&module("a"), &imports).is_some());
    assert_eq!(circle(&module("d"), &imports), None);
    assert!(circle(&module("e"), &imports).is_some());
}
