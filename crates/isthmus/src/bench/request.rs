//! `isthmus bench request`: requests and answers over plain TCP, on one connection or several at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use isthmus_io::log::no_thread;
use isthmus_units::Size;

use super::serve::{REQUESTS, ServerAddresses};
use super::{FAILED, Fault};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes of one read or write.
const PIECE: usize = 1 << 20;

/// Send messages over plain TCP, wait for the answer to each, and print the times
#[derive(clap::Args)]
pub(super) struct Args {
    /// Send to the process that printed WHERE, an `isthmus bench serve`
    #[arg(long, value_name = "WHERE")]
    to: ServerAddresses,
    /// Send messages of this length
    #[arg(long)]
    size: Size,
    /// Ask for answers of this length
    #[arg(long, default_value = "1B")]
    answer: Size,
    /// Send this many messages, one after the other
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Split each message over this many connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
}

pub(super) fn main(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(mut each_us) => {
            let seconds = each_us.iter().sum::<f64>() / 1e6;
            each_us.sort_by(f64::total_cmp);
            let p50_us = each_us[each_us.len() / 2];
            let (size, count, streams) = (args.size.0, args.count, args.streams);
            outln!(
                "{}",
                serde_json::json!({
                    "size": size, "count": count, "streams": streams, "seconds": seconds, "p50_us": p50_us,
                    "each_us": each_us,
                })
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            errln!("isthmus bench: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// The time of each message until its answer has arrived. Microseconds.
fn measure(args: &Args) -> Result<Vec<f64>, Fault> {
    let to = args.to.tcp;
    let fragment = |number: u32, of: u64| {
        let edge = |number: u32| of * u64::from(number) / u64::from(args.streams);
        edge(number + 1) - edge(number)
    };
    let connect =
        |number| Pair::connect(to, fragment(number, args.size.0), fragment(number, args.answer.0).max(1));
    let mut pairs = (0..args.streams).map(connect).collect::<Result<Vec<_>, _>>()?;
    let mut each_us = Vec::new();
    // The first message opens the congestion windows, so it is not counted.
    for round in 0..=args.count {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let ask = |pair: &mut Pair| pair.ask();
            let start = |pair| std::thread::Builder::new().spawn_scoped(scope, move || ask(pair));
            let asked: Vec<_> = pairs.iter_mut().map(start).collect();
            asked.into_iter().try_for_each(|thread| {
                let end = thread.map_err(no_thread)?.join();
                end.unwrap_or_else(|_| Err(std::io::Error::other("a thread failed")))
            })
        })?;
        if round > 0 {
            each_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(each_us)
}

/// One connection, and the lengths of its requests and answers. Bytes.
struct Pair {
    stream: TcpStream,
    size: u64,
    answer: u64,
    piece: Vec<u8>,
}

impl Pair {
    fn connect(to: SocketAddr, size: u64, answer: u64) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let lengths = [size.to_le_bytes(), answer.to_le_bytes()].concat();
        stream.write_all(&[&[REQUESTS], lengths.as_slice()].concat())?;
        Ok(Self { stream, size, answer, piece: vec![7; PIECE] })
    }

    fn ask(&mut self) -> std::io::Result<()> {
        write(&mut self.stream, self.size, &self.piece)?;
        read(&mut self.stream, self.answer, &mut self.piece)
    }
}

/// The other side: answers requests until the connection ends.
pub(super) fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lengths = [[0; 8]; 2];
    for length in &mut lengths {
        stream.read_exact(length)?;
    }
    let [size, answer] = lengths.map(u64::from_le_bytes);
    let mut piece = vec![7; PIECE];
    loop {
        read(&mut stream, size, &mut piece)?;
        write(&mut stream, answer, &piece)?;
    }
}

fn write(stream: &mut TcpStream, mut left: u64, piece: &[u8]) -> std::io::Result<()> {
    while left > 0 {
        let len = left.min(piece.len() as u64);
        stream.write_all(&piece[..len as usize])?;
        left -= len;
    }
    Ok(())
}

fn read(stream: &mut TcpStream, mut left: u64, piece: &mut [u8]) -> std::io::Result<()> {
    while left > 0 {
        let len = left.min(piece.len() as u64);
        stream.read_exact(&mut piece[..len as usize])?;
        left -= len;
    }
    Ok(())
}
