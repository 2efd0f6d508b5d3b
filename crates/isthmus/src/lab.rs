//! `isthmus lab`: emulates several sites and wide-area links on one machine.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Subcommand;
use isthmus_lab::LabError;
use isthmus_lab::check::{self, Finding, Verdict};
use isthmus_lab::config::{LabConfig, LinkConfig, SiteConfig};
use isthmus_lab::privilege::become_able;
use isthmus_lab::state::{LabState, environment};
use isthmus_lab::topology::{HUB, Lab};
use isthmus_units::{Percent, Rate, Size, Span};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

const USAGE: u8 = 2;
const FAILED: u8 = 3;

/// Emulate several sites and the wide-area links between them on one machine
///
/// Sites are network namespaces. The links between them are emulated packet by packet: rate, queue, delay, loss and more.
/// Works as root, and without root if user namespaces are allowed.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    Run(Box<RunArgs>),
    Exec(ExecArgs),
    Rsh(RshArgs),
    List(ListArgs),
    /// Print the catalogue of links that `isthmus bench wan --links wild` measures, as a start for your own
    Links,
    Check(CheckArgs),
}

/// Make a lab, run commands in it, remove it
///
/// CMD runs in the hub, a namespace of its own. With --mgmt the hub is a login node that reaches every site, otherwise it
/// has no network. `lab-rsh SITE CMD...` is on its PATH. Site names resolve by /etc/hosts; NAME-mgmt is a site's address
/// on the mgmt network.
///
/// Environment: ISTHMUS_LAB (id), ISTHMUS_LAB_RSH (path of lab-rsh), ISTHMUS_LAB_SITE (where it runs), ISTHMUS_LAB_SITES
/// (all names), and for each site, here A: ISTHMUS_LAB_SITE_A_NAME, _NETNS (path of the network namespace), _ADDRESS
/// (first), _ADDRESSES, _MGMT.
///
/// Exit status: that of the command (with --in alone: the first that is not 0); 2 bad usage or configuration; 3 the lab
/// itself fails, or time runs out.
#[derive(clap::Args)]
struct RunArgs {
    /// TOML file with the sites and links; then no other link option may be given
    #[arg(long, value_name = "FILE", conflicts_with_all = LINK_OPTIONS)]
    config: Option<PathBuf>,
    /// Names of the sites; the first is linked to each of the others
    #[arg(long, value_delimiter = ',', default_value = "a,b")]
    sites: Vec<String>,
    /// Rate of the link, each way [default: 1Gbit]
    #[arg(long)]
    rate: Option<Rate>,
    /// Round-trip time [default: 24ms]
    #[arg(long)]
    rtt: Option<Span>,
    /// Loss per wire packet, each way, such as 0.1% [default: 0]
    #[arg(long)]
    loss: Option<Percent>,
    /// Maximum transmission unit, bytes [default: 9000]
    #[arg(long)]
    mtu: Option<Size>,
    /// Drop-tail queue, each way [default: rate x rtt]
    #[arg(long)]
    queue: Option<Size>,
    /// Most that is added to the delay, each way [default: 0]
    #[arg(long)]
    jitter: Option<Span>,
    /// Share of packets that later ones overtake [default: 0]
    #[arg(long)]
    reorder: Option<Percent>,
    /// Share of packets that arrive twice [default: 0]
    #[arg(long)]
    duplicate: Option<Percent>,
    /// Seed of all random decisions [default: 1]
    #[arg(long)]
    seed: Option<u64>,
    /// TCP congestion control in all sites, such as cubic or bbr [default: the host's]
    #[arg(long)]
    cc: Option<String>,
    /// Join all sites and the hub, where the command runs, by a perfect network as well
    #[arg(long)]
    mgmt: bool,
    /// Write what the links did and how late the emulator was to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Do not print the report
    #[arg(long, short)]
    quiet: bool,
    /// End everything after this many seconds, with exit status 3
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Run a shell command in a site; may be repeated, all start at once
    #[arg(long = "in", num_args = 2, value_names = ["SITE", "COMMAND"], action = clap::ArgAction::Append)]
    inside: Vec<String>,
    /// Command to run in the lab's hub; when it ends, so does the lab
    #[arg(last = true, value_name = "CMD", required_unless_present = "inside")]
    command: Vec<OsString>,
}

const LINK_OPTIONS: [&str; 11] =
    ["sites", "rate", "rtt", "loss", "mtu", "queue", "jitter", "reorder", "duplicate", "seed", "cc"];

/// Run a command in a site of a running lab
#[derive(clap::Args)]
struct ExecArgs {
    /// Id of the lab [default: that of the environment, or the only one]
    #[arg(long)]
    lab: Option<String>,
    /// The site
    site: String,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Stand in for rsh or ssh: `isthmus lab rsh [OPTIONS] HOST CMD...`
///
/// HOST names the site, ISTHMUS_LAB the lab. The words of the command are joined and given to `sh -c`. Options of rsh and
/// ssh are accepted, and ignored except for -n. Inside a lab the script `lab-rsh` on the PATH does the same.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct RshArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "HOST CMD")]
    words: Vec<OsString>,
}

/// List the running labs and their sites
#[derive(clap::Args)]
struct ListArgs {
    /// One JSON object per lab
    #[arg(long)]
    json: bool,
}

/// Say what this machine allows a lab to do, and what to change
///
/// Exit status 1 when no lab is possible.
#[derive(clap::Args)]
struct CheckArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> ExitCode {
    let result = match args.command {
        LabCommand::Run(args) => run(&args),
        LabCommand::Exec(args) => exec(&args),
        LabCommand::Rsh(args) => rsh(&args.words),
        LabCommand::List(args) => list(&args),
        LabCommand::Links => {
            out!("{}", isthmus_lab::catalogue::WILD);
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Check(args) => check(&args),
    };
    result.unwrap_or_else(|error| {
        errln!("isthmus lab: {error}");
        ExitCode::from(if matches!(error, LabError::Config(_)) { USAGE } else { FAILED })
    })
}

fn failed(action: &str, source: io::Error) -> LabError {
    LabError::System { action: action.to_owned(), source }
}

impl RunArgs {
    fn lab_config(&self) -> Result<LabConfig, LabError> {
        let mut config = match &self.config {
            Some(path) => LabConfig::read(path)?,
            None => self.config_from_flags(),
        };
        config.mgmt |= self.mgmt;
        Ok(config)
    }

    fn config_from_flags(&self) -> LabConfig {
        let site = |name: &String| SiteConfig { name: name.clone(), cc: self.cc.clone(), forward: false };
        let others = self.sites.iter().skip(1);
        LabConfig {
            mgmt: self.mgmt,
            sites: self.sites.iter().map(site).collect(),
            links: others.map(|other| self.link(&self.sites[0], other)).collect(),
            lans: Vec::new(),
        }
    }

    fn link(&self, first: &str, second: &str) -> LinkConfig {
        LinkConfig {
            between: [first.to_owned(), second.to_owned()],
            rate: self.rate,
            rtt: Some(self.rtt.unwrap_or(Span::from_ms(24))),
            loss: self.loss,
            mtu: self.mtu,
            queue: self.queue,
            jitter: self.jitter,
            reorder: self.reorder,
            duplicate: self.duplicate,
            seed: self.seed,
            ..Default::default()
        }
    }
}

fn run(args: &RunArgs) -> Result<ExitCode, LabError> {
    let config = args.lab_config()?;
    config.specs()?;
    check_sites_named(args, &config)?;
    become_able()?;
    let signals = Signals::watch().map_err(|e| failed("watch for signals", e))?;
    let lab = Lab::start(&config)?;
    let outcome = start_all(args, &lab).and_then(|children| watch(args, &lab, children, signals));
    let report = lab.stop();
    if !args.quiet {
        err!("{report}");
    }
    if let Some(path) = &args.report {
        write_report(path, &report).map_err(|e| failed(&format!("write {}", path.display()), e))?;
    }
    outcome
}

/// Checks the sites of `--in` before the lab is made: a wrong name is bad usage.
fn check_sites_named(args: &RunArgs, config: &LabConfig) -> Result<(), LabError> {
    for name in args.inside.iter().step_by(2) {
        if name != HUB && !config.sites.iter().any(|site| site.name == *name) {
            let names: Vec<_> = config.sites.iter().map(|site| site.name.as_str()).collect();
            let message = format!("--in {name}: there is no such site; the sites are {}", names.join(", "));
            return Err(isthmus_lab::config::ConfigError::Meaning(message).into());
        }
    }
    Ok(())
}

fn write_report(path: &PathBuf, report: &isthmus_lab::report::LabReport) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    std::fs::write(path, text)
}

/// A started command of the lab.
struct Running {
    child: Child,
    pidfd: OwnedFd,
    /// It is the command after `--`. The lab ends when it ends.
    is_main: bool,
    status: Option<ExitStatus>,
}

fn start_all(args: &RunArgs, lab: &Lab) -> Result<Vec<Running>, LabError> {
    let mut running = Vec::new();
    for pair in args.inside.chunks(2) {
        let mut command = lab.command(&pair[0], "sh")?;
        command.arg("-c").arg(&pair[1]).stdin(Stdio::null());
        running.push(start(command, &pair[1], false)?);
    }
    if let Some((program, rest)) = args.command.split_first() {
        let mut command = lab.command(HUB, program)?;
        command.args(rest);
        running.push(start(command, &program.to_string_lossy(), true)?);
    }
    Ok(running)
}

fn start(mut command: Command, what: &str, is_main: bool) -> Result<Running, LabError> {
    let child = command.spawn().map_err(|e| failed(&format!("start {what:?}"), e))?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let pidfd = pidfd.map_err(|e| failed("watch a process", e.into()))?;
    Ok(Running { child, pidfd, is_main, status: None })
}

/// Waits until the commands end, a signal comes, or the time is over.
fn watch(
    args: &RunArgs,
    lab: &Lab,
    mut running: Vec<Running>,
    mut signals: Signals,
) -> Result<ExitCode, LabError> {
    let deadline = args.timeout.map(|s| Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9)));
    let code = loop {
        if let Some(signal) = signals.pending() {
            break 128 + signal as u8;
        }
        if deadline.is_some_and(|d| Instant::now() >= d) {
            errln!("isthmus lab: time is up after {} s", args.timeout.unwrap_or_default());
            break FAILED;
        }
        reap(&mut running)?;
        if let Some(code) = verdict(&running) {
            break code;
        }
        sleep_until_news(&running, &signals, deadline);
    };
    lab.end_processes();
    for one in &mut running {
        // It has been killed or has ended, so `wait` only collects it.
        let _ = one.child.wait();
    }
    Ok(ExitCode::from(code))
}

fn reap(running: &mut [Running]) -> Result<(), LabError> {
    for one in running.iter_mut().filter(|one| one.status.is_none()) {
        one.status = one.child.try_wait().map_err(|e| failed("wait for a process", e))?;
    }
    Ok(())
}

/// The lab's exit status; `None` until it is decided.
fn verdict(running: &[Running]) -> Option<u8> {
    if let Some(main) = running.iter().find(|one| one.is_main) {
        return main.status.map(code_of);
    }
    let codes: Option<Vec<u8>> = running.iter().map(|one| one.status.map(code_of)).collect();
    codes.map(|codes| codes.into_iter().find(|code| *code != 0).unwrap_or(0))
}

fn code_of(status: ExitStatus) -> u8 {
    status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(i32::from(FAILED)) as u8
}

fn sleep_until_news(running: &[Running], signals: &Signals, deadline: Option<Instant>) {
    let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
    let left = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
    let unfinished = running.iter().filter(|one| one.status.is_none());
    let mut fds: Vec<_> = unfinished.map(|one| PollFd::new(&one.pidfd, PollFlags::IN)).collect();
    fds.push(PollFd::new(&signals.0, PollFlags::IN));
    // Ignore errors: an interrupted `poll` only makes the next check early.
    let _ = poll(&mut fds, left.as_ref());
}

/// Signals that end the lab. Each is one byte to read.
struct Signals(UnixStream);

impl Signals {
    fn watch() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        let mut watched = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        std::thread::Builder::new().name("lab-signals".into()).spawn(move || {
            for signal in &mut watched {
                // Ignore errors: the reader is gone only if the lab is ending.
                let _ = (&writer).write_all(&[signal as u8]);
            }
        })?;
        Ok(Self(reader))
    }

    fn pending(&mut self) -> Option<i32> {
        let mut byte = [0];
        let read = self.0.read(&mut byte).ok()?;
        (read == 1).then_some(i32::from(byte[0]))
    }
}

fn exec(args: &ExecArgs) -> Result<ExitCode, LabError> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    replace_by(command, args.lab.as_deref(), &args.site)
}

/// Becomes `command` inside the site. Returns only on failure.
fn replace_by(mut command: Command, lab: Option<&str>, host: &str) -> Result<ExitCode, LabError> {
    let lab = LabState::find(lab)?;
    let site = lab.site(host)?;
    lab.enter(site)?;
    command.envs(environment(&lab, &site.name));
    Err(failed(&format!("start {:?}", command.get_program()), command.exec()))
}

/// Options of rsh and ssh that take a value.
const RSH_OPTIONS_WITH_VALUE: &str = "BbcDEeFIiJklLmOopQRSWw";

fn rsh(words: &[OsString]) -> Result<ExitCode, LabError> {
    let (no_input, rest) = skip_rsh_options(words);
    let Some((host, command_words)) = rest.split_first().filter(|(_, words)| !words.is_empty()) else {
        errln!("isthmus lab rsh: expected a site and a command");
        return Ok(ExitCode::from(USAGE));
    };
    let mut command = Command::new("sh");
    command.arg("-c").arg(command_words.join(&OsString::from(" ")));
    if no_input {
        command.stdin(Stdio::null());
    }
    let host = host.to_string_lossy();
    let host = host.rsplit_once('@').map_or(&*host, |(_, host)| host);
    replace_by(command, None, host)
}

/// Skips the options. Returns whether `-n` closes the input, and the remaining words.
fn skip_rsh_options(words: &[OsString]) -> (bool, &[OsString]) {
    let (mut no_input, mut i) = (false, 0);
    while let Some(option) = words.get(i).and_then(|w| w.to_str()?.strip_prefix('-')) {
        i += 1;
        no_input |= option == "n";
        let takes_value = option.len() == 1 && RSH_OPTIONS_WITH_VALUE.contains(option);
        i += usize::from(takes_value);
        if option == "-" {
            break;
        }
    }
    (no_input, words.get(i..).unwrap_or_default())
}

fn list(args: &ListArgs) -> Result<ExitCode, LabError> {
    for lab in LabState::running() {
        if args.json {
            outln!("{}", serde_json::to_string(&lab).unwrap_or_default());
            continue;
        }
        let describe = |site: &isthmus_lab::state::SiteState| {
            let addresses: Vec<_> = site.addresses.iter().map(ToString::to_string).collect();
            format!("{} ({})", site.name, addresses.join(", "))
        };
        let sites: Vec<_> = lab.sites.iter().skip(1).map(describe).collect();
        outln!("{}: {}", lab.id, sites.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode, LabError> {
    let findings = check::check();
    if args.json {
        outln!("{}", serde_json::json!({ "version": 1, "findings": findings }));
    } else {
        for Finding { name, verdict, text } in &findings {
            let mark = match verdict {
                Verdict::Good => "good",
                Verdict::Lesser => "lesser",
                Verdict::Missing => "MISSING",
            };
            outln!("{mark:8}{name:20}{text}");
        }
    }
    let possible = !findings.iter().any(|f| f.verdict == Verdict::Missing);
    Ok(ExitCode::from(u8::from(!possible)))
}
