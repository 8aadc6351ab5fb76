//! What a filter of system calls would say of a call: classic BPF over `struct seccomp_data`.

/// One instruction, as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A system call. Where it is made from, filters are not told.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub nr: i64,
    pub args: [usize; 6],
}

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const WORDS: usize = 16;

impl Call {
    /// The call goes on under this filter. One that is no proper filter forbids everything: the kernel
    /// does not take it.
    pub fn is_allowed(&self, filter: &[Instruction]) -> bool {
        let action = self.verdict(filter).unwrap_or(0) & libc::SECCOMP_RET_ACTION_FULL;
        matches!(action, libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG)
    }

    /// A word of `struct seccomp_data`, by its offset.
    fn data(&self, offset: u32) -> Option<u32> {
        let half = |v: u64, i: usize| (v >> (32 * (i % 2))) as u32;
        if offset % 4 != 0 {
            return None;
        }
        Some(match offset as usize / 4 {
            0 => self.nr as u32,
            1 => AUDIT_ARCH_X86_64,
            2 | 3 => 0,
            i @ 4..16 => half(self.args[(i - 4) / 2] as u64, i),
            _ => return None,
        })
    }

    /// What the filter returns; none if it is no proper one.
    fn verdict(&self, filter: &[Instruction]) -> Option<u32> {
        let (mut a, mut x) = (0u32, 0u32);
        let mut words = [0u32; WORDS];
        let mut at = 0usize;
        // Jumps go forward only, so this ends.
        loop {
            let i = filter.get(at)?;
            at += 1;
            let k = i.k;
            let operand = if i.code & 0x08 != 0 { x } else { k };
            match i.code {
                // Loads: a constant, a word of the data, the length of the data, a word of memory.
                0x00 => a = k,
                0x20 => a = self.data(k)?,
                0x80 => a = 64,
                0x60 => a = *words.get(k as usize)?,
                0x01 => x = k,
                0x81 => x = 64,
                0x61 => x = *words.get(k as usize)?,
                0x02 => *words.get_mut(k as usize)? = a,
                0x03 => *words.get_mut(k as usize)? = x,
                // Arithmetic, with a constant or with x.
                0x04 | 0x0c => a = a.wrapping_add(operand),
                0x14 | 0x1c => a = a.wrapping_sub(operand),
                0x24 | 0x2c => a = a.wrapping_mul(operand),
                0x34 | 0x3c => a = a.checked_div(operand)?,
                0x44 | 0x4c => a |= operand,
                0x54 | 0x5c => a &= operand,
                0x64 | 0x6c => a = a.checked_shl(operand).unwrap_or(0),
                0x74 | 0x7c => a = a.checked_shr(operand).unwrap_or(0),
                0x84 => a = a.wrapping_neg(),
                0x94 | 0x9c => a = a.checked_rem(operand)?,
                0xa4 | 0xac => a ^= operand,
                // Jumps: always, if equal, greater, not less, any bit of it.
                0x05 => at = at.checked_add(k as usize)?,
                0x15 | 0x1d => at += i.target(a == operand),
                0x25 | 0x2d => at += i.target(a > operand),
                0x35 | 0x3d => at += i.target(a >= operand),
                0x45 | 0x4d => at += i.target(a & operand != 0),
                0x06 => return Some(k),
                0x16 => return Some(a),
                0x07 => x = a,
                0x87 => a = x,
                _ => return None,
            }
        }
    }
}

impl Instruction {
    fn target(&self, taken: bool) -> usize {
        usize::from(if taken { self.jt } else { self.jf })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const ERRNO: u32 = libc::SECCOMP_RET_ERRNO | 1;

    fn call(nr: i64, args: [usize; 6]) -> Call {
        Call { nr, args }
    }

    /// As libseccomp makes them: the architecture, the number, an argument of 64 bits.
    #[test]
    fn by_number_and_arguments() {
        let filter = [
            op(0x20, 0, 0, 4),
            op(0x15, 0, 6, 0xc000_003e),
            op(0x20, 0, 0, 0),
            op(0x15, 5, 0, 0),
            op(0x15, 0, 3, libc::SYS_mprotect as u32),
            op(0x20, 0, 0, 16 + 2 * 8),
            op(0x45, 1, 0, libc::PROT_EXEC as u32),
            op(0x06, 0, 0, ALLOW),
            op(0x06, 0, 0, ERRNO),
            op(0x06, 0, 0, libc::SECCOMP_RET_LOG),
        ];
        let allowed = |nr, args| call(nr, args).is_allowed(&filter);
        assert!(allowed(libc::SYS_read, [0; 6]));
        assert!(allowed(libc::SYS_mprotect, [0, 0, 3, 0, 0, 0]));
        assert!(!allowed(libc::SYS_mprotect, [0, 0, 5, 0, 0, 0]));
        assert!(!call(libc::SYS_mprotect, [0, 0, 4, 0, 0, 0]).is_allowed(&filter));
        // The upper half of an argument.
        let upper = [op(0x20, 0, 0, 16 + 4), op(0x16, 0, 0, 0)];
        let high = (ALLOW as usize) << 32;
        assert!(call(0, [high, 0, 0, 0, 0, 0]).is_allowed(&upper));
        assert!(!call(0, [0, high, 0, 0, 0, 0]).is_allowed(&upper));
    }

    #[test]
    fn arithmetic_and_memory() {
        // ((nr + 5) * 3 - 1) ^ 2, by way of memory and x.
        let filter = [
            op(0x20, 0, 0, 0),
            op(0x04, 0, 0, 5),
            op(0x24, 0, 0, 3),
            op(0x02, 0, 0, 7),
            op(0x01, 0, 0, 1),
            op(0x60, 0, 0, 7),
            op(0x1c, 0, 0, 0),
            op(0xa4, 0, 0, 2),
            op(0x16, 0, 0, 0),
        ];
        assert_eq!(call(10, [0; 6]).verdict(&filter), Some(44 ^ 2));
        let shift = [op(0x00, 0, 0, 1), op(0x64, 0, 0, 40), op(0x16, 0, 0, 0)];
        assert_eq!(call(10, [0; 6]).verdict(&shift), Some(0));
    }

    #[test]
    fn what_is_no_filter_allows_nothing() {
        let bad = [
            vec![],
            vec![op(0x15, 200, 200, 0)],
            vec![op(0x05, 0, 0, u32::MAX)],
            vec![op(0x20, 0, 0, 64), op(0x06, 0, 0, ALLOW)],
            vec![op(0x20, 0, 0, 3), op(0x06, 0, 0, ALLOW)],
            vec![op(0x60, 0, 0, 16), op(0x06, 0, 0, ALLOW)],
            vec![op(0x34, 0, 0, 0), op(0x06, 0, 0, ALLOW)],
            vec![op(0xffff, 0, 0, 0), op(0x06, 0, 0, ALLOW)],
        ];
        for filter in bad {
            assert!(!call(1, [1; 6]).is_allowed(&filter), "{filter:?}");
        }
        assert!(call(1, [1; 6]).is_allowed(&[op(0x06, 0, 0, ALLOW)]));
    }
}
