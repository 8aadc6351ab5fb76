//! Standard error, written by a thread of its own.
//!
//! Nobody who has other things to do may wait for it: a pipe may be full, a terminal stopped, and of a file the kernel
//! writes one at a time. The supervisor of a run serves the very programs that write there, from memory that is in swap.

use std::io::Write;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Lines that may wait. What is said beyond is lost, and what is to be done beyond is done at once.
const LINES: usize = 256;

static SPEAKER: OnceLock<Speaker> = OnceLock::new();

type Job = Box<dyn FnOnce() + Send>;

enum Item {
    Text(Vec<u8>),
    /// To be done when all before has been said.
    Then(Job),
}

struct Speaker {
    queue: SyncSender<Item>,
    waiting: Arc<Waiting>,
}

/// How many items wait, or are under way.
#[derive(Default)]
struct Waiting {
    items: Mutex<usize>,
    fewer: Condvar,
}

impl Waiting {
    fn add(&self) {
        *self.items.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn done(&self) {
        *self.items.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.fewer.notify_all();
    }

    fn none_within(&self, most: Duration) -> bool {
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.fewer.wait_timeout_while(items, most, |n| *n > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

impl Speaker {
    /// And the job of its thread.
    fn new(to: impl Write + Send + 'static) -> (Speaker, Job) {
        let (queue, items) = sync_channel(LINES);
        let waiting = Arc::new(Waiting::default());
        let seen = Arc::clone(&waiting);
        let job = Box::new(move || speak(to, &items, &seen));
        (Speaker { queue, waiting }, job)
    }

    fn say(&self, item: Item) {
        self.waiting.add();
        let Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) =
            self.queue.try_send(item)
        else {
            return;
        };
        self.waiting.done();
        if let Item::Then(job) = item {
            job();
        }
    }
}

fn speak(mut to: impl Write, items: &Receiver<Item>, waiting: &Waiting) {
    for item in items {
        match item {
            Item::Text(text) => {
                let _ = to.write_all(&text);
            }
            Item::Then(job) => job(),
        }
        waiting.done();
    }
}

/// What is said on standard error is written by another thread from now on, which `start` starts.
///
/// # Errors
/// That of `start`.
pub fn begin<E>(start: impl FnOnce(Job) -> Result<(), E>) -> Result<(), E> {
    let (speaker, job) = Speaker::new(std::io::stderr());
    start(job)?;
    let _ = SPEAKER.set(speaker);
    Ok(())
}

/// False where there is no such thread.
pub(crate) fn say(text: &[u8]) -> bool {
    let speaker = SPEAKER.get();
    speaker.is_some_and(|s| {
        s.say(Item::Text(text.to_vec()));
        true
    })
}

/// Does `job` when all before has been said; at once where there is no such thread.
pub fn then(job: impl FnOnce() + Send + 'static) {
    match SPEAKER.get() {
        Some(speaker) => speaker.say(Item::Then(Box::new(job))),
        None => job(),
    }
}

/// Waits until all has been said, but no longer than that. Whether it has.
pub fn finish(most: Duration) -> bool {
    let speaker = SPEAKER.get();
    speaker.is_none_or(|s| s.waiting.none_within(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn nobody_waits_for_a_full_pipe() {
        let (mut from, to) = UnixStream::pair().unwrap();
        let (speaker, job) = Speaker::new(to);
        let thread = std::thread::spawn(job);
        let line = vec![b'x'; 4096];
        let is_over = Arc::new(AtomicBool::new(false));
        let fill = || {
            for _ in 0..2 * LINES {
                speaker.say(Item::Text(line.clone()));
            }
        };
        fill();
        assert!(!speaker.waiting.none_within(Duration::from_millis(10)));
        // By now the thread waits for the reader.
        fill();
        let over = Arc::clone(&is_over);
        speaker.say(Item::Then(Box::new(move || {
            over.store(true, Ordering::Release)
        })));
        assert!(is_over.swap(false, Ordering::AcqRel), "there was no room");
        let mut read = vec![0; 64 * 4096];
        from.read_exact(&mut read).unwrap();
        assert!(read.iter().all(|&b| b == b'x'));
        // From here on there is a reader.
        let reader = std::thread::spawn(move || from.read_to_end(&mut Vec::new()).unwrap());
        assert!(speaker.waiting.none_within(Duration::from_secs(60)));
        let over = Arc::clone(&is_over);
        speaker.say(Item::Then(Box::new(move || {
            over.store(true, Ordering::Release)
        })));
        assert!(speaker.waiting.none_within(Duration::from_secs(60)));
        assert!(is_over.load(Ordering::Acquire));
        drop(speaker);
        thread.join().unwrap();
        let rest = reader.join().unwrap();
        assert!(rest < 4 * LINES * 4096, "some were lost");
    }
}
