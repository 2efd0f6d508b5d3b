//! The walls of the house: what ARCHITECTURE.md and CONTRIBUTING.md promise of its layout.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that may contain `unsafe`; in the libraries whose every entry is C's, all may.
const UNSAFE: &[&str] = &[
    // Types of C's functions only.
    "isthmus-abi/src/abi.rs",
    "isthmus-datagram/src/ethernet/sys.rs",
    "isthmus-datagram/src/flow_label.rs",
    "isthmus-datagram/src/memory.rs",
    "isthmus-fabric/src/hub/data.rs",
    "isthmus-fabric/src/hubs.rs",
    "isthmus-fabric/src/library.rs",
    "isthmus-fabric/src/net.rs",
    "isthmus-io/src/carrier/fabric.rs",
    "isthmus-io/src/carrier/memory/foreign.rs",
    "isthmus-io/src/carrier/memory/link.rs",
    "isthmus-io/src/carrier/memory/link_tests.rs",
    "isthmus-io/src/carrier/memory/loans.rs",
    "isthmus-io/src/carrier/memory/mod.rs",
    "isthmus-io/src/carrier/memory/process_vm.rs",
    "isthmus-io/src/carrier/memory/ring.rs",
    "isthmus-io/src/carrier/memory/ring_tests.rs",
    "isthmus-io/src/carrier/memory/segment.rs",
    "isthmus-io/src/carrier/memory/streaming.rs",
    "isthmus-io/src/carrier/mod.rs",
    "isthmus-io/src/carrier/sealed.rs",
    "isthmus-io/src/carrier/tcp.rs",
    "isthmus-io/src/carrier/tls.rs",
    "isthmus-io/src/carrier/udp/lane.rs",
    "isthmus-io/src/carrier/udp/loans.rs",
    "isthmus-io/src/datagrams.rs",
    "isthmus-io/src/endpoint/asking.rs",
    "isthmus-io/src/endpoint/post.rs",
    "isthmus-io/src/endpoint/sleep.rs",
    "isthmus-io/src/lane.rs",
    "isthmus-io/src/ledger.rs",
    "isthmus-io/src/lock.rs",
    "isthmus-io/src/memory.rs",
    "isthmus-io/src/regions.rs",
    "isthmus-io/src/shell.rs",
    "isthmus-io/src/shell/down.rs",
    "isthmus-io/src/shell/direct.rs",
    "isthmus-io/src/shell/fast_path.rs",
    "isthmus-io/src/signals.rs",
    "isthmus-lab/src/sys.rs",
    "isthmus-mover/src/disk.rs",
    "isthmus-mover/src/port.rs",
    "isthmus-pmix/src/abi.rs",
    "isthmus-pmix/src/library.rs",
    "isthmus-pmix/src/server.rs",
    "isthmus-router/src/tcp_info.rs",
    "isthmus-substrate/src/bell.rs",
    "isthmus-substrate/src/buffers.rs",
    "isthmus-substrate/src/endpoint/operations.rs",
    "isthmus-substrate/src/event.rs",
    "isthmus-substrate/src/memory.rs",
    "isthmus-substrate/src/post.rs",
    "isthmus/src/doctor.rs",
    "isthmus/src/output/closed.rs",
];

/// Crates that only C enters.
const C_LIBRARIES: &[&str] = &["isthmus-ofi", "isthmus-c"];

/// Which of our crates each may use.
const USES: &[(&str, &[&str])] = &[
    ("isthmus-units", &[]),
    ("isthmus-wire", &[]),
    ("isthmus-seal", &[]),
    ("isthmus-path", &[]),
    ("isthmus-proto", &["isthmus-path", "isthmus-seal", "isthmus-units", "isthmus-wire"]),
    ("isthmus-trust", &["isthmus-wire"]),
    ("isthmus-ledger", &[]),
    // Its simulation uses the lab's model of a link, and decides between TCP and UDP.
    ("isthmus-udp", &["isthmus-lab", "isthmus-ledger", "isthmus-path", "isthmus-seal"]),
    ("isthmus-metrics", &["isthmus-datagram"]),
    ("isthmus-mux", &["isthmus-lab"]),
    ("isthmus-abi", &[]),
    ("isthmus-fabric", &["isthmus-abi", "isthmus-wire"]),
    ("isthmus-datagram", &[]),
    (
        "isthmus-io",
        &[
            "isthmus-datagram",
            "isthmus-fabric",
            "isthmus-ledger",
            "isthmus-path",
            "isthmus-proto",
            "isthmus-seal",
            "isthmus-trust",
            "isthmus-udp",
            "isthmus-units",
            "isthmus-wakeup",
            "isthmus-wire",
        ],
    ),
    ("isthmus-wakeup", &[]),
    ("isthmus-ofi", &["isthmus-abi", "isthmus-io", "isthmus-proto", "isthmus-wakeup", "isthmus-wire"]),
    (
        "isthmus-substrate",
        // Keys and the lab are for its tests.
        &["isthmus-datagram", "isthmus-io", "isthmus-lab", "isthmus-proto", "isthmus-trust", "isthmus-wire"],
    ),
    ("isthmus-launch", &["isthmus-substrate"]),
    ("isthmus-pmix", &[]),
    ("isthmus-digest", &[]),
    ("isthmus-layout", &["isthmus-units"]),
    ("isthmus-c", &["isthmus-digest", "isthmus-layout", "isthmus-substrate"]),
    ("isthmus-lab", &["isthmus-units"]),
    // It runs the lab as a command: each run is a process of its own.
    ("isthmus-bench", &["isthmus-lab", "isthmus-units"]),
    (
        "isthmus-fuzz",
        &[
            "isthmus-datagram",
            "isthmus-fabric",
            "isthmus-io",
            "isthmus-lab",
            "isthmus-launch",
            "isthmus-mover",
            "isthmus-mux",
            "isthmus-proto",
            "isthmus-router",
            "isthmus-routes",
            "isthmus-seal",
            "isthmus-substrate",
            "isthmus-udp",
            "isthmus-wire",
        ],
    ),
    (
        "isthmus-mover",
        &[
            "isthmus-datagram",
            "isthmus-digest",
            "isthmus-io",
            "isthmus-layout",
            "isthmus-proto",
            "isthmus-trust",
            "isthmus-units",
            "isthmus-wire",
        ],
    ),
    ("isthmus-routes", &["isthmus-units", "isthmus-wire"]),
    (
        "isthmus-router",
        &[
            "isthmus-datagram",
            "isthmus-fabric",
            "isthmus-metrics",
            "isthmus-mux",
            "isthmus-path",
            "isthmus-routes",
            "isthmus-trust",
            "isthmus-udp",
            "isthmus-units",
            "isthmus-wire",
        ],
    ),
    (
        "isthmus",
        &[
            "isthmus-bench",
            "isthmus-io",
            "isthmus-lab",
            "isthmus-launch",
            "isthmus-pmix",
            "isthmus-metrics",
            "isthmus-mover",
            "isthmus-proto",
            "isthmus-router",
            "isthmus-routes",
            "isthmus-substrate",
            // Keys of one copy by ssh.
            "isthmus-trust",
            "isthmus-units",
            "isthmus-wire",
        ],
    ),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            out.push(path);
        }
    }
}

fn has_unsafe(text: &str) -> bool {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).any(|code| {
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe(link_section"]
            .iter()
            .any(|word| code.contains(word))
    })
}

#[test]
fn unsafe_code_lives_in_named_files_only() {
    let root = crates();
    for (name, _) in USES.iter().filter(|(name, _)| !C_LIBRARIES.contains(name)) {
        let mut files = Vec::new();
        sources(&root.join(name).join("src"), &mut files);
        for file in files {
            let inside = file.strip_prefix(&root).expect("below the crates").display().to_string();
            let text = fs::read_to_string(&file).expect("readable text");
            assert!(!has_unsafe(&text) || UNSAFE.contains(&inside.as_str()), "{inside} contains unsafe code");
        }
    }
}

#[test]
fn arrows_between_crates_point_one_way() {
    let root = crates();
    for (name, allowed) in USES {
        let manifest = fs::read_to_string(root.join(name).join("Cargo.toml")).expect("a manifest");
        let used = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        for other in used.filter(|word| USES.iter().any(|(other, _)| other == word)) {
            assert!(allowed.contains(&other), "{name} uses {other}");
        }
    }
    assert_eq!(
        fs::read_dir(&root).expect("the crates").count(),
        USES.len(),
        "a crate is missing in this test"
    );
}
