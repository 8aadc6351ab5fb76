//! Memory nodes: which are slow, where their pages belong, how much room is.

use std::fs;
use std::io;
use std::path::Path;

use crate::page::{BLOCK_PAGES, PAGE};

const NODES: &str = "/sys/devices/system/node";
const TIERS: &str = "/sys/devices/virtual/memory_tiering";

/// From which node to which other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub from: u32,
    pub to: u32,
}

/// "0-2,5" as the kernel writes lists of processors and nodes.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(all)
}

/// Nodes that have memory.
pub fn nodes() -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(format!("{NODES}/has_memory"))?;
    parse_list(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The kernel's memory tiers, fastest first.
pub fn tiers() -> Vec<Vec<u32>> {
    tiers_in(Path::new(TIERS))
}

fn tiers_in(dir: &Path) -> Vec<Vec<u32>> {
    let mut found: Vec<(u32, Vec<u32>)> = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rank = name
            .to_str()
            .and_then(|name| name.strip_prefix("memory_tier"));
        let Some(rank) = rank.and_then(|rank| rank.parse().ok()) else {
            continue;
        };
        let list = fs::read_to_string(entry.path().join("nodelist")).unwrap_or_default();
        if let Some(nodes) = parse_list(&list).filter(|nodes| !nodes.is_empty()) {
            found.push((rank, nodes));
        }
    }
    found.sort();
    found.into_iter().map(|(_, nodes)| nodes).collect()
}

/// How far `node` is from each node, by number.
fn distances(node: u32) -> Vec<(u32, u32)> {
    let text = fs::read_to_string(format!("{NODES}/node{node}/distance")).unwrap_or_default();
    let online = fs::read_to_string(format!("{NODES}/online")).unwrap_or_default();
    let online = parse_list(&online).unwrap_or_default();
    online
        .into_iter()
        .zip(text.split_whitespace().filter_map(|word| word.parse().ok()))
        .collect()
}

/// The routes that are asked for, or those that the tiers suggest: from every
/// node of a lower tier to the nearest of the highest.
pub fn routes(from: &[u32], to: Option<u32>) -> Result<Vec<Route>, String> {
    let nodes = nodes().map_err(|err| format!("can't read {NODES}: {err}"))?;
    for &node in from.iter().chain(to.iter()) {
        if !nodes.contains(&node) {
            return Err(format!(
                "there is no node {node} with memory; those with memory are {}",
                list(&nodes)
            ));
        }
    }
    let tiers = tiers();
    choose(&nodes, &tiers, from, to, distances)
}

fn choose(
    nodes: &[u32],
    tiers: &[Vec<u32>],
    from: &[u32],
    to: Option<u32>,
    distances: impl Fn(u32) -> Vec<(u32, u32)>,
) -> Result<Vec<Route>, String> {
    let top: &[u32] = tiers.first().map_or(&[], Vec::as_slice);
    let slow: Vec<u32> = match (from, to) {
        ([_, ..], _) => from.to_vec(),
        ([], _) if tiers.len() > 1 => tiers[1..].concat(),
        ([], Some(to)) => nodes.iter().copied().filter(|&node| node != to).collect(),
        ([], None) => Vec::new(),
    };
    let slow: Vec<u32> = slow
        .into_iter()
        .filter(|node| nodes.contains(node))
        .collect();
    if slow.is_empty() {
        return Err(if nodes.len() == 1 {
            "this machine has one memory node: there is nothing to promote".to_owned()
        } else {
            "the kernel knows one memory tier only: name the slow and the fast node with --from \
             and --to"
                .to_owned()
        });
    }
    let mut routes = Vec::new();
    for from in slow {
        let to = match to {
            Some(to) => to,
            None => {
                let fast = |node: u32| {
                    node != from
                        && nodes.contains(&node)
                        && (top.contains(&from) || top.contains(&node))
                };
                distances(from)
                    .into_iter()
                    .filter(|&(node, _)| fast(node))
                    .min_by_key(|&(node, distance)| (distance, node))
                    .map(|(node, _)| node)
                    .ok_or("can't tell the fast node: name it with --to")?
            }
        };
        if from == to {
            return Err(format!("node {from} is named both as --from and as --to"));
        }
        routes.push(Route { from, to });
    }
    Ok(routes)
}

fn list(nodes: &[u32]) -> String {
    let words: Vec<String> = nodes.iter().map(u32::to_string).collect();
    words.join(", ")
}

/// Pages of the page cache on a node, shared memory included.
pub fn file_pages(node: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("{NODES}/node{node}/meminfo"))?;
    meminfo(&text, "FilePages").ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Of these, pages of tmpfs and shared memory; `None` where that is not known.
pub fn tmpfs_pages(node: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("{NODES}/node{node}/meminfo")).ok()?;
    meminfo(&text, "Shmem")
}

/// Blocks that all memory has.
pub fn blocks() -> u64 {
    let pages: u64 = nodes()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|node| fs::read_to_string(format!("{NODES}/node{node}/meminfo")).ok())
        .filter_map(|text| meminfo(&text, "MemTotal"))
        .sum();
    pages / BLOCK_PAGES
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    for line in text.lines() {
        // "Node 0 FilePages:   1234 kB"
        let mut words = line.split_whitespace().skip(2);
        if words.next()?.trim_end_matches(':') == name {
            return Some(words.next()?.parse::<u64>().ok()? * 1024 / PAGE);
        }
    }
    None
}

/// Pages that a node can take before its free memory meets the high
/// watermarks, below which the kernel would begin to reclaim.
pub fn room(node: u32) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/zoneinfo")?;
    Ok(room_in(&text, node))
}

fn room_in(zoneinfo: &str, node: u32) -> u64 {
    // Over all zones: what one has to spare is no room while another is below. Pages come from the
    // highest zone first, down to its low watermark, and only then from the next.
    let (mut here, mut free, mut high) = (false, 0u64, 0u64);
    for line in zoneinfo.lines() {
        let mut words = line.split_whitespace();
        let number = |words: &mut std::str::SplitWhitespace| -> u64 {
            words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        match words.next() {
            // "Node 0, zone   Normal"
            Some("Node") => {
                let number = words.next().map(|word| word.trim_end_matches(','));
                here = number.and_then(|number| number.parse().ok()) == Some(node);
            }
            Some("pages") if here && words.next() == Some("free") => free += number(&mut words),
            Some("high") if here => high += number(&mut words),
            _ => {}
        }
    }
    // And as much again: others allocate while we move.
    free.saturating_sub(2 * high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("x"), None);
    }

    fn line(from: u32) -> Vec<(u32, u32)> {
        (0..4)
            .map(|node: u32| (node, 10 + 10 * node.abs_diff(from)))
            .collect()
    }

    #[test]
    fn tiers_give_the_routes() {
        let tiers = [vec![0, 1], vec![2, 3]];
        let routes = choose(&[0, 1, 2, 3], &tiers, &[], None, line).unwrap();
        assert_eq!(routes, [Route { from: 2, to: 1 }, Route { from: 3, to: 1 }]);
        let routes = choose(&[0, 1, 2, 3], &tiers, &[3], Some(0), line).unwrap();
        assert_eq!(routes, [Route { from: 3, to: 0 }]);
    }

    #[test]
    fn one_tier_needs_to_be_told() {
        let tiers = [vec![0, 1]];
        let err = choose(&[0, 1], &tiers, &[], None, line).unwrap_err();
        assert!(err.contains("--from"), "{err}");
        let err = choose(&[0], &[vec![0]], &[], None, line).unwrap_err();
        assert!(err.contains("one memory node"), "{err}");
        let routes = choose(&[0, 1], &tiers, &[], Some(0), line).unwrap();
        assert_eq!(routes, [Route { from: 1, to: 0 }]);
        let routes = choose(&[0, 1], &tiers, &[1], None, line).unwrap();
        assert_eq!(routes, [Route { from: 1, to: 0 }]);
        assert!(choose(&[0, 1], &tiers, &[1], Some(1), line).is_err());
    }

    const ZONEINFO: &str = "\
Node 0, zone      DMA
  pages free     100
        boost    0
        min      10
        low      20
        high     30
        spanned  4095
Node 0, zone   Normal
  pages free     1000
        high     400
Node 1, zone   Normal
  pages free     5000
        high     10
";

    #[test]
    fn room_is_above_the_watermarks() {
        assert_eq!(room_in(ZONEINFO, 0), 40 + 200);
        assert_eq!(room_in(ZONEINFO, 1), 4980);
        assert_eq!(room_in(ZONEINFO, 2), 0);
        let low = ZONEINFO.replace("high     400", "high     460");
        assert_eq!(room_in(&low, 0), 120, "less than the first zone has");
    }

    #[test]
    fn file_pages_are_read() {
        let text = "Node 1 MemTotal:  100 kB\nNode 1 FilePages:    64 kB\n\
                    Node 1 ShmemHugePages:  2048 kB\nNode 1 Shmem:   8 kB\n";
        assert_eq!(meminfo(text, "FilePages"), Some(16));
        assert_eq!(meminfo(text, "Shmem"), Some(2));
    }
}
