//! The environment that the program is started with: what this process was given, as it is, with a few strings of ours.
//!
//! `Command::env` makes another one: sorted, each name once, and only what looks like a name and a value.
#![allow(unsafe_code)]

use std::ffi::{c_char, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

extern "C" {
    static mut environ: *mut *mut c_char;
}

/// In a child that is about to become the program. The strings stay where they are until then.
struct List(Vec<*mut c_char>);
// SAFETY: nobody writes to the strings.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

/// The program of `command` has these variables, and all others as they are here. Where a name is there already, the
/// first of its strings is replaced, and others of it are left out.
pub fn give(command: &mut Command, ours: &[(&str, &OsStr)]) {
    let ours: Vec<(&str, CString)> = ours
        .iter()
        .filter_map(|(name, value)| {
            let string = [name.as_bytes(), b"=", value.as_bytes()].concat();
            Some((*name, CString::new(string).ok()?))
        })
        .collect();
    let mut list = changed(strings(), &ours);
    list.push(std::ptr::null_mut());
    let strings: Vec<CString> = ours.into_iter().map(|(_, string)| string).collect();
    let mut list = List(list);
    // SAFETY: the closure changes a variable of the child alone.
    unsafe {
        command.pre_exec(move || {
            let _stay = &strings;
            let list = &mut list;
            environ = list.0.as_mut_ptr();
            Ok(())
        });
    }
}

/// The strings of this process's environment.
fn strings() -> Vec<*mut c_char> {
    let mut all = Vec::new();
    // SAFETY: a list that ends with a null pointer, which nobody changes: this process has one thread that could.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            all.push(*at);
            at = at.add(1);
        }
    }
    all
}

fn changed(given: Vec<*mut c_char>, ours: &[(&str, CString)]) -> Vec<*mut c_char> {
    let mut missing: Vec<bool> = vec![true; ours.len()];
    let mut list: Vec<*mut c_char> = Vec::with_capacity(given.len() + ours.len() + 1);
    for string in given {
        // SAFETY: as in `strings`.
        let bytes = unsafe { CStr::from_ptr(string) }.to_bytes();
        let is_of = |name: &str| {
            let rest = bytes.strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.first() == Some(&b'='))
        };
        match ours.iter().position(|(name, _)| is_of(name)) {
            None => list.push(string),
            Some(i) if std::mem::take(&mut missing[i]) => list.push(ours[i].1.as_ptr().cast_mut()),
            Some(_) => {}
        }
    }
    let rest = ours.iter().zip(missing).filter(|(_, missing)| *missing);
    list.extend(rest.map(|((_, string), _)| string.as_ptr().cast_mut()));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_ours_stays_as_it_is() {
        let given = [
            "B=1",
            "NOEQ",
            "A=x",
            "=odd",
            "A=y",
            "OURS=old",
            "B=2",
            "OURS=z",
            "OURSELVES=1",
        ];
        let given: Vec<CString> = given.iter().map(|s| CString::new(*s).unwrap()).collect();
        let pointers = given.iter().map(|s| s.as_ptr().cast_mut()).collect();
        let ours = [("NEW", c"NEW=1".into()), ("OURS", c"OURS=new".into())];
        let list = changed(pointers, &ours);
        // SAFETY: all of them are above.
        let list = list
            .iter()
            .map(|s| unsafe { CStr::from_ptr(*s) }.to_str().unwrap());
        let expected = [
            "B=1",
            "NOEQ",
            "A=x",
            "=odd",
            "A=y",
            "OURS=new",
            "B=2",
            "OURSELVES=1",
            "NEW=1",
        ];
        assert_eq!(list.collect::<Vec<_>>(), expected);
    }
}
