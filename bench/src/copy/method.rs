//! What is compared: the module's strategies, the C library, the kernel.

use hugeswap_mm::PAGE_SIZE;
use hugeswap_page_copy::{self as copy, Isa, Strategy};

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `memcpy` or `memset` of the C library, one call.
    Libc,
    /// The same, called for each sub-page from begin to end: what the kernel's
    /// loop did before the reference.
    SubPages,
    Ours(Strategy),
    /// The kernel's own fault: copy-on-write, or zero-fill of a huge page.
    Kernel,
    /// The same in a program under `hugeswap run`.
    Managed,
}

/// What is done to the huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Op {
    Copy,
    Clear,
}

impl Op {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Clear => "clear",
        }
    }
}

impl Method {
    /// The C library in both ways and every strategy.
    pub fn all() -> Vec<Self> {
        let ours = Strategy::ALL.into_iter().map(Self::Ours);
        [Self::Libc, Self::SubPages]
            .into_iter()
            .chain(ours)
            .collect()
    }

    pub const fn name(self, op: Op) -> &'static str {
        match (self, op) {
            (Self::Libc, Op::Copy) => "libc memcpy",
            (Self::Libc, Op::Clear) => "libc memset",
            (Self::SubPages, _) => "sub-pages",
            (Self::Kernel, _) => "kernel",
            (Self::Managed, _) => "hugeswap run",
            (Self::Ours(strategy), _) => strategy.name(),
        }
    }

    /// Copies or clears one huge page. For the kernel's clear, nothing is
    /// mapped at `dst` yet ([`Self::prepare`]).
    ///
    /// # Safety
    /// `dst` is writable and, for a copy, `src` readable for `len` bytes, and
    /// they are disjoint.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn apply(
        self,
        op: Op,
        isa: Isa,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        target: usize,
    ) -> Result<(), String> {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match (self, op) {
                (Self::Libc, Op::Copy) => {
                    libc::memcpy(dst.cast(), src.cast(), len);
                }
                (Self::Libc, Op::Clear) => {
                    libc::memset(dst.cast(), 0, len);
                }
                (Self::SubPages, Op::Copy) => {
                    for at in (0..len).step_by(PAGE_SIZE) {
                        libc::memcpy(dst.add(at).cast(), src.add(at).cast(), PAGE_SIZE);
                    }
                }
                (Self::SubPages, Op::Clear) => {
                    for at in (0..len).step_by(PAGE_SIZE) {
                        libc::memset(dst.add(at).cast(), 0, PAGE_SIZE);
                    }
                }
                (Self::Ours(strategy), Op::Copy) => {
                    copy::copy_raw_on(isa, dst, src, len, target, strategy)
                        .map_err(|e| e.to_string())?;
                }
                (Self::Ours(strategy), Op::Clear) => {
                    copy::clear_raw_on(isa, dst, len, target, strategy)
                        .map_err(|e| e.to_string())?;
                }
                (Self::Kernel, Op::Clear) => {
                    dst.add(target * PAGE_SIZE).write_volatile(0);
                }
                (Self::Kernel, Op::Copy) => {
                    return Err("the kernel copies only on a shared page".into());
                }
                (Self::Managed, _) => return Err("that is a program of its own".into()),
            }
        }
        Ok(())
    }

    /// Before the clock starts: takes the page away that the kernel is to
    /// fault in.
    ///
    /// # Safety
    /// `dst` is anonymous memory of `len` bytes whose contents nobody needs.
    pub unsafe fn prepare(self, dst: *mut u8, len: usize) {
        if self == Self::Kernel {
            // SAFETY: the caller gives the contents up.
            unsafe { libc::madvise(dst.cast(), len, libc::MADV_DONTNEED) };
        }
    }
}
