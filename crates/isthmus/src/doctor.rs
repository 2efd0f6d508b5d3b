//! `isthmus doctor`: tests whether this host is fit and the peer reachable, and says what to change.

mod by_ssh;
mod way;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Admission, Encrypt, Endpoint, Settings, TlsMode, Why};
use isthmus_proto::{Channel, Completion, Level, Options, PeerId, RecvRequest, SendRequest};
use isthmus_units::{Rate, Span};
use isthmus_wire::Address;

use crate::install::{self, LIBRARY};
use crate::ssh;

/// Say what is wrong with this host or with the way to a peer, and what to change
///
/// Exit status: 0 all is well, perhaps with advice; 1 something is wrong; 3 the findings
/// cannot be written.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Try to reach this peer: HOST:PORT or isthmus://AS.SUBNET/IP:PORT. With USER@HOST or ssh://[USER@]HOST[:PORT],
    /// ssh starts isthmus there, and both hosts test which packets pass directly between them
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<String>,
    /// Print an address, and answer `doctor --peer` of other hosts there
    #[arg(long, conflicts_with = "peer")]
    listen: bool,
    #[command(flatten)]
    words: ssh::Words,
    /// Check whether this host can fill a path of this rate
    #[arg(long, default_value = "1Gbit")]
    rate: Rate,
    /// Check for a path of this round-trip time
    #[arg(long, default_value = "100ms")]
    rtt: Span,
    /// Try, or listen, for this time
    #[arg(long, default_value = "20s")]
    timeout: Span,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Advice,
    Bad,
}

/// A result, and a remedy if there is something to change.
#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    subject: &'static str,
    text: String,
    remedy: String,
}

fn finding(
    verdict: Verdict,
    subject: &'static str,
    text: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { verdict, subject, text: text.into(), remedy: remedy.into() }
}

fn good(subject: &'static str, text: impl Into<String>) -> Finding {
    finding(Verdict::Good, subject, text, "")
}

pub(crate) fn main(args: Args) -> ExitCode {
    let mut findings = vec![provider(), selection()];
    findings.extend(windows(args.rate.0, args.rtt.to_duration()));
    findings.push(congestion_control());
    findings.push(open_files());
    findings.push(shared_memory());
    match Settings::load() {
        Err(error) => {
            findings.push(finding(Verdict::Bad, "settings", error.to_string(), "correct the value named"))
        }
        Ok(settings) => {
            findings.extend(network(&settings, &args));
            if let Some(login) = args.peer.as_deref().and_then(by_ssh::login) {
                findings.extend(by_ssh::peer(login, &args.words, &settings));
            }
        }
    }
    report(&findings, args.json);
    if findings.iter().any(|f| f.verdict == Verdict::Bad) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn report(findings: &[Finding], json: bool) {
    if json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| {
                serde_json::json!({
                    "verdict": format!("{:?}", f.verdict).to_lowercase(),
                    "subject": f.subject, "text": f.text, "remedy": f.remedy,
                })
            })
            .collect();
        return outln!("{}", serde_json::json!({ "version": 1, "findings": list }));
    }
    for f in findings {
        let mark = match f.verdict {
            Verdict::Good => "ok    ",
            Verdict::Advice => "advice",
            Verdict::Bad => "WRONG ",
        };
        outln!("{mark} {:<12} {}", f.subject, f.text);
        if !f.remedy.is_empty() {
            outln!("       {:<12} -> {}", "", f.remedy);
        }
    }
}

/// Checks whether the provider is where libfabric will look for it.
fn provider() -> Finding {
    let path = env::var("FI_PROVIDER_PATH").unwrap_or_default();
    let holder = path.split([':', ',']).map(|part| part.trim_start_matches('+')).find(|part| {
        let part = Path::new(part);
        install::holds_provider(part) || (part.is_file() && part.ends_with(LIBRARY))
    });
    match (holder, install::provider_folder()) {
        (Some(folder), _) => good("provider", format!("FI_PROVIDER_PATH leads to {LIBRARY} in {folder}")),
        (None, Some(folder)) => finding(
            Verdict::Advice,
            "provider",
            not_led(&path),
            format!("`isthmus env --help` tells how; or export FI_PROVIDER_PATH={}", folder.display()),
        ),
        (None, None) => finding(
            Verdict::Bad,
            "provider",
            format!("{}, and there is none beside this program", not_led(&path)),
            "install it, or set FI_PROVIDER_PATH to its folder",
        ),
    }
}

/// Why MPIs do not find the provider.
fn not_led(path: &str) -> String {
    if path.is_empty() {
        format!("FI_PROVIDER_PATH is not set, so MPIs started here do not find {LIBRARY}")
    } else {
        format!("FI_PROVIDER_PATH ({path:?}) does not lead to {LIBRARY}")
    }
}

/// Checks whether FI_PROVIDER lets libfabric use the provider.
fn selection() -> Finding {
    let Ok(chosen) = env::var("FI_PROVIDER") else {
        return good("selection", "FI_PROVIDER is not set: libfabric offers every provider it finds");
    };
    let (excluded, list) = match chosen.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, chosen.as_str()),
    };
    let named = list.split([',', ';']).any(|name| name.trim() == "isthmus");
    if named != excluded {
        good("selection", format!("FI_PROVIDER={chosen}"))
    } else {
        finding(
            Verdict::Bad,
            "selection",
            format!("FI_PROVIDER={chosen} keeps libfabric from using isthmus"),
            "export FI_PROVIDER=isthmus, or use `isthmus env`",
        )
    }
}

/// Checks whether TCP's buffers can hold the path's bandwidth-delay product.
fn windows(bits_per_second: u64, rtt: Duration) -> Vec<Finding> {
    let bdp = (bits_per_second as f64 / 8.0 * rtt.as_secs_f64()) as u64;
    // Half of a receive buffer is window. A send buffer keeps unacknowledged data.
    [("net.ipv4.tcp_rmem", 2 * bdp), ("net.ipv4.tcp_wmem", 2 * bdp)]
        .into_iter()
        .map(|(name, wanted)| {
            let path = PathBuf::from("/proc/sys").join(name.replace('.', "/"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            match fields[..] {
                [_, _, most] if most >= wanted => good("windows", format!("{name} allows {most} bytes")),
                [least, usual, most] => finding(
                    Verdict::Advice,
                    "windows",
                    format!("{name} allows {most} bytes; one stream on this path would use {wanted}"),
                    format!(
                        "sysctl -w {name}=\"{least} {usual} {wanted}\" (several streams do with less each)"
                    ),
                ),
                _ => finding(Verdict::Advice, "windows", format!("cannot read {name}"), ""),
            }
        })
        .collect()
}

fn congestion_control() -> Finding {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    if text.split_whitespace().any(|name| name == "bbr") {
        good("congestion", format!("the kernel offers {}", text.trim()))
    } else {
        finding(
            Verdict::Advice,
            "congestion",
            format!("the kernel offers only {}; loss will slow TCP lanes", text.trim()),
            "modprobe tcp_bbr",
        )
    }
}

fn open_files() -> Finding {
    const WANTED: u64 = 4096;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(current) if current < WANTED => finding(
            Verdict::Advice,
            "open files",
            format!("this shell allows {current} open files; a lane needs one"),
            format!("ulimit -n {WANTED}"),
        ),
        _ => good("open files", "enough descriptors for thousands of lanes"),
    }
}

/// Checks whether lanes within this host can use shared memory, and read the sender's memory directly.
fn shared_memory() -> Finding {
    const SUBJECT: &str = "memory";
    /// From 1 on, Yama lets a process read only the memory of its descendants.
    const YAMA: &str = "kernel.yama.ptrace_scope";
    let scope = fs::read_to_string(PathBuf::from("/proc/sys").join(YAMA.replace('.', "/")));
    let scope = scope.ok().and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0);
    match isthmus_io::try_shared_memory() {
        Ok(true) if scope == 0 => good(SUBJECT, "within this host messages go through memory"),
        Ok(true) => finding(
            Verdict::Advice,
            SUBJECT,
            format!("{YAMA} is {scope}: long messages within this host wait for a sender that computes"),
            format!("sysctl -w {YAMA}=0 lets a user's programs read each other's memory"),
        ),
        Ok(false) => finding(
            Verdict::Advice,
            SUBJECT,
            "process_vm_readv is refused here: long messages within this host wait for a sender that computes",
            "in a container: allow process_vm_readv in its seccomp profile",
        ),
        Err(error) => finding(
            Verdict::Advice,
            SUBJECT,
            format!("messages within this host go by TCP: {error}"),
            "lanes need memfd_create, and /proc to find each other's memory",
        ),
    }
}

/// Opens an endpoint, and exchanges messages with itself and with the named peer.
fn network(settings: &Settings, args: &Args) -> Vec<Finding> {
    // Doctors know each other's host and port only, so admission is open. Their messages are empty, so this is safe.
    let admission = match &args.peer {
        Some(peer) if has_key(peer) => settings.admission,
        None if !args.listen => settings.admission,
        _ => Admission::Open,
    };
    // The peer is given up shortly before the doctor ends, so that the reason of the last attempt can be shown.
    let peer_timeout = settings.peer_timeout.min(Span(args.timeout.0 / 10 * 9));
    // By the user's `admission`, which the doctor's own endpoint may not have.
    let encryption = encryption(settings);
    let settings = &Settings { admission, peer_timeout, ..settings.clone() };
    let endpoint = match Endpoint::open(settings, None, Arc::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            return vec![finding(
                Verdict::Bad,
                "endpoint",
                error.to_string(),
                "see the settings `interface` and `port`, and the limits of this host",
            )];
        }
    };
    let own = endpoint.address();
    let chosen = settings.own_choice().ok();
    let why = chosen.as_ref().map_or(String::new(), |chosen| {
        format!(", on {}: {}; the setting `interface` decides", chosen.interface, chosen.why)
    });
    let mut findings = vec![good("endpoint", format!("listens at {own}{why}"))];
    if own.locator.ip().is_loopback() {
        findings.push(finding(
            Verdict::Advice,
            "endpoint",
            "only this host can reach a loopback address",
            "bring up a network interface, or set FI_ISTHMUS_INTERFACE",
        ));
    } else if let Some(why @ (Why::Carrier | Why::RouteDown)) = chosen.map(|chosen| chosen.why) {
        let reason = match why {
            Why::RouteDown => "the interface of the route to other networks has no carrier",
            _ => "no route leads to other networks",
        };
        findings.push(finding(
            Verdict::Advice,
            "endpoint",
            format!("{reason}, so which interface is meant is a guess"),
            "if it is another, set FI_ISTHMUS_INTERFACE, or `interface` in isthmus.toml",
        ));
    }
    let ip = own.locator.ip();
    let trouble = isthmus_io::interface_of(ip).and_then(|name| isthmus_io::interface_trouble(&name, ip));
    findings.extend(trouble.map(|text| {
        finding(Verdict::Bad, "endpoint", text, "or choose another: FI_ISTHMUS_INTERFACE, or `interface`")
    }));
    findings.push(encryption);
    findings.push(match exchange(&endpoint, &own, Duration::from_secs(5)) {
        Ok(rtt) => {
            good("loopback", format!("a message to itself and back in {:.1} us", rtt.as_secs_f64() * 1e6))
        }
        Err(text) => {
            finding(Verdict::Bad, "loopback", text, "does a firewall block this host's own address?")
        }
    });
    if args.listen {
        listen(&endpoint, args.timeout.to_duration());
    }
    if let Some(text) = args.peer.as_deref().filter(|text| by_ssh::login(text).is_none()) {
        findings.extend(way::peer(&endpoint, settings, text, args.timeout.to_duration()));
    }
    endpoint.close();
    findings
}

/// Whether the text is a complete address with a key, by which closed endpoints admit.
fn has_key(text: &str) -> bool {
    text.rsplit_once('#').is_some_and(|(_, end)| end.contains('.'))
}

/// Checks whether data that leaves this host is encrypted.
fn encryption(settings: &Settings) -> Finding {
    const SUBJECT: &str = "encryption";
    if settings.tls == TlsMode::Required {
        return good(SUBJECT, "lanes to other endpoints are encrypted");
    }
    match (settings.admission, settings.encrypt) {
        (Admission::Closed, Encrypt::Always) => good(SUBJECT, "lanes to other hosts are encrypted"),
        (Admission::Closed, Encrypt::Far) => good(
            SUBJECT,
            "lanes that leave the subnet, are 1 ms or more away, or use UDP are encrypted; those by TCP within the \
             subnet are not (encrypt = \"always\")",
        ),
        (admission, _) => {
            let setting =
                if admission == Admission::Open { "admission = \"open\"" } else { "encrypt = \"never\"" };
            finding(
                Verdict::Advice,
                SUBJECT,
                format!("lanes to other hosts are not all encrypted, because of {setting}"),
                "where others can reach the network between: remove this setting, or set tls to required at both \
                 ends, with certificates of `isthmus router keygen`",
            )
        }
    }
}

/// Keeps the endpoint answering. Delivery of a message needs no action of the program. Returns at once if the address
/// could not be written: nobody would know where to ask.
fn listen(endpoint: &Endpoint, limit: Duration) {
    outln!("listening at {}", endpoint.address());
    let start = Instant::now();
    let mut done = Vec::new();
    while !crate::output::has_failed() && start.elapsed() < limit {
        endpoint.wait(Some(Duration::from_millis(100)));
        endpoint.poll(&mut done);
        done.clear();
    }
}

/// Tag of the doctor's messages: "doctor" in ASCII.
const TAG: u64 = 0x646f_6374_6f72;

/// Time until a message is delivered to `address`, on a connection that exists already.
fn exchange(endpoint: &Endpoint, address: &Address, limit: Duration) -> Result<Duration, String> {
    let peer = endpoint.peer(address).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + limit;
    deliver(endpoint, peer, deadline)?;
    let start = Instant::now();
    deliver(endpoint, peer, deadline)?;
    Ok(start.elapsed())
}

/// Sends an empty message and waits until the peer has it.
fn deliver(endpoint: &Endpoint, peer: PeerId, deadline: Instant) -> Result<(), String> {
    let options = Options { notify: true, level: Level::Delivery, ..Options::default() };
    let receive =
        RecvRequest { source: None, channel: Channel::Tagged, tag: TAG, ignore: 0, multi: None, options };
    // SAFETY: the messages are empty, so no buffer is lent.
    unsafe { endpoint.recv(&receive, &[]) }.map_err(|error| error.to_string())?;
    let send = SendRequest { peer, channel: Channel::Tagged, tag: TAG, data: None, options };
    // SAFETY: as above.
    unsafe { endpoint.send(&send, &[]) }.map_err(|error| error.to_string())?;
    let mut done: Vec<Completion> = Vec::new();
    while Instant::now() < deadline {
        endpoint.wait(Some(Duration::from_millis(10)));
        endpoint.poll(&mut done);
        let sent = |c: &&Completion| matches!(c.kind, isthmus_proto::CompletionKind::Send(_));
        if let Some(completion) = done.iter().find(sent) {
            return completion.error.as_ref().map_or(Ok(()), |error| Err(error.to_string()));
        }
    }
    let address = endpoint.peer_address(peer);
    Err(format!("{address} did not answer in time"))
}
