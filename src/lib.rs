//! outboxd: a transactional outbox notification worker on PostgreSQL.
pub mod app;
pub mod cli;
pub mod config;
pub mod domain;
pub mod http;
pub mod mail;
pub mod retry;
pub mod sandbox;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod worker;
