//! A strategy as runs of sub-pages, each with its kind of stores. Pure.

use super::order::{ranges, run, Chunks, Run, TargetLast, LOCALITY_RADIUS};
use super::strategy::Strategy;

/// Sub-pages that [`Strategy::Chunks`] writes in one piece: 512 KiB, half of a
/// usual second-level cache, so that the last piece is still there.
const CHUNK: usize = 128;

/// Sub-pages after the target that [`Strategy::Streaming`] leaves in the cache.
pub(super) const STREAM_WINDOW: usize = 16;

/// Sub-pages of a page that fits the second-level cache whole, so that any
/// order leaves it there and one large run is fastest: [`Strategy::Auto`] then
/// only warms the target.
pub(super) const SMALL: usize = 128;

/// Sub-pages of a page that is in the first-level cache anyway, or so small that
/// warming the target costs more than it gives.
pub(super) const TINY: usize = 4;

/// How a run is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// The fastest loop for a large run; the lines end up in some cache.
    Block,
    /// The compiler's copy or fill, in any direction.
    Plain,
    /// The fastest loop for one sub-page among many that are not contiguous.
    Single,
    /// Vector stores: the lines end up in the first-level cache.
    Near,
    /// Past the caches, where there are such stores.
    Stream,
}

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub run: Run,
    pub stores: Stores,
    /// First sub-page of the next step, for prefetch; the own one at the end.
    pub next: usize,
}

/// Calls `f` for every step of the plan for `nr` sub-pages with target
/// `n < nr`. `window` is the number of sub-pages that [`Strategy::Auto`] leaves
/// in the cache.
#[inline]
pub(super) fn each(
    nr: usize,
    n: usize,
    strategy: Strategy,
    window: usize,
    mut f: impl FnMut(Step),
) {
    let mut step = |run: Run, stores| {
        f(Step {
            run,
            stores,
            next: run.first,
        })
    };
    match strategy {
        Strategy::Ascending => step(Run { first: 0, nr }, Stores::Block),
        Strategy::TargetLast => {
            let mut order = TargetLast::new(nr, n).peekable();
            while let Some(first) = order.next() {
                let near = first.abs_diff(n) <= LOCALITY_RADIUS;
                f(Step {
                    run: Run { first, nr: 1 },
                    stores: if near { Stores::Near } else { Stores::Single },
                    next: order.peek().copied().unwrap_or(first),
                });
            }
        }
        Strategy::Ranges => {
            for run in ranges(nr, n).into_iter().flatten() {
                step(run, Stores::Block);
            }
        }
        Strategy::Chunks => chunks(Chunks::new(nr, n, CHUNK), step),
        Strategy::Streaming => streaming(nr, n, STREAM_WINDOW, step),
        Strategy::Auto if nr == 1 => step(Run { first: 0, nr }, Stores::Near),
        Strategy::Auto if nr <= SMALL => step(Run { first: 0, nr }, Stores::Plain),
        Strategy::Auto if nr <= window => chunks(Chunks::new(nr, n, CHUNK), step),
        Strategy::Auto => streaming(nr, n, window.max(STREAM_WINDOW), step),
    }
}

/// As [`each`], for a clear. There is no source whose lines compete, so that
/// what counts within the window is few runs: right of the target, then up to
/// it. The caller warms the target.
#[inline]
pub(super) fn each_of_clear(
    nr: usize,
    n: usize,
    strategy: Strategy,
    window: usize,
    mut f: impl FnMut(Step),
) {
    if strategy != Strategy::Auto || nr <= SMALL || nr > window {
        return each(nr, n, strategy, window, f);
    }
    for run in [run(n + 1, nr), run(0, n + 1)].into_iter().flatten() {
        f(Step {
            run,
            stores: Stores::Block,
            next: run.first,
        });
    }
}

fn chunks(mut chunks: Chunks, mut step: impl FnMut(Run, Stores)) {
    while let Some((run, near)) = chunks.next_run() {
        step(run, if near { Stores::Near } else { Stores::Block });
    }
}

/// Streams all but the target's neighbourhood and the `window` sub-pages after
/// the target, and then those, in chunks.
fn streaming(nr: usize, n: usize, window: usize, mut step: impl FnMut(Run, Stores)) {
    let lo = n.saturating_sub(LOCALITY_RADIUS);
    let end = end_of(nr, n, window);
    for run in [run(0, lo), run(end, nr)].into_iter().flatten() {
        step(run, Stores::Stream);
    }
    let offset = |run: Run| Run {
        first: run.first + lo,
        nr: run.nr,
    };
    chunks(Chunks::new(end - lo, n - lo, CHUNK), |run, stores| {
        step(offset(run), stores)
    });
}

/// End of the `radius` sub-pages after `n`.
const fn end_of(nr: usize, n: usize, radius: usize) -> usize {
    if nr - n <= radius {
        nr
    } else {
        n + radius + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sub_page_once_and_the_target_last() {
        let sizes: &[usize] = if cfg!(miri) {
            &[1, 4, 17]
        } else {
            &[1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 128, 131, 256, 512, 1024]
        };
        for &nr in sizes {
            for n in 0..nr {
                let windows = [0, 20, 300, usize::MAX];
                for (i, strategy) in Strategy::ALL.into_iter().cycle().take(48).enumerate() {
                    let window = windows[i / Strategy::ALL.len() % 4];
                    let clear = i >= 24;
                    let mut seen = vec![false; nr];
                    let mut last = nr;
                    let mut visit = |s: Step| {
                        assert!(s.run.nr > 0 && s.next < nr);
                        let end = s.run.first + s.run.nr;
                        let slots = &mut seen[s.run.first..end];
                        assert!(slots.iter().all(|s| !s), "twice: {s:?}");
                        slots.fill(true);
                        last = end - 1;
                    };
                    if clear {
                        each_of_clear(nr, n, strategy, window, &mut visit);
                    } else {
                        each(nr, n, strategy, window, &mut visit);
                    }
                    assert!(seen.into_iter().all(|s| s), "{strategy:?} {nr} {n}");
                    match strategy {
                        Strategy::Ascending => assert_eq!(last, nr - 1),
                        Strategy::Auto if nr <= SMALL => assert_eq!(last, nr - 1),
                        Strategy::Ranges => assert!(last.abs_diff(n) <= LOCALITY_RADIUS),
                        _ => assert_eq!(last, n, "{strategy:?} {nr}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_neighbourhood_is_never_streamed() {
        for nr in [1, 2, 8, 64, 512] {
            for n in 0..nr {
                each(nr, n, Strategy::Streaming, nr, |s| {
                    let near = n.saturating_sub(LOCALITY_RADIUS)..n + STREAM_WINDOW + 1;
                    let end = s.run.first + s.run.nr;
                    if s.stores == Stores::Stream {
                        assert!(end <= near.start || s.run.first >= near.end);
                    }
                });
            }
        }
    }
}
