//! Carries TCP connections over one stream in each direction: over ssh, if no port can be reached.
//!
//! Each piece begins with the number of its connection and its length. A piece of length 0 ends the connection. The
//! first pieces of connections come in any order. There is nearly always one connection, so there is no credit per
//! connection.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_io::log::{accepted, no_thread, warn};

/// Most bytes of a piece: the capacity of a pipe.
const PIECE: usize = 64 << 10;
const HEAD: usize = 8;

type Out = Box<dyn Write + Send>;

/// One end of the tunnel.
pub(crate) struct Tunnel {
    out: Mutex<Out>,
    /// Connections that the other end has not ended; `None` for those that failed here.
    connections: Mutex<HashMap<u32, Option<TcpStream>>>,
}

impl Tunnel {
    pub(crate) fn new(out: Out) -> Arc<Self> {
        Arc::new(Self { out: Mutex::new(out), connections: Mutex::default() })
    }

    /// Accepts local connections. For each, the other end opens a connection on its side.
    pub(crate) fn listen(self: &Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let tunnel = self.clone();
        let thread = std::thread::Builder::new().name("ssh-listen".to_owned()).spawn(move || {
            for (number, stream) in (0..).zip(accepted(listener.incoming(), warn)) {
                // Without a descriptor or thread for it, the connection ends, and its owner dials again.
                if let Err(error) = tunnel.add(number, stream) {
                    lock(&tunnel.connections).remove(&number);
                    warn(format_args!("a connection through ssh cannot be carried: {error}"));
                }
            }
        });
        thread.map_err(no_thread)?;
        Ok(())
    }

    /// Handles incoming pieces until the stream ends. A new connection is opened to `to`; without `to` it is refused.
    pub(crate) fn carry(self: &Arc<Self>, from: &mut impl Read, to: Option<SocketAddr>) -> io::Result<()> {
        let mut head = [0; HEAD];
        let mut piece = vec![0; PIECE];
        loop {
            match from.read_exact(&mut head) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            }
            let [a, b, c, d, e, f, g, h] = head;
            let (number, len) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]) as usize);
            let Some(piece) = piece.get_mut(..len) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a piece that is too long"));
            };
            from.read_exact(piece)?;
            self.take(number, piece, to)?;
        }
    }

    fn take(self: &Arc<Self>, number: u32, piece: &[u8], to: Option<SocketAddr>) -> io::Result<()> {
        if piece.is_empty() {
            if let Some(Some(stream)) = lock(&self.connections).remove(&number) {
                let _ = stream.shutdown(Shutdown::Write);
            }
            return Ok(());
        }
        let known = match lock(&self.connections).get(&number) {
            Some(None) => return Ok(()),
            Some(Some(stream)) => Some(stream.try_clone()?),
            None => None,
        };
        let stream = match (known, to) {
            (Some(stream), _) => stream,
            (None, Some(to)) => match TcpStream::connect(to) {
                Ok(stream) => {
                    self.add(number, stream.try_clone()?)?;
                    stream
                }
                Err(_) => return self.fail(number),
            },
            // Only the other end opens connections.
            (None, None) => return Ok(()),
        };
        if (&stream).write_all(piece).is_err() {
            return self.fail(number);
        }
        Ok(())
    }

    /// Ends a connection that failed here. Its further pieces are dropped.
    fn fail(&self, number: u32) -> io::Result<()> {
        lock(&self.connections).insert(number, None);
        self.send(number, &[])
    }

    /// Sends what this connection delivers.
    fn add(self: &Arc<Self>, number: u32, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        lock(&self.connections).insert(number, Some(stream.try_clone()?));
        let tunnel = self.clone();
        let thread = std::thread::Builder::new().name("ssh-lane".to_owned()).spawn(move || {
            let mut piece = vec![0; PIECE];
            loop {
                let len = (&stream).read(&mut piece).unwrap_or(0);
                if tunnel.send(number, &piece[..len]).is_err() || len == 0 {
                    return;
                }
            }
        });
        thread.map_err(no_thread)?;
        Ok(())
    }

    fn send(&self, number: u32, piece: &[u8]) -> io::Result<()> {
        let mut out = lock(&self.out);
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&number.to_le_bytes());
        head[4..].copy_from_slice(&(piece.len() as u32).to_le_bytes());
        out.write_all(&head)?;
        out.write_all(piece)?;
        out.flush()
    }
}

/// Ignores poisoning: every change is a single call, so the data are consistent after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(number: u32, text: &[u8]) -> Vec<u8> {
        [&number.to_le_bytes()[..], &(text.len() as u32).to_le_bytes(), text].concat()
    }

    #[test]
    fn a_connection_whose_first_piece_is_overtaken_is_made_too() {
        let (_, out) = std::io::pipe().expect("a pipe");
        let door = TcpListener::bind("127.0.0.1:0").expect("free");
        let to = door.local_addr().expect("known");
        let said = [piece(1, b"later"), piece(0, b"sooner"), piece(1, b""), piece(0, b"")].concat();
        Tunnel::new(Box::new(out)).carry(&mut said.as_slice(), Some(to)).expect("a whole stream");
        let mut came: Vec<String> = (0..2)
            .map(|_| {
                let mut text = String::new();
                door.accept().expect("a connection").0.read_to_string(&mut text).expect("read");
                text
            })
            .collect();
        came.sort();
        assert_eq!(came, ["later", "sooner"]);
    }

    #[test]
    fn what_comes_for_a_connection_that_failed_is_dropped_until_it_ends() {
        let (mut told, out) = std::io::pipe().expect("a pipe");
        let door = TcpListener::bind("127.0.0.1:0").expect("free");
        let to = door.local_addr().expect("known");
        drop(door);
        let tunnel = Tunnel::new(Box::new(out));
        tunnel.carry(&mut [piece(0, b"a"), piece(0, b"b")].concat().as_slice(), Some(to)).expect("whole");
        assert!(lock(&tunnel.connections)[&0].is_none());
        tunnel.carry(&mut piece(0, b"").as_slice(), Some(to)).expect("whole");
        assert!(lock(&tunnel.connections).is_empty());
        drop(tunnel);
        let mut all = Vec::new();
        told.read_to_end(&mut all).expect("read");
        assert_eq!(all, piece(0, b""), "the other end is told once");
    }

    #[test]
    fn connections_keep_apart_and_end_each_by_itself() {
        let (here_in, there_out) = std::io::pipe().expect("a pipe");
        let (there_in, here_out) = std::io::pipe().expect("a pipe");
        let echo = TcpListener::bind("127.0.0.1:0").expect("free");
        let to = echo.local_addr().expect("known");
        std::thread::spawn(move || {
            for stream in echo.incoming() {
                let mut stream = stream.expect("a connection");
                std::thread::spawn(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).expect("read");
                    all.reverse();
                    stream.write_all(&all).expect("written");
                });
            }
        });
        let (here, there) = (Tunnel::new(Box::new(here_out)), Tunnel::new(Box::new(there_out)));
        std::thread::spawn(move || there.carry(&mut { there_in }, Some(to)));
        let door = TcpListener::bind("127.0.0.1:0").expect("free");
        let at = door.local_addr().expect("known");
        here.listen(door).expect("a thread");
        std::thread::spawn(move || here.carry(&mut { here_in }, None));
        let texts: Vec<Vec<u8>> = vec![b"short".to_vec(), (0..1_000_000u32).map(|i| i as u8).collect()];
        let mut streams: Vec<_> = texts.iter().map(|_| TcpStream::connect(at).expect("connected")).collect();
        for (stream, text) in streams.iter_mut().zip(&texts) {
            stream.write_all(text).expect("written");
        }
        for (stream, text) in streams.iter_mut().zip(&texts) {
            stream.shutdown(Shutdown::Write).expect("connected");
            let mut back = Vec::new();
            stream.read_to_end(&mut back).expect("read");
            back.reverse();
            assert!(back == *text, "{} of {} bytes", back.len(), text.len());
        }
    }
}
