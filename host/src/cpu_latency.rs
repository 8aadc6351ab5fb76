//! How deeply idle processors of this machine may sleep (PM QoS, Documentation/power/pm_qos_interface.rst).
//!
//! A virtual processor that has nothing to do halts: the host takes it away, and an interrupt or another processor's call
//! brings it back 20 to 60 µs later. A program that waits for a page from a quick disk waits for that twice and more.
//! With a latency of zero idle processors poll instead, where the kernel has a driver that can (`cpuidle`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};

const DEVICE: &str = "/dev/cpu_dma_latency";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// On larger machines more than the run's processors would poll for it.
pub const FEW_CPUS: usize = 8;

/// Holds the machine's latency at a value as long as it lives, also when its owner is killed.
pub struct Request(#[allow(dead_code)] File);

impl Request {
    pub fn new(microseconds: u32) -> io::Result<Request> {
        let mut file = OpenOptions::new().write(true).open(DEVICE)?;
        let value = i32::try_from(microseconds).unwrap_or(i32::MAX);
        file.write_all(&value.to_ne_bytes())?;
        Ok(Request(file))
    }
}

/// Why it is not worth it here, or not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Not {
    /// Processors of the machine itself wake in a few microseconds.
    Real,
    ManyCpus,
    /// Nothing can have them poll.
    NoDriver,
    Denied,
}

impl Not {
    pub fn why(self) -> &'static str {
        match self {
            Not::Real => "this is no virtual machine",
            Not::ManyCpus => "too many processors would poll",
            Not::NoDriver => "the kernel has no driver for idle processors",
            Not::Denied => "/dev/cpu_dma_latency can't be written",
        }
    }
}

/// Whether idle processors should poll, and can, while pages are waited for.
pub fn should_poll() -> Result<(), Not> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !is_virtual(&cpuinfo) {
        return Err(Not::Real);
    }
    // All that are online, for all of them would poll.
    if count(&cpuinfo) > FEW_CPUS {
        return Err(Not::ManyCpus);
    }
    match fs::read_to_string(DRIVER) {
        Ok(name) if name.trim() != "none" => {}
        _ => return Err(Not::NoDriver),
    }
    let open = OpenOptions::new().write(true).open(DEVICE);
    open.map(drop).map_err(|_| Not::Denied)
}

fn count(cpuinfo: &str) -> usize {
    let is_one = |l: &&str| l.starts_with("processor") && l.contains(':');
    cpuinfo.lines().filter(is_one).count()
}

fn is_virtual(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter(|l| l.starts_with("flags"));
    flags.any(|l| l.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_is_told_by_its_flags() {
        let of =
            |flags: &str| is_virtual(&format!("processor : 0\nflags\t\t: {flags}\nbugs : x\n"));
        assert!(of("fpu hypervisor lahf_lm"));
        assert!(!of("fpu lahf_lm"));
        assert!(!is_virtual("bugs : hypervisor\n"));
        assert!(!is_virtual(""));
    }

    #[test]
    fn processors_are_counted() {
        let two = "processor\t: 0\nmodel : processor x\n\nprocessor\t: 1\n";
        assert_eq!((count(two), count("")), (2, 0));
    }
}
