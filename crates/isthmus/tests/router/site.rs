//! The two sites of the tests.
//!
//! AS 1 has subnets a (1) and b (2), joined by r1; r2 joins a to the WAN. AS 2 has subnet c
//! (1), which s1 joins to the WAN.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::harness::{Running, World};

pub(crate) struct Sites {
    pub(crate) world: World,
    /// What links between the sites go by.
    links: &'static str,
    /// r1 on a and b; r2 on a and the WAN; s1 on c and the WAN.
    pub(crate) r1: [SocketAddr; 2],
    pub(crate) r2: [SocketAddr; 2],
    pub(crate) s1: [SocketAddr; 2],
}

impl Sites {
    pub(crate) fn new() -> Self {
        Self::linked_by("auto")
    }

    /// Sites whose links go by `links`: "tcp", "udp" or "auto".
    pub(crate) fn linked_by(links: &'static str) -> Self {
        let world = World::new();
        let two = |host| [world.address(host), world.address(host + 1)];
        let (r1, r2, s1) = (two(11), two(21), two(31));
        let sites = Self { world, links, r1, r2, s1 };
        sites.write_maps();
        sites
    }

    fn write_maps(&self) {
        let Self { r1, r2, s1, .. } = self;
        let subnet = |kind: &str, id: u32, name: &str| {
            format!("[[{kind}]]\nid = {id}\nname = \"{name}\"\nrate = \"10Gbit\"\nlatency = \"10us\"\n")
        };
        let (a, b, c) = (subnet("subnet", 1, "a"), subnet("subnet", 2, "b"), subnet("subnet", 1, "c"));
        let wan = subnet("wan", 100, "wan");
        let one = format!(
            "[as]\nid = 1\n{a}{b}{wan}\
             [[router]]\nname = \"r1\"\njoins = [\"a\", \"b\"]\nendpoints = {{ a = \"{}\", b = \"{}\" }}\n\
             [[router]]\nname = \"r2\"\njoins = [\"a\", \"wan\"]\nendpoints = {{ a = \"{}\", wan = \"{}\" }}\n\
             [[remote]]\nid = 2\nvia = [\"wan\"]\ngateways = {{ wan = [\"{}\"] }}\n\
             [[remote]]\nid = 3\nvia = [\"wan\"]\n",
            r1[0], r1[1], r2[0], r2[1], s1[1]
        );
        let two = format!(
            "[as]\nid = 2\n{c}{wan}\
             [[router]]\nname = \"s1\"\njoins = [\"c\", \"wan\"]\nendpoints = {{ c = \"{}\", wan = \"{}\" }}\n\
             [[remote]]\nid = 1\nvia = [\"wan\"]\ngateways = {{ wan = [\"{}\"] }}\n",
            s1[0], s1[1], r2[1]
        );
        self.world.write("one.toml", &one);
        self.world.write("two.toml", &two);
    }

    /// Configuration of r1, with `more` at its top.
    pub(crate) fn r1(&self, more: &str) -> PathBuf {
        let text = format!(
            "name = \"r1\"\nmap = \"one.toml\"\n{more}[subnet.a]\nplain = true\ntargets = [\"127.0.0.0/8\"]\n[subnet.b]\nplain = true\ntargets = [\"127.0.0.0/8\"]\n"
        );
        self.world.write("r1.toml", &text)
    }

    /// Configuration of r2 with the certificates in the folder `keys`.
    pub(crate) fn r2(&self, keys: &str, more: &str) -> PathBuf {
        let text = format!(
            "name = \"r2\"\nmap = \"one.toml\"\nadmits = [2]\n{more}[subnet.a]\nplain = true\ntargets = [\"127.0.0.0/8\"]\n\
             [subnet.wan]\ntransport = \"{}\"\n\
             [tls]\ncertificate = \"{keys}/router.pem\"\nkey = \"{keys}/router.key\"\nauthorities = [\"two/as2.pem\"]\n",
            self.links
        );
        self.world.write("r2.toml", &text)
    }

    /// Configuration of s1.
    pub(crate) fn s1(&self, more: &str) -> PathBuf {
        let text = format!(
            "name = \"s1\"\nmap = \"two.toml\"\nadmits = [1]\n{more}[subnet.c]\nplain = true\ntargets = [\"127.0.0.0/8\"]\n\
             [subnet.wan]\ntransport = \"{}\"\n\
             [tls]\ncertificate = \"two/router.pem\"\nkey = \"two/router.key\"\nauthorities = [\"one/as1.pem\"]\n",
            self.links
        );
        self.world.write("s1.toml", &text)
    }

    /// Both sites with certificates that fit, r2 and s1 running.
    pub(crate) fn joined(&self) -> (Running, Running) {
        self.world.keygen(1, "one");
        self.world.keygen(2, "two");
        let (r2, s1) = (self.r2("one", ""), self.s1(""));
        (self.world.start(&r2), self.world.start(&s1))
    }
}
