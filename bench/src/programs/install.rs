//! What the programs need: which of it is there, and its installation where that is asked for.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::list::Program;
use crate::error::{io_error, Error};
use hugeswap_host::os;
use hugeswap_host::undo::Interrupt;

/// The interpreter, and which modules it has.
pub struct Tools {
    pub python: Option<PathBuf>,
    modules: BTreeSet<String>,
}

/// What a program lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    Package(&'static str),
    Module(&'static str),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Package(name) => write!(f, "the package {name}"),
            Lack::Module(name) => write!(f, "Python's {name}"),
        }
    }
}

impl Tools {
    pub fn find(programs: &[&Program]) -> Tools {
        let places = environment().map(|dir| dir.join("bin/python"));
        let places = places
            .into_iter()
            // The distribution's own may have modules that another one, first in PATH, has not.
            .chain(["/usr/bin/python3".into()])
            .chain(in_path("python3"));
        let names: BTreeSet<&str> = modules_of(programs).map(|(module, _)| module).collect();
        let mut best = (None, BTreeSet::new());
        for python in places.filter(|path| path.exists()) {
            let modules = importable(&python, &names);
            if best.0.is_none() || modules.len() > best.1.len() {
                best = (Some(python), modules);
            }
        }
        let (python, modules) = best;
        Tools { python, modules }
    }

    pub fn lacks(&self, program: &Program) -> Vec<Lack> {
        let python = self.python.is_none().then_some(Lack::Package("python3"));
        let commands = program
            .commands
            .iter()
            .filter(|(command, _)| in_path(command).is_none())
            .map(|(_, package)| Lack::Package(package));
        let modules = program
            .modules
            .iter()
            .filter(|(module, _)| !self.modules.contains(*module))
            .map(|(_, name)| Lack::Module(name));
        python.into_iter().chain(commands).chain(modules).collect()
    }
}

fn modules_of<'a>(
    programs: &'a [&Program],
) -> impl Iterator<Item = (&'static str, &'static str)> + 'a {
    programs.iter().flat_map(|p| p.modules.iter().copied())
}

fn in_path(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(command));
    places.find(|place| place.is_file())
}

/// Where `--install` puts Python's modules.
pub fn environment() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&set("HOME")?).join(".cache")))?;
    Some(cache.join("hugeswap/programs/python"))
}

/// Those of `names` that it can import. One that is broken is as one that is not there.
fn importable(python: &Path, names: &BTreeSet<&str>) -> BTreeSet<String> {
    const ASK: &str =
        "import importlib, sys\nfor name in sys.argv[1:]:\n try: importlib.import_module(name)\n \
                       except Exception: continue\n print(name)";
    let output = Command::new(python)
        .args(["-c", ASK])
        .args(names)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = output.map(|o| o.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // A module may print something itself.
    let said = text.lines().filter(|line| names.contains(line));
    said.map(str::to_owned).collect()
}

/// Installs what it can. What could not be is said, and its programs are left out.
pub fn install(programs: &[&Program], stop: &Interrupt) -> Result<(), Error> {
    let lacks = || -> BTreeSet<Lack> {
        let tools = Tools::find(programs);
        programs.iter().flat_map(|p| tools.lacks(p)).collect()
    };
    let missing = lacks();
    let mut packages: Vec<&str> = Vec::new();
    let mut modules: Vec<&str> = Vec::new();
    for lack in &missing {
        match lack {
            Lack::Package(name) => packages.push(name),
            Lack::Module(name) => modules.push(name),
        }
    }
    let makes_environments = || {
        let ask = Command::new("python3")
            .args(["-c", "import venv, ensurepip"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        ask.is_ok_and(|status| status.success())
    };
    if !modules.is_empty() && !makes_environments() {
        packages.push("python3-venv");
    }
    if !packages.is_empty() {
        errln!("hugeswap: installing with apt-get: {}", packages.join(", "));
        say(apt(&packages, stop))?;
    }
    if !modules.is_empty() {
        let dir = environment().ok_or_else(|| {
            Error::Usage("--install: neither HOME nor XDG_CACHE_HOME is set".into())
        })?;
        errln!(
            "hugeswap: installing with pip into {}: {}",
            dir.display(),
            modules.join(", ")
        );
        say(pip(&dir, programs, stop))?;
    }
    Ok(())
}

/// What can't be installed is no reason to measure nothing.
fn say(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(err) => {
            errln!("hugeswap: --install: {err}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn apt(packages: &[&str], stop: &Interrupt) -> Result<(), Error> {
    if !os::is_root() {
        return Err(Error::Usage(format!(
            "packages need root: 'apt-get install {}'",
            packages.join(" ")
        )));
    }
    let mut words = vec!["install", "-y", "--no-install-recommends"];
    words.extend(packages);
    if call("apt-get", &words, stop).is_ok() {
        return Ok(());
    }
    // Its lists may be old, or not there.
    call("apt-get", &["update"], stop)?;
    call("apt-get", &words, stop)
}

/// All that the programs need, so that one interpreter has it.
fn pip(dir: &Path, programs: &[&Program], stop: &Interrupt) -> Result<(), Error> {
    let python = dir.join("bin/python");
    if !python.exists() {
        call(
            "python3",
            &["-m".as_ref(), "venv".as_ref(), dir.as_os_str()],
            stop,
        )?;
    }
    let names: BTreeSet<&str> = modules_of(programs).map(|(_, name)| name).collect();
    for name in names {
        let words = ["-m", "pip", "install", "--quiet", "--prefer-binary", name];
        say(call(&python, &words, stop))?;
    }
    Ok(())
}

fn call(
    program: impl AsRef<OsStr>,
    words: &[impl AsRef<OsStr>],
    stop: &Interrupt,
) -> Result<(), Error> {
    stop.check()?;
    let name = program.as_ref().to_string_lossy().into_owned();
    let out = io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .map_err(io_error("use standard error"))?;
    let status = Command::new(program)
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(out)
        .status()
        .map_err(|err| Error::Usage(format!("can't start {name}: {err}")))?;
    stop.check()?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Usage(format!("{name} ended with {status}")))
    }
}
