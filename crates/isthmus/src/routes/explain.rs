//! `isthmus routes explain`: tells why a route was chosen.

use std::fmt::Write;
use std::process::ExitCode;

use isthmus_routes::{Candidate, Destination, Explanation, Reason, RouteMap, Table};
use isthmus_wire::{Address, AsId, SubnetId};

use super::{NO, Stop, TableArgs, ids, path_text, print};

/// Tell why a route won: every candidate with its score, and what was dropped and why
///
/// A and B are a subnet's name or id, AS.SUBNET, or an address isthmus://AS.SUBNET/IP:PORT;
/// B may also be the name of a remote AS. Exit status 1 when there is no route.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// Where data comes from: a subnet of this AS
    #[arg(value_name = "A")]
    from: String,
    /// Where it goes
    #[arg(value_name = "B")]
    to: String,
    /// Most candidates, and most dropped routes, to tell of
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn explain(args: &Args) -> Result<ExitCode, Stop> {
    let (table, _) = args.table.table()?;
    let from = place(table.map(), &args.from)?;
    if from.0 != table.map().as_id() {
        let what = format!("{} is not in AS {}; ask the map of its AS", args.from, table.map().as_id().0);
        return Err(Stop::Usage(what));
    }
    let to = place(table.map(), &args.to)?;
    let explained = table.explain(from.1, to, args.limit.max(1));
    let explanation = explained.map_err(|error| Stop::Usage(error.to_string()))?;
    let asked = Asked { table: &table, from: from.1, to, args };
    print(&if args.json { format!("{}\n", asked.json(&explanation)) } else { asked.text(&explanation) })?;
    let found = from == to || !explanation.candidates.is_empty();
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::from(NO) })
}

/// The destination that an argument names: a subnet, a remote AS or an address.
fn place(map: &RouteMap, word: &str) -> Result<Destination, Stop> {
    if let Some(subnet) = map.subnet_named(word) {
        return Ok((map.as_id(), subnet.id));
    }
    if let Some(remote) = map.remotes().iter().find(|remote| remote.name == word) {
        return Ok((remote.id, SubnetId(0)));
    }
    let (as_id, subnet) = numbers(map.as_id(), word).ok_or_else(|| {
        Stop::Usage(format!(
            "there is no {word:?} in the map; use a subnet's name or id, a remote AS's name, AS.SUBNET, \
             or isthmus://AS.SUBNET/IP:PORT"
        ))
    })?;
    if as_id == map.as_id() && map.subnet(subnet).is_none() {
        return Err(Stop::Usage(format!(
            "AS {} has no subnet {}; `isthmus routes show` lists them",
            as_id.0, subnet.0
        )));
    }
    if as_id != map.as_id() && map.remote(as_id).is_none() {
        return Err(Stop::Usage(format!(
            "the map tells no way to AS {0}; add [[remote]] with id = {0}",
            as_id.0
        )));
    }
    Ok((as_id, subnet))
}

fn numbers(own: AsId, word: &str) -> Option<Destination> {
    if let Ok(address) = word.parse::<Address>() {
        return Some((address.as_id, address.subnet));
    }
    match word.split_once('.') {
        Some((as_id, subnet)) => Some((AsId(as_id.parse().ok()?), SubnetId(subnet.parse().ok()?))),
        None => Some((own, SubnetId(word.parse().ok()?))),
    }
}

/// The question, and the table that answers it.
struct Asked<'a> {
    table: &'a Table,
    from: SubnetId,
    to: Destination,
    args: &'a Args,
}

impl Asked<'_> {
    fn text(&self, explanation: &Explanation) -> String {
        let metric = self.table.metric();
        let mut out =
            format!("From {} to {}, least {metric} ({}):\n\n", self.args.from, self.args.to, metric.unit());
        if (self.table.map().as_id(), self.from) == self.to {
            return out + "  one subnet: no routing is needed\n";
        }
        match &explanation.candidates[..] {
            [] => {
                // The table knows which rule excludes every candidate.
                let why = self.table.next_hop(self.from, self.to).err();
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let _ = writeln!(out, "  no route{why}");
            }
            [only] => out += &self.candidate("chosen", "the only one", only),
            [best, others @ ..] => {
                out += &self.candidate("chosen", &self.why_best(best, &others[0]), best);
                for other in others {
                    out +=
                        &self.candidate("", &format!("{} more", other.route.cost - best.route.cost), other);
                }
            }
        }
        if !explanation.dropped.is_empty() {
            out += "\nDropped:\n\n";
            for dropped in &explanation.dropped {
                let path = path_text(&dropped.route.path);
                let _ = writeln!(out, "  {path}  ={}", dropped.route.cost);
                let _ = writeln!(out, "          {}", self.reason(&dropped.reason));
            }
        }
        if !explanation.complete {
            out += "\nThere are more, none cheaper; --limit shows more of them.\n";
        }
        out
    }

    /// `  chosen  3,1,104  compute 15 + campus 100 + link-to-as4 10 = 125   the least`
    fn candidate(&self, mark: &str, note: &str, candidate: &Candidate) -> String {
        let subnets = candidate.route.path.iter().zip(&candidate.costs);
        let sum: Vec<_> = subnets.map(|(subnet, cost)| format!("{} {cost}", self.name(*subnet))).collect();
        let path = path_text(&candidate.route.path);
        format!("  {mark:6}  {path}  ={}  {note}\n          {}\n", candidate.route.cost, sum.join(" + "))
    }

    fn why_best(&self, best: &Candidate, second: &Candidate) -> String {
        if best.route.cost < second.route.cost {
            format!("{} less than the next", second.route.cost - best.route.cost)
        } else if best.route.path.len() < second.route.path.len() {
            "as much as the next, with fewer hops".to_owned()
        } else {
            "as much as the next; the lower subnet id decides".to_owned()
        }
    }

    fn name(&self, subnet: SubnetId) -> &str {
        self.table.map().subnet(subnet).map_or("?", |subnet| &subnet.name)
    }

    fn reason(&self, reason: &Reason) -> String {
        match reason {
            Reason::Contains(shorter) => format!("contains the shorter route {}", path_text(shorter)),
            Reason::NoTransit(subnet) => format!("{} allows no transit", self.name(*subnet)),
            Reason::LeavesAs(subnet) => {
                format!("leaves the AS over {}; routes within an AS stay inside", self.name(*subnet))
            }
            Reason::Through => "joins two ways out; an AS forwards nothing between other AS's".to_owned(),
            Reason::LeadsElsewhere(subnet) => format!("{} does not lead there", self.name(*subnet)),
            Reason::Private(subnet, other) => {
                format!("{} is private: it serves AS {} only", self.name(*subnet), other.0)
            }
        }
    }

    /// `{"version": 1, ..., "candidates": [...], "dropped": [...], "complete": true}`
    fn json(&self, explanation: &Explanation) -> serde_json::Value {
        let candidate = |c: &Candidate| serde_json::json!({ "path": ids(&c.route.path), "cost": c.route.cost, "costs": c.costs });
        let candidates: Vec<_> = explanation.candidates.iter().map(candidate).collect();
        let dropped = |d: &isthmus_routes::Dropped| {
            let (path, reason) = (ids(&d.route.path), self.reason(&d.reason));
            serde_json::json!({ "path": path, "cost": d.route.cost, "reason": reason })
        };
        let dropped: Vec<_> = explanation.dropped.iter().map(dropped).collect();
        serde_json::json!({
            "version": 1, "metric": self.table.metric().to_string(), "from": self.from.0,
            "to_as": self.to.0.0, "to_subnet": self.to.1.0, "candidates": candidates,
            "dropped": dropped, "complete": explanation.complete,
        })
    }
}
