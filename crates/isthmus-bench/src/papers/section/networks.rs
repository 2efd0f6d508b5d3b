//! Labs with routers for the routed-CCI section: route maps, configurations, and scripts.

use std::fmt::Write;

use crate::papers::step::Step;

/// A network inside an AS.
struct Subnet {
    id: u32,
    name: &'static str,
    rate: &'static str,
}

/// A router process: its host, and the names and addresses of the two networks that it joins.
struct Router {
    host: &'static str,
    name: &'static str,
    joins: [(&'static str, &'static str); 2],
}

/// An organisation (AS), with one node that measures.
struct Organisation {
    id: u32,
    subnets: &'static [Subnet],
    routers: &'static [Router],
    /// Its node's host, subnet and address, and the address of its router.
    node: (&'static str, u32, &'static str, &'static str),
    /// WANs that lead to it, with the address of its gateway.
    gateways: &'static [(&'static str, &'static str)],
}

const WAN: &str = "wan";
/// A WAN of organisations 3 and 4 only.
const PRIVATE: &str = "private";
const PRIVATE_ENDS: [u32; 2] = [3, 4];
const CAPABLE: &str = "capabilities = [\"zero-copy\", \"os-bypass\"]";

/// The paper's figure 1, with one node each. AS2 has two broadcast domains. AS3 has a computer behind its campus.
const FOUR: [Organisation; 4] = [
    Organisation {
        id: 1,
        subnets: &[Subnet { id: 1, name: "campus", rate: "10Gbit" }],
        routers: &[Router {
            host: "g1",
            name: "r1",
            joins: [("campus", "10.1.0.2:4100"), (WAN, "198.51.1.1:4100")],
        }],
        node: ("n1", 1, "10.1.0.1", "10.1.0.2:4100"),
        gateways: &[(WAN, "198.51.1.1:4100")],
    },
    Organisation {
        id: 2,
        subnets: &[
            Subnet { id: 1, name: "domain1", rate: "10Gbit" },
            Subnet { id: 2, name: "domain2", rate: "10Gbit" },
        ],
        routers: &[
            Router {
                host: "i2",
                name: "r2",
                joins: [("domain2", "10.2.0.2:4100"), ("domain1", "10.2.1.1:4100")],
            },
            Router {
                host: "g2",
                name: "r1",
                joins: [("domain1", "10.2.1.2:4100"), (WAN, "198.51.2.1:4100")],
            },
        ],
        node: ("n2", 2, "10.2.0.1", "10.2.0.2:4100"),
        gateways: &[(WAN, "198.51.2.1:4100")],
    },
    Organisation {
        id: 3,
        subnets: &[
            Subnet { id: 1, name: "campus", rate: "10Gbit" },
            Subnet { id: 3, name: "compute", rate: "64Gbit" },
        ],
        routers: &[
            Router {
                host: "i3",
                name: "r4",
                joins: [("compute", "10.3.0.2:4100"), ("campus", "10.3.1.1:4100")],
            },
            Router { host: "g3", name: "r1", joins: [("campus", "10.3.1.2:4100"), (WAN, "198.51.3.1:4100")] },
            Router {
                host: "g3",
                name: "r2",
                joins: [("campus", "10.3.1.2:4101"), (PRIVATE, "203.0.113.1:4101")],
            },
        ],
        node: ("n3", 3, "10.3.0.1", "10.3.0.2:4100"),
        gateways: &[(WAN, "198.51.3.1:4100"), (PRIVATE, "203.0.113.1:4101")],
    },
    Organisation {
        id: 4,
        subnets: &[Subnet { id: 1, name: "campus", rate: "10Gbit" }],
        routers: &[
            Router { host: "g4", name: "r1", joins: [("campus", "10.4.0.2:4100"), (WAN, "198.51.4.1:4100")] },
            Router {
                host: "g4",
                name: "r2",
                joins: [("campus", "10.4.0.2:4101"), (PRIVATE, "203.0.113.2:4101")],
            },
        ],
        node: ("n4", 1, "10.4.0.1", "10.4.0.2:4101"),
        gateways: &[(WAN, "198.51.4.1:4100"), (PRIVATE, "203.0.113.2:4101")],
    },
];

/// Hosts of [`FOUR`], then cables between them. An emulated link connects each gateway to the backbone, an IP router.
const FOUR_HOSTS: [&str; 10] = ["n1", "g1", "n2", "i2", "g2", "n3", "i3", "g3", "n4", "g4"];
const FOUR_CABLES: [[&str; 4]; 6] = [
    ["n1", "g1", "10.1.0.1", "10.1.0.2"],
    ["n2", "i2", "10.2.0.1", "10.2.0.2"],
    ["i2", "g2", "10.2.1.1", "10.2.1.2"],
    ["n3", "i3", "10.3.0.1", "10.3.0.2"],
    ["i3", "g3", "10.3.1.1", "10.3.1.2"],
    ["n4", "g4", "10.4.0.1", "10.4.0.2"],
];
const BACKBONE: &str = "backbone";

/// Two organisations with three networks each. They share one.
const FIVE: [Organisation; 2] = [
    Organisation {
        id: 1,
        subnets: &[
            Subnet { id: 10, name: "fabric", rate: "100Gbit" },
            Subnet { id: 20, name: "lan", rate: "10Gbit" },
        ],
        routers: &[
            Router {
                host: "inner-a",
                name: "i1",
                joins: [("fabric", "10.1.0.2:4100"), ("lan", "10.1.1.1:4100")],
            },
            Router { host: "gate-a", name: "r1", joins: [("lan", "10.1.1.2:4100"), (WAN, "192.0.2.1:4100")] },
        ],
        node: ("a", 10, "10.1.0.1", "10.1.0.2:4100"),
        gateways: &[(WAN, "192.0.2.1:4100")],
    },
    Organisation {
        id: 2,
        subnets: &[
            Subnet { id: 10, name: "fabric", rate: "100Gbit" },
            Subnet { id: 20, name: "lan", rate: "10Gbit" },
        ],
        routers: &[
            Router {
                host: "inner-b",
                name: "i1",
                joins: [("fabric", "10.2.0.2:4100"), ("lan", "10.2.1.1:4100")],
            },
            Router { host: "gate-b", name: "r1", joins: [("lan", "10.2.1.2:4100"), (WAN, "192.0.2.2:4100")] },
        ],
        node: ("b", 10, "10.2.0.1", "10.2.0.2:4100"),
        gateways: &[(WAN, "192.0.2.2:4100")],
    },
];

/// The five networks in order: description, host and server's host, the server's address, the first host's address.
pub(crate) const HOPS: [(&str, &str, &str, &str, &str); 5] = [
    ("fabric of A: a cable, MTU 65,521", "a", "inner-a", "10.1.0.2", "10.1.0.1"),
    ("LAN of A: 4 Gb/s, 0.2 ms, MTU 9000", "inner-a", "gate-a", "10.1.1.2", "10.1.1.1"),
    ("WAN: 1 Gb/s, 24 ms, MTU 9000", "gate-a", "gate-b", "192.0.2.2", "192.0.2.1"),
    ("LAN of B: 2 Gb/s, 0.5 ms, MTU 1500", "gate-b", "inner-b", "10.2.1.1", "10.2.1.2"),
    ("fabric of B: a cable, MTU 9000", "inner-b", "b", "10.2.0.1", "10.2.0.2"),
];

fn map_text(own: &Organisation, others: &[Organisation]) -> String {
    let mut out = format!("[as]\nid = {}\n", own.id);
    for Subnet { id, name, rate } in own.subnets {
        let _ = write!(
            out,
            "[[subnet]]\nid = {id}\nname = \"{name}\"\nrate = \"{rate}\"\nlatency = \"20us\"\n{CAPABLE}\n"
        );
    }
    let _ = write!(
        out,
        "[[wan]]\nid = 100\nname = \"{WAN}\"\nrate = \"10Gbit\"\nlatency = \"12ms\"\n{CAPABLE}\n"
    );
    if own.gateways.len() > 1 {
        let _ = write!(
            out,
            "[[wan]]\nid = 104\nname = \"{PRIVATE}\"\nprivate = true\nrate = \"100Gbit\"\nlatency = \"4ms\"\n{CAPABLE}\n"
        );
    }
    for Router { name, joins: [(near, at), (far, there)], .. } in own.routers {
        let _ = write!(
            out,
            "[[router]]\nname = \"{name}\"\njoins = [\"{near}\", \"{far}\"]\nendpoints = {{ {near} = \"{at}\", {far} = \"{there}\" }}\n"
        );
    }
    for other in others.iter().filter(|other| other.id != own.id) {
        let shared: Vec<_> = other
            .gateways
            .iter()
            .filter(|(wan, _)| own.gateways.iter().any(|(mine, _)| mine == wan))
            .collect();
        let via: Vec<_> = shared.iter().map(|(wan, _)| format!("\"{wan}\"")).collect();
        let gateways: Vec<_> = shared.iter().map(|(wan, at)| format!("{wan} = [\"{at}\"]")).collect();
        let (via, gateways) = (via.join(", "), gateways.join(", "));
        let _ = write!(out, "[[remote]]\nid = {}\nvia = [{via}]\ngateways = {{ {gateways} }}\n", other.id);
    }
    out
}

fn router_text(own: &Organisation, router: &Router, others: &[Organisation]) -> String {
    let mut out = format!("name = \"{}\"\nmap = \"map.toml\"\n", router.name);
    let is_inside = |name: &str| own.subnets.iter().any(|subnet| subnet.name == name);
    let joins = router.joins.map(|(name, _)| name);
    let is_private = joins.contains(&PRIVATE);
    let admitted: Vec<u32> = others
        .iter()
        .map(|other| other.id)
        .filter(|id| *id != own.id && (!is_private || PRIVATE_ENDS.contains(id)))
        .collect();
    let has_wan = joins.iter().any(|name| !is_inside(name));
    if has_wan {
        let _ = writeln!(out, "admits = {admitted:?}");
    }
    for name in joins.into_iter().filter(|name| is_inside(name)) {
        let _ = write!(out, "[subnet.{name}]\nplain = true\ntargets = [\"10.{}.0.0/16\"]\n", own.id);
    }
    if has_wan {
        let authorities: Vec<_> = admitted.iter().map(|id| format!("\"../as{id}/as{id}.pem\"")).collect();
        let name = router.name;
        let _ = write!(
            out,
            "[tls]\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"\nauthorities = [{}]\n",
            authorities.join(", ")
        );
    }
    out
}

fn node_text(own: &Organisation) -> String {
    let (_, subnet, address, routers) = own.node;
    format!(
        "[device]\ninterface = \"{address}\"\nas_id = {}\nsubnet = {subnet}\nrouters = \"{routers}\"\n",
        own.id
    )
}

/// Names and contents of all maps, configurations and endpoints.
fn files(all: &[Organisation]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for own in all {
        let folder = format!("as{}", own.id);
        out.push((format!("{folder}/map.toml"), map_text(own, all)));
        out.push((format!("{folder}/node.toml"), node_text(own)));
        for router in own.routers {
            out.push((format!("{folder}/{}.toml", router.name), router_text(own, router, all)));
        }
    }
    out
}

/// Start of a script: makes keys, starts all routers, and waits for them and their links.
fn start(all: &[Organisation]) -> String {
    let mut out = String::from("cd @WORK@ || exit 3\nrm -f *.router.log *.where\n");
    for own in all {
        for router in own
            .routers
            .iter()
            .filter(|router| !own.subnets.iter().any(|subnet| subnet.name == router.joins[1].0))
        {
            let _ = writeln!(
                out,
                "rm -f as{0}/{1}.pem as{0}/{1}.key; @ISTHMUS@ router keygen --as {0} --role router --out @WORK@/as{0} --name {1} > /dev/null || exit 3",
                own.id, router.name
            );
        }
    }
    let mut count = 0;
    for own in all {
        for router in own.routers {
            let _ = writeln!(
                out,
                "lab-rsh {} env NO_COLOR=1 ISTHMUS_LOG=info @ISTHMUS@ router run --config @WORK@/as{}/{}.toml > {}-{2}.router.log 2>&1 &",
                router.host, own.id, router.name, router.host
            );
            count += 1;
        }
    }
    until(&mut out, count, "router ready");
    let dials =
        all.iter().flat_map(|own| own.gateways.iter().map(move |gateway| neighbours(all, own, gateway.0)));
    until(&mut out, LINKS * dials.sum::<usize>(), "link up.*dialled=true");
    out
}

/// Links that a router dials to each gateway: `limits.links` (default 4) by TCP, and one by UDP.
const LINKS: usize = 5;

/// Number of other organisations that an organisation reaches by a WAN.
fn neighbours(all: &[Organisation], own: &Organisation, wan: &str) -> usize {
    let has =
        |other: &&Organisation| other.id != own.id && other.gateways.iter().any(|(name, _)| *name == wan);
    all.iter().filter(has).count()
}

/// Waits until this number of lines in the routers' logs match.
fn until(out: &mut String, count: usize, pattern: &str) {
    let _ = writeln!(
        out,
        "n=0; until [ $(cat *.router.log | grep -c '{pattern}') -ge {count} ]; do n=$((n + 1)); [ $n -lt 200 ] || \
         {{ for log in *.router.log; do grep -q '{pattern}' $log || tail -n 2 $log >&2; done; exit 3; }}; sleep 0.1; done"
    );
}

/// Starts a server at a node and waits for it. Its address is in `NAME.where`.
fn serve(host: &str, config: &str, name: &str) -> String {
    format!(
        "lab-rsh {host} env ISTHMUS_CONFIG=@WORK@/{config} @ISTHMUS@ bench serve > {name}.where 2> {name}.serve.log &\n\
         n=0; until [ -s {name}.where ]; do n=$((n + 1)); [ $n -lt 100 ] || {{ tail -n 1 {name}.serve.log >&2; exit 3; }}; sleep 0.1; done\n"
    )
}

/// Measures from a host to a server. The result has `words` as further JSON.
fn measured(host: &str, config: &str, to: &str, what: &str, words: &str) -> String {
    format!(
        "line=$(lab-rsh {host} env ISTHMUS_CONFIG=@WORK@/{config} @ISTHMUS@ bench {what} --alone --level ro --json --to \"$(cat {to}.where)\") || exit 3\n\
         echo \"RESULT {{{words}, \\\"measured\\\": $line}}\"\n"
    )
}

/// The lab of the four organisations.
fn four_lab() -> String {
    let mut lab = String::from("mgmt = true\n");
    for host in FOUR_HOSTS {
        let _ = write!(lab, "[[site]]\nname = \"{host}\"\n");
    }
    let _ = write!(lab, "[[site]]\nname = \"{BACKBONE}\"\nforward = true\n");
    for [one, other, here, there] in FOUR_CABLES {
        let _ = write!(
            lab,
            "[[lan]]\nbetween = [\"{one}\", \"{other}\"]\naddresses = [\"{here}\", \"{there}\"]\n"
        );
    }
    for own in &FOUR {
        let _ = write!(
            lab,
            "[[link]]\nbetween = [\"g{0}\", \"{BACKBONE}\"]\naddresses = [\"198.51.{0}.1\", \"198.51.{0}.2\"]\n\
             rate = \"1Gbit\"\nrtt = \"12ms\"\n",
            own.id
        );
    }
    lab + "[[link]]\nbetween = [\"g3\", \"g4\"]\naddresses = [\"203.0.113.1\", \"203.0.113.2\"]\nrate = \"1Gbit\"\nrtt = \"8ms\"\n"
}

/// Ordered pairs of nodes: the ends of the private link, or all other pairs.
fn pairs(ends_of_private: bool) -> Vec<(&'static Organisation, &'static Organisation)> {
    let is_end = |one: &Organisation| PRIVATE_ENDS.contains(&one.id);
    let all = FOUR.iter().flat_map(|from| FOUR.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| from.id != to.id && (is_end(from) && is_end(to)) == ends_of_private).collect()
}

/// The step with four organisations. Pairs of nodes send each other this many bytes.
pub(crate) fn four(ends_of_private: bool, bytes: u64) -> Step {
    let mut script = String::new();
    for own in &FOUR {
        let _ =
            writeln!(script, "lab-rsh g{0} ip route add 198.51.0.0/16 via 198.51.{0}.2 || exit 3", own.id);
    }
    script += &start(&FOUR);
    for own in &FOUR {
        script += &serve(own.node.0, &format!("as{}/node.toml", own.id), own.node.0);
    }
    let pairs = pairs(ends_of_private);
    for (from, to) in &pairs {
        let config = format!("as{}/node.toml", from.id);
        let words = format!("\\\"from\\\": {}, \\\"to\\\": {}", from.id, to.id);
        for what in [stream(bytes), PINGPONG.to_owned()] {
            script += &measured(from.node.0, &config, to.node.0, &what, &words);
        }
    }
    Step {
        lab: Some(four_lab()),
        script,
        files: files(&FOUR),
        floor_s: pairs.len() as f64 * (bytes as f64 / 1e8 + 0.5) + 4.0,
        limit_s: 120.0 + 2.0 * pairs.len() as f64 * bytes as f64 / 1e8,
        ..Step::default()
    }
}

/// Arguments of a measurement from end to end.
const PINGPONG: &str = "pingpong --size 8B --count 5";

fn stream(bytes: u64) -> String {
    format!("stream --depth 4 --size 1000000B --count {}", bytes / 1_000_000)
}

/// Measures each of the five networks, then all of them end to end through four routers.
pub(crate) fn five(bytes: u64) -> Step {
    let mut lab = String::from("mgmt = true\n");
    for host in ["a", "inner-a", "gate-a", "gate-b", "inner-b", "b"] {
        let _ = write!(lab, "[[site]]\nname = \"{host}\"\n");
    }
    lab += "[[lan]]\nbetween = [\"a\", \"inner-a\"]\naddresses = [\"10.1.0.1\", \"10.1.0.2\"]\nmtu = 65521\n\
            [[lan]]\nbetween = [\"inner-b\", \"b\"]\naddresses = [\"10.2.0.2\", \"10.2.0.1\"]\n\
            [[link]]\nbetween = [\"inner-a\", \"gate-a\"]\naddresses = [\"10.1.1.1\", \"10.1.1.2\"]\nrate = \"4Gbit\"\nrtt = \"200us\"\n\
            [[link]]\nbetween = [\"gate-a\", \"gate-b\"]\naddresses = [\"192.0.2.1\", \"192.0.2.2\"]\nrate = \"1Gbit\"\nrtt = \"24ms\"\n\
            [[link]]\nbetween = [\"gate-b\", \"inner-b\"]\naddresses = [\"10.2.1.2\", \"10.2.1.1\"]\nrate = \"2Gbit\"\nrtt = \"500us\"\nmtu = 1500\n";
    let mut files = files(&FIVE);
    let mut script = start(&FIVE);
    for (number, (_, from, to, there, here)) in HOPS.iter().enumerate() {
        for (end, address) in [("from", here), ("to", there)] {
            files.push((format!("hop{number}-{end}.toml"), format!("[device]\ninterface = \"{address}\"\n")));
        }
        let place = format!("hop{number}");
        script += &serve(to, &format!("{place}-to.toml"), &place);
        let words = format!("\\\"hop\\\": {number}");
        script += &measured(from, &format!("{place}-from.toml"), &place, &stream(bytes), &words);
    }
    script += &serve("b", "as2/node.toml", "whole");
    for what in [stream(bytes), PINGPONG.to_owned()] {
        let words = format!("\\\"hop\\\": {}", HOPS.len());
        script += &measured("a", "as1/node.toml", "whole", &what, &words);
    }
    Step {
        lab: Some(lab),
        script,
        files,
        floor_s: 2.0 * bytes as f64 / 1.2e8 + 6.0,
        limit_s: 120.0 + 20.0 * bytes as f64 / 1e8,
        ..Step::default()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn scripts_are_good_shell_and_each_router_has_a_log_of_its_own() {
        for step in [four(true, 1_000_000), four(false, 1_000_000), five(1_000_000)] {
            let read = Command::new("sh").args(["-n", "-c", &step.script]).output().expect("a shell");
            assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
            let mut logs: Vec<_> = step
                .script
                .lines()
                .filter_map(|line| line.split_once("router run")?.1.split_once("> "))
                .map(|(_, log)| log)
                .collect();
            let count = logs.len();
            logs.sort_unstable();
            logs.dedup();
            assert_eq!((logs.len(), count > 3), (count, true), "{logs:?}");
            for (name, text) in &step.files {
                assert!(!text.contains("[]") || !name.contains("as"), "{name}: {text}");
            }
        }
    }

    /// Only the two ends of the private link are admitted to it.
    #[test]
    fn only_the_ends_of_the_private_link_know_it() {
        let texts = files(&FOUR);
        let knows: Vec<&str> = texts
            .iter()
            .filter(|(_, text)| text.contains("203.0.113."))
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(knows, ["as3/map.toml", "as4/map.toml"]);
        let admits = |name: &str| {
            texts.iter().find(|(own, _)| own == name).map(|(_, text)| text.contains("admits = [4]"))
        };
        assert_eq!(admits("as3/r2.toml"), Some(true));
        assert_eq!(admits("as3/r1.toml"), Some(false));
    }
}
