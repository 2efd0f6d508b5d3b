//! How the packets of TCP lanes are marked: their DSCP, and the flow label that has their scientific network tag.
//!
//! The end that dials chooses the label of its own packets when it connects: Linux has no way to choose it for a
//! connection that was accepted. That end can only answer with the label that it receives, if the system lets it.

use std::io;
use std::net::SocketAddr;
use std::sync::Once;

use isthmus_datagram::UdpSocket;
use isthmus_datagram::flow_label::{STATELESS, is_unleased, lease, reflect_labels, send_labels, with_label};
use socket2::Socket;

use crate::Settings;
use crate::log::{info_few, info_log};
use crate::scitag::ENTROPY;

/// Fields in the IP headers of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderFields {
    /// 0: none.
    dscp: u8,
    /// The flow label without its entropy; `None`: the kernel chooses labels.
    label: Option<u32>,
}

/// It has been logged that flow labels cannot be chosen.
static TOLD_UNLABELLED: Once = Once::new();

impl HeaderFields {
    /// The fields that the settings ask for.
    pub(crate) fn of(settings: &Settings) -> Self {
        Self { dscp: settings.code_point(), label: settings.scitag.0.map(|tag| tag.flow_label()) }
    }

    /// Sets the DSCP of a lane's packets. The lane works without that, too.
    pub(super) fn apply(self, socket: &Socket) {
        if self.dscp != 0
            && let Err(error) = isthmus_datagram::mark(socket, self.dscp)
        {
            info_few!("a lane by TCP goes without its dscp: {error}");
        }
    }

    /// Starts to connect. The connection's packets have the flow label, or else the kernel's.
    pub(super) fn connect(self, socket: &Socket, to: SocketAddr) -> io::Result<()> {
        if let (Some(fixed), SocketAddr::V6(_)) = (self.label, to) {
            match connect_labelled(socket, to, fixed) {
                Err(error) if is_unleased(&error) => tell_unlabelled(&error),
                done => return done,
            }
        }
        socket.connect(&to.into())
    }

    /// Makes the connections of a listener answer with the flow label of the end that dialled, if the system lets it.
    pub(crate) fn reflect(self, listener: &Socket, at: SocketAddr) {
        if self.label.is_some()
            && at.is_ipv6()
            && let Err(error) = reflect_labels(listener)
        {
            info_log!(
                "TCP lanes that others dial by IPv6 send without scitag: {error}; sysctl -w \
                 net.ipv6.flowlabel_consistency=0 lets them send with the label of the end that dialled"
            );
        }
    }

    /// Gives the packets of UDP lanes their DSCP, and their flow labels if the system lets them have any. With `ecn`,
    /// routers may mark them.
    pub(crate) fn apply_to_packets(self, socket: &mut UdpSocket, ecn: bool, at: SocketAddr) {
        if let Err(error) = socket.mark(self.dscp, ecn) {
            info_log!("lanes by UDP go without their dscp and ecn: {error}");
        }
        if let (Some(fixed), true) = (self.label, at.is_ipv6())
            && let Err(error) = socket.label((fixed, ENTROPY), |what| info_log!("{what}: scitag"))
        {
            tell_unlabelled(&error);
        }
    }
}

fn tell_unlabelled(error: &io::Error) {
    TOLD_UNLABELLED.call_once(|| {
        info_log!(
            "lanes by IPv6 go without scitag in their flow labels: {error} (another program may hold labels)"
        );
    });
}

/// Connects with a label of its own. If the kernel takes only leased labels, leases one.
fn connect_labelled(socket: &Socket, to: SocketAddr, fixed: u32) -> io::Result<()> {
    // Each connection is a flow, and a random label tells nothing about its ports.
    let label = fixed | getrandom::u32().unwrap_or(0) & ENTROPY;
    let refused = |_| io::Error::from_raw_os_error(libc::EINVAL);
    send_labels(socket).map_err(refused)?;
    match socket.connect(&with_label(to, label).into()) {
        Err(error) if is_unleased(&error) => {
            let (label, SocketAddr::V6(host)) = (label & !STATELESS, to) else { return Err(error) };
            lease(socket, *host.ip(), label).map_err(refused)?;
            socket.connect(&with_label(to, label).into())
        }
        done => done,
    }
}
