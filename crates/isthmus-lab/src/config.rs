//! The lab's configuration: sites and the links between them, from TOML or from flags.
//!
//! ```toml
//! mgmt = true                      # a perfect network among all sites, for launchers
//!
//! [[site]]
//! name = "a"
//! [[site]]
//! name = "b"
//! cc = "cubic"                     # TCP congestion control of this site
//!
//! [[link]]
//! between = ["a", "b"]
//! rate = "1Gbit"
//! rtt = "24ms"
//! loss = "0.1%"
//! down = [{ at = "2s", for = "20s" }]
//! backward = { loss = "0%" }       # from the second site to the first
//! jitter = "3ms"
//! jitter_shape = "heavy-tailed"    # or "uniform", "spikes"
//! jitter_every = "1ms"             # a new value of it, or a spike
//! mark = "300kB"                   # packets that find a longer queue are marked (ECN)
//! policer = { rate = "400Mbit", burst = "1MB" }    # only_udp = true: all else passes by it
//! change = [{ at = "3s", rtt = "80ms" }, { at = "5s", rate = "200Mbit" }]
//!
//! [[site]]
//! name = "node"                    # reaches b by no address: sites forward nothing
//! [[lan]]
//! between = ["node", "a"]          # a cable inside a centre: not emulated
//! ```

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::model::{Change, DELAY_NS_MAX, DirectionSpec, Jitter, Loss, Policer};
use isthmus_units::{Percent, Rate, Size, Span};

/// Network of the `mgmt` link, a /24: sites count from .1, the hub is .254.
pub(crate) const MGMT_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 0);

/// A fault of a configuration, with its place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not a lab configuration.
    #[error("{place}: {message}")]
    Text {
        /// File and line.
        place: String,
        /// The value and the remedy.
        message: String,
    },
    /// The parts do not fit together.
    #[error("{0}")]
    Meaning(String),
}

/// A lab: sites and links. See the module's example.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabConfig {
    /// A lossless network among all sites, for launchers. It is not emulated. Default: none.
    #[serde(default)]
    pub mgmt: bool,
    /// The sites, at least one.
    #[serde(default, rename = "site")]
    pub sites: Vec<SiteConfig>,
    /// The wide-area links.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkConfig>,
    /// The cables.
    #[serde(default, rename = "lan")]
    pub lans: Vec<LanConfig>,
}

/// One site: a network namespace whose hostname is the site's name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteConfig {
    /// Lower-case letters, digits and hyphens, at most 32. Also the site's hostname.
    pub name: String,
    /// TCP congestion control, such as "cubic" or "bbr". Default: as the host's.
    pub cc: Option<String>,
    /// Forward IP packets between this site's interfaces. Default: false.
    #[serde(default)]
    pub forward: bool,
}

/// A cable between two sites, as fast as the machine: not emulated.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanConfig {
    /// The two sites.
    #[serde(deserialize_with = "two")]
    pub between: [String; 2],
    /// Addresses of the two ends, in one /24. Default: automatic, from 10.201.0.0/16.
    #[serde(default, deserialize_with = "two_given")]
    pub addresses: Option<[Ipv4Addr; 2]>,
    /// Maximum transmission unit. Bytes, 576..=65521. Default 9000.
    pub mtu: Option<Size>,
}

/// One wide-area link. Direction keys given here hold for both directions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Name in a [catalogue](crate::catalogue); a lab does not use it. Default: none.
    pub name: Option<String>,
    /// The two sites. Default: sites "a" and "b".
    #[serde(default = "a_and_b", deserialize_with = "two")]
    pub between: [String; 2],
    /// Addresses of the two ends, in one /24. Default: automatic, from 10.200.0.0/16.
    #[serde(default, deserialize_with = "two_given")]
    pub addresses: Option<[Ipv4Addr; 2]>,
    /// Maximum transmission unit. Bytes, 576..=65521. Default 9000.
    pub mtu: Option<Size>,
    /// Round-trip time. Each direction's one-way delay is half of it. Default 0.
    pub rtt: Option<Span>,
    /// Seed of all random decisions on this link. Default 1.
    pub seed: Option<u64>,
    /// Overrides for the direction from the first site to the second.
    #[serde(default)]
    pub forward: DirectionConfig,
    /// Overrides for the direction from the second site to the first.
    #[serde(default)]
    pub backward: DirectionConfig,

    /// See [`DirectionConfig::rate`].
    pub rate: Option<Rate>,
    /// See [`DirectionConfig::delay`].
    pub delay: Option<Span>,
    /// See [`DirectionConfig::queue`].
    pub queue: Option<Size>,
    /// See [`DirectionConfig::mark`].
    pub mark: Option<Size>,
    /// See [`DirectionConfig::loss`].
    pub loss: Option<Percent>,
    /// See [`DirectionConfig::gilbert_elliott`].
    pub gilbert_elliott: Option<GilbertElliott>,
    /// See [`DirectionConfig::jitter`].
    pub jitter: Option<Span>,
    /// See [`DirectionConfig::jitter_shape`].
    pub jitter_shape: Option<JitterShape>,
    /// See [`DirectionConfig::jitter_every`].
    pub jitter_every: Option<Span>,
    /// See [`DirectionConfig::policer`](field@DirectionConfig::policer).
    pub policer: Option<PolicerConfig>,
    /// See [`DirectionConfig::gather`].
    pub gather: Option<Span>,
    /// See [`DirectionConfig::path_mtu`].
    pub path_mtu: Option<Size>,
    /// See [`DirectionConfig::change`].
    pub change: Option<Vec<ChangeConfig>>,
    /// See [`DirectionConfig::reorder`].
    pub reorder: Option<Percent>,
    /// See [`DirectionConfig::reorder_by`].
    pub reorder_by: Option<Span>,
    /// See [`DirectionConfig::duplicate`].
    pub duplicate: Option<Percent>,
    /// See [`DirectionConfig::down`].
    pub down: Option<Vec<Cut>>,
}

fn a_and_b() -> [String; 2] {
    ["a".to_owned(), "b".to_owned()]
}

/// A list of exactly two. By itself, serde ignores excess elements of an array.
fn two<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<[T; 2], D::Error> {
    let all = Vec::deserialize(list)?;
    let len = all.len();
    all.try_into().map_err(|_| D::Error::invalid_length(len, &"two, one for each end"))
}

fn two_given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Option<[T; 2]>, D::Error> {
    two(list).map(Some)
}

/// Parameters that may differ between a link's directions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectionConfig {
    /// Serialisation rate, such as "1Gbit". Default "1Gbit".
    pub rate: Option<Rate>,
    /// One-way delay, at most "250ms". Default: half of `rtt`.
    pub delay: Option<Span>,
    /// Drop-tail queue, in bytes. Default: rate times round-trip time, at least 16 packets
    /// and 128 KiB, because a sender's super-packet of 64 KiB arrives all at once.
    pub queue: Option<Size>,
    /// Packets that find more than this in the queue are marked (ECN), in bytes; those that may not be marked pass as
    /// they are. Default: none is marked.
    pub mark: Option<Size>,
    /// Independent loss per wire packet. Default "0%".
    pub loss: Option<Percent>,
    /// Loss in bursts, instead of `loss`.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// Most jitter: extra delay, without reordering. Default "0".
    pub jitter: Option<Span>,
    /// Distribution of the jitter. Default "uniform".
    pub jitter_shape: Option<JitterShape>,
    /// How often jitter that is not uniform changes, or comes. Default "1ms" for heavy-tailed jitter, "200ms" for
    /// spikes.
    pub jitter_every: Option<Span>,
    /// A token bucket that drops what exceeds it, before the queue. Default: none.
    pub policer: Option<PolicerConfig>,
    /// Packets are delivered together at multiples of this time. Default "0": each by itself.
    pub gather: Option<Span>,
    /// Larger IP packets vanish, as behind a switch without jumbo frames. Bytes. Default: the link's MTU.
    pub path_mtu: Option<Size>,
    /// Changes of rate and route, in order of time. Default: none.
    pub change: Option<Vec<ChangeConfig>>,
    /// Share of packets held back so that later ones overtake them. Default "0%".
    pub reorder: Option<Percent>,
    /// How long a reordered packet is held back. Default "1ms".
    pub reorder_by: Option<Span>,
    /// Share of packets that arrive twice. Default "0%".
    pub duplicate: Option<Percent>,
    /// Outages, counted from the lab's start. Default: never.
    pub down: Option<Vec<Cut>>,
}

/// Loss in bursts. By default nothing is lost in the good state, everything in the bad one.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliott {
    /// Probability per packet that the good state turns bad.
    pub to_bad: Percent,
    /// Probability per packet that the bad state turns good: 1 over the mean burst length.
    pub to_good: Percent,
    /// Loss in the good state. Default "0%".
    #[serde(default)]
    pub loss_good: Percent,
    /// Loss in the bad state. Default "100%".
    #[serde(default = "all")]
    pub loss_bad: Percent,
}

fn all() -> Percent {
    Percent(1.0)
}

/// An outage of the link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// When it starts, counted from the lab's start.
    pub at: Span,
    /// How long it lasts.
    #[serde(rename = "for")]
    pub length: Span,
}

/// Distribution of jitter. See [`Jitter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JitterShape {
    /// Uniform, drawn for each packet.
    Uniform,
    /// Mostly small, sometimes large: a Pareto distribution, drawn once per `jitter_every`.
    HeavyTailed,
    /// Nothing passes for the time of `jitter` at the beginning of each `jitter_every`.
    Spikes,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicerConfig {
    /// Rate that passes for long.
    pub rate: Rate,
    /// What passes at once after a pause. Bytes.
    pub burst: Size,
    /// Whether everything but UDP passes by it. Default: false.
    #[serde(default)]
    pub only_udp: bool,
}

/// A change of a link while it is in use.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeConfig {
    /// When, counted from the lab's start.
    pub at: Span,
    /// The new rate. Default: as before.
    pub rate: Option<Rate>,
    /// The new round-trip time; this direction's delay is half of it. Default: as before.
    pub rtt: Option<Span>,
}

/// A link with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Index of each end's site in [`LabConfig::sites`].
    pub ends: [usize; 2],
    /// Address of each end; the network is a /24.
    pub addresses: [Ipv4Addr; 2],
    /// Maximum transmission unit. Bytes.
    pub mtu: u32,
    /// From the first end to the second, and back.
    pub directions: [DirectionSpec; 2],
}

/// A cable with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanSpec {
    /// Index of each end's site in [`LabConfig::sites`].
    pub ends: [usize; 2],
    /// Address of each end; the network is a /24.
    pub addresses: [Ipv4Addr; 2],
    /// Maximum transmission unit. Bytes.
    pub mtu: u32,
}

impl LinkSpec {
    /// The two propagation delays together. Nanoseconds.
    pub fn rtt_ns(&self) -> u64 {
        self.directions[0].delay_ns + self.directions[1].delay_ns
    }

    /// Most bytes under way in the link's faster direction: bandwidth-delay product and queue.
    pub fn window_bytes(&self) -> u64 {
        let window = |d: &DirectionSpec| bdp_bytes(d.rate_bps, self.rtt_ns()) + d.queue_bytes;
        self.directions.iter().map(window).max().unwrap_or(0)
    }
}

impl LabConfig {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&path.display().to_string(), &text_of(path)?)
    }

    /// Parses and checks `text`. Error messages call it `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|e| text_error(name, text, &e))?;
        config.specs().map_err(|e| ConfigError::Meaning(format!("{name}: {e}")))?;
        Ok(config)
    }

    /// Checks the configuration and fills in every default.
    pub fn specs(&self) -> Result<Vec<LinkSpec>, ConfigError> {
        self.check_sites()?;
        let specs: Result<Vec<_>, _> = (0..self.links.len()).map(|i| self.spec(i)).collect();
        let specs = specs.map_err(ConfigError::Meaning)?;
        let nets: Vec<_> = named("link", specs.iter().map(|spec| spec.addresses)).collect();
        check_count("link", specs.len())
            .and_then(|()| check_addresses(&nets))
            .map_err(ConfigError::Meaning)?;
        Ok(specs)
    }

    /// Checks the cables and fills in their defaults. No /24 may be in use twice, by cables or links.
    ///
    /// # Errors
    /// As [`LabConfig::specs`].
    pub fn lan_specs(&self, links: &[LinkSpec]) -> Result<Vec<LanSpec>, ConfigError> {
        let lans: Result<Vec<_>, _> = (0..self.lans.len()).map(|i| self.lan_spec(i)).collect();
        let lans = lans.map_err(ConfigError::Meaning)?;
        let nets = named("link", links.iter().map(|link| link.addresses));
        let nets: Vec<_> = nets.chain(named("lan", lans.iter().map(|lan| lan.addresses))).collect();
        check_count("lan", lans.len()).and_then(|()| check_addresses(&nets)).map_err(ConfigError::Meaning)?;
        Ok(lans)
    }

    fn lan_spec(&self, index: usize) -> Result<LanSpec, String> {
        let lan = &self.lans[index];
        let place = format!("lan {} ({}-{})", index + 1, lan.between[0], lan.between[1]);
        let addresses = lan.addresses.unwrap_or_else(|| automatic_addresses(201, index));
        Ok(LanSpec { ends: self.ends(&lan.between, &place)?, addresses, mtu: mtu_of(lan.mtu, &place)? })
    }

    fn ends(&self, between: &[String; 2], place: &str) -> Result<[usize; 2], String> {
        let ends = [self.site_index(&between[0], place)?, self.site_index(&between[1], place)?];
        if ends[0] == ends[1] {
            return Err(format!("{place} joins a site to itself; name two sites"));
        }
        Ok(ends)
    }

    fn check_sites(&self) -> Result<(), ConfigError> {
        if self.sites.is_empty() {
            return Err(ConfigError::Meaning("there is no site; add [[site]] with name = \"a\"".into()));
        }
        for (i, site) in self.sites.iter().enumerate() {
            check_site_name(&site.name).map_err(ConfigError::Meaning)?;
            if self.sites[..i].iter().any(|s| s.name == site.name) {
                return Err(ConfigError::Meaning(format!("site {:?} is there twice; rename one", site.name)));
            }
        }
        Ok(())
    }

    fn spec(&self, index: usize) -> Result<LinkSpec, String> {
        let link = &self.links[index];
        let place = format!("link {} ({}-{})", index + 1, link.between[0], link.between[1]);
        let (ends, mtu) = (self.ends(&link.between, &place)?, mtu_of(link.mtu, &place)?);
        let addresses = link.addresses.unwrap_or_else(|| automatic_addresses(200, index));
        let directions = link.directions(index, mtu).map_err(|e| format!("{place}: {e}"))?;
        Ok(LinkSpec { ends, addresses, mtu, directions })
    }

    fn site_index(&self, name: &str, place: &str) -> Result<usize, String> {
        self.sites.iter().position(|s| s.name == name).ok_or_else(|| {
            let known: Vec<_> = self.sites.iter().map(|s| s.name.as_str()).collect();
            format!("{place}: there is no site {name:?}; the sites are {}", known.join(", "))
        })
    }
}

impl LinkConfig {
    fn common(&self) -> DirectionConfig {
        DirectionConfig {
            rate: self.rate,
            delay: self.delay,
            queue: self.queue,
            mark: self.mark,
            loss: self.loss,
            gilbert_elliott: self.gilbert_elliott,
            jitter: self.jitter,
            jitter_shape: self.jitter_shape,
            jitter_every: self.jitter_every,
            policer: self.policer,
            gather: self.gather,
            path_mtu: self.path_mtu,
            change: self.change.clone(),
            reorder: self.reorder,
            reorder_by: self.reorder_by,
            duplicate: self.duplicate,
            down: self.down.clone(),
        }
    }

    fn directions(&self, index: usize, mtu: u32) -> Result<[DirectionSpec; 2], String> {
        if self.rtt.is_some() && self.delay.is_some() {
            return Err("both rtt and delay are given; keep one (delay is one way)".into());
        }
        let common = self.common();
        let sides = [self.forward.clone().over(&common), self.backward.clone().over(&common)];
        let half = Span(self.rtt.unwrap_or_default().0 / 2);
        let delays = [sides[0].delay.unwrap_or(half), sides[1].delay.unwrap_or(half)];
        let rtt_ns = delays[0].0 + delays[1].0;
        let seed = self.seed.unwrap_or(1).wrapping_add(index as u64 * 1_000_003);
        let spec =
            |i: usize| sides[i].spec(delays[i], rtt_ns, mtu, seed.wrapping_mul(2).wrapping_add(i as u64));
        Ok([spec(0)?, spec(1)?])
    }
}

impl DirectionConfig {
    /// This direction's own values, or else the link's.
    fn over(self, link: &Self) -> Self {
        // If the direction sets either kind of loss, that replaces both of the link's.
        let own_loss = self.loss.is_some() || self.gilbert_elliott.is_some();
        Self {
            rate: self.rate.or(link.rate),
            delay: self.delay.or(link.delay),
            queue: self.queue.or(link.queue),
            mark: self.mark.or(link.mark),
            loss: if own_loss { self.loss } else { link.loss },
            gilbert_elliott: if own_loss { self.gilbert_elliott } else { link.gilbert_elliott },
            jitter: self.jitter.or(link.jitter),
            jitter_shape: self.jitter_shape.or(link.jitter_shape),
            jitter_every: self.jitter_every.or(link.jitter_every),
            policer: self.policer.or(link.policer),
            gather: self.gather.or(link.gather),
            path_mtu: self.path_mtu.or(link.path_mtu),
            change: self.change.or_else(|| link.change.clone()),
            reorder: self.reorder.or(link.reorder),
            reorder_by: self.reorder_by.or(link.reorder_by),
            duplicate: self.duplicate.or(link.duplicate),
            down: self.down.or_else(|| link.down.clone()),
        }
    }

    fn spec(&self, delay: Span, rtt_ns: u64, mtu: u32, seed: u64) -> Result<DirectionSpec, String> {
        let defaults = DirectionSpec::default();
        if delay.0 > DELAY_NS_MAX {
            return Err(format!(
                "a one-way delay of {delay} is too long; the most is {}",
                Span(DELAY_NS_MAX)
            ));
        }
        let rate_bps = self.rate.map_or(defaults.rate_bps, |r| r.0);
        let wire_mtu = u64::from(crate::model::wire_bytes(mtu + 14));
        let queue_bytes =
            self.queue.map_or(bdp_bytes(rate_bps, rtt_ns).max(16 * wire_mtu).max(128 << 10), |q| q.0);
        if queue_bytes < wire_mtu {
            return Err(format!(
                "queue = {queue_bytes} cannot hold one packet of mtu {mtu}; use at least {wire_mtu} bytes"
            ));
        }
        Ok(DirectionSpec {
            rate_bps,
            delay_ns: delay.0,
            queue_bytes,
            mark_bytes: self.mark.map(|mark| mark.0),
            loss: self.loss_model()?,
            jitter_ns: self.jitter.unwrap_or_default().0,
            jitter: self.jitter_source()?,
            policer: self.policer(wire_mtu)?,
            changes: self.changes(rate_bps, delay.0)?,
            gather_ns: self.gather.unwrap_or_default().0,
            frame_bytes_max: self
                .path_mtu
                .map_or(u32::MAX, |mtu| (mtu.0 + 14).min(u64::from(u32::MAX)) as u32),
            reorder: self.reorder.unwrap_or_default().0,
            reorder_by_ns: self.reorder_by.map_or(defaults.reorder_by_ns, |s| s.0),
            duplicate: self.duplicate.unwrap_or_default().0,
            down: cuts(self.down.as_deref().unwrap_or_default())?,
            seed,
        })
    }

    fn jitter_source(&self) -> Result<Jitter, String> {
        let every_ns = |default: Span| match self.jitter_every.unwrap_or(default).0 {
            0 => Err("jitter_every = \"0\" is no time; use at least \"1us\"".to_owned()),
            every_ns => Ok(every_ns),
        };
        match self.jitter_shape.unwrap_or(JitterShape::Uniform) {
            JitterShape::Uniform => Ok(Jitter::Uniform),
            JitterShape::HeavyTailed => Ok(Jitter::HeavyTailed { every_ns: every_ns(Span::from_ms(1))? }),
            JitterShape::Spikes => Ok(Jitter::Spikes { every_ns: every_ns(Span::from_ms(200))? }),
        }
    }

    fn policer(&self, wire_mtu: u64) -> Result<Option<Policer>, String> {
        match self.policer {
            Some(PolicerConfig { burst, .. }) if burst.0 < wire_mtu => Err(format!(
                "a policer with burst = {} passes no full packet; use at least {wire_mtu} bytes",
                burst.0
            )),
            policer => Ok(policer.map(|of| Policer {
                rate_bps: of.rate.0,
                burst_bytes: of.burst.0,
                only_udp: of.only_udp,
            })),
        }
    }

    /// The changes, each with the rate and the delay that hold from then on. Nanoseconds.
    fn changes(&self, mut rate_bps: u64, mut delay_ns: u64) -> Result<Vec<Change>, String> {
        let changes = self.change.as_deref().unwrap_or_default();
        if let Some(pair) = changes.windows(2).find(|pair| pair[0].at > pair[1].at) {
            return Err(format!(
                "the change at {} stands after the one at {}; sort them",
                pair[1].at, pair[0].at
            ));
        }
        let of = |change: &ChangeConfig| {
            rate_bps = change.rate.map_or(rate_bps, |rate| rate.0);
            delay_ns = change.rtt.map_or(delay_ns, |rtt| rtt.0 / 2);
            if delay_ns > DELAY_NS_MAX {
                let most = Span(2 * DELAY_NS_MAX);
                return Err(format!("the change at {}: the longest rtt is {most}", change.at));
            }
            Ok(Change { at_ns: change.at.0, rate_bps, delay_ns })
        };
        changes.iter().map(of).collect()
    }

    fn loss_model(&self) -> Result<Loss, String> {
        match (self.loss, self.gilbert_elliott) {
            (Some(_), Some(_)) => Err("both loss and gilbert_elliott are given; keep one".into()),
            (loss, None) => Ok(Loss::Independent(loss.unwrap_or_default().0)),
            (None, Some(ge)) => Ok(Loss::GilbertElliott {
                to_bad: ge.to_bad.0,
                to_good: ge.to_good.0,
                loss_good: ge.loss_good.0,
                loss_bad: ge.loss_bad.0,
            }),
        }
    }
}

/// Bandwidth-delay product. Bytes.
pub fn bdp_bytes(rate_bps: u64, rtt_ns: u64) -> u64 {
    (u128::from(rate_bps) * u128::from(rtt_ns) / 8_000_000_000) as u64
}

fn cuts(down: &[Cut]) -> Result<Vec<(u64, u64)>, String> {
    let mut cuts: Vec<_> = down.iter().map(|c| (c.at.0, c.at.0.saturating_add(c.length.0))).collect();
    cuts.sort_unstable();
    match cuts.windows(2).find(|w| w[0].1 > w[1].0) {
        Some(w) => Err(format!(
            "the cut at {} starts before the one at {} ends; join them",
            Span(w[1].0),
            Span(w[0].0)
        )),
        None => Ok(cuts),
    }
}

fn automatic_addresses(net: u8, link: usize) -> [Ipv4Addr; 2] {
    [Ipv4Addr::new(10, net, link as u8, 1), Ipv4Addr::new(10, net, link as u8, 2)]
}

fn mtu_of(mtu: Option<Size>, place: &str) -> Result<u32, String> {
    let mtu = mtu.unwrap_or(Size(9000)).0;
    if !(576..=65521).contains(&mtu) {
        return Err(format!("{place}: mtu = {mtu} is out of range; expected 576 to 65521"));
    }
    Ok(mtu as u32)
}

fn check_site_name(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edge = name.starts_with('-') || name.ends_with('-');
    if name.is_empty() || name.len() > 32 || edge || !name.chars().all(fine) {
        return Err(format!(
            "{name:?} cannot be a site's name; use lower-case letters, digits and inner hyphens, 32 at most"
        ));
    }
    if name == "hub" || name == "localhost" {
        return Err(format!("the name {name:?} is taken by the lab itself; choose another"));
    }
    Ok(())
}

fn named(
    what: &str,
    pairs: impl Iterator<Item = [Ipv4Addr; 2]>,
) -> impl Iterator<Item = (String, [Ipv4Addr; 2])> {
    pairs.enumerate().map(move |(i, pair)| (format!("{what} {}", i + 1), pair))
}

/// Checks that each pair is the two ends of a /24 of its own.
fn check_addresses(nets: &[(String, [Ipv4Addr; 2])]) -> Result<(), String> {
    let network = |a: Ipv4Addr| u32::from(a) >> 8;
    for (i, (name, [first, second])) in nets.iter().enumerate() {
        let (first, second) = (*first, *second);
        if first == second || network(first) != network(second) {
            return Err(format!(
                "{name}: {first} and {second} cannot be the ends of one link; use two addresses of one /24"
            ));
        }
        if network(first) == network(MGMT_NETWORK) {
            return Err(format!("{name}: {first} belongs to the mgmt network; use another"));
        }
        if let Some((other, _)) = nets[..i].iter().find(|(_, net)| network(net[0]) == network(first)) {
            return Err(format!("{other} and {name} share a /24; give each its own"));
        }
    }
    Ok(())
}

fn check_count(what: &str, count: usize) -> Result<(), String> {
    if count > 256 { Err(format!("{count} {what}s are too many; the most is 256")) } else { Ok(()) }
}

/// The text of the file at `path`.
pub(crate) fn text_of(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// An error such as `lab.toml:14: rate = "64MiB" is a size; expected a rate, such as "1Gbit"`.
pub(crate) fn text_error(name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message().trim().replace('\n', "; ");
    let Some(span) = error.span() else {
        return ConfigError::Text { place: name.to_owned(), message };
    };
    let before = &text[..span.start.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let key = before.rsplit('\n').next().and_then(key_before_value).map(|k| format!("{k} = "));
    let message = format!("{}{message}", key.unwrap_or_default());
    ConfigError::Text { place: format!("{name}:{line}"), message }
}

/// The key in a text that ends with `KEY =`.
fn key_before_value(line: &str) -> Option<&str> {
    let before_equals = line.trim_end().strip_suffix('=')?.trim_end();
    before_equals.rsplit([' ', '{', ',', '\t']).next().filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n[[link]]\nbetween = [\"a\", \"b\"]\n";

    fn said(extra: &str) -> String {
        LabConfig::parse("lab.toml", &format!("{TWO}{extra}")).expect_err("refused").to_string()
    }

    fn link(extra: &str) -> LinkSpec {
        let config = LabConfig::parse("lab.toml", &format!("{TWO}{extra}")).expect("accepted");
        config.specs().expect("specs").remove(0)
    }

    #[test]
    fn errors_name_file_line_key_value_and_remedy() {
        assert_eq!(
            said("rate = \"64MiB\"\n"),
            "lab.toml:7: rate = \"64MiB\" is a size; expected a rate, such as \"1Gbit\""
        );
        assert_eq!(
            said("\nrtt = 24\n"),
            "lab.toml:8: rtt = \"24\" has no unit; expected a time, such as \"24ms\""
        );
        assert_eq!(
            said("down = [{ at = \"2s\", for = \"5%\" }]\n"),
            "lab.toml:7: for = \"5%\" is a percentage; expected a time, such as \"24ms\""
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_those_that_exist() {
        let said = said("ratee = \"1Gbit\"\n");
        assert!(
            said.starts_with("lab.toml:7: unknown field `ratee`, expected one of `name`, `between`"),
            "{said}"
        );
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        assert!(
            said("rtt = \"600ms\"\n").contains("a one-way delay of 300ms is too long; the most is 250ms")
        );
        assert!(said("queue = \"1KiB\"\n").contains("cannot hold one packet of mtu 9000"));
        assert!(said("mtu = 100\n").contains("mtu = 100 is out of range"));
        assert!(said("policer = { rate = \"1Mbit\", burst = 500 }\n").contains("passes no full packet"));
        assert!(said("policer = { rate = \"1Mbit\", burst = \"1MB\", only_udp = 1 }\n").contains("boolean"));
        assert!(said("jitter_shape = \"spikes\"\njitter_every = \"0\"\n").contains("at least \"1us\""));
        assert!(
            said("change = [{ at = \"2s\", rate = \"1Mbit\" }, { at = \"1s\", rtt = \"1ms\" }]\n")
                .contains("sort them")
        );
        assert!(said("change = [{ at = \"2s\", rtt = \"600ms\" }]\n").contains("the longest rtt is 500ms"));
        assert!(said("rtt = \"1ms\"\ndelay = \"1ms\"\n").contains("keep one"));
        assert!(said("[[site]]\nname = \"a\"\n").contains("site \"a\" is there twice"));
        assert!(said("[[site]]\nname = \"A b\"\n").contains("cannot be a site's name"));
        assert!(
            said("[[link]]\nbetween = [\"a\", \"c\"]\n")
                .contains("there is no site \"c\"; the sites are a, b")
        );
        assert!(said("addresses = [\"10.1.0.1\", \"10.2.0.1\"]\n").contains("two addresses of one /24"));
        let three = said("[[lan]]\nbetween = [\"a\", \"b\", \"a\"]\n");
        assert!(three.contains("invalid length 3, expected two, one for each end"), "{three}");
        assert!(
            said("down = [{ at = \"1s\", for = \"2s\" }, { at = \"2s\", for = \"1s\" }]")
                .contains("join them")
        );
    }

    #[test]
    fn defaults_fill_in() {
        let link = link("rate = \"1Gbit\"\nrtt = \"24ms\"\n");
        assert_eq!(link.mtu, 9000);
        assert_eq!(link.directions[0].delay_ns, 12_000_000);
        assert_eq!(link.directions[0].queue_bytes, 3_000_000);
        assert_ne!(link.directions[0].seed, link.directions[1].seed);
        assert_eq!(link.addresses[1], Ipv4Addr::new(10, 200, 0, 2));
    }

    #[test]
    fn a_direction_overrides_the_link() {
        let link = link(
            "loss = \"1%\"\nrtt = \"24ms\"\nbackward = { rate = \"10Mbit\", loss = 0, delay = \"1ms\" }\n",
        );
        assert_eq!(link.directions[0].loss, Loss::Independent(0.01));
        assert_eq!(link.directions[1].loss, Loss::Independent(0.0));
        assert_eq!(link.directions[1].rate_bps, 10_000_000);
        assert_eq!(link.rtt_ns(), 13_000_000);
    }

    #[test]
    fn every_key_is_understood() {
        let link = link(
            "addresses = [\"10.9.8.1\", \"10.9.8.2\"]\nrate = \"10Mbit\"\ndelay = \"5ms\"\nmtu = 1500\nqueue = \"64KiB\"\nmark = \"16KiB\"\n\
             jitter = \"1ms\"\nreorder = \"1%\"\nreorder_by = \"3ms\"\nduplicate = \"2%\"\nseed = 7\n\
             gilbert_elliott = { to_bad = \"1%\", to_good = \"25%\", loss_good = 0, loss_bad = \"50%\" }\n\
             down = [{ at = \"2s\", for = \"20s\" }, { at = \"30s\", for = \"1s\" }]\n\
             jitter_shape = \"spikes\"\njitter_every = \"50ms\"\ngather = \"2ms\"\npath_mtu = 1400\n\
             policer = { rate = \"4Mbit\", burst = \"1MB\", only_udp = true }\n\
             change = [{ at = \"3s\", rtt = \"80ms\" }, { at = \"5s\", rate = \"2Mbit\" }]\n\
             forward = { loss = \"3%\" }\n",
        );
        let [there, back] = &link.directions;
        assert_eq!(there.loss, Loss::Independent(0.03), "replaces the link's bursts");
        assert!((back.loss.mean() - 0.5 * 0.01 / 0.26).abs() < 1e-9);
        assert_eq!(back.mark_bytes, Some(16_384));
        assert_eq!((back.queue_bytes, back.reorder_by_ns, back.down.len()), (65536, 3_000_000, 2));
        assert_eq!(back.down[0], (2_000_000_000, 22_000_000_000));
        assert_eq!(back.jitter, Jitter::Spikes { every_ns: 50_000_000 });
        assert_eq!((back.gather_ns, back.frame_bytes_max), (2_000_000, 1_414));
        assert_eq!(
            back.policer,
            Some(Policer { rate_bps: 4_000_000, burst_bytes: 1_000_000, only_udp: true })
        );
        let change = |s: u64, rate_bps| Change { at_ns: s * 1_000_000_000, rate_bps, delay_ns: 40_000_000 };
        assert_eq!(back.changes, [change(3, 10_000_000), change(5, 2_000_000)], "the rest stays as it was");
    }

    #[test]
    fn cables_are_checked_with_the_links() {
        let text = |lan: &str| {
            let text = format!(
                "[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n[[link]]\nbetween = [\"a\", \"b\"]\n{lan}"
            );
            LabConfig::parse("lab.toml", &text)
        };
        let check = |lan: &str| text(lan).and_then(|config| config.lan_specs(&config.specs()?));
        let lans = check("[[lan]]\nbetween = [\"b\", \"a\"]\n").expect("valid");
        assert_eq!((lans[0].ends, lans[0].mtu), ([1, 0], 9000));
        let said = |lan: &str| check(lan).expect_err("invalid").to_string();
        assert!(said("[[lan]]\nbetween = [\"a\", \"c\"]\n").contains("lan 1 (a-c): there is no site \"c\""));
        let shared = "[[lan]]\nbetween = [\"a\", \"b\"]\naddresses = [\"10.200.0.7\", \"10.200.0.8\"]\n";
        assert!(said(shared).contains("link 1 and lan 1 share a /24"));
    }
}
