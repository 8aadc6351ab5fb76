//! Programs that have not registered yet, and whose parents have ended.
//!
//! Between exec and the moment in which it registers a program is known to nobody but its parent. If that was
//! the last process of the run the supervisor would end too soon, and the program would find nobody. The
//! kernel has given it to an ancestor of ours, and it has the run's address in its environment.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use hugeswap_control::link::{Door, ENV};

use super::family::children;

/// What such a program has in its environment.
pub struct Mark(Vec<u8>);

impl Mark {
    pub fn new(address: &str) -> Mark {
        Mark(format!("{ENV}={address}").into_bytes())
    }

    /// Those that are there, registered or not.
    pub fn find(&self) -> Vec<u32> {
        let mut found = Vec::new();
        for ancestor in ancestors() {
            children(ancestor, &mut found);
        }
        found.retain(|&pid| self.is_on(pid));
        found
    }

    fn is_on(&self, pid: u32) -> bool {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}"));
        for _ in 0..TRIES {
            // Another user's is none of ours, or can't be managed.
            let Ok(environment) = read("environ") else {
                return false;
            };
            if !environment.is_empty() {
                return environment
                    .split(|&b| b == 0)
                    .any(|v| Door::split(v).0 == self.0);
            }
            // In the middle of exec there is neither this nor that; without an environment there is that.
            let is_in_exec = read("auxv").is_ok_and(|a| a.is_empty())
                && fs::read_link(format!("/proc/{pid}/exe")).is_ok();
            if !is_in_exec {
                return false;
            }
            thread::sleep(PAUSE);
        }
        false
    }
}

const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// Of this process, up to the first of its pid namespace.
fn ancestors() -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut pid = std::process::id();
    while pid != 0 && found.insert(pid) {
        pid = parent(pid).unwrap_or(0);
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_with_the_mark_is_found() {
        let start = |address: &str| {
            let mut command = Command::new("sleep");
            let child = command.arg("60").env(ENV, address).spawn().unwrap();
            // The environment can be read a moment after exec has begun.
            let environment = format!("/proc/{}/environ", child.id());
            while std::fs::read(&environment).unwrap().is_empty() {
                std::thread::yield_now();
            }
            child
        };
        let (mut ours, mut anothers) = (start("here 1"), start("here 12"));
        let found = Mark::new("here 1").find();
        for child in [&mut ours, &mut anothers] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, [ours.id()]);
        assert!(ancestors().contains(&std::process::id()));
    }
}
