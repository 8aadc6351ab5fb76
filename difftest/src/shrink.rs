//! Makes a failing run short: leaves out pieces of its operations, ever smaller ones, as long as
//! it still fails (Zeller's delta debugging).

use crate::args::Args;
use crate::batch::{self, Batch};
use crate::plan::{Mixture, Rng, STEPS};
use std::time::{Duration, Instant};

/// A failure that depends on timing is tried so often before its piece counts as needed.
const TRIES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(600);

pub fn report(args: &Args, batch: &Batch, trace: &[u64]) {
    println!("shrinking {} operations", trace.len());
    let start = Instant::now();
    let mut last = String::new();
    let mut fails = |keep: &[u64]| {
        let cut = Args {
            timeout: args.timeout.min(30),
            ..args.clone()
        };
        (0..TRIES).any(|_| match batch::one(&cut, batch, Some(keep)) {
            Ok(out) => out.failure.map(|f| last = f).is_some(),
            Err(_) => false,
        })
    };
    if !fails(trace) {
        println!("it does not happen again: a matter of timing");
        return;
    }
    let short = shrink(trace.to_vec(), &mut |keep| {
        start.elapsed() < PATIENCE && fails(keep)
    });
    let mixture = Mixture::new(&args.without, &args.only);
    println!("{} operations are enough: {last}", short.len());
    for id in short {
        let (_, name) = mixture.pick(&mut Rng::new(batch.seed, id));
        if id < 1 << 63 {
            println!("  sequence {} operation {id:#x} {name}", id / STEPS);
        } else {
            println!("  in a child, operation {id:#x} {name}");
        }
    }
}

/// The shortest list that still fails, as far as leaving out pieces finds it.
fn shrink(mut list: Vec<u64>, fails: &mut dyn FnMut(&[u64]) -> bool) -> Vec<u64> {
    let mut piece = list.len().div_ceil(2);
    while piece > 0 && list.len() > 1 {
        let mut at = 0;
        let mut shorter = false;
        while at < list.len() {
            let mut rest = list[..at].to_vec();
            rest.extend_from_slice(&list[(at + piece).min(list.len())..]);
            if !rest.is_empty() && fails(&rest) {
                list = rest;
                eprintln!("{} operations left", list.len());
                shorter = true;
            } else {
                at += piece;
            }
        }
        if !shorter || piece > 1 {
            piece /= 2;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_is_left() {
        let mut asked = 0;
        let mut fails = |keep: &[u64]| {
            asked += 1;
            [3, 77, 400].iter().all(|n| keep.contains(n))
        };
        assert_eq!(shrink((0..500).collect(), &mut fails), [3, 77, 400]);
        assert!(asked < 200, "{asked}");
    }
}
