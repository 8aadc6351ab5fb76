//! Where the kernel puts core files: `kernel.core_pattern`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What becomes of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing, by an empty pattern.
    None,
    /// It goes to a program or a socket.
    Sent,
    File(Names),
}

/// File names, as far as they are known beforehand: a component is literals with any text between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    absolute: bool,
    components: Vec<Vec<Part>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(u8),
    /// What only the kernel knew: the time, the signal, the thread, its name.
    Any,
}

/// More files than these are not looked at.
const MOST: usize = 1000;

impl Pattern {
    /// The pattern as the kernel has it now.
    pub fn now(pid: u32) -> Pattern {
        let read = |name: &str| fs::read(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        let uses_pid = read("core_uses_pid").first().is_some_and(|&b| b != b'0');
        Pattern::of(read("core_pattern").trim_ascii_end(), uses_pid, pid)
    }

    fn of(text: &[u8], uses_pid: bool, pid: u32) -> Pattern {
        match text.first() {
            None => return Pattern::None,
            Some(b'|' | b'@') => return Pattern::Sent,
            Some(_) => {}
        }
        let mut components = vec![Vec::new()];
        let mut has_pid = false;
        let mut bytes = text.iter();
        let literal = |to: &mut Vec<Vec<Part>>, text: &[u8]| {
            for &b in text {
                match (b, to.last_mut()) {
                    (b'/', _) | (_, None) => to.push(Vec::new()),
                    (b, Some(last)) => last.push(Part::Literal(b)),
                }
            }
        };
        while let Some(&b) = bytes.next() {
            if b != b'%' {
                literal(&mut components, &[b]);
                continue;
            }
            match bytes.next() {
                Some(b'%') => literal(&mut components, b"%"),
                Some(b'p' | b'P') => {
                    has_pid = true;
                    literal(&mut components, pid.to_string().as_bytes());
                }
                Some(
                    b'u' | b'g' | b'd' | b's' | b't' | b'h' | b'e' | b'f' | b'E' | b'i' | b'I'
                    | b'c' | b'C' | b'F',
                ) => {
                    if let Some(last) = components.last_mut() {
                        last.push(Part::Any);
                    }
                }
                // The kernel leaves out what it does not know.
                Some(_) | None => {}
            }
        }
        if uses_pid && !has_pid {
            literal(&mut components, format!(".{pid}").as_bytes());
        }
        components.retain(|c| !c.is_empty());
        Pattern::File(Names {
            absolute: text.first() == Some(&b'/'),
            components,
        })
    }
}

impl Names {
    /// Files of such names, relative ones in any of these directories.
    pub fn find(&self, directories: &[PathBuf]) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = match self.absolute {
            true => vec![PathBuf::from("/")],
            false => directories.to_vec(),
        };
        for component in &self.components {
            found = found.iter().flat_map(|d| below(d, component)).collect();
            found.truncate(MOST);
        }
        found
    }
}

fn below(directory: &Path, component: &[Part]) -> Vec<PathBuf> {
    let literal: Option<Vec<u8>> = component
        .iter()
        .map(|part| match part {
            Part::Literal(b) => Some(*b),
            Part::Any => None,
        })
        .collect();
    if let Some(name) = literal {
        return vec![directory.join(OsString::from_vec(name))];
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|e| e.file_name());
    names
        .filter(|n| matches(component, n))
        .map(|n| directory.join(n))
        .collect()
}

fn matches(component: &[Part], name: &OsStr) -> bool {
    let name = name.as_bytes();
    // Where the last `Any` was, and how far the name had come then.
    let mut retry: Option<(usize, usize)> = None;
    let (mut c, mut n) = (0, 0);
    while n < name.len() || c < component.len() {
        match component.get(c) {
            Some(Part::Any) => {
                retry = Some((c, n));
                c += 1;
                continue;
            }
            Some(Part::Literal(b)) if name.get(n) == Some(b) => {
                c += 1;
                n += 1;
                continue;
            }
            _ => {}
        }
        match retry {
            Some((any, from)) if from < name.len() => {
                retry = Some((any, from + 1));
                (c, n) = (any + 1, from + 1);
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, uses_pid: bool) -> Names {
        match Pattern::of(text.as_bytes(), uses_pid, 42) {
            Pattern::File(names) => names,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn fits(text: &str, name: &str) -> bool {
        matches(names(text, false).components.last().unwrap(), name.as_ref())
    }

    #[test]
    fn names_as_the_kernel_makes_them() {
        let here = [PathBuf::from("/a"), PathBuf::from("/b/c")];
        let find = |text, uses_pid| names(text, uses_pid).find(&here);
        assert_eq!(
            find("core", false),
            ["/a/core", "/b/c/core"].map(PathBuf::from)
        );
        assert_eq!(find("core", true)[0], Path::new("/a/core.42"));
        assert_eq!(find("x/core-%p", true)[1], Path::new("/b/c/x/core-42"));
        assert_eq!(find("/v//%P.%%%q%", false), [PathBuf::from("/v/42.%")]);
        for text in ["|/usr/bin/handler %p", "@/run/socket"] {
            assert_eq!(Pattern::of(text.as_bytes(), false, 1), Pattern::Sent);
        }
        assert_eq!(Pattern::of(b"", true, 1), Pattern::None);
    }

    #[test]
    fn what_only_the_kernel_knew_is_anything() {
        assert!(fits("core.%e.%p", "core.a program.42"));
        assert!(fits("core.%e.%p", "core.a.42.42"));
        assert!(fits("%e", ""));
        assert!(fits("%t%e-", "123-x-"));
        assert!(!fits("core.%e.%p", "core.a.421"));
        assert!(!fits("core.%e.%p", "core.42"));
        assert!(!fits("core", "core.1"));
        assert!(!fits("core", "cor"));
    }

    #[test]
    fn directories_are_looked_through() {
        let dir = std::env::temp_dir().join(format!("hugeswap-pattern-{}", std::process::id()));
        fs::create_dir_all(dir.join("d1")).unwrap();
        fs::create_dir_all(dir.join("d2")).unwrap();
        for f in ["d1/core.x.42", "d1/core.x.43", "d2/core.y.42", "d2/other"] {
            fs::write(dir.join(f), "").unwrap();
        }
        let text = format!("{}/d%s/core.%e.%p", dir.display());
        let mut found = names(&text, true).find(&[]);
        found.sort();
        assert_eq!(found, [dir.join("d1/core.x.42"), dir.join("d2/core.y.42")]);
        fs::remove_dir_all(dir).unwrap();
    }
}
