//! Who has connected and has not said yet what it is.

use std::os::fd::OwnedFd;

use hugeswap_control::link::Request;

use crate::sys::Process;

/// How a guest has found the supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// By its address.
    ToTheSupervisor,
    /// By a door: what it says must be from the process that has made the connection.
    ByDoor,
}

pub struct Guest {
    pub socket: OwnedFd,
    pub pid: u32,
    pub process: Option<Process>,
    pub said: Option<Request>,
    pub came: Came,
}
