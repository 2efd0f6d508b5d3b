//! Messages between processes of `isthmus run` ("letters"), and their encoding.

use std::str::FromStr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failure::Failure;
use crate::ranks::Lines;

/// Version of the encoding, equal at both ends. Every change of it raises this number.
pub(crate) const VERSION: u16 = 4;
/// Longest letter. Bytes. [`Letter::Ready`] of a part of [`RANKS_MAX`] ranks must fit.
pub(crate) const LETTER_MAX: u32 = 1 << 20;
/// Bytes of keys and values after which a [`Letter::Put`] ends and the next begins.
pub(crate) const PUT_MAX: usize = 64 << 10;
/// Most parts of a job.
pub const PARTS_MAX: u32 = 1024;
/// Most ranks of a part.
pub const RANKS_MAX: u32 = 1 << 16;
/// Longest name of a job. Bytes. It becomes part of names at routers and of the key-value space's name.
pub const JOB_MAX: usize = 64;

/// The payload of a connection request, at most 1,024 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) job: String,
    /// From 1.
    pub(crate) part: u32,
    pub(crate) parts: u32,
    pub(crate) host: String,
    pub(crate) on_loss: OnLoss,
    pub(crate) role: Role,
}

/// What the job does when a rank, or a process of `isthmus run`, is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLoss {
    /// It ends.
    #[default]
    End,
    /// It goes on, and ranks can ask for `PMI_dead_processes`.
    Continue,
}

impl FromStr for OnLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "end" => Ok(Self::End),
            "continue" => Ok(Self::Continue),
            _ => Err("expected end or continue".to_owned()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// The first process of its part. Its members find it at this address.
    Head { uri: String },
    /// Another process: its number in the part, the count of processes, its ranks, and the name of its node.
    Member { index: u32, count: u32, ranks: u32, node: String },
}

/// A message on a connection. Its service level is RO: letters arrive once and in order. "Up" is towards the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Letter {
    /// Down, first: the sender's host.
    Welcome { host: String },
    /// Down, in place of a welcome: connect to the head of your part at this address.
    Head { uri: String },
    /// Up: the part is complete. The node of each rank.
    Ready { nodes: Vec<u32> },
    /// Down to heads: all parts are complete.
    World(World),
    /// Down to members: start your ranks.
    Start(Start),
    /// Both directions: what ranks have put since the last fence.
    Put(Vec<(String, String)>),
    /// Up: all ranks below wait in a fence. Down: all ranks of the world do, so go on.
    Fence,
    /// Up: a question about published names. Answers come in the order of the questions.
    Ask(Question),
    /// Down: the answer to the oldest open question.
    Answer(Option<String>),
    /// Up: this failure ends the job. Down: end, because of this failure.
    End(Failure),
    /// Up: all ranks below have ended, with this exit status; `None` if all of them are lost. Down: all ranks of the
    /// world have.
    Done(Option<u8>),
    /// Both directions: these ranks (first and last of each run) are lost for this reason, and the job goes on.
    Lost { ranks: Vec<(u32, u32)>, failure: Failure },
    /// Up, then down until a process knows the endpoint.
    Unreachable(Unreachable),
    /// Up: two ranks cannot reach each other.
    Pair(Pair),
    /// Up: output of ranks below.
    Output(Lines),
    /// Down: the oldest output from here that was not printed is printed.
    Printed,
}

/// A rank cannot reach an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unreachable {
    /// The rank in the world, and its host.
    pub(crate) by: (u32, String),
    pub(crate) endpoint: String,
    pub(crate) why: String,
}

/// Two ranks cannot reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// The ranks in the world, and their hosts.
    pub(crate) ranks: [(u32, String); 2],
    pub(crate) why: String,
}

/// A question about published port names. The hub keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    Publish { name: String, port: String },
    Unpublish { name: String },
    LookUp { name: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct World {
    /// Name of the world's key-value space.
    pub(crate) space: String,
    /// Ranks of each part.
    pub(crate) sizes: Vec<u32>,
    /// Which ranks share a node: the value of `PMI_process_mapping`.
    pub(crate) mapping: String,
}

/// What a process needs to start its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Name of the world's key-value space.
    pub space: String,
    /// Rank in the world of the process's first rank.
    pub first: u32,
    /// Ranks of the world.
    pub size: u32,
    /// Ranks of each part.
    pub sizes: Vec<u32>,
    /// Index of the part, from 0.
    pub appnum: u32,
    /// Which ranks share a node: the value of `PMI_process_mapping`.
    pub mapping: String,
    /// For each of the process's ranks: its number on its node, and how many ranks that node has.
    pub local: Vec<(u32, u32)>,
}

pub(crate) fn encode<T: Serialize>(what: &T) -> Vec<u8> {
    // Cannot fail: these types can all be encoded, and the output is memory.
    postcard::to_stdvec(what).unwrap_or_default()
}

/// `None` if the bytes are not exactly one value.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((what, [])) => Some(what),
        _ => None,
    }
}

/// Splits entries into letters of about [`PUT_MAX`] bytes.
pub(crate) fn puts(entries: Vec<(String, String)>) -> Vec<Letter> {
    let (mut letters, mut piece, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (key, value) in entries {
        bytes += key.len() + value.len();
        piece.push((key, value));
        if bytes >= PUT_MAX {
            letters.push(Letter::Put(std::mem::take(&mut piece)));
            bytes = 0;
        }
    }
    if !piece.is_empty() {
        letters.push(Letter::Put(piece));
    }
    letters
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn letters_survive_their_journey() {
        let letter = Letter::Put(vec![("a".to_owned(), "b".to_owned())]);
        assert_eq!(decode(&encode(&letter)), Some(letter));
        let nodes: Vec<u32> = (0..RANKS_MAX).collect();
        assert!(encode(&Letter::Ready { nodes }).len() < LETTER_MAX as usize);
    }

    #[test]
    fn a_hello_fits_into_a_request() {
        let long = |len| "x".repeat(len);
        let role = Role::Member { index: u32::MAX, count: u32::MAX, ranks: u32::MAX, node: long(200) };
        let hello = Hello {
            version: VERSION,
            job: long(JOB_MAX),
            part: u32::MAX,
            parts: u32::MAX,
            host: long(64),
            on_loss: OnLoss::Continue,
            role,
        };
        assert!(encode(&hello).len() <= isthmus_substrate::PAYLOAD_MAX);
    }

    #[test]
    fn many_entries_go_in_several_letters() {
        let entries: Vec<_> = (0..200).map(|i| (format!("key-{i}"), "v".repeat(1000))).collect();
        let letters = puts(entries);
        assert!(letters.len() > 2);
        assert!(letters.iter().all(|letter| encode(letter).len() < 2 * PUT_MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_letter_or_none(bytes: Vec<u8>) {
            if let Some(letter) = decode::<Letter>(&bytes) {
                prop_assert_eq!(decode(&encode(&letter)), Some(letter));
            }
            let _ = decode::<Hello>(&bytes);
        }
    }
}
