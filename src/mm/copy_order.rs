//! The order in which the sub-pages of a folio are copied: the target last, so that its cache
//! lines are the warmest when the faulting instruction runs again.

/// Calls `visit` once for each sub-page `0..pages`, the sub-page `target` last and its neighbours
/// shortly before it.
///
/// The side of the target that is longer is walked first, straight towards it; what remains is
/// symmetric around the target and is walked from both ends to the middle.
pub fn target_last(pages: usize, target: usize, mut visit: impl FnMut(usize)) {
    if pages == 0 {
        return;
    }
    let target = target.min(pages - 1);
    let (base, pairs) = if 2 * target <= pages {
        for page in (2 * target..pages).rev() {
            visit(page);
        }
        (0, target)
    } else {
        let base = 2 * target - pages;
        for page in 0..base {
            visit(page);
        }
        (base, pages - target)
    };
    for i in 0..pairs {
        visit(base + i);
        visit(base + 2 * pairs - 1 - i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(pages: usize, target: usize) -> Vec<usize> {
        let mut seen = Vec::new();
        target_last(pages, target, |page| seen.push(page));
        seen
    }

    #[test]
    fn every_page_once_and_the_target_last() {
        for pages in [1, 2, 3, 4, 5, 16, 511, 512] {
            for target in 0..pages {
                let mut seen = order(pages, target);
                assert_eq!(seen.last(), Some(&target), "{pages} pages");
                seen.sort_unstable();
                assert!(seen.iter().copied().eq(0..pages), "{target} of {pages}");
            }
        }
    }

    #[test]
    fn neighbours_come_shortly_before() {
        assert_eq!(order(8, 2), [7, 6, 5, 4, 0, 3, 1, 2]);
        assert_eq!(order(8, 6), [0, 1, 2, 3, 4, 7, 5, 6]);
    }
}
