//! Pictures of many maps: nothing lies on top of anything else.

use super::layout::{BAR_HEIGHT, BOX_HEIGHT, Bar, Column, Layout};
use super::*;

const AS3: &str = include_str!("../../maps/as3.toml");

/// Maps of different sizes and shapes, the same in every run.
fn maps() -> Vec<RouteMap> {
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut maps = vec![RouteMap::parse(AS3, "as3.toml").expect("a good map")];
    for size in 2..40 {
        let mut text = String::from("[as]\nid = 1\n");
        for id in 1..=size {
            let kind = if id > 1 && random(6) == 0 { "wan" } else { "subnet" };
            let name = format!("n{id}{}", "x".repeat(random(20)));
            text +=
                &format!("[[{kind}]]\nid = {id}\nname = \"{name}\"\nrate = \"1Gbit\"\nlatency = \"1ms\"\n");
            text += &format!("[[router]]\nname = \"r{id}{}\"\n", "y".repeat(random(12)));
            let other = if id == 1 { 2 } else { 1 + random(id - 1) };
            text += &format!("joins = [\"#{id}#\", \"#{other}#\", \"#1#\"]\n");
            if kind == "wan" && random(2) == 0 {
                text += &format!("[[remote]]\nid = {}\nvia = [\"#{id}#\"]\n", id + 1);
            }
        }
        maps.push(RouteMap::parse(&named(&text), "random.toml").expect("a good map"));
    }
    maps
}

/// Puts names for `#ID#`, and takes out what a router joins twice.
fn named(text: &str) -> String {
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .filter(|name| name.starts_with('n'))
        .collect();
    let mut lines = Vec::new();
    for line in text.lines() {
        let ids = line.split('#').skip(1).step_by(2).filter_map(|id| id.parse::<usize>().ok());
        let mut found: Vec<String> = Vec::new();
        for name in ids.map(|id| format!("\"{}\"", names[id - 1])) {
            if !found.contains(&name) {
                found.push(name);
            }
        }
        match line.split_once(" = [\"#") {
            Some((key, _)) => lines.push(format!("{key} = [{}]", found.join(", "))),
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

fn pairs<T>(items: &[T]) -> impl Iterator<Item = (&T, &T)> {
    items.iter().enumerate().flat_map(|(at, one)| items[at + 1..].iter().map(move |other| (one, other)))
}

#[test]
fn bars_do_not_overlap() {
    let apart = |a: &Bar, b: &Bar| a.right < b.left || b.right < a.left || (a.top - b.top).abs() > BAR_HEIGHT;
    for map in maps() {
        let layout = Layout::of(&map);
        assert!(pairs(&layout.bars).all(|(a, b)| apart(a, b)), "{:?}", layout.bars);
    }
}

#[test]
fn routers_boxes_overlap_neither_each_other_nor_a_bar() {
    let width = |a: &Column, b: &Column| (a.width + b.width) / 2.0;
    let apart = |a: &Column, b: &Column| {
        (a.x - b.x).abs() > width(a, b) || (a.box_top - b.box_top).abs() > BOX_HEIGHT
    };
    for map in maps() {
        let layout = Layout::of(&map);
        assert!(pairs(&layout.routers).all(|(a, b)| apart(a, b)), "{:?}", layout.routers);
        let clear = |router: &Column, bar: &Bar| {
            router.box_top > bar.top + BAR_HEIGHT || router.box_top + BOX_HEIGHT < bar.top
        };
        assert!(layout.routers.iter().all(|router| layout.bars.iter().all(|bar| clear(router, bar))));
    }
}

#[test]
fn no_line_runs_into_another() {
    let apart = |a: &Column, b: &Column| (a.x - b.x).abs() > 1.0 || a.bottom <= b.top || b.bottom <= a.top;
    for map in maps() {
        let layout = Layout::of(&map);
        assert!(pairs(&layout.routers).all(|(a, b)| apart(a, b)), "{:?}", layout.routers);
        let stubs = layout.remotes.iter().flat_map(|remote| &remote.stubs);
        for stub in stubs {
            let near = |router: &Column| (router.x - stub.x).abs() < 4.0 && router.top < stub.to_y;
            assert!(!layout.routers.iter().any(near), "{stub:?} {:?}", layout.routers);
        }
    }
}

#[test]
fn every_dot_is_on_the_edge_of_a_bar_that_its_router_joins() {
    for map in maps() {
        let layout = Layout::of(&map);
        for (router, column) in map.routers().iter().zip(&layout.routers) {
            assert_eq!(router.joins.len(), column.dots.len());
            for (joint, y) in router.joins.iter().zip(&column.dots) {
                let bar = layout.bars[map.index(joint.subnet).expect("in the map")];
                assert!(bar.left < column.x && column.x < bar.right, "{bar:?} {column:?}");
                assert!(*y == bar.top || *y == bar.top + BAR_HEIGHT);
            }
        }
    }
}

#[test]
fn a_drawing_names_everything_and_is_the_same_every_time() {
    let map = RouteMap::parse(AS3, "as3.toml").expect("a good map");
    let drawing = draw(&map);
    for name in ["campus", "storage", "compute", "esnet", "link-to-as4", "r1", "r4", "AS 1", "AS 4", "Z"] {
        assert!(drawing.contains(&format!(">{name}<")), "{name}");
    }
    assert_eq!(drawing, draw(&map));
}

#[test]
fn a_name_cannot_break_the_drawing() {
    let text = AS3.replace("name = \"AS3\"", "name = \"<b> & \\\"c\\\"\\u0007\"");
    let drawing = draw(&RouteMap::parse(&text, "as3.toml").expect("a good map"));
    assert!(drawing.contains("AS 3 · &lt;b&gt; &amp; &quot;c&quot;<"));
}
