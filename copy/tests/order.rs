//! The order of sub-pages against the reference's algorithm.

use hugeswap_page_copy::{ranges, TargetLast, LOCALITY_RADIUS};

/// The algorithm as `kernel-facts` states it, in its own shape.
fn reference(nr: usize, n: usize) -> Vec<usize> {
    let mut out = Vec::with_capacity(nr);
    let (base, l) = if 2 * n <= nr {
        out.extend((2 * n..nr).rev());
        (0, n)
    } else {
        let base = nr - 2 * (nr - n);
        out.extend(0..base);
        (base, nr - n)
    };
    for i in 0..l {
        out.push(base + i);
        out.push(base + 2 * l - 1 - i);
    }
    out
}

/// Every sub-page once, target last, neighbours just before it.
fn check(nr: usize, n: usize) {
    let order: Vec<usize> = TargetLast::new(nr, n).collect();
    assert_eq!(order, reference(nr, n), "{nr} sub-pages, target {n}");
    assert_eq!(TargetLast::new(nr, n).len(), nr);

    let mut seen = vec![false; nr];
    for &i in &order {
        assert!(!core::mem::replace(&mut seen[i], true), "{i} twice");
    }
    assert_eq!(order.len(), nr);

    assert_eq!(order[nr - 1], n);
    if n > 0 {
        assert_eq!(order[nr - 2], n - 1, "left neighbour, {nr} {n}");
    }
    // The right neighbour comes just before the left one.
    if n + 1 < nr {
        let from_end = order.iter().rev().position(|&i| i == n + 1).unwrap();
        assert_eq!(
            from_end,
            1 + usize::from(n > 0),
            "right neighbour, {nr} {n}"
        );
    }
}

#[test]
fn all_targets_of_orders_0_to_12() {
    let top: usize = if cfg!(miri) { 4 } else { 12 };
    for order in 0..=top {
        for n in 0..1 << order {
            check(1 << order, n);
        }
    }
}

#[test]
fn all_targets_of_sizes_that_are_no_power_of_two() {
    let top: usize = if cfg!(miri) { 20 } else { 200 };
    for nr in 1..top {
        for n in 0..nr {
            check(nr, n);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "under Miri a gigabyte takes too long")]
fn some_targets_of_a_gigabyte_page() {
    let nr = 1 << 18;
    for n in [0, 1, 2, nr / 2 - 1, nr / 2, nr / 2 + 1, nr - 2, nr - 1] {
        check(nr, n);
    }
}

#[test]
fn ranges_are_right_left_neighbourhood() {
    let top: usize = if cfg!(miri) { 20 } else { 600 };
    for nr in 1..top {
        for n in 0..nr {
            let lo = n.saturating_sub(LOCALITY_RADIUS);
            let hi = (n + LOCALITY_RADIUS + 1).min(nr);
            let want: Vec<usize> = (hi..nr).chain(0..lo).chain(lo..hi).collect();
            let runs = ranges(nr, n);
            let got: Vec<usize> = runs
                .iter()
                .flatten()
                .flat_map(|r| r.first..r.first + r.nr)
                .collect();
            assert_eq!(got, want, "{nr} sub-pages, target {n}");
        }
    }
}
