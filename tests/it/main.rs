//! The integration tests: one binary, one private PostgreSQL cluster, a fresh database for every test that wants one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers fail the test that calls them"
)]

mod claims;
mod demo;
mod docs;
mod enqueueing;
mod harness;
mod machine;
mod postfix;
mod regression;
mod sandbox;
mod schema;
mod settling;
mod worker_process;
