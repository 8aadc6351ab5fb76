//! Language runtimes that bring their own memory management. Where one is not installed its test
//! fails; `./test` leaves it out and says so.

use std::path::Path;
use std::process::Command;

use crate::support::{program, Dir, Run};

fn source(name: &str) -> String {
    format!("{}/tests/run/runtimes/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn java() {
    let installed = |name| program(&[name]).expect("this test needs a Java development kit");
    let (java, javac) = (installed("java"), installed("javac"));
    let classes = Dir::new("classes");
    let output = Command::new(javac)
        .arg("-d")
        .arg(classes.path())
        .arg(source("Heap.java"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let heap = |collector: &str, most: &str| {
        let options = [collector, "-XX:ErrorFile=/dev/null", most, "-Xms64m", "-cp"];
        let words = [java.to_str().unwrap()].into_iter().chain(options);
        let words = words.chain([classes.path().to_str().unwrap(), "Heap"]);
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    for collector in ["-XX:+UseSerialGC", "-XX:+UseG1GC"] {
        let done = Run::new(128, heap(collector, "-Xmx256m")).usual().ok();
        assert_eq!(done.stdout, "right\n", "{done}");
        done.has_swapped().is_managed();
        // What the machine has beside its heap is in the limit too. How much it can grow before that is
        // seen depends on the computer: without a limit like `--memory` it would be 50 MiB and more.
        let done = Run::new(194, heap(collector, "-Xmx512m"))
            .usual()
            .above(40)
            .ok();
        assert_eq!(done.stdout, "right\n", "{done}");
        done.has_swapped();
    }
}

#[test]
fn node() {
    let node = program(&["node", "nodejs"]).expect("this test needs node");
    let script = source("heap.js");
    assert!(Path::new(&script).is_file());
    let done = Run::new(
        96,
        [node.to_str().unwrap(), "--max-old-space-size=512", &script],
    )
    .usual()
    .ok();
    assert_eq!(done.stdout, "right\n", "{done}");
    done.has_swapped().is_managed();
}
