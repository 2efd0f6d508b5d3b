//! Files that cannot be opened because no descriptor is free.
//!
//! Descriptors come back when files of this process, or of another one, are closed. So the open is tried again every
//! [`PAUSE`]. After [`WAIT_MAX`] without a free descriptor files fail, with an error that names the remedy.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_io::log::{Sparing, remedy};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Pause between two tries.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Longest time without a free descriptor before files fail. It is shorter than [`crate::session::PATIENCE`], after
/// which the other side gives up.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The shortage of this process: descriptors belong to all its threads.
static SHORTAGE: Shortage = Shortage::new();

/// A time in which no descriptor was free.
struct Shortage {
    /// Whether there is one, so that an open that succeeds takes no lock.
    lasts: AtomicBool,
    /// Its first and its last failed open.
    times: Mutex<Option<(Instant, Instant)>>,
}

impl Shortage {
    const fn new() -> Self {
        Self { lasts: AtomicBool::new(false), times: Mutex::new(None) }
    }

    /// Takes a failed open. Returns whether to try again.
    fn failed(&self, now: Instant) -> bool {
        let mut times = self.times.lock();
        // The one before ended unseen if nobody opened a file since.
        let before = times.filter(|(_, last)| now.saturating_duration_since(*last) < WAIT_MAX);
        let since = before.map_or(now, |(since, _)| since);
        *times = Some((since, now));
        self.lasts.store(true, Ordering::Relaxed);
        now.saturating_duration_since(since) < WAIT_MAX
    }

    /// Takes an open that succeeded.
    fn succeeded(&self) {
        if self.lasts.load(Ordering::Relaxed) {
            self.lasts.store(false, Ordering::Relaxed);
            *self.times.lock() = None;
        }
    }
}

/// Whether an open failed for want of a descriptor.
pub(crate) fn is_short(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// Whether this open failed for want of a descriptor, and may succeed if it is tried again after [`PAUSE`].
pub(crate) fn may_come(error: &io::Error) -> bool {
    static SPARING: Sparing = Sparing::new();
    if !is_short(error) {
        return false;
    }
    SPARING.tell(format_args!("files wait to be opened"), error, |line| tracing::warn!("{line}"));
    SHORTAGE.failed(Instant::now())
}

/// Takes an open that succeeded without [`wait_for`]: a shortage has ended.
pub(crate) fn have_come() {
    SHORTAGE.succeeded();
}

/// Adds the remedy to an error for want of a descriptor.
pub(crate) fn explained(error: io::Error) -> io::Error {
    match remedy(&error).filter(|_| is_short(&error)) {
        Some(remedy) => io::Error::new(error.kind(), format!("{error}; {remedy}")),
        None => error,
    }
}

/// Says which side lacks descriptors, threads or memory in a text that the other side sent: "receiving", "sending" or
/// "other".
pub(crate) fn of_side(mut text: String, side: &str) -> String {
    for errno in [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM] {
        let code = format!("(os error {})", errno.raw_os_error());
        if let Some(at) = text.find(&code) {
            text.insert_str(at + code.len(), &format!(" on the {side} side"));
        }
    }
    text
}

/// Calls `open` until it succeeds, or fails for another reason than a want of descriptors, or these have been wanting
/// for [`WAIT_MAX`]. It sleeps meanwhile.
///
/// # Errors
/// The last error of `open`, with a remedy.
pub(crate) fn wait_for<T, E: Into<io::Error>>(mut open: impl FnMut() -> Result<T, E>) -> io::Result<T> {
    loop {
        match open().map_err(Into::into) {
            Ok(opened) => {
                have_come();
                return Ok(opened);
            }
            Err(error) if may_come(&error) => thread::sleep(PAUSE),
            Err(error) => return Err(explained(error)),
        }
    }
}

/// At most `most` long files that one side of a session has open at once. With up to three descriptors each they leave
/// more than half of those that are free now: short files, folders and the other side need some too.
pub(crate) fn share_of_descriptors(most: usize) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(most, |limit| most.min((limit.saturating_sub(open) / 8) as usize)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_wait_for_descriptors_as_long_as_is_stated_and_then_fail_at_once() {
        let (shortage, start) = (Shortage::new(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!((0..5000).step_by(100).all(|ms| shortage.failed(at(ms))));
        assert!((5000..7000).step_by(100).all(|ms| !shortage.failed(at(ms))));
        // One that was free for a moment, and a time without opens, begin anew.
        shortage.succeeded();
        assert!((7100..12_100).step_by(100).all(|ms| shortage.failed(at(ms))));
        assert!(!shortage.failed(at(12_100)) && shortage.failed(at(20_000)));
    }

    #[test]
    fn an_open_is_tried_again_for_want_of_a_descriptor_only() {
        let mut tries = 0;
        let opened = wait_for(|| {
            tries += 1;
            if tries < 3 { Err(Errno::MFILE) } else { Ok(tries) }
        });
        assert_eq!(opened.expect("at the third try"), 3);
        let mut tries = 0;
        let refused = wait_for(|| {
            tries += 1;
            Err::<(), _>(Errno::ACCESS)
        });
        assert_eq!((refused.expect_err("not allowed").kind(), tries), (io::ErrorKind::PermissionDenied, 1));
        assert!(explained(Errno::MFILE.into()).to_string().contains("ulimit -n"));
        let told = of_side(format!("data/a: {}", explained(Errno::MFILE.into())), "receiving");
        assert!(told.contains("open files (os error 24) on the receiving side; this process"), "{told}");
        let told = of_side(format!("no memory: {}", io::Error::from(Errno::NOMEM)), "other");
        assert!(told.ends_with("(os error 12) on the other side"), "{told}");
        assert!(!explained(Errno::ACCESS.into()).to_string().contains("firewall"));
    }
}
