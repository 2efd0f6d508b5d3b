//! Numbers the nodes of ranks, and tells MPI libraries which ranks share a node.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::pmi::VALUE_MAX;

/// The value of `PMI_process_mapping` for the node of each rank: blocks of (first node, nodes, ranks on each).
///
/// A mapping longer than [`VALUE_MAX`] is replaced by one in which no two ranks share a node. That is always safe; it
/// only costs the MPI its shared memory. An absent mapping is not safe: the MPI would compare host names, and two sites
/// may use the same names.
pub(crate) fn mapping(nodes: &[u32]) -> String {
    // Each block: (first node, nodes, ranks on each).
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for run in nodes.chunk_by(|a, b| a == b) {
        let (node, ranks) = (run[0], run.len() as u32);
        match blocks.last_mut() {
            Some((first, count, each)) if *each == ranks && *first + *count == node => *count += 1,
            _ => blocks.push((node, 1, ranks)),
        }
    }
    let mut text = "(vector".to_owned();
    for (first, count, each) in blocks {
        // Writing to a `String` cannot fail.
        let _ = write!(text, ",({first},{count},{each})");
    }
    text.push(')');
    if text.len() < VALUE_MAX { text } else { format!("(vector,(0,{},1))", nodes.len()) }
}

/// Numbers the named nodes from 0, in the order of their first ranks.
pub(crate) fn numbered<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u32> {
    let mut known = HashMap::new();
    names
        .map(|name| {
            let next = known.len() as u32;
            *known.entry(name).or_insert(next)
        })
        .collect()
}

/// For each rank: its number on its node, and how many ranks that node has.
pub(crate) fn local(nodes: &[u32]) -> Vec<(u32, u32)> {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    let ranks: Vec<u32> = nodes
        .iter()
        .map(|node| {
            let count = counts.entry(*node).or_default();
            *count += 1;
            *count - 1
        })
        .collect();
    nodes.iter().zip(ranks).map(|(node, rank)| (rank, counts[node])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_few_as_can_be() {
        assert_eq!(mapping(&[0, 0, 1, 1]), "(vector,(0,2,2))");
        assert_eq!(mapping(&[0, 0, 0, 1, 1]), "(vector,(0,1,3),(1,1,2))");
        assert_eq!(mapping(&[0, 1, 0, 1]), "(vector,(0,2,1),(0,2,1))");
        assert_eq!(mapping(&[0]), "(vector,(0,1,1))");
    }

    #[test]
    fn a_mapping_that_is_too_long_lets_nobody_share_a_node() {
        let nodes: Vec<u32> = (0..1000).flat_map(|node| vec![node; 1 + node as usize % 2]).collect();
        assert_eq!(mapping(&nodes), format!("(vector,(0,{},1))", nodes.len()));
    }

    #[test]
    fn ranks_are_counted_on_their_node() {
        assert_eq!(numbered(["x", "y", "x"].into_iter()), [0, 1, 0]);
        assert_eq!(local(&[0, 1, 0]), [(0, 2), (0, 1), (1, 2)]);
    }
}
