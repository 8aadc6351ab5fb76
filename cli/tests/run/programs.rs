//! Real programs on less memory than they need.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::support::{compile, kill, long, need, wait_for, Dir, Run};

const SORT: &str = "\
import numpy, sys
n = int(sys.argv[1])
a = numpy.random.default_rng(1).random(n)
total = a.sum()
a.sort()
step = 1 << 16
for i in range(0, n - 1, step):
    part = a[i:i + step + 1]
    assert (part[1:] >= part[:-1]).all(), i
assert abs(a.sum() - total) < 1e-3
import time; time.sleep(1.2)
print('sorted')
";

#[test]
fn numpy_sorts_twice_the_limit() {
    // Debian's own: another python3 may be found first, without numpy.
    let python = need(&["/usr/bin/python3", "python3"]);
    let limit: u64 = if long() { 512 } else { 96 };
    let numbers = ((2 * limit) << 20) / 8;
    let done = Run::new(
        limit,
        [python.to_str().unwrap(), "-c", SORT, &numbers.to_string()],
    )
    .usual()
    .env("OPENBLAS_NUM_THREADS", "1")
    .ok();
    assert_eq!(done.stdout, "sorted\n", "{done}");
    done.has_swapped().is_managed();
}

/// CPython's own objects: many small mappings.
#[test]
fn python_objects() {
    let python = need(&["/usr/bin/python3", "python3"]);
    let script = "\
import time
n = 500000
l = [str(i) * 20 for i in range(n)]
for i in range(0, n, 3):
    l[i] = [str(i)]
time.sleep(1.2)
assert all(l[i] == (str(i) * 20 if i % 3 else [str(i)]) for i in range(n))
print(n)
";
    let done = Run::new(64, [python.to_str().unwrap(), "-c", script])
        .usual()
        .ok();
    assert_eq!(done.stdout, "500000\n", "{done}");
    done.has_swapped().is_managed();
}

/// What is stored under a key: up to 12 KB, and different for each.
fn value(key: usize) -> Vec<u8> {
    let len = 200 + key.wrapping_mul(2_654_435_761) % 12_000;
    let mut v = format!("value {key} ").repeat(len / 8).into_bytes();
    v.truncate(len);
    v
}

fn connect(socket: &Path) -> UnixStream {
    let mut stream = None;
    wait_for("redis to answer", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    let stream = stream.unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

fn line(from: &mut impl BufRead) -> String {
    let mut s = String::new();
    from.read_line(&mut s).unwrap();
    s.trim_end().to_owned()
}

#[test]
fn redis_gives_back_every_key() {
    const BATCH: usize = 200;
    let keys = if long() { 200_000 } else { 30_000 };
    let server = need(&["redis-server"]);
    let dir = Dir::new("redis");
    let socket = dir.join("socket");
    let options = [
        server.to_str().unwrap(),
        "--port",
        "0",
        "--unixsocket",
        socket.to_str().unwrap(),
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        dir.path().to_str().unwrap(),
    ];
    let limit = if long() { 512 } else { 72 };
    let run = Run::new(limit, options).usual().start();
    let stream = connect(&socket);
    let mut out = BufWriter::new(stream.try_clone().unwrap());
    let mut back = BufReader::new(stream);
    let mut stored = 0;
    for batch in 0..keys / BATCH {
        let range = batch * BATCH..(batch + 1) * BATCH;
        for key in range.clone() {
            let (k, v) = (format!("key:{key}"), value(key));
            stored += v.len();
            write!(
                out,
                "*3\r\n$3\r\nSET\r\n${}\r\n{k}\r\n${}\r\n",
                k.len(),
                v.len()
            )
            .unwrap();
            out.write_all(&v).unwrap();
            out.write_all(b"\r\n").unwrap();
        }
        out.flush().unwrap();
        for _ in range {
            assert_eq!(line(&mut back), "+OK");
        }
    }
    assert!(stored > (2 * limit as usize) << 20, "{stored}");
    // Not in the order in which they came.
    for n in 0..keys {
        let key = n * 7919 % keys;
        let k = format!("key:{key}");
        write!(out, "*2\r\n$3\r\nGET\r\n${}\r\n{k}\r\n", k.len()).unwrap();
        out.flush().unwrap();
        let wanted = value(key);
        assert_eq!(line(&mut back), format!("${}", wanted.len()), "{k}");
        let mut got = vec![0; wanted.len() + 2];
        back.read_exact(&mut got).unwrap();
        assert!(got[..wanted.len()] == wanted, "{k}");
    }
    // One child with all the memory, as for a snapshot, and an end in order.
    kill(run.front(), libc::SIGTERM);
    let done = run.finish();
    assert_eq!(done.code(), Some(0), "{done}");
    assert_eq!(done.oom_kills, 0, "{done}");
    done.has_swapped().is_managed();
}

#[test]
fn sqlite_in_memory() {
    let sqlite = need(&["sqlite3"]);
    let rows = if long() { 1_000_000 } else { 150_000 };
    // Values that follow from their row, so that each can be checked.
    let script = format!(
        "create table t(id integer primary key, v text);\n\
         insert into t select value, printf('%0900d', value * 7919) from generate_series(1, {rows});\n\
         create index byv on t(substr(v, -12));\n\
         pragma integrity_check;\n\
         select count(*) from t where v <> printf('%0900d', id * 7919);\n\
         select count(*), sum(id) from t;\n\
         select id from t where substr(v, -12) = printf('%012d', 777 * 7919);\n"
    )
    .replace(
        &format!("generate_series(1, {rows})"),
        &format!("(with recursive c(value) as (select 1 union all select value + 1 from c limit {rows}) select value from c)"),
    );
    let dir = Dir::new("sqlite");
    fs::write(dir.join("script"), script).unwrap();
    let done = Run::new(
        if long() { 384 } else { 64 },
        [sqlite.to_str().unwrap(), ":memory:"],
    )
    .usual()
    .stdin(File::open(dir.join("script")).unwrap())
    .ok();
    let sum: u64 = rows * (rows + 1) / 2;
    assert_eq!(done.stdout, format!("ok\n0\n{rows}|{sum}\n777\n"), "{done}");
    done.has_swapped().is_managed();
}

fn sorted_line(i: u64) -> String {
    format!("{i:010} the quick brown fox jumps\n")
}

#[test]
fn sort_gives_the_known_answer() {
    let lines: u64 = if long() { 20_000_000 } else { 1_600_000 };
    let dir = Dir::new("sort");
    {
        let mut input = BufWriter::new(File::create(dir.join("in")).unwrap());
        // 7919 is a prime that divides neither count: each line once.
        for n in 0..lines {
            input
                .write_all(sorted_line(n * 7919 % lines).as_bytes())
                .unwrap();
        }
    }
    let (input, output) = (dir.join("in"), dir.join("out"));
    let limit: u64 = if long() { 512 } else { 64 };
    let done = Run::new(
        limit,
        [
            "sort",
            "-S",
            if long() { "3G" } else { "300M" },
            "--parallel=2",
            "-o",
            output.to_str().unwrap(),
            input.to_str().unwrap(),
        ],
    )
    .usual()
    .env("LC_ALL", "C")
    .ok();
    let mut got = BufReader::new(File::open(&output).unwrap());
    let mut text = String::new();
    for i in 0..lines {
        text.clear();
        got.read_line(&mut text).unwrap();
        assert_eq!(text, sorted_line(i), "{done}");
    }
    assert_eq!(got.read_line(&mut text).unwrap(), 0, "{done}");
    done.has_swapped();
}

#[test]
fn stress_ng_verifies_all_methods() {
    let stress = need(&["stress-ng"]);
    let seconds = if long() { "600s" } else { "20s" };
    let dir = Dir::new("stress");
    let line = [
        stress.to_str().unwrap(),
        "--vm",
        "2",
        "--vm-bytes",
        "192M",
        "--vm-method",
        "all",
        "--verify",
        "-t",
        seconds,
        "--temp-path",
        dir.path().to_str().unwrap(),
        "--oomable",
    ];
    let done = Run::new(96, line).usual().ok();
    let said = format!("{}{}", done.stdout, done.stderr);
    assert!(said.contains("successful run completed"), "{done}");
    assert!(!said.contains("fail"), "{done}");
    done.has_swapped();
}

/// A huge page goes and comes as a whole where the program walks.
#[test]
fn walks_keep_huge_pages() {
    let hog = compile("hog");
    let done = Run::new(64, [hog.to_str().unwrap(), "256"]).usual().ok();
    assert!(
        done.counter("thp_swpin") * 512 * 10 >= done.counter("pswpin") * 8,
        "four of five pages come as huge ones: {done}"
    );
    assert!(
        done.counter("thp_swpout") * 512 * 10 >= done.counter("pswpout") * 8,
        "four of five pages go as huge ones: {done}"
    );
}
