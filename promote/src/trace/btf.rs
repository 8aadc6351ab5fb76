//! The kernel's own description of its types (BTF), as far as needed to learn where in a structure
//! a member is. Nothing in it is trusted: what does not fit is as if it were not there.

use std::io;

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// Structures without a name within each other; the kernel has three at most.
const DEEPEST: usize = 8;

/// Where a type begins that something else is said about: `typedef`, `volatile`, `const`,
/// `restrict` and a tag.
fn is_modifier(kind: u32) -> bool {
    matches!(kind, 8..=11 | 18)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

pub struct Btf {
    bytes: Vec<u8>,
    /// Where each type is; number 0 is `void` and is nowhere.
    types: Vec<u32>,
    /// Begin and end of the names.
    strings: (usize, usize),
}

#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    members: u32,
    /// Offsets of members have the size of a bit field with them.
    fields: bool,
    /// Bytes, or which type it is of.
    size: u32,
    /// Where its members begin.
    body: usize,
}

impl Btf {
    /// Of the running kernel.
    pub fn kernel() -> io::Result<Btf> {
        let path = "/sys/kernel/btf/vmlinux";
        let told = |err: io::Error| io::Error::new(err.kind(), format!("{path}: {err}"));
        let bytes = std::fs::read(path).map_err(told)?;
        Btf::parse(bytes).ok_or_else(|| told(io::ErrorKind::InvalidData.into()))
    }

    pub fn parse(bytes: Vec<u8>) -> Option<Btf> {
        if bytes.get(0..2)? != MAGIC.to_le_bytes() || *bytes.get(2)? != 1 {
            return None;
        }
        let number = |at| Some(word(&bytes, at)? as usize);
        let header = number(4)?;
        let section = |at: usize| -> Option<(usize, usize)> {
            let begin = header.checked_add(number(at)?)?;
            let end = begin.checked_add(number(at + 4)?)?;
            (end <= bytes.len()).then_some((begin, end))
        };
        let (mut at, end) = section(8)?;
        let strings = section(16)?;
        let mut btf = Btf {
            bytes: Vec::new(),
            types: vec![0],
            strings,
        };
        while at < end {
            let info = word(&bytes, at.checked_add(4)?)?;
            let many = (info & 0xffff) as usize;
            let more = match info >> 24 & 0x1f {
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCT | UNION | 15 | 19 => 12 * many,
                6 | 13 => 8 * many,
                2 | 7..=12 | 16 | 18 => 0,
                // How long it is, and so where the next one begins, is not known.
                _ => return None,
            };
            btf.types.push(u32::try_from(at).ok()?);
            at += 12 + more;
        }
        btf.bytes = bytes;
        (at == end).then_some(btf)
    }

    fn get(&self, id: u32) -> Option<Type> {
        let at = *self.types.get(id as usize).filter(|_| id != 0)? as usize;
        let info = word(&self.bytes, at + 4)?;
        Some(Type {
            name: word(&self.bytes, at)?,
            kind: info >> 24 & 0x1f,
            members: info & 0xffff,
            fields: info >> 31 != 0,
            size: word(&self.bytes, at + 8)?,
            body: at + 12,
        })
    }

    fn name(&self, offset: u32) -> Option<&[u8]> {
        let begin = self.strings.0.checked_add(offset as usize)?;
        let rest = self.bytes.get(begin..self.strings.1)?;
        rest.split(|&byte| byte == 0).next()
    }

    /// A type without what is said about it.
    fn plain(&self, mut id: u32) -> Option<Type> {
        for _ in 0..DEEPEST {
            let found = self.get(id)?;
            if !is_modifier(found.kind) {
                return Some(found);
            }
            id = found.size;
        }
        None
    }

    /// Bytes of a type that is a number or a pointer.
    fn size(&self, id: u32) -> Option<u32> {
        let found = self.plain(id)?;
        match found.kind {
            1 | 6 | 19 => Some(found.size),
            2 => Some(8),
            _ => None,
        }
    }

    /// How many bytes from the beginning of a structure a member of `size` bytes is.
    pub fn member(&self, structure: &str, member: &str, size: u32) -> Option<u32> {
        (1..self.types.len() as u32).find_map(|id| {
            let found = self.get(id)?;
            let same = found.kind == STRUCT && self.name(found.name)? == structure.as_bytes();
            same.then(|| self.within(found, member.as_bytes(), size, DEEPEST))?
        })
    }

    fn within(&self, of: Type, member: &[u8], size: u32, deepest: usize) -> Option<u32> {
        (0..of.members as usize).find_map(|index| {
            let at = of.body + index * 12;
            let name = self.name(word(&self.bytes, at)?)?;
            let id = word(&self.bytes, at + 4)?;
            let mut bits = word(&self.bytes, at + 8)?;
            if of.fields {
                if bits >> 24 != 0 {
                    return None;
                }
                bits &= 0xff_ffff;
            }
            if bits % 8 != 0 {
                return None;
            }
            if name == member {
                return (self.size(id)? == size).then_some(bits / 8);
            }
            // A structure without a name: its members are those of the one around it.
            let inner = self.plain(id).filter(|_| name.is_empty() && deepest > 0)?;
            if inner.kind != STRUCT && inner.kind != UNION {
                return None;
            }
            let more = self.within(inner, member, size, deepest - 1)?;
            more.checked_add(bits / 8)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// struct outer { u64 a; union { u32 b; struct { u64 pad; u64 c; }; }; u32 d : 3; }
    fn sample() -> Vec<u8> {
        let names = b"\0outer\0a\0b\0c\0d\0pad\0u64\0u32\0alias\0";
        let name = |text: &str| {
            let mut full = vec![0];
            full.extend(text.bytes());
            full.push(0);
            let at = names.windows(full.len()).position(|part| part == full);
            at.unwrap() as u32 + 1
        };
        let info = |kind: u32, many: u32, fields: bool| (fields as u32) << 31 | kind << 24 | many;
        let mut types: Vec<u32> = Vec::new();
        // 1: u64; 2: u32; 3: typedef of u64.
        types.extend([name("u64"), info(1, 0, false), 8, 64]);
        types.extend([name("u32"), info(1, 0, false), 4, 32]);
        types.extend([name("alias"), info(8, 0, false), 1]);
        // 4: the innermost; 5: the union.
        types.extend([0, info(STRUCT, 2, false), 16]);
        types.extend([name("pad"), 1, 0, name("c"), 3, 64]);
        types.extend([0, info(UNION, 2, false), 16]);
        types.extend([name("b"), 2, 0, 0, 4, 0]);
        // 6: all of it.
        types.extend([name("outer"), info(STRUCT, 3, true), 32]);
        types.extend([name("a"), 1, 0, 0, 5, 64, name("d"), 2, 3 << 24 | 192]);
        let length = types.len() as u32 * 4;
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for number in [24, 0, length, length, names.len() as u32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(types.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(names);
        bytes
    }

    #[test]
    fn finds_members_at_every_depth() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.member("outer", "a", 8), Some(0));
        assert_eq!(btf.member("outer", "b", 4), Some(8));
        assert_eq!(btf.member("outer", "c", 8), Some(16));
        assert_eq!(btf.member("outer", "b", 8), None, "of another size");
        assert_eq!(btf.member("outer", "d", 4), None, "a bit field");
        assert_eq!(btf.member("outer", "e", 4), None);
        assert_eq!(btf.member("inner", "a", 8), None);
    }

    #[test]
    fn nothing_in_it_is_trusted() {
        let whole = sample();
        for length in 0..whole.len() {
            assert!(Btf::parse(whole[..length].to_vec()).is_none(), "{length}");
        }
        // Any byte wrong: another answer or none, and it comes.
        for at in 0..whole.len() {
            for wrong in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = wrong;
                if let Some(btf) = Btf::parse(bytes) {
                    for member in ["a", "b", "c", "d", "e"] {
                        let _ = btf.member("outer", member, 8);
                    }
                }
            }
        }
    }

    #[test]
    fn structures_in_a_circle_end() {
        let mut bytes = sample();
        // The union's second member is the union itself: type 5 and not 4.
        let at = 24 + 4 * (4 + 4 + 3 + 3 + 6 + 3 + 3 + 1);
        assert_eq!(bytes[at], 4);
        bytes[at] = 5;
        let btf = Btf::parse(bytes).unwrap();
        assert_eq!(btf.member("outer", "c", 8), None);
    }
}
