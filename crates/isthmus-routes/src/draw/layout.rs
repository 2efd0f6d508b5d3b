//! Where everything stands. Pixels; y grows downwards.
//!
//! Rows of subnets follow their distance from the ways out; columns of routers are put in
//! order by barycentres, so that bars are short. Bars that do not overlap share a row.

use std::collections::VecDeque;

use crate::map::{RouteMap, Subnet};

pub(super) const BAR_HEIGHT: f64 = 42.0;
pub(super) const BOX_HEIGHT: f64 = 25.0;
pub(super) const REMOTE_HEIGHT: f64 = 42.0;
pub(super) const TITLE_HEIGHT: f64 = 30.0;
pub(super) const MARGIN: f64 = 28.0;

/// Between rows with routers' boxes, and without.
const WIDE_GAP: f64 = 78.0;
const NARROW_GAP: f64 = 24.0;
const REMOTE_GAP: f64 = 46.0;
/// From a bar's end to the first line on it.
const OVERHANG: f64 = 34.0;
const BETWEEN_BARS: f64 = 26.0;
const BETWEEN_REMOTES: f64 = 26.0;
const BETWEEN_STUBS: f64 = 26.0;
const COLUMN_LEAST: f64 = 92.0;

pub(super) struct Layout {
    pub(super) bars: Vec<Bar>,
    pub(super) routers: Vec<Column>,
    pub(super) remotes: Vec<RemotePlace>,
    /// Left, top, width and height of the AS.
    pub(super) frame: [f64; 4],
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A subnet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bar {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    row: usize,
}

/// A router: its box, and the line through it with a dot on each subnet that it joins.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) box_top: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) dots: Vec<f64>,
}

/// A remote AS, with a line to each of its ways out.
#[derive(Clone, Debug, Default)]
pub(super) struct RemotePlace {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) stubs: Vec<Stub>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stub {
    pub(super) x: f64,
    pub(super) from_y: f64,
    pub(super) to_y: f64,
    subnet: usize,
}

/// Roughly how wide a text is; fonts differ.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.61
}

/// The subnets that each router joins, and the routers on each subnet, by position.
struct Joins {
    of_router: Vec<Vec<usize>>,
    of_subnet: Vec<Vec<usize>>,
}

impl Joins {
    fn of(map: &RouteMap) -> Self {
        let joined = |router: &crate::map::Router| -> Vec<usize> {
            router.joins.iter().filter_map(|joint| map.index(joint.subnet)).collect()
        };
        let of_router: Vec<_> = map.routers().iter().map(joined).collect();
        let mut of_subnet = vec![Vec::new(); map.subnets().len()];
        for (router, subnets) in of_router.iter().enumerate() {
            subnets.iter().for_each(|subnet| of_subnet[*subnet].push(router));
        }
        Self { of_router, of_subnet }
    }
}

impl Layout {
    pub(super) fn of(map: &RouteMap) -> Self {
        let joins = Joins::of(map);
        let layers = layers(map, &joins);
        let mut layout = Self {
            bars: vec![Bar::default(); map.subnets().len()],
            routers: columns(map, &joins),
            remotes: Vec::new(),
            frame: [0.0; 4],
            width: 0.0,
            height: 0.0,
        };
        layout.place_remotes(map, &joins);
        layout.place_bars(map, &joins);
        let rows_out = layout.make_rows(&layers);
        layout.place_vertically(map, &joins, rows_out);
        layout
    }

    /// Remote AS's stand above the routers that lead to them, side by side.
    fn place_remotes(&mut self, map: &RouteMap, joins: &Joins) {
        let mut remotes: Vec<RemotePlace> = Vec::new();
        for remote in map.remotes() {
            let ways: Vec<usize> = remote.ways_out.iter().filter_map(|way| map.index(way.subnet)).collect();
            let routers: Vec<_> = ways.iter().flat_map(|way| &joins.of_subnet[*way]).collect();
            let x = routers.iter().map(|router| self.routers[**router].x).sum::<f64>()
                / routers.len().max(1) as f64;
            let for_stubs = ways.len() as f64 * BETWEEN_STUBS + 12.0;
            let width = (text_width(&remote.name, 14.0) + 32.0).max(for_stubs).max(COLUMN_LEAST);
            let stubs = ways.iter().map(|subnet| Stub { subnet: *subnet, ..Stub::default() }).collect();
            remotes.push(RemotePlace { x, width, stubs });
        }
        let mut order: Vec<usize> = (0..remotes.len()).collect();
        order.sort_by(|a, b| remotes[*a].x.total_cmp(&remotes[*b].x));
        // Each wants to be above its routers; those that would overlap move to the right,
        // and then all together to the left by half of what that took on average.
        let mut free = MARGIN;
        let mut moved = 0.0;
        for index in &order {
            let place = &mut remotes[*index];
            let x = place.x.max(free + place.width / 2.0);
            moved += x - place.x;
            place.x = x;
            free = x + place.width / 2.0 + BETWEEN_REMOTES;
        }
        let room =
            order.first().map_or(0.0, |first| remotes[*first].x - remotes[*first].width / 2.0 - MARGIN);
        let back = (moved / remotes.len().max(1) as f64).clamp(0.0, room.max(0.0));
        for place in &mut remotes {
            place.x -= back;
            // Ways out from left to right, as their routers stand.
            let middle = |stub: &Stub| mean(joins.of_subnet[stub.subnet].iter().map(|r| self.routers[*r].x));
            place.stubs.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
            let first = place.x - (place.stubs.len() as f64 - 1.0) * BETWEEN_STUBS / 2.0;
            for (number, stub) in place.stubs.iter_mut().enumerate() {
                stub.x = first + number as f64 * BETWEEN_STUBS;
            }
        }
        self.remotes = remotes;
    }

    /// A bar reaches under all its lines, and holds its text.
    fn place_bars(&mut self, map: &RouteMap, joins: &Joins) {
        for (index, subnet) in map.subnets().iter().enumerate() {
            let stubs = self.remotes.iter().flat_map(|remote| &remote.stubs);
            let stubs = stubs.filter(|stub| stub.subnet == index).map(|stub| stub.x);
            let xs: Vec<f64> =
                joins.of_subnet[index].iter().map(|router| self.routers[*router].x).chain(stubs).collect();
            let left = xs.iter().copied().fold(f64::INFINITY, f64::min).min(1e9) - OVERHANG;
            let right = xs.iter().copied().fold(f64::NEG_INFINITY, f64::max) + OVERHANG;
            let left = if xs.is_empty() { MARGIN + 18.0 } else { left };
            let right = right.max(left + label_width(subnet));
            self.bars[index] = Bar { left, right, ..Bar::default() };
        }
    }

    /// Gives every bar a row; says how many rows are outside the AS.
    fn make_rows(&mut self, layers: &[Vec<usize>]) -> usize {
        let mut rows = 0;
        let mut rows_out = 0;
        for (number, layer) in layers.iter().enumerate() {
            let mut subnets = layer.clone();
            subnets.sort_by(|a, b| self.bars[*a].left.total_cmp(&self.bars[*b].left));
            let mut ends: Vec<f64> = Vec::new();
            for subnet in subnets {
                let left = self.bars[subnet].left;
                let free = ends.iter().position(|end| end + BETWEEN_BARS <= left);
                let row = free.unwrap_or(ends.len());
                if free.is_none() {
                    ends.push(0.0);
                }
                ends[row] = self.bars[subnet].right;
                self.bars[subnet].row = rows + row;
            }
            rows += ends.len();
            if number == 0 {
                rows_out = rows;
            }
        }
        rows_out
    }

    fn place_vertically(&mut self, map: &RouteMap, joins: &Joins, rows_out: usize) {
        let rows = self.bars.iter().map(|bar| bar.row + 1).max().unwrap_or(0);
        // A router's box stands below its first subnet, and always inside the AS.
        let box_row: Vec<usize> = joins
            .of_router
            .iter()
            .map(|subnets| {
                let first = subnets.iter().map(|subnet| self.bars[*subnet].row).min().unwrap_or(0);
                first.max(rows_out.saturating_sub(1))
            })
            .collect();
        let mut y = MARGIN + if self.remotes.is_empty() { 0.0 } else { REMOTE_HEIGHT + REMOTE_GAP };
        let mut frame_top = y;
        if rows_out == 0 {
            y += TITLE_HEIGHT;
        }
        let mut tops = Vec::new();
        for row in 0..rows {
            tops.push(y);
            y += BAR_HEIGHT;
            if row + 1 == rows_out {
                frame_top = y + NARROW_GAP;
                y = frame_top + TITLE_HEIGHT - 14.0;
            }
            y += if box_row.contains(&row) { WIDE_GAP } else { NARROW_GAP };
        }
        for bar in &mut self.bars {
            bar.top = tops[bar.row];
        }
        for (router, subnets) in joins.of_router.iter().enumerate() {
            let below = tops.get(box_row[router] + 1).copied().unwrap_or(y);
            self.routers[router].place(below - WIDE_GAP / 2.0 - BOX_HEIGHT / 2.0, subnets, &self.bars);
        }
        for stub in self.remotes.iter_mut().flat_map(|remote| &mut remote.stubs) {
            stub.from_y = MARGIN + REMOTE_HEIGHT;
            stub.to_y = self.bars[stub.subnet].top;
        }
        self.place_frame(map, frame_top, y);
    }

    fn place_frame(&mut self, map: &RouteMap, top: f64, bottom: f64) {
        let inside = self.bars.iter().zip(map.subnets()).filter(|(_, s)| !s.role.leads_out());
        let bars_right = inside.map(|(bar, _)| bar.right).fold(0.0, f64::max);
        let right =
            self.routers.iter().map(|router| router.x + router.width / 2.0).fold(bars_right, f64::max);
        self.frame = [MARGIN, top, right + 18.0 - MARGIN, bottom - top];
        let out = self.bars.iter().map(|bar| bar.right);
        let remotes = self.remotes.iter().map(|remote| remote.x + remote.width / 2.0);
        self.width = out.chain(remotes).fold(right + 18.0, f64::max) + MARGIN;
        self.height = bottom + 14.0;
    }
}

impl Column {
    /// The line goes from the box to the furthest subnets on either side.
    fn place(&mut self, box_top: f64, subnets: &[usize], bars: &[Bar]) {
        self.box_top = box_top;
        (self.top, self.bottom) = (box_top, box_top);
        for subnet in subnets {
            let bar = bars[*subnet];
            // The edge that faces the box.
            let edge = if bar.top < box_top { bar.top + BAR_HEIGHT } else { bar.top };
            self.top = self.top.min(edge);
            self.bottom = self.bottom.max(edge);
            self.dots.push(edge);
        }
    }
}

/// What a bar's two lines of text need.
fn label_width(subnet: &Subnet) -> f64 {
    let name = text_width(&subnet.name, 14.0) + 8.0 + text_width(&subnet.id.0.to_string(), 11.0);
    let figures =
        text_width(&super::figures(subnet), 11.0) + 8.0 + 18.0 * f64::from(subnet.capabilities.count());
    name.max(figures) + 28.0
}

/// Ways out first, then the AS's subnets by their distance from them.
fn layers(map: &RouteMap, joins: &Joins) -> Vec<Vec<usize>> {
    let outside = |subnet: &usize| map.subnets()[*subnet].role.leads_out();
    let all = 0..map.subnets().len();
    let mut layer_of: Vec<Option<usize>> = vec![None; all.len()];
    let mut queue: VecDeque<usize> = all.clone().filter(outside).collect();
    queue.iter().for_each(|subnet| layer_of[*subnet] = Some(0));
    // Parts that no way out reaches, or all where there is none, start from their hub.
    let mut by_degree: Vec<usize> = all.collect();
    by_degree.sort_by_key(|subnet| std::cmp::Reverse(joins.of_subnet[*subnet].len()));
    for start in by_degree {
        if queue.is_empty() && layer_of[start].is_none() {
            layer_of[start] = Some(1);
            queue.push_back(start);
        }
        while let Some(subnet) = queue.pop_front() {
            let next_layer = layer_of[subnet].map(|layer| layer + 1);
            for other in joins.of_subnet[subnet].iter().flat_map(|router| &joins.of_router[*router]) {
                if layer_of[*other].is_none() {
                    layer_of[*other] = next_layer;
                    queue.push_back(*other);
                }
            }
        }
    }
    let mut layers = vec![Vec::new(); layer_of.iter().flatten().max().map_or(1, |last| last + 1)];
    for (subnet, layer) in layer_of.into_iter().enumerate() {
        layers[layer.unwrap_or(1)].push(subnet);
    }
    layers
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Routers from left to right, those with common subnets near each other.
fn columns(map: &RouteMap, joins: &Joins) -> Vec<Column> {
    const ROUNDS: usize = 24;
    let count = map.routers().len();
    let mut order: Vec<usize> = (0..count).collect();
    let mut rank: Vec<f64> = (0..count).map(|router| router as f64).collect();
    for _ in 0..ROUNDS {
        let middles: Vec<f64> =
            joins.of_subnet.iter().map(|routers| mean(routers.iter().map(|r| rank[*r]))).collect();
        let middle = |router: usize| mean(joins.of_router[router].iter().map(|subnet| middles[*subnet]));
        let keys: Vec<f64> = (0..count).map(middle).collect();
        order.sort_by(|a, b| keys[*a].total_cmp(&keys[*b]));
        order.iter().enumerate().for_each(|(place, router)| rank[*router] = place as f64);
    }
    let mut columns = vec![Column::default(); count];
    let mut left = MARGIN + 18.0;
    for router in order {
        let width = text_width(&map.routers()[router].name, 12.0) + 26.0;
        let room = (width + 22.0).max(COLUMN_LEAST);
        columns[router] = Column { x: left + room / 2.0, width: width.max(46.0), ..Column::default() };
        left += room;
    }
    columns
}
