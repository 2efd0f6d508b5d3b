//! Ends older sessions of a transfer: only the one admitted last goes on. The client of an older session is gone;
//! usually it was killed and started again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use crate::MoverError;
use crate::session::Event;

/// Longest time that an older session may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
const ANEW: &str = "the same transfer was started anew";

/// Identifies a transfer: the client's AS, and a hash of what is copied where.
pub(crate) type Key = (u32, [u8; 16]);

/// The sessions that were granted.
#[derive(Default)]
pub(crate) struct Succession {
    /// For each transfer, the order of its admission, and the sender by which the session is told to end.
    granted: Mutex<HashMap<Key, (u64, Sender<Event>)>>,
}

impl Succession {
    /// Whether there is a session of this transfer.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.granted.lock().contains_key(key)
    }

    /// Grants a session after an older one of its transfer has ended.
    ///
    /// # Errors
    /// A newer session is there already, because threads may start out of order; or the older one does not end.
    pub(crate) fn succeed(&self, key: Key, order: u64, inbox: &Sender<Event>) -> Result<(), MoverError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut granted = self.granted.lock();
            let Some((other, older)) = granted.get(&key) else {
                granted.insert(key, (order, inbox.clone()));
                return Ok(());
            };
            if *other > order {
                return Err(MoverError::Usage(ANEW.to_owned()));
            }
            let _ = older.send(Event::Stop(ANEW.to_owned()));
            drop(granted);
            if Instant::now() > until {
                let text = "the same transfer is still under way; try again later";
                return Err(MoverError::Usage(text.to_owned()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes a session that has ended, if it was granted.
    pub(crate) fn end(&self, order: u64) {
        self.granted.lock().retain(|_, (other, _)| *other != order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (1, [7; 16]);

    fn session() -> (Sender<Event>, crossbeam_channel::Receiver<Event>) {
        crossbeam_channel::unbounded()
    }

    /// A client was killed and restarted at once, and the thread of its first session ran after that of the second.
    #[test]
    fn a_session_whose_thread_is_late_does_not_end_the_one_after_it() {
        let (succession, (late, _), (newer, heard)) = (Succession::default(), session(), session());
        succession.succeed(KEY, 2, &newer).expect("nobody else");
        assert!(matches!(succession.succeed(KEY, 1, &late), Err(MoverError::Usage(text)) if text == ANEW));
        assert!(heard.is_empty());
        succession.end(1);
        assert!(matches!(succession.succeed(KEY, 1, &late), Err(MoverError::Usage(_))));
        succession.end(2);
        succession.succeed(KEY, 3, &newer).expect("it has ended");
    }

    #[test]
    fn an_older_session_is_told_and_waited_for() {
        let (succession, (older, heard), (newer, _)) = (Succession::default(), session(), session());
        succession.succeed(KEY, 1, &older).expect("nobody else");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(matches!(heard.recv(), Ok(Event::Stop(text)) if text == ANEW));
                succession.end(1);
            });
            succession.succeed(KEY, 2, &newer).expect("the older one ends");
        });
        succession.succeed((2, KEY.1), 1, &newer).expect("another's transfer");
    }
}
