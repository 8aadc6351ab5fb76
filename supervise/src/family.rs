//! Who has started whom, by `/proc`.

use std::collections::BTreeSet;
use std::fs;

/// These processes, their children, and so on.
pub fn descendants(of: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    let mut open: Vec<u32> = of.into_iter().collect();
    let mut found = BTreeSet::new();
    while let Some(pid) = open.pop() {
        if pid != 0 && found.insert(pid) {
            children(pid, &mut open);
        }
    }
    found
}

pub fn children(pid: u32, into: &mut Vec<u32>) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        into.extend(
            text.split_ascii_whitespace()
                .filter_map(|w| w.parse::<u32>().ok()),
        );
    }
}
