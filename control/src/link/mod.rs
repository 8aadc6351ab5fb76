//! How processes of a run speak with its supervisor: packets on a Unix socket, with descriptors.
//!
//! A new image of a program finds the supervisor by an [`Address`] in its environment. The kernel says
//! who speaks; a process is never believed which one it is.

mod address;
mod message;
mod packet;
mod socket;
#[cfg(test)]
mod tests;

pub use address::{knock, Address, Door, ENV};
pub use message::{group_name, Also, GroupName, Place, Reply, Request, Secret};
pub use packet::{pass, take, Descriptors, Received, MOST_FDS, MOST_NAME};
pub use socket::{accept, listen, name_no_sender, name_sender, pair};
