//! What of the window is bare: unmapped where nobody has mapped anything, and mapped again once there is
//! enough of it.

use crate::frame::Result;
use crate::maps::holes;
use crate::state::state;
use hugeswap::engine::Engine;
use hugeswap::sys::mem;

/// What of the window nobody has mapped there is really unmapped: so that the kernel says of the stretch
/// what it would say without us. It is reserved.
pub fn lay_bare(start: usize, end: usize) -> Result<()> {
    let free = state().lock().window.take_free(start, end);
    for (i, &(from, to)) in free.iter().enumerate() {
        // SAFETY: nobody uses it.
        if let Err(err) = unsafe { mem::munmap(from, to - from) } {
            let mut s = state().lock();
            for &(from, to) in &free[i..] {
                s.window.give(from, to);
            }
            return Err(err);
        }
        let mut s = state().lock();
        s.regions.remove(from, to);
        s.window.strip(from, to);
    }
    Ok(())
}

/// Maps and registers what was unmapped of the window, once that is worth a request.
pub fn refill(e: &Engine, bell: usize) {
    let Some(bare) = state().lock().window.take_bare() else {
        return;
    };
    let mut mapped = Vec::with_capacity(bare.len());
    // SAFETY: nothing is replaced.
    let map =
        |from: usize, to: usize| unsafe { mem::map_at_noreplace(from, to - from, libc::PROT_NONE) };
    for stretch @ (from, to) in bare.iter() {
        match map(from, to) {
            Ok(()) => mapped.push(stretch),
            // The program has mapped something there, by a call that we have not seen, or one that has
            // yet to say so: that stays.
            Err(_) => {
                let holes = holes(e, bell, stretch);
                state().lock().found_taken(from, to);
                for (from, to) in holes {
                    state().lock().unmapped(&[(from, to)]);
                    if map(from, to).is_ok() {
                        mapped.push((from, to));
                    }
                }
            }
        }
    }
    let registered = e.register_all(bell, &mapped).is_ok();
    let mut s = state().lock();
    for (from, to) in mapped {
        if registered {
            s.window.claim(from, to);
            s.regions.insert(from, to);
            s.window.give(from, to);
        }
    }
}
