//! What every integration test stands on: databases, the real program, and waiting for conditions.
//!
//! Nothing here imitates a part of the system, and nothing but [`eventually`] waits.

use std::io::Write as _;

use outboxd::sandbox::postfix::Postfix;

pub(crate) mod api;
pub(crate) mod browser;
mod db;
pub(crate) mod http;
pub(crate) mod identity;
mod process;
pub(crate) mod rows;
pub(crate) mod scene;
mod wait;
mod worker;

pub(crate) use db::{TestDb, cluster};
pub(crate) use process::Proc;
pub(crate) use wait::{PATIENCE, eventually};
pub(crate) use worker::{Config, Worker};

/// Says something past the test runner's capture, which hides what a passing test prints.
pub(crate) fn say(text: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{text}").unwrap();
}

/// Whether `test` must be left out for want of a Postfix, which is said aloud.
pub(crate) fn no_postfix(test: &str) -> bool {
    let reason = Postfix::unavailable();
    if let Some(reason) = reason {
        say(&format!("SKIPPED {test}: {reason}"));
    }
    reason.is_some()
}
