//! The HTTP server: a few pages, to a few clients at once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use isthmus_datagram::scarcity::{ACCEPT_PAUSE, Sparing, no_thread};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::Metrics;
use crate::marker::mark;

/// Longest time that a client may take to send its request.
const ASK_TIME: Duration = Duration::from_secs(10);
/// Longest time of a connection. A client that does not read its answer must not keep others out.
const SERVE_TIME: Duration = Duration::from_secs(30);
/// Most clients at once. It bounds memory. One too many closes the oldest: who asks at once is answered at once.
const CLIENTS_MAX: usize = 32;

/// Content security policy: a page may use its own style and load nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
const OPENMETRICS: &str = "application/openmetrics-text";
const TEXT: &str = "text/plain";

/// What a daemon tells. The calls must return soon.
pub trait Status: Send + Sync + 'static {
    /// The metrics now.
    fn metrics(&self) -> Metrics;

    /// The state now, as JSON for `isthmus top`.
    fn state(&self) -> Value;

    /// Whether work may be sent here.
    ///
    /// # Errors
    /// Why not, in a word.
    fn health(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// A page of the daemon's own. `None` if it has none at this path.
    fn page(&self, path: &str) -> Option<Page>;

    /// The paths of those pages.
    fn paths(&self) -> &'static [&'static str];
}

/// A page: its media type and its text.
pub struct Page {
    /// Media type.
    pub kind: &'static str,
    /// Text.
    pub text: String,
}

type Answer = Response<Full<Bytes>>;

/// Answers at `address` as long as the runtime lives.
///
/// # Errors
/// The system refuses the address.
pub async fn serve(status: Arc<dyn Status>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await.map_err(|error| at(address, &error))?;
    let address = listener.local_addr()?;
    info!(%address, "status by HTTP");
    tokio::spawn(accept(status, listener, address));
    Ok(())
}

/// As [`serve`], for a program that has no runtime: a thread of its own answers as long as the process lives.
///
/// # Errors
/// The system refuses the address or the thread.
pub fn serve_in_thread(status: Arc<dyn Status>, address: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(status, address))?;
    let drive = move || runtime.block_on(std::future::pending::<()>());
    std::thread::Builder::new().name("status".to_owned()).spawn(drive).map_err(no_thread)?;
    Ok(())
}

fn at(address: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("status: cannot listen on {address}: {error}"))
}

async fn accept(status: Arc<dyn Status>, listener: TcpListener, address: SocketAddr) {
    // Without its marker only `isthmus top --status ADDRESS` finds it.
    let _marker = mark(address).inspect_err(|error| debug!(%error, "status: no marker"));
    let (mut clients, sparing) = (VecDeque::<AbortHandle>::new(), Sparing::new());
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                sparing.tell(format_args!("the status at {address} answers nobody"), &error, |line| {
                    warn!("{line}")
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let status = status.clone();
        clients.retain(|client| !client.is_finished());
        if clients.len() >= CLIENTS_MAX
            && let Some(oldest) = clients.pop_front()
        {
            oldest.abort();
        }
        let client = tokio::spawn(async move {
            let answer = service_fn(|request| std::future::ready(answer(&*status, &request)));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(ASK_TIME).keep_alive(false);
            let served = timeout(SERVE_TIME, http.serve_connection(TokioIo::new(stream), answer)).await;
            if let Ok(Err(error)) = served {
                debug!(%error, "status");
            }
        });
        clients.push_back(client.abort_handle());
    }
}

fn answer(status: &dyn Status, request: &Request<Incoming>) -> Result<Answer, Infallible> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(refused);
    }
    let path = request.uri().path();
    Ok(match path {
        "/metrics" if takes_openmetrics(request) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            text(StatusCode::OK, kind, status.metrics().to_openmetrics())
        }
        "/metrics" => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            text(StatusCode::OK, kind, status.metrics().to_text())
        }
        "/state" => text(StatusCode::OK, "application/json", format!("{:#}\n", status.state())),
        "/health" => match status.health() {
            Ok(()) => text(StatusCode::OK, TEXT, "ok\n".to_owned()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        _ => match status.page(path) {
            Some(Page { kind, text: body }) => {
                let mut page = text(StatusCode::OK, kind, body);
                page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
                page
            }
            None => {
                let own: String = status.paths().iter().map(|path| format!("{path}, ")).collect();
                text(StatusCode::NOT_FOUND, TEXT, format!("try {own}/metrics, /state or /health\n"))
            }
        },
    })
}

/// Whether the client reads OpenMetrics. Prometheus says so since its release 2.5.
fn takes_openmetrics(request: &Request<Incoming>) -> bool {
    let takes = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains(OPENMETRICS));
    request.headers().get_all(ACCEPT).iter().any(takes)
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    struct Nothing;

    impl Status for Nothing {
        fn metrics(&self) -> Metrics {
            Metrics::new("nothing")
        }

        fn state(&self) -> Value {
            Value::Null
        }

        fn page(&self, _path: &str) -> Option<Page> {
            None
        }

        fn paths(&self) -> &'static [&'static str] {
            &[]
        }
    }

    #[test]
    fn clients_that_ask_nothing_keep_nobody_out() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(accept(Arc::new(Nothing), listener, address));
        let silent: Vec<_> =
            (0..3 * CLIENTS_MAX).map(|_| TcpStream::connect(address).expect("it accepts")).collect();
        let mut asks = TcpStream::connect(address).expect("it accepts");
        // Less than `ASK_TIME`, after which the silent ones would have gone anyway.
        asks.set_read_timeout(Some(ASK_TIME / 2)).expect("valid");
        asks.write_all(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n").expect("it listens");
        let mut told = String::new();
        asks.read_to_string(&mut told).expect("it answers beside silent clients");
        assert!(told.ends_with("ok\n"), "{told}");
        let mut newest = &silent[silent.len() - 1];
        newest.set_read_timeout(Some(Duration::from_millis(100))).expect("valid");
        assert!(newest.read(&mut [0]).is_err(), "only the oldest are closed");
    }
}
