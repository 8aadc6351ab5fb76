//! `HUGESWAP_INJECT`: faults of the swap devices, for tests. docs/testing.md describes it.

use hugeswap_control::Faults;

use super::failure::{Failure, EXIT_USAGE};
use hugeswap_host::size::Size;

const NAME: &str = "HUGESWAP_INJECT";

/// What the environment asks for; nothing where it is silent. Says so, because a run with faults
/// must not be taken for another.
pub fn from_environment() -> Result<Faults, Failure> {
    let Some(text) = std::env::var_os(NAME).filter(|text| !text.is_empty()) else {
        return Ok(Faults::default());
    };
    let text = text.to_string_lossy();
    let faults = parse(&text).map_err(|why| Failure {
        code: EXIT_USAGE,
        message: format!("{NAME}: {why}"),
    })?;
    errln!("hugeswap: {NAME} is set, as in tests: the run has faults ({text})");
    Ok(faults)
}

fn parse(text: &str) -> Result<Faults, String> {
    let mut faults = Faults::default();
    for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        set(&mut faults, key, value)?;
    }
    Ok(faults)
}

fn set(faults: &mut Faults, key: &str, value: &str) -> Result<(), String> {
    match key {
        "read-eio" => {
            let (nth, every) = (&mut faults.read_nth, &mut faults.read_every);
            *which(key, value, nth, every)? = count(key, value)?;
        }
        "write-eio" => {
            let (nth, every) = (&mut faults.write_nth, &mut faults.write_every);
            *which(key, value, nth, every)? = count(key, value)?;
        }
        "bad-page" => faults.bad_page_every = only_every(key, value)?,
        "short" => faults.short_every = only_every(key, value)?,
        "seed" => faults.seed = number(key, value)?,
        "delay" => faults.hold = number(key, value)?,
        "reorder" if value.is_empty() => faults.reorder = 1,
        "turns" if value.is_empty() => faults.turns = 1,
        "no-space-after" if value == "0" => faults.full_at_plus_1 = 1,
        "no-space-after" => {
            let size: Size = value.parse().map_err(|e| format!("{key}: {e}"))?;
            faults.full_at_plus_1 = size.bytes().saturating_add(1);
        }
        "reorder" | "turns" => return Err(format!("{key} takes no value, not '{value}'")),
        _ => {
            return Err(format!(
                "'{key}' is none of read-eio, write-eio, bad-page, short, seed, delay, reorder, \
                 turns, no-space-after (see docs/testing.md)"
            ))
        }
    }
    Ok(())
}

/// The field that `nth:N` or `every:N` means.
fn which<'a>(
    key: &str,
    value: &str,
    nth: &'a mut u64,
    every: &'a mut u64,
) -> Result<&'a mut u64, String> {
    match value.split_once(':') {
        Some(("nth", _)) => Ok(nth),
        Some(("every", _)) => Ok(every),
        _ => Err(format!("{key}: '{value}' is neither nth:N nor every:N")),
    }
}

fn only_every(key: &str, value: &str) -> Result<u64, String> {
    match value.split_once(':') {
        Some(("every", _)) => count(key, value),
        _ => Err(format!("{key}: '{value}' is not every:N")),
    }
}

fn count(key: &str, value: &str) -> Result<u64, String> {
    match number(key, value.split_once(':').map_or(value, |(_, n)| n))? {
        0 => Err(format!("{key}: counted from 1, not 0")),
        n => Ok(n),
    }
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    value
        .parse()
        .map_err(|_| format!("{key}: '{value}' is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_field() {
        let text = "read-eio=nth:50,read-eio=every:9, write-eio=every:7,bad-page=every:640,\
                    short=every:3,seed=1,no-space-after=64M,delay=4,reorder,turns";
        let want = Faults {
            read_nth: 50,
            read_every: 9,
            write_nth: 0,
            write_every: 7,
            bad_page_every: 640,
            short_every: 3,
            full_at_plus_1: (64 << 20) + 1,
            hold: 4,
            reorder: 1,
            seed: 1,
            turns: 1,
        };
        assert_eq!(parse(text), Ok(want));
        assert_eq!(parse(""), Ok(Faults::default()));
        assert_eq!(parse("no-space-after=0").unwrap().full_at_plus_1, 1);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("read-oops=nth:1", "'read-oops' is none of"),
            ("read-eio=5", "neither nth:N nor every:N"),
            ("read-eio=nth:0", "counted from 1"),
            ("write-eio=every:x", "'x' is not a number"),
            ("short=nth:3", "not every:N"),
            ("no-space-after=12Q", "is not a size"),
            ("reorder=7", "takes no value"),
        ] {
            let got = parse(text).unwrap_err();
            assert!(got.contains(why), "{text}: {got}");
            assert_eq!(got.lines().count(), 1);
        }
    }
}
