//! A router on a subnet whose lanes go over a local fabric.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use isthmus_io::{Endpoint, Routers, Settings};

use crate::site::Sites;
use crate::support::{complete, pattern, recv, send};

/// Whether the system's libfabric is there; where it is not, there is nothing to test.
fn has_libfabric() -> bool {
    let found = Command::new("fi_info").arg("-l").output();
    found.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains("shm"))
}

/// An endpoint in a subnet of AS 1, which knows r1.
fn endpoint(sites: &Sites, subnet: u32, fabric: &str) -> Arc<Endpoint> {
    let settings = Settings {
        interface: "127.0.0.1".to_owned(),
        as_id: 1,
        subnet,
        routers: Routers(vec![sites.r1[subnet as usize - 1]]),
        fabric: fabric.to_owned(),
        ..Settings::default()
    };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// r1's configuration, with this fabric on subnet a.
fn r1(sites: &Sites, fabric: &str) -> PathBuf {
    let text = format!(
        "name = \"r1\"\nmap = \"one.toml\"\n[subnet.a]\nplain = true\ntargets = [\"127.0.0.0/8\"]\nfabric = \"{fabric}\"\n\
         [subnet.b]\nplain = true\ntargets = [\"127.0.0.0/8\"]\n"
    );
    sites.world.write("r1.toml", &text)
}

/// Messages both ways between an endpoint on a, over `fabric`, and one on b, over TCP.
fn crosses(fabric: &str) {
    if !has_libfabric() {
        return;
    }
    let sites = Sites::new();
    let _r1 = sites.world.start(&r1(&sites, fabric));
    let (near, far) = (endpoint(&sites, 1, fabric), endpoint(&sites, 2, ""));
    let to_far = near.peer(&far.address()).expect("a router joins them");
    let to_near = far.peer(&near.address()).expect("a router joins them");
    for (tag, len) in [8, 100_000, 8 << 20].into_iter().enumerate() {
        let tag = tag as u64;
        let (mut there, mut back) = (pattern(len, 1), pattern(len, 2));
        let (mut at_far, mut at_near) = (vec![0; len], vec![0; len]);
        recv(&far, None, tag, &mut at_far);
        recv(&near, None, tag, &mut at_near);
        send(&near, to_far, tag, &mut there);
        send(&far, to_near, tag, &mut back);
        let done = complete(&[&near, &far], 4);
        assert!(done.iter().all(|c| c.error.is_none()), "{done:?}\n{}", sites.world.log());
        assert!(there == at_far && back == at_near, "{len} bytes differ");
    }
    let (by, other) = (near.carriers(), far.carriers());
    assert!(by.iter().any(|by| by.starts_with(fabric)), "{by:?}\n{}", sites.world.log());
    assert!(other.iter().all(|by| by == "TCP, encrypted"), "{other:?}");
    near.close();
    far.close();
}

#[test]
fn a_router_joins_shared_memory_with_tcp() {
    crosses("shm");
}

#[test]
fn a_router_joins_reliable_datagrams_with_tcp() {
    crosses("tcp");
}

#[test]
fn an_endpoint_with_a_fabric_that_its_router_has_not_stays_with_tcp() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let (near, far) = (endpoint(&sites, 1, "shm"), endpoint(&sites, 2, ""));
    let to_far = near.peer(&far.address()).expect("a router joins them");
    let (mut sent, mut got) = (pattern(100_000, 3), vec![0; 100_000]);
    recv(&far, None, 1, &mut got);
    send(&near, to_far, 1, &mut sent);
    complete(&[&near, &far], 2);
    assert!(sent == got);
    assert!(near.carriers().iter().all(|by| by == "TCP, encrypted"));
    near.close();
    far.close();
}
