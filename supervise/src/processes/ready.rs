//! The tokens by which the poller says what is ready.

/// What is ready is the upper half of a token, the lower half a number.
pub const LISTENING: u32 = 0;
pub const BELL: u32 = 1;
pub const GUEST: u32 = 2;
pub const SOCKET: u32 = 3;
pub const PROCESS: u32 = 4;
pub const ORPHAN: u32 = 5;
pub const DOOR: u32 = 6;

pub fn token(kind: u32, number: u32) -> u64 {
    u64::from(kind) << 32 | u64::from(number)
}
