//! Builds the guest's first file system, starts it, reads its serial line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Seconds after which a guest is given up: that it hangs is the only thing that this is to find.
const TIMEOUT: &str = "3600";

/// The modules that the scenarios need; what they depend on comes with them.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "xfs", "btrfs"];

/// The guest's disks, by the program that makes them.
const DISKS: [(&str, &[&str]); 3] = [
    ("ext4", &["mkfs.ext4", "-q", "-F"]),
    ("xfs", &["mkfs.xfs", "-q", "-f"]),
    ("btrfs", &["mkfs.btrfs", "-q", "-f"]),
];

pub struct Guest {
    kernel: PathBuf,
    dir: PathBuf,
    /// Time is counted in instructions, 4 ns each, all processors' together; what waits costs none.
    /// So the guest goes the same way on a busy host as on a quiet one, and a daemon that mostly
    /// rests takes no time.
    counted: bool,
    cpus: u32,
    /// Fast nodes, each with as many processors.
    sockets: u32,
}

pub struct Report {
    text: String,
}

fn target() -> PathBuf {
    let exe = PathBuf::from(env!("CARGO_BIN_EXE_hugeswap"));
    exe.ancestors().nth(2).unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|err| panic!("{command:?}: {err}: ./test installs what is needed"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Guest {
    /// `package` is the name of a Debian package that `./test` has fetched.
    pub fn new(package: &str) -> Guest {
        let kernel = target().join("guest").join(package);
        assert!(
            kernel.join("boot").is_dir(),
            "{} is not there: ./test fetches it",
            kernel.display()
        );
        let dir = target()
            .join("guest")
            .join(format!("run-{}-{package}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Guest {
            kernel,
            dir,
            counted: true,
            cpus: 2,
            sockets: 1,
        }
    }

    /// Two fast nodes, 0 and 1, with a processor each; the slow one is node 2.
    pub fn two_sockets(mut self) -> Guest {
        self.sockets = 2;
        self
    }

    /// So many processors, all of them on node 0.
    pub fn cpus(mut self, cpus: u32) -> Guest {
        self.cpus = cpus;
        self
    }

    /// With the host's clock, for what works more than it waits.
    pub fn with_the_hosts_clock(mut self) -> Guest {
        self.counted = false;
        self
    }

    fn version(&self) -> String {
        let modules = fs::read_dir(self.kernel.join("lib/modules")).unwrap();
        let entry = modules.flatten().next().expect("a kernel's modules");
        entry.file_name().into_string().unwrap()
    }

    pub fn run(self, scenarios: &[&str]) -> Report {
        let version = self.version();
        let initramfs = self.dir.join("initramfs");
        fs::write(&initramfs, self.initramfs(&version, scenarios)).unwrap();
        let (mut text, mut errors) = self.boot(&version, &initramfs);
        if text.contains("Kernel panic") {
            // No program can bring that about: it is the emulation.
            println!("the guest's kernel panicked; once more:\n{text}");
            (text, errors) = self.boot(&version, &initramfs);
        }
        let _ = fs::remove_dir_all(&self.dir);
        assert!(
            text.lines().any(|line| line == "END"),
            "the guest did not come to its end:\n{text}\n{errors}"
        );
        for line in text.lines() {
            if ["PASS", "FAIL", "NOTE", "TIME"].contains(&line.split(' ').next().unwrap_or("")) {
                println!("{line}");
            }
        }
        Report { text }
    }

    /// What it has printed, and what the emulator has.
    fn boot(&self, version: &str, initramfs: &Path) -> (String, String) {
        let mut qemu = Command::new("timeout");
        let cpu = if self.counted {
            // Copies of 8 bytes an instruction: byte by byte they would be all that counts. And no exchanges of 16
            // bytes: by this clock the emulation now and then goes on with wrong flags after one.
            "max,-erms,-fsrm,-cx16"
        } else {
            // QEMU 7.2 computes these wrong, and hugeswap would not encrypt.
            "max,-vaes"
        };
        qemu.args([TIMEOUT, "qemu-system-x86_64"]);
        if self.counted {
            qemu.args(["-icount", "shift=2,sleep=off"]);
        }
        qemu.args(["-machine", "q35,hmat=on", "-cpu", cpu])
            // All processors in turns on one thread: QEMU's emulation in parallel
            // now and then runs into code that the kernel is patching, which
            // it does whenever a tracepoint is switched.
            .args([
                "-accel",
                "tcg,thread=single",
                "-smp",
                &self.cpus.to_string(),
            ])
            .args([
                "-nodefaults",
                "-nographic",
                "-no-reboot",
                "-serial",
                "stdio",
            ])
            .arg("-kernel")
            .arg(self.kernel.join(format!("boot/vmlinuz-{version}")))
            .arg("-initrd")
            .arg(initramfs)
            // On a busy host the timer ticks late, which the kernel's check takes for a broken one.
            .args([
                "-append",
                "console=ttyS0 loglevel=4 panic=-1 no_timer_check",
            ]);
        self.memory(&mut qemu);
        for (name, mkfs) in DISKS {
            let image = self.dir.join(name);
            fs::File::create(&image)
                .unwrap()
                .set_len(512 << 20)
                .unwrap();
            run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
            qemu.arg("-drive").arg(format!(
                "file={},format=raw,if=virtio,cache=unsafe",
                image.display()
            ));
        }
        // Not a pipe: how far it has come can be read there.
        let serial = self.dir.join("serial");
        let output = qemu
            .stdin(Stdio::null())
            .stdout(fs::File::create(&serial).unwrap())
            .output()
            .expect("./test installs qemu");
        let text = fs::read(&serial).unwrap();
        (
            String::from_utf8_lossy(&text).replace('\r', ""),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    /// The fast nodes with the processors, and one more that is slower, and said to be so (HMAT), so
    /// that the kernel makes two tiers.
    fn memory(&self, qemu: &mut Command) {
        // Each processor takes some of it.
        let size = (8 * self.cpus).max(320);
        let slow = self.sockets;
        qemu.args(["-m", &format!("{}M", (slow + 1) * size)]);
        for node in 0..=slow {
            qemu.arg("-object");
            qemu.arg(format!("memory-backend-ram,id=m{node},size={size}M"));
        }
        let each = self.cpus / self.sockets;
        for node in 0..slow {
            let (first, last) = (node * each, (node + 1) * each - 1);
            let numa = format!("node,nodeid={node},memdev=m{node},cpus={first}-{last}");
            qemu.args(["-numa", &numa]);
        }
        let numa = format!("node,nodeid={slow},memdev=m{slow},initiator=0");
        qemu.args(["-numa", &numa]);
        for (initiator, target) in (0..slow).flat_map(|from| (0..=slow).map(move |to| (from, to))) {
            let (latency, bandwidth) = match target {
                near if near == initiator => (10, 100),
                far if far < slow => (15, 80),
                _ => (30, 20),
            };
            let of = format!("hmat-lb,initiator={initiator},target={target},hierarchy=memory");
            let latency = format!("{of},data-type=access-latency,latency={latency}");
            let bandwidth = format!("{of},data-type=access-bandwidth,bandwidth={bandwidth}G");
            qemu.args(["-numa", &latency, "-numa", &bandwidth]);
        }
    }

    fn initramfs(&self, version: &str, scenarios: &[&str]) -> Vec<u8> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest");
        let mut archive = Archive::default();
        for dir in ["bin", "proc", "sys", "dev", "modules", "scn", "etc"] {
            archive.dir(dir);
        }
        archive.program("init", &fs::read(here.join("init.sh")).unwrap());
        let busybox = ["/bin/busybox", "/usr/bin/busybox"]
            .into_iter()
            .find_map(|path| fs::read(path).ok())
            .expect("./test installs busybox-static");
        archive.program("bin/busybox", &busybox);
        let tool = self.compile(&here.join("guest.c"), &["-O2", "-w", "-static"]);
        archive.program("bin/guest", &tool);
        // A shell that hugeswap can be in: busybox is static.
        archive.program("bin/dash", &fs::read("/bin/dash").unwrap());
        for name in ["hog", "stacks"] {
            let source = here.join(format!("../run/c/{name}.c"));
            archive.program(&format!("bin/{name}"), &self.compile(&source, &["-O1"]));
        }
        let mut needed = std::collections::BTreeSet::new();
        for name in ["hugeswap", "hugeswap-difftest", "libhugeswap_preload.so"] {
            let file = target().join("release").join(name);
            archive.program(&format!("bin/{name}"), &fs::read(&file).unwrap());
            needed.extend(libraries(&file));
        }
        for library in needed {
            let bytes = fs::read(&library).unwrap();
            archive.program(library.trim_start_matches('/'), &bytes);
        }
        for scenario in fs::read_dir(here.join("scenarios")).unwrap().flatten() {
            let name = scenario.file_name().into_string().unwrap();
            archive.program(&format!("scn/{name}"), &fs::read(scenario.path()).unwrap());
        }
        archive.program("scenarios", scenarios.join("\n").as_bytes());
        let mut order = String::new();
        for module in self.modules(version) {
            let name = Path::new(&module).file_name().unwrap().to_str().unwrap();
            let path = self.kernel.join("lib/modules").join(version).join(&module);
            let (name, bytes) = match name.strip_suffix(".xz") {
                Some(name) => {
                    let output = Command::new("xz").arg("-dc").arg(&path).output().unwrap();
                    (name, output.stdout)
                }
                None => (name, fs::read(&path).unwrap()),
            };
            archive.program(&format!("modules/{name}"), &bytes);
            order += name;
            order += "\n";
        }
        archive.program("modules/order", order.as_bytes());
        archive.end()
    }

    fn compile(&self, source: &Path, flags: &[&str]) -> Vec<u8> {
        let program = self.dir.join("program");
        run(Command::new("cc")
            .args(flags)
            .arg("-o")
            .arg(&program)
            .arg(source));
        fs::read(program).unwrap()
    }

    /// The wanted modules and what they depend on, in the order to load them.
    fn modules(&self, version: &str) -> Vec<String> {
        let list = self
            .kernel
            .join("lib/modules")
            .join(version)
            .join("modules.dep");
        let text = fs::read_to_string(list).expect("./test runs depmod");
        let stem = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or(path);
            name.split('.').next().unwrap_or(name).replace('-', "_")
        };
        let mut order: Vec<String> = Vec::new();
        for wanted in MODULES {
            for line in text.lines() {
                let Some((module, needs)) = line.split_once(':') else {
                    continue;
                };
                if stem(module) != wanted {
                    continue;
                }
                // What is needed first stands last.
                let needs = needs.split_whitespace().rev();
                for path in needs.chain([module]) {
                    if !order.iter().any(|known| known == path) {
                        order.push(path.to_owned());
                    }
                }
            }
        }
        order
    }
}

/// The shared libraries that a program is linked with, and their loader.
fn libraries(program: &Path) -> Vec<String> {
    run(Command::new("ldd").arg(program))
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

/// The kernel's archive format, "newc".
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    count: u32,
    dirs: Vec<String>,
}

impl Archive {
    fn dir(&mut self, name: &str) {
        if !self.dirs.iter().any(|known| known == name) {
            self.dirs.push(name.to_owned());
            self.entry(name, 0o040_755, &[]);
        }
    }

    fn program(&mut self, name: &str, contents: &[u8]) {
        let parents: Vec<&str> = name.split('/').collect();
        for depth in 1..parents.len() {
            self.dir(&parents[..depth].join("/"));
        }
        self.entry(name, 0o100_755, contents);
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.count += 1;
        let size = u32::try_from(contents.len()).unwrap();
        let length = name.len() as u32 + 1;
        // inode, mode, uid, gid, links, time, size, four device numbers, name, sum
        let fields = [self.count, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

impl Report {
    /// Nothing failed, and these were among what passed.
    pub fn passed(&self, names: &[&str]) {
        let failed: Vec<&str> = self
            .text
            .lines()
            .filter(|line| line.starts_with("FAIL "))
            .collect();
        assert!(failed.is_empty(), "{}\n\n{}", failed.join("\n"), self.text);
        for name in names {
            assert!(
                self.text.lines().any(|line| line == format!("PASS {name}")),
                "{name} did not run:\n{}",
                self.text
            );
        }
    }
}
