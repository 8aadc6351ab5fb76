//! What a user sees of the command line: help, one clear line for each wrong
//! argument, exit statuses.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn hugeswap(line: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hugeswap"))
        .args(line)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs what must be refused as a usage error; returns the line that says why.
fn refused(line: &[&str]) -> String {
    let output = hugeswap(line);
    assert_eq!(output.status.code(), Some(2), "{line:?}");
    assert!(output.stdout.is_empty(), "{line:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{line:?}: {text}");
    text.trim_end().to_owned()
}

#[test]
fn wrong_arguments_get_one_line() {
    let cases: [(&[&str], &str); 20] = [
        (&[], "hugeswap: say what to do: run, swapoff, swapon, set, doctor, promote or bench (see 'hugeswap --help')"),
        (&["walk"], "hugeswap: unrecognized subcommand 'walk' (see 'hugeswap --help')"),
        (
            &["promote", "--interval", "1h"],
            "hugeswap: --interval: '1h' is not a time: write it as in 500ms, 2s or 1m \
             (see 'hugeswap promote --help')",
        ),
        (
            &["promote", "--overhead-budget", "200%"],
            "hugeswap: --overhead-budget: '200%' is not between 0.01% and 100% \
             (see 'hugeswap promote --help')",
        ),
        (
            &["promote", "--rate-limit-mbps", "1"],
            "hugeswap: --rate-limit-mbps: 1 is not in 2..=16777216 (see 'hugeswap promote --help')",
        ),
        (
            &["run"],
            "hugeswap: no program given: write it after '--', as in '-- python3 sort.py' \
             (see 'hugeswap run --help')",
        ),
        (
            &["run", "--memory", "12Q", "true"],
            "hugeswap: --memory: '12Q' is not a size: write a number with K, M, G or T, \
             as in 512M or 1.5G (see 'hugeswap run --help')",
        ),
        (
            &["run", "--memory", "0", "true"],
            "hugeswap: --memory: a size of zero: give at least one byte, as in 512M \
             (see 'hugeswap run --help')",
        ),
        (
            &["run", "--memory", "-1", "true"],
            "hugeswap: --memory: '-1' is not a size: write a number with K, M, G or T, \
             as in 512M or 1.5G (see 'hugeswap run --help')",
        ),
        (
            &["bench", "huge-copy", "--footprint", "0"],
            "hugeswap: --footprint: a size of zero: give at least one byte, as in 512M \
             (see 'hugeswap bench huge-copy --help')",
        ),
        (
            &["run", "--swap-size=1.5", "true"],
            "hugeswap: --swap-size: '1.5' is a fraction of a byte: add K, M, G or T, \
             as in 1.5G (see 'hugeswap run --help')",
        ),
        (
            &["run", "--memory", "99999999T", "true"],
            "hugeswap: --memory: '99999999T' is more than 64 bits can count: \
             give less than 16777216T (see 'hugeswap run --help')",
        ),
        (
            &["run", "--swap", "", "true"],
            "hugeswap: --swap: empty: give a directory, a file, a block device or 'ram' \
             (see 'hugeswap run --help')",
        ),
        (
            &["run", "--memor", "1G", "true"],
            "hugeswap: unexpected argument '--memor' found; a similar argument exists: \
             '--memory' (see 'hugeswap run --help')",
        ),
        (&["bench"], "hugeswap: say which test, as in 'hugeswap bench swap-w-seq' (see 'hugeswap bench --help')"),
        (
            &["bench", "swap-w-seq", "--processes", "0"],
            "hugeswap: --processes: 0 is not in 1..=1024 (see 'hugeswap bench swap-w-seq --help')",
        ),
        (
            &["bench", "swap-w-seq", "--swap", "/nowhere/at/all"],
            "hugeswap: swap '/nowhere/at/all' does not exist: create the directory with \
             'mkdir -p /nowhere/at/all', or give another directory, a file, a block device or 'ram'",
        ),
        (
            &["bench", "swap-w-seq", "--swap", "/dev/null"],
            "hugeswap: swap '/dev/null' is neither a directory, a file nor a block device: \
             give one of these, or 'ram'",
        ),
        (
            &["bench", "swap-w-seq", "--swap", "ram", "--memory", "1M"],
            "hugeswap: --memory 1M is too little to run anything: give 48M or more",
        ),
        (
            &["bench", "swap-w-seq", "--swap", "ram", "--against", "file"],
            "hugeswap: --against file needs a directory: say which with --swap DIRECTORY",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(refused(line), expected);
    }
}

/// `UPDATE_HELP=1 cargo test` writes what is printed now.
#[test]
fn help_is_as_agreed() {
    for (name, line) in [
        ("hugeswap", &["--help"][..]),
        ("run", &["run", "--help"]),
        ("swapoff", &["swapoff", "--help"]),
        ("swapon", &["swapon", "--help"]),
        ("set", &["set", "--help"]),
        ("doctor", &["doctor", "--help"]),
        ("promote", &["promote", "--help"]),
        ("bench-swap-w-seq", &["bench", "swap-w-seq", "--help"]),
        ("bench-programs", &["bench", "programs", "--help"]),
    ] {
        let output = hugeswap(line);
        assert!(output.status.success());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/help/{name}.txt"));
        if std::env::var_os("UPDATE_HELP").is_some() {
            std::fs::write(&path, stdout(&output)).unwrap();
        }
        let agreed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            stdout(&output),
            agreed,
            "{name}: run with UPDATE_HELP=1 if this is meant"
        );
    }
}

#[test]
fn manual_pages_and_completions() {
    assert!(stdout(&hugeswap(&["man"])).contains(".TH hugeswap 1"));
    assert!(stdout(&hugeswap(&["man", "run"])).contains("hugeswap\\-run"));
    assert!(stdout(&hugeswap(&["man", "promote"])).contains("overhead"));
    assert!(stdout(&hugeswap(&["man", "run"])).contains("EXIT STATUS"));
    assert!(stdout(&hugeswap(&["man", "bench", "swap-w-seq"])).contains("rounds"));
    for command in [
        "run", "doctor", "bench", "promote", "swapoff", "swapon", "set",
    ] {
        let page = stdout(&hugeswap(&["man", command]));
        for section in ["EXIT STATUS", "EXAMPLES"] {
            assert!(page.contains(section), "{command}: {section}");
        }
        assert!(
            page.contains("ENVIRONMENT") || page.contains("FILES"),
            "{command}"
        );
    }
    refused(&["man", "walk"]);
    refused(&["man", "bench", "walk"]);
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&hugeswap(&["completions", shell]));
        assert!(
            script.contains("--stats-json") || script.contains("stats-json"),
            "{shell}"
        );
        assert!(!script.contains("janitor"), "{shell}");
    }
}

/// Each command, where nobody reads what it prints, and where nothing can be written.
#[test]
fn output_that_fails() {
    for line in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["man", "run"],
        &["completions", "bash"],
        &["bench", "policies", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = |out: Stdio| {
            let output = Command::new(env!("CARGO_BIN_EXE_hugeswap"))
                .args(line)
                .stdout(out)
                .output()
                .unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            (output.status.code(), errors)
        };
        let (status, errors) = run(writer.into());
        assert!(errors.is_empty(), "{line:?}: {errors}");
        assert_eq!(status, Some(141), "{line:?}");
        let full = std::fs::File::create("/dev/full").unwrap();
        let (status, errors) = run(full.into());
        assert_eq!(status, Some(1), "{line:?}");
        assert!(
            errors.contains("can't write to standard output"),
            "{line:?}: {errors}"
        );
        let mut closed = Command::new("sh");
        closed.args(["-c", "exec \"$0\" \"$@\" >&-"]);
        closed.arg(env!("CARGO_BIN_EXE_hugeswap")).args(line);
        let output = closed.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("can't write to standard output"),
            "{line:?}: {output:?}"
        );
    }
}

#[test]
fn doctor_speaks_json() {
    let output = hugeswap(&["doctor", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["works"].as_bool(), Some(output.status.success()));
    let checks = document["checks"].as_array().unwrap();
    for name in [
        "kernel",
        "faults in system calls",
        "huge pages",
        "io_uring",
        "swap",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}");
    }
    for check in checks {
        assert!(
            check["found"].is_string() && check["verdict"].is_string(),
            "{check}"
        );
    }
}

#[test]
fn doctor_finds_what_is_wrong() {
    let output = hugeswap(&["doctor", "--swap", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("MISSING  swap"), "{text}");
    assert!(text.contains("'hugeswap run' does not work here"), "{text}");
}

/// It takes what `run --swap` takes.
#[test]
fn doctor_takes_places_of_run() {
    for place in ["none", "/var/tmp,size=64M,priority=1", "./not-there-yet"] {
        let text = stdout(&hugeswap(&["doctor", "--swap", place]));
        assert!(text.contains("ok       swap"), "{place}: {text}");
    }
    let text = stdout(&hugeswap(&["doctor", "--swap", "/var/tmp,size=9999999G"]));
    assert!(text.contains("no room for"), "{text}");
}

#[test]
fn promote_says_what_is_wrong() {
    let says = |line: &[&str], what: &str| {
        let output = hugeswap(line);
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(output.stdout.is_empty(), "{line:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{line:?}: {text}");
        assert!(text.contains(what), "{line:?}: {text}");
    };
    says(&["promote", "--from", "4000"], "there is no node 4000");
    says(&["promote", "--simulate", "/nowhere"], "/nowhere");
    let trace = std::env::temp_dir().join(format!("hugeswap-trace-{}", std::process::id()));
    std::fs::write(&trace, "fast 1s/1G\nslow 2s/1G\nwalk\n").unwrap();
    let name = trace.to_str().unwrap();
    says(&["promote", "--simulate", name], "line 3: not understood");
    std::fs::remove_file(trace).unwrap();
}

#[test]
fn promote_simulates() {
    let trace =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../promote/traces/unmapped-page-cache.trace");
    let output = hugeswap(&["promote", "--json", "--simulate", trace.to_str().unwrap()]);
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let rounds = document["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 10);
    assert_eq!(document["sizes"].as_array().unwrap().len(), 6);
}

/// On any machine: it watches, says what it saw, and ends when asked to.
#[test]
fn promote_observes_once() {
    let output = hugeswap(&[
        "promote",
        "--observe",
        "--once",
        "--interval",
        "200ms",
        "--json",
    ]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let stats: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(stats["pgpromote_success"], 0);
    assert!(stats["slow_file_pages"].as_u64().unwrap() > 0);
}
