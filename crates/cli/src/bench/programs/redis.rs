//! redis answers random gets of one client, one after the other; every value is compared.

use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::graph::peak;
use super::Outcome;
use crate::bench::arena::Arena;
use crate::bench::error::{io_error, Error};
use crate::bench::pattern::Random;
use crate::undo::{Interrupt, Undo};

const VALUE: usize = 1000;
/// What redis keeps for a key in all.
const KEY_BYTES: u64 = 1150;
/// Sets sent before their answers are read.
const BATCH: u64 = 200;
const START: Duration = Duration::from_secs(20);
/// An answer may wait for the kernel's swap.
const ANSWER: Duration = Duration::from_secs(120);

pub fn run(
    arena: &Arena,
    bytes: u64,
    who: &str,
    stop: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    let keys = (bytes / KEY_BYTES).max(BATCH) / BATCH * BATCH;
    let dir = std::env::temp_dir().join(format!("hugeswap-redis-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(io_error("make a directory for redis"))?;
    let socket = dir.join("socket");
    let mut guard = crate::undo::Guard::new();
    guard.push(Undo::RemoveDir(dir.clone()));
    let mut command = arena.command("redis-server")?;
    command
        .args(["--port", "0", "--save", "", "--appendonly", "no"])
        .args(["--loglevel", "warning", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(&dir)
        .stdout(Stdio::null());
    let mut server = Server {
        arena,
        child: command.spawn().map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => Error::Missing("redis-server"),
            _ => io_error("start redis-server")(err),
        })?,
    };
    let mut client = Client::connect(&socket, &mut server.child, who, stop)?;
    say("loading");
    client.load(keys, stop)?;
    let gets = keys / 2;
    let mut random = Random::new(5);
    let mut got = vec![0; VALUE + 2];
    let start = Instant::now();
    for number in 0..gets {
        if number % 256 == 0 {
            stop.check()?;
            say(&format!("{number} of {gets} gets"));
        }
        let key = random.below(keys);
        if !client.get(key, &mut got)? {
            return Err(Error::Wrong {
                who: who.to_owned(),
                what: format!("redis gave another value for key {key}"),
            });
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let need = peak(&server.child.id().to_string());
    server.end()?;
    Ok(Outcome {
        seconds,
        check: format!("{keys} keys, {gets} gets"),
        need,
    })
}

/// Ends with its arena, if not before.
struct Server<'a> {
    arena: &'a Arena,
    child: Child,
}

impl Server<'_> {
    fn end(&mut self) -> Result<(), Error> {
        self.arena.kill(&mut self.child)?;
        self.child
            .wait()
            .map_err(io_error("wait for redis-server"))?;
        Ok(())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // The arena says so itself if its group can't be removed.
        let _ = self.end();
    }
}

struct Client {
    out: BufWriter<UnixStream>,
    back: BufReader<UnixStream>,
}

/// Different for each key.
fn value(key: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    let mut random = Random::new(key);
    for part in value.chunks_mut(8) {
        part.copy_from_slice(&random.word().to_ne_bytes()[..part.len()]);
    }
    value
}

impl Client {
    fn connect(
        socket: &Path,
        server: &mut Child,
        who: &str,
        stop: &Interrupt,
    ) -> Result<Client, Error> {
        let deadline = Instant::now() + START;
        let stream = loop {
            stop.check()?;
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(err) if Instant::now() > deadline => return Err(io_error("reach redis")(err)),
                Err(_) => {}
            }
            if let Ok(Some(status)) = server.try_wait() {
                return Err(Error::Failed {
                    who: who.to_owned(),
                    status,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let open = || -> io::Result<Client> {
            stream.set_read_timeout(Some(ANSWER))?;
            stream.set_write_timeout(Some(ANSWER))?;
            Ok(Client {
                out: BufWriter::new(stream.try_clone()?),
                back: BufReader::new(stream),
            })
        };
        open().map_err(io_error("talk to redis"))
    }

    fn load(&mut self, keys: u64, stop: &Interrupt) -> Result<(), Error> {
        for first in (0..keys).step_by(BATCH as usize) {
            stop.check()?;
            self.set(first..first + BATCH)
                .map_err(io_error("talk to redis"))?;
        }
        Ok(())
    }

    fn set(&mut self, keys: std::ops::Range<u64>) -> io::Result<()> {
        for key in keys.clone() {
            let name = format!("key:{key}");
            let head = format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${VALUE}\r\n",
                name.len()
            );
            self.out.write_all(head.as_bytes())?;
            self.out.write_all(&value(key))?;
            self.out.write_all(b"\r\n")?;
        }
        self.out.flush()?;
        for _ in keys {
            let answer = self.line()?;
            if answer != "+OK" {
                return Err(io::Error::other(answer));
            }
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.back.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Was it the right value?
    fn get(&mut self, key: u64, buffer: &mut [u8]) -> Result<bool, Error> {
        let mut ask = || -> io::Result<bool> {
            let name = format!("key:{key}");
            write!(self.out, "*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len())?;
            self.out.flush()?;
            if self.line()? != format!("${VALUE}") {
                return Ok(false);
            }
            self.back.read_exact(buffer)?;
            Ok(buffer[..VALUE] == value(key))
        };
        ask().map_err(io_error("talk to redis"))
    }
}
