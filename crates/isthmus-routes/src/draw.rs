//! TODO
use crate::map::RouteMap;
/// x
pub fn draw(_: &RouteMap) -> String {
    String::new()
}
