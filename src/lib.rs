//! outboxd: a transactional outbox notification worker on PostgreSQL.
pub mod domain;
pub mod mail;
pub mod retry;
pub mod sandbox;
pub mod store;
