//! The router's status by HTTP, on loopback.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::router::Router;

pub(crate) async fn serve(_router: Arc<Router>, _address: SocketAddr) -> io::Result<()> {
    Ok(())
}
