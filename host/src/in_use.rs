//! A swap file or device that a run which has just ended still holds.

use std::thread;
use std::time::{Duration, Instant};

use hugeswap_device::OpenError;

/// After the last process of a run the kernel takes down its rings, and the memory of those that were killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nothing is said.
const QUIET: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(20);

/// Opens it, and waits for it if it is in use.
pub fn wait_until_free<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let began = Instant::now();
    let mut is_said = false;
    loop {
        let opened = open();
        let Err(OpenError::InUse { path }) = &opened else {
            return opened;
        };
        if began.elapsed() > PATIENCE {
            return opened;
        }
        if !is_said && began.elapsed() > QUIET {
            is_said = true;
            errln!(
                "hugeswap: '{}' is in use: waiting up to {} s, in case a run is ending there",
                path.display(),
                PATIENCE.as_secs()
            );
        }
        thread::sleep(PAUSE);
    }
}
