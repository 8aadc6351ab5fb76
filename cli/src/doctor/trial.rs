//! A short run, as a user would start one: what no single check sees is found there, a library that is damaged
//! for one.

use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::check::{Check, Verdict};
use hugeswap_host::cgroup::Own;
use hugeswap_host::os;
use hugeswap_host::size::MIB;
use hugeswap_host::sizing::LEAST_MEMORY;

/// The hidden command that is the program of that run.
pub const NAME: &str = "trial-program";
const RIGHT: &str = "right";
/// What it fills, and what a program that it starts fills.
const DATA: u64 = LEAST_MEMORY + 32 * MIB;
const DATA_OF_CHILD: u64 = 16 * MIB;
/// All that is in memory meanwhile, as swap is in memory too, and room for the rest.
const NEEDED: u64 = 2 * LEAST_MEMORY + 64 * MIB;
/// A slow machine takes a second.
const LIMIT: Duration = Duration::from_secs(60);

pub fn check() -> Check {
    let name = "trial run";
    let group = Own::find().ok().and_then(|own| own.room());
    let left = group.map_or(u64::MAX, |room| room.left);
    if left.min(os::available_memory().unwrap_or(u64::MAX)) < NEEDED {
        return Check::new(name, Verdict::Note, "not tried: too little memory is free");
    }
    match run() {
        Ok(()) => Check::ok(name, "80M in 48M of memory, out and back"),
        Err(why) => Check::new(name, Verdict::Missing, why)
            .so("programs of a run would fail like this one")
            .mend("install hugeswap and its library again, from one build"),
    }
}

fn run() -> Result<(), String> {
    let myself = std::env::current_exe().map_err(|e| format!("can't find my own file: {e}"))?;
    let mut child = Command::new(&myself)
        .args(["run", "--memory", "64M", "--swap", "ram", "--strict", "--"])
        .arg(&myself)
        .arg(NAME)
        // Faults on purpose are not for this run.
        .env_remove("HUGESWAP_INJECT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("can't start: {e}"))?;
    let (said, errors) = match listen(&mut child).recv_timeout(LIMIT) {
        Ok(heard) => heard,
        Err(_) => {
            // The run ends with its front.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("did not end within {} s", LIMIT.as_secs()));
        }
    };
    let status = child.wait().map_err(|e| e.to_string())?;
    if status.success() && said.trim() == RIGHT {
        return Ok(());
    }
    let how = match status.success() {
        true => "its memory was wrong".to_owned(),
        false => status.to_string(),
    };
    let why = errors
        .lines()
        .next()
        .map(|l| match l.strip_prefix("hugeswap: ") {
            Some(message) => format!("; {message}"),
            None => format!("; {l}"),
        });
    Err(format!("failed: {how}{}", why.unwrap_or_default()))
}

/// Both streams to their ends.
fn listen(child: &mut Child) -> mpsc::Receiver<(String, String)> {
    fn all(from: Option<impl Read>) -> String {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (to, from) = mpsc::channel();
    std::thread::spawn(move || to.send((all(out), all(err))));
    from
}

/// The program: fills more than its limit, starts another one, and looks at every word.
pub fn program(is_child: bool) -> ExitCode {
    let bytes = if is_child { DATA_OF_CHILD } else { DATA };
    let word = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words: Vec<u64> = (0..bytes / 8).map(word).collect();
    if !is_child && !starts_another() {
        return ExitCode::FAILURE;
    }
    if !(0..).zip(&words).all(|(i, &w)| w == word(i)) {
        return ExitCode::FAILURE;
    }
    if !is_child {
        outln!("{RIGHT}");
    }
    ExitCode::SUCCESS
}

fn starts_another() -> bool {
    let started =
        std::env::current_exe().and_then(|me| Command::new(me).args([NAME, "child"]).status());
    started.is_ok_and(|s| s.success())
}
