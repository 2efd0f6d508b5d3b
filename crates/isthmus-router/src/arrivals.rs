//! Connections that have not sent their Hello yet. At most [`ARRIVING_MAX`] of them are kept, and no more than a quarter
//! of the files that the process may open, so that lanes find descriptors.
//!
//! When one more comes, the address or network with the most connections loses its oldest ([`displaced`]). So a flood
//! from one host displaces only itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use isthmus_datagram::crowd::displaced;
use isthmus_datagram::scarcity::share_of_files;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// `ARRIVING_MAX`: limit on connections that have not sent their Hello. Each costs a descriptor and a few KiB.
const ARRIVING_MAX: usize = 1024;

/// The table of these connections; see the module.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    /// Connections by their order of arrival.
    guests: BTreeMap<u64, Guest>,
}

struct Guest {
    ip: IpAddr,
    gone: Arc<Notify>,
}

/// One connection's entry in the table. Dropping it frees the entry.
pub(crate) struct ArrivalEntry {
    arrivals: Arc<Arrivals>,
    number: u64,
    gone: Arc<Notify>,
}

/// The limit on connections for a process that may open this many files.
fn most(files: Option<u64>) -> usize {
    share_of_files(files, 4, ARRIVING_MAX)
}

impl Arrivals {
    /// Enters a connection from `ip`. If the table is full, another connection is closed.
    pub(crate) fn arrive(self: &Arc<Self>, ip: IpAddr) -> ArrivalEntry {
        let mut table = self.0.lock();
        if table.guests.len() >= most(getrlimit(Resource::Nofile).current) {
            table.displace();
        }
        let (number, gone) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        table.guests.insert(number, Guest { ip, gone: gone.clone() });
        ArrivalEntry { arrivals: self.clone(), number, gone }
    }

    /// Closes one connection to free its descriptor. Returns false if there was none.
    pub(crate) fn displace(&self) -> bool {
        self.0.lock().displace()
    }
}

impl Table {
    fn displace(&mut self) -> bool {
        let number = displaced(self.guests.iter().map(|(number, guest)| (*number, Some(guest.ip))));
        let Some(guest) = number.and_then(|number| self.guests.remove(&number)) else { return false };
        guest.gone.notify_one();
        true
    }
}

impl ArrivalEntry {
    /// Runs `work` with this entry. `work` drops the entry once it has read the Hello. If the entry is displaced before
    /// that, `work` is cancelled.
    pub(crate) async fn hold<F: Future<Output = ()>>(self, work: impl FnOnce(Self) -> F) {
        let gone = self.gone.clone();
        tokio::select! {
            () = gone.notified() => {}
            () = work(self) => {}
        }
    }
}

impl Drop for ArrivalEntry {
    fn drop(&mut self) {
        self.arrivals.0.lock().guests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Whether it was told to go.
    fn is_gone(place: &ArrivalEntry) -> bool {
        !place.arrivals.0.lock().guests.contains_key(&place.number)
    }

    #[test]
    fn a_silent_crowd_displaces_itself_and_the_oldest_first() {
        let arrivals = Arc::new(Arrivals::default());
        let alone = arrivals.arrive(ip(7));
        let most = most(getrlimit(Resource::Nofile).current);
        let crowd: Vec<_> = (0..most + 9).map(|_| arrivals.arrive(ip(1))).collect();
        assert!(!is_gone(&alone), "who comes alone is not locked out, however old");
        let gone = crowd.iter().filter(|place| is_gone(place)).count();
        assert_eq!(gone, 10);
        assert!(crowd[..10].iter().all(is_gone));
        assert!(!is_gone(&arrivals.arrive(ip(8))), "and who comes later finds a place");
        drop(crowd);
        assert_eq!(arrivals.0.lock().guests.len(), 1);
    }

    /// IPv6 gives a host as many addresses as it wants.
    #[test]
    fn a_crowd_of_one_network_displaces_itself() {
        let arrivals = Arc::new(Arrivals::default());
        let of = |network, host| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        let alone = arrivals.arrive(of(1, 1));
        let crowd: Vec<_> = (0..2_000).map(|host| arrivals.arrive(of(2, host))).collect();
        assert!(!is_gone(&alone) && crowd.iter().any(is_gone));
    }

    #[test]
    fn strangers_leave_descriptors_for_lanes() {
        assert_eq!(
            [None, Some(1 << 20), Some(1024), Some(3)].map(most),
            [ARRIVING_MAX, ARRIVING_MAX, 256, 1]
        );
    }

    #[tokio::test]
    async fn who_has_to_go_is_let_go_at_once_and_who_was_heard_stays() {
        let arrivals = Arc::new(Arrivals::default());
        let silent = tokio::spawn(arrivals.arrive(ip(1)).hold(|place| async move {
            std::future::pending::<()>().await;
            drop(place);
        }));
        let (told, heard) = tokio::sync::oneshot::channel();
        let known = tokio::spawn(arrivals.arrive(ip(2)).hold(|place| async move {
            drop(place);
            let _ = heard.await;
        }));
        tokio::task::yield_now().await;
        assert!(arrivals.displace());
        tokio::time::timeout(std::time::Duration::from_secs(20), silent)
            .await
            .expect("in time")
            .expect("an end");
        assert!(!arrivals.displace(), "nobody else is silent");
        assert!(!known.is_finished());
        told.send(()).expect("it goes on");
        known.await.expect("an end");
    }
}
