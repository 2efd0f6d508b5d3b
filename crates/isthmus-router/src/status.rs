//! Serves the router's status by HTTP on loopback: a page for people, JSON for scripts, metrics for a collector.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::{debug, info};

use crate::router::Router;
use crate::{page, report};

/// Longest time that a client may take to send its request.
const ASK_TIME: Duration = Duration::from_secs(10);
/// Limit on clients at once; more wait. It bounds memory.
const CLIENTS_MAX: usize = 32;

/// Content security policy: the page may use its own style and load nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

type Answer = Response<Full<Bytes>>;

/// Serves the status at `address` as long as the process lives.
pub(crate) async fn serve(router: Arc<Router>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(error.kind(), format!("status: cannot listen on {address}: {error}"))
    })?;
    info!(%address, "status by HTTP");
    tokio::spawn(accept(router, listener));
    Ok(())
}

async fn accept(router: Arc<Router>, listener: TcpListener) {
    let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(client) = clients.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| std::future::ready(answer(&router, &request)));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(ASK_TIME).keep_alive(false);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), answer).await {
                debug!(%error, "status");
            }
            drop(client);
        });
    }
}

fn answer(router: &Router, request: &Request<Incoming>) -> Result<Answer, Infallible> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(refused);
    }
    Ok(match request.uri().path() {
        "/" => {
            let mut page = text(StatusCode::OK, "text/html; charset=utf-8", page::page(router));
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
            page
        }
        "/metrics" => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            text(StatusCode::OK, kind, report::metrics(router))
        }
        "/routes" => text(StatusCode::OK, "application/json", report::routes(&router.settings())),
        "/measured" => text(StatusCode::OK, "application/toml", report::measured(router)),
        "/health" if router.draining.load(Relaxed) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "draining\n".to_owned())
        }
        "/health" => text(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => text(
            StatusCode::NOT_FOUND,
            "text/plain",
            "try /, /metrics, /routes, /measured or /health\n".to_owned(),
        ),
    })
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
