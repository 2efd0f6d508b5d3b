//! The layout of the picture: the position of each part. Pixels; y grows downwards.
//!
//! Subnets stand in rows by their distance from the ways out. Routers are ordered by
//! barycentres, and then share columns if their lines do not meet, which keeps bars
//! short. Bars of one distance that do not overlap share a row.

use std::collections::VecDeque;

use crate::map::{RouteMap, Subnet};

pub(super) const BAR_HEIGHT: f64 = 42.0;
pub(super) const BOX_HEIGHT: f64 = 25.0;
pub(super) const REMOTE_HEIGHT: f64 = 42.0;
const TITLE_HEIGHT: f64 = 30.0;
pub(super) const MARGIN: f64 = 28.0;

/// Space between rows: with routers' boxes, without them, and below remote AS's. Pixels.
const WIDE_GAP: f64 = 78.0;
const NARROW_GAP: f64 = 24.0;
const REMOTE_GAP: f64 = 46.0;
/// Distance from a bar's end to the first line on it. Pixels.
const OVERHANG: f64 = 22.0;
const BETWEEN_BARS: f64 = 26.0;
const BETWEEN_REMOTES: f64 = 26.0;
const BETWEEN_STUBS: f64 = 44.0;
/// Least distance of a remote AS's line from a router's. Pixels.
const STUB_CLEARANCE: f64 = 16.0;
const COLUMN_MIN: f64 = 92.0;

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

/// About how wide a text is at most; fonts differ.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.58
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
        let order = order(&joins);
        let rows = rows(&layers, &order, &joins);
        let mut layout = Self {
            bars: rows.iter().map(|row| Bar { row: *row, ..Bar::default() }).collect(),
            routers: columns(map, &joins, &slots(&joins, &order, &rows)),
            remotes: Vec::new(),
            frame: [0.0; 4],
            width: 0.0,
            height: 0.0,
        };
        layout.place_remotes(map, &joins);
        layout.place_bars(map, &joins);
        let rows_out = layout.share_rows(&layers);
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
            let width = (text_width(&remote.name, 14.0) + 32.0).max(for_stubs).max(COLUMN_MIN);
            let stubs = ways.iter().map(|subnet| Stub { subnet: *subnet, ..Stub::default() }).collect();
            remotes.push(RemotePlace { x, width, stubs });
        }
        let mut order: Vec<usize> = (0..remotes.len()).collect();
        order.sort_by(|a, b| remotes[*a].x.total_cmp(&remotes[*b].x));
        // Each should be above its routers. Those that would overlap move to the right. Then all
        // move to the left by half of the average shift.
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
                stub.x = clear_of(&self.routers, first + number as f64 * BETWEEN_STUBS);
            }
        }
        self.remotes = remotes;
    }

    /// Makes each bar long enough for all its lines and its text.
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
            self.bars[index] = Bar { left, right, ..self.bars[index] };
        }
    }

    /// Lets bars of one layer that follow each other share a row. That keeps the order of rows,
    /// so the lines of a column stay apart. Returns how many rows are outside the AS.
    fn share_rows(&mut self, layers: &[Vec<usize>]) -> usize {
        let mut next_row = 0;
        let mut rows_out = 0;
        for (number, layer) in layers.iter().enumerate() {
            let mut subnets = layer.clone();
            subnets.sort_by_key(|subnet| self.bars[*subnet].row);
            let mut in_row: Vec<Bar> = Vec::new();
            for subnet in subnets {
                let bar = self.bars[subnet];
                let apart =
                    |b: &Bar| b.right + BETWEEN_BARS <= bar.left || bar.right + BETWEEN_BARS <= b.left;
                if !in_row.iter().all(apart) {
                    in_row.clear();
                    next_row += 1;
                }
                in_row.push(bar);
                self.bars[subnet].row = next_row;
            }
            next_row += usize::from(!in_row.is_empty());
            if number == 0 {
                rows_out = next_row;
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
            y += NARROW_GAP;
        }
        let mut tops = Vec::new();
        for row in 0..rows {
            tops.push(y);
            y += BAR_HEIGHT;
            if row + 1 == rows_out {
                frame_top = y + NARROW_GAP;
                y = frame_top;
            }
            y += if box_row.contains(&row) { WIDE_GAP } else { NARROW_GAP };
        }
        y += TITLE_HEIGHT - 8.0;
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

/// The width of a bar's two lines of text.
fn label_width(subnet: &Subnet) -> f64 {
    // Bold letters are wider.
    let name = text_width(&subnet.name, 15.5) + 8.0 + text_width(&subnet.id.0.to_string(), 11.0);
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
    // Parts that no way out reaches start from the subnet with the most routers.
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

/// `x`, or, if a router's line is closer than that, the place `STUB_CLEARANCE` beside it.
fn clear_of(routers: &[Column], x: f64) -> f64 {
    let near = routers.iter().map(|router| router.x).filter(|other| (other - x).abs() < STUB_CLEARANCE);
    match near.min_by(|a, b| (a - x).abs().total_cmp(&(b - x).abs())) {
        Some(other) if x < other => other - STUB_CLEARANCE,
        Some(other) => other + STUB_CLEARANCE,
        None => x,
    }
}

/// Each router's rank from left to right: those with common subnets near each other.
fn order(joins: &Joins) -> Vec<usize> {
    const ROUNDS: usize = 24;
    let count = joins.of_router.len();
    let mut order: Vec<usize> = (0..count).collect();
    let mut rank = order.clone();
    for _ in 0..ROUNDS {
        let middles: Vec<f64> =
            joins.of_subnet.iter().map(|routers| mean(routers.iter().map(|r| rank[*r] as f64))).collect();
        let middle = |router: usize| mean(joins.of_router[router].iter().map(|subnet| middles[*subnet]));
        let keys: Vec<f64> = (0..count).map(middle).collect();
        order.sort_by(|a, b| keys[*a].total_cmp(&keys[*b]));
        order.iter().enumerate().for_each(|(place, router)| rank[*router] = place);
    }
    rank
}

/// The row of each subnet. Each has its own for now: by layer, then by the order of its routers.
fn rows(layers: &[Vec<usize>], rank: &[usize], joins: &Joins) -> Vec<usize> {
    let middle = |subnet: &usize| mean(joins.of_subnet[*subnet].iter().map(|router| rank[*router] as f64));
    let mut rows = vec![0; joins.of_subnet.len()];
    let mut next = 0;
    for layer in layers {
        let mut subnets = layer.clone();
        subnets.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
        for subnet in subnets {
            rows[subnet] = next;
            next += 1;
        }
    }
    rows
}

/// Each router's column. One after the other, routers move to the free column that makes the
/// bars of their subnets shortest.
fn slots(joins: &Joins, rank: &[usize], rows: &[usize]) -> Vec<usize> {
    const ROUNDS: usize = 4;
    /// Most routers that are moved. Count; nobody looks at larger pictures as a whole, and the search takes long.
    const ROUTERS_MOVED: usize = 256;
    let count = rank.len();
    let mut slots = rank.to_vec();
    if count > ROUTERS_MOVED {
        return slots;
    }
    let extent = |router: usize| {
        let joined = joins.of_router[router].iter().map(|subnet| rows[*subnet]);
        (joined.clone().min().unwrap_or(0), joined.max().unwrap_or(0))
    };
    let extents: Vec<_> = (0..count).map(extent).collect();
    let mut by_rank: Vec<usize> = (0..count).collect();
    by_rank.sort_by_key(|router| rank[*router]);
    for _ in 0..ROUNDS {
        for router in by_rank.iter().copied() {
            let apart = |a: (usize, usize), b: (usize, usize)| a.1 <= b.0 || b.1 <= a.0;
            let is_free = |slot: &usize| {
                (0..count).all(|r| r == router || slots[r] != *slot || apart(extents[r], extents[router]))
            };
            let length = |slot: usize| -> usize {
                let bar = |subnet: &usize| {
                    let others = joins.of_subnet[*subnet].iter().filter(|r| **r != router).map(|r| slots[*r]);
                    let ends = others.fold((slot, slot), |(low, high), s| (low.min(s), high.max(s)));
                    ends.1 - ends.0
                };
                joins.of_router[router].iter().map(bar).sum()
            };
            if let Some(best) = (0..count).filter(is_free).min_by_key(|slot| (length(*slot), *slot)) {
                slots[router] = best;
            }
        }
        // Columns left empty close up.
        let mut used = slots.clone();
        used.sort_unstable();
        used.dedup();
        slots.iter_mut().for_each(|slot| *slot = used.partition_point(|other| other < slot));
    }
    slots
}

/// Places routers in their columns. A column is wide enough for its names, and for the bars of
/// subnets that only one router joins.
fn columns(map: &RouteMap, joins: &Joins, slots: &[usize]) -> Vec<Column> {
    let width = |router: usize| (text_width(&map.routers()[router].name, 12.0) + 26.0).max(46.0);
    let mut rooms = vec![COLUMN_MIN; slots.iter().max().map_or(0, |last| last + 1)];
    let mut boxes = rooms.clone();
    for (router, slot) in slots.iter().enumerate() {
        boxes[*slot] = boxes[*slot].max(width(router) + 22.0);
        let leaves = joins.of_router[router].iter().filter(|subnet| joins.of_subnet[**subnet].len() == 1);
        let labels = leaves.map(|leaf| label_width(&map.subnets()[*leaf]) + BETWEEN_BARS);
        rooms[*slot] = labels.fold(boxes[*slot], f64::max).max(rooms[*slot]);
    }
    let before = |slot: usize| rooms[..slot].iter().sum::<f64>();
    let column = |(router, slot): (usize, &usize)| {
        // To the left of the column's middle, since bars start at their lines and go right.
        let x = MARGIN + 18.0 + before(*slot) + boxes[*slot] / 2.0;
        Column { x, width: width(router), ..Column::default() }
    };
    slots.iter().enumerate().map(column).collect()
}
