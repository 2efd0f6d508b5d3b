//! TLS of the links between routers.

use std::io;

use isthmus_trust::{Files, Role, Shown, Trust};
use isthmus_wire::AsId;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::ConfigError;

/// The versions of links that this build speaks, the newest first.
const VERSIONS: &[&[u8]] = &[b"isthmus/1"];

/// TLS settings for both roles in a handshake: client and server.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) trust: Trust,
}

impl Tls {
    /// Reads the certificates. This router's certificate must name its AS.
    pub(crate) fn load(files: &Files, own: AsId, admits: &[u32]) -> Result<Self, ConfigError> {
        Self::speaking(VERSIONS, files, own, admits)
    }

    fn speaking(versions: &[&[u8]], files: &Files, own: AsId, admits: &[u32]) -> Result<Self, ConfigError> {
        let trust = Trust::load_as(Role::Router, files, own, admits, versions)?;
        let (connector, acceptor) = (trust.client.clone().into(), trust.server.clone().into());
        Ok(Self { connector, acceptor, trust })
    }

    /// Whether a link whose other end showed these certificates may stand.
    pub(crate) fn believes(&self, shown: &Shown) -> bool {
        self.trust.believes(shown)
    }
}

/// Why there is no link. If TLS failed, the text says what to change.
pub(crate) fn why(error: &io::Error) -> String {
    let by_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<tokio_rustls::rustls::Error>());
    match by_tls {
        Some(error) => isthmus_trust::explain(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the other end closed the connection before the handshake was over; its log may say why"
                .to_owned()
        }
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isthmus_trust::Keygen;
    use isthmus_wire::SubnetId;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use crate::link::{Link, limits};
    use crate::wire::Wire;

    /// Both ends of a link that the first has dialled, if they agree.
    async fn linked(dials: &Tls, listens: &Tls) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let to = listener.local_addr()?;
        let dial = async {
            let name = ServerName::IpAddress(to.ip().into());
            dials.connector.connect(name, Wire::from(TcpStream::connect(to).await?)).await
        };
        let accept = async { listens.acceptor.accept(Wire::from(listener.accept().await?.0)).await };
        let (near, far) = tokio::try_join!(dial, accept)?;
        let subnet = SubnetId(0);
        let (near, mut work) = Link::new(near.into(), AsId(2), subnet, Some(to), limits(1 << 24, 1))?;
        let (far, mut far_work) = Link::new(far.into(), AsId(1), subnet, None, limits(1 << 24, 1))?;
        let working = tokio::spawn(async move { work.run(drop).await });
        let (lanes, mut accepted) = tokio::sync::mpsc::unbounded_channel();
        let far_working =
            tokio::spawn(async move { far_work.run(|lane| drop(lanes.send(far.accepted(lane)))).await });
        let mut lane = near.lane().await.expect("a lane");
        lane.write_all(b"across").await?;
        let mut heard = [0; 6];
        accepted.recv().await.expect("the lane").read_exact(&mut heard).await?;
        assert_eq!(&heard, b"across");
        working.abort();
        far_working.abort();
        Ok(())
    }

    /// A router of this build and one that speaks one version more can make links, whichever of them dials.
    #[tokio::test]
    async fn routers_whose_versions_overlap_have_links() {
        let folder = tempfile::tempdir().expect("a folder");
        for as_id in [1, 2] {
            let name = format!("router{as_id}");
            Keygen { as_id, folder: folder.path(), name: &name, days: 1 }
                .make_as(Some(Role::Router))
                .expect("made");
        }
        let tls = |versions, own: u32, other: u32| {
            let at = |name: String| folder.path().join(name);
            let files = Files {
                certificate: at(format!("router{own}.pem")),
                key: at(format!("router{own}.key")),
                authorities: vec![at(format!("as{other}.pem"))],
                denied: None,
            };
            Tls::speaking(versions, &files, AsId(own), &[other]).expect("good files")
        };
        let later: &[&[u8]] = &[&[&b"isthmus/2"[..]], VERSIONS].concat();
        let limit = Duration::from_secs(20);
        for [dials, listens] in [[later, VERSIONS], [VERSIONS, later]] {
            let (dials, listens) = (tls(dials, 1, 2), tls(listens, 2, 1));
            timeout(limit, linked(&dials, &listens)).await.expect("in time").expect("a link");
        }
        let (only_later, own) = (tls(&[b"isthmus/2"], 1, 2), tls(VERSIONS, 2, 1));
        let refused = timeout(limit, linked(&only_later, &own)).await.expect("in time");
        assert!(why(&refused.expect_err("no common version")).contains("another release"));
    }

    #[test]
    fn an_end_in_the_midst_of_a_handshake_is_told_in_words() {
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        assert!(why(&ended).contains("before the handshake was over"));
    }
}
