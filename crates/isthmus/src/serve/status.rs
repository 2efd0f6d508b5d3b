//! The status page of `isthmus serve`: metrics, and the state for `isthmus top`.

use std::sync::Arc;

use isthmus_metrics::{Kind, Labels, Metrics, Page, Status, limited};
use isthmus_mover::sessions::{Ended, Flow, Session, Sessions};
use serde_json::{Value, json};

/// The service's data for the status page.
pub(super) struct ServiceStatus {
    /// The address under which clients know the service.
    pub(super) name: String,
    pub(super) sessions: Arc<Sessions>,
}

impl Status for ServiceStatus {
    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new("isthmus_serve");
        for (name, help, of) in TOTALS {
            let rows = Flow::ALL.map(|flow| {
                (vec![("direction", flow.name().to_owned())], of(&self.sessions.ended(flow)) as f64)
            });
            metrics.add(name, Kind::Counter, help, rows);
        }
        let refused = [(Labels::new(), self.sessions.refused() as f64)];
        metrics.add("refusals", Kind::Counter, "Clients that got no session.", refused);
        metrics.add_certificate(self.sessions.certificate_expires());
        let open = self.sessions.open();
        let count = |flow| open.iter().filter(|session| session.direction == flow).count() as f64;
        let counts = Flow::ALL.map(|flow| (vec![("direction", flow.name().to_owned())], count(flow)));
        metrics.add("sessions", Kind::Gauge, "Sessions that go on.", counts);
        let rows = open.iter().map(|session| (labels(session), SessionFigures::of(session))).collect();
        let rows = limited(rows, SessionFigures::sum);
        for (name, kind, help, of) in SESSION_FIGURES {
            let rows = rows.iter().filter_map(|(labels, seen)| Some((labels.clone(), of(seen)?)));
            metrics.add(name, kind, help, rows);
        }
        metrics
    }

    fn state(&self) -> Value {
        let session = |session: Session| {
            json!({
                "number": session.number,
                "as": session.as_id,
                "client": session.client.to_string(),
                "export": session.export,
                "direction": session.direction.name(),
                "age_s": session.since.elapsed().as_secs_f64(),
                "bytes": session.progress.bytes,
                "bytes_total": session.progress.bytes_total,
                "files": session.progress.files,
                "files_total": session.progress.files_total,
                "bits_per_s": session.bits_per_s,
                "rtt_s": session.round_trip.map(|round_trip| round_trip.as_secs_f64()),
                "why": session.why(),
            })
        };
        json!({
            "version": 1,
            "kind": "serve",
            "name": self.name,
            "pid": std::process::id(),
            "sessions": self.sessions.open().into_iter().map(session).collect::<Vec<_>>(),
        })
    }

    fn page(&self, _path: &str) -> Option<Page> {
        None
    }

    fn paths(&self) -> &'static [&'static str] {
        &[]
    }
}

type Total = (&'static str, &'static str, fn(&Ended) -> u64);

const TOTALS: [Total; 5] = [
    ("sessions_done", "Sessions that ended well.", |ended| ended.done),
    ("sessions_failed", "Sessions that broke off.", |ended| ended.failed),
    ("files_copied", "Files that ended sessions have copied.", |ended| ended.files),
    ("files_failed", "Files that ended sessions should have copied and have not.", |ended| {
        ended.files_failed
    }),
    ("copied_bytes", "Bytes of files that crossed the network in ended sessions.", |ended| ended.bytes),
];

fn labels(session: &Session) -> Labels {
    vec![
        ("session", session.number.to_string()),
        ("as", session.as_id.to_string()),
        ("client", session.client.to_canonical().to_string()),
        ("export", session.export.clone()),
        ("direction", session.direction.name().to_owned()),
    ]
}

/// The figures of one session, or the sums over several.
struct SessionFigures {
    bytes: u64,
    files: u64,
    /// Seconds; `None` for several sessions.
    age: Option<f64>,
    /// Seconds; `None` for several sessions, or if unknown.
    rtt: Option<f64>,
}

impl SessionFigures {
    fn of(session: &Session) -> Self {
        Self {
            bytes: session.progress.bytes,
            files: session.progress.files,
            age: Some(session.since.elapsed().as_secs_f64()),
            rtt: session.round_trip.map(|round_trip| round_trip.as_secs_f64()),
        }
    }

    fn sum(of: Vec<Self>) -> Self {
        let sum = |of_one: fn(&Self) -> u64| of.iter().map(of_one).sum();
        Self { bytes: sum(|one| one.bytes), files: sum(|one| one.files), age: None, rtt: None }
    }
}

type SessionFigure = (&'static str, Kind, &'static str, fn(&SessionFigures) -> Option<f64>);

const SESSION_FIGURES: [SessionFigure; 4] = [
    ("session_bytes", Kind::Gauge, "Bytes of a session's files at their destination.", |seen| {
        Some(seen.bytes as f64)
    }),
    ("session_files", Kind::Gauge, "Files of a session that are settled.", |seen| Some(seen.files as f64)),
    ("session_age_seconds", Kind::Gauge, "Time since a session began.", |seen| seen.age),
    ("session_rtt_seconds", Kind::Gauge, "Shortest round-trip time to a session's client.", |seen| seen.rtt),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_without_sessions_tells_its_totals() {
        let status = ServiceStatus { name: "127.0.0.1:1".to_owned(), sessions: Arc::default() };
        let text = status.metrics().to_openmetrics();
        for expected in [
            "isthmus_serve_sessions{direction=\"in\"} 0\n",
            "isthmus_serve_copied_bytes_total{direction=\"out\"} 0\n",
            "# UNIT isthmus_serve_session_rtt_seconds seconds\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        assert_eq!(status.state()["kind"], "serve");
    }
}
