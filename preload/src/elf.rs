//! The symbols of a file that the loader has loaded, as they lie in memory.

use core::ffi::CStr;
use libc::Elf64_Sym;

/// Where its tables are; zero where it has none.
#[derive(Clone, Copy, Default)]
pub struct Symbols {
    /// Values are relative to this.
    base: usize,
    symbols: usize,
    names: usize,
    name_bytes: usize,
    hash: usize,
}

/// The table of hashes: what it begins with.
struct Hash {
    buckets: usize,
    /// Symbols from this one on are the file's own; those before it are asked of others.
    own_from: usize,
    /// In words of eight bytes.
    bloom: usize,
}

impl Symbols {
    /// Of the file that lies at `base`, and whose dynamic section is at `dynamic`.
    ///
    /// # Safety
    /// The loader has loaded such a file, and it stays.
    pub unsafe fn of(base: usize, dynamic: usize) -> Symbols {
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const STRSZ: u64 = 10;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let mut s = Symbols {
            base,
            ..Symbols::default()
        };
        // The loader has made addresses of them, where it may write.
        let place = |at: u64| match (at as usize) < base {
            true => base + at as usize,
            false => at as usize,
        };
        let mut at = dynamic as *const [u64; 2];
        while !at.is_null() {
            // SAFETY: the section ends with a tag of zero.
            let [tag, value] = unsafe { *at };
            match tag {
                0 => break,
                STRTAB => s.names = place(value),
                SYMTAB => s.symbols = place(value),
                STRSZ => s.name_bytes = value as usize,
                GNU_HASH => s.hash = place(value),
                _ => {}
            }
            at = at.wrapping_add(1);
        }
        s
    }

    /// Whether the file leaves a name to others.
    pub fn asks_for(&self, name: &CStr) -> bool {
        let n = self.hash().map_or(0, |hash| hash.own_from);
        let mut all = (0..n).filter_map(|i| self.symbol(i));
        all.any(|symbol| symbol.st_shndx == 0 && self.is_called(&symbol, name))
    }

    /// How large the file's function of that name is, if it is the one at this address; 0 if it is not.
    pub fn size_of(&self, name: &CStr, at: usize) -> usize {
        let Some(hash) = self.hash() else {
            return 0;
        };
        let wanted = hash_of(name);
        let buckets = self.hash + 16 + hash.bloom * 8;
        let chain = buckets + hash.buckets * 4;
        // SAFETY: the table has so many buckets, and a word for each of the file's own symbols behind them; where a chain
        // ends its word says.
        let word = |at: usize| unsafe { *(at as *const u32) };
        let mut i = word(buckets + wanted as usize % hash.buckets * 4) as usize;
        while i >= hash.own_from {
            let hashed = word(chain + (i - hash.own_from) * 4);
            if hashed | 1 == wanted | 1 {
                let symbol = self.symbol(i).filter(|s| self.is_called(s, name));
                let is_it = |s: &Elf64_Sym| self.base + s.st_value as usize == at;
                if let Some(symbol) = symbol.filter(is_it) {
                    return symbol.st_size as usize;
                }
            }
            if hashed & 1 != 0 {
                break;
            }
            i += 1;
        }
        0
    }

    fn hash(&self) -> Option<Hash> {
        if self.hash == 0 || self.symbols == 0 || self.names == 0 {
            return None;
        }
        // SAFETY: the table begins with four words.
        let [buckets, own_from, bloom, _] = unsafe { *(self.hash as *const [u32; 4]) };
        (buckets > 0).then_some(Hash {
            buckets: buckets as usize,
            own_from: own_from as usize,
            bloom: bloom as usize,
        })
    }

    fn symbol(&self, i: usize) -> Option<Elf64_Sym> {
        let at = (self.symbols as *const Elf64_Sym).wrapping_add(i);
        // SAFETY: callers name symbols that the table of hashes has.
        (self.symbols != 0).then(|| unsafe { *at })
    }

    fn is_called(&self, symbol: &Elf64_Sym, name: &CStr) -> bool {
        // SAFETY: the table of names has so many bytes.
        let names =
            unsafe { core::slice::from_raw_parts(self.names as *const u8, self.name_bytes) };
        let at = names.get(symbol.st_name as usize..);
        at.is_some_and(|at| at.starts_with(name.to_bytes_with_nul()))
    }
}

/// As the linker hashes names for DT_GNU_HASH.
fn hash_of(name: &CStr) -> u32 {
    let bytes = name.to_bytes().iter();
    bytes.fold(5381, |hash: u32, &b| {
        hash.wrapping_mul(33).wrapping_add(u32::from(b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hashed_as_the_linker_does() {
        // From the description of the format.
        assert_eq!(hash_of(c""), 0x1505);
        assert_eq!(hash_of(c"printf"), 0x156b_2bb8);
        assert_eq!(hash_of(c"syscall"), 0xbac2_12a0);
    }

    #[test]
    fn what_is_not_there_has_no_symbols() {
        let none = Symbols::default();
        assert!(!none.asks_for(c"malloc"));
        assert_eq!(none.size_of(c"malloc", 0), 0);
    }
}
