//! Who reads a file: the process that did last, and the node on which most of its reads are done.

use std::collections::HashMap;

use crate::page::FileId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reader {
    pid: u32,
    node: Option<u32>,
    /// How many reads more were done there than elsewhere, up to a bound.
    lead: u8,
}

const MOST: usize = 1 << 14;
const MOST_LEAD: u8 = 16;

#[derive(Debug, Default)]
pub struct Readers {
    files: HashMap<FileId, Reader>,
}

impl Readers {
    /// `pid` has read it on a processor of `node`, if that is known; says whether the file is new.
    pub fn note(&mut self, file: FileId, pid: u32, node: Option<u32>) -> bool {
        if self.files.len() >= MOST && !self.files.contains_key(&file) {
            self.files.clear();
        }
        let mut new = false;
        let reader = self.files.entry(file).or_insert_with(|| {
            new = true;
            Reader { pid, node, lead: 0 }
        });
        reader.pid = pid;
        if reader.node == node {
            reader.lead = (reader.lead + 1).min(MOST_LEAD);
        } else if reader.lead == 0 {
            reader.node = node;
            reader.lead = 1;
        } else {
            reader.lead -= 1;
        }
        new
    }

    pub fn pid(&self, file: FileId) -> Option<u32> {
        Some(self.files.get(&file)?.pid)
    }

    pub fn node(&self, file: FileId) -> Option<u32> {
        self.files.get(&file)?.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_that_of_most_reads() {
        let file = FileId { dev: 1, ino: 1 };
        let mut readers = Readers::default();
        assert_eq!(readers.node(file), None);
        assert!(readers.note(file, 5, Some(1)));
        for turn in 0..30 {
            assert!(!readers.note(file, 6, Some(1)));
            if turn % 3 == 0 {
                readers.note(file, 7, Some(0));
            }
        }
        assert_eq!((readers.pid(file), readers.node(file)), (Some(6), Some(1)));
        for _ in 0..40 {
            readers.note(file, 8, Some(0));
        }
        assert_eq!(readers.node(file), Some(0), "they have gone elsewhere");
    }

    #[test]
    fn memory_is_bounded() {
        let mut readers = Readers::default();
        for ino in 0..3 * MOST as u64 {
            readers.note(FileId { dev: 1, ino }, 1, None);
            assert!(readers.files.len() <= MOST);
        }
    }
}
