//! `isthmus routes`: checks, shows, explains and draws the route map.

mod explain;
mod show;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use isthmus_routes::{Faults, Measured, Metric, RouteMap, Table};
use isthmus_wire::SubnetId;

const NO: u8 = 1;
const USAGE: u8 = 2;
const FAILED: u8 = 3;

/// Check, show and draw the route map: the subnets and routers of a site, and how packets leave it
///
/// Each site (autonomous system, AS) writes one map, in TOML; docs/route-map.md tells how.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RoutesCommand,
}

#[derive(Subcommand)]
enum RoutesCommand {
    Check(CheckArgs),
    Show(show::Args),
    Explain(explain::Args),
    Draw(DrawArgs),
}

/// Say everything that is wrong with a map, and what to change
///
/// Exit status 1 when there is a fault.
#[derive(clap::Args)]
struct CheckArgs {
    /// Read the route map from this TOML file
    map: PathBuf,
}

/// Draw a map's topology as SVG
#[derive(clap::Args)]
struct DrawArgs {
    /// Read the route map from this TOML file
    map: PathBuf,
    /// Write the drawing to this file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A map, and how its routes are weighed.
#[derive(clap::Args)]
struct TableArgs {
    /// Read the route map from this TOML file
    map: PathBuf,
    /// Choose routes by this metric: bandwidth, latency, capability, hops or measured
    #[arg(long, default_value = "bandwidth")]
    metric: Metric,
    /// Read the measured state of links, and the routers that are down, from this TOML file
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
}

/// Why a subcommand stops.
enum Stop {
    Faults(Faults),
    Read(PathBuf, io::Error),
    Write(String, io::Error),
    Usage(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faults(faults) => write!(f, "{faults}"),
            Self::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Write(place, error) => write!(f, "cannot write {place}: {error}"),
            Self::Usage(text) => f.write_str(text),
        }
    }
}

pub(crate) fn main(args: Args) -> ExitCode {
    let result = match args.command {
        RoutesCommand::Check(args) => check(&args),
        RoutesCommand::Show(args) => show::show(&args),
        RoutesCommand::Explain(args) => explain::explain(&args),
        RoutesCommand::Draw(args) => draw(&args),
    };
    result.unwrap_or_else(|stop| {
        match &stop {
            // In the form of compiler messages, so that editors find the line.
            Stop::Faults(faults) => errln!("{faults}"),
            other => errln!("isthmus routes: {other}"),
        }
        ExitCode::from(if matches!(stop, Stop::Write(..)) { FAILED } else { USAGE })
    })
}

fn read(path: &Path) -> Result<String, Stop> {
    std::fs::read_to_string(path).map_err(|error| Stop::Read(path.to_owned(), error))
}

fn read_map(path: &Path) -> Result<RouteMap, Stop> {
    RouteMap::parse(&read(path)?, &path.display().to_string()).map_err(Stop::Faults)
}

impl TableArgs {
    /// The table, and how long reading the map and computing took.
    fn table(&self) -> Result<(Table, [Duration; 2]), Stop> {
        let start = Instant::now();
        let map = read_map(&self.map)?;
        let measured = self.measured.as_deref().map(|path| {
            let name = path.display().to_string();
            Measured::parse(&read(path)?, &name, &map).map_err(Stop::Faults)
        });
        let measured = measured.transpose()?;
        let read = start.elapsed();
        let table = Table::compute(&map, self.metric, measured.as_ref());
        Ok((table, [read, start.elapsed() - read]))
    }
}

fn print(text: &str) -> Result<ExitCode, Stop> {
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode, Stop> {
    let map = match read_map(&args.map) {
        Err(Stop::Faults(faults)) => {
            print(&format!("{faults}\n"))?;
            return Ok(ExitCode::from(NO));
        }
        map => map?,
    };
    let subnets = map.subnets().len();
    let (routers, remotes) = (map.routers().len(), map.remotes().len());
    let mut text = format!(
        "{}: good; AS {}: {subnets} subnets, {routers} routers, {remotes} remote AS's\n",
        args.map.display(),
        map.as_id().0
    );
    text += &unconnected(&map);
    print(&text)
}

/// Notes about subnets that do not reach each other: no single part of the map is at fault there.
fn unconnected(map: &RouteMap) -> String {
    const LISTED: usize = 10;
    let table = Table::compute(map, Metric::Hops, None);
    let mut lines = Vec::new();
    for from in map.subnets().iter().filter(|subnet| !subnet.role.leads_out()) {
        for to in map.subnets().iter().filter(|to| to.id != from.id) {
            // Routes lead in both directions, so each pair gets one line.
            if (to.role.leads_out() || from.id < to.id) && table.route(from.id, to.id).is_err() {
                lines.push(format!("  note: no route joins {} and {}\n", from.name, to.name));
            }
        }
    }
    let more = lines.len().saturating_sub(LISTED);
    lines.truncate(LISTED);
    if more > 0 {
        lines.push(format!("  note: nor {more} other pairs\n"));
    }
    lines.concat()
}

fn draw(args: &DrawArgs) -> Result<ExitCode, Stop> {
    let drawing = isthmus_routes::draw(&read_map(&args.map)?);
    match &args.output {
        None => print(&drawing),
        Some(path) => {
            let written = std::fs::write(path, drawing);
            written.map_err(|error| Stop::Write(path.display().to_string(), error))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A path as `1,2,104`, the notation of the papers; `-` if no routing is needed.
fn path_text(path: &[SubnetId]) -> String {
    let ids: Vec<_> = path.iter().map(|subnet| subnet.0.to_string()).collect();
    if ids.is_empty() { "-".to_owned() } else { ids.join(",") }
}

fn ids(path: &[SubnetId]) -> Vec<u32> {
    path.iter().map(|subnet| subnet.0).collect()
}
