//! Hints as the MPIs send them, recorded from their releases.

use super::*;
use crate::abi::{
    FI_AV_MAP, FI_EP_DGRAM, FI_EP_MSG, FI_EP_RDM, FI_PROGRESS_MANUAL, FI_THREAD_DOMAIN, fi_av_type,
};
use crate::flags::version;

const SAS: u64 = FI_ORDER_SAS;

fn hints(caps: u64, threading: u32, av_type: fi_av_type, mr_mode: i32) -> Hints {
    let mut hints = Hints { caps, ..Hints::default() };
    hints.ep.type_ = FI_EP_RDM;
    hints.domain.threading = threading;
    hints.domain.av_type = av_type;
    hints.domain.mr_mode = mr_mode;
    hints
}

/// MPICH 5.0: our own capabilities back, its order, its flags, its tags.
fn mpich() -> Hints {
    let mut hints = hints(CAPS, FI_THREAD_DOMAIN, FI_AV_TABLE, FI_MR_ENDPOINT);
    hints.domain.control_progress = FI_PROGRESS_MANUAL;
    hints.domain.__bindgen_anon_1.data_progress = FI_PROGRESS_MANUAL;
    hints.domain.cq_data_size = 4;
    hints.tx.op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    hints.rx.op_flags = FI_COMPLETION;
    hints.tx.msg_order = SAS | ATOMIC_ORDERS;
    hints.rx.msg_order = SAS | ATOMIC_ORDERS;
    hints.ep.mem_tag_format = 0x00c0_0000_7fff_ffff;
    hints
}

/// Open MPI 5.0, the messages' part.
fn openmpi() -> Hints {
    let caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;
    let mut hints = hints(caps, FI_THREAD_DOMAIN, FI_AV_MAP, FI_MR_ALLOCATED);
    hints.tx.op_flags = FI_COMPLETION;
    hints.tx.msg_order = SAS;
    hints.rx.msg_order = SAS;
    hints.domain.cq_data_size = 4;
    hints
}

/// Open MPI 5.0, the one-sided part.
fn openmpi_btl() -> Hints {
    let mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints(FI_RMA | FI_ATOMIC, 0, 0, mr_mode)
}

/// Intel MPI 2021.18.
fn intel() -> Hints {
    let mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    let mut hints = hints(CAPS, FI_THREAD_DOMAIN, FI_AV_MAP, mr_mode);
    hints.domain.control_progress = FI_PROGRESS_MANUAL;
    hints.domain.__bindgen_anon_1.data_progress = FI_PROGRESS_MANUAL;
    hints
}

fn offer(hints: &Hints) -> Offer {
    negotiate(version(1, 18), Some(hints)).expect("an offer")
}

fn refused(change: impl FnOnce(&mut Hints)) -> bool {
    let mut hints = mpich();
    change(&mut hints);
    matches!(negotiate(version(2, 5), Some(&hints)), Err(Error::NoData(_)))
}

#[test]
fn every_mpi_gets_what_it_asks_for() {
    for hints in [mpich(), openmpi(), openmpi_btl(), intel()] {
        let offer = offer(&hints);
        assert_eq!(offer.caps & hints.caps, hints.caps);
        assert_eq!(offer.mr_mode, 0);
        assert_eq!(offer.av_type, hints.domain.av_type);
    }
}

#[test]
fn threading_progress_and_flags_come_back_exactly() {
    let offer = offer(&mpich());
    assert_eq!(offer.threading, FI_THREAD_DOMAIN);
    assert_eq!((offer.control_progress, offer.data_progress), (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL));
    assert_eq!((offer.tx_flags, offer.rx_flags), (FI_COMPLETION | FI_DELIVERY_COMPLETE, FI_COMPLETION));
}

#[test]
fn who_asks_for_nothing_gets_everything() {
    assert_eq!(negotiate(0, None).expect("an offer"), Offer::default());
    let nothing = negotiate(version(1, 5), Some(&Hints::default())).expect("an offer");
    assert_eq!(nothing, Offer::default());
}

#[test]
fn directions_left_open_are_added() {
    let btl = offer(&openmpi_btl());
    let memory = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    assert_eq!(btl.caps, FI_RMA | FI_ATOMIC | memory | FI_LOCAL_COMM | FI_REMOTE_COMM);
    let sender = offer(&hints(FI_TAGGED | FI_SEND, 0, 0, 0));
    assert_eq!(sender.caps & (FI_SEND | FI_RECV), FI_SEND);
}

#[test]
fn other_providers_questions_are_declined() {
    assert!(refused(|hints| hints.ep.type_ = FI_EP_MSG));
    assert!(refused(|hints| hints.caps |= 1 << 47));
    // Multicast.
    assert!(refused(|hints| hints.caps |= 1 << 5));
    assert!(refused(|hints| hints.handle = true));
    assert!(refused(|hints| hints.domain_name = Some("eth0".into())));
}

#[test]
fn what_we_have_not_is_refused_and_not_claimed() {
    let mut datagrams = hints(FI_MSG, 0, 0, 0);
    datagrams.ep.type_ = FI_EP_DGRAM;
    assert!(refused(|hints| hints.ep.tx_ctx_cnt = 2));
    assert!(refused(|hints| hints.ep.rx_ctx_cnt = usize::MAX));
    assert!(refused(|hints| hints.tx.comp_order = 1));
    assert!(refused(|hints| hints.tx.msg_order |= 1 << 9));
    assert!(refused(|hints| hints.ep.max_order_waw_size = 1 << 20));
    assert!(refused(|hints| hints.tx.op_flags |= FI_COMMIT_COMPLETE));
    assert!(refused(|hints| hints.tx.inject_size = INJECT_SIZE_MAX + 1));
    assert!(refused(|hints| hints.domain.cq_data_size = 16));
    assert!(refused(|hints| hints.domain.auth_key_size = 8));
    assert!(refused(|hints| hints.addr_format = 7));
    assert!(refused(|hints| hints.domain.mr_iov_limit = 2));
    assert!(refused(|hints| hints.domain.av_type = FI_AV_TABLE + 1));
    assert!(negotiate(version(2, 5), Some(&datagrams)).is_ok());
    datagrams.tx.rma_iov_limit = 1;
    assert!(matches!(negotiate(version(2, 5), Some(&datagrams)), Err(Error::NoData(_))));
}

#[test]
fn names_for_addresses_are_for_those_who_ask() {
    assert_eq!(negotiate(version(1, 18), None).map(|offer| offer.caps & FI_AV_USER_ID).ok(), Some(0));
    assert_eq!(offer(&hints(0, 0, 0, 0)).caps & FI_AV_USER_ID, 0);
    let mut asking = hints(FI_MSG, 0, 0, 0);
    asking.domain.caps = FI_AV_USER_ID;
    assert_ne!(offer(&asking).caps & FI_AV_USER_ID, 0);
    assert_ne!(offer(&hints(FI_MSG | FI_AV_USER_ID, 0, 0, 0)).caps & FI_AV_USER_ID, 0);
}

#[test]
fn collectives_are_for_those_who_ask_and_take_nothing_of_their_tags() {
    assert_eq!(offer(&hints(0, 0, 0, 0)).caps & FI_COLLECTIVE, 0);
    for caps in [FI_COLLECTIVE, FI_COLLECTIVE | FI_MSG] {
        let asked = offer(&hints(caps, 0, 0, 0)).caps;
        assert_ne!(asked & FI_COLLECTIVE, 0);
    }
    assert_eq!(Kind::Reliable.tag_format(), TAG_FORMAT);
    assert!(refused(|hints| (hints.ep.type_, hints.caps) = (FI_EP_DGRAM, FI_MSG | FI_COLLECTIVE)));
}

#[test]
fn who_wants_to_inject_more_than_others_says_so() {
    let mut asking = hints(FI_MSG, 0, 0, 0);
    assert_eq!(offer(&asking).inject_size, Endpoint::INJECT_MAX);
    asking.tx.inject_size = 64;
    assert_eq!(offer(&asking).inject_size, Endpoint::INJECT_MAX);
    asking.tx.inject_size = INJECT_SIZE_MAX;
    assert_eq!(offer(&asking).inject_size, INJECT_SIZE_MAX);
}

#[test]
fn orders_are_kept_for_those_who_ask_and_for_any_length_then() {
    let plain = offer(&hints(FI_MSG | FI_RMA, 0, 0, 0));
    assert_eq!((plain.tx_order, plain.rx_order), (MSG_ORDER, MSG_ORDER));
    let mut asking = hints(FI_MSG | FI_RMA, 0, 0, 0);
    asking.tx.msg_order = FI_ORDER_SAW | FI_ORDER_RMA_WAW;
    asking.ep.max_order_waw_size = usize::MAX;
    let found = offer(&asking);
    assert_eq!((found.tx_order, found.rx_order), (MSG_ORDER | FI_ORDER_SAW | FI_ORDER_RMA_WAW, MSG_ORDER));
    asking.ep.max_order_raw_size = usize::MAX;
    assert!(negotiate(version(1, 18), Some(&asking)).is_err());
}

#[test]
fn datagrams_are_for_those_who_ask_and_promise_nothing() {
    let mut hints = hints(FI_MSG, 0, 0, 0);
    hints.ep.type_ = FI_EP_DGRAM;
    let found = offer(&hints);
    assert_eq!(found.kind, Kind::Datagram);
    assert_eq!(found.caps, FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM);
    let no = |change: &dyn Fn(&mut Hints)| {
        let mut hints = super::tests::hints(FI_MSG, 0, 0, 0);
        hints.ep.type_ = FI_EP_DGRAM;
        change(&mut hints);
        negotiate(version(1, 18), Some(&hints)).is_err()
    };
    for caps in [FI_TAGGED, FI_RMA, FI_ATOMIC, FI_MULTI_RECV, FI_DIRECTED_RECV, FI_FENCE] {
        assert!(no(&|hints| hints.caps |= caps), "{caps:#x}");
    }
    assert!(no(&|hints| hints.tx.msg_order = SAS));
    assert!(no(&|hints| hints.tx.op_flags = FI_DELIVERY_COMPLETE));
    assert!(no(&|hints| hints.rx.op_flags = FI_MULTI_RECV));
    assert!(message(1449, &Offer { message_max: 1448, ..found }).is_err());
}

#[test]
fn more_pieces_are_for_those_who_ask() {
    let mut hints = openmpi();
    assert_eq!((offer(&hints).tx_pieces, offer(&hints).rx_pieces), (IOV_LIMIT, IOV_LIMIT));
    (hints.tx.iov_limit, hints.rx.iov_limit) = (2, Endpoint::IOV_MAX);
    assert_eq!((offer(&hints).tx_pieces, offer(&hints).rx_pieces), (IOV_LIMIT, Endpoint::IOV_MAX));
    assert!(refused(|hints| hints.tx.iov_limit = Endpoint::IOV_MAX + 1));
}

#[test]
fn socket_addresses_are_of_the_endpoints_family() {
    let v4 = std::net::SocketAddr::from(([10, 0, 0, 1], 0));
    let format = |wanted| format(wanted, v4).ok();
    assert_eq!(format(FI_SOCKADDR), Some(FI_SOCKADDR_IN));
    assert_eq!(format(FI_SOCKADDR_IP), Some(FI_SOCKADDR_IN));
    assert_eq!(format(FI_FORMAT_UNSPEC), Some(FI_FORMAT_UNSPEC));
    assert_eq!(format(FI_SOCKADDR_IN6), None);
}

#[test]
fn formats_and_peers_say_which_ip_is_wanted() {
    let peer = |text: &str| Some(text.parse().expect("an address"));
    assert_eq!(family(FI_FORMAT_UNSPEC, peer("[fd00::7]:1")), None);
    assert_eq!(family(FI_SOCKADDR_IN6, None), Some(Family::V6));
    assert_eq!(family(FI_SOCKADDR_IN, peer("[fd00::7]:1")), Some(Family::V4));
    assert_eq!(family(FI_SOCKADDR, peer("[fd00::7]:1")), Some(Family::V6));
    assert_eq!(family(FI_SOCKADDR_IP, None), None);
}

#[test]
fn socket_addresses_may_name_the_ends() {
    let mut hints = openmpi();
    hints.addr_format = FI_SOCKADDR_IN;
    hints.dest = Some(isthmus_wire::Address::default());
    assert_eq!(offer(&hints).dest, hints.dest);
}

#[test]
fn programs_from_before_1_5_keep_their_two_memory_modes() {
    let mode =
        |version, wanted| negotiate(version, Some(&hints(FI_RMA, 0, 0, wanted))).expect("an offer").mr_mode;
    assert_eq!(mode(version(1, 4), FI_MR_BASIC), FI_MR_BASIC);
    assert_eq!(mode(version(1, 4), FI_MR_SCALABLE), FI_MR_SCALABLE);
    assert_eq!(mode(version(1, 4), 0), FI_MR_BASIC);
    assert_eq!(mode(version(1, 5), FI_MR_SCALABLE), FI_MR_SCALABLE);
    assert_eq!(mode(version(1, 5), 0), 0);
}
