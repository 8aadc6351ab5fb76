//! Graph traversal after the GAP benchmark suite (Beamer, Asanović, Patterson, 2015): breadth-first
//! search and PageRank on a Kronecker graph, in ordinary allocated arrays. A process of its own.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use super::Outcome;
use crate::bench::pattern::{Random, Scatter};

#[derive(clap::Args, Debug)]
pub struct GraphArgs {
    #[arg(value_enum)]
    what: What,
    graph: PathBuf,
    /// To make: about so many bytes for the traversal
    #[arg(long, default_value_t = 0)]
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    Make,
    Bfs,
    Pagerank,
}

/// Both directions of each edge, by vertex.
struct Graph {
    /// Where each vertex's neighbours begin, and the end.
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
}

pub fn run(args: &GraphArgs) -> ExitCode {
    let result = match args.what {
        What::Make => Graph::kronecker(args.bytes).write(&args.graph),
        What::Bfs => traverse(&args.graph, bfs),
        What::Pagerank => traverse(&args.graph, pagerank),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            errln!("hugeswap: {}: {err}", args.graph.display());
            ExitCode::FAILURE
        }
    }
}

fn traverse(file: &Path, walk: fn(&Graph) -> u64) -> io::Result<()> {
    let graph = Graph::read(file)?;
    let start = Instant::now();
    let check = walk(&graph);
    let outcome = Outcome {
        seconds: start.elapsed().as_secs_f64(),
        check: format!("{check:016x}"),
        need: peak("self"),
    };
    outln!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// The most that a process has had resident, in bytes.
pub fn peak(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

impl Graph {
    /// As Graph500 draws them: A = 0.57, B = C = 0.19. Vertices are renamed, so that the hot ones
    /// are anywhere.
    fn kronecker(bytes: u64) -> Graph {
        // 16 edges at each vertex, each twice; 20 bytes for what the traversal keeps of a vertex.
        let scale = (bytes / (16 * 2 * 4 + 20)).max(2).ilog2();
        let vertices = 1u64 << scale;
        let edges = (bytes.saturating_sub(vertices * 20) / 8).max(vertices);
        let names = Scatter::new(vertices);
        let edge = |number: u64| {
            let mut random = Random::new(number);
            let (mut from, mut to) = (0, 0);
            for _ in 0..scale {
                let (down, right) = match random.below(100) {
                    0..57 => (0, 0),
                    57..76 => (0, 1),
                    76..95 => (1, 0),
                    _ => (1, 1),
                };
                (from, to) = (from << 1 | down, to << 1 | right);
            }
            (names.of(from) as usize, names.of(to) as usize)
        };
        let pairs: Vec<(u32, u32)> = (0..edges)
            .map(edge)
            .filter(|(from, to)| from != to)
            .map(|(from, to)| (from as u32, to as u32))
            .collect();
        Graph::of(vertices as usize, &pairs)
    }

    fn of(vertices: usize, edges: &[(u32, u32)]) -> Graph {
        let mut offsets = vec![0u64; vertices + 1];
        for (from, to) in edges {
            offsets[*from as usize + 1] += 1;
            offsets[*to as usize + 1] += 1;
        }
        for i in 0..vertices {
            offsets[i + 1] += offsets[i];
        }
        let mut next = offsets.clone();
        let mut neighbours = vec![0u32; 2 * edges.len()];
        for (from, to) in edges {
            for (from, to) in [(from, to), (to, from)] {
                let at = &mut next[*from as usize];
                neighbours[*at as usize] = *to;
                *at += 1;
            }
        }
        Graph {
            offsets,
            neighbours,
        }
    }

    fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    fn of_vertex(&self, vertex: usize) -> &[u32] {
        &self.neighbours[self.offsets[vertex] as usize..self.offsets[vertex + 1] as usize]
    }

    fn write(&self, file: &Path) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
        out.write_all(&(self.offsets.len() as u64).to_le_bytes())?;
        out.write_all(&(self.neighbours.len() as u64).to_le_bytes())?;
        for offset in &self.offsets {
            out.write_all(&offset.to_le_bytes())?;
        }
        for neighbour in &self.neighbours {
            out.write_all(&neighbour.to_le_bytes())?;
        }
        out.into_inner()?.sync_all()
    }

    fn read(file: &Path) -> io::Result<Graph> {
        let mut file = File::open(file)?;
        let mut word = || -> io::Result<usize> {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes) as usize)
        };
        let (offsets, neighbours) = (word()?, word()?);
        Ok(Graph {
            offsets: read_array(&mut file, offsets, u64::from_le_bytes)?,
            neighbours: read_array(&mut file, neighbours, u32::from_le_bytes)?,
        })
    }
}

fn read_array<const N: usize, T>(
    file: &mut File,
    len: usize,
    value: fn([u8; N]) -> T,
) -> io::Result<Vec<T>> {
    let mut array = Vec::with_capacity(len);
    let mut buffer = vec![0; N << 16];
    while array.len() < len {
        let bytes = ((len - array.len()) * N).min(buffer.len());
        file.read_exact(&mut buffer[..bytes])?;
        array.extend(buffer[..bytes].chunks_exact(N).map(|chunk| {
            let mut bytes = [0; N];
            bytes.copy_from_slice(chunk);
            value(bytes)
        }));
    }
    Ok(array)
}

const SOURCES: usize = 2;
const UNREACHED: u32 = u32::MAX;

fn mix(sum: u64, value: u64) -> u64 {
    (sum ^ value)
        .wrapping_mul(0x0000_0100_0000_01b3)
        .rotate_left(23)
}

/// Levels from a few vertices that have neighbours; a checksum of all of them.
fn bfs(graph: &Graph) -> u64 {
    let mut random = Random::new(7);
    let mut check = 0;
    for _ in 0..SOURCES {
        let mut source = random.below(graph.vertices() as u64) as usize;
        while graph.of_vertex(source).is_empty() {
            source = (source + 1) % graph.vertices();
        }
        let level = levels(graph, source);
        check = level
            .iter()
            .fold(check, |sum, level| mix(sum, u64::from(*level)));
    }
    check
}

/// Towards few vertices from the frontier, towards many from those that are not reached yet
/// (Beamer, "Direction-optimizing breadth-first search", 2012, with its two constants).
fn levels(graph: &Graph, source: usize) -> Vec<u32> {
    const ALPHA: usize = 15;
    const BETA: usize = 18;
    let mut level = vec![UNREACHED; graph.vertices()];
    level[source] = 0;
    let mut frontier = vec![source as u32];
    let mut unexplored = graph.neighbours.len();
    let mut upwards = false;
    for depth in 0.. {
        let edges: usize = frontier
            .iter()
            .map(|v| graph.of_vertex(*v as usize).len())
            .sum();
        unexplored -= edges;
        upwards = edges > unexplored / ALPHA || upwards && frontier.len() > graph.vertices() / BETA;
        let mut next = Vec::new();
        if upwards {
            for vertex in 0..graph.vertices() {
                let reached = |n: &u32| level[*n as usize] == depth;
                if level[vertex] == UNREACHED && graph.of_vertex(vertex).iter().any(reached) {
                    level[vertex] = depth + 1;
                    next.push(vertex as u32);
                }
            }
        } else {
            for neighbour in frontier.iter().flat_map(|v| graph.of_vertex(*v as usize)) {
                let of_it = &mut level[*neighbour as usize];
                if *of_it == UNREACHED {
                    *of_it = depth + 1;
                    next.push(*neighbour);
                }
            }
        }
        if next.is_empty() {
            break;
        }
        frontier = next;
    }
    level
}

const ITERATIONS: usize = 5;
const DAMPING: f32 = 0.85;

/// By pulling; a checksum of the ranks.
fn pagerank(graph: &Graph) -> u64 {
    let vertices = graph.vertices();
    let base = (1.0 - DAMPING) / vertices as f32;
    let mut ranks = vec![1.0 / vertices as f32; vertices];
    let mut shares = vec![0.0f32; vertices];
    for _ in 0..ITERATIONS {
        for (vertex, share) in shares.iter_mut().enumerate() {
            let degree = graph.of_vertex(vertex).len();
            *share = if degree > 0 {
                ranks[vertex] / degree as f32
            } else {
                0.0
            };
        }
        for (vertex, rank) in ranks.iter_mut().enumerate() {
            let sum: f32 = graph
                .of_vertex(vertex)
                .iter()
                .map(|n| shares[*n as usize])
                .sum();
            *rank = base + DAMPING * sum;
        }
    }
    ranks
        .iter()
        .fold(0, |sum, rank| mix(sum, u64::from(rank.to_bits())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_graph() {
        // A square with a tail, and a vertex alone.
        let graph = Graph::of(6, &[(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)]);
        assert_eq!(graph.of_vertex(3), [2, 0, 4]);
        assert!(graph.of_vertex(5).is_empty());
        let mut random = Random::new(7);
        let mut check = 0;
        for _ in 0..SOURCES {
            let source = random.below(6) as usize % 6;
            let source = if source == 5 { 0 } else { source };
            let distance: [[u32; 6]; 5] = [
                [0, 1, 2, 1, 2, UNREACHED],
                [1, 0, 1, 2, 3, UNREACHED],
                [2, 1, 0, 1, 2, UNREACHED],
                [1, 2, 1, 0, 1, UNREACHED],
                [2, 3, 2, 1, 0, UNREACHED],
            ];
            check = distance[source]
                .iter()
                .fold(check, |sum, level| mix(sum, u64::from(*level)));
        }
        assert_eq!(bfs(&graph), check);
        // Whoever has more neighbours has more rank: only the checksum is let out.
        assert_ne!(pagerank(&graph), pagerank(&Graph::of(6, &[(0, 1)])));
    }

    #[test]
    fn a_graph_through_a_file() {
        let graph = Graph::kronecker(1 << 20);
        assert_eq!(graph.vertices(), 4096);
        let most = (0..4096).map(|v| graph.of_vertex(v).len()).max().unwrap();
        assert!(
            most > 40 * graph.neighbours.len() / 4096,
            "not scale-free: {most}"
        );
        let file = std::env::temp_dir().join(format!("hugeswap-graph-{}", std::process::id()));
        graph.write(&file).unwrap();
        let again = Graph::read(&file).unwrap();
        assert!(again.offsets == graph.offsets && again.neighbours == graph.neighbours);
        fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(5000)
            .unwrap();
        assert!(Graph::read(&file).is_err());
        fs::remove_file(&file).unwrap();
        assert_eq!(bfs(&graph), bfs(&again));
    }
}
