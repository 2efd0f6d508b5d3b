//! `isthmus devices`: lists the devices that the configuration defines on this host.

use std::path::PathBuf;
use std::process::ExitCode;

use isthmus_io::Why;
use isthmus_substrate::{Device, Substrate};

const NO: u8 = 1;
const USAGE: u8 = 2;

/// List the devices: the interface, address and settings of each, and why it is up or down
///
/// Reads the file that ISTHMUS_CONFIG names, else the user's, else the system's. Exit status
/// 1 when a device is down, 2 when the configuration is wrong, 3 when the list cannot be written.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the configuration from this TOML file [default: the file that programs use]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object
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
            errln!("isthmus devices: {text}");
            return ExitCode::from(USAGE);
        }
    };
    let text = if args.json { json(substrate.devices()) } else { list(substrate.devices()) };
    out!("{text}");
    match substrate.devices().iter().all(|device| why_down(device).is_none()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO),
    }
}

fn list(devices: &[Device]) -> String {
    let mut out = String::new();
    for device in devices {
        let state = match (device.address(), why_down(device)) {
            (Ok(ip), None) => format!("up: {} at {ip}: {}", device.interface(), choice(device)),
            (_, why) => format!("down: {}", why.unwrap_or_default()),
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

/// Why a device is down: it has no address, or its interface no link. `None` if it is up.
fn why_down(device: &Device) -> Option<String> {
    match device.address() {
        Ok(ip) => isthmus_io::interface_trouble(device.interface(), ip),
        Err(why) => Some(why.to_owned()),
    }
}

/// Why the device uses this interface, and which setting decides.
fn choice(device: &Device) -> String {
    let setting = match device.settings().interface.as_str() {
        "" => "the setting `interface` names none".to_owned(),
        named => format!("interface = \"{named}\""),
    };
    match device.settings().own_choice() {
        Ok(chosen) if chosen.why != Why::Named => format!("{}; {setting}", chosen.why),
        _ => setting,
    }
}

fn json(devices: &[Device]) -> String {
    let entry = |device: &Device| {
        serde_json::json!({
            "name": device.name(),
            "transport": device.transport(),
            "priority": device.priority(),
            "up": why_down(device).is_none(),
            "interface": device.interface(),
            "address": device.address().ok().map(|ip| ip.to_string()),
            "why": why_down(device),
            "choice": device.address().is_ok().then(|| choice(device)),
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
