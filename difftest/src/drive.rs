//! Runs workers, one batch of sequences after the other, until one finds something.

use crate::args::Args;
use crate::batch::{one, Batch};
use crate::plan::mix;
use crate::shrink;
use std::time::{Duration, Instant};

/// Runs the whole; the exit status.
pub fn run(args: &Args) -> i32 {
    let start = Instant::now();
    let mut done = 0;
    println!(
        "hugeswap-difftest: seed {}, {} MiB of data at most, under '{}'",
        args.seed,
        args.data,
        args.under.join(" ")
    );
    for k in 0.. {
        let over = match args.minutes {
            Some(m) => start.elapsed() >= Duration::from_secs(60 * m),
            None => done >= args.sequences,
        };
        if over {
            break;
        }
        let sequences = match args.minutes {
            Some(_) => args.batch,
            None => args.batch.min(args.sequences - done),
        };
        let batch = Batch {
            // The first batch has the seed itself, so that a failure's line repeats it.
            seed: if k == 0 {
                args.seed
            } else {
                mix(args.seed ^ mix(k))
            },
            sequences,
        };
        let out = match one(args, &batch, None) {
            Ok(out) => out,
            Err(e) => {
                eprintln!("hugeswap-difftest: {e}");
                return 125;
            }
        };
        if let Some(failure) = out.failure {
            println!("seed {} ({} sequences): {failure}", batch.seed, sequences);
            if !args.no_shrink {
                shrink::report(args, &batch, &out.trace);
            }
            return 1;
        }
        done += sequences;
    }
    println!(
        "{done} sequences in {:.0} s, no difference",
        start.elapsed().as_secs_f64()
    );
    0
}
