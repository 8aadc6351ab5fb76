//! Who has connected and has not said yet what it is.

use std::os::fd::OwnedFd;

use hugeswap_control::link::Request;

use crate::sys::Process;

pub struct Guest {
    pub socket: OwnedFd,
    pub pid: u32,
    pub process: Option<Process>,
    pub said: Option<Request>,
    /// It came by a door: what it says must be from the process that has made the connection.
    pub by_door: bool,
}
