//! Memory nodes: which are slow, where their pages belong, how much room is.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::page::{Time, BLOCK_PAGES, PAGE};

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

/// Fast nodes by where what belongs there is read. Empty where the user has named one.
#[derive(Clone, Debug, Default)]
pub struct Fast {
    /// The node of each processor, and the fast node that is nearest to each node.
    cpus: HashMap<u32, u32>,
    near: HashMap<u32, u32>,
}

impl Fast {
    /// Of the nodes of the highest tier that have memory.
    pub fn find() -> Fast {
        let online = fs::read_to_string(format!("{NODES}/online")).unwrap_or_default();
        let with_memory = nodes().unwrap_or_default();
        let tiers = tiers();
        let top = tiers.first().map_or(&[][..], Vec::as_slice);
        let fast: Vec<u32> = top
            .iter()
            .copied()
            .filter(|node| with_memory.contains(node))
            .collect();
        let cpus = |node: u32| {
            let text = fs::read_to_string(format!("{NODES}/node{node}/cpulist"));
            parse_list(&text.unwrap_or_default()).unwrap_or_default()
        };
        Fast::new(
            &parse_list(&online).unwrap_or_default(),
            &fast,
            cpus,
            distances,
        )
    }

    fn new(
        online: &[u32],
        fast: &[u32],
        cpus: impl Fn(u32) -> Vec<u32>,
        distances: impl Fn(u32) -> Vec<(u32, u32)>,
    ) -> Fast {
        let mut all = Fast::default();
        for &node in online {
            let cpus = cpus(node);
            if cpus.is_empty() {
                continue;
            }
            let distances = distances(node);
            let known = distances.into_iter().filter(|(to, _)| fast.contains(to));
            if let Some((to, _)) = known.min_by_key(|&(to, distance)| (distance, to)) {
                all.near.insert(node, to);
            }
            all.cpus.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        }
        all
    }

    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.cpus.get(&cpu).copied()
    }

    /// The fast node that is nearest to the processors of a node.
    pub fn near(&self, node: u32) -> Option<u32> {
        self.near.get(&node).copied()
    }

    /// All of them.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.near.values().copied()
    }
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

/// Pages that a node can take before its free memory meets the high watermarks, below which the
/// kernel would begin to reclaim. The watermarks seldom change, and to ask for them costs the more
/// the more processors there are.
#[derive(Debug, Default)]
pub struct Room {
    /// What is to be left, and when that was asked for.
    keep: Option<(u64, Time)>,
    free: Option<(u64, Time)>,
}

/// Pages of a node that are free.
pub fn free_pages(node: u32) -> u64 {
    let text = fs::read_to_string(format!("{NODES}/node{node}/meminfo"));
    meminfo(&text.unwrap_or_default(), "MemFree").unwrap_or(0)
}

/// Of these, such as are not to be taken.
pub fn keep_pages(node: u32) -> u64 {
    keep(
        &fs::read_to_string("/proc/zoneinfo").unwrap_or_default(),
        node,
    )
}

impl Room {
    /// `keep` and `free` ask the machine, if need be.
    pub fn pages(
        &mut self,
        now: Time,
        keep: impl FnOnce() -> u64,
        free: impl FnOnce() -> u64,
    ) -> u64 {
        const FRESH: Duration = Duration::from_millis(100);
        const FRESH_MARKS: Duration = Duration::from_secs(60);
        let keep = match self.keep {
            Some((keep, at)) if now.since(at) < FRESH_MARKS => keep,
            _ => {
                let keep = keep();
                self.keep = Some((keep, now));
                keep
            }
        };
        let free = match self.free {
            Some((free, at)) if now.since(at) < FRESH => free,
            _ => {
                let free = free();
                self.free = Some((free, now));
                free
            }
        };
        free.saturating_sub(keep)
    }

    /// So many pages were moved there.
    pub fn taken(&mut self, pages: u64) {
        if let Some((free, _)) = &mut self.free {
            *free = free.saturating_sub(pages);
        }
    }

    /// What is free has changed.
    pub fn forget(&mut self) {
        self.free = None;
    }
}

/// Pages of a node that are not to be taken.
fn keep(zoneinfo: &str, node: u32) -> u64 {
    // Over all zones: what one has to spare is no room while another is below. Pages come from the
    // highest zone first, down to its low watermark, and only then from the next.
    let (mut here, mut high) = (false, 0u64);
    for line in zoneinfo.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Node") => {
                let number = words.next().map(|word| word.trim_end_matches(','));
                here = number.and_then(|word| word.parse().ok()) == Some(node);
            }
            Some("high") if here => {
                high += words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            }
            _ => {}
        }
    }
    // And as much again: others allocate while we move.
    2 * high
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
    fn what_is_read_somewhere_belongs_near() {
        // Two sockets, each with DRAM; two nodes of slow memory without processors.
        let cpus = |node: u32| match node {
            0 => vec![0, 1],
            1 => vec![2, 3],
            _ => vec![],
        };
        let fast = Fast::new(&[0, 1, 2, 3], &[0, 1], cpus, line);
        assert_eq!((fast.node_of(3), fast.near(1)), (Some(1), Some(1)));
        assert_eq!((fast.node_of(0), fast.near(0)), (Some(0), Some(0)));
        assert_eq!((fast.node_of(9), fast.near(2)), (None, None));
        // The second socket has no memory of its own.
        let fast = Fast::new(&[0, 1, 2, 3], &[0], cpus, line);
        assert_eq!(fast.near(1), Some(0));
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
        assert_eq!(keep(ZONEINFO, 0), 860);
        assert_eq!(keep(ZONEINFO, 1), 20);
        assert_eq!(keep(ZONEINFO, 2), 0);
        let known = |free| Room {
            keep: Some((860, Time(0))),
            free: Some((free, Time(0))),
        };
        let pages = |mut room: Room| room.pages(Time(1), || unreachable!(), || unreachable!());
        assert_eq!(pages(known(1100)), 240);
        assert_eq!(pages(known(800)), 0);
        let mut room = known(1100);
        room.taken(200);
        assert_eq!(pages(room), 40);
    }

    #[test]
    fn file_pages_are_read() {
        let text = "Node 1 MemTotal:  100 kB\nNode 1 FilePages:    64 kB\n\
                    Node 1 ShmemHugePages:  2048 kB\nNode 1 Shmem:   8 kB\n";
        assert_eq!(meminfo(text, "FilePages"), Some(16));
        assert_eq!(meminfo(text, "Shmem"), Some(2));
    }
}
