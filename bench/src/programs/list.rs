//! The programs: each is a script that gets a size and a directory, and prints what it found.
//! With `make` it writes its input there.

pub struct Program {
    pub name: &'static str,
    pub about: &'static str,
    /// What runs it, and what that reads.
    pub files: &'static [(&'static str, &'static str)],
    /// Commands, and the Debian packages that have them.
    pub commands: &'static [(&'static str, &'static str)],
    /// Modules of Python, and what pip calls them.
    pub modules: &'static [(&'static str, &'static str)],
    pub has_input: bool,
}

macro_rules! scripts {
    ($($name:literal),*) => { &[$(($name, include_str!(concat!("scripts/", $name)))),*] };
}

/// What the others begin from.
pub const PLAIN: Program = Program {
    name: "",
    about: "",
    files: &[],
    commands: &[],
    modules: &[],
    has_input: false,
};

const NUMPY: (&str, &str) = ("numpy", "numpy");

pub const ALL: &[Program] = &[
    Program {
        name: "sqlite",
        about: "a table in memory, two indexes, queries, a check",
        files: scripts!("sqlite.sh"),
        commands: &[("sqlite3", "sqlite3")],
        ..PLAIN
    },
    Program {
        name: "redis",
        about: "values of 1000 bytes, gets at random by one client",
        files: scripts!("redis.py"),
        commands: &[("redis-server", "redis-server")],
        ..PLAIN
    },
    Program {
        name: "duckdb",
        about: "a table in memory, a window over all of it, groups",
        files: scripts!("window.py"),
        modules: &[("duckdb", "duckdb")],
        ..PLAIN
    },
    Program {
        name: "polars",
        about: "a join, groups, a sort",
        files: scripts!("join.py"),
        modules: &[("polars", "polars"), NUMPY],
        ..PLAIN
    },
    Program {
        name: "networkit",
        about: "PageRank, betweenness and components of a graph, two threads",
        files: scripts!("graph.py"),
        modules: &[("networkit", "networkit")],
        ..PLAIN
    },
    Program {
        name: "faiss",
        about: "a vector index (HNSW), searched by two threads",
        files: scripts!("hnsw.py"),
        modules: &[("faiss", "faiss-cpu"), NUMPY],
        ..PLAIN
    },
    Program {
        name: "numpy-rank",
        about: "edges sorted by counting, PageRank",
        files: scripts!("rank.py"),
        modules: &[NUMPY],
        ..PLAIN
    },
    Program {
        name: "numpy-kmeans",
        about: "k-means by samples gathered at random",
        files: scripts!("kmeans.py"),
        modules: &[NUMPY],
        ..PLAIN
    },
    Program {
        name: "python",
        about: "a dictionary of tuples and strings, look-ups at random",
        files: scripts!("dict.py"),
        ..PLAIN
    },
    Program {
        name: "workers",
        about: "four Python processes, a dictionary each, look-ups at random",
        files: scripts!("workers.py"),
        ..PLAIN
    },
    Program {
        name: "java",
        about: "a map and a sorted map of objects (G1)",
        files: scripts!("java.sh", "Maps.java"),
        commands: &[("java", "default-jdk-headless")],
        ..PLAIN
    },
    Program {
        name: "node",
        about: "a map of objects, a sort",
        files: scripts!("node.sh", "maps.js"),
        commands: &[("node", "nodejs")],
        ..PLAIN
    },
    Program {
        name: "gcc",
        about: "compiles one large file",
        files: scripts!("gcc.sh"),
        commands: &[("gcc", "gcc")],
        has_input: true,
        ..PLAIN
    },
    Program {
        name: "git",
        about: "packs a repository anew",
        files: scripts!("git.sh"),
        commands: &[("git", "git")],
        has_input: true,
        ..PLAIN
    },
    Program {
        name: "sort",
        about: "sort(1) of lines in no order, two threads",
        files: scripts!("sort.sh"),
        has_input: true,
        ..PLAIN
    },
    Program {
        name: "zstd",
        about: "compresses with a long window, and back at the same time",
        files: scripts!("zstd.sh", "text.py"),
        commands: &[("zstd", "zstd")],
        has_input: true,
        ..PLAIN
    },
    Program {
        name: "xz",
        about: "compresses with a large dictionary",
        files: scripts!("xz.sh", "text.py"),
        commands: &[("xz", "xz-utils")],
        has_input: true,
        ..PLAIN
    },
];
