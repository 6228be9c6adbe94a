//! The integration tests: one binary, one private PostgreSQL cluster, a fresh database for every test that wants one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers fail the test that calls them"
)]

mod api;
mod bounces;
mod claims;
mod commands;
mod console;
mod crashes;
mod daemon;
mod demo;
mod docs;
mod enqueueing;
mod erasing;
mod evidencing;
mod finding;
mod harness;
mod identity;
mod logs;
mod machine;
mod operating;
mod outages;
mod outcomes;
mod postfix;
mod providers;
mod pulse;
mod races;
mod reconciling;
mod regression;
mod replaying;
mod retention;
mod sandbox;
mod schema;
mod settling;
mod submitting;
mod tokens;
mod wakeups;
mod worker_process;
