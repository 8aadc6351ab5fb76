//! Mounts, as `mountinfo` lists them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Mount {
    pub id: u64,
    pub dev: u32,
    pub point: PathBuf,
    pub kind: String,
}

/// File systems whose calls wait for somebody else.
pub fn remote(kind: &str) -> bool {
    [
        "fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "virtiofs",
    ]
    .iter()
    .any(|prefix| kind.starts_with(prefix))
}

/// "36 35 98:0 /root /point options ... - type source options"
pub fn parse_mounts(text: &[u8]) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let parse = || -> Option<Mount> {
            let text = |index: usize| std::str::from_utf8(words.get(index)?).ok();
            let (major, minor) = text(2)?.split_once(':')?;
            let dash = words.iter().position(|&word| word == b"-")?;
            Some(Mount {
                id: text(0)?.parse().ok()?,
                dev: (major.parse::<u32>().ok()? << 20) | minor.parse::<u32>().ok()?,
                point: PathBuf::from(OsString::from_vec(unescape(words.get(4)?))),
                kind: text(dash + 1)?.to_owned(),
            })
        };
        mounts.extend(parse());
    }
    mounts
}

/// The kernel writes blanks, tabs, newlines and backslashes as \ooo.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, more)) = rest.split_first() {
        let digits = rest.get(1..4).filter(|digits| {
            first == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit))
        });
        match digits {
            Some(digits) => {
                let value = digits
                    .iter()
                    .fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                rest = &rest[4..];
            }
            None => {
                out.push(first);
                rest = more;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_parsed() {
        let text = b"36 35 98:1 / /mnt\\040a rw,noatime master:1 - ext4 /dev/root rw\nbad line\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].dev, (98 << 20) | 1);
        assert_eq!(mounts[0].point, PathBuf::from("/mnt a"));
        assert_eq!(mounts[0].kind, "ext4");
    }
}
