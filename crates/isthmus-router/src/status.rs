//! The router's pages: one for people, and others for programs.

use std::sync::atomic::Ordering::Relaxed;

use isthmus_metrics::{Metrics, Page, Status};
use serde_json::Value;

use crate::router::Router;
use crate::{page, report};

impl Status for Router {
    fn metrics(&self) -> Metrics {
        report::metrics(self)
    }

    fn state(&self) -> Value {
        report::state(self)
    }

    fn health(&self) -> Result<(), &'static str> {
        if self.draining.load(Relaxed) { Err("draining") } else { Ok(()) }
    }

    fn page(&self, path: &str) -> Option<Page> {
        let (kind, text) = match path {
            "/" => ("text/html; charset=utf-8", page::page(self)),
            "/routes" => ("application/json", report::routes(&self.settings())),
            "/measured" => ("application/toml", report::measured(self)),
            _ => return None,
        };
        Some(Page { kind, text })
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/", "/routes", "/measured"]
    }
}
