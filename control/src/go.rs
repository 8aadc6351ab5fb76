//! Programs of Go's: how one is known, and what it is told. See `preload::go`.

/// The variable of the environment that Go's runtime reads.
pub const DEBUG: &str = "GODEBUG";
/// With this word in it memory that was given back need not be zeros when it comes again: the runtime writes them.
const WRITES_ZEROS: &str = "madvdontneed=0";

/// What the variable says of that; none where it says nothing. The last word counts.
pub fn writes_zeros(debug: &[u8]) -> Option<bool> {
    let words = debug.split(|&b| b == b',');
    let mut said = words.filter_map(|word| word.strip_prefix(b"madvdontneed="));
    said.next_back().map(|value| value == b"0")
}

/// The parts of what a program is to be told that is told this; none where that says something already. Memory that it
/// gives back by a system call of its own may have its old contents when it comes again: without the word none of it
/// could be managed.
pub fn told(debug: &[u8]) -> Option<[&[u8]; 3]> {
    let comma: &[u8] = if debug.is_empty() { b"" } else { b"," };
    writes_zeros(debug)
        .is_none()
        .then_some([debug, comma, WRITES_ZEROS.as_bytes()])
}

/// Whether Go's build id is among an ELF file's notes: of each the length of its name, that of its contents, and a
/// kind; then the name, and the contents, each in whole words.
pub fn has_note(mut notes: &[u8]) -> bool {
    while let Some((head, rest)) = notes.split_first_chunk::<12>() {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| head[4 * i + k])) as usize;
        let (name, contents, kind) = (word(0), word(1), word(2));
        if kind == 4 && rest.get(..name) == Some(b"Go\0\0") {
            return true;
        }
        let len = name.next_multiple_of(4) + contents.next_multiple_of(4);
        notes = rest.get(len..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        for (debug, said) in [
            ("", None),
            ("gctrace=1", None),
            ("xmadvdontneed=0", None),
            (WRITES_ZEROS, Some(true)),
            ("madvdontneed=1", Some(false)),
            ("gctrace=1,madvdontneed=1,madvdontneed=0", Some(true)),
            ("madvdontneed=0,madvdontneed=1", Some(false)),
        ] {
            assert_eq!(writes_zeros(debug.as_bytes()), said, "{debug}");
            assert_eq!(told(debug.as_bytes()).is_none(), said.is_some(), "{debug}");
        }
        let told = |debug: &str| told(debug.as_bytes()).unwrap().concat();
        assert_eq!(told(""), b"madvdontneed=0");
        assert_eq!(told("gctrace=1"), b"gctrace=1,madvdontneed=0");
    }

    #[test]
    fn notes_are_told_apart() {
        let note = |name: &[u8], kind: u32, contents: &[u8]| {
            let mut out = Vec::new();
            for n in [name.len() as u32, contents.len() as u32, kind] {
                out.extend(n.to_le_bytes());
            }
            for part in [name, contents] {
                out.extend(part);
                out.resize(out.len().next_multiple_of(4), 0);
            }
            out
        };
        let (gnu, go) = (note(b"GNU\0", 3, &[7; 19]), note(b"Go\0\0", 4, b"an id"));
        assert!(has_note(&go) && has_note(&[gnu.clone(), go].concat()));
        for not in [
            gnu,
            note(b"Go\0\0", 5, b""),
            note(b"Go", 4, b""),
            Vec::new(),
            vec![0xff; 40],
        ] {
            assert!(!has_note(&not), "{not:?}");
        }
    }
}
