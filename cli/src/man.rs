//! Manual pages and completion scripts, from the command line's own grammar.

use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::{Cli, USAGE};
use hugeswap_host::out;

/// What the grammar does not say, by command: section, then paragraphs of tag and text. Without a tag
/// the text is a line to type.
type Sections = &'static [(&'static str, &'static [(&'static str, &'static str)])];

const RUN: Sections = &[
    (
        "EXIT STATUS",
        &[
            ("the program's", "It ended by itself. Where a signal ended it, hugeswap ends by the same signal."),
            ("2", "The command line can't be understood, or the memory or swap given is too little."),
            ("125", "hugeswap itself failed: no rights, no room for swap, killed."),
            ("126", "The program can't be run or can't be managed: static, setuid, 32-bit, musl."),
            ("127", "The program was not found."),
            ("71", "The engine could not start in a process. There is a message."),
            ("74", "Memory could not be given back or read back, and the program was ended. There is a message."),
            ("137", "--strict was given, and swap was full or a program not managed; or the program was killed."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("HUGESWAP_PRELOAD", "The library to preload, where it is not beside the command or in ../lib/hugeswap."),
            ("LD_PRELOAD", "What is set is kept; the library comes first."),
        ],
    ),
    (
        "FILES",
        &[
            ("/dev/userfaultfd", "Who may open it may run programs under hugeswap without root."),
            ("/var/tmp", "Where swap goes when nothing is said. The file has no name, so nothing is left behind."),
        ],
    ),
    (
        "EXAMPLES",
        &[
            ("", "hugeswap run --memory 4G --swap /var/tmp -- ./program"),
            ("", "hugeswap run --memory 4G --swap /mnt/fast,size=10G,priority=1 --swap /var/tmp -- ./program"),
            ("", "hugeswap run --memory 4G --swap /dev/nvme1n1 --verbose -- python3 train.py"),
            ("", "hugeswap run --memory 512M --swap ram --swap-size 2G --stats-json counters.json -- make -j8"),
            ("", "hugeswap run --memory 4G -- sh -c 'hugeswap run --group db --memory 1G -- ./db & ./clients'"),
        ],
    ),
];

const DOCTOR: Sections = &[
    (
        "EXIT STATUS",
        &[
            ("0", "'hugeswap run' works fully."),
            ("1", "Something is missing or limited."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[(
            "HUGESWAP_PRELOAD",
            "The library that is looked for, as with 'hugeswap run'.",
        )],
    ),
    (
        "EXAMPLES",
        &[
            ("", "hugeswap doctor"),
            ("", "hugeswap doctor --swap /dev/nvme1n1 --json"),
        ],
    ),
];

const SWAPOFF: Sections = &[
    (
        "EXIT STATUS",
        &[
            ("0", "Done."),
            ("1", "Refused, or interrupted: the device stays in use."),
        ],
    ),
    (
        "FILES",
        &[(
            "/proc/PID/fd",
            "Of a run's supervisor: by its descriptors a run is found. Only its user and root may open them.",
        )],
    ),
    (
        "EXAMPLES",
        &[
            ("", "hugeswap swapoff /var/tmp"),
            ("", "hugeswap swapon /var/tmp"),
        ],
    ),
];

const SET: Sections = &[
    (
        "EXIT STATUS",
        &[
            ("0", "It is so now."),
            (
                "1",
                "No such run, or the run did not take it; a message says why.",
            ),
        ],
    ),
    (
        "FILES",
        &[(
            "/proc/PID/fd",
            "Of a run's supervisor: by its descriptors a run is found. Only its user and root may open them.",
        )],
    ),
    ("EXAMPLES", &[("", "hugeswap set 4711 swapin=never")]),
];

const PROMOTE: Sections = &[
    (
        "EXIT STATUS",
        &[
            ("0", "Ended by a signal, or after one round with --once."),
            (
                "1",
                "The kernel does not allow it here; 'hugeswap doctor' says what is missing.",
            ),
        ],
    ),
    (
        "FILES",
        &[
            (
                "/sys/kernel/tracing",
                "Reads of files are seen by trace events, and by a probe for files on tmpfs.",
            ),
            ("/proc/kpageflags", "Tells large folios from single pages."),
        ],
    ),
    (
        "EXAMPLES",
        &[
            ("", "hugeswap promote --rate-limit-mbps 1000"),
            ("", "hugeswap promote --observe --json"),
        ],
    ),
];

const BENCH: Sections = &[
    (
        "EXIT STATUS",
        &[
            ("0", "Measured."),
            (
                "1",
                "It failed. Everything that was set up is taken down again.",
            ),
            ("130", "Interrupted. Everything is taken down."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[(
            "TMPDIR",
            "Where graphs, statistics and redis's socket are while it runs; /tmp if it is not set.",
        )],
    ),
    (
        "FILES",
        &[(
            "/sys/fs/cgroup",
            "A memory group is made below the caller's own, where that is allowed.",
        )],
    ),
    (
        "EXAMPLES",
        &[
            (
                "",
                "hugeswap bench swap-w-seq --memory 512M --size 1G --against kernel",
            ),
            ("", "hugeswap bench all --html report.html"),
        ],
    ),
];

const WHOLE: Sections = &[
    (
        "EXAMPLES",
        &[
            ("", "hugeswap run --memory 4G --swap /var/tmp -- ./program"),
            ("", "hugeswap doctor"),
            ("", "hugeswap man run"),
        ],
    ),
    ("SEE ALSO", &[("", "userfaultfd(2), swapon(8), cgroups(7)")]),
];

fn sections(command: &str) -> Sections {
    match command {
        "hugeswap" => WHOLE,
        "run" => RUN,
        "doctor" => DOCTOR,
        "swapoff" | "swapon" => SWAPOFF,
        "set" => SET,
        "promote" => PROMOTE,
        _ => BENCH,
    }
}

/// The page of the command that `path` names: none for `hugeswap` itself, `["bench", "all"]` for one
/// of a command's own commands.
pub fn page(path: &[String]) -> ExitCode {
    let mut command = Cli::command();
    command.build();
    let mut name = "hugeswap";
    for word in path {
        let Some(next) = command.find_subcommand(word).cloned() else {
            errln!("hugeswap: there is no subcommand '{word}'; see 'hugeswap --help'");
            return ExitCode::from(USAGE);
        };
        command = next;
        if name == "hugeswap" {
            name = word;
        }
    }
    let mut text = Vec::new();
    // What follows the options there is in the sections.
    let man = Man::new(command.after_help(Resettable::Reset));
    let rendered = man
        .render(&mut text)
        .and_then(|()| write_sections(sections(name), &mut text));
    match rendered {
        Ok(()) => {
            out::bytes(&text);
            ExitCode::SUCCESS
        }
        Err(err) => {
            errln!("hugeswap: can't make the manual page: {err}");
            ExitCode::FAILURE
        }
    }
}

fn write_sections(sections: Sections, out: &mut Vec<u8>) -> std::io::Result<()> {
    use std::io::Write;
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    for (title, paragraphs) in sections {
        writeln!(out, ".SH \"{title}\"")?;
        for (tag, text) in *paragraphs {
            if tag.is_empty() {
                writeln!(out, ".PP\n\\&{}", escape(text))?;
            } else {
                writeln!(out, ".TP\n\\fB{}\\fR\n\\&{}", escape(tag), escape(text))?;
            }
        }
    }
    Ok(())
}

/// Of what a user may type: the hidden commands are left out, which clap would complete too.
pub fn completions(shell: Shell) -> ExitCode {
    let whole = Cli::command();
    let shown = whole.get_subcommands().filter(|c| !c.is_hide_set());
    let mut command = Command::new("hugeswap")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .subcommands(shown.cloned());
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "hugeswap", &mut script);
    out::bytes(&script);
    ExitCode::SUCCESS
}
