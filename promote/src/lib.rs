//! Promotion of hot, unmapped page cache.
//!
//! It uses nothing of the other rooms, and may not: the daemon works without a run and without the engine.
//! `cli` is its command line.
//!
//! File pages that were demoted to slow memory (a node without processors) and
//! are only read by `read` stay there: the kernel promotes mapped pages only.
//! Here they are brought back from user space, on a stock kernel. The modules,
//! each using only those above it:
//!
//! * `page`: what is counted and named;
//! * `records`: what perf writes, taken apart;
//! * `sys`: the system calls, and the only unsafe code;
//! * `rate`, `hot`, `queue`, `backoff`, `policy`: what is promoted, when, and when not;
//! * `credit`, `pace`, `ledger`: what looking and all else may cost, and has cost;
//! * `tiers`, `trace`, `place`, `files`: what the kernel knows and can do;
//! * `machine`: all that is asked of the machine, by one trait;
//! * `readers`: which processes read what, and where;
//! * `stats`, `daemon`: all of it together;
//! * `simulate`: the same policy over a trace and a model of two tiers.
#![deny(unsafe_code)]

pub mod backoff;
pub mod credit;
pub mod daemon;
pub mod files;
pub mod hot;
pub mod ledger;
pub mod machine;
pub mod pace;
pub mod page;
pub mod place;
pub mod policy;
pub mod queue;
pub mod rate;
pub mod readers;
pub mod records;
pub mod simulate;
pub mod stats;
pub mod sys;
pub mod tiers;
pub mod trace;
