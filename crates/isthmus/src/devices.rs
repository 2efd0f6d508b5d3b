//! `isthmus devices`: what the configuration makes of this host.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use isthmus_substrate::{Device, Substrate};

const NO: u8 = 1;
const USAGE: u8 = 2;

/// List the devices: what was found of each, and why it is up or down
///
/// Reads the file that ISTHMUS_CONFIG names, else the user's, else the system's. Exit status
/// 1 when a device is down, 2 when the configuration is wrong.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file [default: as programs find it]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let read = match &args.config {
        None => Substrate::init().map_err(|error| error.to_string()),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))
            .and_then(|text| {
                Substrate::from_toml(&text, &path.display().to_string()).map_err(|error| error.to_string())
            }),
    };
    let substrate = match read {
        Ok(substrate) => substrate,
        Err(text) => {
            eprintln!("isthmus devices: {text}");
            return ExitCode::from(USAGE);
        }
    };
    let text = if args.json { json(substrate.devices()) } else { list(substrate.devices()) };
    // Nobody listens any more.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    match substrate.devices().iter().all(Device::is_up) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO),
    }
}

fn list(devices: &[Device]) -> String {
    let mut out = String::new();
    for device in devices {
        let state = match device.address() {
            Ok(ip) => format!("up: {} at {ip}, chosen by {}", device.interface(), choice(device)),
            Err(why) => format!("down: {why}"),
        };
        out += &format!("{}\n    {state}\n", device.name());
        let rate =
            device.rate_bps().map_or("unknown".to_owned(), |rate| format!("{} Mb/s", rate / 1_000_000));
        out += &format!(
            "    transport {}, priority {}, AS {} subnet {}, rate {rate}\n",
            device.transport(),
            device.priority(),
            device.as_id(),
            device.subnet()
        );
        let routers: Vec<String> = device.routers().iter().map(ToString::to_string).collect();
        let beyond = match routers.is_empty() {
            true => "none: only endpoints of the same AS and subnet are reached".to_owned(),
            false => routers.join(", "),
        };
        out += &format!("    routers {beyond}\n");
        out += &format!("    protocols {}\n", device.settings().all_protocols());
    }
    out
}

fn choice(device: &Device) -> String {
    match device.settings().interface.as_str() {
        "" => "the default route, as no interface is configured".to_owned(),
        named => format!("interface = \"{named}\""),
    }
}

fn json(devices: &[Device]) -> String {
    let entry = |device: &Device| {
        serde_json::json!({
            "name": device.name(),
            "transport": device.transport(),
            "priority": device.priority(),
            "up": device.is_up(),
            "interface": device.interface(),
            "address": device.address().ok().map(|ip| ip.to_string()),
            "why": device.address().err(),
            "rate_bps": device.rate_bps(),
            "as_id": device.as_id(),
            "subnet": device.subnet(),
            "protocols": device.settings().all_protocols().to_string(),
            "routers": device.routers().iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    };
    let all: Vec<_> = devices.iter().map(entry).collect();
    format!("{}\n", serde_json::json!({ "version": 1, "devices": all }))
}
