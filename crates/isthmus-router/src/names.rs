//! Names: a process of this AS publishes one, and others look it up. Both open a lane whose target is the router
//! itself.
//!
//! A name lasts as long as the lane that published it. Only its publisher may publish it again from a new lane: it must
//! show the 96 random bits of the first lane's Hello, which nobody else knows. The number of names, waiting look-ups
//! and lanes is limited, in total and for each source. A silent publisher loses its names.

use std::collections::HashMap;
use std::time::Duration;

use isthmus_datagram::scarcity::Sparing;
use isthmus_wire::Address;
use isthmus_wire::frame::Hello;
use isthmus_wire::rendezvous::{Answer, REQUEST_HEAD, Request};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::info;

use crate::hello::{HELLO_TIME, linger};
use crate::lane::Lane;
use crate::quota::Source;
use crate::router::{Arrival, Router};
use crate::settings::Settings;

/// Limit on names; it bounds memory.
const NAMES_MAX: usize = 1024;
/// Limit on the names of one host, so that no host takes all.
const NAMES_PER_HOST_MAX: usize = 128;
/// A publisher that was silent for this time counts as gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest wait of a look-up. A client that wants to wait longer asks again, and so holds no lane meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Limit on the waiting look-ups of one source, so that no source takes all lanes.
const WAITING_MAX: usize = 64;
/// Interval at which a waiting lane checks whether the router drains.
const LOOK: Duration = Duration::from_secs(1);

/// The owner of a name: the endpoint named in the Hello, the random secret that it told only this router, and the host
/// that the lane came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    endpoint: Address,
    secret: u64,
    host: Source,
}

struct Entry {
    text: String,
    owner: Owner,
    /// Distinguishes this publication from the owner's next.
    number: u64,
}

#[derive(Default)]
struct Table {
    entries: HashMap<String, Entry>,
    next: u64,
}

impl Table {
    /// Publishes a name. It replaces the same owner's earlier publication.
    fn publish(&mut self, name: &str, text: String, owner: Owner) -> Result<u64, Answer> {
        let of_host = || self.entries.values().filter(|entry| entry.owner.host == owner.host).count();
        match self.entries.get(name) {
            Some(entry) if entry.owner != owner => return Err(Answer::Taken),
            None if self.entries.len() >= NAMES_MAX || of_host() >= NAMES_PER_HOST_MAX => {
                return Err(Answer::Full);
            }
            _ => {}
        }
        let number = self.next;
        self.next += 1;
        self.entries.insert(name.to_owned(), Entry { text, owner, number });
        Ok(number)
    }

    fn withdraw(&mut self, name: &str, number: u64) {
        if self.entries.get(name).is_some_and(|entry| entry.number == number) {
            self.entries.remove(name);
        }
    }
}

/// The table of names; see the module.
#[derive(Default)]
pub(crate) struct Names {
    table: Mutex<Table>,
    changed: Notify,
}

/// Withdraws a name when it is dropped, however its lane ends.
struct Publication<'a> {
    names: &'a Names,
    name: String,
    number: u64,
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        self.names.table.lock().withdraw(&self.name, self.number);
    }
}

/// Whether a lane is for the router itself.
pub(crate) fn is_own(settings: &Settings, target: &Address) -> bool {
    let place = settings.place(target.subnet);
    target.as_id == settings.as_id() && place.is_some_and(|place| place.listen == Some(target.locator))
}

/// Lines in 10 s about names. Count; a host publishes as often as it likes, and a job's ranks publish a few.
const PUBLISHED_TOLD: u32 = 64;
static PUBLISHED: Sparing = Sparing::letting(PUBLISHED_TOLD);

impl Router {
    /// Serves an admitted lane to its end.
    pub(crate) async fn serve_names(&self, mut lane: Lane, hello: &Hello, arrival: &Arrival) {
        let request = match timeout(HELLO_TIME, read(&mut lane)).await {
            Ok(Some(request)) => request,
            _ => return say(&mut lane, Answer::Malformed, "").await,
        };
        match request {
            Request::Publish { .. } if hello.source.as_id != self.settings().as_id() => {
                say(&mut lane, Answer::Denied, "").await;
            }
            Request::Publish { name, text } => {
                // Lanes for names need no credit, so publishers fill this field with random bits.
                let owner = Owner { endpoint: hello.source, secret: hello.credit, host: arrival.source() };
                let published = self.names.table.lock().publish(&name, text, owner);
                match published {
                    Ok(number) => {
                        if let Some(left_out) = PUBLISHED.due(std::time::Instant::now()) {
                            info!(name, source = %hello.source, "published{left_out}");
                        }
                        let publication = Publication { names: &self.names, name, number };
                        self.names.changed.notify_waiters();
                        keep(&mut lane, || self.is_draining()).await;
                        drop(publication);
                    }
                    Err(answer) => say(&mut lane, answer, "").await,
                }
            }
            Request::LookUp { name, wait_s } => {
                let wait = Duration::from_secs(wait_s.into()).min(WAIT_MAX);
                let Some(share) = self.look_ups.take(arrival.source(), WAITING_MAX) else {
                    return say(&mut lane, Answer::Full, "").await;
                };
                let found = self.look_up(&mut lane, &name, Instant::now() + wait).await;
                drop(share);
                if let Some(found) = found {
                    let (answer, text) =
                        found.map_or((Answer::Absent, String::new()), |text| (Answer::Found, text));
                    say(&mut lane, answer, &text).await;
                }
            }
        }
    }

    /// The text of a name. `Some(None)` if it was not published in time; `None` if the client is gone.
    async fn look_up(&self, lane: &mut Lane, name: &str, until: Instant) -> Option<Option<String>> {
        let mut byte = [0; 1];
        loop {
            // Register before the table is read, so that no publication is missed.
            let changed = self.names.changed.notified();
            if let Some(entry) = self.names.table.lock().entries.get(name) {
                return Some(Some(entry.text.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_draining() {
                return Some(None);
            }
            tokio::select! {
                () = changed => {}
                // A client sends nothing after its question: the lane has ended, or the client is faulty.
                _ = lane.read(&mut byte) => return None,
                () = tokio::time::sleep(left.min(LOOK)) => {}
            }
        }
    }
}

/// Tells a publisher that its name is published. Then waits until it closes its lane or falls silent, or until the router
/// drains.
async fn keep(lane: &mut (impl AsyncRead + AsyncWrite + Unpin), is_draining: impl Fn() -> bool) {
    let told = timeout(HELLO_TIME, lane.write_all(&Answer::Published.encode(""))).await;
    if !matches!(told, Ok(Ok(()))) {
        return;
    }
    let mut heard = Instant::now();
    let mut bytes = [0; 64];
    while heard.elapsed() < SILENCE && !is_draining() {
        match timeout(LOOK, lane.read(&mut bytes)).await {
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(_)) => heard = Instant::now(),
            Err(_) => {}
        }
    }
}

async fn read(lane: &mut Lane) -> Option<Request> {
    let mut head = [0; REQUEST_HEAD];
    lane.read_exact(&mut head).await.ok()?;
    let mut rest = vec![0; Request::rest(head)?];
    lane.read_exact(&mut rest).await.ok()?;
    Request::decode(head, &rest)
}

async fn say(lane: &mut Lane, answer: Answer, text: &str) {
    // A client that does not read the answer in time does not get it.
    let _ = timeout(HELLO_TIME, async {
        lane.write_all(&answer.encode(text)).await?;
        lane.shutdown().await
    })
    .await;
    linger(lane).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(incarnation: u32) -> Owner {
        let endpoint = Address::from(std::net::SocketAddr::from(([10, 0, 0, 1], 1)));
        Owner { endpoint: Address { incarnation, ..endpoint }, host: host(1), secret: 7 }
    }

    fn host(last: u8) -> Source {
        Source::Host([10, 0, 0, last].into())
    }

    #[test]
    fn who_only_says_that_he_is_the_owner_takes_no_name() {
        let mut table = Table::default();
        table.publish("a", "one".to_owned(), owner(1)).expect("free");
        let elsewhere = Owner { host: host(2), ..owner(1) };
        assert_eq!(table.publish("a", "two".to_owned(), elsewhere), Err(Answer::Taken));
        // Another process of the same host cannot replace the name either.
        let guess = Owner { secret: 8, ..owner(1) };
        assert_eq!(table.publish("a", "two".to_owned(), guess), Err(Answer::Taken));
        assert_eq!(table.entries["a"].text, "one");
    }

    #[test]
    fn a_name_is_its_publishers_until_he_withdraws_it() {
        let mut table = Table::default();
        let first = table.publish("a", "one".to_owned(), owner(1)).expect("free");
        assert_eq!(table.publish("a", "two".to_owned(), owner(2)), Err(Answer::Taken));
        // The owner publishes it from another lane, before the router has seen the end of the first.
        let second = table.publish("a", "three".to_owned(), owner(1)).expect("his own");
        table.withdraw("a", first);
        assert_eq!(table.entries["a"].text, "three");
        table.withdraw("a", second);
        assert!(table.publish("a", "two".to_owned(), owner(2)).is_ok());
    }

    /// The publisher's host may be gone without a word. A byte now and then shows that it is there.
    #[tokio::test(start_paused = true)]
    async fn a_publisher_that_is_silent_loses_its_name_in_its_time() {
        let (mut lane, mut publisher) = tokio::io::duplex(64);
        let keeps = tokio::spawn(async move { keep(&mut lane, || false).await });
        let mut told = Answer::Published.encode("");
        publisher.read_exact(&mut told).await.expect("an answer");
        for _ in 0..3 {
            tokio::time::sleep(SILENCE - 5 * LOOK).await;
            publisher.write_all(&[0]).await.expect("it is kept");
        }
        let last = Instant::now();
        keeps.await.expect("an end");
        assert!((SILENCE..SILENCE + 2 * LOOK).contains(&last.elapsed()), "{:?}", last.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_publisher_that_does_not_read_its_answer_is_not_waited_for() {
        let (mut lane, publisher) = tokio::io::duplex(1);
        let begun = Instant::now();
        keep(&mut lane, || false).await;
        assert_eq!(begun.elapsed().as_secs(), HELLO_TIME.as_secs());
        drop(publisher);
    }

    #[test]
    fn names_are_bounded() {
        let mut table = Table::default();
        let of = |host: usize| Owner { host: self::host(host as u8), ..owner(1) };
        for number in 0..NAMES_MAX {
            let publisher = of(1 + number / NAMES_PER_HOST_MAX);
            table.publish(&number.to_string(), String::new(), publisher).expect("room");
            if number + 1 == NAMES_PER_HOST_MAX {
                assert_eq!(table.publish("more", String::new(), of(1)), Err(Answer::Full), "of one host");
            }
        }
        assert_eq!(table.publish("more", String::new(), of(200)), Err(Answer::Full));
        assert!(table.publish("1", "again".to_owned(), owner(1)).is_ok());
    }
}
