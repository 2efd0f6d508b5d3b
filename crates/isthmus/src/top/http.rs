//! Queries a daemon's state over HTTP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for the daemon. It answers from memory, so a second is ample.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most bytes of an answer that are read.
const ANSWER_MAX: u64 = 4 << 20;

/// The state of the daemon with this status address.
pub(super) fn state(address: SocketAddr) -> io::Result<Value> {
    ask(address).map_err(|error| match error.kind() {
        // The system calls a wait that has ended "Resource temporarily unavailable".
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs()))
        }
        _ => error,
    })
}

fn ask(address: SocketAddr) -> io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the answer is not chunked, and ends with the connection.
    write!(stream, "GET /state HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    body(&answer)
}

fn body(answer: &str) -> io::Result<Value> {
    let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| odd("that is no HTTP"))?;
    let line = head.lines().next().unwrap_or_default();
    if line.split(' ').nth(1) != Some("200") {
        return Err(odd(&format!(
            "it answers {:?}; is it an older release?",
            line.replace(char::is_control, " ")
        )));
    }
    let state: Value = serde_json::from_str(body)?;
    match state["version"].as_u64() {
        Some(1) => Ok(state),
        _ => Err(odd("it speaks another version; use the same isthmus release")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_silent_is_said_to_be() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let error = state(silent.local_addr().expect("its address")).expect_err("no answer");
        assert_eq!(error.to_string(), "no answer within 1 s");
    }

    #[test]
    fn an_answer_is_a_state_or_an_error_that_says_what_came() {
        let state =
            body("HTTP/1.0 200 OK\r\na: b\r\n\r\n{\"version\": 1, \"kind\": \"router\"}").expect("a state");
        assert_eq!(state["kind"], "router");
        let said = |answer: &str| body(answer).expect_err("no state").to_string();
        assert!(said("HTTP/1.0 404 Not Found\r\n\r\n").contains("404 Not Found"));
        assert!(said("HTTP/1.0 200 OK\r\n\r\n{\"version\": 2}").contains("another version"));
        assert!(said("hello").contains("no HTTP"));
    }
}
