//! Draws the map: subnets are horizontal bars, and routers are vertical lines that join them.
//!
//! A line has a dot on each bar that its router joins, and passes behind the others. So no
//! two lines ever cross, however large the map.

mod layout;
mod svg;
#[cfg(test)]
mod tests;

use crate::map::{Remote, Role, RouteMap, Router, Subnet};
use layout::{BAR_HEIGHT, BOX_HEIGHT, Layout, MARGIN, REMOTE_HEIGHT, text_width};
use svg::Svg;

/// Draws the topology as a self-contained SVG document. The same map gives the same picture.
pub fn draw(map: &RouteMap) -> String {
    let layout = Layout::of(map);
    let mut svg = Svg::default();
    frame(&mut svg, map, &layout);
    lines(&mut svg, &layout);
    for (index, subnet) in map.subnets().iter().enumerate() {
        bar(&mut svg, &layout, index, subnet);
    }
    for (index, router) in map.routers().iter().enumerate() {
        router_box(&mut svg, map, &layout, index, router);
    }
    for (index, remote) in map.remotes().iter().enumerate() {
        remote_box(&mut svg, map, &layout, index, remote);
    }
    dots(&mut svg, &layout);
    let bottom = layout.height;
    let right = legend(&mut svg, map, bottom);
    svg.document(&title(map), layout.width.max(right), bottom + 44.0)
}

/// `AS 3`, with the name if that says more.
fn title(map: &RouteMap) -> String {
    let id = map.as_id().0;
    if map.name() == format!("AS{id}") { format!("AS {id}") } else { format!("AS {id} · {}", map.name()) }
}

fn frame(svg: &mut Svg, map: &RouteMap, layout: &Layout) {
    let [x, y, width, height] = layout.frame;
    svg.rect("frame", [x, y, width, height], 14.0);
    svg.text("frame-title", x + 16.0, y + height - 14.0, &title(map));
}

fn lines(svg: &mut Svg, layout: &Layout) {
    for router in &layout.routers {
        svg.line("line", router.x, router.top, router.bottom);
    }
    for stub in layout.remotes.iter().flat_map(|remote| &remote.stubs) {
        svg.line("line", stub.x, stub.from_y, stub.to_y);
    }
}

fn dots(svg: &mut Svg, layout: &Layout) {
    for router in &layout.routers {
        for y in &router.dots {
            svg.circle("dot", router.x, *y);
        }
    }
    for stub in layout.remotes.iter().flat_map(|remote| &remote.stubs) {
        svg.circle("dot", stub.x, stub.to_y);
    }
}

fn class(role: Role) -> &'static str {
    match role {
        Role::Transit => "transit",
        Role::Edge => "edge",
        Role::Wan => "wan",
        Role::Private => "private",
    }
}

fn bar(svg: &mut Svg, layout: &Layout, index: usize, subnet: &Subnet) {
    let bar = layout.bars[index];
    svg.open_group(&format!("{} ({}): {}", subnet.name, subnet.id.0, subnet.capabilities));
    svg.rect(class(subnet.role), [bar.left, bar.top, bar.right - bar.left, BAR_HEIGHT], 9.0);
    let x = bar.left + 14.0;
    svg.name("name", x, bar.top + 18.0, &subnet.name, &subnet.id.0.to_string());
    let figures = figures(subnet);
    svg.text("small", x, bar.top + 34.0, &figures);
    let mut chip_x = x + text_width(&figures, 11.0) + 8.0;
    for chip in chips(subnet) {
        svg.rect("chip", [chip_x, bar.top + 24.0, 15.0, 13.0], 3.0);
        svg.text("chip-text", chip_x + 7.5, bar.top + 34.0, chip);
        chip_x += 18.0;
    }
    svg.close_group();
}

/// `64 Gbit · 2 us`
fn figures(subnet: &Subnet) -> String {
    format!("{}/s · {}", subnet.rate, subnet.latency)
}

/// A letter for each capability of the subnet.
fn chips(subnet: &Subnet) -> Vec<&'static str> {
    let has = subnet.capabilities;
    let letters = [(has.zero_copy, "Z"), (has.os_bypass, "B"), (has.rma, "R")];
    letters.into_iter().filter_map(|(has, letter)| has.then_some(letter)).collect()
}

fn router_box(svg: &mut Svg, map: &RouteMap, layout: &Layout, index: usize, router: &Router) {
    let place = &layout.routers[index];
    let joints = router.joins.iter().map(|joint| {
        let name = map.subnet(joint.subnet).map_or("?", |subnet| &subnet.name);
        joint.endpoint.map_or_else(|| name.to_owned(), |endpoint| format!("{name} {endpoint}"))
    });
    svg.open_group(&format!("{}: {}", router.name, joints.collect::<Vec<_>>().join(", ")));
    let left = place.x - place.width / 2.0;
    svg.rect("router", [left, place.box_top, place.width, BOX_HEIGHT], 13.0);
    svg.text("router-name", place.x, place.box_top + 17.0, &router.name);
    svg.close_group();
}

fn remote_box(svg: &mut Svg, map: &RouteMap, layout: &Layout, index: usize, remote: &Remote) {
    let place = &layout.remotes[index];
    let ways = remote.ways_out.iter().map(|way| {
        let name = map.subnet(way.subnet).map_or("?", |subnet| &subnet.name);
        let gateways = way.gateways.iter().map(ToString::to_string);
        std::iter::once(name.to_owned()).chain(gateways).collect::<Vec<_>>().join(" ")
    });
    svg.open_group(&format!("AS {}: by {}", remote.id.0, ways.collect::<Vec<_>>().join(", ")));
    let left = place.x - place.width / 2.0;
    svg.rect("remote", [left, MARGIN, place.width, REMOTE_HEIGHT], 14.0);
    let named = remote.name != format!("AS{}", remote.id.0);
    if named {
        svg.text("remote-name", place.x, MARGIN + 19.0, &remote.name);
        svg.text("remote-id", place.x, MARGIN + 34.0, &format!("AS {}", remote.id.0));
    } else {
        svg.text("remote-name", place.x, MARGIN + 26.0, &format!("AS {}", remote.id.0));
    }
    svg.close_group();
}

/// Draws a legend of the symbols that the picture uses. Returns its right edge.
fn legend(svg: &mut Svg, map: &RouteMap, top: f64) -> f64 {
    let mut x = MARGIN;
    let roles = [
        (Role::Transit, "subnet"),
        (Role::Edge, "subnet, no transit"),
        (Role::Wan, "WAN"),
        (Role::Private, "private link"),
    ];
    for (role, text) in roles.into_iter().filter(|(role, _)| map.subnets().iter().any(|s| s.role == *role)) {
        svg.rect(class(role), [x, top + 6.0, 26.0, 14.0], 4.0);
        svg.text("small", x + 33.0, top + 17.0, text);
        x += 33.0 + text_width(text, 11.0) + 20.0;
    }
    if !map.routers().is_empty() {
        svg.rect("router", [x, top + 6.0, 26.0, 14.0], 7.0);
        svg.text("small", x + 33.0, top + 17.0, "router");
        x += 33.0 + text_width("router", 11.0) + 20.0;
        svg.circle("dot", x + 5.0, top + 13.0);
        svg.text("small", x + 16.0, top + 17.0, "joins");
        x += 16.0 + text_width("joins", 11.0) + 20.0;
    }
    for (letter, text) in [("Z", "zero-copy"), ("B", "OS bypass"), ("R", "RMA")] {
        if map.subnets().iter().any(|subnet| chips(subnet).contains(&letter)) {
            svg.rect("chip", [x, top + 6.5, 15.0, 13.0], 3.0);
            svg.text("chip-text", x + 7.5, top + 16.5, letter);
            svg.text("small", x + 21.0, top + 17.0, text);
            x += 21.0 + text_width(text, 11.0) + 16.0;
        }
    }
    x + MARGIN - 16.0
}
