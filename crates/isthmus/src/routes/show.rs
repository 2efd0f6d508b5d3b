//! `isthmus routes show`: prints the routing table.

use std::fmt::Write;
use std::process::ExitCode;

use isthmus_routes::{NextHop, Role, RouteMap, Step, Subnet, Table};
use isthmus_wire::SubnetId;

use super::{Stop, TableArgs, ids, path_text, print};

/// Print the routing table of a map
///
/// An entry is the ordered subnets from the row's to the column's, and what they cost.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// One JSON object, with the next routers as well
    #[arg(long)]
    json: bool,
    /// Tell on standard error how long reading and computing took
    #[arg(long)]
    timing: bool,
    /// Most columns of text in a line
    #[arg(long, value_name = "COLUMNS", env = "COLUMNS", default_value_t = 100)]
    width: usize,
}

pub(super) fn show(args: &Args) -> Result<ExitCode, Stop> {
    let (table, [read, computed]) = args.table.table()?;
    if args.timing {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        errln!("read in {:.1} ms, computed in {:.1} ms", ms(read), ms(computed));
    }
    print(&if args.json { format!("{}\n", json(&table)) } else { text(&table, args.width) })
}

fn text(table: &Table, width: usize) -> String {
    let map = table.map();
    let mut out = format!("{} (AS {})\n\n", map.name(), map.as_id().0);
    out += &columns(&subnets(map));
    let _ = writeln!(out, "\nRoutes, least {} ({}):\n", table.metric(), table.metric().unit());
    out += &square(table, width);
    if !map.remotes().is_empty() {
        out += "\nTo remote AS's:\n\n";
        out += &columns(&ways_out(table));
    }
    out
}

/// A header and a line for each subnet.
fn subnets(map: &RouteMap) -> Vec<Vec<String>> {
    let head = ["id", "subnet", "rate", "latency", "capabilities", "role"];
    let line = |s: &Subnet| {
        let (rate, latency) = (s.rate.to_string(), s.latency.to_string());
        vec![s.id.0.to_string(), s.name.clone(), rate, latency, s.capabilities.to_string(), role(map, s)]
    };
    let head = head.map(str::to_owned).to_vec();
    std::iter::once(head).chain(map.subnets().iter().map(line)).collect()
}

fn role(map: &RouteMap, subnet: &Subnet) -> String {
    let leads_there = |way: &isthmus_routes::WayOut| way.subnet == subnet.id;
    let to = map.remotes().iter().filter(|remote| remote.ways_out.iter().any(leads_there));
    let to: Vec<_> = to.map(|remote| remote.name.as_str()).collect();
    match subnet.role {
        Role::Transit => String::new(),
        Role::Edge => "no transit".to_owned(),
        Role::Wan if to.is_empty() => "WAN".to_owned(),
        Role::Wan => format!("WAN to {}", to.join(", ")),
        Role::Private => format!("private link to {}", to.join(", ")),
    }
}

/// The N x N table, split into blocks of columns that fit the width.
fn square(table: &Table, width: usize) -> String {
    let all: Vec<SubnetId> = table.map().subnets().iter().map(|subnet| subnet.id).collect();
    let column = |to: &SubnetId| -> Vec<String> {
        let head = format!("to {}", to.0);
        std::iter::once(head).chain(all.iter().map(|from| entry(table, *from, *to))).collect()
    };
    let head = std::iter::once("from".to_owned()).chain(all.iter().map(|from| from.0.to_string()));
    let head: Vec<String> = head.collect();
    let mut out = String::new();
    let mut block = vec![head.clone()];
    let wide = |columns: &[Vec<String>]| -> usize {
        columns.iter().map(|column| 2 + column.iter().map(|cell| cell.len()).max().unwrap_or(0)).sum()
    };
    for to in &all {
        let next = column(to);
        if block.len() > 1 && wide(&block) + wide(std::slice::from_ref(&next)) > width {
            out += &columns(&transposed(&block));
            out.push('\n');
            block.truncate(1);
        }
        block.push(next);
    }
    out + &columns(&transposed(&block))
}

/// `3,1,104 =125`; `-` within a subnet; `none` without a route.
fn entry(table: &Table, from: SubnetId, to: SubnetId) -> String {
    match table.route(from, to) {
        Ok(route) if route.path.is_empty() => "-".to_owned(),
        Ok(route) => format!("{} ={}", path_text(&route.path), route.cost),
        Err(_) => "none".to_owned(),
    }
}

/// The route from each of our subnets to each remote AS.
fn ways_out(table: &Table) -> Vec<Vec<String>> {
    let head = ["to", "from", "route", "cost", "hand to"].map(str::to_owned).to_vec();
    let mut lines = vec![head];
    for remote in table.map().remotes() {
        for from in table.map().subnets().iter().filter(|subnet| !subnet.role.leads_out()) {
            let to = format!("{} (AS {})", remote.name, remote.id.0);
            lines.push(match table.next_hop(from.id, (remote.id, SubnetId(0))) {
                Ok(next) => {
                    let path = path_text(&next.route.path);
                    vec![to, from.name.clone(), path, next.route.cost.to_string(), hand_to(&next)]
                }
                Err(_) => vec![to, from.name.clone(), "none".into(), String::new(), String::new()],
            });
        }
    }
    lines
}

fn hand_to(next: &NextHop) -> String {
    match &next.step {
        Step::Direct => String::new(),
        Step::Routers(routers) => {
            routers.iter().map(|router| router.name.as_str()).collect::<Vec<_>>().join(" or ")
        }
        Step::Gateways(gateways) => gateways.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
    }
}

fn transposed(columns: &[Vec<String>]) -> Vec<Vec<String>> {
    let lines = columns.first().map_or(0, Vec::len);
    (0..lines).map(|line| columns.iter().map(|column| column[line].clone()).collect()).collect()
}

/// Aligns lines of cells.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| lines.iter().filter_map(|line| line.get(i)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|i| width(i).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let text = cells.collect::<Vec<_>>().join("  ");
        out += text.trim_end();
        out.push('\n');
    }
    out
}

/// `{"version": 1, "as": 3, "name": ..., "metric": ..., "subnets": [...], "routes": [...]}`. Pairs without a route are
/// left out. Routes to a remote AS have `to_subnet` 0.
fn json(table: &Table) -> serde_json::Value {
    let map = table.map();
    let subnets: Vec<_> = map
        .subnets()
        .iter()
        .map(|s| {
            serde_json::json!({
                "id": s.id.0, "name": s.name, "rate_bps": s.rate.0, "latency_ns": s.latency.0,
                "zero_copy": s.capabilities.zero_copy, "os_bypass": s.capabilities.os_bypass,
                "rma": s.capabilities.rma, "role": format!("{:?}", s.role).to_lowercase(),
            })
        })
        .collect();
    let mut routes = Vec::new();
    for from in map.subnets() {
        let here = map.subnets().iter().map(|to| (map.as_id(), to.id)).filter(|to| to.1 != from.id);
        // A remote AS chooses the subnet within itself: 0 stands for any.
        let there = map.remotes().iter().map(|remote| (remote.id, SubnetId(0)));
        for to in here.chain(there) {
            let Ok(next) = table.next_hop(from.id, to) else { continue };
            let mut route = step_json(&next.step);
            route["from"] = from.id.0.into();
            route["to_as"] = to.0.0.into();
            route["to_subnet"] = to.1.0.into();
            route["path"] = ids(&next.route.path).into();
            route["cost"] = next.route.cost.into();
            routes.push(route);
        }
    }
    serde_json::json!({
        "version": 1, "as": map.as_id().0, "name": map.name(), "metric": table.metric().to_string(),
        "subnets": subnets, "routes": routes,
    })
}

fn step_json(step: &Step) -> serde_json::Value {
    match step {
        Step::Direct => serde_json::json!({}),
        Step::Gateways(gateways) => {
            let gateways: Vec<_> = gateways.iter().map(ToString::to_string).collect();
            serde_json::json!({ "gateways": gateways })
        }
        Step::Routers(routers) => {
            let router = |router: &isthmus_routes::NextRouter| {
                serde_json::json!({
                    "name": router.name, "subnet": router.subnet.0,
                    "endpoint": router.endpoint.map(|endpoint| endpoint.to_string()),
                })
            };
            serde_json::json!({ "routers": routers.iter().map(router).collect::<Vec<_>>() })
        }
    }
}
