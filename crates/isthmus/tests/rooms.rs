//! The walls of the house: what ARCHITECTURE.md and CONTRIBUTING.md promise of its layout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files that may contain `unsafe`; in the libraries whose every entry is C's, all may.
const UNSAFE: &[&str] = &[
    // Types of C's functions only.
    "isthmus-abi/src/abi.rs",
    "isthmus-datagram/src/errors.rs",
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

/// The largest cycle of each crate: how many modules below its root must be read together, since each reaches all others
/// by imports. Crates that are not here have no cycle.
const LARGEST_CYCLES: &[(&str, usize)] = &[
    ("isthmus-bench", 2),
    ("isthmus-fabric", 2),
    // The I/O thread drives the endpoints that wake it.
    ("isthmus-io", 2),
    ("isthmus-launch", 6),
    ("isthmus-mover", 2),
    ("isthmus-mux", 4),
    // An enabled endpoint, and what its completions reach.
    ("isthmus-ofi", 9),
    ("isthmus-path", 2),
    ("isthmus-router", 4),
    ("isthmus-routes", 2),
    ("isthmus-substrate", 4),
    ("isthmus-trust", 3),
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

/// The modules of a crate below its root, and which of them each uses. Tests do not count.
fn module_graph(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    sources(source, &mut files);
    let mut graph = BTreeMap::new();
    let mut texts = Vec::new();
    let mut root = String::new();
    for file in files {
        let path: Vec<String> = file
            .strip_prefix(source)
            .expect("below the source")
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .filter(|part| part != "mod")
            .collect();
        let text = code_of(&fs::read_to_string(&file).expect("readable text"));
        match path[0].as_str() {
            "lib" | "main" => root = text,
            _ if path.iter().any(|part| part.ends_with("tests")) => {}
            top => {
                graph.entry(top.to_owned()).or_insert_with(BTreeSet::new);
                texts.push((path, text));
            }
        }
    }
    let exported = exports(&root, &graph);
    for (path, text) in texts {
        let used = used_at_root(&text, path.len());
        let known = used.into_iter().filter_map(|name| match exported.get(&name) {
            Some(module) => Some(module.clone()),
            None => graph.contains_key(&name).then_some(name),
        });
        let known: Vec<String> = known.filter(|name| *name != path[0]).collect();
        graph.entry(path[0].clone()).or_default().extend(known);
    }
    graph
}

/// A source without its comments and its tests.
fn code_of(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>();
    let code = code.join("\n");
    let tests = ["mod tests", "pub(crate) mod tests"].map(|head| format!("#[cfg(test)]\n{head}"));
    let end = tests.iter().filter_map(|head| code.find(head)).min().unwrap_or(code.len());
    code[..end].to_owned()
}

/// The names that a crate's root exports from its modules, with their modules.
fn exports(root: &str, modules: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for tree in root.split("use ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(tree, _)| tree) {
        if let Some((module, names)) =
            tree.split_once("::").filter(|(module, _)| modules.contains_key(*module))
        {
            for name in names.split([',', '{', '}']).filter_map(|name| name.split("::").last()) {
                let name = name.rsplit(" as ").next().unwrap_or_default();
                found.insert(name.trim().to_owned(), module.to_owned());
            }
        }
    }
    found
}

/// The names directly below the crate's root that a file `depth` modules deep uses, by `crate::` or `super::`.
fn used_at_root(text: &str, depth: usize) -> Vec<String> {
    let to_root = "super::".repeat(depth);
    let is_path_start = |at: usize| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !matches!(before, '_' | ':' | '$'))
    };
    let mut found = Vec::new();
    for prefix in ["crate::", to_root.as_str()] {
        let starts = text.match_indices(prefix).filter(|(at, _)| is_path_start(*at));
        for rest in starts.map(|(at, _)| &text[at + prefix.len()..]) {
            match rest.strip_prefix('{') {
                Some(list) => found.extend(first_names(list)),
                None => found.extend(first_name(rest)),
            }
        }
    }
    found
}

/// The first name of each path of a list in braces, of which `list` begins behind the opening one.
fn first_names(list: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), 0);
    let mut start = 0;
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => open += 1,
            '}' if open > 0 => open -= 1,
            ',' | '}' if open == 0 => {
                found.extend(first_name(list[start..at].trim_start()));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

fn first_name(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    (!name.is_empty() && name != "self" && name != "super").then_some(name)
}

/// Modules that each reach all others of them, by way of any modules. Empty if there is no cycle.
fn largest_cycle(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&str> {
    let reached_from = |start: &str| {
        let mut reached = BTreeSet::new();
        let mut next = vec![start];
        while let Some(module) = next.pop() {
            let new = graph[module].iter().map(String::as_str).filter(|used| reached.insert(*used));
            next.extend(new.collect::<Vec<_>>());
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (module.as_str(), reached_from(module))).collect();
    let cycle_of = |module: &str| -> BTreeSet<&str> {
        reached[module].iter().copied().filter(|other| reached[other].contains(module)).collect()
    };
    reached.keys().map(|module| cycle_of(module)).max_by_key(BTreeSet::len).unwrap_or_default()
}

#[test]
fn cycles_of_modules_do_not_grow() {
    for (name, _) in USES {
        let graph = module_graph(&crates().join(name).join("src"));
        let cycle = largest_cycle(&graph);
        let listed = LARGEST_CYCLES.iter().find(|(listed, _)| listed == name).map_or(0, |(_, size)| *size);
        assert_eq!(
            cycle.len(),
            listed,
            "{name}: these modules use each other in a cycle: {cycle:?}. Move what they share to where it belongs; \
             if the cycle shrank, write its size into LARGEST_CYCLES"
        );
    }
}

#[test]
fn cycles_are_found_through_lists_exports_and_supers() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("written");
    };
    file("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use c::{Thing, other::Else};\n");
    file("a.rs", "use crate::{b::{X, Y}, Thing};\n");
    file("b/mod.rs", "mod deep;\n");
    file("b/deep.rs", "fn f() { super::super::c::g() }\n#[cfg(test)]\nmod tests { use crate::d::D; }\n");
    file("c.rs", "// use crate::d::D;\nuse super::a::A;\nuse crate::log::crate_name;\n");
    file("d.rs", "use crate::Else;\n");
    let graph = module_graph(folder.path());
    assert_eq!(largest_cycle(&graph), BTreeSet::from(["a", "b", "c"]));
    assert_eq!(graph["d"], BTreeSet::from(["c".to_owned()]));
}
