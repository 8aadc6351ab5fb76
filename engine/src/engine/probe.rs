//! What this kernel can do, tried out at start.

use crate::control::Settings;
use crate::swap_cache::Abilities;
use crate::sys::uffd::{self, Needs, Source, Uffd};
use crate::sys::{pagemap, Errno};

/// Opens the program's userfaultfd with every feature that helps and is there.
pub fn open_program(needs: Needs, no_move: bool) -> Result<(Uffd, Source, u64), Errno> {
    let full = uffd::FEATURE_PAGEFAULT_FLAG_WP
        | uffd::FEATURE_THREAD_ID
        | uffd::FEATURE_POISON
        | uffd::FEATURE_MOVE;
    let sets = [
        full,
        full & !uffd::FEATURE_MOVE,
        uffd::FEATURE_PAGEFAULT_FLAG_WP | uffd::FEATURE_THREAD_ID,
    ];
    let mut last = Errno::EINVAL;
    for features in sets {
        if no_move && features & uffd::FEATURE_MOVE != 0 {
            continue;
        }
        match Uffd::open(features, needs) {
            Ok((u, source)) => return Ok((u, source, features)),
            // EINVAL: a feature is unknown to this kernel.
            Err(Errno::EINVAL) => last = Errno::EINVAL,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Finds out what `features` does not say, unless the supervisor has.
pub fn abilities(features: u64, settings: &Settings) -> Abilities {
    let mv = features & uffd::FEATURE_MOVE != 0;
    let pt_reclaim = || settings.frees_page_tables != 0 || pagemap::frees_page_tables() == Ok(true);
    Abilities {
        mv,
        pt_reclaim: mv && pt_reclaim(),
        poison: features & uffd::FEATURE_POISON != 0,
    }
}
